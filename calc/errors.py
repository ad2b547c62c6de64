"""The one error that a user's input may raise."""

from __future__ import annotations


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
