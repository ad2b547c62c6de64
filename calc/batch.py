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

CAPACITY_PROBES = 4
LARGEST = 1 << 26
"""Beyond this many samples a micro-batch is no question of memory."""


class Band(NamedTuple):
    """Largest micro-batches; 0 where none fits. ``next_needs_bytes`` is what one sample more would need beyond the limit."""

    safe: int
    expected: int
    optimistic: int
    next_needs_bytes: int | None


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

    def trains(micro_batch: int) -> bool:
        try:
            memory.allocate_within(micro_batch, limit_bytes)
        except OutOfMemory:
            return False
        return True

    expected = largest(trains, optimistic, optimistic) if optimistic else 0
    safe = _without_release(memory, limit_bytes, expected) if expected else 0
    return Band(safe, expected, optimistic, next_needs_bytes(memory, expected + 1, limit_bytes))


def _without_release(memory: StepMemory, limit_bytes: int, expected: int) -> int:
    """The largest micro-batch whose cached memory never has to be given back."""
    taken = memory.allocate(expected).reserved_bytes
    guess = expected
    if taken > limit_bytes:
        per_sample = max(1, memory.requested_peak(expected + 1) - memory.requested_peak(expected))
        guess = expected - -(-(taken - limit_bytes) // per_sample)
    return largest(lambda b: memory.allocate(b).reserved_bytes <= limit_bytes, guess, expected)


def next_needs_bytes(memory: StepMemory, micro_batch: int, limit_bytes: int) -> int | None:
    """How much larger the card would have to be for ``micro_batch``; None where that is not known.

    At least what the tensors need; where only the allocator's order stands in the way, a capacity at which it finds room.
    """
    missing = memory.requested_peak(micro_batch) - limit_bytes
    if missing > 0:
        return missing
    capacity = limit_bytes
    for _ in range(CAPACITY_PROBES):
        try:
            memory.allocate_within(micro_batch, capacity)
        except OutOfMemory as error:
            capacity += error.missing_bytes
        else:
            return capacity - limit_bytes
    return None
