"""torch's caching allocator, request by request: what it counts as allocated and what it reserves.

Rules and constants from c10/cuda/CUDACachingAllocator.{h,cpp} (torch 2.11): requests are rounded to 512 bytes; those up
to 1 MiB share 2 MiB segments, those under 10 MiB share 20 MiB segments, larger ones get a segment of their own rounded
to 2 MiB; the smallest free block that is large enough is taken; it is split unless the rest is too small to be useful,
so that "allocated" counts that rest too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


Block = tuple[int, int]
"""A piece of a segment of the large pool: address and size."""


class CachingAllocator:
    """Counts as torch does: ``allocated`` and ``reserved`` now, and their peaks.

    Requests of the small pool are counted without places: they leave no gaps worth following, and are half of all
    requests.

    Parameters
    ----------
    capacity : int, optional
        Bounds what may be reserved: where a new segment would pass it, cached segments are released first, and
        `OutOfMemoryError` is raised where that does not help.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.released = False
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._small_free = 0
        self._segments: dict[int, int] = {}
        self._next_address = 0
        # Free blocks: their addresses by size, in order, and the sizes in order; for a block that is freed to find its
        # neighbours, sizes by address and addresses by where a block ends.
        self._free: dict[int, list[int]] = {}
        self._free_sizes: list[int] = []
        self._size_at: dict[int, int] = {}
        self._ending_at: dict[int, int] = {}

    def copy(self, capacity: int | None = None) -> CachingAllocator:
        """Another allocator in the same state, under a capacity of its own."""
        made = CachingAllocator(capacity)
        made.allocated, made.reserved = self.allocated, self.reserved
        made.peak_allocated, made.peak_reserved = self.peak_allocated, self.peak_reserved
        made._small_free = self._small_free
        made._segments, made._next_address = dict(self._segments), self._next_address
        made._free = {size: list(addresses) for size, addresses in self._free.items()}
        made._free_sizes = list(self._free_sizes)
        made._size_at, made._ending_at = dict(self._size_at), dict(self._ending_at)
        return made

    def malloc(self, nbytes: int) -> Block | int:
        """A block of at least ``nbytes``; of the small pool, its size alone.

        Raises
        ------
        OutOfMemoryError
            Where the capacity would be passed with nothing left to release.
        """
        return self.run((1,), (0, (nbytes + UNIT - 1) // UNIT * UNIT))[1]

    def free(self, block: Block | int) -> None:
        """Gives a block back to its pool, joined with free neighbours."""
        self.run((-1,), (), [0, block])

    def take(self, sizes: Sequence[int]) -> list[Block | int]:
        """`run` for a block of each size; the first in ``sizes`` is not asked for."""
        return self.run(range(1, len(sizes)), sizes)

    def run(  # noqa: C901, PLR0912, PLR0915 - see the comment on its loop
        self, events: Iterable[int], sizes: Sequence[int], blocks: list[Block | int] | None = None
    ) -> list[Block | int]:
        """Follows a log: n takes a block of ``sizes[n]`` bytes, -n gives back the nth block taken.

        Parameters
        ----------
        events : iterable of int
            The log; its numbers start from 1.
        sizes : sequence of int
            Bytes, in multiples of the unit.
        blocks : list, optional
            What an earlier part of the log has taken; the one at 0 stands for none.

        Returns
        -------
        list
            ``blocks`` and what was taken now.

        Raises
        ------
        OutOfMemoryError
            As `malloc`; the allocator is of no further use then.
        """
        blocks = [0] if blocks is None else blocks
        # All in one loop: an answer takes ten thousands of events, and calls cost as much as what they do.
        free, free_sizes, size_at, ending_at = self._free, self._free_sizes, self._size_at, self._ending_at
        allocated, peak, small_free = self.allocated, self.peak_allocated, self._small_free
        for event in events:
            if event > 0:
                size = sizes[event] or UNIT
                if size <= SMALL_REQUEST:
                    if size > small_free:
                        self._small_free = small_free
                        self._reserve(SMALL_SEGMENT)
                        small_free = self._small_free + SMALL_SEGMENT
                    small_free -= size
                    blocks.append(size)
                    allocated += size
                    if allocated > peak:  # noqa: PLR1730 - a call
                        peak = allocated
                    continue
                at = bisect_left(free_sizes, size)
                if at < len(free_sizes):
                    whole = free_sizes[at]
                    addresses = free[whole]
                    address = addresses.pop(0)
                    if not addresses:
                        del free[whole], free_sizes[at]
                    del size_at[address], ending_at[address + whole]
                else:
                    self._small_free = small_free
                    address, whole = self._segment(size)
                    small_free = self._small_free
                rest = whole - size
                if rest <= SMALL_REQUEST:
                    rest, size = 0, whole
                blocks.append((address, size))
                allocated += size
                if allocated > peak:  # noqa: PLR1730 - a call
                    peak = allocated
                if not rest:
                    continue
                address += size
                size = rest
            else:
                block = blocks[-event]
                if isinstance(block, int):
                    allocated -= block
                    small_free += block
                    continue
                address, size = block
                allocated -= size
                end = address + size
                if end in size_at:
                    after = size_at.pop(end)
                    self._unlist(end, after)
                    size += after
                if address in ending_at:
                    before = ending_at.pop(address)
                    self._unlist(before, address - before)
                    size += address - before
                    address = before
            # Also where what is free there begins, or ends, with what was free there before.
            size_at[address] = size
            ending_at[address + size] = address
            if size in free:
                insort(free[size], address)
            else:
                free[size] = [address]
                insort(free_sizes, size)
        self.allocated, self.peak_allocated, self._small_free = allocated, peak, small_free
        return blocks

    def has_room_for(self, sizes: Iterable[int]) -> bool:
        """Whether requests surely find room together in what is cached: the large ones would in one block."""
        small = large = 0
        for size in sizes:
            if size <= SMALL_REQUEST:
                small += size or UNIT
            else:
                large += size
        largest = self._free_sizes[-1] if self._free_sizes else 0
        return large <= largest and small <= self._small_free

    def _unlist(self, address: int, size: int) -> None:
        addresses = self._free[size]
        if len(addresses) > 1:
            del addresses[bisect_left(addresses, address)]
        else:
            del self._free[size], self._free_sizes[bisect_left(self._free_sizes, size)]

    def _segment(self, size: int) -> Block:
        """A new segment for a request that no free block is large enough for."""
        length = MIDDLE_SEGMENT if size < MIDDLE_REQUEST else (size + LARGE_UNIT - 1) // LARGE_UNIT * LARGE_UNIT
        self._reserve(length)
        address = self._next_address
        # Blocks of different segments are no neighbours.
        self._next_address = address + length + 1
        self._segments[address] = length
        return address, length

    def _reserve(self, length: int) -> None:
        if self.capacity is not None and self.reserved + length > self.capacity:
            self._release_cached()
            if self.reserved + length > self.capacity:
                raise OutOfMemoryError(self.reserved + length - self.capacity)
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _release_cached(self) -> None:
        self.released = True
        for address, length in list(self._segments.items()):
            if self._size_at.get(address) == length:
                del self._segments[address], self._size_at[address], self._ending_at[address + length]
                self._unlist(address, length)
                self.reserved -= length
        unused = self._small_free // SMALL_SEGMENT * SMALL_SEGMENT
        self._small_free -= unused
        self.reserved -= unused


class OutOfMemoryError(Exception):
    """A request passed the capacity by ``missing_bytes`` with nothing left to release."""

    def __init__(self, missing_bytes: int) -> None:
        super().__init__(f"{missing_bytes} bytes are missing")
        self.missing_bytes = missing_bytes
