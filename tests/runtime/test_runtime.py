"""Python in the page is the same from the boot snapshot and the ordinary way; a bad snapshot is refused."""

from __future__ import annotations

import ast
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from calc.evaluation import evaluate

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

pytestmark = pytest.mark.skipif(
    not (ROOT / "_site/vendor/snapshot/calc.bin").exists(), reason="`make build` makes the snapshot"
)

# The names in checks.py, which only the page's Python can import.
CHECKS = next(
    [check.id for check in node.value.generators[0].iter.elts]  # type: ignore[attr-defined]
    for node in ast.parse((HERE / "checks.py").read_text()).body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.DictComp)
)

# As in changes.py, which only the page's Python can import.
NUMBERS_OF = ("gpt2", "resnet50", "llama-3.2-1b", "vit_b_16")


@cache
def run(how: str) -> dict[str, Any]:
    """Start the built site's Python under Node and return what run.mjs prints last."""
    command = ["node", str(HERE / "run.mjs"), how]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


@pytest.mark.parametrize("check", CHECKS)
def test_a_start_from_the_snapshot_computes_what_the_ordinary_start_computes(check: str) -> None:
    ordinary = run("ordinary")["answers"][check]
    assert not ordinary.startswith("FAILED")
    assert run("snapshot")["answers"][check] == ordinary


def test_drawing_takes_no_more_memory_after_the_snapshot() -> None:
    # Memory grows in steps of a fifth of what there is, so one step decides nothing.
    one_step = 1.2
    assert run("snapshot")["memory"] <= one_step * run("ordinary")["memory"]


def test_numbers_do_not_wait_for_the_libraries() -> None:
    answer = run("numbers-first")
    assert answer["numbers"] == [evaluate({"model": model})["max_micro_batch"] for model in NUMBERS_OF]
    assert answer["after"]["svg_figure"] == run("ordinary")["answers"]["svg_figure"]


def test_memory_does_not_grow_over_a_thousand_changes_an_eighth_of_them_drawn() -> None:
    answer = run("changes")
    assert answer["after"]["memory"] == answer["before"]["memory"]
    assert answer["after"]["objects"] <= 1.01 * answer["before"]["objects"]


def test_a_change_takes_no_longer_than_four_plain_loops() -> None:
    # Three on a quiet machine; of times alone nothing could be said.
    pace = run("pace")
    assert pace["change"] <= 4 * pace["loop"]


def test_the_snapshot_has_its_first_figure_well_before_the_ordinary_start() -> None:
    # A third on a quiet machine; of times alone nothing could be said.
    times = run("times")
    assert times["snapshot"] <= 0.6 * times["ordinary"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("cut-short", "ends too early"),
        ("empty", "ends too early"),
        ("other-build", "made for build another"),
        ("other-version", "different versions"),
        ("other-table", "functions instead of"),
        ("no-memory", "no more memory"),
    ],
)
def test_a_damaged_snapshot_is_refused_so_that_the_ordinary_start_follows(damage: str, reason: str) -> None:
    assert reason in run(damage)["failed"]
