"""What all models of images share: the batch they are given and the classifier's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay import ops
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


def image_batch(tape: Tape, build: Build, size: int, *, channels: int = 3, labels: tuple[int, ...] = (1,)) -> Tensor:
    """Square images in the model's type, and their labels, which the training loop holds as well."""
    tape.batch_input(labels, Dtype.INT64)
    return tape.batch_input((channels, size, size), build.dtype)


def classification_loss(logits: Tensor) -> Tensor:
    """Cross-entropy of one label an image."""
    with logits.tape.within("logits"):
        return ops.cross_entropy(logits)
