"""Recipes from a scenario: each allowed choice of settings replayed, and sampled at some micro-batches."""

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
from calc.planner.search import COMPONENTS, WITHOUT_GRADIENTS, Held, Recipe, Timed
from calc.replay.tape import Phase
from calc.scaling import Layout, Strategy, host_optimizer_seconds
from calc.scenario import PLANNED, TEXT_TASKS, ZeroGrad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from calc.memory import ReplayedStep, StepMemory
    from calc.scenario import Scenario

# Bytes with all gradients kept are linear between micro-batches this many times apart. Without, their peak moves from
# where gradients are there to where activations are; and seconds go in steps, by tiles and waves of products. Both are
# sampled wherever a plan may ask, but for what lies nearer than the lesser factor.
_SAMPLE_FACTOR = 4
_NEAREST_FACTOR = 1.1
# Ranks so many that none holds a byte of the gradients.
_GRADIENTS_FAR_APART = Layout(strategy=Strategy.ZERO2, data=2**50)
# Passes of an update long enough to show what each takes further.
_MANY_PASSES = 32
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


_PASSES: dict[tuple[ReplayedStep, object, float, int, Phase], dict[str, Any]] = {}


def _moving(memory: StepMemory, micro_batch: int, phase: Phase) -> dict[str, Any]:
    """`moving_bytes`, once for all optimizers where it is a pass: what moves there is the step's alone."""
    if phase is Phase.STEP:
        return moving_bytes(memory, micro_batch, phase)
    key = (memory.step, memory.shares, memory.activation_share, micro_batch, phase)
    if key not in _PASSES:
        if len(_PASSES) >= _PASSES_REMEMBERED:
            _PASSES.clear()
        _PASSES[key] = moving_bytes(memory, micro_batch, phase)
    return _PASSES[key]


def _component_bytes(
    memory: StepMemory, samples: Sequence[int], moving_at: Callable[[int], dict[str, int]]
) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {name: [] for name in COMPONENTS}
    for micro_batch in samples:
        moving = moving_at(micro_batch)
        values = {
            "weights": memory.weights_bytes,
            "gradients": moving["gradients"],
            "optimizer_state": memory.state_bytes,
            "activations": moving["activations"],
            "logits_and_loss": moving["logits"],
            "casts": moving["casts"],
            "temporaries": moving["temporaries"],
            "workspace": memory.workspace_bytes,
        }
        for name, value in values.items():
            columns[name].append(float(value))
    return columns


def _held(memory: StepMemory, samples: Sequence[int]) -> Held:
    def moving_in(phase: Phase) -> Callable[[int], dict[str, int]]:
        return lambda micro_batch: {name: found[0] for name, found in _moving(memory, micro_batch, phase).items()}

    return Held(samples, {phase.value: _component_bytes(memory, samples, moving_in(phase)) for phase in Phase})


def _held_single(memory: StepMemory, divided: StepMemory, samples: Sequence[int]) -> Held:
    """What an update of one pass holds, at backward's peak with gradients and at that of a GPU with none of them.

    ``divided`` is the same step on such a GPU.
    """
    profile = memory.step.profile

    def moving(micro_batch: int) -> dict[str, int]:
        found = {name: nbytes for name, (nbytes, _) in _moving(divided, micro_batch, Phase.BACKWARD).items()}
        instant = divided.instants(micro_batch)[Phase.BACKWARD]
        alive = profile.alive_at(instant, memory.sizes(micro_batch))
        return found | {"gradients": sum(alive[storage] for storage in alive.keys() & profile.gradients)}

    held = _held(memory, samples)
    if memory.step.gradients_kept:
        return held
    return Held(samples, {**held.component_bytes, WITHOUT_GRADIENTS: _component_bytes(memory, samples, moving)})


def _apart(micro_batches: Iterable[int], end: int) -> list[int]:
    """Of ascending micro-batches those up to an end that are not too near the one before."""
    found: list[int] = []
    for micro_batch in micro_batches:
        if micro_batch <= end and (not found or micro_batch >= _NEAREST_FACTOR * found[-1]):
            found.append(micro_batch)
    return found


def _timed(
    single: throughput.Work,
    accumulating: throughput.Work,
    machine: throughput.Machine,
    precision: str,
    samples: Sequence[int],
) -> Timed:
    """Time the passes of a step whose update has one, and of a step that accumulates."""

    def passes(work: throughput.Work, count: int) -> list[float]:
        times = [work.time(micro_batch, machine, precision, count) for micro_batch in samples]
        return [time.seconds - time.optimizer_seconds for time in times]

    two, many = passes(accumulating, 2), passes(accumulating, _MANY_PASSES)
    further = [(longer - shorter) / (_MANY_PASSES - 2) for shorter, longer in zip(two, many, strict=True)]
    once = [shorter - 2 * each for shorter, each in zip(two, further, strict=True)]
    return Timed(samples, passes(single, 1), further, once)


def recipe_of(
    scenario: Scenario, settings: Mapping[str, str], micro_batches: Sequence[int], single: Sequence[int], ways: int
) -> Recipe:
    """Replay a scenario under settings and sample it.

    As in :func:`calc.evaluation.fitted`, an update of one pass keeps no gradients but where the scenario does.

    Parameters
    ----------
    scenario : Scenario
        Of one or more GPUs; the recipe is what one with the whole model does.
    settings : Mapping
        A value for each choice.
    micro_batches, single : Sequence[int]
        Those that may be asked for, ascending, and those of updates of one pass among them.
    ways : int
        Into how many parts activations may be divided.
    """
    words: dict[str, Any] = {name: kind(settings[name]) for name, kind in PLANNED.items()}
    changed = replace(scenario, **words, layout=Layout())
    memory = step_memory(changed, gradients_kept=True)
    kept = scenario.zero_grad is ZeroGrad.KEEP
    alone = step_memory(changed, gradients_kept=kept)
    divided = step_memory(replace(changed, layout=_GRADIENTS_FAR_APART), gradients_kept=kept)
    samples = _samples(memory, scenario.gpu.limit_bytes, ways, micro_batches[-1])
    # Where none is within reach the first says that nothing beyond is known.
    samples_single = _apart(single, samples[-1]) or [1]
    card = scenario.gpu.catalog
    if card is None:
        raise ScenarioError("gpu", "the planner needs the card's speed: choose a card from the list")
    precision = words["precision"]
    optimizer = OptimizerStep.of(words["optimizer"], memory.step.parameters, precision)
    work_single, work = (throughput.Work.of(each.step.profile, optimizer) for each in (alone, memory))
    machine = throughput.Machine.of(card)
    time = work_single.time(1, machine, str(precision))
    forward, backward = passes_split(changed, time, 1)
    return Recipe(
        settings=dict(settings),
        changes=sum(str(getattr(scenario, name)) != value for name, value in settings.items()),
        accumulating=_held(memory, samples),
        single=_held_single(alone, divided, samples_single),
        timed=_timed(work_single, work, machine, str(precision), _apart(micro_batches, samples[-1])),
        forward_share=forward / (forward + backward),
        work=workload_of(
            changed,
            memory.step,
            micro_batch=1,
            accumulation_steps=1,
            forward_seconds=0.0,
            backward_seconds=0.0,
            optimizer_seconds=time.optimizer_seconds,
        ),
        shape=memory.step.shape_for_division,
        host_update_seconds=host_optimizer_seconds(memory.step.trainable_count),
    )
