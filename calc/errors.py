"""The one error that a user's input may raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ScenarioError(ValueError):
    """A scenario, or a part of it, cannot be answered.

    Parameters
    ----------
    field : str
        The scenario's field that is wrong, such as ``sequence_length``.
    message : str
        What is wrong and what is allowed, in words for the person who typed it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def only_known(given: Mapping[str, Any], keys: Sequence[str], field: str = "") -> None:
    """Refuse an object's key that nothing reads: a misspelt one would leave its default standing in silence.

    Parameters
    ----------
    given : Mapping
        The scenario, or an object in it.
    keys : Sequence of str
        What it may have.
    field : str
        The object's own field, empty for the scenario itself.

    Raises
    ------
    ScenarioError
        The first unknown key, with those that are allowed.
    """
    unknown = next((key for key in given if key not in keys), None)
    if unknown is None:
        return
    named = ".".join(part for part in (field, str(unknown)) if part) or "scenario"
    where = f" of {field}" if field else ""
    raise ScenarioError(named, f"{unknown!r} is no field{where}: allowed are {', '.join(keys)}")
