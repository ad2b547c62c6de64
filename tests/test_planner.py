"""The planner's arrays against the scalar functions, candidate by candidate, and its speed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import TYPE_CHECKING

import pytest

from calc import collectives, scaling
from calc.accumulation import divisors
from calc.errors import ScenarioError
from calc.planner import search as planner
from calc.planner.search import COMPONENTS, PHASES, WITHOUT_GRADIENTS, Held, Machine, Plan, Recipe, Timed
from calc.scaling import Layout, ModelShape, Offload, Strategy, Workload
from calc.scaling.memory import Division, division, pipeline_activation_share
from calc.scenario import Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 2**30
FABRIC = collectives.read_fabric("nvlink-4+infiniband-ndr-x8")


def recipe(checkpointing: str = "none", precision: str = "bf16", changes: int = 0, largest: int = 512) -> Recipe:
    """A made-up model of 2 GiB weights, whose peak moves from the step to the backward pass as the batch grows."""
    factor = 4 if checkpointing == "none" else 1
    state = {"bf16": 1, "amp-bf16": 2}[precision]
    samples = (1, 4, 64, largest)
    varying = {"activations": 0.125 * factor, "logits_and_loss": 0.25, "temporaries": 0.01}

    def held_bytes(*, accumulating: bool) -> dict[str, dict[str, list[float]]]:
        found: dict[str, dict[str, list[float]]] = {}
        for phase in PHASES:
            held = {
                "weights": 2 * state * GIB,
                "gradients": 2 * state * GIB * (accumulating or phase != "forward"),
                "optimizer_state": 4 * state * GIB,
                "casts": GIB * (state - 1),
                "workspace": GIB // 32,
            }
            found[phase] = {name: [float(value)] * 4 for name, value in held.items()}
            for name, share in varying.items():
                stepping = 2.0 * GIB if name == "temporaries" else 0.0
                found[phase][name] = [stepping if phase == "step" else share * batch * GIB for batch in samples]
        if not accumulating:
            # Backward's peak with the activations and an eighth of the gradients.
            rest = {name: [value / 8 for value in found["backward"][name]] for name in ("gradients", "temporaries")}
            found[WITHOUT_GRADIENTS] = {**found["backward"], **rest}
            found["backward"] |= {"activations": [0.7 * value for value in found["backward"]["activations"]]}
        return found

    recomputed = 2 if checkpointing == "none" else 3
    seconds = [(1 + recomputed) * (0.01 + 0.002 * batch) for batch in samples]
    return Recipe(
        settings={"checkpointing": checkpointing, "precision": precision},
        changes=changes,
        accumulating=Held(samples, held_bytes(accumulating=True)),
        single=Held(samples, held_bytes(accumulating=False)),
        timed=Timed(samples, [0.9 * value + 0.02 for value in seconds], seconds, [0.03] * 4),
        forward_share=1 / (1 + recomputed),
        work=Workload(
            forward_seconds=0,
            backward_seconds=0,
            optimizer_seconds=0.01 * state,
            accumulation_steps=1,
            gradient_bytes=2 * state * GIB,
            gathered_bytes=2 * GIB,
            layers=24,
            layer_bytes=2**24,
            key_value_bytes=2**22,
            head_share=0.1 * state,
            recomputes=checkpointing != "none",
        ),
        shape=ModelShape(gathered_bytes=2 * GIB, gradient_bytes=2 * state * GIB, block_share=1 / 24),
        host_update_seconds=1.5,
    )


RECIPES = [
    recipe(checkpointing, precision, changes=(checkpointing != "none") + (precision != "bf16"))
    for checkpointing, precision in itertools.product(("none", "full"), ("bf16", "amp-bf16"))
]
LAYOUTS = planner.layouts((1, 2, 4, 8, 16), largest_tensor=4, layers=24, heads=16, sequence_length=8192)
MACHINE = Machine(
    gpus=16,
    gpus_per_node=8,
    joined=lambda _gpus, _nodes: FABRIC,
    limit_bytes=40 * GIB,
    host_bytes_per_second=20e9,
    dollars_per_gpu_hour=2.0,
)


def interpolated(sampled: Held | Timed, values: Sequence[float], batch: int) -> float:
    points = list(zip(sampled.micro_batches, values, strict=True))
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= batch <= x1:
            return y0 + (y1 - y0) * (batch - x0) / (x1 - x0)
    raise AssertionError(batch)


def divided(parts: dict[str, int], shares: Division, layout: Layout, phase: str, steps: int) -> int:
    """Bytes of one GPU, part by part; with a pipeline those of its fullest stage."""
    whole = shares.activations * parts["activations"]
    logits = shares.logits_and_loss * parts["logits_and_loss"]
    first_stage = whole * pipeline_activation_share(layout.pipeline, steps)
    last_stage = whole / layout.pipeline
    stage = [last_stage, logits]
    if layout.pipeline > 1 and first_stage >= last_stage + logits:
        stage = [first_stage]
    stepping = phase == "step"
    held = [
        shares.weights * parts["weights"],
        shares.gradients * parts["gradients"],
        shares.optimizer_state * parts["optimizer_state"],
        shares.casts * parts["casts"],
        (shares.step_temporaries if stepping else shares.pass_temporaries) * parts["temporaries"],
        parts["workspace"] + shares.bucket_bytes + (0 if stepping else shares.gathered_bytes),
        *stage,
    ]
    return sum(math.ceil(part - 1e-6) for part in held)


def brute_force(
    recipes: list[Recipe], layouts: list[Layout], machine: Machine, global_batch: int, updates: float = 1
) -> list[Plan]:
    """Every feasible plan, one at a time, by the scalar functions alone."""
    plans = []
    for chosen, layout, batch in itertools.product(recipes, layouts, range(1, global_batch + 1)):
        if global_batch % (layout.data * batch):
            continue
        steps = global_batch // (layout.data * batch)
        memory = 0
        held = chosen.single if steps == 1 else chosen.accumulating
        for phase, bytes_ in held.component_bytes.items():
            parts = {name: round(interpolated(held, bytes_[name], batch)) for name in COMPONENTS}
            memory = max(memory, divided(parts, division(layout, chosen.shape), layout, phase, steps))
        if memory > machine.limit_bytes:
            continue
        timed = chosen.timed
        passing = interpolated(timed, timed.single, batch)
        if steps > 1:
            passing = interpolated(timed, timed.further, batch) + interpolated(timed, timed.once, batch) / steps
        work = dataclasses.replace(
            planner.at_micro_batch(chosen.work, batch),
            forward_seconds=chosen.forward_share * passing,
            backward_seconds=(1 - chosen.forward_share) * passing,
            accumulation_steps=steps,
        )
        nodes = -(-layout.gpus // machine.gpus_per_node)
        seconds = scaling.step_parts(
            work,
            layout,
            machine.fabric,
            nodes,
            host_bytes_per_second=machine.host_bytes_per_second,
            whole_update_seconds=chosen.host_update_seconds,
        ).seconds
        plans.append(
            Plan(
                settings=chosen.settings,
                changes=chosen.changes,
                layout=layout,
                global_batch=global_batch,
                micro_batch=batch,
                accumulation_steps=steps,
                memory_bytes=int(memory),
                headroom_bytes=int(machine.limit_bytes - memory),
                update_seconds=seconds,
                dollars_per_update=seconds * layout.gpus * machine.dollars_per_gpu_hour / 3600,
                updates=updates,
            )
        )
    return plans


def same(found: Plan, expected: Plan) -> bool:
    return (
        found.settings == expected.settings
        and found.layout == expected.layout
        and found.micro_batch == expected.micro_batch
        and found.memory_bytes == pytest.approx(expected.memory_bytes, abs=8)
        and found.update_seconds == pytest.approx(expected.update_seconds, rel=1e-9)
    )


@pytest.mark.parametrize("global_batch", [1, 48, 60])
def test_every_candidate_equals_the_scalar_functions(global_batch: int) -> None:
    found = planner.search(RECIPES, LAYOUTS, MACHINE, {global_batch: 1})
    expected = brute_force(RECIPES, LAYOUTS, MACHINE, global_batch)
    flat = [int(index) for index in found.feasible.ravel().nonzero()[0]]
    assert len(flat) == len(expected)
    assert all(same(found.plan(index), plan) for index, plan in zip(flat, expected, strict=True))
    for offload in Offload:
        assert any(plan.layout.cpu_offload is offload for plan in expected)
    assert any(plan.layout.context > 1 for plan in expected)


def test_the_best_is_the_simplest_within_five_percent() -> None:
    found = planner.search(RECIPES, LAYOUTS, MACHINE, {48: 1})
    plan = planner.best(found)
    assert plan is not None
    everything = brute_force(RECIPES, LAYOUTS, MACHINE, 48)
    fastest = min(candidate.update_seconds for candidate in everything)
    tied = [candidate for candidate in everything if candidate.update_seconds <= 1.05 * fastest]
    simplest = min(
        tied,
        key=lambda p: (
            (p.layout.tensor > 1)
            + (p.layout.pipeline > 1)
            + (p.layout.context > 1)
            + (p.layout.cpu_offload is not Offload.NONE),
            p.layout.strategy.stage,
            p.changes,
            p.layout.gpus,
            p.update_seconds,
            p.memory_bytes,
            p.micro_batch,
        ),
    )
    assert same(plan, simplest)


@pytest.mark.parametrize("against", [Objective.HEADROOM, Objective.COST])
def test_the_front_is_what_no_other_plan_beats(against: Objective) -> None:
    found = planner.search(RECIPES, LAYOUTS, MACHINE, {48: 1})
    front = planner.pareto(found, against)

    def other(plan: Plan) -> float:
        return plan.dollars_per_update if against is Objective.COST else plan.memory_bytes

    everything = brute_force(RECIPES, LAYOUTS, MACHINE, 48)
    for plan in front:
        beaten = [
            rival
            for rival in everything
            if rival.update_seconds < plan.update_seconds * (1 - 1e-9) and other(rival) < other(plan) * (1 - 1e-9)
        ]
        assert not beaten
    assert [plan.update_seconds for plan in front] == sorted(plan.update_seconds for plan in front)
    cheapest = min(other(plan) for plan in everything)
    assert other(front[-1]) == pytest.approx(cheapest)


def test_nothing_fits_is_none() -> None:
    found = planner.search(RECIPES, [Layout()], dataclasses.replace(MACHINE, limit_bytes=GIB), {8: 1})
    assert planner.best(found) is None
    assert planner.pareto(found, Objective.COST) == []


def test_beyond_the_samples_nothing_is_promised() -> None:
    found = planner.search([recipe(largest=65)], [Layout()], dataclasses.replace(MACHINE, limit_bytes=2**60), {130: 1})
    plan = planner.best(found)
    assert plan is not None
    assert plan.micro_batch == 65


def test_layouts_multiply_to_the_gpus() -> None:
    found = planner.layouts(planner.gpu_counts(16, 8), largest_tensor=8, layers=24, heads=12, experts=8)
    assert {layout.gpus for layout in found} == {1, 2, 4, 8, 16}
    assert max(layout.tensor for layout in found) == 4
    assert max(layout.pipeline for layout in found) == 8
    assert max(layout.expert for layout in found) == 8
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("gpus", "per_node", "batches", "counts"),
    [
        (16, 8, (512,), [1, 2, 4, 8, 16]),
        # Halves of 24 keep its factor of three; 16 make 512.
        (24, 8, (512,), [1, 2, 3, 4, 6, 8, 12, 16, 24]),
        # 25 divide 500 and are one too many; 20 go on four nodes of five as there are four.
        (24, 6, (500,), [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24]),
        # Of three nodes of three GPUs, eight would need four.
        (9, 3, (), [1, 2, 4, 9]),
        (7, 7, (1,), [1, 2, 4, 7]),
    ],
)
def test_numbers_of_gpus_that_nodes_hold_and_batches_are_made_by(
    gpus: int, per_node: int, batches: tuple[int, ...], counts: list[int]
) -> None:
    assert planner.gpu_counts(gpus, per_node, batches) == counts


def test_gpus_go_on_as_few_nodes_as_hold_them_evenly() -> None:
    by_hand = {(16, 8): 2, (24, 8): 3, (20, 8): 4, (6, 8): 1, (10, 4): 5, (7, 4): 7}
    assert {key: planner.nodes_for(*key) for key in by_hand} == by_hand


@pytest.mark.parametrize(("batch", "recipes"), [(0, RECIPES), (8, [])])
def test_nonsense_is_refused(batch: int, recipes: list[Recipe]) -> None:
    with pytest.raises(ScenarioError):
        planner.search(recipes, LAYOUTS, MACHINE, {batch: 1})


def test_several_batches_are_judged_by_the_whole_run() -> None:
    updates = {16: 1000.0, 32: 600.0, 64: 400.0}
    found = planner.search(RECIPES, LAYOUTS, MACHINE, updates)
    everything = [
        plan for batch, count in updates.items() for plan in brute_force(RECIPES, LAYOUTS, MACHINE, batch, count)
    ]
    assert int(found.feasible.sum()) == len(everything)
    fastest, cheapest = planner.best(found), planner.best(found, Objective.COST)
    assert fastest is not None
    assert cheapest is not None
    assert fastest.run_seconds <= 1.02 * min(plan.update_seconds * plan.updates for plan in everything)
    assert cheapest.run_dollars <= 1.02 * min(plan.dollars_per_update * plan.updates for plan in everything)
    deadline = 1.5 * min(plan.run_seconds for plan in everything)
    budget = 1.5 * min(plan.run_dollars for plan in everything)
    met = planner.within(found, deadline, budget)
    kept = [plan for plan in everything if plan.run_seconds <= deadline and plan.run_dollars <= budget]
    assert int(met.feasible.sum()) == len(kept)


@pytest.mark.parametrize("number", [1, 2, 97, 720, 5040, 10**8])
def test_divisors(number: int) -> None:
    found = divisors(number)
    assert found == sorted(set(found))
    small = [candidate for candidate in range(1, min(number, 10**5) + 1) if number % candidate == 0]
    assert [divisor for divisor in found if divisor <= 10**5] == small


def scored(recipes: list[Recipe], batches: int) -> tuple[float, int]:
    """Seconds to search some batches of many divisors and to choose, and how many candidates that were."""
    updates = {720_720 * (place + 1): 1.0 for place in range(batches)}
    quickest, count = 1e9, 0
    for _ in range(3):
        started = time.perf_counter()
        found = planner.search(recipes, LAYOUTS, MACHINE, updates)
        planner.best(found)
        quickest, count = min(quickest, time.perf_counter() - started), found.memory_bytes.size
    return quickest, count


def test_time_grows_linearly_with_the_candidates() -> None:
    many = [recipe(changes=index) for index in range(12)]
    (few_seconds, few), (seconds, count) = scored(many, 1), scored(many, 4)
    assert count > 4 * few
    assert seconds / count < 3 * few_seconds / few


def test_strategies_are_all_tried() -> None:
    assert {layout.strategy for layout in LAYOUTS} == set(Strategy)
