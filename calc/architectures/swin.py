"""Swin transformers v1 and v2 of torchvision (torchvision/models/swin_transformer.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.architectures.images import classification_loss, image_batch, stochastic_depth
from calc.replay import ops
from calc.replay.layers import Blocks, Conv, LayerNorm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

PATCH = 4
INDEX_BYTES = 8
BIAS_WIDTH = 512
"""Inner width of the network that gives v2 its position biases."""


@dataclass(frozen=True)
class Variant:
    """torchvision's width, blocks and heads of each stage, a window's side, highest rate of leaving a block out."""

    width: int
    depths: tuple[int, int, int, int]
    heads: tuple[int, int, int, int]
    window: int
    drop_rate: float
    second: bool = False


VARIANTS = {
    "swin_t": Variant(96, (2, 2, 6, 2), (3, 6, 12, 24), 7, 0.2),
    "swin_s": Variant(96, (2, 2, 18, 2), (3, 6, 12, 24), 7, 0.3),
    "swin_b": Variant(128, (2, 2, 18, 2), (4, 8, 16, 32), 7, 0.5),
    "swin_v2_t": Variant(96, (2, 2, 6, 2), (3, 6, 12, 24), 8, 0.2, second=True),
    "swin_v2_s": Variant(96, (2, 2, 18, 2), (3, 6, 12, 24), 8, 0.3, second=True),
    "swin_v2_b": Variant(128, (2, 2, 18, 2), (4, 8, 16, 32), 8, 0.5, second=True),
}


def rearranged(x: Tensor) -> Tensor:
    """A copy in another order (windows cut out or put back, a roll), copied again on the way back."""
    return ops.copy(ops.transposed(x))


def padded_side(side: int, window: int) -> int:
    """A side grown to whole windows."""
    return -(-side // window) * window


class WindowAttention:
    """shifted_window_attention: attention within windows, composed of products, with a bias for each relative position.

    ``second``: queries and keys are normalized and scaled by a trained number, the bias comes from a small network.
    """

    def __init__(self, build: Build, width: int, heads: int, window: int, *, shifted: bool, second: bool) -> None:
        self.heads = heads
        self.window = window
        self.shifted = shifted
        self.second = second
        self.qkv = build.linear("qkv", width, 3 * width, attention=True)
        self.proj = build.linear("proj", width, width, attention=True)
        table = (2 * window - 1) ** 2
        build.buffer(window**4 * INDEX_BYTES)
        if second:
            build.buffer(table * 2 * build.dtype.itemsize)
            self.logit_scale = build.parameter("logit_scale", (heads,))
            self.bias_up = build.linear("cpb_mlp.0", 2, BIAS_WIDTH)
            self.bias_down = build.linear("cpb_mlp.2", BIAS_WIDTH, heads, bias=False)
        else:
            self.table = build.parameter("relative_position_bias_table", (table, heads))

    def __call__(self, x: Tensor, side: int) -> Tensor:
        tape, width = x.tape, x.shape[-1]
        bias = self._bias(tape)
        padded = padded_side(side, self.window)
        shifted = self.shifted and self.window < padded
        windows = ops.refit(x, (padded * padded, width))
        if shifted:
            windows = rearranged(windows)
        windows = rearranged(windows)
        qkv = ops.transposed(self.qkv(windows))
        tokens = (padded * padded, width)
        q, k, v = ops.narrow(qkv, tokens), ops.narrow(qkv, tokens), ops.narrow(qkv, tokens)
        count = (padded // self.window) ** 2
        scores = self._scores(q, k, count)
        scores = ops.add(scores, bias)
        if shifted:
            mask = tape.empty((count, self.window**2, self.window**2), windows.dtype, batched=False)
            scores = ops.add(scores, mask)
        weights = ops.softmax(scores)
        del scores
        out = ops.matmul(weights, ops.copy(v), tokens, self.window**2)
        del weights, windows
        out = rearranged(out)
        out = self.proj(out)
        out = rearranged(out)
        if shifted:
            out = rearranged(out)
        return out if padded == side else ops.copy(ops.narrow(out, x.shape))

    def _bias(self, tape: Tape) -> Tensor:
        area = self.window**2
        if self.second:
            coordinates = tape.empty(((2 * self.window - 1) ** 2, 2), self.logit_scale.dtype, batched=False)
            hidden = ops.activation_inplace(self.bias_up(coordinates))
            looked_up = ops.refit(self.bias_down(hidden), (area * area, self.heads))
            return ops.scale(ops.pointwise(ops.copy(looked_up), keeps="output"))
        return ops.copy(ops.refit(tape.parameter(self.table), (area * area, self.heads)))

    def _scores(self, q: Tensor, k: Tensor, count: int) -> Tensor:
        area = self.window**2
        shape = (count * self.heads, area, area)
        width = q.shape[-1] // self.heads
        if not self.second:
            q = ops.scale(q)
            return ops.matmul(ops.copy(q), ops.copy(k), shape, width)
        unit_q, unit_k = _normalized(q, width), _normalized(k, width)
        low = q.tape.autocast.dtype if q.tape.autocast is not None else q.dtype
        unit_k = ops.cast(unit_k, low)
        scores = ops.matmul(ops.copy(ops.cast(unit_q, low)), ops.copy(unit_k), shape, width)
        del unit_q, unit_k
        scale = ops.pointwise(ops.pointwise(q.tape.parameter(self.logit_scale)), keeps="output")
        return ops.mul(scores, scale)


def _normalized(x: Tensor, width: int) -> Tensor:
    """``F.normalize`` of each head's vector: its norm, held above a floor, and a quotient."""
    norm = ops.pointwise(ops.vector_norm(x, x.numel // width))
    return ops.divide(x, norm)


class Block:
    """SwinTransformerBlock; the second version normalizes what each branch gives, not what it reads."""

    def __init__(
        self, build: Build, width: int, heads: int, window: int, *, shifted: bool, second: bool, drop_rate: float
    ) -> None:
        self.second = second
        self.drop_rate = drop_rate
        self.norm_1 = LayerNorm(build, "norm1", width)
        self.attention = WindowAttention(build, width, heads, window, shifted=shifted, second=second)
        self.norm_2 = LayerNorm(build, "norm2", width)
        self.up = build.linear("mlp.0", width, 4 * width)
        self.down = build.linear("mlp.3", 4 * width, width)

    def __call__(self, x: Tensor, *, side: int) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            branch = self.norm_1(self.attention(x, side)) if self.second else self.attention(self.norm_1(x), side)
            x = ops.add(x, stochastic_depth(branch, self.drop_rate))
            del branch
        with tape.within("mlp"):
            normal = x if self.second else self.norm_2(x)
            branch = self.up(normal)
            branch = ops.pointwise(branch)
            branch = self.down(branch)
            del normal
            branch = self.norm_2(branch) if self.second else branch
            return ops.add(x, stochastic_depth(branch, self.drop_rate))


class PatchMerging:
    """Four neighbouring patches joined and narrowed to twice the width, normalized before (v1) or after (v2)."""

    def __init__(self, build: Build, width: int, *, second: bool) -> None:
        self.second = second
        self.reduction = build.linear("reduction", 4 * width, 2 * width, bias=False)
        self.norm = LayerNorm(build, "norm", 2 * width if second else 4 * width)

    def __call__(self, x: Tensor, side: int) -> Tensor:
        joined = self._joined(x, side)
        if self.second:
            return self.norm(self.reduction(joined))
        joined = self.norm(joined)
        return self.reduction(joined)

    def _joined(self, x: Tensor, side: int) -> Tensor:
        width = x.shape[-1]
        even = side + side % 2
        padded = ops.refit(x, (even * even, width))
        return join_neighbours(padded, even)


def join_neighbours(x: Tensor, side: int) -> Tensor:
    """Every second row and column, four ways, side by side."""
    width = x.shape[-1]
    rows, quarter = (side * side // 2, width), (side * side // 4, width)
    parts = [ops.narrow(ops.narrow(x, rows), quarter) for _ in range(4)]
    return ops.cat(parts)


class Swin:
    """torchvision's Swin transformer with an image classifier."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        variant = VARIANTS[config["name"]]
        self.build = build
        width = variant.width
        self.stem = Conv(build, "features.0", 3, width, (PATCH, PATCH), stride=PATCH)
        self.stem_norm = LayerNorm(build, "features.0.norm", width)
        self.stages = []
        self.merging = []
        for stage, depth in enumerate(variant.depths):
            rates = [0.0 if stage == index == 0 else variant.drop_rate for index in range(depth)]
            heads = variant.heads[stage]
            self.stages.append(_stage(build, variant, width, heads, rates))
            if stage < len(variant.depths) - 1:
                self.merging.append(PatchMerging(build, width, second=variant.second))
                width *= 2
        self.norm = LayerNorm(build, "norm", width)
        self.head = build.linear("head", width, config.get("num_classes", 1000))

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = image_batch(tape, self.build, shape.image_size)
        with tape.within("stem"):
            x = self.stem(x)
            side = x.shape[1]
            x = self.stem_norm(x.view(side * side, x.shape[0]))
        for index, stage in enumerate(self.stages):
            if index:
                with tape.within("stages"):
                    x = self.merging[index - 1](x, side)
                    side = -(-side // 2)
            x = stage(tape, x, side=side)
        with tape.within("final norm"):
            x = self.norm(x)
        with tape.within("head"):
            x = ops.average_pool(x, (x.shape[-1],), keeps_input=False)
            return classification_loss(self.head(x))


def _stage(build: Build, variant: Variant, width: int, heads: int, rates: Sequence[float]) -> Blocks:
    def make(index: int) -> Block:
        return Block(
            build, width, heads, variant.window, shifted=index % 2 == 1, second=variant.second, drop_rate=rates[index]
        )

    return Blocks(build, [(index % 2, rate) for index, rate in enumerate(rates)], make)
