"""Swin transformer of Hugging Face with an image classifier (transformers/models/swin/modeling_swin.py)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.images import classification_loss, drop_path, image_batch
from calc.architectures.swin import INDEX_BYTES, join_neighbours, padded_side, rearranged
from calc.architectures.vision_transformers import biased_attention, position_bias
from calc.replay import ops
from calc.replay.layers import Blocks, Conv, LayerNorm
from calc.replay.ops import Heads
from calc.replay.tape import TooSmallError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


class WindowAttention:
    """SwinAttention: separate projections, the position biases given to the kernel as its mask."""

    def __init__(self, build: Build, config: Mapping[str, Any], width: int, heads: int) -> None:
        self.kind = build.attention
        self.heads = heads
        self.window = config["window_size"]
        self.dropout = config["attention_probs_dropout_prob"]
        bias = config["qkv_bias"]
        self.q = build.linear("q_proj", width, width, bias=bias, attention=True)
        self.k = build.linear("k_proj", width, width, bias=bias, attention=True)
        self.v = build.linear("v_proj", width, width, bias=bias, attention=True)
        self.o = build.linear("o_proj", width, width, attention=True)
        self.table = build.parameter("relative_position_bias_table", ((2 * self.window - 1) ** 2, heads))
        build.buffer(self.window**4 * INDEX_BYTES)

    def __call__(self, windows: Tensor, area: int, mask: Tensor | None) -> Tensor:
        tape, (positions, width) = windows.tape, windows.shape
        q, k, v = self.q(windows), self.k(windows), self.v(windows)
        count = positions // area
        bias = position_bias(tape, self.table, self.heads, area)
        if mask is not None:
            bias = _for_each_window(bias, mask, count * self.heads)
        head_width = width // self.heads
        heads = Heads(count * self.heads, count * self.heads, head_width, head_width, area, area, causal=False)
        out = biased_attention(self.kind, q, k, v, heads, bias, dropout=self.dropout)
        return self.o(out.view(positions, width))


def _for_each_window(bias: Tensor, mask: Tensor, maps: int) -> Tensor:
    """The biases and the shift's mask added: a map of scores for every head of every window of every sample."""
    tape = bias.tape
    area = bias.shape[-1]
    repeated = tape.empty(mask.shape, mask.dtype, batched=True)
    out = tape.empty((maps * area, area), bias.dtype, batched=True)
    tape.kernel([bias, repeated], [out])
    return tape.record(out, [bias], lambda grad: [grad])


class Layer:
    """SwinLayer. Its windows and the attention's output, also put back in place, are locals that live to its end."""

    def __init__(
        self, build: Build, config: Mapping[str, Any], width: int, heads: int, *, shifted: bool, drop_rate: float
    ) -> None:
        self.window = config["window_size"]
        self.act = config["hidden_act"]
        self.dropout = config["hidden_dropout_prob"]
        self.shifted = shifted
        self.drop_rate = drop_rate
        self.attention = WindowAttention(build, config, width, heads)
        self.norm_1 = LayerNorm(build, "layernorm_before", width)
        self.norm_2 = LayerNorm(build, "layernorm_after", width)
        inner = int(config["mlp_ratio"] * width)
        self.up = build.linear("fc1", width, inner)
        self.down = build.linear("fc2", inner, width)

    def __call__(self, x: Tensor, *, side: int) -> Tensor:
        tape, width, window = x.tape, x.shape[-1], self.window
        if side < window:
            # The library cuts the window to the image, and then its table of biases fits no more.
            raise TooSmallError(f"{side} patches on a side do not fill a window of {window}")
        shifted = self.shifted and side > window
        padded = padded_side(side, window)
        area = window * window
        with tape.within("attention"):
            cut = ops.refit(self.norm_1(x), (padded * padded, width))
            windows = rearranged(rearranged(cut)) if shifted else rearranged(cut)
            mask = tape.empty(((padded // window) ** 2 * area, area), cut.dtype, batched=False) if shifted else None
            attended = ops.dropout(self.attention(windows, area, mask), self.dropout)
            whole = rearranged(attended)
            if shifted:
                whole = rearranged(whole)
            if padded != side:
                whole = ops.copy(ops.narrow(whole, x.shape))
            branch = drop_path(whole, self.drop_rate)
            x = ops.add(x, branch)
            del branch, cut
        with tape.within("mlp"):
            branch = self.norm_2(x)
            branch = self._mlp(branch)
            x = ops.add(ops.dropout(branch, self.dropout), x)
            del windows, attended, whole, mask
            return x

    def _mlp(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        inner = activation(self.act, inner)
        return self.down(inner)


class PatchMerging:
    """SwinPatchMerging: four neighbouring patches joined, normalized, narrowed to twice the width."""

    def __init__(self, build: Build, width: int) -> None:
        self.reduction = build.linear("reduction", 4 * width, 2 * width, bias=False)
        self.norm = LayerNorm(build, "norm", 4 * width)

    def __call__(self, x: Tensor, side: int) -> Tensor:
        even = side + side % 2
        if even != side:
            x = ops.refit(x, (even * even, x.shape[-1]))
        x = join_neighbours(x, even)
        x = self.norm(x)
        return self.reduction(x)


class Swin:
    """SwinForImageClassification."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        self.build = build
        self.config = config
        width, patch = config["embed_dim"], config["patch_size"]
        self.channels = config["num_channels"]
        self.projection = Conv(build, "projection", self.channels, width, (patch, patch), stride=patch)
        side = config["image_size"] // patch
        absolute = config["use_absolute_embeddings"]
        self.positions = build.parameter("position_embeddings", (side * side, width)) if absolute else None
        self.stem_norm = LayerNorm(build, "embeddings.norm", width)
        self.stages = []
        self.merging = []
        for stage, depth in enumerate(config["depths"]):
            first = stage == 0
            make = partial(_layer, build, config, width, config["num_heads"][stage], first)
            kinds = [(index % 2, first and index == 0) for index in range(depth)]
            self.stages.append(Blocks(build, kinds, make))
            if stage < len(config["depths"]) - 1:
                self.merging.append(PatchMerging(build, width))
                width *= 2
        self.norm = LayerNorm(build, "layernorm", width)
        self.head = build.linear("classifier", width, config["num_labels"])

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = image_batch(tape, self.build, shape.image_size, channels=self.channels)
        with tape.within("stem"):
            x = self.projection(_padded(x, self.projection.stride[0]))
            side = x.shape[1]
            x = self.stem_norm(x.view(side * side, x.shape[0]))
            if self.positions is not None:
                x = ops.add(x, tape.parameter(self.positions))
            x = ops.dropout(x, self.config["hidden_dropout_prob"])
        for index in range(len(self.stages)):
            stage = partial(self._stage, tape, index, side)
            x = tape.checkpoint(stage, x) if self.build.checkpointing == "full" else stage(x)
            side = -(-side // 2)
        with tape.within("final norm"):
            x = self.norm(x)
        with tape.within("head"):
            return classification_loss(self.head(ops.average_pool(x, (x.shape[-1],), keeps_input=False)))

    def _stage(self, tape: Tape, index: int, side: int, x: Tensor) -> Tensor:
        """A stage's layers and what merges their patches. The library checkpoints stages, and layers within them."""
        x = self.stages[index](tape, x, side=side)
        if index < len(self.merging):
            with tape.within("stages"):
                x = self.merging[index](x, side)
        return x


def _padded(images: Tensor, patch: int) -> Tensor:
    """Zeros at the edges where patches do not fill the image (SwinPatchEmbeddings.maybe_pad)."""
    size = images.shape[1]
    full = -(-size // patch) * patch
    return images if full == size else ops.refit(images, (images.shape[0], full, full))


def _layer(build: Build, config: Mapping[str, Any], width: int, heads: int, first_stage: bool, index: int) -> Layer:  # noqa: FBT001
    rate = 0.0 if first_stage and index == 0 else config["drop_path_rate"]
    return Layer(build, config, width, heads, shifted=index % 2 == 1, drop_rate=rate)
