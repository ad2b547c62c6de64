"""MaxViT of torchvision: an inverted residual, then attention within windows and over a grid, in every layer.

torchvision/models/maxvit.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.architectures.convolutional import SqueezeExcitation, square_conv
from calc.architectures.images import classification_loss, image_batch, linear_rates, stochastic_depth
from calc.architectures.swin import INDEX_BYTES, rearranged
from calc.errors import ScenarioError
from calc.replay import ops
from calc.replay.layers import BatchNorm, Blocks, LayerNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

HALVINGS = 5
"""How often the image's side is halved: by the stem and by each of four stages."""
EXPANSION = 4
MLP_RATIO = 4
SQUEEZE = 4


@dataclass(frozen=True)
class Variant:
    """torchvision's channels of the stem and of each stage, layers of each stage, head width, window's side."""

    stem: int
    channels: tuple[int, ...]
    layers: tuple[int, ...]
    head_width: int
    window: int
    drop_rate: float


VARIANTS = {"maxvit_t": Variant(64, (64, 128, 256, 512), (2, 2, 5, 2), 32, 7, 0.2)}


class InvertedResidual:
    """MBConv: normalized first, activated by GELU, pooled and projected where the shape changes."""

    def __init__(self, build: Build, inputs: int, outputs: int, *, stride: int, drop_rate: float) -> None:
        inner = EXPANSION * outputs
        self.stride = stride
        self.drop_rate = drop_rate
        changes = stride != 1 or inputs != outputs
        self.project = square_conv(build, inputs, outputs, 1, bias=True) if changes else None
        self.pre_norm = BatchNorm(build, "pre_norm", inputs)
        self.widen = square_conv(build, inputs, inner, 1)
        self.widen_norm = BatchNorm(build, "conv_a.norm", inner)
        self.depthwise = square_conv(build, inner, inner, 3, stride=stride, groups=inner)
        self.depthwise_norm = BatchNorm(build, "conv_b.norm", inner)
        self.excite = SqueezeExcitation(build, inner, outputs // SQUEEZE, act="silu", gate="sigmoid")
        self.narrow = square_conv(build, inner, outputs, 1, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        residual = x
        if self.stride > 1:
            residual = ops.average_pool(x, ops.pooled(x.shape, 3, stride=self.stride, padding=1))
        if self.project is not None:
            residual = self.project(residual)
        x = self.pre_norm(x)
        x = ops.pointwise(self.widen_norm(self.widen(x)))
        x = ops.pointwise(self.depthwise_norm(self.depthwise(x)))
        x = self.narrow(self.excite(x))
        x = stochastic_depth(x, self.drop_rate)
        return ops.add(residual, x)


class PartitionAttention:
    """PartitionAttentionLayer: attention among the tokens of each window, or of each grid, and an MLP."""

    def __init__(self, build: Build, width: int, variant: Variant, *, drop_rate: float) -> None:
        self.heads = width // variant.head_width
        self.area = variant.window**2
        self.drop_rate = drop_rate
        self.norm = LayerNorm(build, "attn_layer.0", width)
        self.qkv = build.linear("to_qkv", width, 3 * width, attention=True)
        self.merge = build.linear("merge", width, width, attention=True)
        self.table = build.parameter("relative_position_bias_table", ((2 * variant.window - 1) ** 2, self.heads))
        build.buffer(self.area**2 * INDEX_BYTES)
        self.mlp_norm = LayerNorm(build, "mlp_layer.0", width)
        self.up = build.linear("mlp_layer.1", width, MLP_RATIO * width)
        self.down = build.linear("mlp_layer.3", MLP_RATIO * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = rearranged(x).view(shape[1] * shape[2], shape[0])
        with x.tape.within("attention"):
            x = ops.add(x, stochastic_depth(self._attention(self.norm(x)), self.drop_rate))
        with x.tape.within("mlp"):
            x = ops.add(x, stochastic_depth(self._mlp(x), self.drop_rate))
        return rearranged(x).view(*shape)

    def _mlp(self, x: Tensor) -> Tensor:
        x = self.mlp_norm(x)
        x = self.up(x)
        x = ops.pointwise(x)
        return self.down(x)

    def _attention(self, x: Tensor) -> Tensor:
        tokens, width = x.shape
        qkv = self.qkv(x)
        q, k, v = ops.split(qkv, [(tokens, width)] * 3)
        k = ops.scale(k)
        shape = (tokens // self.area * self.heads, self.area, self.area)
        scores = ops.matmul(ops.copy(q), ops.copy(k), shape, width // self.heads)
        looked_up = ops.refit(x.tape.parameter(self.table), (self.area**2, self.heads))
        bias = ops.copy(looked_up)
        del looked_up
        weights = ops.softmax(ops.add(scores, bias))
        del scores
        out = ops.matmul(weights, ops.copy(v), (tokens, width), self.area)
        out = rearranged(out)
        out = self.merge(out)
        del qkv, q, k, v, weights, bias
        return out


class Layer:
    """MaxVitLayer."""

    def __init__(self, build: Build, inputs: int, outputs: int, variant: Variant, *, stride: int, rate: float) -> None:
        self.convolution = InvertedResidual(build, inputs, outputs, stride=stride, drop_rate=rate)
        self.window = PartitionAttention(build, outputs, variant, drop_rate=rate)
        self.grid = PartitionAttention(build, outputs, variant, drop_rate=rate)

    def __call__(self, x: Tensor) -> Tensor:
        with x.tape.within("stages"):
            x = self.convolution(x)
        x = self.window(x)
        return self.grid(x)


class MaxVit:
    """torchvision's MaxVit by name, made for the image's size."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        self.build = build
        self.variant = variant = VARIANTS[config["name"]]
        self.stem = square_conv(build, 3, variant.stem, 3, stride=2)
        self.stem_norm = BatchNorm(build, "stem.0.norm", variant.stem)
        self.stem_second = square_conv(build, variant.stem, variant.stem, 3, bias=True)
        rates = linear_rates(variant.drop_rate, sum(variant.layers))
        self.stages = []
        inputs = variant.stem
        for outputs, count in zip(variant.channels, variant.layers, strict=True):
            self.stages.append(_stage(build, inputs, outputs, variant, rates[:count]))
            del rates[:count]
            inputs = outputs
        self.norm = LayerNorm(build, "classifier.2", inputs)
        self.hidden = build.linear("classifier.3", inputs, inputs)
        self.head = build.linear("classifier.5", inputs, config.get("num_classes", 1000), bias=False)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        unit = self.variant.window * 2**HALVINGS
        if shape.image_size % unit:
            raise ScenarioError("image_size", f"{shape.image_size} is no multiple of {unit}, as MaxViT's windows need")
        x = image_batch(tape, self.build, shape.image_size)
        with tape.within("stem"):
            x = ops.pointwise(self.stem_norm(self.stem(x)))
            x = self.stem_second(x)
        for stage in self.stages:
            x = stage(tape, x)
        with tape.within("head"):
            x = ops.average_pool(x, (x.shape[0],), keeps_input=False)
            x = self.norm(x)
            x = ops.pointwise(self.hidden(x), keeps="output")
            return classification_loss(self.head(x))


def _stage(build: Build, inputs: int, outputs: int, variant: Variant, rates: list[float]) -> Blocks:
    def make(index: int) -> Layer:
        first = index == 0
        return Layer(build, inputs if first else outputs, outputs, variant, stride=2 if first else 1, rate=rates[index])

    return Blocks(build, [(index == 0, rate > 0) for index, rate in enumerate(rates)], make)
