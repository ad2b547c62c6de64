"""The scenario on other cards: the largest micro-batch that each takes, everything else the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.errors import ScenarioError
from calc.evaluation import fitted
from calc.model_dimensions import parse_dividable
from calc.scenario import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPARED = (
    "rtx-3060-12gb",
    "t4-16gb",
    "rtx-3090-24gb",
    "rtx-4090-24gb",
    "rtx-5090-32gb",
    "a100-sxm-40gb",
    "l40s-48gb",
    "a100-sxm-80gb",
    "h100-sxm-80gb",
    "h200-sxm-141gb",
    "b200-180gb",
    "mi300x-192gb",
)
"""What is rented and bought most, from small to large."""


def fits_on(scenario: Mapping[str, Any], card: str) -> dict[str, Any]:
    """Say how much of the scenario fits on one card of the catalog.

    Returns
    -------
    dict
        ``gpu`` (the id), ``name``, ``memory_bytes`` and ``max_micro_batch``; where the card cannot compute the
        scenario, as in a precision that it lacks, ``reason`` instead of the last two.
    """
    try:
        there = parse_dividable({**scenario, "gpu": card, "micro_batch": None})
    except ScenarioError as error:
        return {
            "gpu": card,
            "name": parse({"model": "gpt2", "gpu": card, "precision": "fp32"}).gpu.name,
            "reason": error.message,
        }
    return {
        "gpu": card,
        "name": there.gpu.name,
        "memory_bytes": there.gpu.memory_bytes,
        "max_micro_batch": fitted(there)[1].expected,
    }


def some_cards(given: Mapping[str, Any]) -> dict[str, Any]:
    """Answer for ``count`` cards from the place ``first``; who has other questions waiting asks for a few at a time.

    Returns
    -------
    dict
        ``rows`` as of `fits_on`, ``done`` and ``of``.
    """
    first = int(given["first"])
    end = min(first + int(given["count"]), len(COMPARED))
    rows = [fits_on(given["scenario"], card) for card in COMPARED[first:end]]
    return {"rows": rows, "done": end, "of": len(COMPARED)}
