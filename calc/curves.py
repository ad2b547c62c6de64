"""What the figures of one step draw beside the result: curves over the micro-batch, and memory through the step.

Each takes the contract's scenario, gives JSON values, and raises `ScenarioError` as `calc.evaluation.evaluate` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.calibration import calibrated
from calc.evaluation import chosen_micro_batch, fitted
from calc.model_dimensions import parse_dividable
from calc.replay.tape import Phase
from calc.timing import step_times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.batch import Band
    from calc.memory import StepMemory
    from calc.scenario import Scenario

CURVE_POINTS = 24


def _fitted(given: Mapping[str, Any]) -> tuple[Scenario, StepMemory, Band]:
    scenario, _ = calibrated(parse_dividable(given))
    return scenario, *fitted(scenario)


def _batches(scenario: Scenario, limits: Band) -> list[int]:
    """From 1 to a quarter beyond the largest, evenly."""
    largest = max(limits.optimistic, chosen_micro_batch(scenario, limits))
    end = max(2, largest + max(1, largest // 4))
    step = max(1, end // CURVE_POINTS)
    return sorted({1, largest, *range(step, end + 1, step)})


def memory_curve(given: Mapping[str, Any]) -> dict[str, Any]:
    """Peak of each phase in bytes by ``micro_batch``, and the limit."""
    scenario, memory, limits = _fitted(given)
    batches = _batches(scenario, limits)
    peaks = [memory.requested_peaks(b) for b in batches]
    return {
        "micro_batch": batches,
        "forward_bytes": [p[Phase.FORWARD] for p in peaks],
        "backward_bytes": [p[Phase.BACKWARD] for p in peaks],
        "step_bytes": [p[Phase.STEP] for p in peaks],
        "limit_bytes": scenario.gpu.limit_bytes,
    }


def throughput_curve(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """``step_seconds`` and ``samples_per_second`` by ``micro_batch``; None for a card given by its size alone."""
    scenario, memory, limits = _fitted(given)
    batches = _batches(scenario, limits)
    times = step_times(scenario, memory.step, batches)
    if not times:
        return None
    return {
        "micro_batch": batches,
        "step_seconds": [t.seconds for t in times],
        "samples_per_second": [b / t.seconds for b, t in zip(batches, times, strict=True)],
    }


def timeline(given: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes alive through forward, backward and the optimizer's step, a few points a block."""
    scenario, memory, limits = _fitted(given)
    micro_batch = chosen_micro_batch(scenario, limits)
    labels: list[str] = []
    phases: list[str] = []
    alive: list[int] = []

    def point(label: str, phase: Phase, nbytes: int) -> None:
        labels.append(label)
        phases.append(phase.value)
        alive.append(nbytes)

    constant = memory.constant_bytes
    for label, phase, nbytes in memory.step.profile.walk(memory.sizes(micro_batch)):
        point(label, phase, constant + nbytes)
    after = constant + (0 if memory.step.gradients_kept else memory.gradient_bytes)
    peaks = memory.requested_peaks(micro_batch)
    point("optimizer step", Phase.STEP, after)
    point("optimizer step", Phase.STEP, peaks[Phase.STEP])
    point("gradients freed" if not memory.step.gradients_kept else "gradients kept", Phase.STEP, constant)
    return {"label": labels, "phase": phases, "allocated_bytes": alive, "peak_index": alive.index(max(alive))}
