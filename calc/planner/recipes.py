"""Recipes from a scenario: each allowed choice of settings replayed once and sampled at a few micro-batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from calc import throughput
from calc.breakdown import moving_bytes
from calc.errors import ScenarioError
from calc.memory import step_memory
from calc.multi_gpu import workload_of
from calc.optimizer_step import OptimizerStep
from calc.outlook import passes_split
from calc.planner.search import COMPONENTS, Recipe
from calc.replay.tape import Phase
from calc.scaling import Layout, host_optimizer_seconds
from calc.scenario import PLANNED, TEXT_TASKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from calc.memory import ReplayedStep, StepMemory
    from calc.scenario import Scenario

# Micro-batches at which a recipe is sampled; between them bytes and seconds are taken as linear.
_SAMPLE_FACTOR = 4
_PASSES_REMEMBERED = 1024


def choices_of(scenario: Scenario) -> Iterator[dict[str, str]]:
    """Yield every combination of settings that the planner may choose, the scenario's own first where it is allowed.

    What ``allow`` does not name is widened where that changes no result but time and memory: checkpointing, fused
    attention and the fused loss. Precision and optimizer stay the scenario's.
    """
    own = {name: str(getattr(scenario, name)) for name in PLANNED}
    free = {"checkpointing": ["none", "full"], "attention": ["sdpa"] if own["attention"] == "eager" else []}
    if scenario.model.task in TEXT_TASKS:
        free["loss"] = ["standard", "fused"]
    allowed = scenario.filled.get("allow") or {}
    values = (dict.fromkeys(allowed.get(name) or [own[name], *free.get(name, [])]) for name in PLANNED)
    for combination in product(*values):
        yield dict(zip(PLANNED, combination, strict=True))


def _samples(memory: StepMemory, limit_bytes: int, ways: int, largest: int) -> list[int]:
    """Micro-batches to sample: powers of four up to what could fit when activations are divided ``ways`` times."""
    per_sample = max(1, memory.requested_peak(2) - memory.requested_peak(1))
    end = max(2, min(largest, ways * limit_bytes // per_sample + 1))
    found = [1]
    while found[-1] * _SAMPLE_FACTOR < end:
        found.append(found[-1] * _SAMPLE_FACTOR)
    return [*found, end]


_PASSES: dict[tuple[ReplayedStep, float, int, Phase], dict[str, Any]] = {}


def _moving(memory: StepMemory, micro_batch: int, phase: Phase) -> dict[str, Any]:
    """`moving_bytes`, once for all optimizers where it is a pass: what moves there is the step's alone."""
    if phase is Phase.STEP:
        return moving_bytes(memory, micro_batch, phase)
    key = (memory.step, memory.activation_share, micro_batch, phase)
    if key not in _PASSES:
        if len(_PASSES) >= _PASSES_REMEMBERED:
            _PASSES.clear()
        _PASSES[key] = moving_bytes(memory, micro_batch, phase)
    return _PASSES[key]


def _component_bytes(memory: StepMemory, samples: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for phase in Phase:
        columns: dict[str, list[float]] = {name: [] for name in COMPONENTS}
        for micro_batch in samples:
            moving = _moving(memory, micro_batch, phase)
            values = {
                "weights": memory.weights_bytes,
                "gradients": moving["gradients"][0],
                "optimizer_state": memory.state_bytes,
                "activations": moving["activations"][0],
                "logits_and_loss": moving["logits"][0],
                "casts": moving["casts"][0],
                "temporaries": moving["temporaries"][0],
                "workspace": memory.workspace_bytes,
            }
            for name, value in values.items():
                columns[name].append(float(value))
        found[phase.value] = columns
    return found


def recipe_of(scenario: Scenario, settings: Mapping[str, str], largest_micro_batch: int, ways: int) -> Recipe:
    """Replay a scenario under settings and sample it.

    Parameters
    ----------
    scenario : Scenario
        Of one or more GPUs; the recipe is what one with the whole model does.
    settings : Mapping
        A value for each choice.
    largest_micro_batch : int
        Beyond which nothing is asked.
    ways : int
        Into how many parts activations may be divided.
    """
    words: dict[str, Any] = {name: kind(settings[name]) for name, kind in PLANNED.items()}
    changed = replace(scenario, **words, layout=Layout())
    memory = step_memory(changed, gradients_kept=True)
    samples = _samples(memory, scenario.gpu.limit_bytes, ways, largest_micro_batch)
    card = scenario.gpu.catalog
    if card is None:
        raise ScenarioError("gpu", "the planner needs the card's speed: choose a card from the list")
    machine = throughput.Machine.of(card)
    precision = words["precision"]
    work = throughput.Work.of(
        memory.step.profile, OptimizerStep.of(words["optimizer"], memory.step.parameters, precision)
    )
    times = [work.time(micro_batch, machine, str(precision)) for micro_batch in samples]
    passes = [passes_split(changed, time, 1) for time in times]
    return Recipe(
        settings=dict(settings),
        changes=sum(str(getattr(scenario, name)) != value for name, value in settings.items()),
        micro_batches=samples,
        component_bytes=_component_bytes(memory, samples),
        forward_seconds=[forward for forward, _ in passes],
        backward_seconds=[backward for _, backward in passes],
        work=workload_of(
            changed,
            memory.step,
            micro_batch=1,
            accumulation_steps=1,
            forward_seconds=0.0,
            backward_seconds=0.0,
            optimizer_seconds=times[0].optimizer_seconds,
        ),
        shape=memory.step.shape_for_division,
        host_update_seconds=host_optimizer_seconds(memory.step.trainable_count),
    )
