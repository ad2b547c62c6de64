"""Networks of inverted residuals of torchvision: MobileNet v2 and v3, MNASNet, EfficientNet v1 and v2.

torchvision/models/{mobilenetv2,mobilenetv3,mnasnet,efficientnet}.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from calc.architectures.convolutional import ConvNorm, SqueezeExcitation, divisible_by_8, global_average
from calc.architectures.images import classification_loss, image_batch, stochastic_depth
from calc.replay import ops
from calc.replay.layers import Blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


@dataclass(frozen=True)
class Inverted:
    """One inverted residual.

    ``expanded`` channels between a convolution that widens (left out where nothing widens) and one that narrows;
    ``squeezed`` 0 leaves the squeeze-excitation out; ``fused``: one full convolution widens, in place of a pointwise
    and a depthwise one; ``inplace``: the block's sum overwrites the branch.
    """

    inputs: int
    expanded: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    act: str = "relu"
    squeezed: int = 0
    squeeze_act: str = "relu"
    gate: str = "sigmoid"
    fused: bool = False
    inplace: bool = True
    dilation: int = 1
    dropped: bool = False

    @property
    def adds(self) -> bool:
        """Whether the block's input is added to its output."""
        return self.stride == 1 and self.inputs == self.outputs


class InvertedResidual:
    """InvertedResidual of MobileNet and MNASNet, MBConv and FusedMBConv of EfficientNet."""

    def __init__(self, build: Build, block: Inverted) -> None:
        self.block = block
        inner = block.expanded
        widens = inner != block.inputs
        self.layers: list[ConvNorm | SqueezeExcitation] = []
        if block.fused:
            first = inner if widens else block.outputs
            self.layers.append(ConvNorm(build, block.inputs, first, block.kernel, stride=block.stride, act=block.act))
        else:
            if widens:
                self.layers.append(ConvNorm(build, block.inputs, inner, act=block.act))
            stride = 1 if block.dilation > 1 else block.stride
            self.layers.append(
                ConvNorm(
                    build,
                    inner,
                    inner,
                    block.kernel,
                    stride=stride,
                    groups=inner,
                    dilation=block.dilation,
                    act=block.act,
                )
            )
            if block.squeezed:
                self.layers.append(
                    SqueezeExcitation(build, inner, block.squeezed, act=block.squeeze_act, gate=block.gate)
                )
        if widens or not block.fused:
            self.layers.append(ConvNorm(build, inner, block.outputs, act=None))

    def __call__(self, x: Tensor) -> Tensor:
        out = x
        for layer in self.layers:
            out = layer(out)
        if not self.block.adds:
            return out
        out = stochastic_depth(out, 1.0 if self.block.dropped else 0.0)
        return ops.add_inplace(out, x) if self.block.inplace else ops.add(x, out)


@dataclass(frozen=True)
class Plan:
    """A network: channels and activation of its stem, its blocks, the last convolution, and the classifier.

    ``hidden`` is the width of a classifier's inner layer (MobileNet v3); ``dropout_inplace`` multiplies by noise of
    the activations' own type, else a mask of bytes is kept.
    """

    stem: int
    act: str
    blocks: tuple[Inverted, ...]
    last: int
    dropout: float = 0.2
    dropout_inplace: bool = True
    hidden: int = 0


def _mobilenet_v2() -> Plan:
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    blocks = []
    inputs = 32
    for expansion, outputs, count, stride in settings:
        for index in range(count):
            step = stride if index == 0 else 1
            blocks.append(Inverted(inputs, inputs * expansion, outputs, 3, step, "relu6", inplace=False))
            inputs = outputs
    return Plan(32, "relu6", tuple(blocks), 1280, dropout_inplace=False)


V3_LARGE = (
    (16, 3, 16, 16, False, "relu", 1),
    (16, 3, 64, 24, False, "relu", 2),
    (24, 3, 72, 24, False, "relu", 1),
    (24, 5, 72, 40, True, "relu", 2),
    (40, 5, 120, 40, True, "relu", 1),
    (40, 5, 120, 40, True, "relu", 1),
    (40, 3, 240, 80, False, "hardswish", 2),
    (80, 3, 200, 80, False, "hardswish", 1),
    (80, 3, 184, 80, False, "hardswish", 1),
    (80, 3, 184, 80, False, "hardswish", 1),
    (80, 3, 480, 112, True, "hardswish", 1),
    (112, 3, 672, 112, True, "hardswish", 1),
    (112, 5, 672, 160, True, "hardswish", 2),
    (160, 5, 960, 160, True, "hardswish", 1),
    (160, 5, 960, 160, True, "hardswish", 1),
)
"""Inputs, kernel, expanded, outputs, squeeze-excitation, activation, stride (mobilenetv3.py, _mobilenet_v3_conf)."""
V3_SMALL = (
    (16, 3, 16, 16, True, "relu", 2),
    (16, 3, 72, 24, False, "relu", 2),
    (24, 3, 88, 24, False, "relu", 1),
    (24, 5, 96, 40, True, "hardswish", 2),
    (40, 5, 240, 40, True, "hardswish", 1),
    (40, 5, 240, 40, True, "hardswish", 1),
    (40, 5, 120, 48, True, "hardswish", 1),
    (48, 5, 144, 48, True, "hardswish", 1),
    (48, 5, 288, 96, True, "hardswish", 2),
    (96, 5, 576, 96, True, "hardswish", 1),
    (96, 5, 576, 96, True, "hardswish", 1),
)


def mobilenet_v3_plan(
    rows: Sequence[tuple[int, int, int, int, bool, str, int]], hidden: int, *, dilated: bool = False
) -> Plan:
    """``dilated``: the last three blocks keep their resolution, for segmentation."""
    blocks = [
        Inverted(
            inputs,
            expanded,
            outputs,
            kernel,
            stride,
            act,
            squeezed=divisible_by_8(expanded // 4) if squeeze else 0,
            gate="hardsigmoid",
            dilation=2 if dilated and index >= len(rows) - 3 else 1,
        )
        for index, (inputs, kernel, expanded, outputs, squeeze, act, stride) in enumerate(rows)
    ]
    return Plan(16, "hardswish", tuple(blocks), 6 * blocks[-1].outputs, hidden=hidden)


def _mnasnet(alpha: float) -> Plan:
    depths = [divisible_by_8(depth * alpha) for depth in (32, 16, 24, 40, 80, 96, 192, 320)]
    blocks = [Inverted(depths[0], depths[0], depths[1], inplace=False)]
    stacks = ((3, 2, 3, 3), (5, 2, 3, 3), (5, 2, 6, 3), (3, 1, 6, 2), (5, 2, 6, 4), (3, 1, 6, 1))
    inputs = depths[1]
    for outputs, (kernel, stride, expansion, count) in zip(depths[2:], stacks, strict=True):
        for index in range(count):
            step = stride if index == 0 else 1
            blocks.append(Inverted(inputs, inputs * expansion, outputs, kernel, step, inplace=False))
            inputs = outputs
    return Plan(depths[0], "relu", tuple(blocks), 1280)


@dataclass(frozen=True)
class Stage:
    """EfficientNet's stage: expansion, kernel, stride, channels, blocks, and whether they are fused."""

    expansion: int
    kernel: int
    stride: int
    inputs: int
    outputs: int
    count: int
    fused: bool = False


V1_STAGES = (
    Stage(1, 3, 1, 32, 16, 1),
    Stage(6, 3, 2, 16, 24, 2),
    Stage(6, 5, 2, 24, 40, 2),
    Stage(6, 3, 2, 40, 80, 3),
    Stage(6, 5, 1, 80, 112, 3),
    Stage(6, 5, 2, 112, 192, 4),
    Stage(6, 3, 1, 192, 320, 1),
)
V2_STAGES = {
    "s": (
        Stage(1, 3, 1, 24, 24, 2, fused=True),
        Stage(4, 3, 2, 24, 48, 4, fused=True),
        Stage(4, 3, 2, 48, 64, 4, fused=True),
        Stage(4, 3, 2, 64, 128, 6),
        Stage(6, 3, 1, 128, 160, 9),
        Stage(6, 3, 2, 160, 256, 15),
    ),
    "m": (
        Stage(1, 3, 1, 24, 24, 3, fused=True),
        Stage(4, 3, 2, 24, 48, 5, fused=True),
        Stage(4, 3, 2, 48, 80, 5, fused=True),
        Stage(4, 3, 2, 80, 160, 7),
        Stage(6, 3, 1, 160, 176, 14),
        Stage(6, 3, 2, 176, 304, 18),
        Stage(6, 3, 1, 304, 512, 5),
    ),
    "l": (
        Stage(1, 3, 1, 32, 32, 4, fused=True),
        Stage(4, 3, 2, 32, 64, 7, fused=True),
        Stage(4, 3, 2, 64, 96, 7, fused=True),
        Stage(4, 3, 2, 96, 192, 10),
        Stage(6, 3, 1, 192, 224, 19),
        Stage(6, 3, 2, 224, 384, 25),
        Stage(6, 3, 1, 384, 640, 7),
    ),
}


def _efficientnet(stages: Sequence[Stage], *, dropout: float, last: int = 0) -> Plan:
    blocks: list[Inverted] = []
    for stage in stages:
        for index in range(stage.count):
            inputs = stage.inputs if index == 0 else stage.outputs
            expanded = divisible_by_8(inputs * stage.expansion)
            blocks.append(
                Inverted(
                    inputs,
                    expanded,
                    stage.outputs,
                    stage.kernel,
                    stage.stride if index == 0 else 1,
                    "silu",
                    squeezed=0 if stage.fused else max(1, inputs // 4),
                    squeeze_act="silu",
                    fused=stage.fused,
                    dropped=bool(blocks),
                )
            )
    return Plan(stages[0].inputs, "silu", tuple(blocks), last or 4 * stages[-1].outputs, dropout=dropout)


def _scaled(width: float, depth: float, dropout: float) -> Plan:
    stages = [
        replace(
            stage,
            inputs=divisible_by_8(stage.inputs * width),
            outputs=divisible_by_8(stage.outputs * width),
            count=ceil(stage.count * depth),
        )
        for stage in V1_STAGES
    ]
    return _efficientnet(stages, dropout=dropout)


PLANS = {
    "mobilenet_v2": _mobilenet_v2(),
    "mobilenet_v3_large": mobilenet_v3_plan(V3_LARGE, 1280),
    "mobilenet_v3_small": mobilenet_v3_plan(V3_SMALL, 1024),
    "mnasnet0_5": _mnasnet(0.5),
    "mnasnet0_75": _mnasnet(0.75),
    "mnasnet1_0": _mnasnet(1.0),
    "mnasnet1_3": _mnasnet(1.3),
    "efficientnet_b0": _scaled(1.0, 1.0, 0.2),
    "efficientnet_b1": _scaled(1.0, 1.1, 0.2),
    "efficientnet_b2": _scaled(1.1, 1.2, 0.3),
    "efficientnet_b3": _scaled(1.2, 1.4, 0.3),
    "efficientnet_b4": _scaled(1.4, 1.8, 0.4),
    "efficientnet_b5": _scaled(1.6, 2.2, 0.4),
    "efficientnet_b6": _scaled(1.8, 2.6, 0.5),
    "efficientnet_b7": _scaled(2.0, 3.1, 0.5),
    "efficientnet_v2_s": _efficientnet(V2_STAGES["s"], dropout=0.2, last=1280),
    "efficientnet_v2_m": _efficientnet(V2_STAGES["m"], dropout=0.3, last=1280),
    "efficientnet_v2_l": _efficientnet(V2_STAGES["l"], dropout=0.4, last=1280),
}


class Features:
    """Stem and blocks of a plan."""

    def __init__(self, build: Build, plan: Plan) -> None:
        self.stem = ConvNorm(build, 3, plan.stem, 3, stride=2, act=plan.act)
        self.blocks = Blocks(build, plan.blocks, lambda index: InvertedResidual(build, plan.blocks[index]))

    def __call__(self, tape: Tape, images: Tensor) -> Tensor:
        with tape.within("stem"):
            x = self.stem(images)
        with tape.within("stages"):
            return self.blocks(tape, x)


class MobileNet:
    """A network of inverted residuals with an image classifier."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        plan = PLANS[config["name"]]
        classes = config.get("num_classes", 1000)
        self.build = build
        self.plan = plan
        self.features = Features(build, plan)
        self.last = ConvNorm(build, plan.blocks[-1].outputs, plan.last, act=plan.act)
        self.inner = build.linear("classifier.0", plan.last, plan.hidden) if plan.hidden else None
        self.head = build.linear("classifier", plan.hidden or plan.last, classes)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = self.features(tape, image_batch(tape, self.build, shape.image_size))
        with tape.within("stages"):
            x = self.last(x)
        with tape.within("head"):
            x = global_average(x)
            if self.inner is not None:
                x = ops.pointwise(self.inner(x))
            drop = ops.dropout_inplace if self.plan.dropout_inplace else ops.dropout
            x = drop(x, self.plan.dropout)
            return classification_loss(self.head(x))
