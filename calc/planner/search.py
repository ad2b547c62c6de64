"""Every recipe x layout x micro-batch scored at once with numpy.

A recipe is one choice of checkpointing, precision, optimizer, attention and loss, as one GPU runs it. Shares and
exchanges come from :mod:`calc.scaling`; a test holds the arrays equal to its scalar functions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from calc.errors import ScenarioError
from calc.scaling.layout import Layout, Strategy
from calc.scaling.memory import ModelShape, division
from calc.scaling.step_time import (
    UNMODELLED_HIGH,
    UNMODELLED_LOW,
    Exchange,
    Workload,
    data_parallel_exchange,
    model_parallel_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.collectives import Fabric

    Array = np.ndarray[Any, np.dtype[Any]]

PHASES = ("forward", "backward", "step")
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
# Plans whose times differ by less than this are a tie, and the simpler one is chosen: the time model is no finer.
TIE_SHARE = 0.02


class Objective(StrEnum):
    """What the best plan is best at."""

    TIME = "time"
    COST = "cost"
    HEADROOM = "headroom"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One GPU's behaviour under one choice of settings, sampled at some micro-batches and linear between them.

    ``component_bytes[phase][component]`` and the seconds are as long as ``micro_batches``. ``work`` holds what does not
    depend on the micro-batch; its ``layer_bytes``, ``key_value_bytes`` and ``routed_bytes`` are per sample.
    ``changes`` counts the settings that differ from the scenario's, to prefer the simpler plan.
    """

    settings: Mapping[str, str]
    changes: int
    micro_batches: Sequence[int]
    component_bytes: Mapping[str, Mapping[str, Sequence[float]]]
    forward_seconds: Sequence[float]
    backward_seconds: Sequence[float]
    work: Workload
    shape: ModelShape


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs that may be used, how they are joined, what each holds and what an hour of one costs."""

    gpus: int
    gpus_per_node: int
    fabric: Fabric
    limit_bytes: int
    dollars_per_gpu_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to make the wanted batch, with what it costs."""

    settings: Mapping[str, str]
    changes: int
    layout: Layout
    micro_batch: int
    accumulation_steps: int
    memory_bytes: int
    headroom_bytes: int
    update_seconds: float
    dollars_per_update: float

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for the JSON border."""
        return {**asdict(self), "settings": dict(self.settings), "layout": asdict(self.layout)}


def layouts(gpus: int, *, largest_tensor: int = 8, layers: int = 1, heads: int = 1, experts: int = 1) -> list[Layout]:
    """List the ways to divide up to ``gpus`` GPUs, powers of two of each degree, every strategy.

    Parameters
    ----------
    gpus : int
        GPUs at hand; fewer are tried too, by halves.
    largest_tensor : int
        Largest tensor-parallel degree: usually the GPUs of a node.
    layers, heads, experts : int
        What pipeline, tensor and expert degrees must divide.
    """
    counts = {gpus}
    while min(counts) % 2 == 0:
        counts.add(min(counts) // 2)
    counts.add(1)

    def powers(limit: int, divides: int) -> list[int]:
        found = [1]
        while found[-1] * 2 <= limit and divides % (found[-1] * 2) == 0:
            found.append(found[-1] * 2)
        return found

    found = []
    for count in sorted(counts):
        for tensor, pipeline in product(powers(min(largest_tensor, count), heads), powers(count, layers)):
            if count % (tensor * pipeline):
                continue
            data = count // (tensor * pipeline)
            strategies = list(Strategy) if data > 1 else [Strategy.DDP]
            for strategy, expert in product(strategies, powers(data, max(1, experts))):
                found.append(
                    Layout(
                        strategy=strategy,
                        data=data,
                        tensor=tensor,
                        pipeline=pipeline,
                        expert=expert,
                        sequence_parallel=tensor > 1,
                    )
                )
    return found


@dataclass(frozen=True, slots=True)
class Candidates:
    """Every candidate's numbers, indexed by recipe, layout and micro-batch."""

    recipes: Sequence[Recipe]
    layouts: Sequence[Layout]
    micro_batches: Array
    accumulation_steps: Array
    memory_bytes: Array
    update_seconds: Array
    feasible: Array
    machine: Machine

    @property
    def count(self) -> int:
        """How many were scored."""
        return int(self.memory_bytes.size)

    def dollars_per_update(self) -> Array:
        """Price of one update on the GPUs in use."""
        gpus = np.array([layout.gpus for layout in self.layouts])[None, :, None]
        dollars: Array = self.update_seconds * gpus * (self.machine.dollars_per_gpu_hour / 3600)
        return dollars

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
            micro_batch=int(self.micro_batches[batch_index]),
            accumulation_steps=int(self.accumulation_steps[layout_index, batch_index]),
            memory_bytes=memory,
            headroom_bytes=self.machine.limit_bytes - memory,
            update_seconds=seconds,
            dollars_per_update=seconds * layout.gpus * self.machine.dollars_per_gpu_hour / 3600,
        )


def _sampled(recipes: Sequence[Recipe], micro_batches: Array) -> tuple[Array, Array, Array]:
    """Interpolate bytes [recipe, phase, component, micro-batch] and seconds [recipe, micro-batch]."""
    bytes_ = np.empty((len(recipes), len(PHASES), len(COMPONENTS), micro_batches.size))
    forward = np.empty((len(recipes), micro_batches.size))
    backward = np.empty_like(forward)
    for r, recipe in enumerate(recipes):
        for (p, phase), (c, component) in product(enumerate(PHASES), enumerate(COMPONENTS)):
            samples = recipe.component_bytes[phase][component]
            bytes_[r, p, c] = np.interp(micro_batches, recipe.micro_batches, samples)
        forward[r] = np.interp(micro_batches, recipe.micro_batches, recipe.forward_seconds)
        backward[r] = np.interp(micro_batches, recipe.micro_batches, recipe.backward_seconds)
        # Nothing is known beyond the last sample: such a candidate never fits.
        bytes_[r, :, COMPONENTS.index("workspace"), micro_batches > recipe.micro_batches[-1]] = np.inf
    return bytes_, forward, backward


def _whole_bytes(values: Array) -> Array:
    """Round up to whole bytes, but for what is a whole number to within rounding."""
    return np.ceil(values - 1e-6)


def _memory(bytes_: Array, recipes: Sequence[Recipe], layout: Layout, steps: Array) -> Array:
    """Bytes per GPU [recipe, micro-batch] at the phase that holds the most."""
    divisions = {shape: division(layout, shape) for shape in {recipe.shape for recipe in recipes}}
    shares = [divisions[recipe.shape] for recipe in recipes]

    def column(name: str) -> Array:
        return np.array([getattr(share, name) for share in shares], dtype=float)[:, None, None]

    def part(component: str) -> Array:
        return bytes_[:, :, COMPONENTS.index(component)]

    state = sum(
        (_whole_bytes(column(name) * part(name)) for name in ("weights", "gradients", "optimizer_state", "casts")),
        start=np.zeros(()),
    )
    whole = column("activations") * part("activations")
    logits = column("logits_and_loss") * part("logits_and_loss")
    first_stage = whole * (np.minimum(steps, layout.pipeline) / layout.pipeline)
    last_stage = whole / layout.pipeline
    stage = _whole_bytes(last_stage) + _whole_bytes(logits)
    if layout.pipeline > 1:
        stage = np.where(first_stage >= last_stage + logits, _whole_bytes(first_stage), stage)
    stepping = np.array([phase == "step" for phase in PHASES])[None, :, None]
    temporaries = np.where(stepping, column("step_temporaries"), column("pass_temporaries")) * part("temporaries")
    gathered = np.where(stepping, 0, column("gathered_bytes"))
    held = part("workspace") + column("bucket_bytes") + gathered
    peak: Array = (state + stage + _whole_bytes(temporaries) + held).max(axis=1)
    return peak


def _exposed(work: Array, pieces: Array, piece_seconds: Array) -> Array:
    """:func:`calc.scaling.step_time.exposed_seconds` for arrays; no pieces, nothing exposed."""
    some = np.maximum(pieces, 1)
    return np.where(pieces > 0, np.maximum(piece_seconds, pieces * piece_seconds - work * (some - 1) / some), 0.0)


def _unmodelled(steps: Array) -> Array:
    """:func:`calc.scaling.step_time.unmodelled_share` for arrays."""
    return np.maximum(UNMODELLED_LOW, (UNMODELLED_LOW + UNMODELLED_HIGH) / 2 / np.sqrt(steps))


def _seconds(passes: tuple[Array, Array], layout: Layout, steps: Array, exact: Array, context: _Context) -> Array:
    """Seconds of an update [recipe, micro-batch], from one GPU's passes; right where the micro-batch is exact."""
    recipes = context.recipes
    ways = layout.tensor * layout.pipeline * layout.context
    gpus_per_node = min(layout.gpus, context.machine.gpus_per_node)
    exchanges = context.exchanges(layout, gpus_per_node)

    def column(name: str) -> Array:
        return np.array([getattr(exchange, name) for exchange in exchanges], dtype=float)[:, None]

    forward, backward = (seconds / ways for seconds in passes)
    showing = _exposed(forward, column("forward_pieces"), column("forward_piece_seconds"))
    showing = showing + _exposed(backward, column("backward_pieces"), column("backward_piece_seconds"))
    showing = showing * np.where(column("each_pass") > 0, steps, 1) + column("tail_seconds")
    working = steps * (forward + backward)
    if ways > 1 or layout.expert > 1:
        working = working + steps * context.inside(layout, gpus_per_node, exact)
    bubble = (layout.pipeline - 1) / steps * working
    state_ways = layout.tensor * layout.pipeline * (layout.shards if layout.strategy.stage else 1)
    optimizer = np.array([recipe.work.optimizer_seconds for recipe in recipes])[:, None] / state_ways
    total: Array = working + bubble + showing + optimizer
    return total / (1 - _unmodelled(steps)) if layout.gpus > 1 else total


class _Context:
    """What recipes share: exchanges by their byte counts, communication inside the model by micro-batch."""

    def __init__(self, recipes: Sequence[Recipe], machine: Machine, micro_batches: Array) -> None:
        self.recipes = recipes
        self.machine = machine
        # Recipes that differ in nothing that is exchanged share one entry.
        passes = [
            replace(recipe.work, forward_seconds=0.0, backward_seconds=0.0, optimizer_seconds=0.0) for recipe in recipes
        ]
        self._between = [
            replace(work, layer_bytes=0, key_value_bytes=0, routed_bytes=0, recomputes=False) for work in passes
        ]
        self._within = [replace(work, gradient_bytes=0, gathered_bytes=0) for work in passes]
        self._exchange = cache(partial(data_parallel_exchange, fabric=machine.fabric))
        self._at = cache(_at)
        self._inside = cache(self._inside_by_batch)
        self._micro_batches = micro_batches

    def exchanges(self, layout: Layout, gpus_per_node: int) -> list[Exchange]:
        """List what each recipe's replicas exchange."""
        return [self._exchange(work, layout, gpus_per_node=gpus_per_node) for work in self._between]

    def inside(self, layout: Layout, gpus_per_node: int, wanted: Array) -> Array:
        """Seconds of communication inside the model [recipe, micro-batch], where wanted."""
        where = tuple(int(index) for index in np.flatnonzero(wanted))
        return np.stack([self._inside(work, layout, gpus_per_node, where) for work in self._within])

    def _inside_by_batch(self, work: Workload, layout: Layout, gpus_per_node: int, where: tuple[int, ...]) -> Array:
        seconds = np.zeros(self._micro_batches.size)
        for index in where:
            at_batch = self._at(work, int(self._micro_batches[index]))
            seconds[index] = model_parallel_seconds(at_batch, layout, self.machine.fabric, gpus_per_node)
        return seconds


def _at(work: Workload, micro_batch: int) -> Workload:
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
    global_batch: int,
    largest_micro_batch: int | None = None,
) -> Candidates:
    """Score every recipe x layout x micro-batch that could make the wanted batch.

    A candidate is feasible where replicas x micro-batch divide the batch exactly and its peak fits. Cost grows linearly
    with the candidates and not with the layers.

    Parameters
    ----------
    recipes, candidate_layouts : Sequence
        What may be combined.
    machine : Machine
        The GPUs.
    global_batch : int
        Samples per update.
    largest_micro_batch : int, optional
        Up to which micro-batch to look; the whole batch by default.

    Raises
    ------
    ScenarioError
        If the batch is below 1 or nothing may be combined.
    """
    if global_batch < 1:
        raise ScenarioError("global_batch", f"{global_batch} is not a batch: give a whole number of at least 1")
    if not recipes or not candidate_layouts:
        raise ScenarioError("planner", "allow at least one recipe and one layout")
    micro_batches = np.arange(1, min(largest_micro_batch or global_batch, global_batch) + 1)
    replicas = np.array([layout.data for layout in candidate_layouts])[:, None]
    exact = global_batch % (replicas * micro_batches) == 0
    steps = np.maximum(1, global_batch // (replicas * micro_batches))
    bytes_, forward, backward = _sampled(recipes, micro_batches)
    context = _Context(recipes, machine, micro_batches)
    shape = (len(recipes), len(candidate_layouts), micro_batches.size)
    memory, seconds = np.empty(shape), np.empty(shape)
    for index, layout in enumerate(candidate_layouts):
        memory[:, index] = _memory(bytes_, recipes, layout, steps[index])
        seconds[:, index] = _seconds((forward, backward), layout, steps[index], exact[index], context)
    feasible = exact[None] & (memory <= machine.limit_bytes)
    return Candidates(recipes, candidate_layouts, micro_batches, steps, memory, seconds, feasible, machine)


def within(
    found: Candidates, update_seconds: float | None = None, dollars_per_update: float | None = None
) -> Candidates:
    """Narrow the feasible candidates to those within a time or a price per update."""
    feasible = found.feasible
    if update_seconds is not None:
        feasible = feasible & (found.update_seconds <= update_seconds)
    if dollars_per_update is not None:
        feasible = feasible & (found.dollars_per_update() <= dollars_per_update)
    return replace(found, feasible=feasible)


def best(found: Candidates, objective: Objective = Objective.TIME) -> Plan | None:
    """Pick the best feasible plan, the simplest of those within 2 % of it; None where nothing fits."""
    flat = np.flatnonzero(found.feasible)
    if flat.size == 0:
        return None
    seconds = found.update_seconds.ravel()[flat]
    measure = {
        Objective.TIME: lambda: seconds,
        Objective.COST: lambda: found.dollars_per_update().ravel()[flat],
        Objective.HEADROOM: lambda: found.memory_bytes.ravel()[flat],
    }[objective]()
    tied = flat[measure <= measure.min() * (1 + TIE_SHARE)]
    recipe, layout, batch = np.unravel_index(tied, found.memory_bytes.shape)
    complexity = np.array([_complexity(candidate) for candidate in found.layouts])
    changes = np.array([candidate.changes for candidate in found.recipes])
    # Simplest kind of parallelism first, then ZeRO stage, settings changed, GPUs, seconds, memory; lexsort reads last
    # to first.
    kinds, stages, gpus = complexity[layout].T
    order = np.lexsort(
        (
            batch,
            found.memory_bytes.ravel()[tied],
            found.update_seconds.ravel()[tied],
            gpus,
            changes[recipe],
            stages,
            kinds,
        )
    )
    return found.plan(int(tied[order[0]]))


def _complexity(layout: Layout) -> tuple[int, int, int]:
    """How hard a layout is to run: kinds of model parallelism, ZeRO stage, GPUs."""
    kinds = sum(degree > 1 for degree in (layout.tensor, layout.pipeline, layout.context, layout.expert))
    return kinds, layout.strategy.stage, layout.gpus


def pareto(found: Candidates, against: Objective) -> list[Plan]:
    """List the plans that no other beats in both time and headroom, or time and cost, fastest first."""
    flat = np.flatnonzero(found.feasible)
    seconds = found.update_seconds.ravel()[flat]
    other = (found.dollars_per_update() if against is Objective.COST else found.memory_bytes).ravel()[flat]
    order = np.lexsort((other, seconds))
    sorted_other = other[order]
    before = np.minimum.accumulate(np.concatenate(([np.inf], sorted_other[:-1])))
    return [found.plan(int(flat[index])) for index in order[sorted_other < before]]
