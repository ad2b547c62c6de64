"""What the results' sections say in words: counts of one, cards without a price, readings that disagree."""

from __future__ import annotations

import re
from typing import Any

import pytest

from calc import planner, plots, wording
from calc.evaluation import evaluate
from page import format as page_format
from page import sections

GPT2 = {"model": "gpt2", "gpu": "rtx-4090-24gb"}
UNPRICED = {
    "model": "whisper-small",
    "gpu": "rtx-3060-12gb",
    "global_batch": 100,
    "dataset_samples": 10_000,
    "epochs": 3,
}
ONES: tuple[dict[str, Any], ...] = (
    {**GPT2, "micro_batch": 1, "global_batch": 1, "sequence_length": 1, "tokens": 1},
    {**GPT2, "micro_batch": 1, "global_batch": 16, "tokens": 1e5},
    {**GPT2, "micro_batch": 1, "global_batch": 7, "gpus": 2, "epochs": 1, "dataset_samples": 1},
    {
        "model": "resnet50",
        "gpu": "rtx-3060-12gb",
        "micro_batch": 1,
        "global_batch": 1,
        "epochs": 1,
        "dataset_samples": 1,
    },
    {"model": "t5-small", "gpu": "rtx-3060-12gb", "global_batch": 1, "sequence_length": 1, "target_length": 1},
)
COUNTED = "samples|tokens|steps|passes|updates|GPUs|plans|GPU-hours|frames|epochs|runs|models"
ONE_OF_MANY = re.compile(rf"(?<![\d.,])1(?:\.0+)? (?:accumulation |target |audio )?(?:{COUNTED})\b")


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", html))


def said(result: dict[str, Any]) -> str:
    """Everything that the sections say of a result, a section a line."""
    return "\n".join(text_of(section(result)) for section in sections.SECTIONS.values())


def with_plan(given: dict[str, Any]) -> dict[str, Any]:
    return {**evaluate(given), "planner": planner.plan(given)}


@pytest.mark.parametrize("given", ONES, ids=lambda given: f"{given['model']}-{given['global_batch']}")
def test_one_is_singular(given: dict[str, Any]) -> None:
    result = with_plan(given)
    for line in [*said(result).split("\n"), result["convergence"]["verdict"], result["planner"]["text"]]:
        assert not ONE_OF_MANY.search(line), line


def test_the_calculation_and_the_page_count_alike() -> None:
    for number, nouns, expected in (
        (1, ("sample",), "1 sample"),
        (0, ("sample",), "0 samples"),
        (1_000_000, ("pass", "passes"), "1,000,000 passes"),
    ):
        assert wording.counted(number, *nouns) == f"{page_format.count(number)} {page_format.noun(number, *nouns)}"
        assert wording.counted(number, *nouns) == expected
    assert wording.counted(0.996, "GPU-hour", said="1") == "1 GPU-hour"
    assert page_format.large(1.0) == "1"


def test_the_pattern_finds_what_it_is_to_find() -> None:
    for wrong in ("16 = 1 samples", "1.00 samples", "1 accumulation steps", "at 1 tokens"):
        assert ONE_OF_MANY.search(wrong)
    assert not ONE_OF_MANY.search("1 sample, 11 samples, 1,001 samples, 2.1 GPU-hours")


@pytest.mark.parametrize(
    ("gpu", "gpus", "name"),
    [
        ({"memory_gib": 24}, 1, "a GPU with 24 GiB"),
        ({"memory_gib": 24}, 2, "2 GPUs with 24 GiB"),
        ("rtx-4090-24gb", 1_000_000, "1,000,000 \u00d7 RTX 4090 24 GB"),
    ],
)
def test_cards_are_counted(gpu: Any, gpus: int, name: str) -> None:
    assert f", on {name}." in text_of(sections.answer(evaluate({"model": "gpt2", "gpu": gpu, "gpus": gpus})))


def test_one_gpu_that_offloads_is_one_gpu() -> None:
    result = evaluate({**GPT2, "parallelism": {"strategy": "fsdp", "cpu_offload": "all"}})
    assert "1 GPU, fsdp" in text_of(sections.parts(result))


def test_a_rate_lies_between_two_ends() -> None:
    given = {**GPT2, "tokens": 2.5e9, "global_batch": 256, "known_batch": 64, "known_learning_rate": 3e-4}
    assert re.search(r"Try between\s*[\d.]+ and [\d.]+", text_of(sections.SECTIONS["laws"](evaluate(given))))


@pytest.mark.parametrize("length", [{}, {"epochs": None}, {"deadline_hours": 2}], ids=["run", "updates", "deadline"])
def test_without_a_price_there_are_gpu_hours_and_no_dollars(length: dict[str, Any]) -> None:
    given = {key: value for key, value in {**UNPRICED, **length}.items() if value is not None}
    result = with_plan(given)
    assert result["planner"]["price_source"] is None
    html = text_of(sections.SECTIONS["planner"](result))
    row = result["planner"]["fronts"]["headroom"][0]
    # One GPU: its hours are the run's, or those of the 1,000 updates that the column is of.
    seconds = row["run_seconds"] if "epochs" in given else 1000 * row["update_seconds"]
    assert f"{seconds / 3600:.2f} GPU-hours" in html
    drawn = plots.draw("plans-cost", given, 640)
    assert drawn["table"]["columns"][1].startswith("GPU-hours ")
    for shown in (html, *result["planner"]["notes"], drawn["title"], drawn["text"], drawn["svg"]):
        assert "$" not in shown
        assert "ollar" not in shown


def test_with_a_price_there_are_dollars() -> None:
    result = with_plan({**UNPRICED, "price_per_gpu_hour": 0.5})
    row = result["planner"]["fronts"]["headroom"][0]
    assert f", ${row['run_seconds'] / 3600 * 0.5:.2f}" in text_of(sections.SECTIONS["planner"](result))
    assert plots.draw("plans-cost", {**UNPRICED, "price_per_gpu_hour": 0.5}, 640)["table"]["columns"][1] == (
        "Dollars of the run"
    )


@pytest.mark.parametrize("reading", [{"failed": 3}, {"ran": 100}], ids=["failed", "ran"])
def test_a_reading_that_disagrees_is_said_first_and_in_the_answer(reading: dict[str, int]) -> None:
    result = evaluate({**GPT2, "calibration": [reading]})
    assert result["max_micro_batch"] == evaluate(GPT2)["max_micro_batch"]
    panel = text_of(sections.SECTIONS["calibration"](result))
    assert panel.startswith("This reading disagrees with the answer. Not explained: reading 1: ")
    assert "In use" not in panel
    assert "times 1" not in panel
    assert "Your own reading disagrees with this answer." in text_of(sections.answer(result))
    assert "disagrees" in sections.spoken(result)


def test_a_reading_that_agrees_changes_nothing_and_says_so() -> None:
    largest = evaluate(GPT2)["max_micro_batch"]
    result = evaluate({**GPT2, "calibration": [{"ran": largest - 5, "failed": largest + 5}]})
    assert text_of(sections.SECTIONS["calibration"](result)).startswith("No change. ")
    assert "agree" not in text_of(sections.answer(result))


def test_a_reading_in_use_says_so_beside_one_that_disagrees() -> None:
    card = {"batch": 8, "reading": "card", "gib": 15}
    used = evaluate({**GPT2, "calibration": [card]})
    assert text_of(sections.SECTIONS["calibration"](used)).startswith("In use. ")
    both = evaluate({**GPT2, "calibration": [card, {"failed": 2}]})
    panel = text_of(sections.SECTIONS["calibration"](both))
    assert panel.startswith("Not all readings agree with the answer. The rest is in use. Not explained: reading 2: ")


def test_a_way_says_what_the_host_must_hold() -> None:
    given = {"model": "llama-3.1-8b", "gpu": "rtx-4090-24gb", "global_batch": 64}
    way = {"labels": ["on the host"], "change": {}, "max_micro_batch": 4, "host_bytes": 120 * 2**30}
    html = text_of(
        sections.SECTIONS["ways_to_fit"]({**evaluate(given), "ways_to_fit": [way, {**way, "host_bytes": 0}]})
    )
    assert html.count("fits 4, with 120 GiB in the host\u2019s memory") == 1
