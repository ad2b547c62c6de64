"""What decoders share: normalizations, rotary positions, feed-forwards, masks, and the language-model loss."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from calc.architectures.activations import activation
from calc.replay import ops
from calc.replay.layers import Embedding, LayerNorm, Linear, RMSNorm
from calc.replay.tape import Dtype, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.replay.layers import Build
    from calc.replay.tape import Tape


# ---- normalizations


class NormKind(Enum):
    """A normalization by what its implementation does, which decides what autograd keeps."""

    RMS = "fp32 root mean square, cast back, then the weight"
    RMS_WEIGHT_FIRST = "fp32 root mean square and weight, then the cast"
    RMS_PLUS_ONE = "fp32 root mean square times one plus the fp32 weight, then the cast"
    LAYER = "LayerNorm"
    LAYER_NO_BIAS = "LayerNorm without bias"
    LAYER_BARE = "LayerNorm without weight and bias, in fp32"
    LAYER_COMPOSED = "LayerNorm without bias composed of single operations in fp32"
    LAYER_PLUS_ONE = "LayerNorm with one plus the weight, run in autocast's type"


def norm(build: Build, kind: NormKind, name: str, width: int, *, heads: int = 1) -> Callable[[Tensor], Tensor]:
    """A normalization over ``width`` values; ``heads`` have a weight each (Cohere's of queries and keys)."""
    if kind is NormKind.LAYER_COMPOSED:
        return ComposedLayerNorm(build, name, width, heads)
    if kind is NormKind.LAYER_PLUS_ONE:
        return PlusOneLayerNorm(build, name, width)
    if kind is NormKind.LAYER_BARE:
        return BareLayerNorm(build, name, width)
    if kind in (NormKind.LAYER, NormKind.LAYER_NO_BIAS):
        return LayerNorm(build, name, width, bias=kind is NormKind.LAYER)
    return RMSNorm(build, name, width, order=_RMS_ORDERS[kind])


_RMS_ORDERS = {
    NormKind.RMS: "cast-then-scale",
    NormKind.RMS_WEIGHT_FIRST: "scale-then-cast",
    NormKind.RMS_PLUS_ONE: "plus-one-scale-then-cast",
}


class BareLayerNorm(LayerNorm):
    """OlmoLayerNorm: no parameters, computed in fp32 whatever the type (models/olmo/modeling_olmo.py)."""

    def __init__(self, build: Build, name: str, width: int) -> None:
        super().__init__(build, name, width, weight=False)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.cast(super().__call__(ops.cast(x, Dtype.FP32)), x.dtype)


class PlusOneLayerNorm:
    """NemotronLayerNorm1P: the weight plus one, everything cast to autocast's type (models/nemotron)."""

    def __init__(self, build: Build, name: str, width: int) -> None:
        self.width = width
        self.weight = build.parameter(f"{name}.weight", (width,))
        self.bias = build.parameter(f"{name}.bias", (width,))

    def __call__(self, x: Tensor) -> Tensor:
        tape = x.tape
        outer = tape.autocast
        weight, bias = ops.shift(tape.parameter(self.weight)), tape.parameter(self.bias)
        if outer is not None:
            x, weight, bias = (ops.cast(t, outer.dtype) for t in (x, weight, bias))
        tape.autocast = None
        out = ops.layer_norm(x, weight, bias, x.numel // self.width)
        tape.autocast = outer
        return out


class ComposedLayerNorm:
    """CohereLayerNorm: mean, difference, square, mean, difference again, products (models/cohere)."""

    def __init__(self, build: Build, name: str, width: int, heads: int) -> None:
        self.width = width
        self.weight = build.parameter(f"{name}.weight", (heads, width) if heads > 1 else (width,))

    def __call__(self, x: Tensor) -> Tensor:
        tape, dtype, groups = x.tape, x.dtype, x.numel // self.width
        x = ops.cast(x, Dtype.FP32)
        mean = ops.mean_last(x, groups)
        variance = ops.mean_last(ops.power(ops.subtract(x, mean)), groups)
        x = ops.mul(ops.subtract(x, mean), ops.pointwise(ops.shift(variance), keeps="output", temporaries=2))
        return ops.cast(ops.mul(ops.cast(tape.parameter(self.weight), Dtype.FP32), x), dtype)


class NormOfEachHead:
    """A LayerNorm without bias for every head, and their results joined (StableLmLayerNormPerHead)."""

    def __init__(self, build: Build, name: str, heads: int, width: int) -> None:
        self.norms = [LayerNorm(build, f"{name}.norms.{i}", width, bias=False) for i in range(heads)]

    def __call__(self, x: Tensor) -> Tensor:
        tokens, heads, width = x.shape
        parts = ops.split(x, [(tokens, width)] * heads)
        return ops.cat([norm_of_head(part) for norm_of_head, part in zip(self.norms, parts, strict=True)]).view(
            *x.shape
        )


# ---- positions


@dataclass(frozen=True)
class Rotary:
    """Rotary positions as one implementation applies them.

    ``width``: the rotated part of a head. ``wide_tables``: cosine and sine stay fp32, the result is cast back.
    ``wide_inputs``: queries and keys are cast to fp32 first, the result back. ``tables_per_layer``: every layer makes
    its own interleaved copy of the tables, which autograd keeps (GLM, Helium, ERNIE). ``cut``: the rotated part is cut
    from each head and joined with the rest in a new tensor, even where the rest is empty. ``holds_parts``: the parts
    are variables of the attention's own code, alive until it returns (Phi, StableLM). ``complex_table``: one table of
    complex numbers (DeepSeek V2). ``half_tables``: one number for both values of a pair (gpt-oss).
    """

    width: int
    wide_tables: bool = False
    wide_inputs: bool = False
    tables_per_layer: bool = False
    cut: bool = False
    holds_parts: bool = False
    complex_table: bool = False
    half_tables: bool = False


class RotaryTables:
    """Cosine and sine of each position, made once a forward in fp32 and cast to the model's type."""

    def __init__(self, tape: Tape, tokens: int, rotary: Rotary, dtype: Dtype) -> None:
        width = rotary.width // 2 if rotary.half_tables else rotary.width
        angles = tape.empty((tokens, width), Dtype.FP32, batched=False)
        if rotary.complex_table:
            self.cos = self.sin = angles
            return
        kept = Dtype.FP32 if rotary.wide_tables else dtype
        self.cos = ops.cast(tape.like(angles), kept)
        self.sin = ops.cast(tape.like(angles), kept)


def rotary_buffers(build: Build, width: int) -> None:
    """The inverse frequencies and their original, which every rotary module registers."""
    for _ in range(2):
        build.buffer(width // 2 * Dtype.FP32.itemsize)


def rotate(q: Tensor, k: Tensor, tables: RotaryTables, rotary: Rotary) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Queries and keys (tokens, heads, width) turned by their positions, and the parts that stay alive beside them."""
    cos, sin = tables.cos, tables.sin
    if rotary.tables_per_layer:
        cos, sin = ops.copy(cos), ops.copy(sin)
    types = q.dtype, k.dtype
    width = q.shape[-1]
    if rotary.cut:
        q_turned, k_turned = ((x.shape[0], x.shape[1], rotary.width) for x in (q, k))
        q_rest, k_rest = ((x.shape[0], x.shape[1], width - rotary.width) for x in (q, k))
        q_part, q_pass = ops.narrow(q, q_turned), ops.narrow(q, q_rest)
        k_part, k_pass = ops.narrow(k, k_turned), ops.narrow(k, k_rest)
        q_part, k_part = ops.rotary(q_part, cos, sin), ops.rotary(k_part, cos, sin)
        held = (q_part, q_pass, k_part, k_pass) if rotary.holds_parts else ()
        return ops.cat([q_part, q_pass]).view(*q.shape), ops.cat([k_part, k_pass]).view(*k.shape), held
    if rotary.wide_inputs:
        q, k = ops.cast(q, Dtype.FP32), ops.cast(k, Dtype.FP32)
    q, k = ops.rotary(q, cos, sin), ops.rotary(k, cos, sin)
    if rotary.wide_tables or rotary.wide_inputs:
        q, k = ops.cast(q, types[0]), ops.cast(k, types[1])
    return q, k, ()


def turn_halves(x: Tensor, tables: RotaryTables) -> Tensor:
    """Each head's halves (tokens, heads, width) turned by tables of half a head, and joined in new memory."""
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = ops.split(x, [half, half])
    left = ops.subtract(ops.mul(first, tables.cos), ops.mul(second, tables.sin))
    right = ops.add(ops.mul(second, tables.cos), ops.mul(first, tables.sin))
    return ops.cat([left, right]).view(*x.shape)


class ScaledEmbedding(Embedding):
    """A token table that multiplies its rows by a number, a buffer (Gemma3TextScaledWordEmbedding)."""

    def __init__(self, build: Build, name: str, rows: int, width: int) -> None:
        super().__init__(build, name, rows, width)
        build.buffer(Dtype.FP32.itemsize)

    def __call__(self, tape: Tape, tokens: int, *, batched: bool = True) -> Tensor:
        out = ops.scale(ops.embedding(tape, tokens, self.weight, batched=batched))
        return tape.leaf(out) if self.wants_gradient else out


# ---- masks


def causal_mask(
    tape: Tape, kind: str, tokens: int, dtype: Dtype, window: int | None = None, *, always: bool = False
) -> Tensor | None:
    """The mask that transformers/masking_utils.py makes once a forward; None where the kernel is told "causal".

    Eager code adds a number per sample and pair of positions; torch's fused kernels need a mask only where a sliding
    window is shorter than the sequence, or where the model asks for it (``always``), and get a boolean one that all
    samples share.
    """
    if kind.startswith("eager"):
        pairs = tape.empty((tokens, tokens), Dtype.BOOL, batched=False)
        mask = tape.empty((1, tokens, tokens), dtype, batched=True)
        tape.kernel([pairs], [mask])
        return mask
    if kind == "sdpa" and (always or (window is not None and tokens >= window)):
        return tape.empty((tokens, tokens), Dtype.BOOL, batched=False)
    return None


# ---- feed-forwards


class GatedMLP:
    """``down(act(gate(x)) * up(x))`` (LlamaMLP)."""

    def __init__(
        self,
        build: Build,
        hidden: int,
        inner: int,
        act: str,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        by_name_only: bool = False,
    ) -> None:
        self.act = act
        self.dropout = dropout
        linear = partial(build.linear, bias=bias, by_name_only=by_name_only)
        self.gate = linear("gate_proj", hidden, inner)
        self.up = linear("up_proj", hidden, inner)
        self.down = linear("down_proj", inner, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.dropout(self.down(ops.mul(activation(self.act, self.gate(x)), self.up(x))), self.dropout)


class FusedGatedMLP:
    """Gate and up in one product, then halves of it (Phi3MLP)."""

    def __init__(self, build: Build, hidden: int, inner: int, act: str) -> None:
        self.act = act
        self.inner = inner
        self.gate_up = build.linear("gate_up_proj", hidden, 2 * inner, bias=False)
        self.down = build.linear("down_proj", inner, hidden, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        half = (x.shape[0], self.inner)
        gate, up = ops.split(self.gate_up(x), [half, half])
        up = ops.mul(up, activation(self.act, gate))
        return self.down(up)


class AddedBiasLinear:
    """A product whose bias is added to its result in an operation of its own (FalconLinear)."""

    def __init__(
        self, build: Build, name: str, inputs: int, outputs: int, *, bias: bool, attention: bool = False
    ) -> None:
        self.linear = build.linear(name, inputs, outputs, bias=False, attention=attention, cached=False)
        self.bias = build.parameter(f"{name}.bias", (outputs,)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        return out if self.bias is None else ops.add(out, x.tape.parameter(self.bias))


class PlainMLP:
    """``down(act(up(x)))`` under the names that the implementation gives them."""

    def __init__(
        self,
        build: Build,
        names: tuple[str, str],
        hidden: int,
        inner: int,
        act: str,
        *,
        bias: bool = True,
        bias_added: bool = False,
        dropout: float = 0.0,
    ) -> None:
        self.act = act
        self.dropout = dropout
        linear = partial(AddedBiasLinear, build) if bias_added else build.linear
        self.up = linear(names[0], hidden, inner, bias=bias)
        self.down = linear(names[1], inner, hidden, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = activation(self.act, x)
        x = self.down(x)
        return ops.dropout(x, self.dropout)


# ---- loss


def causal_lm_loss(
    tape: Tape,
    hidden: Tensor,
    head: Linear,
    *,
    fused: bool,
    tokens: int,
    scaled: bool = False,
    softcapped: bool = False,
) -> Tensor:
    """Logits, their fp32 copy, shifted labels and cross-entropy (transformers/loss/loss_utils.py, ForCausalLMLoss).

    ``scaled``: the logits are multiplied by a number (Cohere, Granite); ``softcapped``: ``cap * tanh(logits / cap)``
    (Gemma 2).
    """
    with tape.within("logits"):
        if fused:
            return ops.fused_cross_entropy(hidden, head.weight)
        logits = head(hidden)
        if scaled:
            logits = ops.scale(logits)
        if softcapped:
            logits = ops.scale(logits)
            logits = ops.pointwise(logits, keeps="output")
            logits = ops.scale(logits)
        wide = ops.cast(logits, Dtype.FP32)
        labels = tape.empty((tokens + 1,), Dtype.INT64, batched=True)
        labels = tape.empty((tokens,), Dtype.INT64, batched=True)
        loss = ops.cross_entropy(wide)
        del labels
        return loss
