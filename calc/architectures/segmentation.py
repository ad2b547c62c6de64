"""Semantic segmentation of torchvision without an auxiliary head (torchvision/models/segmentation/*.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.architectures import mobile, resnet
from calc.architectures.convolutional import ConvNorm, join_channels, square_conv
from calc.architectures.images import image_batch
from calc.replay import ops
from calc.replay.layers import BatchNorm, Blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

CLASSES = 21
"""Categories of Pascal VOC with the background, torchvision's default."""
DILATED = (False, True, True)
ATROUS_RATES = (12, 24, 36)
ATROUS_CHANNELS = 256
LOW_BLOCKS = 4
"""Blocks of MobileNet v3 up to the stride of eight that LRASPP reads its low features at."""
LRASPP_CHANNELS = 128


class ConvNormReLU:
    """A convolution without bias, batch normalization, and a ReLU that makes a new tensor."""

    def __init__(self, build: Build, inputs: int, outputs: int, kernel: int, *, dilation: int = 1) -> None:
        self.conv = square_conv(build, inputs, outputs, kernel, dilation=dilation)
        self.norm = BatchNorm(build, "norm", outputs)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return ops.pointwise(x, keeps="output")


class FCNHead:
    """A convolution to a quarter of the channels, dropout, a classifier of each position."""

    def __init__(self, build: Build, inputs: int, classes: int) -> None:
        self.conv = ConvNormReLU(build, inputs, inputs // 4, 3)
        self.classifier = square_conv(build, inputs // 4, classes, 1, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = ops.dropout(x, 0.1)
        return self.classifier(x)


class AtrousPyramid:
    """ASPP: convolutions of several spreads and a global average side by side, joined and narrowed."""

    def __init__(self, build: Build, inputs: int) -> None:
        channels = ATROUS_CHANNELS
        self.branches = [ConvNormReLU(build, inputs, channels, 1)]
        self.branches += [ConvNormReLU(build, inputs, channels, 3, dilation=rate) for rate in ATROUS_RATES]
        self.pooled = ConvNormReLU(build, inputs, channels, 1)
        self.project = ConvNormReLU(build, (len(self.branches) + 1) * channels, channels, 1)

    def __call__(self, x: Tensor) -> Tensor:
        parts = [branch(x) for branch in self.branches]
        average = ops.average_pool(x, (x.shape[0], 1, 1), keeps_input=False)
        parts.append(ops.interpolate(self.pooled(average), (ATROUS_CHANNELS, *x.shape[1:])))
        joined = join_channels(parts)
        out = ops.dropout(self.project(joined), 0.5)
        del parts
        return out


class DeepLabHead:
    """The pyramid, one more convolution, a classifier of each position."""

    def __init__(self, build: Build, inputs: int, classes: int) -> None:
        self.pyramid = AtrousPyramid(build, inputs)
        self.conv = ConvNormReLU(build, ATROUS_CHANNELS, ATROUS_CHANNELS, 3)
        self.classifier = square_conv(build, ATROUS_CHANNELS, classes, 1, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.pyramid(x)
        x = self.conv(x)
        return self.classifier(x)


class MobileBackbone:
    """MobileNet v3 large with its last blocks dilated, to its last convolution."""

    def __init__(self, build: Build) -> None:
        self.plan = mobile.mobilenet_v3_plan(mobile.V3_LARGE, 0, dilated=True)
        blocks = self.plan.blocks
        self.stem = ConvNorm(build, 3, self.plan.stem, 3, stride=2, act=self.plan.act)
        self.low = Blocks(build, blocks[:LOW_BLOCKS], lambda i: mobile.InvertedResidual(build, blocks[i]))
        rest = blocks[LOW_BLOCKS:]
        self.high = Blocks(build, rest, lambda i: mobile.InvertedResidual(build, rest[i]))
        self.last = ConvNorm(build, blocks[-1].outputs, self.plan.last, act=self.plan.act)
        self.low_channels = blocks[LOW_BLOCKS - 1].outputs
        self.channels = self.plan.last

    def features(self, tape: Tape, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features at a stride of eight, and the last ones."""
        with tape.within("stem"):
            x = self.stem(images)
        with tape.within("stages"):
            low = self.low(tape, x)
            return low, self.last(self.high(tape, low))

    def __call__(self, tape: Tape, images: Tensor) -> Tensor:
        return self.features(tape, images)[1]


class SmallHead:
    """LRASPPHead: high features gated by their mean and enlarged, classified beside the low ones."""

    def __init__(self, build: Build, low: int, high: int, classes: int) -> None:
        self.conv = ConvNorm(build, high, LRASPP_CHANNELS)
        self.gate = square_conv(build, high, LRASPP_CHANNELS, 1)
        self.low_classifier = square_conv(build, low, classes, 1, bias=True)
        self.high_classifier = square_conv(build, LRASPP_CHANNELS, classes, 1, bias=True)

    def __call__(self, low: Tensor, high: Tensor) -> Tensor:
        x = self.conv(high)
        average = ops.average_pool(high, (high.shape[0], 1, 1), keeps_input=False)
        x = ops.mul(x, ops.pointwise(self.gate(average), keeps="output"))
        x = ops.interpolate(x, (x.shape[0], *low.shape[1:]))
        return ops.add(self.low_classifier(low), self.high_classifier(x))


class Segmentation:
    """A backbone's features classified at each position, enlarged to the image, cross-entropy of each pixel."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        name: str = config["name"]
        classes = config.get("num_classes", CLASSES)
        head, _, backbone = name.partition("_")
        self.build = build
        self.classify: Callable[[Tape, Tensor], Tensor]
        if backbone == "mobilenet_v3_large":
            small = MobileBackbone(build)
            if head == "lraspp":
                low_head = SmallHead(build, small.low_channels, small.channels, classes)
                self.classify = lambda tape, images: low_head(*small.features(tape, images))
                return
            features, channels = small.__call__, small.channels
        else:
            large = resnet.Backbone(build, resnet.VARIANTS[backbone], dilated=DILATED)
            features, channels = large.__call__, large.channels
        top = DeepLabHead(build, channels, classes) if head == "deeplabv3" else FCNHead(build, channels, classes)
        self.classify = lambda tape, images: top(features(tape, images))

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        size = shape.image_size
        images = image_batch(tape, self.build, size, labels=(size, size))
        with tape.within("head"):
            x = self.classify(tape, images)
        with tape.within("logits"):
            return ops.cross_entropy(ops.interpolate(x, (x.shape[0], size, size)))


NAMES = (
    "deeplabv3_resnet50",
    "deeplabv3_resnet101",
    "deeplabv3_mobilenet_v3_large",
    "fcn_resnet50",
    "fcn_resnet101",
    "lraspp_mobilenet_v3_large",
)
