"""The plan's figures draw every case and say what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from matplotlib.figure import Figure

from calc import plan_plots, planner, plots
from calc.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.plots import Words

TEXT = {
    "model": "llama-3.2-1b",
    "gpu": "h100-sxm-80gb",
    "precision": "bf16",
    "gpus": 8,
    "global_batch": 256,
    "sequence_length": 2048,
    "tokens": 2e10,
    "parallelism": {"strategy": "fsdp"},
}
IMAGES = {"model": "resnet50", "gpu": "rtx-4090-24gb", "dataset": "CIFAR-10", "global_batch": 256}


def fill(draw: Callable[..., Words], *arguments: Any) -> Words:
    figure = Figure()
    words = draw(figure.subplots(), *arguments)
    figure.draw_without_rendering()
    assert words.title
    assert words.text
    assert all(len(row) == len(words.columns) for row in words.rows)
    return words


@pytest.mark.parametrize("given", [TEXT, IMAGES], ids=["tokens", "samples"])
def test_tradeoff(given: dict[str, Any]) -> None:
    curve = plan_plots.known_tradeoff(given)
    assert curve is not None
    words = fill(plan_plots.draw_tradeoff, evaluate(given), curve)
    assert len(words.rows) > 5


def test_quality_shows_points_as_published() -> None:
    studies = plan_plots.close_studies(IMAGES)
    assert studies is not None
    words = fill(plan_plots.draw_quality, evaluate(IMAGES), studies)
    assert any(row[1:3] == (4096, 10.57) for row in words.rows)
    assert all(row[4] for row in words.rows)


def test_what_nobody_measured_is_not_drawn() -> None:
    adapters = {"model": "sdxl-unet", "method": "lora"}
    assert plots.draw("quality", adapters, 640) == {}
    assert plots.draw("tradeoff", adapters, 640) == {}


def test_speed_up_and_strategies() -> None:
    result = evaluate(TEXT)
    assert [row[0] for row in fill(plan_plots.draw_speed_up, result, {}).rows][:4] == [1, 2, 4, 8]
    rows = fill(plan_plots.draw_strategies, result, {}).rows
    assert [row[0] for row in rows] == ["DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3", "FSDP"]


@pytest.mark.parametrize("name", plan_plots.PLAN_FIGURES)
def test_every_figure_is_drawn_by_its_name(name: str) -> None:
    given = {"scenarios": [TEXT, IMAGES]} if name == "comparison" else TEXT
    drawn = plots.draw(name, given, 640)
    assert drawn["svg"].startswith("<svg")
    assert drawn["table"]["columns"]


def test_plans_of_an_open_batch_are_drawn_by_the_whole_run() -> None:
    drawn = plots.draw("plans-cost", {key: value for key, value in TEXT.items() if key != "global_batch"}, 640)
    assert list(drawn["table"]["columns"][:2]) == ["Hours of the run", "Dollars of the run"]


def test_one_gpu_has_no_speed_up() -> None:
    assert plots.draw("speed-up", IMAGES, 640) == {}


def test_scenarios_side_by_side_show_each_ones_own_numbers() -> None:
    drawn = plots.draw("comparison", {"scenarios": [TEXT, IMAGES]}, 640)
    for row, given in zip(drawn["table"]["rows"], (TEXT, IMAGES), strict=True):
        result = evaluate(given)
        assert row[2] == f"{result['max_micro_batch']:,}"
        assert row[3] == f"{result['memory']['peak_allocated_bytes'] / 2**30:,.2f}"
    assert "B takes" in drawn["text"]


def test_a_scenario_without_an_answer_is_not_drawn() -> None:
    assert plots.draw("comparison", {"scenarios": [TEXT, {"model": "no-such-model"}]}, 640) == {}


@pytest.mark.parametrize("against", ["headroom", "cost"])
def test_fronts(against: str) -> None:
    answer = planner.plan(TEXT)
    assert len(fill(plan_plots.draw_front, answer, against).rows) == len(answer["fronts"][against])
