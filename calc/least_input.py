"""The least input that a model takes, where a smaller one leaves a layer nothing to work on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from calc.errors import ScenarioError
from calc.replay.tape import TooSmallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.architectures.model import Shape

FIELDS = ("image_size", "audio_frames", "sequence_length")
"""The sizes that layers shrink, those first that shrink where a model has several."""
LARGEST = 1 << 23


def too_small(name: str, shape: Shape, forward: Callable[[Shape], object]) -> ScenarioError:
    """Say which input of a model is too small, and the least that its layers take.

    Parameters
    ----------
    name : str
        The model's, for people.
    shape : Shape
        The input that is too small.
    forward : Callable
        Runs the model on an input, and raises `TooSmallError` where that is too small.
    """
    field = next(field for field in FIELDS if getattr(shape, field))
    given: int = getattr(shape, field)

    def runs(size: int) -> bool:
        try:
            forward(replace(shape, **{field: size}))
        except TooSmallError:
            return False
        return True

    least = _least(runs, given)
    if least is None:
        return ScenarioError("model", f"{name} has layers that leave nothing of any input: check its strides")
    return ScenarioError(field, f"{given:,} is too small: the layers of {name} need at least {least:,}")


def _least(runs: Callable[[int], bool], too_few: int) -> int | None:
    """The least size that runs, None where none does; a larger size than one that runs does so too."""
    enough = 2 * too_few
    while not runs(enough):
        too_few, enough = enough, 2 * enough
        if enough > LARGEST:
            return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if runs(middle):
            enough = middle
        else:
            too_few = middle
    return enough
