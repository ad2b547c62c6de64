"""The largest micro-batch that trains on a card, as a band.

optimistic: the tensors themselves fit, as if memory were never fragmented.
expected: a replay of the caching allocator with the card's capacity finds room for every request; where it runs
short it first gives cached memory back, as torch does.
safe: everything the allocator reserves fits without giving any back, which costs time and can fail under other orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.memory import StepMemory

CAPACITY_PROBES = 4
SAFE_TOLERANCE = 64
"""The safe micro-batch is found to within a 64th below: it is a margin, not a limit."""
NEAR = 4
"""Between micro-batches so near to each other the one in the middle is tried next."""
LARGEST = 1 << 26
"""Beyond this many samples a micro-batch is no question of memory."""


class Band(NamedTuple):
    """Largest micro-batches, 0 where none fits; ``next_needs_bytes`` is what one sample more needs beyond the limit."""

    safe: int
    expected: int
    optimistic: int
    next_needs_bytes: int


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
    """The largest micro-batch that trains: at least what never gives memory back, at most what the tensors fit.

    Where these are far apart it is sought downwards from the latter by what is lacking.
    """
    at_most = tensors_fit(memory, limit_bytes)
    low, high = _without_release(memory, limit_bytes, at_most), at_most + 1
    if high - low == 1:
        return low
    per_sample = _bytes_per_sample(memory, at_most)
    probe, stride = at_most, 0
    while high - low > 1:
        if probe <= low or high - low <= NEAR:
            probe = (low + high) // 2
        missing = memory.missing_bytes(probe, limit_bytes)
        if missing:
            high = probe
            if probe == at_most:
                # What is missing in the end can be more than what would be with nothing ever given back.
                missing = min(missing, memory.allocate(probe).reserved_bytes - limit_bytes)
            # What is missing is no good measure where it does not shrink with the micro-batch.
            stride = max(2 * stride, -(-missing // per_sample))
            probe -= stride
        else:
            low = probe
            probe = (low + high) // 2
    return low


def band(memory: StepMemory, limit_bytes: int) -> Band:
    """The largest micro-batches under a limit on what the allocator may reserve."""
    expected = steps_fit(memory, limit_bytes)
    optimistic = tensors_fit(memory, limit_bytes)
    return Band(
        _safe(memory, limit_bytes, expected, optimistic),
        expected,
        optimistic,
        _needed_bytes(memory, expected + 1, limit_bytes),
    )


def _needed_bytes(memory: StepMemory, micro_batch: int, limit_bytes: int) -> int:
    """How much larger the card would have to be for ``micro_batch``.

    At least what the tensors need; where only the allocator's order stands in the way, a capacity at which it finds
    room.
    """
    missing = memory.requested_peak(micro_batch) - limit_bytes
    if missing > 0:
        return missing
    enough = memory.allocate(micro_batch).reserved_bytes - limit_bytes
    needed = 0
    for _ in range(CAPACITY_PROBES):
        missing = memory.missing_bytes(micro_batch, limit_bytes + needed)
        if not missing:
            return needed
        needed += missing
        if needed >= enough:
            break
    return enough


def _safe(memory: StepMemory, limit_bytes: int, expected: int, at_most: int) -> int:
    if expected:
        allocation = memory.allocate_within(expected, limit_bytes)
        if not (allocation.released or allocation.lean):
            return expected
    return _without_release(memory, limit_bytes, at_most)


def _without_release(memory: StepMemory, limit_bytes: int, at_most: int) -> int:
    """The largest micro-batch whose cached memory never has to be given back, or up to a 64th less."""
    low, high = 0, at_most + 1
    probe = at_most
    while high - low > max(1, low // SAFE_TOLERANCE):
        reserved = memory.allocate(probe).reserved_bytes
        if reserved <= limit_bytes:
            low = probe
        else:
            high = probe
        # What is reserved grows about in proportion with the micro-batch from what is there without a sample.
        per_sample = max(1, (reserved - memory.constant_bytes) // probe)
        guess = probe + (limit_bytes - reserved) // per_sample
        if 0 < low <= guess <= low + low // SAFE_TOLERANCE:
            break
        probe = guess if low < guess < high else (low + high) // 2
    return low


def _bytes_per_sample(memory: StepMemory, micro_batch: int) -> int:
    return max(1, memory.requested_peak(micro_batch + 1) - memory.requested_peak(micro_batch))
