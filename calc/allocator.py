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
    """A piece of a segment of the large pool."""

    __slots__ = ("address", "free", "next", "previous", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.free = False
        self.previous: Block | None = None
        self.next: Block | None = None


@dataclass
class CachingAllocator:
    """Counts as torch does: ``allocated`` and ``reserved`` now, and their peaks.

    ``capacity`` bounds what may be reserved: where a new segment would pass it, cached segments are released first, and
    `OutOfMemoryError` is raised where that does not help. Requests of the small pool are counted without places: they
    leave no gaps worth following, and are half of all requests.
    """

    capacity: int | None = None

    def __post_init__(self) -> None:
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._address = 0
        self._small_allocated = 0
        self._small_reserved = 0
        self._free: list[tuple[int, int, Block]] = []

    def malloc(self, nbytes: int) -> Block | int:
        """A block of at least ``nbytes``; of the small pool, its size alone.

        Raises
        ------
        OutOfMemoryError
            Where the capacity would be passed with nothing left to release.
        """
        size = (nbytes + UNIT - 1) // UNIT * UNIT or UNIT
        if size <= SMALL_REQUEST:
            self._small_allocated += size
            if self._small_allocated > self._small_reserved:
                self._reserve(SMALL_SEGMENT)
                self._small_reserved += SMALL_SEGMENT
            self.allocated += size
            self.peak_allocated = max(self.peak_allocated, self.allocated)
            return size
        free = self._free
        at = bisect_left(free, (size,))
        block = free.pop(at)[2] if at < len(free) else self._segment(size)
        rest = block.size - size
        if rest > SMALL_REQUEST:
            tail = Block(block.address + size, rest)
            tail.free = True
            tail.previous = block
            tail.next = after = block.next
            if after is not None:
                after.previous = tail
            block.next = tail
            block.size = size
            insort(free, (rest, tail.address, tail))
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block | int) -> None:
        """Gives a block back to its pool, joined with free neighbours."""
        if isinstance(block, int):
            self.allocated -= block
            self._small_allocated -= block
            return
        self.allocated -= block.size
        free = self._free
        before, after = block.previous, block.next
        if before is not None and before.free:
            free.pop(bisect_left(free, (before.size, before.address)))
            before.size += block.size
            before.next = after
            if after is not None:
                after.previous = before
            block = before
        if after is not None and after.free:
            free.pop(bisect_left(free, (after.size, after.address)))
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.previous = block
        block.free = True
        insort(free, (block.size, block.address, block))

    def _segment(self, size: int) -> Block:
        length = MIDDLE_SEGMENT if size < MIDDLE_REQUEST else (size + LARGE_UNIT - 1) // LARGE_UNIT * LARGE_UNIT
        self._reserve(length)
        self._address += length
        return Block(self._address - length, length)

    def _reserve(self, length: int) -> None:
        if self.capacity is not None and self.reserved + length > self.capacity:
            self._release_cached()
            if self.reserved + length > self.capacity:
                raise OutOfMemoryError(self.reserved + length - self.capacity)
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _release_cached(self) -> None:
        whole = [entry for entry in self._free if entry[2].previous is None and entry[2].next is None]
        self.reserved -= sum(entry[0] for entry in whole)
        self._free[:] = [entry for entry in self._free if entry[2].previous is not None or entry[2].next is not None]
        unused = (self._small_reserved - self._small_allocated) // SMALL_SEGMENT * SMALL_SEGMENT
        self._small_reserved -= unused
        self.reserved -= unused


class OutOfMemoryError(Exception):
    """A request passed the capacity by ``missing_bytes`` with nothing left to release."""

    def __init__(self, missing_bytes: int) -> None:
        super().__init__(f"{missing_bytes} bytes are missing")
        self.missing_bytes = missing_bytes
