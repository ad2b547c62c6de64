"""Readings from one's own machine: entered one at a time or pasted, kept in the scenario until cleared."""

import json
from typing import Any

from page import fields
from page.files import by_id

KEY = "calibration"
TRIALS = ("ran", "failed")
LARGEST_BATCH = 100_000_000
LARGEST_GIB = 100_000
SMALLEST_GIB = 0.001


def pasted(text: str) -> "tuple[list[Any], str]":
    """The readings in the line that the snippet prints, or none and what is wrong."""
    start, end = text.find("["), text.rfind("]")
    try:
        found = json.loads(text[start : end + 1]) if 0 <= start < end else None
    except ValueError:
        found = None
    if not isinstance(found, list) or not found:
        return [], "Paste the line that begins with [ and ends with ]."
    return found, ""


class Readings:
    """The form for a reading; `form` holds the scenario."""

    def __init__(self, form: Any) -> None:
        self.form = form
        self.accepted: list[Any] = []

    def kind_changed(self) -> None:
        """A batch that ran or failed has no size."""
        by_id("reading-gib-field").hidden = by_id("reading-kind").value in TRIALS

    def _say(self, name: str, message: str) -> None:
        line = by_id(f"{name}-message")
        line.textContent = message
        line.parentElement.classList.toggle("wrong", bool(message))
        if message:
            by_id(name).setAttribute("aria-invalid", "true")
        else:
            by_id(name).removeAttribute("aria-invalid")

    def _number(self, name: str, low: float, high: float, *, whole: bool) -> "float | None":
        value, message = fields.number(by_id(name).value, low, high, whole=whole)
        self._say(name, message)
        return value

    def _set(self, readings: "list[Any]") -> None:
        by_id("readings-message").textContent = ""
        by_id("readings-message").parentElement.classList.remove("wrong")
        self.form.apply({KEY: readings or None})

    def refuse(self, message: str) -> None:
        """Say what the calculation has against the readings, and go back to those that it took."""
        by_id("readings-message").textContent = message
        by_id("readings-message").parentElement.classList.add("wrong")
        self.form.apply({KEY: self.accepted or None})

    def held(self) -> "list[Any]":
        """The scenario's readings."""
        return list(self.form.changes.get(KEY) or [])

    def add(self) -> None:
        """Take the reading in the form, or say what is wrong with it."""
        kind = by_id("reading-kind").value
        batch = self._number("reading-batch", 1, LARGEST_BATCH, whole=True)
        if kind in TRIALS:
            self._say("reading-gib", "")
            if batch is not None:
                self._set(self.held() + [{kind: batch}])
            return
        size = self._number("reading-gib", SMALLEST_GIB, LARGEST_GIB, whole=False)
        if batch is not None and size is not None:
            self._set(self.held() + [{"batch": batch, "reading": kind, "gib": size}])

    def paste(self) -> None:
        """Take what the snippet printed."""
        found, message = pasted(by_id("reading-paste").value)
        self._say("reading-paste", message)
        if found:
            self._set(self.held() + found)

    def forget(self, place: int) -> None:
        """Remove one reading."""
        held = self.held()
        self._set(held[:place] + held[place + 1 :])

    def clear(self) -> None:
        """Remove all readings."""
        self._set([])
