"""GoogLeNet and Inception v3 of torchvision, without auxiliary heads (torchvision/models/{googlenet,inception}.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.architectures.convolutional import Pool, global_average, join_channels
from calc.architectures.images import classification_loss, image_batch
from calc.replay import ops
from calc.replay.layers import BatchNorm, Conv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


@dataclass(frozen=True)
class Convolution:
    """BasicConv2d: a convolution without bias, batch normalization, ReLU in place."""

    channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Average:
    """An average over windows of three that keeps the image's size."""

    def __call__(self, x: Tensor) -> Tensor:
        return ops.average_pool(x, x.shape)


@dataclass(frozen=True)
class Fork:
    """Branches that read one tensor and whose outputs are joined along the channels."""

    branches: tuple[tuple[Convolution | Average | Pool | Fork, ...], ...]


Step = Convolution | Average | Pool | Fork


def _same(channels: int, height: int, width: int | None = None) -> Convolution:
    wide = height if width is None else width
    return Convolution(channels, (height, wide), padding=(height // 2, wide // 2))


def _inception(one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> Fork:
    """GoogLeNet's block. The branch of five uses kernels of three in torchvision."""
    pool = Pool(3, 1, 1, ceil_mode=True)
    return Fork(
        (
            (Convolution(one),),
            (Convolution(three[0]), _same(three[1], 3)),
            (Convolution(five[0]), _same(five[1], 3)),
            (pool, Convolution(pooled)),
        )
    )


_HALVE = Pool(3, 2, ceil_mode=True)
GOOGLENET: tuple[Step, ...] = (
    Convolution(64, (7, 7), 2, (3, 3)),
    _HALVE,
    Convolution(64),
    _same(192, 3),
    _HALVE,
    _inception(64, (96, 128), (16, 32), 32),
    _inception(128, (128, 192), (32, 96), 64),
    _HALVE,
    _inception(192, (96, 208), (16, 48), 64),
    _inception(160, (112, 224), (24, 64), 64),
    _inception(128, (128, 256), (24, 64), 64),
    _inception(112, (144, 288), (32, 64), 64),
    _inception(256, (160, 320), (32, 128), 128),
    Pool(2, 2, ceil_mode=True),
    _inception(256, (160, 320), (32, 128), 128),
    _inception(384, (192, 384), (48, 128), 128),
)


def _inception_a(pooled: int) -> Fork:
    return Fork(
        (
            (Convolution(64),),
            (Convolution(48), _same(64, 5)),
            (Convolution(64), _same(96, 3), _same(96, 3)),
            (Average(), Convolution(pooled)),
        )
    )


def _inception_c(inner: int) -> Fork:
    return Fork(
        (
            (Convolution(192),),
            (Convolution(inner), _same(inner, 1, 7), _same(192, 7, 1)),
            (Convolution(inner), _same(inner, 7, 1), _same(inner, 1, 7), _same(inner, 7, 1), _same(192, 1, 7)),
            (Average(), Convolution(192)),
        )
    )


_INCEPTION_E = Fork(
    (
        (Convolution(320),),
        (Convolution(384), Fork(((_same(384, 1, 3),), (_same(384, 3, 1),)))),
        (Convolution(448), _same(384, 3), Fork(((_same(384, 1, 3),), (_same(384, 3, 1),)))),
        (Average(), Convolution(192)),
    )
)
INCEPTION_V3: tuple[Step, ...] = (
    Convolution(32, (3, 3), 2),
    Convolution(32, (3, 3)),
    _same(64, 3),
    Pool(3, 2),
    Convolution(80),
    Convolution(192, (3, 3)),
    Pool(3, 2),
    _inception_a(32),
    _inception_a(64),
    _inception_a(64),
    Fork(((Convolution(384, (3, 3), 2),), (Convolution(64), _same(96, 3), Convolution(96, (3, 3), 2)), (Pool(3, 2),))),
    _inception_c(128),
    _inception_c(160),
    _inception_c(160),
    _inception_c(192),
    Fork(
        (
            (Convolution(192), Convolution(320, (3, 3), 2)),
            (Convolution(192), _same(192, 1, 7), _same(192, 7, 1), Convolution(192, (3, 3), 2)),
            (Pool(3, 2),),
        )
    ),
    _INCEPTION_E,
    _INCEPTION_E,
)
NETWORKS = {"googlenet": (GOOGLENET, 0.2), "inception_v3": (INCEPTION_V3, 0.5)}
"""Steps, and the dropout before the classifier."""


class BasicConv:
    """A `Convolution` with its parameters."""

    def __init__(self, build: Build, inputs: int, step: Convolution) -> None:
        self.conv = Conv(
            build, "conv", inputs, step.channels, step.kernel, stride=step.stride, padding=step.padding, bias=False
        )
        self.norm = BatchNorm(build, "bn", step.channels)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.activation_inplace(self.norm(self.conv(x)))


def _build(build: Build, steps: Sequence[Step], inputs: int) -> tuple[Callable[[Tensor], Tensor], int]:
    """The steps as one function, and the channels it gives."""
    layers: list[Callable[[Tensor], Tensor]] = []
    for step in steps:
        if isinstance(step, Convolution):
            layers.append(BasicConv(build, inputs, step))
            inputs = step.channels
        elif isinstance(step, Fork):
            branches, widths = zip(*(_build(build, branch, inputs) for branch in step.branches), strict=True)
            layers.append(_joined(branches))
            inputs = sum(widths)
        else:
            layers.append(step)

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run, inputs


def _joined(branches: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    return lambda x: join_channels([branch(x) for branch in branches])


class Inception:
    """GoogLeNet or Inception v3 with an image classifier."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        steps, self.dropout = NETWORKS[config["name"]]
        self.build = build
        self.features, channels = _build(build, steps, 3)
        self.head = build.linear("fc", channels, config.get("num_classes", 1000))

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = image_batch(tape, self.build, shape.image_size)
        with tape.within("stages"):
            x = self.features(x)
        with tape.within("head"):
            return classification_loss(self.head(ops.dropout(global_average(x), self.dropout)))
