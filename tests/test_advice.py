"""Levers and comparisons on a made-up evaluation whose answers are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from calc import advice, comparison, evaluation
from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCENARIO = {
    "model": "toy",
    "sequence_length": 1024,
    "precision": "amp-bf16",
    "optimizer": "adamw",
    "checkpointing": "none",
    "attention": "eager",
    "loss": "standard",
    "method": "full",
    "zero_grad": "free",
    "gpus": 1,
    "parallelism": {"strategy": "ddp"},
}
LIMIT = 1000


def evaluate(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """A card of 1000 bytes: 400 of state, 50 a sample, each lever with an effect of its own."""
    if scenario["precision"] == "bf16":
        raise ScenarioError("precision", "this card has no bf16")
    fixed = 400 - 100 * (scenario["optimizer"] == "adamw-8bit") - 150 * (scenario["method"] != "full")
    each = 50 - 30 * (scenario["checkpointing"] == "full") - 5 * (scenario["attention"] == "sdpa")
    each = each * scenario["sequence_length"] // 1024
    largest = max(0, (LIMIT - fixed) // each)
    batch = scenario.get("micro_batch", largest)
    rate = 10.0 * (0.75 if scenario["checkpointing"] == "full" else 1.0)
    peak = fixed + each * batch
    return {
        "scenario": {**scenario},
        "model": {"name": "Toy"},
        "gpu": {"name": "A card of 1000 bytes"},
        "parameters": 10,
        "trainable_parameters": 10,
        "micro_batch": batch,
        "max_micro_batch": largest,
        "memory": {
            "peak_allocated_bytes": peak,
            "peak_reserved_bytes": peak,
            "limit_bytes": LIMIT,
            "components": [{"id": "weights", "bytes": fixed}, {"id": "activations", "bytes": each * batch}],
        },
        "step_seconds": batch / rate,
        "samples_per_second": rate,
    }


def test_levers_are_ranked_by_the_batch_they_buy() -> None:
    rows = advice.advise(SCENARIO, evaluate)
    gained = [row["batch_gained"] for row in rows]
    assert gained == sorted(gained, reverse=True)
    first = rows[0]
    assert first["id"] == "checkpoint-full"
    assert first["saved_bytes"] == 30 * 12
    assert first["batch_gained"] == 30 - 12
    assert first["speed_ratio"] == 0.75


def test_a_change_the_card_refuses_is_left_out() -> None:
    ids = {row["id"] for row in advice.advise(SCENARIO, evaluate)}
    assert "precision-bf16" not in ids
    assert {"sdpa", "fused-loss", "optimizer-8bit", "qlora", "two-gpus", "shorter-sequence"} <= ids


def test_every_lever_says_its_risk_and_source() -> None:
    for lever in advice.levers({**SCENARIO, "precision": "fp32", "zero_grad": "keep", "image_size": 224, "gpus": 8}):
        assert lever.risk.endswith(".")
        assert lever.source


def test_what_is_set_already_is_not_offered() -> None:
    done = {
        **SCENARIO,
        "attention": "sdpa",
        "loss": "fused",
        "checkpointing": "full",
        "optimizer": "adamw-8bit",
        "precision": "bf16",
        "method": "qlora",
        "gpus": 8,
        "parallelism": {"strategy": "fsdp", "cpu_offload": "all"},
        "sequence_length": 64,
    }
    assert advice.levers(done) == []


@pytest.mark.parametrize(
    ("gpus", "parallelism", "offered"),
    [
        (1, {}, ["offload-optimizer", "offload-all"]),
        (1, {"cpu_offload": "optimizer"}, ["offload-all"]),
        (8, {"strategy": "ddp"}, []),
        (8, {"strategy": "zero2"}, ["offload-optimizer"]),
        (8, {"strategy": "fsdp"}, ["offload-optimizer", "offload-all"]),
        (8, {"strategy": "fsdp", "tensor": 2}, []),
        (8, {"strategy": "zero3", "pipeline": 2}, []),
    ],
)
def test_the_hosts_memory_is_offered_where_it_can_be_used(
    gpus: int, parallelism: dict[str, Any], offered: list[str]
) -> None:
    """DeepSpeed: the optimizer from ZeRO stage 1 on, the weights at stage 3, beside data parallelism alone."""
    found = [lever.id for lever in advice.levers({**SCENARIO, "gpus": gpus, "parallelism": parallelism})]
    assert [name for name in found if name.startswith("offload")] == offered


def test_the_hosts_memory_comes_before_a_second_card() -> None:
    """ZeRO: mixed-precision Adam holds 16 bytes a parameter, here all of them on the host (arXiv:1910.02054)."""
    asked: list[Mapping[str, Any]] = []

    def counting(scenario: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(scenario)
        return evaluation.evaluate(scenario)

    own = evaluation.evaluate({"model": "llama-3.1-8b", "gpu": "rtx-4090-24gb", "global_batch": 64})
    way = advice.ways_to_fit(own["scenario"], counting)[0]
    assert "gpus" not in way["change"]
    assert way["change"]["parallelism"]["cpu_offload"] == "all"
    assert way["change"].keys() <= {"parallelism", "checkpointing", "loss"}
    assert way["host_bytes"] == pytest.approx(16 * own["parameters"], rel=1e-3)
    assert evaluation.evaluate({**own["scenario"], **way["change"]})["max_micro_batch"] == way["max_micro_batch"] > 0
    assert len(asked) <= 30


def test_a_way_that_fits_less_than_was_asked_for_leaves_the_micro_batch_open() -> None:
    given = {"model": "llama-3.2-1b", "gpu": "rtx-3060-12gb", "micro_batch": 8}
    own = evaluation.evaluate(given)
    for way in advice.ways_to_fit(own["scenario"], evaluation.evaluate):
        after = evaluation.evaluate({**own["scenario"], **way["change"]})
        assert after["fits"]
        assert after["max_micro_batch"] == way["max_micro_batch"]


def test_cards_at_hand_are_divided_first() -> None:
    own = evaluation.evaluate({"model": "llama-3.1-8b", "gpu": "a100-sxm-80gb", "gpus": 4})
    way = advice.ways_to_fit(own["scenario"], evaluation.evaluate)[0]
    assert way["labels"] == ["FSDP"]
    assert way["host_bytes"] == 0


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({"model": "flux.1-dev", "gpu": "rtx-4090-24gb", "method": "lora", "precision": "bf16"}, "checkpointing QLoRA"),
        ({"model": "whisper-large-v3", "gpu": "t4-16gb"}, "LoRA"),
        ({"model": "sdxl-unet", "gpu": "rtx-3090-24gb"}, "checkpointing LoRA"),
    ],
)
def test_adapters_are_a_way_to_fit_beside_text(given: dict[str, Any], labels: str) -> None:
    asked: list[Mapping[str, Any]] = []

    def counting(scenario: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(scenario)
        return evaluation.evaluate(scenario)

    own = evaluation.evaluate(given)
    ways = advice.ways_to_fit(own["scenario"], counting)
    assert ways[-1]["labels"] == labels.split()
    fitted = evaluation.evaluate({**own["scenario"], **ways[-1]["change"]})
    assert fitted["max_micro_batch"] == ways[-1]["max_micro_batch"] > 0
    assert fitted["trainable_parameters"] < own["parameters"] / 10
    assert len({str(way["change"]) for way in ways}) == len(ways)
    assert len(asked) <= 30


def test_the_adapters_way_trains_adapters_though_less_would_do() -> None:
    """Every change of the first way alone makes a sample fit."""

    def roomy(scenario: Mapping[str, Any]) -> dict[str, Any]:
        changed = any(scenario[key] != SCENARIO[key] for key in ("attention", "checkpointing", "method"))
        return evaluate({**scenario, "precision": "fp32"}) | {"max_micro_batch": int(changed)}

    assert [way["change"] for way in advice.ways_to_fit(SCENARIO, roomy)] == [{"attention": "sdpa"}, {"method": "lora"}]


@pytest.mark.parametrize(
    ("model", "offered"),
    [("whisper-tiny", {"lora", "qlora"}), ("resnet50", {"lora", "qlora"}), ("squeezenet1_1", set())],
)
def test_adapters_are_offered_where_there_is_a_linear_layer(model: str, offered: set[str]) -> None:
    rows = {
        row["id"]: row for row in advice.advise(evaluation.evaluate({"model": model})["scenario"], evaluation.evaluate)
    }
    assert rows.keys() & {"lora", "qlora"} == offered
    if model == "resnet50":
        assert "convolutions stay frozen" in rows["lora"]["risk"]


@pytest.mark.parametrize(("model", "offered"), [("resnet50", False), ("vit-base-patch16", True), ("gpt2", True)])
def test_selective_checkpointing_is_offered_where_it_selects(model: str, *, offered: bool) -> None:
    rows = advice.advise(evaluation.evaluate({"model": model})["scenario"], evaluation.evaluate)
    ids = {row["id"] for row in rows}
    assert "checkpoint-full" in ids
    assert ("checkpoint-selective" in ids) is offered


def test_a_given_micro_batch_is_where_bytes_are_compared() -> None:
    rows = {row["id"]: row for row in advice.advise({**SCENARIO, "micro_batch": 4}, evaluate)}
    assert rows["checkpoint-full"]["saved_bytes"] == 30 * 4
    assert rows["checkpoint-full"]["batch_gained"] == 18


def test_where_nothing_fits_speed_is_not_compared() -> None:
    huge = {**SCENARIO, "sequence_length": 1024 * 64}
    rows = advice.advise(huge, evaluate)
    assert all(row["speed_ratio"] is None for row in rows)


def test_nothing_fits_until_changes_come_together() -> None:
    def tight(scenario: Mapping[str, Any]) -> dict[str, Any]:
        result = evaluate({**scenario, "precision": "fp32"})
        saved = (scenario["checkpointing"] == "full") + (scenario["method"] == "qlora") + (scenario["gpus"] == 2)
        return result | {"max_micro_batch": 3 if saved == 2 else 0}

    rows = advice.ways_to_fit(SCENARIO, tight)
    assert [row["change"] for row in rows] == [
        {"checkpointing": "full", "gpus": 2, "parallelism": {"strategy": "fsdp"}},
        {"checkpointing": "full", "method": "qlora"},
    ]
    assert rows[0]["max_micro_batch"] == 3


def test_what_fits_needs_no_way() -> None:
    assert advice.ways_to_fit(SCENARIO, evaluate) == []


def test_no_way_is_an_empty_list() -> None:
    assert advice.ways_to_fit(SCENARIO, lambda scenario: evaluate(scenario) | {"max_micro_batch": 0}) == []


class TestComparison:
    def test_only_what_differs_is_a_column(self) -> None:
        found = comparison.compare([SCENARIO, {**SCENARIO, "checkpointing": "full"}], evaluate)
        assert found["fields"] == ["checkpointing"]
        assert [row["settings"]["checkpointing"] for row in found["rows"]] == ["none", "full"]
        assert [row["max_micro_batch"] for row in found["rows"]] == [12, 30]
        assert found["rows"][0]["components"] == {"weights": 400, "activations": 600}

    def test_a_scenario_without_an_answer_keeps_its_place(self) -> None:
        found = comparison.compare([SCENARIO, {**SCENARIO, "precision": "bf16"}], evaluate)
        assert found["rows"][1]["error"]["field"] == "precision"
        assert found["rows"][1]["settings"]["precision"] == "bf16"

    def test_what_it_does_not_say_is_no_difference(self) -> None:
        found = comparison.compare([SCENARIO, {"model": "toy", "precision": "bf16"}], evaluate)
        assert found["fields"] == ["precision"]

    def test_models_and_cards_are_named(self) -> None:
        own = {"model_type": "weirdnet", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
               "vocab_size": 100}  # fmt: skip
        given = ({"model": "gpt2", "gpu": "l4-24gb"}, {"model": own, "gpu": {"memory_gib": 8}})
        found = comparison.compare(given, evaluation.evaluate)
        assert [row["settings"]["model"] for row in found["rows"]] == ["GPT-2 (124M)", "weirdnet (as llama)"]
        assert [row["settings"]["gpu"] for row in found["rows"]] == ["L4 24 GB", "a GPU with 8 GiB"]

    @pytest.mark.parametrize("count", [1, 9])
    def test_how_many(self, count: int) -> None:
        with pytest.raises(ScenarioError, match="2 to 8"):
            comparison.compare([SCENARIO] * count, evaluate)
