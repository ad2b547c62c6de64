"""gpt-oss (transformers/models/gpt_oss): attention with a sink for each head, experts with biases, a clamped gate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calc.architectures.attention import attend, repeat_keys, runs_in
from calc.architectures.decoder_parts import NormKind, Rotary, turn_halves
from calc.architectures.generic_decoder import Attention, Context, Decoder, Options
from calc.architectures.llama_like import usual
from calc.architectures.mixtures import Experts, Mixture, Router
from calc.replay import ops
from calc.replay.ops import Heads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.replay.layers import Build
    from calc.replay.tape import Tensor


class SinkAttention(Attention):
    """Attention whose softmax has a further column, a trained number of each head, that is cut off again.

    transformers/models/gpt_oss/modeling_gpt_oss.py, eager_attention_forward. torch's fused attention has no such
    column; FlashAttention 3, which the class also takes, keeps what FlashAttention 2 keeps.
    """

    def __init__(self, build: Build, options: Options, index: int) -> None:
        super().__init__(build, options, index)
        self.kind = build.attention if build.attention in options.kernels else "eager"
        self.sinks = build.parameter("sinks", (options.heads,))

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        o = self.options
        tokens = x.shape[0]
        q, k, v = self._separate(x)
        tables = context.tables[self.windowed]
        q, k = turn_halves(q, tables), turn_halves(k, tables)
        heads = Heads(o.heads, o.key_heads, o.head_width, o.head_width, tokens, tokens, causal=True)
        if self.kind == "flash-attention-2":
            out = attend(self.kind, q, k, v, heads, dropout=o.attention_dropout, heads_first=True)
        else:
            out = self._composed(q, k, v, heads, context)
        return self.o(out)

    def _composed(self, q: Tensor, k: Tensor, v: Tensor, heads: Heads, context: Context) -> Tensor:
        mask = context.masks[self.windowed]
        tape, low = q.tape, runs_in(q)
        k, v = (repeat_keys(t, heads) for t in (k, v))
        scores = ops.matmul(ops.cast(q, low), ops.cast(k, low), (heads.query, heads.queries, heads.keys), heads.width)
        scores = ops.scale(scores)
        if mask is not None:
            scores = ops.add(scores, mask)
        sinks = ops.expand_batch(tape.parameter(self.sinks)).view(heads.query, heads.queries, 1)
        combined = ops.cat([scores, sinks]).view(heads.query, heads.queries, heads.keys + 1)
        largest, _ = ops.top_k(combined, (heads.query, heads.queries, 1))
        combined = ops.subtract(combined, largest)
        weights = ops.softmax(combined, combined.dtype)
        kept = ops.narrow(weights, (heads.query, heads.queries, heads.keys))
        scores = ops.cast(ops.dropout(kept, self.options.attention_dropout), v.dtype)
        context.returns(scores)
        out = ops.matmul(scores, v, (heads.query, heads.queries, heads.value_width), heads.keys)
        out = ops.copy(out).view(heads.queries, heads.query * heads.value_width)
        del combined, weights, scores, largest, sinks, kept, k
        return out


class BiasedExperts(Experts):
    """Experts whose products have a bias, and a gate that is clamped (GptOssExperts)."""

    def __init__(self, build: Build, experts: int, hidden: int, inner: int) -> None:
        super().__init__(build, experts, hidden, inner, "silu")
        self.biases = (
            build.parameter("experts.gate_up_proj_bias", (experts, 2 * inner)),
            build.parameter("experts.down_proj_bias", (experts, hidden)),
        )

    def _gated(self, both: Tensor) -> Tensor:
        half = (both.shape[0], self.inner)
        gate, up = ops.narrow(both, half), ops.narrow(both, half)
        gate, up = ops.clamp(gate, bounds=1), ops.clamp(up, bounds=2)
        gated = ops.mul(gate, ops.pointwise(ops.scale(gate), keeps="output"))
        out = ops.mul(ops.shift(up), gated)
        del up
        return out


class BiasedRouter(Router):
    """Softmax over the chosen experts' logits, in their own type (GptOssTopKRouter)."""

    def __init__(self, build: Build, hidden: int, experts: int, chosen: int) -> None:
        self.chosen = chosen
        self.matrix = build.parameter("router.weight", (experts, hidden))
        self.bias = build.parameter("router.bias", (experts,))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and indices of the chosen experts, and the logits, which the block's code holds."""
        logits = ops.linear(x, self.matrix, self.bias)
        values, index = ops.top_k(logits, (x.shape[0], self.chosen))
        return ops.softmax(values, values.dtype), index, logits


def gpt_oss(build: Build, config: Mapping[str, Any]) -> Decoder:
    """GptOssForCausalLM."""
    o = usual(config)

    def sparse(build: Build, _: int) -> Mixture:
        experts = config["num_local_experts"]
        router = BiasedRouter(build, o.hidden, experts, config["num_experts_per_tok"])
        return Mixture(build, router, BiasedExperts(build, experts, o.hidden, o.inner))

    return Decoder(
        build,
        replace(
            o,
            norm=NormKind.RMS_WEIGHT_FIRST,
            rotary=Rotary(o.head_width, half_tables=True),
            attention=SinkAttention,
            kernels=("eager", "flash-attention-2"),
            sparse=sparse,
        ),
    )
