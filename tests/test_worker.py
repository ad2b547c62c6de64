"""What the page may ask of the worker, asked in CPython."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calc import plots, worker
from calc.evaluation import evaluate
from page import sections

SCENARIO = {"model": "gpt2", "gpu": "rtx-4090-24gb"}


def shown(scenario: dict[str, Any], known: dict[str, str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(worker.show(json.dumps(scenario), json.dumps(known)))
    assert answer["ok"], answer
    return answer


def test_what_the_page_shows_already_does_not_come_again() -> None:
    html = shown(SCENARIO, {})["html"]
    assert set(html) == set(sections.SECTIONS) - {*sections.LATER, *sections.LAST}
    known = {name: digest for name, (digest, _) in html.items()}
    assert shown(SCENARIO, known)["html"] == {}
    other = shown({**SCENARIO, "checkpointing": "full"}, known)["html"]
    assert "answer" in other
    assert "facts" not in other
    assert all(digest == sections.digest(text) != known[name] for name, (digest, text) in other.items())


def test_the_brief_is_of_the_result() -> None:
    brief, result = shown({**SCENARIO, "gpus": 4}, {})["brief"], evaluate({**SCENARIO, "gpus": 4})
    assert brief["max_micro_batch"] == result["max_micro_batch"]
    assert brief["peak_reserved_bytes"] == result["memory"]["peak_reserved_bytes"]
    assert brief["scenario"]["precision"] == result["scenario"]["precision"]
    assert "scaling" in brief["parts"]
    assert "scaling" not in shown(SCENARIO, {})["brief"]["parts"]


@pytest.mark.parametrize("ask", [lambda text: worker.show(text, "{}"), lambda text: worker.section("advice", text)])
def test_a_bad_scenario_names_its_field(ask: Any) -> None:
    answer = json.loads(ask(json.dumps({**SCENARIO, "sequence_length": -1})))
    assert not answer["ok"]
    assert answer["error"]["field"] == "sequence_length"


def test_a_fault_in_a_part_is_that_parts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, Any]:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(plots, "draw", broken)
    monkeypatch.setitem(worker.LATER, "advice", broken)
    text = json.dumps(SCENARIO)
    in_parts = [worker.figure("memory", 640, text), worker.section("advice", text)]
    monkeypatch.setattr(worker, "evaluate_scenario", broken)
    for answer in map(json.loads, [*in_parts, worker.show(text, "{}")]):
        assert not answer["ok"]
        assert "fault of this page (ZeroDivisionError: by zero)" in answer["error"]["message"]


def test_a_figure_that_a_scenario_has_not_is_empty() -> None:
    answer = json.loads(worker.figure("speed-up", 640, json.dumps(SCENARIO)))
    assert answer == {"ok": True, "digest": sections.digest(""), "html": ""}
