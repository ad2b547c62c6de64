"""What holds of every figure: its axes are labelled, and a drawing shows nothing of the one before it."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from calc import plots
from calc.accuracy_plots import ACCURACY_FIGURES
from calc.plan_plots import PLAN_FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping

FIGURES = [*plots.FIGURES, *PLAN_FIGURES, *ACCURACY_FIGURES]
PLANNED = {
    "model": "llama-3.2-1b",
    "gpu": "h100-sxm-80gb",
    "gpus": 8,
    "global_batch": 256,
    "tokens": 2e10,
    "parallelism": {"strategy": "fsdp"},
}
# Scenarios that leave figures in different states: other scales, ticks, texts, or no data to draw.
SCENARIOS: list[dict[str, Any]] = [
    {"model": "gpt2", "gpu": "rtx-4090-24gb"},
    {"model": "resnet50", "gpu": "t4-16gb", "dataset": "CIFAR-10", "gpus": 64, "global_batch": 8192},
    {"model": "whisper-small", "gpu": "h100-sxm-80gb", "gpus": 4},
    PLANNED,
]
WIDTHS = (900, 260)


def given_to(name: str, scenario: dict[str, Any]) -> Mapping[str, Any]:
    return {"scenarios": [SCENARIOS[0], scenario]} if name == "comparison" else scenario


def anew(name: str, scenario: dict[str, Any], width: int) -> dict[str, Any]:
    plots._blank_figure.cache_clear()
    return plots.draw(name, given_to(name, scenario), width)


def test_a_drawing_leaves_no_trace() -> None:
    cases = [
        (name, scenario, width)
        for name, scenario, width in product(FIGURES, SCENARIOS, WIDTHS)
        if scenario is PLANNED or not (name.startswith("plans-") or name in ACCURACY_FIGURES)
    ]
    alone = [anew(*case) for case in cases]
    # So that each follows another one than at first: forwards and backwards, by steps.
    for place in (
        *range(len(cases)),
        *reversed(range(len(cases))),
        *(7 * place % len(cases) for place in range(len(cases))),
    ):
        name, scenario, width = cases[place]
        assert plots.draw(name, given_to(name, scenario), width) == alone[place]


def test_a_figure_that_failed_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    before = plots.draw("memory", SCENARIOS[0], 640)
    with monkeypatch.context() as broken:
        broken.setattr(plots, "_svg", Mock(side_effect=RuntimeError))
        with pytest.raises(RuntimeError):
            plots.draw("memory", SCENARIOS[3], 640)
    assert plots.draw("memory", SCENARIOS[0], 640) == before


@pytest.mark.parametrize("name", FIGURES)
def test_both_axes_are_labelled(name: str) -> None:
    svg = plots.draw(name, given_to(name, PLANNED), 640)["svg"]
    for axis in (1, 2):
        # matplotlib numbers an axis's ticks through both axes, and each tick's label is a text in its group.
        (group,) = re.findall(
            rf'id="{name}-640-matplotlib\.axis_{axis}">(.*?)(?=id="{name}-640-(?:matplotlib|patch))', svg, re.DOTALL
        )
        labels = re.findall(r"<text[^>]*>([^<]+)</text>", group)
        assert len(labels) > 1 or (name, axis) == ("timeline", 1), labels
