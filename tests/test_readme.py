"""What README.md says of the errors is what the rows say."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from calc import accuracy
from tests.test_published_runs import error_percent, rows_of

TEXT = " ".join((Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return accuracy.table()


def errors_percent(table: dict[str, Any], quantity: str) -> list[float]:
    return sorted(100 * abs(step[quantity]["error"]) for step in table["steps"])


def of_95_in_100(errors: list[float], digits: int) -> float:
    """What 95 in 100 stay within, rounded up: they must."""
    unit = 10.0**-digits
    return ceil(errors[ceil(0.95 * len(errors)) - 1] / unit) * unit


def test_memory_of_the_measured_steps(table: dict[str, Any]) -> None:
    peak, reserved = (errors_percent(table, f"peak_{kind}_bytes") for kind in ("allocated", "reserved"))
    assert f"Against {len(peak)} real training steps" in TEXT
    assert (
        f"a median error of {median(peak):.2f} %, 95 % of steps within {of_95_in_100(peak, 1):.1f} %, "
        f"the worst {peak[-1]:.1f} %"
    ) in TEXT
    assert f"a median error of {median(reserved):.1f} %, 95 % within {of_95_in_100(reserved, 0):.0f} %" in TEXT


def test_seconds_of_the_measured_steps(table: dict[str, Any]) -> None:
    assert f"a median error of {median(errors_percent(table, 'step_seconds')):.0f} %" in TEXT


def test_measured_limits(table: dict[str, Any]) -> None:
    assert f"Of {len(table['limits'])} measured limits" in TEXT
    assert f"{table['limits_inside']} are met exactly" in TEXT


@pytest.mark.parametrize("reading", ["allocated", "reserved"])
def test_published_runs(reading: str) -> None:
    percent = ceil(median(abs(error_percent(row)) for row in rows_of(reading)))
    assert f"within {percent} % at the median where they report what is {reading}" in TEXT or (
        f"within {percent} % where they report what is {reading}" in TEXT
    )
