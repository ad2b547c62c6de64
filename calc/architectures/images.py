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


def drop_path(x: Tensor, probability: float) -> Tensor:
    """Hugging Face's stochastic depth: scales the branch, then multiplies each sample by its 0 or 1."""
    if probability <= 0:
        return x
    kept = x.tape.empty((1,), x.dtype, batched=True)
    return ops.mul(ops.scale(x), kept)


def stochastic_depth(x: Tensor, probability: float) -> Tensor:
    """torchvision's stochastic depth: one product with each sample's 0 or 1/(1-p) (ops/stochastic_depth.py)."""
    if probability <= 0:
        return x
    return ops.mul(x, x.tape.empty((1,), x.dtype, batched=True))


def linear_rates(highest: float, count: int) -> list[float]:
    """Drop probability of each block, growing evenly from 0 to ``highest``."""
    return [highest * index / max(1, count - 1) for index in range(count)]
