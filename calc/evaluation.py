"""From a scenario to the contract's result."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from calc import accumulation, outlook
from calc.batch import Band, band, steps_fit
from calc.breakdown import components
from calc.calibration import calibrated
from calc.catalog import published
from calc.explanations import explanations
from calc.memory import StepMemory, step_memory
from calc.model_dimensions import refuse_undividable
from calc.scenario import Scenario, ZeroGrad, parse
from calc.timing import step_time, utilization

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.throughput import StepTime


def evaluate(given: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a scenario.

    Parameters
    ----------
    given : Mapping
        The scenario as the contract describes it.

    Returns
    -------
    dict
        The contract's result: JSON values only, bytes as integers.

    Raises
    ------
    ScenarioError
        The field that is wrong and what is allowed.
    """
    return evaluate_parsed(parse(given))


def evaluate_parsed(scenario: Scenario) -> dict[str, Any]:
    """`evaluate` for a scenario that is already checked."""
    refuse_undividable(scenario)
    scenario, calibration = calibrated(scenario)
    memory, limits = fitted(scenario)
    micro_batch = chosen_micro_batch(scenario, limits)
    limit = scenario.gpu.limit_bytes
    allocation = memory.allocate_on(micro_batch, limit)
    peak_phase = max(allocation.peaks, key=lambda phase: allocation.peaks[phase])
    breakdown = components(scenario, memory, micro_batch, allocation)
    plan = _plan(scenario, limits)
    update = _update(scenario, memory, plan, micro_batch)
    result = {
        "scenario": dict(scenario.filled),
        "model": {
            "id": scenario.model.id,
            "name": scenario.model.name,
            "family": scenario.model.architecture,
            "notes": list(scenario.model.notes),
        },
        "gpu": {
            "id": scenario.gpu.id,
            "name": scenario.gpu.name,
            "memory_bytes": scenario.gpu.memory_bytes,
            "overhead_bytes": scenario.gpu.overhead_bytes,
            "usable_bytes": limit,
        },
        "parameters": memory.step.parameter_count,
        "trainable_parameters": memory.step.trainable_count,
        "micro_batch": micro_batch,
        "memory": {
            "peak_allocated_bytes": allocation.peak_bytes,
            "peak_reserved_bytes": allocation.reserved_bytes,
            "process_bytes": allocation.reserved_bytes + scenario.gpu.overhead_bytes,
            "limit_bytes": limit,
            "phases": {str(phase.value): nbytes for phase, nbytes in allocation.peaks.items()},
            "peak_phase": peak_phase.value,
            "peak_instant": breakdown.instant,
            "components": [c.as_dict() for c in breakdown.components],
        },
        # Below the largest there can be some that the allocator's order keeps out.
        "fits": micro_batch <= limits.expected and allocation.reserved_bytes <= limit,
        "max_micro_batch": limits.expected,
        "max_micro_batch_safe": limits.safe,
        "max_micro_batch_optimistic": limits.optimistic,
        "next_needs_bytes": limits.next_needs_bytes,
        **_time(scenario, memory, update),
        "plan": plan,
        "calibration": calibration,
    }
    result |= _outlook(scenario, memory, result, update)
    return result | {"explanations": explanations(scenario, memory, result)}


class _Update(NamedTuple):
    """One optimizer step on one GPU; ``time`` is None where the card's speed is not known."""

    micro_batch: int
    passes: int
    time: StepTime | None

    @property
    def samples(self) -> int:
        return self.micro_batch * self.passes


def _update(scenario: Scenario, memory: StepMemory, plan: Mapping[str, Any] | None, micro_batch: int) -> _Update:
    """The step that the plan makes; without a plan one pass of ``micro_batch``."""
    passes = 1
    if plan is not None:
        way = accumulation.way_of(plan)
        micro_batch, passes = way["micro_batch"], way["accumulation_steps"]
    return _Update(micro_batch, passes, step_time(scenario, memory.step, micro_batch, passes))


def _time(scenario: Scenario, memory: StepMemory, update: _Update) -> dict[str, Any]:
    """Seconds of one optimizer step, all accumulation steps included, and what they are spent on."""
    micro_batch, passes, time = update
    if time is None:
        return {"step_seconds": None, "samples_per_second": None, "time": None}
    return {
        "step_seconds": time.seconds,
        "samples_per_second": update.samples / time.seconds,
        "time": {
            "micro_batch": micro_batch,
            "accumulation_steps": passes,
            "compute_seconds": time.compute_seconds,
            "memory_seconds": time.memory_seconds,
            "optimizer_seconds": time.optimizer_seconds,
            "launch_seconds": time.launch_seconds,
            "model_flops_utilization": utilization(scenario, memory.step, update.samples, passes, time.seconds),
            "published_utilization": published.utilization_span(scenario.gpu.name),
        },
    }


def _outlook(scenario: Scenario, memory: StepMemory, result: Mapping[str, Any], update: _Update) -> dict[str, Any]:
    """Several GPUs, convergence and the whole run; the step's time becomes that of all GPUs together."""
    scaling = outlook.scaling_of(scenario, memory.step, *update)
    together = {key: scaling[key] for key in ("step_seconds", "samples_per_second")} if scaling else {}
    samples = update.samples * scenario.layout.data
    # What the plan makes, where it cannot make the wanted batch; the wanted one where nothing fits.
    global_batch = samples if result["plan"] else scenario.global_batch or samples
    seconds = (scaling or result)["step_seconds"]
    update_seconds = seconds * global_batch / samples if seconds is not None else None
    return together | {
        "scaling": scaling,
        "accumulation": outlook.accumulation_of(scenario, memory.step, *update),
        "convergence": outlook.convergence_of(scenario, result["parameters"], global_batch),
        "run": outlook.run_of(scenario, global_batch, update_seconds, fits=result["fits"]),
    }


def fitted(scenario: Scenario) -> tuple[StepMemory, Band]:
    """The step's memory and the largest micro-batches; accumulation keeps gradients alive in forward."""
    kept = scenario.zero_grad is ZeroGrad.KEEP
    memory = step_memory(scenario, gradients_kept=kept)
    limit = scenario.gpu.limit_bytes
    if scenario.global_batch is not None and not kept:
        per_gpu = -(-scenario.global_batch // scenario.layout.data)
        if per_gpu > (scenario.micro_batch or steps_fit(memory, limit)):
            memory = step_memory(scenario, gradients_kept=True)
    limits = _band(memory, limit)
    if scenario.micro_batch is not None and limits.expected < scenario.micro_batch:
        # A pipeline holds more of the smaller micro-batches than of the one that was asked for.
        open_batch = replace(scenario, micro_batch=None)
        limits = _band(step_memory(open_batch, gradients_kept=memory.step.gradients_kept), limit)
    return memory, limits


def chosen_micro_batch(scenario: Scenario, limits: Band) -> int:
    """The scenario's micro-batch; where it names none the largest that trains, or one sample where none does."""
    return scenario.micro_batch or max(limits.expected, 1)


@lru_cache(maxsize=512)
def _band(memory: StepMemory, limit_bytes: int) -> Band:
    return band(memory, limit_bytes)


def _plan(scenario: Scenario, limits: Band) -> dict[str, Any] | None:
    if scenario.global_batch is None or limits.expected == 0:
        return None
    return accumulation.plan(chosen_micro_batch(scenario, limits), scenario.global_batch, scenario.layout.data)
