"""The planner on real scenarios: its bytes against the replay, its choice against trying everything."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from calc import evaluation, planner, throughput
from calc.errors import ScenarioError
from calc.memory import step_memory
from calc.optimizer_step import OptimizerStep
from calc.planner import answer
from calc.scenario import parse

GPT2 = {"model": "gpt2", "gpu": "rtx-4090-24gb", "global_batch": 64, "sequence_length": 1024}
LLAMA = {
    "model": "llama-3.2-1b",
    "gpu": "h100-sxm-80gb",
    "gpus": 8,
    "global_batch": 128,
    "sequence_length": 2048,
    "precision": "bf16",
}


@pytest.mark.parametrize("given", [{**GPT2, "gpus": 4}, LLAMA], ids=["gpt2", "llama"])
def test_bytes_agree_with_the_replay_of_the_same_layout(given: dict[str, Any]) -> None:
    scenario = parse(given)
    machine = answer.machine_of(scenario, answer.price_of(scenario, None))
    found = answer.candidates_of(scenario, machine, given["global_batch"], None)
    known = np.flatnonzero(found.memory_bytes < 2 * machine.limit_bytes)
    errors = []
    for index in np.random.default_rng(0).choice(known, 150, replace=False):
        plan = found.plan(int(index))
        if plan.accumulation_steps < plan.layout.pipeline:
            continue  # the replay does not know that so few passes fill no pipeline
        divided = parse(answer.scenario_of(scenario, plan))
        peak = step_memory(divided, gradients_kept=True).requested_peak(plan.micro_batch)
        errors.append(abs(plan.memory_bytes / peak - 1))
    assert len(errors) > 50
    assert np.median(errors) < 0.001
    assert max(errors) < 0.1


def test_the_choice_is_the_fastest_of_everything_tried_one_by_one() -> None:
    found = planner.plan(GPT2)
    seconds = {}
    for checkpointing, loss in itertools.product(("none", "full"), ("standard", "fused")):
        given = {**GPT2, "checkpointing": checkpointing, "loss": loss}
        scenario = parse(given)
        step = step_memory(scenario, gradients_kept=True).step
        card = scenario.gpu.catalog
        assert card is not None
        machine = throughput.Machine.of(card)
        work = throughput.Work.of(
            step.profile, OptimizerStep.of(scenario.optimizer, step.parameters, scenario.precision)
        )
        for batch in (1, 2, 4, 8, 16, 32, 64):
            if batch > evaluation.evaluate({**given, "micro_batch": batch})["max_micro_batch"]:
                break
            one = work.time(batch, machine, str(scenario.precision))
            passes = one.seconds - one.optimizer_seconds
            seconds[checkpointing, loss, batch] = 64 // batch * passes + one.optimizer_seconds
    best = found["best"]
    key = (best["settings"]["checkpointing"], best["settings"]["loss"], best["micro_batch"])
    assert best["update_seconds"] == pytest.approx(seconds[key], rel=0.02)
    assert seconds[key] <= 1.03 * min(seconds.values())


def test_the_plan_is_a_scenario_that_fits() -> None:
    found = planner.plan(LLAMA)
    result = evaluation.evaluate(found["scenario"])
    best = found["best"]
    assert best["micro_batch"] <= result["max_micro_batch"]
    assert best["micro_batch"] * best["accumulation_steps"] * best["layout"]["data"] == 128
    assert best["headroom_bytes"] > 0
    assert best["reserved_bytes"] == result["memory"]["peak_reserved_bytes"]
    assert "samples at a time" in found["text"]


def test_a_deadline_asks_for_the_cheapest_within_it_and_a_budget_for_the_fastest() -> None:
    free = planner.plan(LLAMA, samples=128_000)
    hours = free["best"]["update_seconds"] * 1000 / 3600
    met = planner.plan(LLAMA, samples=128_000, deadline_hours=4 * hours)
    assert met["objective"] == "cost"
    assert met["best"]["update_seconds"] <= 4 * free["best"]["update_seconds"]
    assert met["best"]["dollars_per_update"] <= free["best"]["dollars_per_update"]
    assert planner.plan(LLAMA, samples=128_000, deadline_hours=hours / 100)["best"] is None
    budget = 1000 * met["best"]["dollars_per_update"] * 1.05
    spent = planner.plan(LLAMA, samples=128_000, budget_dollars=budget)
    assert spent["objective"] == "time"
    assert spent["best"]["dollars_per_update"] * 1000 <= budget


def test_fronts_go_from_fast_to_roomy_and_cheap() -> None:
    found = planner.plan(LLAMA)
    for name, key, sign in (("headroom", "headroom_bytes", 1), ("cost", "dollars_per_update", -1)):
        front = found["fronts"][name]
        assert [point["update_seconds"] for point in front] == sorted(point["update_seconds"] for point in front)
        others = [sign * point[key] for point in front]
        assert others == sorted(others)


def test_what_is_allowed_is_what_is_tried() -> None:
    found = planner.plan(GPT2, allow={"optimizer": ["adamw", "adamw-8bit"], "checkpointing": ["full"]})
    assert found["best"]["settings"]["checkpointing"] == "full"


def test_nothing_fits_is_said() -> None:
    found = planner.plan({"model": "llama-3.1-8b", "gpu": "rtx-4090-24gb", "global_batch": 8})
    assert found["best"] is None
    assert found["text"].startswith("Nothing")


@pytest.mark.parametrize(
    ("given", "options", "field"),
    [
        ({"model": "gpt2"}, {}, "global_batch"),
        (GPT2, {"deadline_hours": 3}, "dataset"),
        (GPT2, {"objective": "beauty"}, "objective"),
        (GPT2, {"allow": {"precision": ["fp7"]}}, "allow.precision"),
        ({**GPT2, "gpu": "v100-sxm-16gb", "precision": "fp32"}, {"allow": {"precision": ["bf16"]}}, "allow.precision"),
        ({**GPT2, "gpu": {"memory_gib": 24}}, {}, "gpu"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], options: dict[str, Any], field: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        planner.plan(given, **options)
    assert caught.value.field == field
