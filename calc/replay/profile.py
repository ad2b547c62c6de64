"""The log as a function of the micro-batch: each phase's peak, and what is alive at it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from calc.replay.tape import Phase
from calc.replay.workspaces import H100, Multiprocessors, Reduction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calc.replay.tape import Kernel, Segment, Tape

ALLOCATION_UNIT = 512
"""torch's allocator rounds every request up to this many bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


def rounded(nbytes: int) -> int:
    """``nbytes`` as the allocator counts them."""
    return (nbytes + ALLOCATION_UNIT - 1) // ALLOCATION_UNIT * ALLOCATION_UNIT


def rounded_sum(requests: Iterable[int]) -> int:
    """The sum of requests as the allocator counts them; few of many are different."""
    return sum(rounded(nbytes) * times for nbytes, times in Counter(requests).items())


@dataclass(frozen=True)
class Instant:
    """A moment of the step: the event it follows, the phase, and the bytes alive above the constant ones."""

    event: int
    repetition: int
    phase: Phase
    alive_bytes: int


@dataclass(frozen=True, eq=False)
class Profile:
    """The log of one step, frozen: what is needed to answer for any micro-batch."""

    events: tuple[int, ...]
    per_sample: tuple[int, ...]
    fixed: tuple[int, ...]
    labels: tuple[str, ...]
    copies: tuple[int, ...]
    gradients: frozenset[int]
    segments: tuple[Segment, ...]
    kernels: tuple[Kernel, ...]
    reductions: tuple[tuple[int, Reduction], ...]
    optional: frozenset[int]

    @staticmethod
    def of(tape: Tape) -> Profile:
        """The log of a finished tape."""
        return Profile(
            tuple(tape.events),
            tuple(tape.per_sample),
            tuple(tape.fixed),
            tuple(tape.labels),
            tuple(tape.copies),
            frozenset(tape.gradient_storages),
            tuple(tape.segments),
            tuple(tape.kernels),
            tuple(tape.reductions.items()),
            frozenset(tape.optional),
        )

    @cached_property
    def counted_kernels(self) -> tuple[tuple[Kernel, int], ...]:
        """The different kernels, in order of their first launch, and how many times each is launched."""
        return tuple((kernel, kernel.repeats * times) for kernel, times in Counter(self.kernels).items())

    @cached_property
    def kept_for_backward(self) -> frozenset[int]:
        """Storages made in forward that are still alive at its end."""
        alive: set[int] = set()
        for start, end, segment in self.stretches:
            if segment.phase is not Phase.FORWARD:
                break
            for event in self.events[start:end]:
                if event > 0:
                    alive.add(event)
                else:
                    alive.discard(-event)
        return frozenset(alive)

    @cached_property
    def _kinds(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """The different sizes, per sample and fixed, and which of them each storage has."""
        number: dict[tuple[int, int], int] = {}
        of_storage = [number.setdefault(kind, len(number)) for kind in zip(self.per_sample, self.fixed, strict=True)]
        return tuple(number), tuple(of_storage)

    def sizes(self, micro_batch: float, multiprocessors: Multiprocessors = H100) -> list[int]:
        """Bytes of each storage at a micro-batch, as the allocator rounds them."""
        kinds, of_storage = self._kinds
        by_kind = [int((p * micro_batch + f + 511) // 512) * 512 for p, f in kinds]
        found = [by_kind[kind] for kind in of_storage]
        for storage, reduction in self.reductions:
            found[storage] = rounded(reduction.buffer_bytes(micro_batch, multiprocessors))
        return found

    @cached_property
    def stretches(self) -> tuple[tuple[int, int, Segment], ...]:
        """Start and end of each segment's events."""
        ends = [s.start for s in self.segments[1:]] + [len(self.events)]
        return tuple((s.start, end, s) for s, end in zip(self.segments, ends, strict=True) if end > s.start)

    def peaks(self, sizes: list[int]) -> dict[Phase, Instant]:
        """The highest instant of each phase, above what is constant, for storages of these sizes."""
        best: dict[Phase, Instant] = {}
        alive = 0
        for start, end, segment in self.stretches:
            copies = self.copies if segment.block < 0 else None
            local = top = 0
            at = start
            for position, event in enumerate(self.events[start:end], start):
                if event > 0:
                    local += sizes[event]
                    if local > top:
                        top, at = local, position
                else:
                    local -= sizes[-event] * copies[-event] if copies else sizes[-event]
            later = max(0, (segment.repeats - 1) * local)
            found = alive + top + later
            known = best.get(segment.phase)
            if known is None or found > known.alive_bytes:
                best[segment.phase] = Instant(at, segment.repeats - 1 if later else 0, segment.phase, found)
            alive += local * segment.repeats
        return best

    def _weight(self, storage: int, segment: Segment) -> int:
        """How many copies an event of a segment moves: outside blocks, all that the storage stands for."""
        return 1 if segment.block >= 0 else self.copies[storage]

    def alive_at(self, instant: Instant, sizes: list[int]) -> dict[int, int]:
        """Bytes alive at an instant by storage, copies counted."""
        alive: dict[int, int] = {}

        def apply(start: int, end: int, segment: Segment, times: int) -> None:
            for position in range(start, end):
                event = self.events[position]
                storage = abs(event)
                weight = 1 if event > 0 else self._weight(storage, segment)
                alive[storage] = alive.get(storage, 0) + (1 if event > 0 else -1) * sizes[storage] * weight * times

        for start, end, segment in self.stretches:
            if start <= instant.event < end:
                if instant.repetition:
                    apply(start, end, segment, instant.repetition)
                apply(start, instant.event + 1, segment, 1)
                break
            apply(start, end, segment, segment.repeats)
        return {storage: nbytes for storage, nbytes in alive.items() if nbytes}

    def walk(self, sizes: list[int]) -> list[tuple[str, Phase, int]]:
        """Label, phase and bytes alive above the constant ones, at the top and the end of every stretch, in order."""
        alive = 0
        points: list[tuple[str, Phase, int]] = []
        for start, end, segment in self.stretches:
            for _ in range(segment.repeats):
                level = top = alive
                label = ""
                for position in range(start, end):
                    event = self.events[position]
                    if event > 0:
                        level += sizes[event]
                        if level > top:
                            top, label = level, self.labels[event]
                    else:
                        level -= sizes[-event] * self._weight(-event, segment)
                points.append((label or self.labels[abs(self.events[end - 1])], segment.phase, top))
                points.append(("end of layer" if segment.block >= 0 else label, segment.phase, level))
                alive = level
        return points
