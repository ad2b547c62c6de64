"""A scenario's seconds per step, where its card is in the catalog."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from calc.optimizer_step import OptimizerStep
from calc.scenario import Precision
from calc.throughput import Machine, StepTime, Work, mfu, model_flops

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calc.catalog.gpus import Gpu
    from calc.memory import ReplayedStep
    from calc.scenario import Optimizer, Scenario


@lru_cache(maxsize=256)
def _work(step: ReplayedStep, optimizer: Optimizer, precision: Precision) -> Work:
    return Work.of(step.profile, OptimizerStep.of(optimizer, step.parameters, precision))


_MACHINES: dict[str, Machine] = {}


def _machine(card: Gpu) -> Machine:
    if card.id not in _MACHINES:
        _MACHINES[card.id] = Machine.of(card)
    return _MACHINES[card.id]


def step_time(scenario: Scenario, step: ReplayedStep, micro_batch: int, accumulation_steps: int = 1) -> StepTime | None:
    """Seconds of one optimizer step on one of the scenario's GPUs; None for a card given by its size alone."""
    card = scenario.gpu.catalog
    if card is None:
        return None
    work = _work(step, scenario.optimizer, scenario.precision)
    return work.time(micro_batch, _machine(card), str(scenario.precision), accumulation_steps)


def step_times(scenario: Scenario, step: ReplayedStep, micro_batches: Iterable[int]) -> list[StepTime] | None:
    """`step_time` without accumulation, for each micro-batch."""
    times = [step_time(scenario, step, micro_batch) for micro_batch in micro_batches]
    known = [time for time in times if time is not None]
    return known if len(known) == len(times) else None


def useful_operations(scenario: Scenario, step: ReplayedStep, samples: int, passes: int) -> tuple[int, float] | None:
    """Operations of a step of ``samples`` in ``passes`` micro-batches, recomputed ones not counted, and the peak rate.

    The rate is the data sheet's, in operations a second; None for a card given by its size alone.
    """
    card = scenario.gpu.catalog
    if card is None:
        return None
    per_sample, fixed = model_flops(step.profile)
    itemsize = {Precision.FP32: 4, Precision.TF32: 4, Precision.FP8: 1}.get(scenario.precision, 2)
    return per_sample * samples + fixed * passes, _machine(card).peak(itemsize, str(scenario.precision))


def utilization(scenario: Scenario, step: ReplayedStep, samples: int, passes: int, seconds: float) -> float | None:
    """Model FLOPs utilization of a step of ``samples`` in ``passes`` micro-batches."""
    work = useful_operations(scenario, step, samples, passes)
    return mfu(work[0], seconds, work[1]) if work else None
