"""The largest micro-batch that trains on a card, as a band.

optimistic: the tensors themselves fit, as if memory were never fragmented.
expected: a replay of the caching allocator with the card's capacity finds room for every request; where it runs
short it first gives cached memory back, as torch does.
safe: everything the allocator reserves fits without giving any back, which costs time and can fail under other orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calc.allocator import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.memory import StepMemory

CAPACITY_PROBES = 4
SAFE_TOLERANCE = 64
"""The safe micro-batch is found to within a 64th below: it is a margin, not a limit."""
LARGEST = 1 << 26
"""Beyond this many samples a micro-batch is no question of memory."""


class Band(NamedTuple):
    """Largest micro-batches, 0 where none fits; ``next_needs_bytes`` is what one sample more needs beyond the limit."""

    safe: int
    expected: int
    optimistic: int
    next_needs_bytes: int | None


def largest(fits: Callable[[int], bool], start: int, limit: int = LARGEST, *, tolerance: int = 0) -> int:
    """The largest b in 0..limit with ``fits(b)``, for a test that holds up to some b and fails beyond.

    ``start`` is a guess; the search doubles its step away from it and halves it back. With a ``tolerance`` t it stops
    when it is within a t-th below.
    """
    low, high = 0, limit + 1
    probe = min(max(start, 1), limit)
    stride = 1
    while high - low > max(1, low // tolerance if tolerance else 1):
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
    """The largest micro-batch whose tensors fit: a peak is the highest of lines that rise with the batch."""
    one, two = memory.requested_peak(1), memory.requested_peak(2)
    if one > limit_bytes:
        return 0
    guess = 1 + (limit_bytes - one) // max(two - one, 1)
    far = min(max(2, guess), LARGEST)
    reach = memory.requested_peak(far)
    if reach > limit_bytes and far > 2:
        guess = 1 + (limit_bytes - one) * (far - 1) // max(reach - one, 1)
    return largest(lambda b: memory.requested_peak(b) <= limit_bytes, guess)


def steps_fit(memory: StepMemory, limit_bytes: int) -> int:
    """The largest micro-batch that trains, found downwards from where the tensors fit by what is lacking."""
    at_most = tensors_fit(memory, limit_bytes)
    if at_most == 0:
        return 0
    per_sample = max(1, memory.requested_peak(at_most + 1) - memory.requested_peak(at_most))
    low, high = 0, at_most + 1
    probe = at_most
    while high - low > 1:
        missing = _missing_bytes(memory, probe, limit_bytes)
        if missing:
            high = probe
            guess = probe - -(-missing // per_sample)
            probe = guess if low < guess < high else (low + high) // 2
        else:
            low = probe
            probe = (low + high) // 2 if high - low > 3 else low + 1
    return low


def band(memory: StepMemory, limit_bytes: int) -> Band:
    """The largest micro-batches under a limit on what the allocator may reserve."""
    expected = steps_fit(memory, limit_bytes)
    return Band(
        _without_release(memory, limit_bytes, expected) if expected else 0,
        expected,
        tensors_fit(memory, limit_bytes),
        _needed_bytes(memory, expected + 1, limit_bytes),
    )


def _missing_bytes(memory: StepMemory, micro_batch: int, capacity: int) -> int:
    """What the step lacks; 0 where it trains."""
    try:
        memory.allocate_within(micro_batch, capacity)
    except OutOfMemoryError as error:
        return error.missing_bytes
    return 0


def _needed_bytes(memory: StepMemory, micro_batch: int, limit_bytes: int) -> int | None:
    """How much larger the card would have to be for ``micro_batch``; None where that is not known.

    At least what the tensors need; where only the allocator's order stands in the way, a capacity at which it finds
    room.
    """
    missing = memory.requested_peak(micro_batch) - limit_bytes
    if missing > 0:
        return missing
    needed = _missing_bytes(memory, micro_batch, limit_bytes)
    for _ in range(CAPACITY_PROBES):
        missing = _missing_bytes(memory, micro_batch, limit_bytes + needed)
        if not missing:
            return needed
        needed += missing
    return None


def _without_release(memory: StepMemory, limit_bytes: int, expected: int) -> int:
    """The largest micro-batch whose cached memory never has to be given back."""
    taken = memory.allocate(expected).reserved_bytes
    if taken <= limit_bytes:
        return expected
    per_sample = max(1, memory.requested_peak(expected + 1) - memory.requested_peak(expected))
    guess = expected - -(-(taken - limit_bytes) // per_sample)
    return largest(lambda b: memory.fits_without_release(b, limit_bytes), guess, expected - 1, tolerance=SAFE_TOLERANCE)
