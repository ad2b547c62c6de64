"""Several GPUs, convergence and the whole run in a scenario's result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.goal import Goal, hours_text
from calc.multi_gpu import interconnect_of
from calc.scenario import parse
from page import sections, sections_plan
from page.format import duration

LLAMA: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "gpu": "h100-sxm-80gb",
    "precision": "bf16",
    "sequence_length": 2048,
    "global_batch": 256,
}


def test_imagenet_in_ninety_epochs() -> None:
    given = {"model": "resnet50", "gpu": "a100-sxm-80gb", "dataset": "ImageNet", "epochs": 90, "global_batch": 256}
    result = evaluate({**given, "optimizer": "sgd-momentum", "known_batch": 256, "known_learning_rate": 0.1})
    assert result["run"]["updates"] == 450_411
    assert result["run"]["seconds"] == pytest.approx(450_411 * 256 / result["samples_per_second"])
    assert result["convergence"]["learning_rate"]["learning_rate"] == pytest.approx(0.1)
    assert result["convergence"]["critical_batch"]["high"] == 15_000
    assert result["scaling"] is None


def test_tokens_make_the_run_and_the_laws() -> None:
    result = evaluate({**LLAMA, "tokens": 1e10, "price_per_gpu_hour": 2.0})
    run = result["run"]
    assert run["updates"] == -(-(10**10) // (256 * 2048))
    assert run["dollars"] == pytest.approx(2 * run["gpu_hours"])
    assert result["convergence"]["critical_batch"]["unit"] == "tokens"
    assert result["convergence"]["critical_batch"]["batch"] == 256 * 2048


def test_eight_gpus_are_faster_than_one_and_less_than_eight_times() -> None:
    one = evaluate({**LLAMA, "micro_batch": 4, "global_batch": 32})
    eight = evaluate({**LLAMA, "micro_batch": 4, "global_batch": 256, "gpus": 8, "parallelism": {"strategy": "fsdp"}})
    ratio = eight["samples_per_second"] / one["samples_per_second"]
    assert 6.5 < ratio < 8
    scaling = eight["scaling"]
    assert scaling["step_seconds"] == eight["step_seconds"]
    by_strategy = {row["strategy"]: row["memory_bytes"] for row in scaling["by_strategy"]}
    assert by_strategy["fsdp"] < by_strategy["zero1"] < by_strategy["ddp"]
    assert eight["memory"]["peak_allocated_bytes"] < one["memory"]["peak_allocated_bytes"]


@pytest.mark.parametrize(
    "given",
    [
        # The largest micro-batch that fits makes none of these batches.
        {"model": "resnet50", "gpu": "v100-sxm-16gb", "gpus": 256, "global_batch": 8192, "optimizer": "lars"},
        {"model": "bert-base", "gpu": "rtx-4090-24gb", "sequence_length": 128, "global_batch": 32},
        {**LLAMA, "global_batch": 257},
    ],
)
def test_a_wanted_batch_takes_as_long_as_its_plan(given: dict[str, Any]) -> None:
    given = {**given, "dataset_samples": 1_000_000, "epochs": 1}
    result = evaluate(given)
    exact = result["plan"]["exact"]
    assert exact["micro_batch"] < result["micro_batch"]
    as_planned = evaluate({**given, "micro_batch": exact["micro_batch"]})
    for key in ("step_seconds", "samples_per_second", "run", "scaling", "time"):
        assert result[key] == as_planned[key]


def test_a_batch_that_its_replicas_do_not_divide_takes_as_long_as_the_nearest_that_they_do() -> None:
    given = {**LLAMA, "gpus": 8, "parallelism": {"strategy": "fsdp"}, "tokens": 1e9}
    between, below = (evaluate({**given, "global_batch": batch}) for batch in (1001, 1000))
    assert between["plan"]["exact"] is None
    assert between["step_seconds"] == below["step_seconds"]
    # The run, its rate and its verdict are of the batch that is made, as the exported files are.
    assert between["run"] == below["run"]
    assert between["convergence"]["updates"] == below["convergence"]["updates"]


@pytest.mark.parametrize(
    "given",
    [
        {"model": "llama-3.1-8b", "global_batch": 64, "tokens": 1e8, "deadline_hours": 100},
        {"model": "gpt2", "micro_batch": 64, "tokens": 1e9, "deadline_hours": 100, "budget_dollars": 50},
    ],
)
def test_what_does_not_fit_keeps_to_no_goal(given: dict[str, Any]) -> None:
    result = evaluate({**given, "gpu": "rtx-4090-24gb"})
    assert not result["fits"]
    assert result["run"]["goal_met"] is False
    assert "does not fit" in result["run"]["goal"]
    assert "does not fit" in result["run"]["notes"][0]
    assert "does not fit" in sections_plan.run(result)
    assert "$" not in sections_plan.run(result)
    assert sections.speed(result) == ""


def test_a_card_without_a_known_speed_has_no_times() -> None:
    result = evaluate({**LLAMA, "gpu": {"memory_gib": 80}, "gpus": 4, "tokens": 1e9})
    assert result["step_seconds"] is None
    assert result["scaling"] is None
    assert result["run"] is None
    assert result["convergence"]["verdict"]


def test_an_unlinked_card_refuses_company() -> None:
    with pytest.raises(ScenarioError) as caught:
        evaluate({"model": "gpt2", "gpu": "m3-max-64gb", "gpus": 2})
    assert caught.value.field == "gpus"


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"epochs": 3}, "dataset_samples"),
        ({"epochs": 3, "dataset": "my own"}, "dataset_samples"),
        ({"gradient_norms": {"small_batch": 8}}, "gradient_norms.small_batch_norm"),
        ({"gpus": 6, "parallelism": {"tensor": 4}}, "parallelism"),
        ({"gpus": 4, "interconnect": "carrier-pigeon"}, "interconnect"),
    ],
)
def test_what_is_wrong_is_named(extra: dict[str, Any], field: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        evaluate({**LLAMA, **extra})
    assert caught.value.field == field


def test_accumulation_makes_a_sample_cheaper_and_has_its_caveats() -> None:
    given = {"model": "resnet50", "gpu": "rtx-4090-24gb", "global_batch": 4096, "image_size": 224}
    found = evaluate(given)["accumulation"]
    assert found["accumulation_steps"] > 1
    assert found["sample_seconds"] < found["sample_seconds_single"]
    assert found["update_seconds"] == pytest.approx(4096 * found["sample_seconds"])
    assert [caveat["id"] for caveat in found["caveats"]] == ["loss-scale", "batch-norm"]
    text = evaluate({**LLAMA, "global_batch": 4096})["accumulation"]
    assert [caveat["id"] for caveat in text["caveats"]] == ["loss-scale", "token-mean-loss", "half-precision-sum"]


def test_where_no_split_is_exact_the_closest_way_is_what_accumulation_costs() -> None:
    # 4,099 is a prime number, and 4,100 on 2 GPUs is as near as 4,098.
    found = evaluate({**LLAMA, "gpus": 2, "parallelism": {"strategy": "ddp"}, "global_batch": 4099})
    assert found["plan"]["exact"] is None
    cost = found["accumulation"]
    assert 2 * cost["micro_batch"] * cost["accumulation_steps"] == 4100
    assert cost["update_seconds"] == pytest.approx(
        found["time"]["accumulation_steps"] * cost["micro_batch"] * cost["sample_seconds"]
    )
    assert [caveat["id"] for caveat in cost["caveats"]] == ["loss-scale", "token-mean-loss", "half-precision-sum"]


@pytest.mark.parametrize(
    ("changes", "sums_in_16_bit"),
    [
        ({"precision": "bf16"}, True),
        ({"precision": "bf16-master"}, True),
        ({"precision": "fp8"}, True),
        ({"precision": "amp-bf16"}, False),
        # Its adapters, which alone have gradients, are fp32.
        ({"precision": "bf16", "method": "lora"}, False),
    ],
)
def test_gradients_that_are_added_up_in_16_bit_are_said_to_be(changes: dict[str, Any], *, sums_in_16_bit: bool) -> None:
    found = evaluate({**LLAMA, **changes, "global_batch": 4096})["accumulation"]
    assert ("half-precision-sum" in {caveat["id"] for caveat in found["caveats"]}) is sums_in_16_bit


def test_strategies_need_what_they_need_when_they_are_chosen() -> None:
    given = {**LLAMA, "gpus": 8, "global_batch": 512, "checkpointing": "full"}
    result = evaluate({**given, "parallelism": {"strategy": "fsdp"}})
    micro_batch = result["time"]["micro_batch"]
    rows = {row["strategy"]: row["memory_bytes"] for row in result["scaling"]["by_strategy"]}
    # Gradients stay from pass to pass, whole with ZeRO-1 and divided with ZeRO-2.
    assert rows["zero1"] > rows["zero2"]
    for strategy, nbytes in rows.items():
        chosen = evaluate({**given, "micro_batch": micro_batch, "parallelism": {"strategy": strategy}})
        assert nbytes == pytest.approx(chosen["memory"]["peak_allocated_bytes"], rel=0.03)


def test_a_batch_in_one_pass_is_not_accumulated() -> None:
    found = evaluate({**LLAMA, "global_batch": 2})
    assert found["plan"]["exact"]["accumulation_steps"] == 1
    assert found["accumulation"] is None


def test_results_are_json() -> None:
    json.dumps(evaluate({**LLAMA, "gpus": 16, "parallelism": {"strategy": "zero2"}, "tokens": 1e9}), allow_nan=False)


class TestGoal:
    @pytest.mark.parametrize(
        ("seconds", "dollars", "said", "met"),
        [
            (27 * 3600, None, "misses the deadline of 24 h by 3 h", False),
            (23.5 * 3600, None, "meets the deadline of 24 h with 30 min to spare", True),
        ],
    )
    def test_a_deadline(self, seconds: float, dollars: float | None, said: str, *, met: bool) -> None:
        goal = Goal(24 * 3600)
        assert goal.judged(seconds, dollars) == said
        assert goal.met(seconds, dollars) is met

    @pytest.mark.parametrize(
        ("dollars", "said", "met"),
        [
            (520.0, "is $20.00 over the budget of $500", False),
            (150.0, "leaves $350 of the budget of $500", True),
            (None, "has no price to hold against the budget of $500", False),
        ],
    )
    def test_a_budget(self, dollars: float | None, said: str, *, met: bool) -> None:
        goal = Goal(None, 500)
        assert goal.judged(1e9, dollars) == said
        assert goal.met(1e9, dollars) is met

    def test_none_is_always_met_and_says_nothing(self) -> None:
        assert not Goal()
        assert Goal().met(1e12, None)
        assert Goal().judged(1e12, None) == ""
        assert evaluate({**LLAMA, "tokens": 1e9})["run"]["goal"] is None

    @pytest.mark.parametrize(
        ("hours", "text"),
        [(0.5, "30 min"), (30, "30 h"), (24 * 10, "10 days"), (0, "0 s"), (24 * 11_640, "31.9 years")],
    )
    def test_times_in_the_unit_of_their_size(self, hours: float, text: str) -> None:
        assert hours_text(3600 * hours) == text

    @pytest.mark.parametrize(
        "seconds", [1.234e-5, 0.04452, 0.5, 3.456, 59.4, 119, 121, 4321, 7201, 1e5, 2e5, 5e7, 7e7, 4e12]
    )
    def test_times_are_those_of_the_page_without_noughts_at_their_end(self, seconds: float) -> None:
        number, _, unit = duration(seconds).partition(" ")
        found, _, found_unit = hours_text(seconds).partition(" ")
        assert (float(found.replace(",", "")), found_unit) == (float(number.replace(",", "")), unit)
        assert "e+" not in found


def test_offloading_on_one_card_stays_in_the_scenario() -> None:
    given = {**LLAMA, "micro_batch": 1, "parallelism": {"cpu_offload": "optimizer"}}
    result = evaluate(given)
    again = evaluate(result["scenario"])
    assert again["memory"] == result["memory"]
    assert (
        result["memory"]["peak_allocated_bytes"]
        < evaluate({**LLAMA, "micro_batch": 1})["memory"]["peak_allocated_bytes"]
    )


def test_weights_that_wait_on_the_host_come_block_by_block() -> None:
    given = {**LLAMA, "micro_batch": 1, "parallelism": {"cpu_offload": "all"}}
    weights = 2 * evaluate(LLAMA)["parameters"]
    held = evaluate(given)["memory"]["peak_allocated_bytes"]
    everything = evaluate({**LLAMA, "micro_batch": 1})["memory"]["peak_allocated_bytes"]
    assert held < everything - weights
    assert sum(part["bytes"] for part in evaluate(given)["memory"]["components"] if part["id"] == "exchange") > 0


class TestInterconnect:
    """What a scenario leaves open is as the card would have it."""

    @pytest.mark.parametrize(
        ("gpu", "gpus", "interconnect", "expected"),
        [
            ("h100-sxm-80gb", 8, None, "nvlink-4+infiniband-ndr-x8"),
            ("a100-sxm-80gb", 8, None, "nvlink-3+infiniband-hdr-x8"),
            ("v100-sxm-16gb", 8, None, "nvlink-2+infiniband-edr-x4"),
            ("rtx-4090-24gb", 2, None, "pcie-4+ethernet-100g"),
            ("rtx-3090-24gb", 2, None, "nvlink-bridge-ampere+ethernet-100g"),
            ("rtx-3090-24gb", 4, None, "pcie-4+ethernet-100g"),
            ("h100-sxm-80gb", 8, {"node": "pcie-5"}, "pcie-5+ethernet-100g"),
            ("h100-sxm-80gb", 16, {"network": "efa-400g"}, "nvlink-4+efa-400g"),
            ("h100-sxm-80gb", 16, "nvlink-4", "nvlink-4"),
            ({"memory_gib": 24}, 2, None, "pcie-4+ethernet-100g"),
        ],
    )
    def test_is_filled_in(self, gpu: Any, gpus: int, interconnect: Any, expected: str) -> None:
        given = {"model": "gpt2", "gpu": gpu, "gpus": gpus, "interconnect": interconnect}
        assert interconnect_of(parse({**given, "precision": "fp32"})) == expected

    def test_adapters_of_ones_own_are_kept(self) -> None:
        own = {"network": "ethernet-25g", "adapters_per_node": 2}
        found = interconnect_of(parse({"model": "gpt2", "gpu": "h100-sxm-80gb", "gpus": 16, "interconnect": own}))
        assert found == {"adapters_per_node": 2, "node": "nvlink-4", "network": "ethernet-25g"}
