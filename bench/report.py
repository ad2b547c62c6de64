"""The measurements as a table, and beside each bound what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MB = 10**6


@dataclass(frozen=True, slots=True)
class Bound:
    """What a measurement may be at most: a value of our page, alone or divided by one of another page."""

    says: str
    value: tuple[str, str]
    at_most: float
    divided_by: tuple[str, str, str] | None = None
    unit: str = ""
    scale: float = 1.0

    def measured(self, medians: Mapping[str, Any]) -> float | None:
        """Return the measured value; None where it was not measured."""
        try:
            condition, key = self.value
            value: float = medians["ours"][condition][key]
            if self.divided_by:
                page, other_condition, other_key = self.divided_by
                value /= medians[page][other_condition][other_key]
        except KeyError:
            return None
        return value / self.scale


# Before app:alive 250 kB may be sent besides MicroPython, which takes 225 kB.
BOUNDS = (
    Bound("first paint, cold, against the page without scripts", ("cold", "paint"), 1.1, ("html", "cold", "paint")),
    Bound("app:alive, cold", ("cold", "alive"), 1500, unit=" ms"),
    Bound("first answer, cold, against the plain page", ("cold", "numbers"), 0.18, ("plain", "cold", "numbers")),
    Bound("first answer, cold, against loadPyodide()", ("cold", "numbers"), 0.40, ("bare", "cold", "numbers")),
    Bound("first answer, warm, against the plain page", ("warm", "numbers"), 0.10, ("plain", "warm", "numbers")),
    Bound("first answer, warm, against loadPyodide()", ("warm", "numbers"), 0.25, ("bare", "warm", "numbers")),
    Bound("figures in view, cold, against the plain page's first", ("cold", "ready"), 0.25, ("plain", "cold", "ready")),
    Bound("figures in view, warm, against the plain page's first", ("warm", "ready"), 0.15, ("plain", "warm", "ready")),
    Bound("all figures, cold, against the plain page", ("cold", "figures"), 0.25, ("plain", "cold", "figures")),
    Bound("all figures, warm, against the plain page", ("warm", "figures"), 0.15, ("plain", "warm", "figures")),
    Bound("longest main-thread task after app:alive, cold", ("cold", "longest_task_after_alive"), 50, unit=" ms"),
    Bound("sent before all figures, cold", ("cold", "sent_bytes"), 16, unit=" MB", scale=MB),
    Bound("sent before app:alive, cold", ("cold", "sent_bytes_before_alive"), 0.475, unit=" MB", scale=MB),
    Bound("new numbers after a change, 95 %", ("warm", "changed_numbers"), 32, unit=" ms"),
    Bound("a new figure in view after a change, 95 %", ("warm", "changed_figure"), 300, unit=" ms"),
    Bound("page memory, cold", ("cold", "memory_bytes"), 350, unit=" MB", scale=MB),
    Bound("layout shift", ("cold", "layout_shift"), 0.02),
)

COLUMNS = (
    ("first paint", "paint", "ms"),
    ("alive", "alive", "ms"),
    ("first answer", "numbers", "ms"),
    ("figures in view", "ready", "ms"),
    ("all figures", "figures", "ms"),
    ("longest task", "longest_task", "ms"),
    ("sent", "sent_bytes", "MB"),
    ("memory", "memory_bytes", "MB"),
)


def markdown(results: Mapping[str, Any]) -> str:
    """Return the medians and the bounds as Markdown."""
    medians = results["medians"]
    machine = ", ".join(str(value) for value in results["machine"].values() if value)
    lines = [
        "# Measurements",
        "",
        f"Medians of {results['rounds']} interleaved rounds. {machine}. bench/sites.py says what the pages are.",
        "",
        "| page | condition | " + " | ".join(f"{title}, {unit}" for title, _, unit in COLUMNS) + " |",
        "|---|---|" + "---:|" * len(COLUMNS),
    ]
    for page, conditions in medians.items():
        for condition, values in conditions.items():
            cells = [cell(values.get(key), unit) for _, key, unit in COLUMNS]
            lines.append(f"| {page} | {condition} | " + " | ".join(cells) + " |")
    lines += ["", "| bound | measured | at most | |", "|---|---:|---:|---|"]
    for bound in BOUNDS:
        value = bound.measured(medians)
        if value is not None:
            verdict = "held" if value <= bound.at_most else "**not held**"
            lines.append(f"| {bound.says} | {value:.3g}{bound.unit} | {bound.at_most:g}{bound.unit} | {verdict} |")
    return "\n".join(lines) + "\n"


def cell(value: float | None, unit: str) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return ""
    return f"{value / MB:.1f}" if unit == "MB" else f"{value:.0f}"
