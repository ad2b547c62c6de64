"""ShuffleNet v2 of torchvision (torchvision/models/shufflenetv2.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.architectures.convolutional import ConvNorm, Pool, global_average, join_channels
from calc.architectures.images import classification_loss, image_batch
from calc.replay import ops
from calc.replay.layers import Blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

STEM_CHANNELS = 24
REPEATS = (4, 8, 4)
CHANNELS = {
    "shufflenet_v2_x0_5": (48, 96, 192, 1024),
    "shufflenet_v2_x1_0": (116, 232, 464, 1024),
    "shufflenet_v2_x1_5": (176, 352, 704, 1024),
    "shufflenet_v2_x2_0": (244, 488, 976, 2048),
}
"""Output channels of each stage and of the last convolution."""


class Shuffle:
    """InvertedResidual: one half goes through convolutions, the other through its own or none; both are interleaved."""

    def __init__(self, build: Build, inputs: int, outputs: int, *, stride: int) -> None:
        half = outputs // 2
        self.downsamples = stride > 1
        self.side = (
            [ConvNorm(build, inputs, inputs, 3, stride=stride, groups=inputs, act=None), ConvNorm(build, inputs, half)]
            if self.downsamples
            else []
        )
        self.main = [
            ConvNorm(build, inputs if self.downsamples else half, half),
            ConvNorm(build, half, half, 3, stride=stride, groups=half, act=None),
            ConvNorm(build, half, half),
        ]

    def __call__(self, x: Tensor) -> Tensor:
        if self.downsamples:
            kept = branch = x
        else:
            half = (x.shape[0] // 2, *x.shape[1:])
            kept, branch = ops.split(x, [half, half])
        for layer in self.side:
            kept = layer(kept)
        for layer in self.main:
            branch = layer(branch)
        out = join_channels([kept, branch])
        return ops.copy(ops.transposed(out))


class ShuffleNet:
    """ShuffleNet v2 with an image classifier."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        *stages, last = CHANNELS[config["name"]]
        self.build = build
        self.stem = ConvNorm(build, 3, STEM_CHANNELS, 3, stride=2)
        sizes = []
        inputs = STEM_CHANNELS
        for outputs, count in zip(stages, REPEATS, strict=True):
            sizes += [(inputs, outputs, 2)] + [(outputs, outputs, 1)] * (count - 1)
            inputs = outputs
        self.blocks = Blocks(build, sizes, lambda i: Shuffle(build, *sizes[i][:2], stride=sizes[i][2]))
        self.last = ConvNorm(build, inputs, last)
        self.head = build.linear("fc", last, config.get("num_classes", 1000))

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = image_batch(tape, self.build, shape.image_size)
        with tape.within("stem"):
            x = Pool(3, 2, 1)(self.stem(x))
        with tape.within("stages"):
            x = self.last(self.blocks(tape, x))
        with tape.within("head"):
            return classification_loss(self.head(global_average(x)))
