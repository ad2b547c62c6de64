"""What every architecture gives: its parameters, and a forward that ends in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


@dataclass(frozen=True)
class Shape:
    """Input sizes of one sample; only those that the model has are read."""

    sequence_length: int = 0
    target_length: int = 0
    image_size: int = 0
    audio_frames: int = 0


class Model(Protocol):
    """A model under one recipe."""

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        """Forward of one micro-batch, labels included, as the library's own class computes the loss."""


class Architecture(Protocol):
    """Builds a model from a completed configuration."""

    def __call__(self, build: Build, config: Mapping[str, Any]) -> Model:
        """Creates the parameters."""
