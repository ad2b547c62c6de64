"""How a scenario's numbers are read, whole ones too, and how what is wrong is shown to the person who typed it."""

from __future__ import annotations

import math
from typing import TypeGuard

from calc.errors import ScenarioError


def shown(value: object) -> str:
    """What was typed, shortened."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a finite number; true and false are none, and a whole number may have any length."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a whole number, be it written with a decimal point."""
    return is_number(value) and value == int(value)


def number(value: object, field: str, low: float, high: float) -> float:
    """Read a number.

    Raises
    ------
    ScenarioError
        If it is no number from ``low`` to ``high``.
    """
    allowed = f"allowed is a number from {low:,g} to {high:,g}"
    if not is_number(value):
        raise ScenarioError(field, f"{shown(value)} is not a number: {allowed}")
    if not low <= value <= high:
        raise ScenarioError(field, f"{shown(value)} is out of range: {allowed}")
    return value


def whole(value: object, field: str, low: int, high: int) -> int:
    """Read a whole number, be it written with a decimal point.

    Raises
    ------
    ScenarioError
        If it is no whole number from ``low`` to ``high``.
    """
    allowed = f"allowed is a whole number from {low:,} to {high:,}"
    if not is_number(value):
        raise ScenarioError(field, f"{shown(value)} is not a number: {allowed}")
    if not is_whole(value):
        raise ScenarioError(field, f"{shown(value)} is not whole: {allowed}")
    if not low <= value <= high:
        raise ScenarioError(field, f"{shown(value)} is out of range: {allowed}")
    return int(value)
