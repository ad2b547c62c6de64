"""Older decoders: one or three products for queries, keys and values, LayerNorm, attention code of their own.

Each after its ``transformers/models/*/modeling_*.py``. Those whose class has no fused attention run their eager code
whatever the scenario asks for, as the library does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from calc.architectures.attention import attend
from calc.architectures.decoder_parts import AddedBiasLinear, NormKind, Rotary, rotate
from calc.architectures.generic_decoder import Context, Decoder, Options, Order
from calc.replay import ops
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


def gpt2(build: Build, config: Mapping[str, Any]) -> Decoder:
    """GPT2LMHeadModel."""
    return Decoder(build, _gpt2_options(config))


def _gpt2_options(config: Mapping[str, Any]) -> Options:
    dropout = config["resid_pdrop"]
    return Options(
        hidden=config["n_embd"],
        layers=config["n_layer"],
        heads=config["n_head"],
        key_heads=config["n_head"],
        head_width=config["n_embd"] // config["n_head"],
        inner=config.get("n_inner") or 4 * config["n_embd"],
        vocabulary=config["vocab_size"],
        act=config["activation_function"],
        tied=config["tie_word_embeddings"],
        norm=NormKind.LAYER,
        position_rows=config["n_positions"],
        query_bias=True,
        out_bias=True,
        mlp_bias=True,
        fused_projection="c_attn",
        fused_cut="split",
        out_name="c_proj",
        mlp="plain",
        mlp_names=("c_fc", "c_proj"),
        attention_dropout=config["attn_pdrop"],
        fp32_softmax=False,
        weights_as_values=True,
        attention_held=True,
        branch_dropout=dropout,
        mlp_dropout=dropout,
        embedding_dropout=config["embd_pdrop"],
    )


def gpt_bigcode(build: Build, config: Mapping[str, Any]) -> Decoder:
    """GPT-2 with one head of keys and values (StarCoder)."""
    build.buffer(config["n_positions"] ** 2)
    single = config["multi_query"]
    options = replace(
        _gpt2_options(config),
        key_heads=1 if single else config["n_head"],
        fused_cut="split" if single else "heads",
        fp32_softmax=True,
        weights_as_values=False,
    )
    return Decoder(build, options)


def gptj(build: Build, config: Mapping[str, Any]) -> Decoder:
    """GPTJForCausalLM: rotation interleaved and partial, attention and feed-forward share a LayerNorm."""
    return Decoder(build, replace(_gptj_options(config), attention=GPTJAttention, head_bias=True))


def _gptj_options(config: Mapping[str, Any]) -> Options:
    width = config["n_embd"] // config["n_head"]
    return replace(
        _gpt2_options(config),
        order=Order.PARALLEL,
        residual_first=False,
        position_rows=0,
        position_limit=config["n_positions"],
        rotary=Rotary(config["rotary_dim"] or width, cut=config["rotary_dim"] is not None),
        tables_per_layer=True,
        weights_passed_on=True,
        query_bias=False,
        out_bias=False,
        fused_projection=None,
        mlp_names=("fc_in", "fc_out"),
        out_name="out_proj",
        kernels=("eager", "flash-attention-2"),
    )


def codegen(build: Build, config: Mapping[str, Any]) -> Decoder:
    """GPT-J with one product for queries, keys and values."""
    options = replace(
        _gptj_options(config),
        attention=CodeGenAttention,
        fused_projection="qkv_proj",
        head_bias=True,
        kernels=("eager",),
    )
    return Decoder(build, options)


def gpt_neo(build: Build, config: Mapping[str, Any]) -> Decoder:
    """GPTNeoForCausalLM: unscaled scores in fp32, a causal mask kept as a buffer of each layer."""
    dropout = config["resid_dropout"]
    hidden, heads = config["hidden_size"], config["num_heads"]
    options = Options(
        hidden=hidden,
        layers=config["num_layers"],
        heads=heads,
        key_heads=heads,
        head_width=hidden // heads,
        inner=config["intermediate_size"] or 4 * hidden,
        vocabulary=config["vocab_size"],
        act=config["activation_function"],
        tied=config["tie_word_embeddings"],
        norm=NormKind.LAYER,
        position_rows=config["max_position_embeddings"],
        position_limit=config["max_position_embeddings"],
        out_bias=True,
        out_name="out_proj",
        mlp="plain",
        mlp_names=("c_fc", "c_proj"),
        mlp_bias=True,
        attention_dropout=config["attention_dropout"],
        branch_dropout=dropout,
        mlp_dropout=dropout,
        embedding_dropout=config["embed_dropout"],
        attention=GPTNeoAttention,
        attention_held=True,
        weights_passed_on=True,
        kernels=("eager", "flash-attention-2"),
    )
    return Decoder(build, options)


def bloom(build: Build, config: Mapping[str, Any]) -> Decoder:
    """BloomForCausalLM: ALiBi, an embedding LayerNorm, a GELU that keeps its input alone."""
    hidden, heads, dropout = config["hidden_size"], config["n_head"], config["hidden_dropout"]
    options = Options(
        hidden=hidden,
        layers=config["n_layer"],
        heads=heads,
        key_heads=heads,
        head_width=hidden // heads,
        inner=4 * hidden,
        vocabulary=config["vocab_size"],
        act="bloom_gelu",
        tied=config["tie_word_embeddings"],
        norm=NormKind.LAYER,
        embedding_norm=True,
        query_bias=True,
        out_bias=True,
        fused_projection="query_key_value",
        out_name="dense",
        mlp="plain",
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        mlp_bias=True,
        attention_dropout=config["attention_dropout"],
        branch_dropout=dropout,
        mlp_dropout=dropout,
        residual_normalized=config["apply_residual_connection_post_layernorm"],
        attention=BloomAttention,
        weights_passed_on=True,
        bias_of_positions=partial(alibi_per_sample, heads),
        kernels=("eager",),
    )
    return Decoder(build, options)


def alibi_per_sample(heads: int, tape: Tape, tokens: int, dtype: Dtype) -> Tensor:
    """Slope times position of each key, by head, for every sample (build_alibi_tensor)."""
    return ops.cast(tape.empty((heads, tokens), Dtype.FP32, batched=True), dtype)


def mpt(build: Build, config: Mapping[str, Any]) -> Decoder:
    """MptForCausalLM: ALiBi, norms without bias, no biases at all."""
    hidden, heads = config["d_model"], config["n_heads"]
    dropout = config["attn_config"]["attn_pdrop"]
    options = Options(
        hidden=hidden,
        layers=config["n_layers"],
        heads=heads,
        key_heads=heads,
        head_width=hidden // heads,
        inner=4 * hidden,
        vocabulary=config["vocab_size"],
        act="gelu",
        tied=config["tie_word_embeddings"],
        norm=NormKind.LAYER_NO_BIAS,
        fused_projection="Wqkv",
        fused_cut="split",
        out_name="out_proj",
        mlp="plain",
        mlp_names=("up_proj", "down_proj"),
        attention_dropout=dropout,
        branch_dropout=dropout,
        mlp_dropout=dropout,
        weights_passed_on=True,
        attention=partial(MptAttention, clipped=bool(config["attn_config"]["clip_qkv"])),
        bias_of_positions=partial(alibi_of_model, heads, config["max_seq_len"]),
        boolean_mask=True,
        kernels=("eager",),
    )
    return Decoder(build, options)


def alibi_of_model(heads: int, positions: int, tape: Tape, tokens: int, dtype: Dtype) -> Tensor:
    """Slope times position up to the longest sequence, in fp32 for all samples (build_mpt_alibi_tensor)."""
    del tokens, dtype
    return tape.empty((heads, positions), Dtype.FP32, batched=False)


class _OwnAttention:
    """Projections of an attention that does not go through the library's common functions."""

    def __init__(self, build: Build, options: Options, index: int) -> None:
        del index
        o = self.options = options
        self.kind = build.attention if build.attention in o.kernels else "eager"
        linear = partial(build.linear, attention=True)
        if o.fused_projection is not None:
            self.qkv = linear(o.fused_projection, o.hidden, 3 * o.hidden, bias=o.query_bias)
        else:
            self.k = linear("k_proj", o.hidden, o.hidden, bias=o.query_bias)
            self.v = linear("v_proj", o.hidden, o.hidden, bias=o.query_bias)
            self.q = linear("q_proj", o.hidden, o.hidden, bias=o.query_bias)
        self.o = linear(o.out_name, o.hidden, o.hidden, bias=o.out_bias)

    def _scores_shape(self, tokens: int) -> tuple[int, int, int]:
        return self.options.heads, tokens, tokens

    def _heads(self, tokens: int) -> Heads:
        o = self.options
        return Heads(o.heads, o.heads, o.head_width, o.head_width, tokens, tokens, causal=True)

    def _product(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores of operands that lie token by token: each is copied head by head."""
        autocast = q.tape.autocast
        if autocast is not None:
            q, k = ops.cast(q, autocast.dtype), ops.cast(k, autocast.dtype)
        tokens = q.shape[0]
        return ops.matmul(ops.copy(q), ops.copy(k), self._scores_shape(tokens), self.options.head_width)

    def _output(self, weights: Tensor, v: Tensor) -> Tensor:
        """Weighted values as one row a token."""
        o = self.options
        tokens = v.shape[0]
        out = ops.matmul(weights, ops.copy(v), (o.heads, tokens, o.head_width), tokens)
        return ops.copy(out).view(tokens, o.hidden)


class GPTJAttention(_OwnAttention):
    """Scores in fp32 (autocast takes its type), tables made again in every layer (models/gptj)."""

    def __init__(self, build: Build, options: Options, index: int) -> None:
        super().__init__(build, options, index)
        width = options.rotary.width if options.rotary is not None else 0
        build.buffer(options.position_limit * width * Dtype.FP32.itemsize)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        tape, tokens, rotary = x.tape, x.shape[0], self.options.rotary
        width = rotary.width if rotary is not None else 0
        table = tape.empty((self.options.position_limit, width), Dtype.FP32, batched=False)
        tables = ops.cast(tape.empty((tokens, width), Dtype.FP32, batched=False), k.dtype)
        return self._attend(q, k, v, tables, context, held=(table,))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, tables: Tensor, context: Context, held: Sequence[Tensor]
    ) -> Tensor:
        o = self.options
        tokens = q.shape[0]
        shape = (tokens, o.heads, o.head_width)
        k, q, parts = self._rotated(k.view(*shape), q.view(*shape), tables)
        if self.kind == "flash-attention-2":
            out = attend(self.kind, q, k, v, self._heads(tokens), dropout=o.attention_dropout)
        else:
            out = self._eager(q, k, ops.transposed(v), context)
        out = self.o(out)
        del parts, held
        return ops.dropout(out, o.branch_dropout)

    def _rotated(self, k: Tensor, q: Tensor, tables: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        rotary = self.options.rotary
        if rotary is None or not rotary.cut:
            return self._turned(k, tables), self._turned(q, tables), ()
        tokens, heads, width = k.shape
        turned, rest = (tokens, heads, rotary.width), (tokens, heads, width - rotary.width)
        k_part, k_pass = ops.narrow(k, turned), ops.narrow(k, rest)
        q_part, q_pass = ops.narrow(q, turned), ops.narrow(q, rest)
        k_part, q_part = self._turned(k_part, tables), self._turned(q_part, tables)
        parts = (k_part, k_pass, q_part, q_pass)
        return ops.cat([k_part, k_pass]).view(*k.shape), ops.cat([q_part, q_pass]).view(*q.shape), parts

    def _turned(self, x: Tensor, tables: Tensor) -> Tensor:
        """Every other value's table is repeated for its neighbour, anew for each call."""
        sine, cosine = (x.tape.like(tables) for _ in range(2))
        return ops.rotary(x, cosine, sine)

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        wide_q, wide_k = ops.cast(q, Dtype.FP32), ops.cast(k, Dtype.FP32)
        scores = self._product(wide_q, wide_k)
        scores = ops.scale(scores)
        mask = context.masks[False]
        if mask is not None:
            scores = ops.add(scores, mask)
        scores = ops.softmax(scores)
        scores = ops.dropout(ops.cast(scores, v.dtype), self.options.attention_dropout)
        context.returns(scores)
        return self._output(scores, v)


class CodeGenAttention(GPTJAttention):
    """The one product is cut in four groups, which copies each part; the mask comes before scaling (models/codegen)."""

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        tape, tokens, rotary = x.tape, x.shape[0], self.options.rotary
        shape = (tokens, self.options.heads, self.options.head_width)
        qkv = self.qkv(x)
        q, v, k = ops.split(qkv, [shape] * 3)
        q, k, v = ops.copy(q), ops.copy(k), ops.copy(v)
        width = rotary.width if rotary is not None else 0
        tables = tape.empty((tokens, width), Dtype.FP32, batched=False)
        return self._attend(q, k, v, tables, context, held=(qkv,))

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        wide_q, wide_k = ops.cast(q, Dtype.FP32), ops.cast(k, Dtype.FP32)
        scores = self._product(wide_q, wide_k)
        mask = context.masks[False]
        if mask is not None:
            scores = ops.add(scores, mask)
        scores = ops.scale(scores)
        scores = ops.softmax(scores)
        scores = ops.dropout(ops.cast(scores, v.dtype), self.options.attention_dropout)
        context.returns(scores)
        return self._output(scores, v)


class GPTNeoAttention(_OwnAttention):
    """Scores in fp32 without scaling, masked by each layer's own buffer, then by the model's mask (models/gpt_neo)."""

    def __init__(self, build: Build, options: Options, index: int) -> None:
        super().__init__(build, options, index)
        build.buffer(options.position_limit**2)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        o = self.options
        tape, tokens = x.tape, x.shape[0]
        shape = (tokens, o.heads, o.head_width)
        q, k, v = ops.transposed(self.q(x)), ops.transposed(self.k(x)), ops.transposed(self.v(x))
        if self.kind == "flash-attention-2":
            out = attend(self.kind, q, k, v, self._heads(tokens), dropout=o.attention_dropout)
            return ops.dropout(self.o(out), o.branch_dropout)
        q, k = q.view(*shape), k.view(*shape)
        wide_q, wide_k = ops.cast(q, Dtype.FP32), ops.cast(k, Dtype.FP32)
        scores = self._product(wide_q, wide_k)
        scores = ops.where(tape.empty((tokens, tokens), Dtype.BOOL, batched=False), scores)
        mask = context.masks[False]
        if mask is not None:
            scores = ops.add(scores, mask)
        scores = ops.softmax(scores)
        scores = ops.dropout(ops.cast(scores, v.dtype), self.options.attention_dropout)
        context.returns(scores)
        del wide_q, wide_k
        return ops.dropout(self.o(self._output(scores, v)), o.branch_dropout)


class BloomAttention(_OwnAttention):
    """Scores added to ALiBi in one product; scores and probabilities stay variables (models/bloom)."""

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        o = self.options
        tokens = x.shape[0]
        shape = (tokens, o.heads, o.head_width)
        qkv = self.qkv(x)
        q, k, v = (ops.narrow(qkv, shape) for _ in range(3))
        q, k, v = ops.copy(q), ops.copy(k), ops.copy(v)
        autocast = x.tape.autocast
        alibi = context.position_bias
        if alibi is not None and autocast is not None:
            alibi = ops.cast(alibi, autocast.dtype)
        scores = ops.matmul(q, k, self._scores_shape(tokens), o.head_width)
        masked = scores
        mask = context.masks[False]
        if mask is not None:
            masked = ops.add(scores, mask)
        weights = ops.cast(ops.softmax(masked, Dtype.FP32), q.dtype)
        weights = ops.dropout(weights, o.attention_dropout)
        context.returns(weights)
        out = ops.copy(ops.matmul(weights, v, (o.heads, tokens, o.head_width), tokens)).view(tokens, o.hidden)
        out = ops.dropout(self.o(out), o.branch_dropout)
        del alibi, scores, masked, weights, qkv
        return out


class MptAttention(_OwnAttention):
    """ALiBi in fp32 makes the scores fp32; positions to come are filled by a boolean mask (models/mpt)."""

    def __init__(self, build: Build, options: Options, index: int, *, clipped: bool) -> None:
        super().__init__(build, options, index)
        self.clipped = clipped

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        o = self.options
        tokens = x.shape[0]
        shape = (tokens, o.heads, o.head_width)
        qkv = self.qkv(x)
        if self.clipped:
            qkv = ops.pointwise(qkv)
        q, k, v = ops.split(qkv, [shape] * 3)
        q, k, v = ops.transposed(q), ops.transposed(k), ops.transposed(v)
        scores = ops.scale(self._product(q, k))
        if context.position_bias is not None:
            scores = ops.add(scores, context.position_bias.view(o.heads, 1, tokens))
        mask = context.masks[False]
        if mask is not None:
            scores = ops.where(mask, scores)
        weights = ops.cast(ops.softmax(ops.cast(scores, Dtype.FP32)), v.dtype)
        weights = ops.dropout(weights, o.attention_dropout)
        context.returns(weights)
        out = self.o(self._output(weights, v))
        del scores, weights, qkv
        return ops.dropout(out, o.branch_dropout)


def falcon(build: Build, config: Mapping[str, Any]) -> Decoder:
    """FalconForCausalLM: keys shared by all heads or by groups, rotation or ALiBi, side by side or in turn."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    grouped, single = config["new_decoder_architecture"], config["multi_query"]
    alibi, side_by_side = config["alibi"], config["parallel_attn"]
    norms = config["num_ln_in_parallel_attn"] or (2 if grouped else 1)
    together = Order.PARALLEL_TWO_NORMS if grouped and norms == 2 else Order.PARALLEL
    options = Options(
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        key_heads=config["num_kv_heads"] if grouped else 1 if single else heads,
        head_width=hidden // heads,
        inner=config["ffn_hidden_size"],
        vocabulary=config["vocab_size"],
        act=config["activation"],
        tied=config["tie_word_embeddings"],
        order=together if side_by_side else Order.PRE,
        norm=NormKind.LAYER,
        rotary=Rotary(hidden // heads),
        mlp="plain",
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        mlp_bias=config["bias"],
        bias_added=True,
        query_bias=config["bias"],
        out_bias=config["bias"],
        residual_first=False,
        sum_inplace=True,
        attention_held=True,
        input_held=True,
        attention_dropout=config["attention_dropout"],
        branch_dropout=0.0 if side_by_side else config["attention_dropout"],
        mlp_dropout=config["hidden_dropout"],
        weights_passed_on=True,
        attention=partial(FalconAttention, grouped=grouped, alibi=alibi),
        bias_of_positions=partial(alibi_per_sample, heads) if alibi else None,
        bias_in_mask=alibi,
        mask_always=True,
    )
    return Decoder(build, options)


class FalconAttention:
    """Keys and values are picked from the one product by index, which copies them (models/falcon)."""

    def __init__(self, build: Build, options: Options, index: int, *, grouped: bool, alibi: bool) -> None:
        del index
        o = self.options = options
        self.kind = build.attention
        self.grouped = grouped
        self.alibi = alibi
        linear = partial(AddedBiasLinear, build, attention=True)
        self.qkv = linear("query_key_value", o.hidden, o.hidden + 2 * o.key_heads * o.head_width, bias=o.query_bias)
        self.o = linear("dense", o.hidden, o.hidden, bias=o.out_bias)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        o = self.options
        tokens = x.shape[0]
        qkv = self.qkv(x)
        q, k, v = self._heads_of(qkv)
        if not self.alibi and o.rotary is not None:
            q, k, _ = rotate(q, k, context.tables[False], o.rotary)
        single = k.shape[1] == 1 and o.heads > 1
        mask = context.masks[False]
        if self.kind == "eager":
            out = self._eager(q, k, v, context, x.dtype)
        elif self.kind == "sdpa" and single:
            out = self._single_keys(q, k, v, mask)
        else:
            heads = Heads(o.heads, k.shape[1], o.head_width, o.head_width, tokens, tokens, causal=mask is None)
            out = attend(self.kind, q, k, v, heads, mask=mask)
        out = self.o(out)
        del qkv
        return ops.dropout(out, o.branch_dropout)

    def _heads_of(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        o = self.options
        tokens, width = qkv.shape[0], o.head_width
        wide, narrow = (tokens, o.heads, width), (tokens, o.key_heads, width)
        q = ops.narrow(qkv, wide)
        if not self.grouped and o.key_heads == o.heads:
            return q, ops.narrow(qkv, wide), ops.narrow(qkv, wide)
        index = qkv.tape.empty((1,), Dtype.INT64, batched=False)
        k, v = ops.take(qkv, index, narrow), ops.take(qkv, index, narrow)
        if not self.grouped:
            return q, k, v
        times = o.heads // o.key_heads
        return ops.copy(q), ops.repeat(k, times).view(*wide), ops.repeat(v, times).view(*wide)

    def _single_keys(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """No fused kernel takes keys that broadcast over heads."""
        o = self.options
        tokens, autocast = q.shape[0], q.tape.autocast
        if autocast is not None:
            q, k, v = (ops.cast(t, autocast.dtype) for t in (q, k, v))
        dtype = q.dtype
        wide_k, wide_v = (ops.expand(ops.cast(t, Dtype.FP32), o.heads) for t in (k, v))
        heads = Heads(o.heads, o.heads, o.head_width, o.head_width, tokens, tokens, causal=mask is None)
        out = ops.math_attention(ops.cast(q, Dtype.FP32), wide_k, wide_v, heads, mask=mask)
        return ops.copy(ops.cast(out, dtype)).view(tokens, o.hidden)

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, context: Context, dtype: Dtype) -> Tensor:
        o = self.options
        tokens = q.shape[0]
        if k.shape[1] != o.heads:
            k, v = ops.expand(k, o.heads), ops.expand(v, o.heads)
        if q.tape.autocast is not None:
            q, k, v = (ops.cast(t, q.tape.autocast.dtype) for t in (q, k, v))
        product = ops.matmul(ops.copy(q), ops.copy(k), (o.heads, tokens, tokens), o.head_width)
        wide = scores = product
        if context.position_bias is not None:
            wide = ops.cast(product, Dtype.FP32)
            scores = ops.add(wide, context.position_bias.view(o.heads, 1, tokens))
        scores = ops.scale_inplace(scores)
        mask = context.masks[False]
        weights = ops.softmax(scores if mask is None else ops.add(scores, mask), dtype)
        if context.position_bias is not None:
            weights = ops.dropout(weights, o.attention_dropout)
        context.returns(weights)
        out = ops.matmul(weights, ops.copy(v), (o.heads, tokens, o.head_width), tokens)
        out = ops.copy(out).view(tokens, o.hidden)
        del product, wide, scores, weights
        return out
