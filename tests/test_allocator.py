"""The caching allocator's rules, each on an example worked out by hand from c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.allocator import MIB, CachingAllocator, OutOfMemoryError


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),  # kMinBlockSize, kSmallBuffer
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # kSmallSize itself is small
        (MIB + 1, MIB + 512, 20 * MIB),  # kLargeBuffer
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # kMinLargeAlloc: a segment of its own
        (11 * MIB, 12 * MIB, 12 * MIB),  # kRoundLarge; a rest of 1 MiB is not split off, so it counts as allocated
        (10 * MIB + 512, 10 * MIB + 512, 12 * MIB),  # a rest above 1 MiB is
        (20 * MIB + 1, 20 * MIB + 512, 22 * MIB),
    ],
)
def test_one_request(request_bytes: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(request_bytes)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_middle_requests_share_a_segment() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.malloc(5 * MIB)
    assert allocator.reserved == 20 * MIB
    allocator.malloc(5 * MIB)
    assert allocator.reserved == 40 * MIB


def test_small_requests_share_a_segment() -> None:
    allocator = CachingAllocator()
    for _ in range(4096):
        allocator.malloc(512)
    assert allocator.reserved == 2 * MIB
    allocator.malloc(512)
    assert allocator.reserved == 4 * MIB


def test_freed_memory_stays_reserved_and_is_used_again() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(64 * MIB))
    assert (allocator.allocated, allocator.reserved) == (0, 64 * MIB)
    allocator.malloc(40 * MIB)
    allocator.malloc(24 * MIB)
    assert allocator.reserved == 64 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.malloc(100 * MIB), allocator.malloc(50 * MIB)
    allocator.free(large)
    allocator.free(small)
    taken = allocator.malloc(50 * MIB)
    assert taken == small
    allocator.malloc(100 * MIB)
    assert allocator.reserved == 150 * MIB


def test_free_neighbours_are_joined() -> None:
    allocator = CachingAllocator()
    whole = allocator.malloc(90 * MIB)
    allocator.free(whole)
    parts = [allocator.malloc(30 * MIB) for _ in range(3)]
    for part in (parts[0], parts[2], parts[1]):
        allocator.free(part)
    allocator.malloc(90 * MIB)
    assert allocator.reserved == 90 * MIB


def test_pieces_of_different_segments_are_not_joined() -> None:
    allocator = CachingAllocator()
    for block in [allocator.malloc(30 * MIB) for _ in range(3)]:
        allocator.free(block)
    allocator.malloc(60 * MIB)
    assert allocator.reserved == 150 * MIB


def test_fragments_keep_a_request_out() -> None:
    # 40 of 100 MiB are free, in two pieces of 20: a request of 40 needs a new segment.
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(100 * MIB))
    parts = [allocator.malloc(20 * MIB) for _ in range(5)]
    allocator.free(parts[0])
    allocator.free(parts[2])
    allocator.malloc(40 * MIB)
    assert (allocator.allocated, allocator.reserved) == (100 * MIB, 140 * MIB)


def test_at_the_limit_cached_segments_are_given_back_first() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    for block in [allocator.malloc(40 * MIB) for _ in range(2)]:
        allocator.free(block)
    allocator.malloc(90 * MIB)
    assert allocator.reserved == 90 * MIB
    assert allocator.peak_reserved == 90 * MIB


def test_a_segment_that_is_used_in_part_is_not_given_back() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    whole = allocator.malloc(60 * MIB)
    allocator.free(whole)
    allocator.malloc(20 * MIB)
    with pytest.raises(OutOfMemoryError) as error:
        allocator.malloc(50 * MIB)
    assert error.value.missing_bytes == 10 * MIB


def test_beyond_the_limit_memory_is_out() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.malloc(60 * MIB)
    with pytest.raises(OutOfMemoryError) as error:
        allocator.malloc(60 * MIB)
    assert error.value.missing_bytes == 20 * MIB


REQUESTS = st.lists(
    st.tuples(st.one_of(st.integers(1, 4 * MIB), st.integers(MIB, 300 * MIB)), st.booleans()), max_size=60
)


def test_a_small_segment_at_the_limit_lacks_no_more_than_itself() -> None:
    allocator = CachingAllocator(capacity=11 * MIB)
    allocator.malloc(10 * MIB)
    with pytest.raises(OutOfMemoryError) as error:
        allocator.malloc(512)
    assert error.value.missing_bytes == MIB


def test_a_copy_goes_its_own_way() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(64 * MIB))
    copy = allocator.copy(capacity=100 * MIB)
    copy.malloc(90 * MIB)
    assert (copy.reserved, copy.released) == (90 * MIB, True)
    assert (allocator.reserved, allocator.released) == (64 * MIB, False)
    allocator.malloc(64 * MIB)
    assert allocator.reserved == 64 * MIB


@pytest.mark.property
@given(REQUESTS)
def test_requests_that_surely_find_room_reserve_nothing_and_leave_no_trace(requests: list[tuple[int, bool]]) -> None:
    allocator = CachingAllocator()
    blocks = [(allocator.malloc(nbytes), freed) for nbytes, freed in requests]
    for block, freed in blocks:
        if freed:
            allocator.free(block)
    sizes = (0, *(nbytes // 512 * 512 for nbytes, _ in requests[:5]))
    untouched, roomy = allocator.copy(), allocator.has_room_for(sizes)
    taken = allocator.take(sizes)
    assert allocator.reserved == untouched.reserved or not roomy
    allocator.run(range(-1, -len(taken), -1), (), taken)
    if roomy:
        for nbytes, _ in requests:
            assert allocator.malloc(nbytes) == untouched.malloc(nbytes)


@pytest.mark.property
@given(REQUESTS)
def test_bytes_are_never_lost(requests: list[tuple[int, bool]]) -> None:
    allocator = CachingAllocator()
    held = []
    for nbytes, freed_again in requests:
        block = allocator.malloc(nbytes)
        if freed_again:
            allocator.free(block)
        else:
            held.append((nbytes, block))
        assert sum(n for n, _ in held) <= allocator.allocated <= allocator.reserved
        assert allocator.reserved % (2 * MIB) == 0
    blocks = [block for _, block in held if not isinstance(block, int)]
    places = sorted((address, address + size) for address, size in blocks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    for _, block in held:
        allocator.free(block)
    assert allocator.allocated == 0


@pytest.mark.property
@given(REQUESTS, st.integers(1, 100))
def test_reserved_memory_never_passes_the_limit(requests: list[tuple[int, bool]], limit: int) -> None:
    allocator = CachingAllocator(capacity=limit * 2 * MIB)
    for nbytes, freed_again in requests:
        with suppress(OutOfMemoryError):
            block = allocator.malloc(nbytes)
            if freed_again:
                allocator.free(block)
    assert allocator.peak_reserved <= limit * 2 * MIB
