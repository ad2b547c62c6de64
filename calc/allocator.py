"""torch's caching allocator, request by request: what it counts as allocated and what it reserves.

Rules and constants from c10/cuda/CUDACachingAllocator.{h,cpp} (torch 2.11): requests are rounded to 512 bytes; those up
to 1 MiB share 2 MiB segments, those under 10 MiB share 20 MiB segments, larger ones get a segment of their own rounded
to 2 MiB; the smallest free block that is large enough is taken; it is split unless the rest is too small to be useful,
so that "allocated" counts that rest too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

MIB = 2**20
SMALL_REQUEST = MIB
"""kSmallSize: the largest request of the small pool, and the smallest rest that is split off in the large pool."""
SMALL_SEGMENT = 2 * MIB
"""kSmallBuffer."""
MIDDLE_REQUEST = 10 * MIB
"""kMinLargeAlloc: from here on a request has a segment of its own."""
MIDDLE_SEGMENT = 20 * MIB
"""kLargeBuffer."""
LARGE_UNIT = 2 * MIB
"""kRoundLarge."""
UNIT = 512
"""kMinBlockSize."""


class Block:
    """A piece of a segment."""

    __slots__ = ("address", "free", "next", "previous", "size", "small")

    def __init__(self, address: int, size: int, *, small: bool) -> None:
        self.address = address
        self.size = size
        self.small = small
        self.free = False
        self.previous: Block | None = None
        self.next: Block | None = None


@dataclass
class CachingAllocator:
    """Counts as torch does: ``allocated`` and ``reserved`` now, and their peaks since `reset_peaks`.

    ``capacity`` bounds what may be reserved: where a new segment would pass it, cached segments are released first, and
    `OutOfMemory` is raised where that does not help.
    """

    capacity: int | None = None

    def __post_init__(self) -> None:
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._address = 0
        self._small: list[tuple[int, int, Block]] = []
        self._large: list[tuple[int, int, Block]] = []

    def reset_peaks(self) -> None:
        """Peaks start again from what is held now."""
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved

    def malloc(self, nbytes: int) -> Block:
        """A block of at least ``nbytes``; `OutOfMemory` where the capacity does not allow it."""
        size = UNIT if nbytes < UNIT else (nbytes + UNIT - 1) // UNIT * UNIT
        small = size <= SMALL_REQUEST
        pool = self._small if small else self._large
        at = bisect_left(pool, (size,))
        block = pool.pop(at)[2] if at < len(pool) else self._segment(size, small=small)
        rest = block.size - size
        if rest >= UNIT if small else rest > SMALL_REQUEST:
            tail = Block(block.address + size, rest, small=small)
            tail.free = True
            tail.previous, tail.next = block, block.next
            if block.next is not None:
                block.next.previous = tail
            block.next = tail
            block.size = size
            insort(pool, (rest, tail.address, tail))
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Gives a block back to its pool, joined with free neighbours."""
        self.allocated -= block.size
        pool = self._small if block.small else self._large
        before, after = block.previous, block.next
        if before is not None and before.free:
            pool.pop(bisect_left(pool, (before.size, before.address)))
            before.size += block.size
            before.next = after
            if after is not None:
                after.previous = before
            block = before
        if after is not None and after.free:
            pool.pop(bisect_left(pool, (after.size, after.address)))
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.previous = block
        block.free = True
        insort(pool, (block.size, block.address, block))

    def _segment(self, size: int, *, small: bool) -> Block:
        if small:
            length = SMALL_SEGMENT
        elif size < MIDDLE_REQUEST:
            length = MIDDLE_SEGMENT
        else:
            length = (size + LARGE_UNIT - 1) // LARGE_UNIT * LARGE_UNIT
        if self.capacity is not None and self.reserved + length > self.capacity:
            self._release_cached()
            if self.reserved + length > self.capacity:
                raise OutOfMemory(self.reserved + length - self.capacity)
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._address += length
        return Block(self._address - length, length, small=small)

    def _release_cached(self) -> None:
        for pool in (self._small, self._large):
            kept = []
            for entry in pool:
                block = entry[2]
                if block.previous is None and block.next is None:
                    self.reserved -= block.size
                else:
                    kept.append(entry)
            pool[:] = kept


class OutOfMemory(Exception):
    """A request passed the capacity by ``missing_bytes`` with nothing left to release."""

    def __init__(self, missing_bytes: int) -> None:
        super().__init__(f"{missing_bytes} bytes are missing")
        self.missing_bytes = missing_bytes
