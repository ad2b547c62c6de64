"""The numbers of the tables' rows explain themselves: what was filled in comes to what is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from calc import advice, planner
from calc.evaluation import evaluate
from tests.test_explanations import UNITS, arithmetic

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 2**30
SCENARIO = {"sequence_length": 1024, "checkpointing": "none", "method": "lora", "gpus": 8}
RUNS: tuple[dict[str, Any], ...] = (
    {"model": "gpt2", "gpu": "rtx-4090-24gb", "global_batch": 64, "price_per_gpu_hour": 2},
    {"model": "gpt2", "gpu": "h100-sxm-80gb", "gpus": 16, "nodes": 2, "tokens": 1e10, "global_batch": 512},
)


def toy(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """A card of 24 GiB: 10 GiB of state; a sample takes 2 GiB, a quarter of it with checkpointing, and 0.1 s."""
    quarters = (2 if scenario["checkpointing"] == "none" else 0.5) * scenario["sequence_length"] / 1024
    largest = int(14 // quarters)
    batch = scenario.get("micro_batch", largest)
    rate = (10 if scenario["checkpointing"] == "none" else 7.5) * 1024 / scenario["sequence_length"]
    return {
        "scenario": dict(scenario),
        "max_micro_batch": largest,
        "memory": {"peak_reserved_bytes": int((10 + quarters * batch) * GIB)},
        "samples_per_second": rate,
    }


def test_a_change_says_what_was_compared() -> None:
    """By hand: 14 GiB hold 7 samples, or 28 of half a GiB; 7 samples take 24 GiB, or 13.5."""
    rows = {row["id"]: row["explanations"] for row in advice.advise(SCENARIO, toy)}
    checkpointed, halved = rows["checkpoint-full"], rows["shorter-sequence"]
    assert checkpointed["max_micro_batch"]["values"] == "28 \u2212 7 = 21"
    assert checkpointed["saved_bytes"]["values"] == "13.50 \u2212 24.00 = \u221210.50 GiB at micro-batch 7"
    assert checkpointed["speed_ratio"]["values"] == "7.5 \u00f7 10 = 0.75"
    # Twice the samples of half the tokens are no faster.
    assert halved["speed_ratio"]["values"] == "10,240 \u00f7 10,240 = 1"
    assert halved["speed_ratio"]["formula"].startswith("tokens a second")


def test_a_change_that_fits_nothing_has_no_speed_to_explain() -> None:
    rows = advice.advise({**SCENARIO, "sequence_length": 1024 * 16}, toy)
    assert rows
    assert all("speed_ratio" not in row["explanations"] for row in rows)


def come_to(values: str) -> float:
    """What the values come to, as they say; seen to be what their left side comes to."""
    left, _, right = values.rpartition(" = ")
    said, _, unit = right.partition(" ")
    shown = float(said.replace(",", ""))
    assert arithmetic(left) == pytest.approx(shown, rel=2e-3, abs=0.02 if unit == "GiB" else 0), values
    return shown * UNITS.get(unit, 1)


@pytest.mark.parametrize("given", RUNS, ids=["one-gpu", "two-nodes"])
def test_every_plan_explains_its_numbers(given: dict[str, Any]) -> None:
    found = planner.plan(given)
    assert come_to(found["explanations"]["candidates"]["values"]) == found["candidates"]
    front = found["fronts"]["headroom"]
    assert len(front) >= 2
    for row in front:
        explained = row["explanations"]
        assert set(explained) == {
            "update_seconds",
            "headroom_bytes",
            "gpus",
            "global_batch",
            *(["run_seconds", "run_dollars"] if "tokens" in given else ["dollars_per_update"]),
        }
        layout = row["layout"]
        numbers = row | {
            "gpus": layout["data"] * layout["tensor"] * layout["pipeline"] * layout["context"],
            "dollars_per_update": 1000 * row["dollars_per_update"],
        }
        for field, explanation in explained.items():
            rounded = 0.006 * GIB if field == "headroom_bytes" else 0
            assert come_to(explanation["values"]) == pytest.approx(numbers[field], rel=1e-3, abs=rounded), field


@pytest.mark.parametrize("length", [{}, {"tokens": 1e9}], ids=["updates", "run"])
def test_a_card_without_a_price_explains_gpu_hours(length: dict[str, Any]) -> None:
    given = {"model": "gpt2", "gpu": "rtx-2060-6gb", "precision": "amp-fp16", "global_batch": 64, **length}
    for row in planner.plan(given)["fronts"]["headroom"]:
        field = "run_gpu_hours" if length else "gpu_hours_per_update"
        explanation = row["explanations"][field]
        assert explanation["values"].endswith(" GPU-hours")
        assert come_to(explanation["values"]) == pytest.approx(row[field] * (1 if length else 1000), rel=1e-3)
        assert not any("ollar" in str(each) for each in row["explanations"].values())


def test_a_plan_takes_the_seconds_and_dollars_of_the_scenario_that_runs_it() -> None:
    """The planner reads between sampled micro-batches; its scenario is replayed at its own."""
    row = planner.plan(RUNS[1])["fronts"]["headroom"][0]
    assert row["layout"]["data"] == RUNS[1]["gpus"]
    parallelism = {"strategy": row["layout"]["strategy"]}
    run = evaluate({**RUNS[1], **row["settings"], "micro_batch": row["micro_batch"], "parallelism": parallelism})
    parts, explained = run["scaling"]["parts"], row["explanations"]["update_seconds"]
    sums = explained["values"]
    terms = dict(zip(explained["formula"].split(" + "), sums.partition(" = ")[0].split(" + "), strict=True))
    scale = UNITS.get(sums.rsplit(" ", 1)[1], 1)
    assert float(terms["passes"].replace(",", "")) * scale == pytest.approx(parts["compute_seconds"], rel=0.02)
    assert float(terms["optimizer"].replace(",", "")) * scale == pytest.approx(parts["optimizer_seconds"], rel=0.02)
    assert come_to(row["explanations"]["run_dollars"]["values"]) == pytest.approx(run["run"]["dollars"], rel=0.02)


def test_a_rate_of_the_curve_is_explained_by_it_and_one_of_the_rule_by_the_rule() -> None:
    images = {"model": "resnet18", "gpu": "rtx-4090-24gb", "image_size": 32, "dataset": "cifar10", "epochs": 200}
    sgd = {**images, "optimizer": "sgd-momentum", "global_batch": 128, "known_batch": 4096, "known_learning_rate": 1.6}
    text = {"model": "bert-large", "gpu": "h100-sxm-80gb", "sequence_length": 128}
    lamb = {**text, "optimizer": "lamb", "global_batch": 65536, "known_batch": 512, "known_learning_rate": 1e-4}
    place = "convergence.learning_rate.learning_rate"
    curve = evaluate(sgd)["explanations"][place]
    assert curve["formula"].startswith("The batch that works lies above the noise scale")
    assert curve["values"].startswith("0.5136, ")
    # The root of 128 times the batch.
    assert evaluate(lamb)["explanations"][place]["values"] == "0.0001 \u00d7 11.31 = 0.001131"
