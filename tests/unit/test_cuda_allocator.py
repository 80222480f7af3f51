"""The allocator model: PyTorch's block rules, each with the sizes it decides."""

from __future__ import annotations

import pytest

from trimtab.planner.cuda_allocator import MIB, CachingAllocator


@pytest.mark.parametrize(
    ("nbytes", "block"),
    [
        (1, 512),
        (513, 1024),
        (MIB, MIB),
        (5 * MIB, 5 * MIB),
        (int(10.5 * MIB), int(10.5 * MIB)),
        (11 * MIB, 12 * MIB),
        (15 * MIB, 16 * MIB),
        (int(14.5 * MIB), int(14.5 * MIB)),
        (85 * MIB, 86 * MIB),
        (int(42.5 * MIB), 44 * MIB),
        (128 * MIB, 128 * MIB),
    ],
    ids=lambda value: f"{value}",
)
def test_block_sizes_under_the_loading_limit(nbytes: int, block: int) -> None:
    """With vLLM's 20 MiB split limit a tensor is accounted by its block, not its bytes."""
    allocator = CachingAllocator(20 * MIB)
    allocator.allocate(nbytes)
    assert allocator.allocated_bytes == block


def test_without_a_limit_large_blocks_are_cut_to_size() -> None:
    """Before vLLM 0.21 only a rest of up to 1 MiB was lost."""
    allocator = CachingAllocator()
    allocator.allocate(int(42.5 * MIB))
    assert allocator.allocated_bytes == int(42.5 * MIB)


def test_an_oversized_cached_block_is_handed_out_whole() -> None:
    """A freed 48 MiB block serves a 30 MiB tensor and counts as 48: where dense int4 models gain weight."""
    allocator = CachingAllocator(20 * MIB)
    allocator.release(allocator.allocate(48 * MIB))
    allocator.allocate(30 * MIB)
    assert allocator.allocated_bytes == 48 * MIB
    assert allocator.reserved_bytes == 48 * MIB


@pytest.mark.parametrize("nbytes", [28 * MIB, 5 * MIB], ids=["more than 20 MiB smaller", "below the limit"])
def test_an_oversized_block_is_not_wasted_on_a_small_tensor(nbytes: int) -> None:
    """Requests under the limit, or more than 20 MiB smaller, get memory of their own."""
    allocator = CachingAllocator(20 * MIB)
    allocator.release(allocator.allocate(48 * MIB))
    allocator.allocate(nbytes)
    assert allocator.reserved_bytes > 48 * MIB


def test_freed_neighbours_merge_and_serve_again() -> None:
    """Pieces of one segment become one block again, so memory isn't taken twice."""
    allocator = CachingAllocator(20 * MIB)
    pieces = [allocator.allocate(4 * MIB) for _ in range(4)]
    for piece in (pieces[1], pieces[0], pieces[3], pieces[2]):
        allocator.release(piece)
    assert allocator.allocated_bytes == 0
    allocator = CachingAllocator()
    pieces = [allocator.allocate(4 * MIB) for _ in range(5)]
    for piece in pieces:
        allocator.release(piece)
    allocator.allocate(18 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_peak_is_the_most_that_lived_at_once() -> None:
    """The peak is remembered after everything is freed."""
    allocator = CachingAllocator()
    first, second = allocator.allocate(2 * MIB), allocator.allocate(3 * MIB)
    allocator.release(first)
    allocator.release(second)
    assert (allocator.allocated_bytes, allocator.peak_bytes) == (0, 5 * MIB)
