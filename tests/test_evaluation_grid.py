"""Every preset and every card of the catalogs is answered in every choice that the contract allows together.

Each preset meets some of the choices, others with each neighbour; with ``THOROUGH=1`` in the environment it meets all
(some ten thousand scenarios: most of an hour).
"""

from __future__ import annotations

import json
import os
from itertools import combinations, pairwise, product
from typing import Any

import pytest

from calc.catalog import gpus, models
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.scenario import Attention, Checkpointing, Loss, Method, Optimizer, Precision, ZeroGrad

PRESETS = [preset.id for preset in models.presets()]
CARDS = [card.id for card in gpus.gpus()]
CHOICES = list(product(Precision, Method, Checkpointing))
THOROUGH = bool(os.environ.get("THOROUGH"))
CHOICES_EACH = len(CHOICES) if THOROUGH else 1
WITHOUT_LINEAR_LAYERS = {
    preset.id for preset in models.presets() if preset.task == "segmentation" or preset.id.startswith("squeezenet")
}
"""Convolutions alone: peft finds nothing to adapt."""
PRIME = 29
"""No divisor of the number of choices, so that steps of this size reach all of them."""


def check(scenario: dict[str, Any]) -> dict[str, Any]:
    result = evaluate(scenario)
    json.dumps(result, allow_nan=False)
    memory = result["memory"]
    assert sum(component["bytes"] for component in memory["components"]) == memory["peak_allocated_bytes"] > 0
    assert 0 <= result["max_micro_batch_safe"] <= result["max_micro_batch"] <= result["max_micro_batch_optimistic"]
    assert result["next_needs_bytes"] > 0
    assert result["parameters"] >= result["trainable_parameters"] > 0
    return result


def nth_choice(number: int) -> dict[str, Any]:
    precision, method, checkpointing = CHOICES[number * PRIME % len(CHOICES)]
    return {"precision": precision, "method": method, "checkpointing": checkpointing}


@pytest.mark.parametrize("place", range(len(PRESETS)), ids=PRESETS)
def test_every_preset(place: int) -> None:
    preset = models.preset(PRESETS[place])
    for turn in range(CHOICES_EACH):
        number = place * CHOICES_EACH + turn
        scenario = {"model": preset.id, "gpu": "h100-sxm-80gb", **nth_choice(number)}
        scenario["optimizer"] = list(Optimizer)[number % len(Optimizer)]
        if scenario["method"] != "full" and preset.id in WITHOUT_LINEAR_LAYERS:
            with pytest.raises(ScenarioError, match="no linear layer"):
                evaluate(scenario)
            continue
        result = check(scenario)
        adapters = 0 if scenario["method"] == "full" else result["trainable_parameters"]
        assert result["parameters"] - adapters == preset.parameters


@pytest.mark.parametrize("card", CARDS)
def test_every_card_in_every_precision_it_has(card: str) -> None:
    found = gpus.gpu(card)
    allowed = [precision for precision in Precision if gpus.precision_refusal(found, precision) is None]
    assert allowed
    for precision in allowed:
        result = check({"model": "gpt2", "sequence_length": 128, "gpu": card, "precision": precision})
        assert result["step_seconds"] > 0


@pytest.mark.parametrize("model", ["gpt2", "resnet18"])
def test_every_pair_of_choices(model: str) -> None:
    kinds: dict[str, list[str]] = {
        "precision": list(Precision),
        "optimizer": list(Optimizer),
        "checkpointing": list(Checkpointing),
        "attention": list(Attention),
        "method": list(Method),
        "zero_grad": list(ZeroGrad),
    }
    usual: dict[str, Any] = {"model": model, "gpu": "h100-sxm-80gb"}
    if model == "gpt2":
        kinds["loss"] = list(Loss)
        usual["sequence_length"] = 64
    keys = list(kinds)
    for first, second in combinations(keys, 2) if THOROUGH else pairwise(keys):
        for one, other in product(kinds[first], kinds[second]):
            given = {**usual, first: one, second: other}
            if given.get("attention") == "flash-attention-2" and given.get("precision") in ("fp32", "tf32"):
                with pytest.raises(ScenarioError, match="fp16 and bf16"):
                    evaluate(given)
                continue
            check(given)
