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
from calc.replay.tape import Phase
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


VIT = {"model": "vit-huge-patch14", "gpu": "a100-pcie-40gb", "gpus": 8, "global_batch": 256}


@pytest.mark.parametrize("given", [{**GPT2, "gpus": 4}, LLAMA, VIT], ids=["gpt2", "llama", "vit"])
def test_bytes_agree_with_the_replay_of_the_same_layout(given: dict[str, Any]) -> None:
    scenario = parse(given)
    machine = answer.machine_of(scenario, answer.price_of(scenario))
    found = answer.candidates_of(scenario, machine, {given["global_batch"]: 1})
    known = np.flatnonzero((found.memory_bytes < 2 * machine.limit_bytes) & found.exact)
    errors, unfilled, single = [], 0, 0
    for index in np.random.default_rng(0).choice(known, 150, replace=False):
        plan = found.plan(int(index))
        unfilled += plan.accumulation_steps < plan.layout.pipeline
        single += plan.accumulation_steps == 1
        divided = parse(answer.scenario_of(scenario, plan))
        peak = step_memory(divided, gradients_kept=plan.accumulation_steps > 1).requested_peak(plan.micro_batch)
        errors.append(abs(plan.memory_bytes / peak - 1))
    assert unfilled > 5
    assert single > 5
    assert np.median(errors) < 0.001
    assert max(errors) < 0.1


@pytest.mark.parametrize(
    "given",
    [
        {"model": "vgg16", "gpu": "rtx-3060-12gb", "global_batch": 221},
        {"model": "resnet101", "gpu": "rtx-5050-8gb", "global_batch": 3},
        # The host's work of an update, which accumulation does not repeat, is much of this one.
        {"model": "t5-base", "gpu": "v100-pcie-16gb", "global_batch": 16, "optimizer": "adafactor"},
        # The share of a fused loss in the slowest stage is not that of another.
        {"model": "pythia-70m", "gpu": "h100-sxm-80gb", "gpus": 4, "global_batch": 60},
        {**GPT2, "gpus": 4, "zero_grad": "keep"},
        # A bridge joins two of these cards, and PCIe four.
        {**VIT, "gpus": 4},
    ],
    ids=["vgg16", "resnet101", "t5", "pythia", "gpt2-keep", "vit"],
)
def test_seconds_are_those_of_the_scenario_that_runs_the_plan(given: dict[str, Any]) -> None:
    scenario = parse(given)
    found = answer.candidates_of(scenario, answer.machine_of(scenario, None), {given["global_batch"]: 1})
    feasible = np.flatnonzero(found.feasible)
    for index in np.random.default_rng(0).choice(feasible, min(20, feasible.size), replace=False):
        plan = found.plan(int(index))
        result = evaluation.evaluate(answer.scenario_of(scenario, plan))
        if plan.micro_batch <= result["max_micro_batch"]:
            assert plan.update_seconds == pytest.approx(result["step_seconds"], rel=0.02)


@pytest.mark.parametrize(
    "given",
    [
        {"model": "vgg16", "gpu": "rtx-3060-12gb", "global_batch": 221},
        {"model": "mnasnet1_3", "gpu": "l40s-48gb", "gpus": 2, "global_batch": 64},
    ],
    ids=["vgg16", "mnasnet"],
)
def test_the_scenario_itself_is_no_faster_than_the_plan(given: dict[str, Any]) -> None:
    # One pass, which keeps no gradients from the one before: they need not fit beside the activations.
    own = evaluation.evaluate(given)
    assert own["fits"]
    assert own["plan"]["exact"]["accumulation_steps"] == 1
    assert planner.plan(given)["best"]["update_seconds"] <= 1.05 * own["step_seconds"]


def test_a_pipeline_holds_as_many_micro_batches_as_there_are_but_no_more_than_stages() -> None:
    def forward_bytes(global_batch: int, **given: Any) -> int:
        split = {"gpus": 4, "parallelism": {"pipeline": 4}, "precision": "bf16"}
        scenario = parse({**VIT, **split, "global_batch": global_batch, **given})
        return step_memory(scenario).instants(8)[Phase.FORWARD].alive_bytes

    # 1F1B: one, two and four of the four quarters of the layers (Narayanan et al. 2021, figure 4).
    one, two, four, eight = (forward_bytes(batch, micro_batch=8) for batch in (8, 16, 32, 64))
    assert two / one == pytest.approx(2, rel=0.03)
    assert four / one == pytest.approx(4, rel=0.03)
    assert eight == four
    # Without a micro-batch the number is open: as many as there are stages.
    assert forward_bytes(8) == four


def test_a_larger_micro_batch_of_the_same_batch_never_needs_less() -> None:
    for loss in ("standard", "fused"):
        given = {**LLAMA, "gpus": 4, "parallelism": {"pipeline": 4}, "global_batch": 10, "loss": loss}
        peaks = [step_memory(parse({**given, "micro_batch": size})).requested_peak(size) for size in range(1, 11)]
        assert peaks == sorted(peaks)


def test_what_does_not_fit_is_answered_with_the_smaller_micro_batches_that_do() -> None:
    given = {**LLAMA, "gpus": 4, "parallelism": {"pipeline": 4}, "global_batch": 256}
    result = evaluation.evaluate({**given, "micro_batch": 128})
    assert not result["fits"]
    assert result["max_micro_batch"] == evaluation.evaluate(given)["max_micro_batch"]


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


def test_a_batch_that_all_gpus_cannot_share_evenly_is_made_on_as_many_as_can() -> None:
    # 24 replicas do not divide 512, nor do their halves: 16 do, on two nodes of eight.
    given = {"model": "gpt2", "gpu": "a100-sxm-80gb", "gpus": 24, "global_batch": 512, "loss": "fused"}
    found = planner.plan(given)
    sixteen = evaluation.evaluate({**given, "gpus": 16, "nodes": 2, "micro_batch": 32})
    assert sixteen["scaling"]["layout"]["data"] * 32 == 512
    assert found["best"]["update_seconds"] <= 1.05 * sixteen["step_seconds"]
    assert found["scenario"]["gpus"] == 16
    assert found["scenario"]["nodes"] == 2
    assert evaluation.evaluate(found["scenario"])["step_seconds"] == pytest.approx(
        found["best"]["update_seconds"], rel=0.02
    )


LONG = {**LLAMA, "tokens": 128_000 * 2048}


def test_a_deadline_asks_for_the_cheapest_within_it_and_a_budget_for_the_fastest() -> None:
    free = planner.plan(LONG)
    hours = free["best"]["run_seconds"] / 3600
    assert free["best"]["updates"] == 1000
    met = planner.plan({**LONG, "deadline_hours": 4 * hours})
    assert met["objective"] == "cost"
    assert met["goal_met"] is True
    assert met["best"]["run_seconds"] <= 4 * free["best"]["run_seconds"]
    assert met["best"]["dollars_per_update"] <= free["best"]["dollars_per_update"]
    assert "The cheapest plan that meets the deadline: " in met["text"]
    budget = 1.05 * met["best"]["run_dollars"]
    spent = planner.plan({**LONG, "budget_dollars": budget})
    assert spent["objective"] == "time"
    assert spent["best"]["run_dollars"] <= budget
    assert "The fastest plan that keeps to the budget: " in spent["text"]


def test_a_deadline_that_nothing_meets_is_missed_by_so_much() -> None:
    hours = planner.plan(LONG)["best"]["run_seconds"] / 3600
    missed = planner.plan({**LONG, "deadline_hours": hours / 2})
    assert missed["goal_met"] is False
    assert missed["best"]["run_seconds"] / 3600 == pytest.approx(hours, rel=0.03)
    assert "No plan on these GPUs meets the deadline. The fastest misses the deadline of " in missed["text"]
    dear = planner.plan({**LONG, "budget_dollars": 0.01})
    assert dear["goal_met"] is False
    assert dear["objective"] == "cost"
    assert "over the budget of $0.01" in dear["text"]


def test_what_is_as_good_and_simpler_is_not_called_the_cheapest() -> None:
    given = {"model": "mixtral-8x7b", "gpu": "h100-sxm-80gb", "gpus": 64, "global_batch": 256, "tokens": 1e11}
    found = planner.plan({**given, "objective": "cost"})
    least = min(plan["run_dollars"] for plan in found["fronts"]["cost"])
    note = found["notes"][0]
    assert least < found["best"]["run_dollars"] <= 1.05 * least
    assert "within 5 % of the cheapest this is the simplest" in note
    assert "this is the cheapest" not in note
    times = float(note.partition(" costs ")[2].partition(" times ")[0])
    assert times == pytest.approx(least / found["best"]["run_dollars"], abs=0.01)


def test_without_a_price_gpu_hours_are_counted() -> None:
    given = {"model": "gpt2", "gpu": "rtx-2060-6gb", "precision": "amp-fp16", "gpus": 2, "global_batch": 64}
    found = planner.plan({**given, "tokens": 1e9, "deadline_hours": 1e4})
    best = found["best"]
    assert found["dollars_per_gpu_hour"] is found["price_source"] is None
    assert best["run_dollars"] is best["dollars_per_update"] is None
    layout = best["layout"]
    gpus = layout["data"] * layout["tensor"] * layout["pipeline"] * layout["context"]
    assert best["run_gpu_hours"] == pytest.approx(best["run_seconds"] * gpus / 3600)
    assert best["gpu_hours_per_update"] * best["updates"] == pytest.approx(best["run_gpu_hours"])
    assert "fewest GPU-hours: no list that was read has this card's price" in found["notes"][0]
    assert "$" not in found["text"] + found["notes"][0]
    hours = [plan["run_gpu_hours"] for plan in found["fronts"]["cost"]]
    assert hours == sorted(hours, reverse=True)


def test_how_far_the_scenario_itself_is_from_its_goal_is_said_first() -> None:
    run = evaluation.evaluate(LONG)["run"]
    given = {**LONG, "deadline_hours": run["seconds"] / 3600 - 1 / 60, "budget_dollars": run["dollars"] + 1000}
    result = evaluation.evaluate(given)
    assert result["run"]["goal_met"] is False
    assert "misses the deadline of " in result["run"]["goal"]
    assert " by 60 s and leaves $1,000 of the budget" in result["run"]["goal"]
    assert planner.plan(given)["text"].startswith(result["run"]["goal"])


def test_an_open_batch_weighs_data_against_steps() -> None:
    given = {**LONG, "tokens": 2e10}
    del given["global_batch"]
    found = planner.plan(given)
    best = found["best"]
    scenario = parse(given)
    critical = evaluation.evaluate(given)["convergence"]["critical_batch"]
    middle = (critical["low"] * critical["high"]) ** 0.5 / 2048
    samples = 2e10 / 2048
    assert best["updates"] == pytest.approx(
        samples * (1 + best["global_batch"] / middle) / best["global_batch"], rel=1e-3
    )
    # One power of two more or less, planned alone, takes at least as long to the same loss.
    for batch in (best["global_batch"] // 2, best["global_batch"] * 2):
        alone = planner.plan({**given, "global_batch": batch})["best"]
        seconds = alone["update_seconds"] * samples * (1 + batch / middle) / batch
        assert seconds >= 0.98 * best["run_seconds"]
    assert found["scenario"]["global_batch"] == best["global_batch"]
    assert "The batch was open" in found["notes"][1]
    assert scenario.global_batch is None


@pytest.mark.parametrize(
    "given",
    [
        {"model": "gpt2", "gpu": "a100-sxm-80gb", "gpus": 24, "tokens": 2.5e9},
        {"model": "resnet50", "gpu": "a100-sxm-80gb", "gpus": 3, "epochs": 90, "dataset": "imagenet"},
    ],
    ids=["gpt2", "resnet50"],
)
def test_an_open_batch_is_tried_on_all_gpus_whatever_their_number(given: dict[str, Any]) -> None:
    own = evaluation.evaluate(given)
    critical = own["convergence"]["critical_batch"]
    middle = (critical["low"] * critical["high"]) ** 0.5 / (1024 if critical["unit"] == "tokens" else 1)
    # As it is set, at the data that its batch needs to the loss of a small one.
    own_seconds = own["run"]["seconds"] * (1 + own["micro_batch"] * given["gpus"] / middle)
    found = planner.plan({**given, "objective": "time"})
    assert found["best"]["run_seconds"] <= 1.05 * own_seconds
    # Three divides the GPUs, and with them every batch that all of them make.
    assert found["scenario"]["gpus"] == given["gpus"]
    assert found["best"]["global_batch"] % 3 == 0
    assert f"and the scenario's own {own['micro_batch'] * given['gpus']:,}," in found["notes"][1]
    assert "powers of two and 3 times such up to" in found["notes"][1]
    met = planner.plan({**given, "deadline_hours": own_seconds / 3600})
    assert met["goal_met"] is True


def test_an_open_batch_says_that_its_time_is_to_one_loss() -> None:
    given = {"model": "bart-base", "gpu": "a100-sxm-80gb", "gpus": 2, "nodes": 2, "epochs": 3, "dataset": "squad"}
    found = planner.plan({**given, "precision": "bf16-master", "optimizer": "adafactor"})
    run = evaluation.evaluate(found["scenario"])["run"]
    # The scenario that runs the plan counts the epochs as given, the plan what its batch needs to one loss.
    times = found["best"]["run_seconds"] / run["seconds"]
    assert times > 1.1
    said, _, rest = found["text"].partition(" to the same loss as a small batch would reach (")
    assert "The run takes " in said
    assert float(rest.partition(" times the data) and costs $")[0]) == pytest.approx(times, rel=0.02)
    assert "same loss" not in planner.plan({**given, "global_batch": 64})["text"]
    # The scenario as it is set makes its deadline with the epochs as given, and no plan with those that are needed.
    own = evaluation.evaluate(given)["run"]["seconds"]
    tight = planner.plan({**given, "deadline_hours": 1.01 * own / 3600})
    assert "As it is set, the run meets the deadline" in tight["text"]
    assert (
        "No plan on these GPUs meets the deadline with the data that its batch needs to the same loss." in tight["text"]
    )


def test_batches_to_try_where_none_is_asked_for() -> None:
    assert answer.open_batches(8, 2.0) == [1, 2, 4, 8]
    assert answer.open_batches(24, 6.0) == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert answer.open_batches(97, 0.1) == [1]


def test_a_batch_of_millions_is_planned_by_its_divisors() -> None:
    found = planner.plan({**GPT2, "global_batch": 100_000_000})
    assert found["candidates"] < 10_000
    assert found["best"]["micro_batch"] * found["best"]["accumulation_steps"] == 100_000_000


def test_readings_of_ones_own_count() -> None:
    readings = [{"batch": 4, "reading": "card", "gib": 12.0}]
    given = {**GPT2, "calibration": readings}
    found, usual = planner.plan(given), planner.plan(GPT2)
    overhead = (
        evaluation.evaluate(given)["calibration"]["overhead_bytes"] - evaluation.evaluate(GPT2)["gpu"]["overhead_bytes"]
    )
    assert overhead > 2**30
    widest = {
        name: max(plan["headroom_bytes"] for plan in answered["fronts"]["headroom"])
        for name, answered in (("read", found), ("usual", usual))
    }
    assert widest["usual"] - widest["read"] == pytest.approx(overhead, rel=1e-6)


def test_what_does_not_fit_the_card_may_wait_on_the_host() -> None:
    given = {"model": "llama-3.2-3b", "gpu": "rtx-4090-24gb", "global_batch": 8, "precision": "bf16-master"}
    found = planner.plan(given)
    assert found["best"]["layout"]["cpu_offload"] != "none"
    assert "host's memory" in found["text"]
    result = evaluation.evaluate(found["scenario"])
    assert result["max_micro_batch"] >= found["best"]["micro_batch"]
    update = found["best"]["update_seconds"]
    assert update == pytest.approx(result["step_seconds"], rel=0.02)


def test_a_sequence_too_long_for_one_card_is_divided() -> None:
    given = {**LLAMA, "sequence_length": 131_072, "global_batch": 1}
    found = planner.plan(given)
    assert found["best"]["layout"]["context"] > 1
    result = evaluation.evaluate(found["scenario"])
    assert found["best"]["update_seconds"] == pytest.approx(result["step_seconds"], rel=0.02)


def test_fronts_go_from_fast_to_roomy_and_cheap() -> None:
    found = planner.plan(LLAMA)
    for name, key, sign in (("headroom", "headroom_bytes", 1), ("cost", "dollars_per_update", -1)):
        front = found["fronts"][name]
        assert [point["update_seconds"] for point in front] == sorted(point["update_seconds"] for point in front)
        others = [sign * point[key] for point in front]
        assert others == sorted(others)


def test_what_is_allowed_is_what_is_tried() -> None:
    found = planner.plan({**GPT2, "allow": {"optimizer": ["adamw", "adamw-8bit"], "checkpointing": ["full"]}})
    assert found["best"]["settings"]["checkpointing"] == "full"
    assert "adamw-8bit" in {plan["settings"]["optimizer"] for plan in found["fronts"]["headroom"]}


def test_the_same_question_is_planned_once_and_no_answer_changes_another() -> None:
    first = planner.plan(GPT2)
    first["best"] = None
    assert planner.plan(GPT2)["best"]


def test_nothing_fits_is_said() -> None:
    found = planner.plan({"model": "llama-3.1-70b", "gpu": "t4-16gb", "global_batch": 8})
    assert found["best"] is None
    assert found["text"].startswith("Nothing")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"model": "gpt2"}, "global_batch"),
        ({**GPT2, "deadline_hours": 3}, "tokens"),
        ({"model": "resnet50", "global_batch": 64, "budget_dollars": 3}, "epochs"),
        ({**GPT2, "objective": "beauty"}, "objective"),
        ({**GPT2, "deadline_hours": 0}, "deadline_hours"),
        ({**GPT2, "allow": ["bf16"]}, "allow"),
        ({**GPT2, "allow": {"gpus": [1]}}, "allow"),
        ({**GPT2, "allow": {"precision": ["fp7"]}}, "allow.precision"),
        ({**GPT2, "allow": {"precision": []}}, "allow.precision"),
        ({**GPT2, "gpu": "v100-sxm-16gb", "precision": "fp32", "allow": {"precision": ["bf16"]}}, "allow.precision"),
        ({"model": "resnet50", "allow": {"loss": ["fused"]}}, "allow.loss"),
        ({**GPT2, "gpu": {"memory_gib": 24}}, "gpu"),
        (
            {**GPT2, "gpu": "rtx-2060-6gb", "precision": "fp16", "tokens": 1e9, "budget_dollars": 3},
            "price_per_gpu_hour",
        ),
        ({"model": "wav2vec2-base", "epochs": 3, "dataset_samples": 1000}, "global_batch"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        planner.plan(given)
    assert caught.value.field == field
    assert len(caught.value.message.split()) > 4
