"""ConvNeXt of torchvision and Hugging Face, ConvNeXt v2 of Hugging Face.

torchvision/models/convnext.py; transformers/models/{convnext,convnextv2}/modeling_*.py
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.convolutional import global_average
from calc.architectures.images import classification_loss, drop_path, image_batch, stochastic_depth
from calc.replay import ops
from calc.replay.layers import Blocks, Conv, LayerNorm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


@dataclass(frozen=True)
class Variant:
    """torchvision's channels and blocks of each stage, and the highest probability of leaving a block out."""

    channels: tuple[int, int, int, int]
    depths: tuple[int, int, int, int]
    drop_rate: float


VARIANTS = {
    "convnext_tiny": Variant((96, 192, 384, 768), (3, 3, 9, 3), 0.1),
    "convnext_small": Variant((96, 192, 384, 768), (3, 3, 27, 3), 0.4),
    "convnext_base": Variant((128, 256, 512, 1024), (3, 3, 27, 3), 0.5),
    "convnext_large": Variant((192, 384, 768, 1536), (3, 3, 27, 3), 0.5),
}


def _as_tokens(x: Tensor) -> Tensor:
    return x.view(x.numel // x.shape[0], x.shape[0])


class ImageNorm:
    """LayerNorm over the channels of an image."""

    def __init__(self, build: Build, channels: int) -> None:
        self.norm = LayerNorm(build, "layernorm", channels)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(_as_tokens(x)).view(*x.shape)


class ResponseNorm:
    """Global response normalization: each channel scaled by its norm over the image (ConvNextV2GRN)."""

    def __init__(self, build: Build, width: int) -> None:
        self.width = width
        self.weight = build.parameter("grn.weight", (width,))
        self.bias = build.parameter("grn.bias", (width,))

    def __call__(self, x: Tensor) -> Tensor:
        tape = x.tape
        norms = ops.vector_norm(x, self.width)
        norms = ops.divide(norms, ops.shift(ops.mean_last(norms, 1)))
        scaled = ops.mul(x, norms)
        scaled = ops.mul(tape.parameter(self.weight), scaled)
        scaled = ops.add(scaled, tape.parameter(self.bias))
        return ops.add(scaled, x)


class Block:
    """Depthwise convolution, LayerNorm, MLP over the channels, added to the input.

    ``scale``: the MLP's result is scaled by a trained vector. ``inplace``: torchvision scales and adds as images, the
    sum overwriting the branch; Hugging Face adds out of place.
    """

    def __init__(
        self,
        build: Build,
        channels: int,
        act: str,
        *,
        scale: bool,
        response_norm: bool,
        drop_rate: float,
        inplace: bool,
    ) -> None:
        self.act = act
        self.inplace = inplace
        self.drop_rate = drop_rate
        self.conv = Conv(build, "dwconv", channels, channels, (7, 7), padding=3, groups=channels)
        self.norm = LayerNorm(build, "layernorm", channels)
        self.up = build.linear("pwconv1", channels, 4 * channels)
        self.response = ResponseNorm(build, 4 * channels) if response_norm else None
        self.down = build.linear("pwconv2", 4 * channels, channels)
        self.scale = build.parameter("layer_scale_parameter", (channels,)) if scale else None

    def __call__(self, x: Tensor) -> Tensor:
        branch = self.norm(_as_tokens(self.conv(x)))
        branch = self.up(branch)
        branch = activation(self.act, branch)
        if self.response is not None:
            branch = self.response(branch)
        branch = self.down(branch)
        if self.scale is not None:
            branch = ops.mul(x.tape.parameter(self.scale), branch)
        branch = branch.view(*x.shape)
        if self.inplace:
            return ops.add_inplace(stochastic_depth(branch, self.drop_rate), x)
        return ops.add(x, drop_path(branch, self.drop_rate))


class ConvNeXt:
    """A ConvNeXt with an image classifier."""

    def __init__(
        self,
        build: Build,
        channels: Sequence[int],
        depths: Sequence[int],
        *,
        patch: int = 4,
        in_channels: int = 3,
        act: str = "gelu",
        drop_rate: float,
        classes: int,
        scale: bool = True,
        response_norm: bool = False,
        inplace: bool,
    ) -> None:
        self.build = build
        self.in_channels = in_channels
        self.stem = Conv(build, "patch_embeddings", in_channels, channels[0], (patch, patch), stride=patch)
        self.stem_norm = ImageNorm(build, channels[0])
        self.downsamplers = [
            (ImageNorm(build, before), Conv(build, "downsampling_layer", before, after, (2, 2), stride=2))
            for before, after in pairwise(channels)
        ]
        self.stages = []
        first = True
        for width, depth in zip(channels, depths, strict=True):
            rates = [0.0 if first and index == 0 else drop_rate for index in range(depth)]
            first = False

            def make(index: int, width: int = width, rates: list[float] = rates) -> Block:
                return Block(
                    build, width, act, scale=scale, response_norm=response_norm, drop_rate=rates[index], inplace=inplace
                )

            self.stages.append(Blocks(build, rates, make))
        self.norm = LayerNorm(build, "layernorm", channels[-1])
        self.head = build.linear("classifier", channels[-1], classes)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = image_batch(tape, self.build, shape.image_size, channels=self.in_channels)
        with tape.within("stem"):
            x = self.stem_norm(self.stem(x))
        with tape.within("stages"):
            for index, stage in enumerate(self.stages):
                if index:
                    norm, conv = self.downsamplers[index - 1]
                    x = conv(norm(x))
                x = stage(tape, x)
        with tape.within("head"):
            return classification_loss(self.head(self.norm(global_average(x))))


def torchvision_convnext(build: Build, config: Mapping[str, Any]) -> ConvNeXt:
    """torchvision's ConvNeXt by name."""
    variant = VARIANTS[config["name"]]
    return ConvNeXt(
        build,
        variant.channels,
        variant.depths,
        drop_rate=variant.drop_rate,
        classes=config.get("num_classes", 1000),
        inplace=True,
    )


def hugging_face_convnext(build: Build, config: Mapping[str, Any]) -> ConvNeXt:
    """ConvNextForImageClassification and ConvNextV2ForImageClassification."""
    second = config["model_type"] == "convnextv2"
    return ConvNeXt(
        build,
        config["hidden_sizes"],
        config["depths"],
        patch=config["patch_size"],
        in_channels=config["num_channels"],
        act=config["hidden_act"],
        drop_rate=config["drop_path_rate"],
        classes=config["num_labels"],
        scale=not second and config["layer_scale_init_value"] > 0,
        response_norm=second,
        inplace=False,
    )
