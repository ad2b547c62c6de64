"""The log as the allocator meets it: repeated blocks as often as they stand in the model.

All of a repeated block's events run in its first, second and last repetition; in those between, only the events of
what outlives the repetition, or was there before it.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

from calc.replay.tape import Phase, Segment

if TYPE_CHECKING:
    from calc.replay.profile import Profile


class Unrolled(NamedTuple):
    """Events in order: n takes memory for storage n, -n gives back what the nth event of that kind took, from 1."""

    passes: dict[Phase, array[int]]
    """Forward and backward."""
    gradients: array[int]
    """Gives back what is left at the end: gradients."""


class _Stretch(NamedTuple):
    """A segment's events, and those of a later repetition: what it neither makes nor drops itself is left out there."""

    segment: Segment
    events: tuple[int, ...]
    lasting: tuple[int, ...]


def unrolled(profile: Profile) -> Unrolled:
    """The log of one forward and backward pass, repetitions unrolled."""
    return _unrolled(profile.events, profile.stretches)


# Another input size gives other sizes in the same order.
@lru_cache(maxsize=64)
def _unrolled(log: tuple[int, ...], pieces: tuple[tuple[int, int, Segment], ...]) -> Unrolled:
    stretches = _cut(log, pieces)
    counterparts = _counterparts(stretches)
    taken = 0
    held: dict[int, list[int]] = {}
    passes: dict[Phase, list[int]] = {}
    # A block of several layers has a stretch for each, and they take turns.
    for (phase, block), alike in groupby(stretches, lambda stretch: (stretch.segment.phase, stretch.segment.block)):
        layers = list(alike)
        repeats = layers[0].segment.repeats
        in_block = block >= 0
        events = passes.setdefault(phase, [])
        for repetition in range(repeats):
            whole = repetition in (0, 1, repeats - 1)
            for event in chain.from_iterable(layer.events if whole else layer.lasting for layer in layers):
                if event > 0:
                    taken += 1
                    held.setdefault(event, []).append(taken)
                    events.append(event)
                    continue
                places = held.get(-event)
                if not in_block:
                    while places:
                        events.append(-places.pop())
                    continue
                if not places and repetition and -event in counterparts:
                    # A later repetition drops its predecessor's tensor, which the log names by the first one's.
                    places = held.get(counterparts[-event])
                if places:
                    events.append(-places.pop())
    left = array("i", [-place for places in held.values() for place in reversed(places)])
    return Unrolled({phase: array("i", events) for phase, events in passes.items()}, left)


def _cut(log: tuple[int, ...], pieces: tuple[tuple[int, int, Segment], ...]) -> list[_Stretch]:
    """The log cut at segments."""
    found = []
    for start, end, segment in pieces:
        events = log[start:end]
        made = {e for e in events if e > 0}
        dropped = {-e for e in events if e < 0}
        local = made & dropped
        found.append(_Stretch(segment, events, tuple(e for e in events if abs(e) not in local)))
    return found


def _counterparts(stretches: list[_Stretch]) -> dict[int, int]:
    """For a tensor of a repeated block's predecessor: the repeated block's own that has its place later on.

    What the repeated block drops of its predecessor, in order, is what its successor drops of it. The predecessor is
    the block before where forward made the tensor, the block behind where backward did.
    """
    dropped = _dropped_of_neighbours(stretches)
    pairs: dict[int, int] = {}
    for stretch in stretches:
        if stretch.segment.repeats > 1:
            phase, block = stretch.segment.phase, stretch.segment.block
            for maker, onwards in ((Phase.FORWARD, 1), (Phase.BACKWARD, -1)):
                here = dropped.get((maker, phase, block), [])
                pairs.update(zip(here, dropped.get((maker, phase, block + onwards), []), strict=False))
    return pairs


def _dropped_of_neighbours(stretches: list[_Stretch]) -> dict[tuple[Phase, Phase, int], list[int]]:
    """Tensors that a block drops, in order, of those that its predecessor made in forward, or in backward.

    Keys are the phase in which they were made, the phase in which they are dropped, and the block that drops them.
    """
    made: dict[tuple[Phase, int], set[int]] = {}
    for stretch in stretches:
        key = stretch.segment.phase, stretch.segment.block
        made.setdefault(key, set()).update(e for e in stretch.events if e > 0)
    dropped: dict[tuple[Phase, Phase, int], list[int]] = {}
    for stretch in stretches:
        phase, block = stretch.segment.phase, stretch.segment.block
        for maker, back in ((Phase.FORWARD, -1), (Phase.BACKWARD, 1)):
            neighbour = made.get((maker, block + back), set()) if block >= 0 else set()
            dropped.setdefault((maker, phase, block), []).extend(-e for e in stretch.events if -e in neighbour)
    return dropped
