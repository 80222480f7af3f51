"""Pure. PyTorch's CUDA caching allocator in numbers: what ``memory_allocated`` says after a sequence.

vLLM logs *allocated* bytes, and those are sizes of allocator blocks, not of tensors. The rules are
those of c10/cuda/CUDACachingAllocator.cpp (2.4 to 2.14), which vLLM 0.21 and later runs with
``max_split_size_mb:20`` while it loads:

- a request is rounded up to 512 bytes; up to 1 MiB it is cut from 2 MiB segments, below 10 MiB from
  20 MiB segments, else from a segment of its own rounded up to 2 MiB;
- the best-fitting cached block is reused; its rest is split off only if more than 1 MiB would
  remain (large pool) and the request is below the split limit;
- a block at or over the split limit serves only requests over it, and only if it is at most 20 MiB
  larger: it is handed out whole, so a 30 MiB tensor may be accounted as 48 MiB.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

__all__ = ["MIB", "CachingAllocator"]

MIB = 1 << 20
_GRAIN = 512
_SMALL_SIZE = MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_MIN_OWN_SEGMENT = 10 * MIB
_SEGMENT_GRAIN = 2 * MIB
_NON_SPLIT_SLACK = 20 * MIB


class CachingAllocator:
    """Counts blocks like one CUDA device's allocator; ``max_split_bytes`` None means no limit.

    ``allocated_bytes`` is what torch.cuda.memory_allocated() would say, ``peak_bytes`` its maximum
    so far, ``reserved_bytes`` what cudaMalloc handed out. ``host_copy_bytes`` is pinned RAM for a copy of
    every segment in use, each rounded up to a power of two (ATen/core/CachingHostAllocator.h, 2.13).
    """

    def __init__(self, max_split_bytes: int | None = None) -> None:
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.reserved_bytes = 0
        self._max_split = max_split_bytes if max_split_bytes is not None else 1 << 62
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._size: dict[int, int] = {}
        self._is_free: dict[int, bool] = {}
        self._next: dict[int, int | None] = {}
        self._previous: dict[int, int | None] = {}
        self._is_small: dict[int, bool] = {}
        self._segment_end = 0
        self._segments: list[int] = []

    @property
    def host_copy_bytes(self) -> int:
        """RAM that a copy of the segments takes of which anything is allocated."""
        used = {
            bisect_right(self._segments, address) - 1
            for address, is_free in self._is_free.items()
            if not is_free
        }
        ends = [*self._segments[1:], self._segment_end]
        return sum(1 << (ends[at] - self._segments[at] - 1).bit_length() for at in used)

    def allocate(self, nbytes: int) -> int:
        """A block for ``nbytes`` (> 0); returns its address."""
        size = -(-nbytes // _GRAIN) * _GRAIN
        is_small = size <= _SMALL_SIZE
        address = self._take_cached(size, is_small=is_small)
        if address is None:
            address = self._new_segment(size, is_small=is_small)
        self._split(address, size, is_small=is_small)
        self._is_free[address] = False
        self.allocated_bytes += self._size[address]
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return address

    def release(self, address: int) -> None:
        """Give a block back; it merges with free neighbours of its segment."""
        self.allocated_bytes -= self._size[address]
        for neighbour in (self._previous[address], self._next[address]):
            if neighbour is not None and self._is_free[neighbour]:
                self._forget(neighbour)
                address = self._merge(min(address, neighbour), max(address, neighbour))
        self._is_free[address] = True
        insort(self._free[self._is_small[address]], (self._size[address], address))

    def _take_cached(self, size: int, *, is_small: bool) -> int | None:
        pool = self._free[is_small]
        position = bisect_left(pool, (size, 0))
        if position == len(pool):
            return None
        found, address = pool[position]
        if size < self._max_split <= found:
            return None
        if size >= self._max_split and found >= size + _NON_SPLIT_SLACK:
            return None
        del pool[position]
        return address

    def _new_segment(self, size: int, *, is_small: bool) -> int:
        if is_small:
            extent = _SMALL_SEGMENT
        elif size < _MIN_OWN_SEGMENT:
            extent = _LARGE_SEGMENT
        else:
            extent = -(-size // _SEGMENT_GRAIN) * _SEGMENT_GRAIN
        address = self._segment_end
        self._segments.append(address)
        self._segment_end += extent
        self.reserved_bytes += extent
        self._size[address] = extent
        self._next[address] = self._previous[address] = None
        self._is_small[address] = is_small
        return address

    def _split(self, address: int, size: int, *, is_small: bool) -> None:
        rest = self._size[address] - size
        enough = rest >= _GRAIN if is_small else size < self._max_split and rest > _SMALL_SIZE
        if not enough:
            return
        other = address + size
        self._size[address] = size
        self._size[other] = rest
        self._is_small[other] = is_small
        follower = self._next[address]
        self._next[address], self._previous[other] = other, address
        self._next[other] = follower
        if follower is not None:
            self._previous[follower] = other
        self._is_free[other] = True
        insort(self._free[is_small], (rest, other))

    def _forget(self, address: int) -> None:
        pool = self._free[self._is_small[address]]
        del pool[bisect_left(pool, (self._size[address], address))]

    def _merge(self, low: int, high: int) -> int:
        self._size[low] += self._size.pop(high)
        follower = self._next.pop(high)
        self._next[low] = follower
        if follower is not None:
            self._previous[follower] = low
        del self._previous[high], self._is_small[high], self._is_free[high]
        return low
