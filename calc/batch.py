"""The largest micro-batch that trains on a card, as a band.

optimistic: the tensors themselves fit, as if memory were never fragmented.
expected: a replay of the caching allocator with the card's capacity finds room for every request; where it runs
short it first gives cached memory back, as torch does.
safe: everything the allocator reserves fits without giving any back, which costs time and can fail under other orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calc.allocator import OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.memory import StepMemory

LARGEST = 1 << 26
"""Beyond this many samples a micro-batch is no question of memory."""


class Band(NamedTuple):
    """Largest micro-batches; 0 where none fits."""

    safe: int
    expected: int
    optimistic: int


def largest(fits: Callable[[int], bool], start: int, limit: int = LARGEST) -> int:
    """The largest b in 0..limit with ``fits(b)``, for a test that holds up to some b and fails beyond.

    ``start`` is a guess; the search doubles its step away from it and halves it back.
    """
    low, high = 0, limit + 1
    probe = min(max(start, 1), limit)
    stride = 1
    while high - low > 1:
        if fits(probe):
            low = probe
            probe = low + stride if high > limit else (low + high) // 2
        else:
            high = probe
            probe = high - stride if low == 0 else (low + high) // 2
        stride *= 2
        probe = min(max(probe, low + 1), high - 1)
    return low


def tensors_fit(memory: StepMemory, limit_bytes: int) -> int:
    """The largest micro-batch whose tensors fit: exact, since a peak is the highest of lines that rise with the batch."""
    one, two = memory.requested_peak(1), memory.requested_peak(2)
    if one > limit_bytes:
        return 0
    guess = 1 + (limit_bytes - one) // max(two - one, 1)
    far = min(max(2, guess), LARGEST)
    reach = memory.requested_peak(far)
    if reach > limit_bytes and far > 2:
        guess = 1 + (limit_bytes - one) * (far - 1) // max(reach - one, 1)
    return largest(lambda b: memory.requested_peak(b) <= limit_bytes, guess)


def band(memory: StepMemory, limit_bytes: int) -> Band:
    """The largest micro-batches under a limit on what the allocator may reserve."""
    optimistic = tensors_fit(memory, limit_bytes)
    if optimistic == 0:
        return Band(0, 0, 0)

    def trains(micro_batch: int) -> bool:
        try:
            memory.allocate(micro_batch, limit_bytes)
        except OutOfMemory:
            return False
        return True

    expected = largest(trains, optimistic, optimistic)
    if expected == 0:
        return Band(0, 0, optimistic)

    def reserves(micro_batch: int) -> int:
        return memory.allocate(micro_batch).reserved_bytes

    taken = reserves(expected)
    guess = expected
    if taken > limit_bytes:
        per_sample = max(1, (memory.requested_peak(expected + 1) - memory.requested_peak(expected)))
        guess = expected - -(-(taken - limit_bytes) // per_sample)
    safe = largest(lambda b: reserves(b) <= limit_bytes, guess, expected)
    return Band(safe, expected, optimistic)
