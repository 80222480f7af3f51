"""I/O. Copies memory between cards and compares: whether peer access works, not whether a driver claims it.

Runs as a program of its own (``python -m trimtab.probes.gpu_peer_copy UUID UUID …``), because the
fault it looks for can hang the process that meets it. Each ordered pair copies a random pattern from
card to card with peer access on, as CUDA's simpleP2P sample does; one line of JSON per pair comes out.
Takes some hundred MB of each card for a second: only for cards that no engine uses.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, Final

__all__ = ["copy_between", "main"]

_PATTERN_BYTES: Final = 16 * 1024 * 1024
# The driver interface's result codes and their names (cuda.h).
_SUCCESS: Final = 0
_PEER_ACCESS_ALREADY_ENABLED: Final = 704

_Result = tuple[str, str]
"""Outcome (right, wrong, refused, failed) and, where it failed, at which call."""


class _CallError(Exception):
    """A call of the driver interface failed."""


class _Cuda:
    """The few calls of libcuda that are needed; handles and pointers are 64 bit."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code not in (_SUCCESS, _PEER_ACCESS_ALREADY_ENABLED):
            raise _CallError(f"{name} failed with {code}")

    def context_of(self, ordinal: int) -> tuple[int, ctypes.c_void_p]:
        """A card's handle and its primary context."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        return device.value, context

    def allocate(self, context: ctypes.c_void_p, size: int) -> ctypes.c_uint64:
        """Memory of the context's card."""
        pointer = ctypes.c_uint64()
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def can_access(self, device: int, other: int) -> bool:
        """Whether the driver says that ``device`` reaches ``other``."""
        answer = ctypes.c_int()
        self.call("cuDeviceCanAccessPeer", ctypes.byref(answer), ctypes.c_int(device), ctypes.c_int(other))
        return answer.value == 1


def copy_between(library: Any, count: int, size: int = _PATTERN_BYTES) -> Iterator[tuple[int, int, _Result]]:
    """The outcome for each ordered pair of the ``count`` cards that ``library`` shows."""
    cuda = _Cuda(library)
    cuda.call("cuInit", ctypes.c_uint(0))
    cards = [cuda.context_of(ordinal) for ordinal in range(count)]
    buffers = [cuda.allocate(context, size) for _, context in cards]
    for source, target in permutations(range(count), 2):
        yield source, target, _copy(cuda, cards, buffers, (source, target), size)


def _copy(
    cuda: _Cuda,
    cards: Sequence[tuple[int, ctypes.c_void_p]],
    buffers: Sequence[ctypes.c_uint64],
    pair: tuple[int, int],
    size: int,
) -> _Result:
    source, target = pair
    pattern = os.urandom(size)
    back = ctypes.create_string_buffer(size)
    length = ctypes.c_size_t(size)
    try:
        if not cuda.can_access(cards[target][0], cards[source][0]):
            return "refused", ""
        cuda.call("cuCtxSetCurrent", cards[source][1])
        cuda.call("cuMemcpyHtoD_v2", buffers[source], pattern, length)
        cuda.call("cuCtxSetCurrent", cards[target][1])
        cuda.call("cuCtxEnablePeerAccess", cards[source][1], ctypes.c_uint(0))
        cuda.call("cuMemsetD8_v2", buffers[target], ctypes.c_ubyte(0), length)
        cuda.call(
            "cuMemcpyPeer", buffers[target], cards[target][1], buffers[source], cards[source][1], length
        )
        cuda.call("cuCtxSynchronize")
        cuda.call("cuMemcpyDtoH_v2", back, buffers[target], length)
    except _CallError as error:
        return "failed", str(error)
    return ("right" if back.raw == pattern else "wrong"), ""


def main(uuids: Sequence[str]) -> int:
    """Print one line of JSON per ordered pair of the cards named; 1 when CUDA cannot be started."""
    # Before the library is loaded, which reads them once.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        for source, target, (outcome, detail) in copy_between(ctypes.CDLL("libcuda.so.1"), len(uuids)):
            line = {"source": source, "target": target, "outcome": outcome, "detail": detail}
            print(json.dumps(line), flush=True)  # noqa: T201 - its output is its answer
    except (OSError, _CallError) as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
