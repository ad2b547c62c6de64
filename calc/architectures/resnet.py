"""Residual networks of torchvision (torchvision/models/resnet.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.architectures.images import classification_loss, image_batch
from calc.replay import ops
from calc.replay.layers import BatchNorm, Blocks, Conv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

STEM_CHANNELS = 64


@dataclass(frozen=True)
class Variant:
    """Blocks of each stage, whether they are bottlenecks, and the width and number of their groups."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool = True
    groups: int = 1
    width_per_group: int = 64


VARIANTS = {
    "resnet18": Variant((2, 2, 2, 2), bottleneck=False),
    "resnet34": Variant((3, 4, 6, 3), bottleneck=False),
    "resnet50": Variant((3, 4, 6, 3)),
    "resnet101": Variant((3, 4, 23, 3)),
    "resnet152": Variant((3, 8, 36, 3)),
    "resnext50_32x4d": Variant((3, 4, 6, 3), groups=32, width_per_group=4),
    "resnext101_32x8d": Variant((3, 4, 23, 3), groups=32, width_per_group=8),
    "resnext101_64x4d": Variant((3, 4, 23, 3), groups=64, width_per_group=4),
    "wide_resnet50_2": Variant((3, 4, 6, 3), width_per_group=128),
    "wide_resnet101_2": Variant((3, 4, 23, 3), width_per_group=128),
}


class Residual:
    """BasicBlock or Bottleneck: convolutions with batch norms, the input or its projection added in place."""

    def __init__(
        self, build: Build, inputs: int, planes: int, variant: Variant, *, stride: int, dilation: int = 1, project: bool
    ) -> None:
        outputs = planes * expansion(variant)
        width = int(planes * variant.width_per_group / 64) * variant.groups
        if variant.bottleneck:
            sizes = [(inputs, width, 1, 1, 1), (width, width, 3, stride, variant.groups), (width, outputs, 1, 1, 1)]
        else:
            sizes = [(inputs, planes, 3, stride, 1), (planes, planes, 3, 1, 1)]
        self.layers = [
            _conv_norm(build, before, after, kernel, stride=step, dilation=dilation, groups=groups)
            for before, after, kernel, step, groups in sizes
        ]
        self.projection = _conv_norm(build, inputs, outputs, 1, stride=stride) if project else None

    def __call__(self, x: Tensor) -> Tensor:
        identity = out = x
        for conv, norm in self.layers[:-1]:
            out = conv(out)
            out = ops.activation_inplace(norm(out))
        conv, norm = self.layers[-1]
        out = conv(out)
        out = norm(out)
        if self.projection is not None:
            conv, norm = self.projection
            identity = norm(conv(x))
        return ops.activation_inplace(ops.add_inplace(out, identity))


def _conv_norm(
    build: Build, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1
) -> tuple[Conv, BatchNorm]:
    spread = dilation if kernel > 1 else 1
    conv = Conv(
        build,
        "conv",
        inputs,
        outputs,
        (kernel, kernel),
        stride=stride,
        padding=spread * (kernel // 2),
        dilation=spread,
        groups=groups,
        bias=False,
    )
    return conv, BatchNorm(build, "norm", outputs)


def expansion(variant: Variant) -> int:
    """Output channels of a block for each of its planes."""
    return 4 if variant.bottleneck else 1


class Backbone:
    """Everything up to the last stage. ``dilated`` stages keep their resolution and spread their kernels instead."""

    def __init__(
        self, build: Build, variant: Variant, *, dilated: tuple[bool, bool, bool] = (False, False, False)
    ) -> None:
        self.build = build
        self.stem = Conv(build, "conv1", 3, STEM_CHANNELS, (7, 7), stride=2, padding=3, bias=False)
        self.stem_norm = BatchNorm(build, "bn1", STEM_CHANNELS)
        self.stages = []
        inputs, dilation = STEM_CHANNELS, 1
        for stage, count in enumerate(variant.blocks):
            planes = 64 * 2**stage
            stride, before = (1 if stage == 0 else 2), dilation
            if stage and dilated[stage - 1]:
                dilation, stride = dilation * stride, 1
            outputs = planes * expansion(variant)
            first = (inputs, stride, before, stride != 1 or inputs != outputs)
            rest = (outputs, 1, dilation, False)

            def make(
                index: int,
                first: tuple[int, int, int, bool] = first,
                rest: tuple[int, int, int, bool] = rest,
                planes: int = planes,
            ) -> Residual:
                channels, step, spread, project = first if index == 0 else rest
                return Residual(build, channels, planes, variant, stride=step, dilation=spread, project=project)

            kinds = ["first" if first != rest else "rest"] + ["rest"] * (count - 1)
            self.stages.append(Blocks(build, kinds, make))
            inputs = outputs
        self.channels = inputs

    def __call__(self, tape: Tape, images: Tensor) -> Tensor:
        with tape.within("stem"):
            x = self.stem(images)
            x = ops.activation_inplace(self.stem_norm(x))
            x = ops.max_pool(x, ops.pooled(x.shape, 3, stride=2, padding=1))
        with tape.within("stages"):
            for stage in self.stages:
                x = stage(tape, x)
        return x


class ResNet:
    """torchvision's ResNet, ResNeXt and Wide ResNet."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        self.build = build
        self.backbone = Backbone(build, VARIANTS[config["name"]])
        self.head = build.linear("fc", self.backbone.channels, config.get("num_classes", 1000))

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = self.backbone(tape, image_batch(tape, self.build, shape.image_size))
        with tape.within("head"):
            x = ops.average_pool(x, (x.shape[0], 1, 1), keeps_input=False)
            return classification_loss(self.head(x.view(x.shape[0])))
