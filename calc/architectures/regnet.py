"""RegNet of torchvision (torchvision/models/regnet.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from calc.architectures.convolutional import ConvNorm, SqueezeExcitation, global_average
from calc.architectures.images import classification_loss, image_batch
from calc.replay import ops
from calc.replay.layers import Blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

STEM_CHANNELS = 32
SQUEEZE_RATIO = 0.25
"""Squeezed channels for each of a block's inputs, in the variants that squeeze (regnet_y)."""


@dataclass(frozen=True)
class Variant:
    """Blocks, width and channels of a group in each stage (BlockParams.from_init_params worked out)."""

    depths: tuple[int, int, int, int]
    widths: tuple[int, int, int, int]
    group_widths: tuple[int, int, int, int]


VARIANTS = {
    "regnet_y_400mf": Variant((1, 3, 6, 6), (48, 104, 208, 440), (8, 8, 8, 8)),
    "regnet_y_800mf": Variant((1, 3, 8, 2), (64, 144, 320, 784), (16, 16, 16, 16)),
    "regnet_y_1_6gf": Variant((2, 6, 17, 2), (48, 120, 336, 888), (24, 24, 24, 24)),
    "regnet_y_3_2gf": Variant((2, 5, 13, 1), (72, 216, 576, 1512), (24, 24, 24, 24)),
    "regnet_y_8gf": Variant((2, 4, 10, 1), (224, 448, 896, 2016), (56, 56, 56, 56)),
    "regnet_y_16gf": Variant((2, 4, 11, 1), (224, 448, 1232, 3024), (112, 112, 112, 112)),
    "regnet_y_32gf": Variant((2, 5, 12, 1), (232, 696, 1392, 3712), (232, 232, 232, 232)),
    "regnet_y_128gf": Variant((2, 7, 17, 1), (528, 1056, 2904, 7392), (264, 264, 264, 264)),
    "regnet_x_400mf": Variant((1, 2, 7, 12), (32, 64, 160, 400), (16, 16, 16, 16)),
    "regnet_x_800mf": Variant((1, 3, 7, 5), (64, 128, 288, 672), (16, 16, 16, 16)),
    "regnet_x_1_6gf": Variant((2, 4, 10, 2), (72, 168, 408, 912), (24, 24, 24, 24)),
    "regnet_x_3_2gf": Variant((2, 6, 15, 2), (96, 192, 432, 1008), (48, 48, 48, 48)),
    "regnet_x_8gf": Variant((2, 5, 15, 1), (80, 240, 720, 1920), (80, 120, 120, 120)),
    "regnet_x_16gf": Variant((2, 6, 13, 1), (256, 512, 896, 2048), (128, 128, 128, 128)),
    "regnet_x_32gf": Variant((2, 7, 13, 1), (336, 672, 1344, 2520), (168, 168, 168, 168)),
}


class Bottleneck:
    """ResBottleneckBlock: grouped bottleneck as wide as its output, squeeze-excitation in regnet_y."""

    def __init__(
        self, build: Build, inputs: int, outputs: int, *, stride: int, group_width: int, squeezes: bool
    ) -> None:
        self.projection = (
            ConvNorm(build, inputs, outputs, stride=stride, act=None) if inputs != outputs or stride != 1 else None
        )
        self.layers: list[ConvNorm | SqueezeExcitation] = [
            ConvNorm(build, inputs, outputs),
            ConvNorm(build, outputs, outputs, 3, stride=stride, groups=outputs // group_width),
        ]
        if squeezes:
            self.layers.append(
                SqueezeExcitation(build, outputs, round(SQUEEZE_RATIO * inputs), act="relu", gate="sigmoid")
            )
        self.layers.append(ConvNorm(build, outputs, outputs, act=None))

    def __call__(self, x: Tensor) -> Tensor:
        identity = x if self.projection is None else self.projection(x)
        for layer in self.layers:
            x = layer(x)
        return ops.activation_inplace(ops.add(identity, x))


class RegNet:
    """RegNet x and y with an image classifier."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        variant = VARIANTS[config["name"]]
        squeezes = config["name"].startswith("regnet_y")
        self.build = build
        self.stem = ConvNorm(build, 3, STEM_CHANNELS, 3, stride=2)
        self.stages = []
        inputs = STEM_CHANNELS
        for depth, width, group_width in zip(variant.depths, variant.widths, variant.group_widths, strict=True):
            make = partial(_block, build, inputs, width, group_width, squeezes)
            self.stages.append(Blocks(build, ["first"] + ["rest"] * (depth - 1), make))
            inputs = width
        self.head = build.linear("fc", inputs, config.get("num_classes", 1000))

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = image_batch(tape, self.build, shape.image_size)
        with tape.within("stem"):
            x = self.stem(x)
        with tape.within("stages"):
            for stage in self.stages:
                x = stage(tape, x)
        with tape.within("head"):
            return classification_loss(self.head(global_average(x)))


def _block(build: Build, stage_inputs: int, width: int, group_width: int, squeezes: bool, index: int) -> Bottleneck:  # noqa: FBT001
    inputs, stride = (stage_inputs, 2) if index == 0 else (width, 1)
    return Bottleneck(build, inputs, width, stride=stride, group_width=group_width, squeezes=squeezes)
