"""What a run is to keep to: a deadline and a budget, and whether it does, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS_PER_HOUR = 3600
_SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR
# From how many of a unit on a time is written in it, its seconds and its name.
_UNITS: tuple[tuple[int, float, str], ...] = (
    (2, 365 * _SECONDS_PER_DAY, "years"),
    (2, _SECONDS_PER_DAY, "days"),
    (2, SECONDS_PER_HOUR, "h"),
    (2, 60, "min"),
    (1, 1, "s"),
    (1, 1e-3, "ms"),
    (1, 1e-6, "\u00b5s"),
)
# From so many years on they are written with their power of ten.
_LONGEST_WRITTEN_OUT = 1e15


def hours_text(seconds: float) -> str:
    """Write a time in the unit that a person would say it in, as the page does, to three digits or whole."""
    size, name = next(((size, name) for least, size, name in _UNITS if seconds >= least * size), (1, "s"))
    amount = seconds / size
    return f"{amount:,.0f} {name}" if 100 <= amount < _LONGEST_WRITTEN_OUT else f"{amount:.3g} {name}"


def dollars_text(dollars: float) -> str:
    """Write money, with cents where they matter."""
    return f"${dollars:,.0f}" if dollars >= 100 else f"${dollars:.2f}"


@dataclass(frozen=True, slots=True)
class Goal:
    """The most that the whole run may take; None where that is open."""

    deadline_seconds: float | None = None
    budget_dollars: float | None = None

    @classmethod
    def of(cls, filled: Mapping[str, Any]) -> Goal:
        """Read the goal of a filled-in scenario."""
        hours = filled.get("deadline_hours")
        return cls(None if hours is None else hours * SECONDS_PER_HOUR, filled.get("budget_dollars"))

    def __bool__(self) -> bool:
        """Whether there is anything to keep to."""
        return self.deadline_seconds is not None or self.budget_dollars is not None

    def met(self, seconds: float, dollars: float | None) -> bool:
        """Whether a run of so many seconds and dollars keeps to it; money that is not known keeps to no budget."""
        in_time = self.deadline_seconds is None or seconds <= self.deadline_seconds
        return in_time and (self.budget_dollars is None or (dollars is not None and dollars <= self.budget_dollars))

    def judged(self, seconds: float, dollars: float | None) -> str:
        """Say by how much a run keeps to it or not: ``misses the deadline of 24 h by 3 h``; empty without a goal."""
        said = []
        if self.deadline_seconds is not None:
            over = seconds - self.deadline_seconds
            deadline = f"the deadline of {hours_text(self.deadline_seconds)}"
            said.append(
                f"misses {deadline} by {hours_text(over)}"
                if over > 0
                else f"meets {deadline} with {hours_text(-over)} to spare"
            )
        if self.budget_dollars is not None:
            budget = f"the budget of {dollars_text(self.budget_dollars)}"
            if dollars is None:
                said.append(f"has no price to hold against {budget}")
            elif dollars > self.budget_dollars:
                said.append(f"is {dollars_text(dollars - self.budget_dollars)} over {budget}")
            else:
                said.append(f"leaves {dollars_text(self.budget_dollars - dollars)} of {budget}")
        return " and ".join(said)
