"""Every explained number: its formula with the values filled in comes to the number itself."""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

import pytest

from calc.evaluation import evaluate

SCENARIOS: tuple[dict[str, Any], ...] = (
    {"model": "gpt2"},
    {"model": "llama-3.1-8b", "gpu": "t4-16gb", "precision": "amp-fp16"},
    {"model": "gpt2", "gpu": {"memory_gib": 8, "overhead_gib": 1}, "global_batch": 64},
    {"model": "gpt2", "calibration": [{"batch": 4, "reading": "card", "gib": 8.6}]},
    {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm-80gb",
        "gpus": 8,
        "parallelism": {"strategy": "fsdp"},
        "global_batch": 512,
        "tokens": 2e10,
        "known_batch": 64,
        "known_learning_rate": 3e-4,
    },
    {
        "model": "resnet50",
        "gpu": "t4-16gb",
        "precision": "amp-fp16",
        "optimizer": "sgd-momentum",
        "epochs": 90,
        "dataset": "imagenet",
        "global_batch": 256,
        "known_batch": 128,
        "known_learning_rate": 0.05,
        "price_per_gpu_hour": 0.35,
        "gradient_norms": {"small_batch": 8, "small_batch_norm": 3, "large_batch": 64, "large_batch_norm": 1.5},
    },
)
UNITS = {"GiB": 2**30, "ms": 1e-3, "%": 1e-2}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
# What is shown beside the contract's keys.
DERIVED = {"tokens_per_second": lambda result: result["samples_per_second"] * result["scenario"]["sequence_length"]}


def at(result: Any, path: str) -> Any:
    for part in path.split("."):
        result = result[int(part)] if isinstance(result, list) else result[part]
    return result


def arithmetic(text: str) -> float:
    """What a formula with its values comes to, units left out."""
    plain = text.replace("2^30", str(2**30)).translate({0x2212: "-", 0xD7: "*", 0xF7: "/", ord(","): None})
    plain = re.sub(r"(?<![\d.e])[A-Za-z][A-Za-z/]*|/s\b", "", plain)

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return float(OPERATORS[type(node.op)](value(node.left), value(node.right)))
        assert isinstance(node, ast.Constant), plain
        return float(node.value)  # type: ignore[arg-type]

    return value(ast.parse(plain.strip(), mode="eval").body)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: str(list(scenario.values())[:2]))
def test_values_come_to_the_number(scenario: dict[str, Any]) -> None:
    result = evaluate(scenario)
    sums = 0
    for place, explained in result["explanations"].items():
        number = DERIVED[place](result) if place in DERIVED else at(result, place)
        assert number is not None, place
        assert explained["formula"], place
        assert explained["source"], place
        if " = " not in explained["values"]:
            continue
        left, _, right = explained["values"].rpartition(" = ")
        said, _, unit = right.partition(" ")
        shown = float(said.replace(",", ""))
        # Each summand is rounded: a hundredth of a GiB, or the fourth digit.
        assert arithmetic(left) == pytest.approx(
            shown * (0.01 if unit == "%" else 1), rel=2e-3, abs=0.03 if unit == "GiB" else 0
        ), (place, explained)
        assert number == pytest.approx(shown * UNITS.get(unit, 1), rel=1e-3, abs=2**24 if unit == "GiB" else 0), place
        sums += 1
    assert sums >= 8


def test_the_rest_of_the_result_stands_alone() -> None:
    """A card given by its size has no time: nothing that rests on it is explained."""
    explained = evaluate({"model": "gpt2", "gpu": {"memory_gib": 24}})["explanations"]
    assert "step_seconds" not in explained
    assert explained["memory.limit_bytes"]["source"] == "as the scenario gives it"


def test_readings_explain_the_overhead() -> None:
    scenario = {"model": "gpt2", "calibration": [{"batch": 4, "reading": "card", "gib": 8.6}]}
    assert evaluate(scenario)["explanations"]["memory.process_bytes"]["source"].startswith("fitted to your readings")
