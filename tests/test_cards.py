"""The scenario on other cards."""

from __future__ import annotations

import pytest

from calc.cards import COMPARED, fits_on, some_cards
from calc.evaluation import evaluate


@pytest.mark.parametrize("card", ["rtx-3060-12gb", "h100-sxm-80gb"])
def test_a_card_takes_what_the_scenario_on_it_takes(card: str) -> None:
    result = evaluate({"model": "gpt2", "gpu": card})
    found = fits_on({"model": "gpt2", "gpu": "rtx-4090-24gb", "micro_batch": 3}, card)
    assert found["max_micro_batch"] == result["max_micro_batch"]
    assert found["memory_bytes"] == result["gpu"]["memory_bytes"]
    assert found["name"] == result["gpu"]["name"]


def test_a_card_that_lacks_the_precision_says_so() -> None:
    found = fits_on({"model": "gpt2", "precision": "fp8"}, "t4-16gb")
    assert "max_micro_batch" not in found
    assert "fp8" in found["reason"]


def test_a_few_cards_at_a_time_are_all_of_them() -> None:
    rows, done, of = [], 0, 1
    while done < of:
        answer = some_cards({"scenario": {"model": "gpt2"}, "first": done, "count": 5})
        rows += answer["rows"]
        done, of = answer["done"], answer["of"]
    assert [row["gpu"] for row in rows] == list(COMPARED)
    larger = [row["max_micro_batch"] for row in sorted(rows, key=lambda row: int(row["memory_bytes"]))]
    assert larger[0] < larger[-1]
