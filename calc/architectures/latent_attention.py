"""Multi-head latent attention (transformers/models/deepseek_v2, deepseek_v3)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from calc.architectures.attention import attend
from calc.architectures.decoder_parts import NormKind, norm
from calc.replay import ops
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.decoder_parts import RotaryTables
    from calc.architectures.generic_decoder import Context, Options
    from calc.replay.layers import Build
    from calc.replay.tape import Tensor


class LatentAttention:
    """Keys and values are projected from a narrow latent; a part of each head carries positions, shared by the keys."""

    def __init__(self, build: Build, options: Options, index: int, config: Mapping[str, Any]) -> None:
        del index
        o = self.options = options
        self.kind = build.attention
        self.plain, self.turned = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.value_width, self.latent = config["v_head_dim"], config["kv_lora_rank"]
        self.interleaves = config.get("rope_interleave", True)
        linear = partial(build.linear, attention=True)
        wide, narrow = o.heads * (self.plain + self.turned), config["q_lora_rank"]
        self.compresses_queries = narrow is not None
        if narrow is None:
            self.q = linear("q_proj", o.hidden, wide, bias=False)
        else:
            self.q_down = linear("q_a_proj", o.hidden, narrow, bias=o.query_bias)
            self.q_norm = norm(build, NormKind.RMS, "q_a_layernorm", narrow)
            self.q = linear("q_b_proj", narrow, wide, bias=False)
        self.kv_down = linear("kv_a_proj_with_mqa", o.hidden, self.latent + self.turned, bias=o.query_bias)
        self.kv_norm = norm(build, NormKind.RMS, "kv_a_layernorm", self.latent)
        self.kv = linear("kv_b_proj", self.latent, o.heads * (self.plain + self.value_width), bias=False)
        self.o = linear("o_proj", o.heads * self.value_width, o.hidden, bias=o.out_bias)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        o = self.options
        tokens, width = x.shape[0], self.plain + self.turned
        q = ops.transposed(self.q(self.q_norm(self.q_down(x))) if self.compresses_queries else self.q(x))
        q_plain, q_turned = ops.split(q, [(tokens, o.heads, self.plain), (tokens, o.heads, self.turned)])
        latent = self.kv_down(x)
        kv, k_turned = ops.split(latent, [(tokens, self.latent), (tokens, 1, self.turned)])
        kv = self.kv_norm(kv)
        tables = context.tables[False]
        q_turned, k_turned = self._turn(q_turned, tables), self._turn(k_turned, tables)
        queries = ops.cat([q_plain, q_turned]).view(tokens, o.heads, width)
        keys, v = self._expand(kv, k_turned)
        heads = Heads(o.heads, o.heads, width, self.value_width, tokens, tokens, causal=True)
        out = attend(
            self.kind,
            queries,
            keys,
            v,
            heads,
            dropout=o.attention_dropout,
            mask=context.masks[False],
            heads_first=True,
            returns=context.returns,
        )
        out = self.o(out)
        del q, q_plain, latent
        return out

    def _turn(self, x: Tensor, tables: RotaryTables) -> Tensor:
        rotary = self.options.rotary
        if rotary is not None and rotary.complex_table:
            turned = ops.mul(ops.cast(x, Dtype.FP32), tables.cos)
            return ops.cast(turned, x.dtype)
        if not self.interleaves:
            return ops.rotary(x, tables.cos, tables.sin)
        half = (*x.shape[:-1], self.turned // 2)
        table = (x.shape[0], self.turned // 2)
        cos, sin = tables.cos.view(*table), tables.sin.view(*table)
        first, second = ops.narrow(x, half), ops.narrow(x, half)
        left = ops.subtract(ops.mul(first, cos), ops.mul(second, sin))
        right = ops.add(ops.mul(second, cos), ops.mul(first, sin))
        return ops.cat([left, right]).view(*x.shape)

    def _expand(self, kv: Tensor, k_turned: Tensor) -> tuple[Tensor, Tensor]:
        o = self.options
        tokens = kv.shape[0]
        both = ops.transposed(self.kv(kv))
        plain, v = ops.split(both, [(tokens, o.heads, self.plain), (tokens, o.heads, self.value_width)])
        return ops.filled_keys(plain, k_turned), v
