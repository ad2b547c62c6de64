"""Every recipe x layout x batch scored at once with numpy.

A recipe is one choice of checkpointing, precision, optimizer, attention and loss, as one GPU runs it. Shares and
exchanges come from :mod:`calc.scaling`; a test holds the arrays equal to its scalar functions.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from calc.accumulation import divisors
from calc.errors import ScenarioError
from calc.goal import SECONDS_PER_HOUR
from calc.scaling.layout import Layout, Offload, Strategy
from calc.scaling.memory import Division, ModelShape, division, pipeline_activation_share
from calc.scaling.offload import offloads
from calc.scaling.step_time import (
    UNMODELLED_HIGH,
    UNMODELLED_LOW,
    Exchange,
    StepParts,
    Workload,
    bubble_share,
    data_parallel_exchange,
    model_parallel_seconds,
    offload_seconds,
    slowest_stage_share,
    step_parts,
)
from calc.scenario import Objective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from calc.collectives import Fabric

    Array = np.ndarray[Any, np.dtype[Any]]

PHASES = ("forward", "backward", "step")
# Where gradients come and go backward peaks with most of them there, or, of a GPU that keeps a part of them alone, with
# most of the activations.
WITHOUT_GRADIENTS = "backward, without gradients"
COMPONENTS = (
    "weights",
    "gradients",
    "optimizer_state",
    "activations",
    "logits_and_loss",
    "casts",
    "temporaries",
    "workspace",
)
# Plans that differ by less are a tie, and the simpler one is chosen. What the time model leaves out of a step on
# several GPUs spans 13 % of it (calc.scaling.step_time); memory is known better.
TIE_SHARES = {Objective.TIME: 0.05, Objective.COST: 0.05, Objective.HEADROOM: 0.02}
# Tokens of a sequence below which no GPU's share of it is tried: replicas divide the work with less to exchange.
SHORTEST_CONTEXT_SHARE = 4096
# Candidates that are scored together: enough for numpy, and few enough to stay in a processor's cache.
_SCORED_TOGETHER = 2**16
_SHARES = tuple(field.name for field in fields(Division))
_EXCHANGED = tuple(field.name for field in fields(Exchange))


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on one GPU, ``component_bytes[phase][component]``, at some micro-batches and linear between them."""

    micro_batches: Sequence[int]
    component_bytes: Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one GPU's passes at some micro-batches and linear between them.

    ``single`` is the pass of an update that has no other. With more each takes ``further``, and the update ``once`` on
    top: the first kernels wait for the host, and the host may lag behind at the end.
    """

    micro_batches: Sequence[int]
    single: Sequence[float]
    further: Sequence[float]
    once: Sequence[float]

    def pass_seconds(self, micro_batch: int, accumulation_steps: int) -> float:
        """Seconds of one of an update's passes, on average."""

        def at(values: Sequence[float]) -> float:
            return float(np.interp(micro_batch, self.micro_batches, values))

        if accumulation_steps == 1:
            return at(self.single)
        return at(self.further) + at(self.once) / accumulation_steps


@dataclass(frozen=True, slots=True)
class Recipe:
    """One GPU's behaviour under one choice of settings.

    ``accumulating`` is what it holds with the gradients of earlier passes there throughout, ``single`` in an update of
    one pass, where they need not be, at the peak `WITHOUT_GRADIENTS` too. ``forward_share`` is forward's part of a
    pass's seconds. ``work`` holds what does not depend on the micro-batch; its ``layer_bytes``, ``key_value_bytes`` and
    ``routed_bytes`` are per sample. ``changes`` counts the settings that differ from the scenario's, to prefer the
    simpler plan. ``host_update_seconds`` is the whole model's update on one host, where its state waits there.
    """

    settings: Mapping[str, str]
    changes: int
    accumulating: Held
    single: Held
    timed: Timed
    forward_share: float
    work: Workload
    shape: ModelShape
    host_update_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs that may be used, how they are joined, what each holds, how it reaches its host, what its hour costs.

    ``joined`` tells how so many GPUs on so many nodes are: a bridge may join two of a node, where more have PCIe alone.
    """

    gpus: int
    gpus_per_node: int
    joined: Callable[[int, int], Fabric]
    limit_bytes: int
    host_bytes_per_second: float
    dollars_per_gpu_hour: float = 0.0

    @property
    def fabric(self) -> Fabric:
        """How all of the GPUs are joined."""
        return self.joined(self.gpus, math.ceil(self.gpus / self.gpus_per_node))

    def fabric_of(self, layout: Layout) -> Fabric:
        """How the GPUs of a layout are joined."""
        return self.joined(layout.gpus, nodes_for(layout.gpus, self.gpus_per_node))

    def per_node(self, layout: Layout) -> int:
        """GPUs of the layout on each node that it takes."""
        return layout.gpus // nodes_for(layout.gpus, self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to make a global batch, with what it costs; ``updates`` of it are the run."""

    settings: Mapping[str, str]
    changes: int
    layout: Layout
    global_batch: int
    micro_batch: int
    accumulation_steps: int
    memory_bytes: int
    headroom_bytes: int
    update_seconds: float
    dollars_per_update: float
    updates: float

    @property
    def run_seconds(self) -> float:
        """Seconds of the run."""
        return self.update_seconds * self.updates

    @property
    def run_dollars(self) -> float:
        """Price of the run."""
        return self.dollars_per_update * self.updates

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for the JSON border."""
        return {**asdict(self), "settings": dict(self.settings), "layout": asdict(self.layout)}


def _powers(limit: int, divides: int) -> list[int]:
    found = [1]
    while found[-1] * 2 <= limit and divides % (found[-1] * 2) == 0:
        found.append(found[-1] * 2)
    return found


def nodes_for(gpus: int, gpus_per_node: int) -> int:
    """As few nodes as hold the GPUs evenly."""
    least_nodes = math.ceil(gpus / gpus_per_node)
    return next(nodes for nodes in range(least_nodes, gpus + 1) if gpus % nodes == 0)


def gpu_counts(gpus: int, gpus_per_node: int, batches: Iterable[int] = ()) -> list[int]:
    """List the numbers of GPUs worth trying: all of them, powers of two, the most that divide a batch, and halves.

    Replicas have to divide a batch to make it exactly, and every other degree is a power of two: 24 GPUs never make a
    batch of 512, but 16 of them do, and 20 one of 500. A number that only more nodes than there are would hold evenly
    is left out; a half of one that they hold they hold too.

    Parameters
    ----------
    gpus, gpus_per_node : int
        GPUs at hand.
    batches : Iterable[int]
        The global batches that will do, in samples.
    """
    nodes = math.ceil(gpus / gpus_per_node)
    powers = [2**place for place in range(gpus.bit_length())]
    whole = {gpus, *(count for count in powers if nodes_for(count, gpus_per_node) <= nodes)}
    for batch in batches:
        dividing = (count for count in reversed(divisors(batch)) if count <= gpus)
        whole.add(next(count for count in dividing if nodes_for(count, gpus_per_node) <= nodes))
    return sorted({count >> place for count in whole for place in range((count & -count).bit_length())})


def layouts(
    counts: Sequence[int],
    *,
    largest_tensor: int = 8,
    layers: int = 1,
    heads: int = 1,
    experts: int = 1,
    sequence_length: int = 0,
) -> list[Layout]:
    """List the ways to divide so many GPUs: powers of two of each degree, every strategy, offloading.

    A sequence is divided as long as each GPU keeps `SHORTEST_CONTEXT_SHARE` of it. What waits in the host's memory is
    what :func:`calc.scaling.offload.offloads` allows.

    Parameters
    ----------
    counts : Sequence[int]
        Numbers of GPUs, such as :func:`gpu_counts` finds.
    largest_tensor : int
        Largest tensor-parallel degree: usually the GPUs of a node.
    layers, heads, experts : int
        What pipeline, tensor and expert degrees must divide.
    sequence_length : int
        Tokens of a sequence; 0 where samples are none.
    """
    found = []
    for count in counts:
        degrees = product(
            _powers(min(largest_tensor, count), heads),
            _powers(count, layers),
            _powers(min(count, sequence_length // SHORTEST_CONTEXT_SHARE), sequence_length),
        )
        for tensor, pipeline, context in degrees:
            ways = tensor * pipeline * context
            if count % ways:
                continue
            data = count // ways
            strategies = list(Strategy) if data * context > 1 else [Strategy.DDP]
            for strategy, expert in product(strategies, _powers(data, max(1, experts))):
                found += [
                    Layout(
                        strategy=strategy,
                        data=data,
                        tensor=tensor,
                        pipeline=pipeline,
                        context=context,
                        expert=expert,
                        sequence_parallel=tensor > 1,
                        cpu_offload=cpu_offload,
                    )
                    for cpu_offload in offloads(strategy, count, alone=ways == 1)
                ]
    return found


@dataclass(frozen=True, slots=True)
class Candidates:
    """Every candidate's numbers, indexed by recipe, layout and batch: a global batch with one of its divisors.

    Seconds are right where a candidate is feasible. ``updates`` are the run's at each batch.
    """

    recipes: Sequence[Recipe]
    layouts: Sequence[Layout]
    global_batches: Array
    micro_batches: Array
    updates: Array
    accumulation_steps: Array
    exact: Array
    memory_bytes: Array
    update_seconds: Array
    feasible: Array
    machine: Machine

    @property
    def count(self) -> int:
        """How many make their batch exactly."""
        return len(self.recipes) * int(self.exact.sum())

    def run_seconds(self) -> Array:
        """Seconds of the run."""
        seconds: Array = self.update_seconds * self.updates
        return seconds

    def run_dollars(self) -> Array:
        """Price of the run on the GPUs in use."""
        gpus = np.array([layout.gpus for layout in self.layouts])[None, :, None]
        dollars: Array = self.run_seconds() * gpus * (self.machine.dollars_per_gpu_hour / SECONDS_PER_HOUR)
        return dollars

    def measured(self, objective: Objective) -> Array:
        """What an objective wants to be small."""
        by: dict[Objective, Callable[[], Array]] = {
            Objective.TIME: self.run_seconds,
            Objective.COST: self.run_dollars,
            Objective.HEADROOM: lambda: self.memory_bytes,
        }
        return by[objective]()

    def step_parts(self, plan: Plan) -> StepParts:
        """Split the seconds of a candidate's update: what they are spent on."""
        recipe = next(recipe for recipe in self.recipes if recipe.settings == plan.settings)
        seconds = recipe.timed.pass_seconds(plan.micro_batch, plan.accumulation_steps)
        work = replace(
            at_micro_batch(recipe.work, plan.micro_batch),
            forward_seconds=recipe.forward_share * seconds,
            backward_seconds=(1 - recipe.forward_share) * seconds,
            accumulation_steps=plan.accumulation_steps,
        )
        return step_parts(
            work,
            plan.layout,
            self.machine.fabric_of(plan.layout),
            nodes_for(plan.layout.gpus, self.machine.gpus_per_node),
            host_bytes_per_second=self.machine.host_bytes_per_second,
            whole_update_seconds=recipe.host_update_seconds,
        )

    def plan(self, index: int) -> Plan:
        """Return one candidate, by its flat index."""
        recipe_index, layout_index, batch_index = (int(i) for i in np.unravel_index(index, self.memory_bytes.shape))
        recipe, layout = self.recipes[recipe_index], self.layouts[layout_index]
        where = (recipe_index, layout_index, batch_index)
        seconds, memory = float(self.update_seconds[where]), int(self.memory_bytes[where])
        return Plan(
            settings=recipe.settings,
            changes=recipe.changes,
            layout=layout,
            global_batch=int(self.global_batches[batch_index]),
            micro_batch=int(self.micro_batches[batch_index]),
            accumulation_steps=int(self.accumulation_steps[layout_index, batch_index]),
            memory_bytes=memory,
            headroom_bytes=self.machine.limit_bytes - memory,
            update_seconds=seconds,
            dollars_per_update=seconds * layout.gpus * self.machine.dollars_per_gpu_hour / SECONDS_PER_HOUR,
            updates=float(self.updates[batch_index]),
        )


def _bytes_at(held: Sequence[Held], micro_batches: Array) -> dict[str, Array]:
    """Interpolate bytes [recipe, phase, micro-batch] of each component; one column for what is the same at each."""
    components = {}
    for component in COMPONENTS:
        found = np.array(
            [
                [
                    np.interp(micro_batches, each.micro_batches, parts[component])
                    for parts in each.component_bytes.values()
                ]
                for each in held
            ]
        )
        components[component] = found[..., :1] if (found == found[..., :1]).all() else found
    return components


def _seconds_at(timed: Sequence[Timed], name: str, micro_batches: Array) -> Array:
    """Interpolate seconds [recipe, 1, micro-batch]."""
    return np.array([np.interp(micro_batches, each.micro_batches, getattr(each, name)) for each in timed])[:, None]


def _last(held: Sequence[Held]) -> Array:
    """The largest micro-batch [recipe, 1] of which something is known."""
    return np.array([each.micro_batches[-1] for each in held])[:, None]


def _peak_bytes(
    bytes_: Mapping[str, Array],
    shares: Mapping[str, Array],
    pipeline: Array,
    first_stage_shares: Array,
    stepping: Array,
) -> Array:
    """Bytes at the phase that holds the most, rounded up part by part as the scalar functions do.

    Arrays are indexed by recipe, phase, layout and batch, or such as lead to that.
    """
    whole = shares["activations"] * bytes_["activations"]
    logits = shares["logits_and_loss"] * bytes_["logits_and_loss"]
    first_stage, last_stage = whole * first_stage_shares, whole / pipeline
    fullest_first = (pipeline > 1) & (first_stage >= last_stage + logits)
    stage = np.where(fullest_first, _whole_bytes(first_stage), _whole_bytes(last_stage) + _whole_bytes(logits))
    shared = np.where(stepping, shares["step_temporaries"], shares["pass_temporaries"])
    held = bytes_["workspace"] + shares["bucket_bytes"] + np.where(stepping, 0, shares["gathered_bytes"])
    for name in ("weights", "gradients", "optimizer_state", "casts"):
        held = held + _whole_bytes(shares[name] * bytes_[name])
    peak: Array = (stage + _whole_bytes(shared * bytes_["temporaries"]) + held).max(axis=1)
    return peak


class _Scores:
    """Scores layouts, some at a time; what does not depend on the batch is worked out once for recipes that share it.

    Arrays are indexed by recipe, layout and batch.
    """

    def __init__(self, recipes: Sequence[Recipe], machine: Machine, micro_batches: Array) -> None:
        self.machine = machine
        self.micro_batches = micro_batches
        accumulating, single = [recipe.accumulating for recipe in recipes], [recipe.single for recipe in recipes]
        self.accumulating, self.single = (_bytes_at(held, micro_batches) for held in (accumulating, single))
        self.stepping, self.stepping_single = (
            np.array([phase == "step" for phase in held[0].component_bytes])[:, None, None]
            for held in (accumulating, single)
        )
        # Nothing is known beyond a recipe's last sample: there it never fits.
        self.unknown, self.unknown_single = (micro_batches > _last(held) for held in (accumulating, single))
        timed = [recipe.timed for recipe in recipes]
        self.pass_seconds = {name: _seconds_at(timed, name, micro_batches) for name in ("single", "further", "once")}
        self.forward_share = np.array([recipe.forward_share for recipe in recipes])[:, None, None]
        self.optimizer = np.array([recipe.work.optimizer_seconds for recipe in recipes])
        self.host = np.array([recipe.host_update_seconds for recipe in recipes])
        self.shapes, self.shape_of = _distinct([recipe.shape for recipe in recipes])
        works = [
            replace(recipe.work, forward_seconds=0.0, backward_seconds=0.0, optimizer_seconds=0.0) for recipe in recipes
        ]
        # What replicas exchange depends on the model alone, what its parts exchange on the batch too.
        self.between, self.between_of = _distinct(
            [replace(work, layer_bytes=0, key_value_bytes=0, routed_bytes=0, recomputes=False) for work in works]
        )
        self.within, self.within_of = _distinct([replace(work, gradient_bytes=0, gathered_bytes=0) for work in works])
        self.known: dict[tuple[object, ...], float] = {}

    def memory(self, layouts: Sequence[Layout], steps: Array, single: Array) -> Array:
        """Bytes per GPU at the phase that holds the most; ``single`` says which layouts and batches make one pass."""
        columns = _by_field(_SHARES, [[division(layout, shape) for layout in layouts] for shape in self.shapes])
        shares = {name: found[self.shape_of][:, None, :, None] for name, found in columns.items()}
        pipeline = np.array([layout.pipeline for layout in layouts])[:, None]
        first_stage = _first_stage_shares(layouts, steps)
        bytes_ = {name: found[:, :, None] for name, found in self.accumulating.items()}
        peak = _peak_bytes(bytes_, shares, pipeline, first_stage, self.stepping)
        peak[np.broadcast_to(self.unknown[:, None], peak.shape)] = np.inf
        # A layout has one such micro-batch for each batch at most: these are few, and worked out one by one.
        rows, places = single.nonzero()
        bytes_ = {
            name: (found[..., places] if found.shape[-1] > 1 else found)[..., None]
            for name, found in self.single.items()
        }
        shares = {name: found[:, :, rows] for name, found in shares.items()}
        first_stage = first_stage[rows, places][:, None]
        peak_single = _peak_bytes(bytes_, shares, pipeline[rows], first_stage, self.stepping_single)[..., 0]
        peak[:, rows, places] = np.where(self.unknown_single[:, places], np.inf, peak_single)
        return peak

    def seconds(self, layouts: Sequence[Layout], steps: Array, wanted: Array) -> Array:
        """Seconds of an update; right for the layouts and batches that are wanted."""

        def each(value: Callable[[Layout], float]) -> Array:
            return np.array([value(layout) for layout in layouts], dtype=float)[:, None]

        # A fused loss does not multiply by the head as another does, so that the slowest stage is the recipe's own.
        slowest = [
            [layout.tensor * layout.context / slowest_stage_share(work, layout.pipeline) for layout in layouts]
            for work in self.between
        ]
        ways = np.array(slowest)[self.between_of][:, :, None]
        single, further, once = (self.pass_seconds[name] for name in ("single", "further", "once"))
        passing = np.where(steps == 1, single, further + once / steps) / ways
        forward = self.forward_share * passing
        columns = _by_field(_EXCHANGED, [[self._exchange(work, at) for at in layouts] for work in self.between])

        def exchange(name: str) -> Array:
            found: Array = columns[name][self.between_of][:, :, None]
            return found

        showing = _exposed(forward, exchange("forward_pieces"), exchange("forward_piece_seconds"))
        showing = showing + _exposed(passing - forward, exchange("backward_pieces"), exchange("backward_piece_seconds"))
        showing = showing * np.where(exchange("each_pass") > 0, steps, 1) + exchange("tail_seconds")
        working = steps * (passing + self._inside(layouts, wanted))
        bubble = each(lambda layout: bubble_share(layout.pipeline, 1)) / steps * working
        updating = self.optimizer[:, None, None] * each(
            lambda layout: (layout.cpu_offload is Offload.NONE) / layout.state_ways
        )
        total: Array = working + bubble + showing + updating + self._offload(layouts, steps)
        return np.where(each(lambda layout: layout.gpus > 1) > 0, total / (1 - _unmodelled(steps)), total)

    def _exchange(self, work: Workload, layout: Layout) -> Exchange:
        return data_parallel_exchange(work, layout, self.machine.fabric_of(layout), self.machine.per_node(layout))

    def _inside(self, layouts: Sequence[Layout], wanted: Array) -> Array:
        """Seconds a pass of communication inside the model."""
        seconds = np.zeros((len(self.within), *wanted.shape))
        for place, layout in enumerate(layouts):
            if layout.tensor * layout.pipeline * layout.context * layout.expert == 1:
                continue
            per_node = self.machine.per_node(layout)
            fabric = self.machine.fabric_of(layout)
            # Neither the strategy nor the number of replicas matters, beyond whether one node holds them all.
            key = (
                layout.tensor, layout.pipeline, layout.context, layout.expert, layout.sequence_parallel,
                per_node, layout.gpus > per_node,
            )  # fmt: skip
            for column in np.flatnonzero(wanted[place]):
                micro_batch = int(self.micro_batches[column])
                for index, work in enumerate(self.within):
                    found = self.known.get((index, micro_batch, *key))
                    if found is None:
                        at_batch = at_micro_batch(work, micro_batch)
                        found = model_parallel_seconds(at_batch, layout, fabric, per_node)
                        self.known[index, micro_batch, *key] = found
                    seconds[index, place, column] = found
        return seconds[self.within_of]

    def _offload(self, layouts: Sequence[Layout], steps: Array) -> Array:
        """Seconds an update of what waits in the host's memory: some once, some with every pass."""
        once, each_pass = (np.zeros((len(self.between), len(layouts), 1)) for _ in range(2))
        on_host = np.zeros((len(layouts), 1))
        for place, layout in enumerate(layouts):
            if layout.cpu_offload is Offload.NONE:
                continue
            for index, work in enumerate(self.between):
                none, one = (self._offloaded(replace(work, accumulation_steps=passes), layout, 0) for passes in (0, 1))
                once[index, place], each_pass[index, place] = none, one - none
            idle = replace(self.between[0], gradient_bytes=0, gathered_bytes=0)
            on_host[place] = self._offloaded(idle, layout, 1)
        found: Array = once[self.between_of] + steps * each_pass[self.between_of] + self.host[:, None, None] * on_host
        return found

    def _offloaded(self, work: Workload, layout: Layout, whole_update_seconds: float) -> float:
        return offload_seconds(
            layout,
            work,
            self.machine.per_node(layout),
            host_bytes_per_second=self.machine.host_bytes_per_second,
            whole_update_seconds=whole_update_seconds,
        )


def _by_field(names: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, Array]:
    """Turn rows of dataclasses into an array [row, column] for each field."""
    values = attrgetter(*names)
    table = np.array([[values(found) for found in row] for row in rows], dtype=float)
    return dict(zip(names, np.moveaxis(table, 2, 0), strict=True))


def _distinct(values: Sequence[Any]) -> tuple[list[Any], Array]:
    """Return the values without repetition, and for each its place among them."""
    places: dict[Any, int] = {}
    of = [places.setdefault(value, len(places)) for value in values]
    return list(places), np.array(of)


def _first_stage_shares(layouts: Sequence[Layout], steps: Array) -> Array:
    """:func:`calc.scaling.memory.pipeline_activation_share` by layout and batch; 1 where there is no pipeline."""
    shares = np.ones(steps.shape)
    for place, layout in enumerate(layouts):
        if layout.pipeline > 1:
            shares[place] = [pipeline_activation_share(layout.pipeline, count) for count in steps[place].tolist()]
    return shares


def _whole_bytes(values: Array) -> Array:
    """Round up to whole bytes, but for what is a whole number to within rounding."""
    return np.ceil(values - 1e-6)


def _exposed(work: Array, pieces: Array, piece_seconds: Array) -> Array:
    """:func:`calc.scaling.step_time.exposed_seconds` for arrays; no pieces, nothing exposed."""
    some = np.maximum(pieces, 1)
    return np.where(pieces > 0, np.maximum(piece_seconds, pieces * piece_seconds - work * (some - 1) / some), 0.0)


def _unmodelled(steps: Array) -> Array:
    """:func:`calc.scaling.step_time.unmodelled_share` for arrays."""
    return np.maximum(UNMODELLED_LOW, (UNMODELLED_LOW + UNMODELLED_HIGH) / 2 / np.sqrt(steps))


def at_micro_batch(work: Workload, micro_batch: int) -> Workload:
    """Turn a recipe's per-sample bytes into a micro-batch's."""
    return replace(
        work,
        layer_bytes=work.layer_bytes * micro_batch,
        key_value_bytes=work.key_value_bytes * micro_batch,
        routed_bytes=work.routed_bytes * micro_batch,
    )


def search(
    recipes: Sequence[Recipe],
    candidate_layouts: Sequence[Layout],
    machine: Machine,
    updates: Mapping[int, float],
) -> Candidates:
    """Score every recipe x layout x micro-batch that could make one of the wanted batches.

    A candidate is feasible where replicas x micro-batch divide the batch exactly and its peak fits. Cost grows linearly
    with the candidates and not with the layers.

    Parameters
    ----------
    recipes, candidate_layouts : Sequence
        What may be combined.
    machine : Machine
        The GPUs.
    updates : Mapping[int, float]
        The global batches that will do, in samples, and the updates of the run at each.

    Raises
    ------
    ScenarioError
        If a batch is below 1 or nothing may be combined.
    """
    if not updates or min(updates) < 1:
        raise ScenarioError("global_batch", "give a whole number of at least 1")
    if not recipes or not candidate_layouts:
        raise ScenarioError("planner", "allow at least one recipe and one layout")
    pairs = np.array([(whole, part) for whole in updates for part in divisors(whole)])
    global_batches, micro_batches = pairs.T
    replicas = np.array([layout.data for layout in candidate_layouts])[:, None]
    exact = global_batches % (replicas * micro_batches) == 0
    steps = np.maximum(1, global_batches // (replicas * micro_batches))
    scores = _Scores(recipes, machine, micro_batches)
    shape = (len(recipes), len(candidate_layouts), micro_batches.size)
    memory, seconds, feasible = np.empty(shape), np.empty(shape), np.empty(shape, dtype=bool)
    together = max(1, _SCORED_TOGETHER // (len(recipes) * micro_batches.size))
    for start in range(0, len(candidate_layouts), together):
        some = slice(start, start + together)
        memory[:, some] = scores.memory(candidate_layouts[some], steps[some], exact[some] & (steps[some] == 1))
        feasible[:, some] = exact[some] & (memory[:, some] <= machine.limit_bytes)
        wanted = np.logical_or.reduce(feasible[:, some], axis=0)
        seconds[:, some] = scores.seconds(candidate_layouts[some], steps[some], wanted)
    runs = np.array([updates[int(batch)] for batch in global_batches], dtype=float)
    return Candidates(
        recipes, candidate_layouts, global_batches, micro_batches, runs, steps, exact, memory, seconds, feasible,
        machine,
    )  # fmt: skip


def within(found: Candidates, run_seconds: float | None = None, run_dollars: float | None = None) -> Candidates:
    """Narrow the feasible candidates to those whose run keeps to a time and a price."""
    feasible = found.feasible
    if run_seconds is not None:
        feasible = feasible & (found.run_seconds() <= run_seconds)
    if run_dollars is not None:
        feasible = feasible & (found.run_dollars() <= run_dollars)
    return replace(found, feasible=feasible)


def best(found: Candidates, objective: Objective = Objective.TIME) -> Plan | None:
    """Pick the best feasible plan, the simplest of those as good to within `TIE_SHARES`; None where nothing fits."""
    flat = np.flatnonzero(found.feasible)
    if flat.size == 0:
        return None
    measure = found.measured(objective).ravel()[flat]
    tied = flat[measure <= measure.min() * (1 + TIE_SHARES[objective])]
    recipe, layout, batch = np.unravel_index(tied, found.memory_bytes.shape)
    complexity = np.array([_complexity(candidate) for candidate in found.layouts])
    changes = np.array([candidate.changes for candidate in found.recipes])
    # Simplest kind of parallelism first, then ZeRO stage, settings changed, GPUs, seconds, memory; lexsort reads last
    # to first.
    kinds, stages, gpus = complexity[layout].T
    order = np.lexsort(
        (
            found.micro_batches[batch],
            found.memory_bytes.ravel()[tied],
            found.run_seconds().ravel()[tied],
            gpus,
            changes[recipe],
            stages,
            kinds,
        )
    )
    return found.plan(int(tied[order[0]]))


def least(found: Candidates, objective: Objective) -> Plan | None:
    """Pick the feasible plan that an objective likes most, however complex; None where nothing fits."""
    flat = np.flatnonzero(found.feasible)
    if flat.size == 0:
        return None
    return found.plan(int(flat[found.measured(objective).ravel()[flat].argmin()]))


def _complexity(layout: Layout) -> tuple[int, int, int]:
    """How hard a layout is to run: kinds of model parallelism and offloading, ZeRO stage, GPUs."""
    kinds = sum(degree > 1 for degree in (layout.tensor, layout.pipeline, layout.context, layout.expert))
    kinds += layout.cpu_offload is not Offload.NONE
    return kinds, layout.strategy.stage, layout.gpus


def pareto(found: Candidates, against: Objective) -> list[Plan]:
    """List the plans that no other beats in both time and headroom, or time and cost, fastest first."""
    flat = np.flatnonzero(found.feasible)
    seconds, other = (found.measured(measure).ravel()[flat] for measure in (Objective.TIME, against))
    order = np.lexsort((other, seconds))
    sorted_other = other[order]
    before = np.minimum.accumulate(np.concatenate(([np.inf], sorted_other[:-1])))
    return [found.plan(int(flat[index])) for index in order[sorted_other < before]]
