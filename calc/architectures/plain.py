"""Networks without residuals of torchvision: AlexNet, VGG, SqueezeNet, DenseNet.

torchvision/models/{alexnet,vgg,squeezenet,densenet}.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.architectures.convolutional import Pool, global_average, join_channels, square_conv
from calc.architectures.images import classification_loss, image_batch
from calc.replay import ops
from calc.replay.layers import BatchNorm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


class ConvReLU:
    """A convolution with bias, batch normalization where asked for, ReLU in place."""

    def __init__(
        self,
        build: Build,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        norm: bool = False,
    ) -> None:
        self.conv = square_conv(build, inputs, outputs, kernel, stride=stride, bias=True, padding=padding)
        self.norm = BatchNorm(build, "norm", outputs) if norm else None

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return ops.activation_inplace(x)


class FullyConnected:
    """Adaptive pooling to a fixed size, then three linear layers with ReLU in place and dropout.

    ``drops_first``: AlexNet drops before its first two layers, VGG after them.
    """

    def __init__(self, build: Build, channels: int, side: int, classes: int, *, drops_first: bool) -> None:
        self.shape = (channels, side, side)
        self.drops_first = drops_first
        width = channels * side * side
        self.layers = [build.linear("classifier", width, 4096), build.linear("classifier", 4096, 4096)]
        self.head = build.linear("classifier", 4096, classes)

    def __call__(self, x: Tensor) -> Tensor:
        x = ops.average_pool(x, self.shape)
        x = x.view(x.numel)
        for layer in self.layers:
            if self.drops_first:
                x = ops.dropout(x, 0.5)
            x = ops.activation_inplace(layer(x))
            if not self.drops_first:
                x = ops.dropout(x, 0.5)
        return self.head(x)


VGG_CHANNELS = {
    "11": (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "13": (64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "16": (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
    "19": (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0),
}
"""Channels of each convolution; 0 is a pooling."""
VGG_NAMES = tuple(f"vgg{depth}{norm}" for depth in VGG_CHANNELS for norm in ("", "_bn"))


class Sequential:
    """Features in a row and a head, with cross-entropy on top: AlexNet, VGG and SqueezeNet."""

    def __init__(
        self, build: Build, layers: list[Callable[[Tensor], Tensor]], head: Callable[[Tensor], Tensor]
    ) -> None:
        self.build = build
        self.layers = layers
        self.head = head

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = image_batch(tape, self.build, shape.image_size)
        with tape.within("stages"):
            for layer in self.layers:
                x = layer(x)
        with tape.within("head"):
            return classification_loss(self.head(x))


def alexnet(build: Build, config: Mapping[str, Any]) -> Sequential:
    """AlexNet."""
    pool = Pool(3, 2)
    layers: list[Callable[[Tensor], Tensor]] = [
        ConvReLU(build, 3, 64, 11, stride=4, padding=2),
        pool,
        ConvReLU(build, 64, 192, 5),
        pool,
        ConvReLU(build, 192, 384, 3),
        ConvReLU(build, 384, 256, 3),
        ConvReLU(build, 256, 256, 3),
        pool,
    ]
    return Sequential(build, layers, FullyConnected(build, 256, 6, config.get("num_classes", 1000), drops_first=True))


def vgg(build: Build, config: Mapping[str, Any]) -> Sequential:
    """VGG, plain or with batch normalization."""
    name: str = config["name"]
    layers: list[Callable[[Tensor], Tensor]] = []
    inputs = 3
    for channels in VGG_CHANNELS[name.removeprefix("vgg").removesuffix("_bn")]:
        if channels:
            layers.append(ConvReLU(build, inputs, channels, 3, norm=name.endswith("_bn")))
            inputs = channels
        else:
            layers.append(Pool(2, 2))
    return Sequential(
        build, layers, FullyConnected(build, inputs, 7, config.get("num_classes", 1000), drops_first=False)
    )


class Fire:
    """SqueezeNet's block: a narrow convolution, then two wide ones side by side."""

    def __init__(self, build: Build, inputs: int, squeezed: int, expanded: int) -> None:
        self.squeeze = ConvReLU(build, inputs, squeezed, 1)
        self.expand_1 = ConvReLU(build, squeezed, expanded, 1)
        self.expand_3 = ConvReLU(build, squeezed, expanded, 3)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return join_channels([self.expand_1(x), self.expand_3(x)])


FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
"""Squeezed and expanded channels of each block; each half of its output has the expanded number."""
SQUEEZENET_POOLS = {"squeezenet1_0": (3, 7), "squeezenet1_1": (2, 4)}
"""Number of blocks before each pooling but the first."""


def squeezenet(build: Build, config: Mapping[str, Any]) -> Sequential:
    """SqueezeNet."""
    name = config["name"]
    pool = Pool(3, 2, ceil_mode=True)
    stem, kernel = (96, 7) if name == "squeezenet1_0" else (64, 3)
    layers: list[Callable[[Tensor], Tensor]] = [ConvReLU(build, 3, stem, kernel, stride=2, padding=0), pool]
    inputs = stem
    for index, (squeezed, expanded) in enumerate(FIRES):
        if index in SQUEEZENET_POOLS[name]:
            layers.append(pool)
        layers.append(Fire(build, inputs, squeezed, expanded))
        inputs = 2 * expanded
    last = ConvReLU(build, inputs, config.get("num_classes", 1000), 1)
    return Sequential(build, layers, lambda x: global_average(last(ops.dropout(x, 0.5))))


@dataclass(frozen=True)
class Dense:
    """DenseNet's layers of each block, channels that each layer adds, channels of the stem."""

    layers: tuple[int, int, int, int]
    growth: int = 32
    stem: int = 64


DENSENETS = {
    "densenet121": Dense((6, 12, 24, 16)),
    "densenet161": Dense((6, 12, 36, 24), growth=48, stem=96),
    "densenet169": Dense((6, 12, 32, 32)),
    "densenet201": Dense((6, 12, 48, 32)),
}


class NormConv:
    """Batch normalization, ReLU in place, a convolution."""

    def __init__(self, build: Build, inputs: int, outputs: int, kernel: int) -> None:
        self.norm = BatchNorm(build, "norm", inputs)
        self.conv = square_conv(build, inputs, outputs, kernel)

    def __call__(self, x: Tensor) -> Tensor:
        return self.conv(ops.activation_inplace(self.norm(x)))


class DenseLayer:
    """The channels so far joined, narrowed to four times the growth, and the growth made from that."""

    def __init__(self, build: Build, inputs: int, growth: int) -> None:
        self.narrow = NormConv(build, inputs, 4 * growth, 1)
        self.grow = NormConv(build, 4 * growth, growth, 3)

    def __call__(self, features: list[Tensor]) -> Tensor:
        return self.grow(self.narrow(join_channels(features)))


class DenseNet:
    """DenseNet: each layer reads what all layers of its block before it made."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        variant = DENSENETS[config["name"]]
        self.build = build
        self.stem = square_conv(build, 3, variant.stem, 7, stride=2)
        self.stem_norm = BatchNorm(build, "norm0", variant.stem)
        self.blocks = []
        self.transitions = []
        channels = variant.stem
        for index, count in enumerate(variant.layers):
            self.blocks.append([DenseLayer(build, channels + i * variant.growth, variant.growth) for i in range(count)])
            channels += count * variant.growth
            if index < len(variant.layers) - 1:
                self.transitions.append(NormConv(build, channels, channels // 2, 1))
                channels //= 2
        self.norm = BatchNorm(build, "norm5", channels)
        self.head = build.linear("classifier", channels, config.get("num_classes", 1000))

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = image_batch(tape, self.build, shape.image_size)
        with tape.within("stem"):
            x = Pool(3, 2, 1)(ops.activation_inplace(self.stem_norm(self.stem(x))))
        with tape.within("stages"):
            for index, block in enumerate(self.blocks):
                if index:
                    x = self.transitions[index - 1](x)
                    x = ops.average_pool(x, ops.pooled(x.shape, 2, stride=2))
                x = _dense_block(block, x)
            x = ops.activation_inplace(self.norm(x))
        with tape.within("head"):
            return classification_loss(self.head(global_average(x)))


def _dense_block(layers: list[DenseLayer], x: Tensor) -> Tensor:
    features = [x]
    for layer in layers:
        features.append(layer(features))
    return join_channels(features)
