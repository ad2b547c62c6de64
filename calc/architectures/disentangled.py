"""DeBERTa: attention whose scores are summed of content and relative position (transformers/models/deberta*).

He et al. 2021, arXiv:2006.03654. Its attention is composed operation by operation whatever implementation is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.encoders import POSITION_BYTES, MaskedLanguageHead, PostNormBlock, masked_lm_loss
from calc.errors import ScenarioError
from calc.replay import ops
from calc.replay.layers import Blocks, Conv, Embedding, LayerNorm
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


def relative_positions(tape: Tape, tokens: int) -> Tensor:
    """Distance of every pair of tokens, in logarithmic buckets (build_relative_position)."""
    scratch = [tape.empty((tokens, tokens), Dtype.INT64, batched=False) for _ in range(4)]
    positions = tape.empty((tokens, tokens), Dtype.INT64, batched=False)
    del scratch
    return positions


def new_indices(tape: Tape, positions: Tensor, *, steps: int) -> Tensor:
    """Which score each pair gathers: the positions shifted and clamped in ``steps`` operations and one more."""
    scratch = [tape.like(positions) for _ in range(steps)][-1]
    index = tape.like(scratch)
    del scratch
    return index


class DisentangledAttention:
    """Content to content, content to position, position to content (DisentangledSelfAttention)."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.width = config.get("attention_head_size") or hidden // self.heads
        inner = self.heads * self.width
        self.dropout = config["attention_probs_dropout_prob"]
        self.position_dropout = config["hidden_dropout_prob"]
        self.relative = config["relative_attention"]
        self.kinds = tuple(config["pos_att_type"] or ()) if self.relative else ()
        self.q = build.linear("query_proj", hidden, inner, attention=True)
        self.k = build.linear("key_proj", hidden, inner, attention=True)
        self.v = build.linear("value_proj", hidden, inner, attention=True)
        self.position_q, self.position_k = self.q, self.k
        if not config.get("share_att_key", False):
            if "c2p" in self.kinds:
                self.position_k = build.linear("pos_key_proj", hidden, inner, attention=True)
            if "p2c" in self.kinds:
                self.position_q = build.linear("pos_query_proj", hidden, inner, attention=True)
        self.o = build.linear("dense", inner, hidden, attention=True)

    def __call__(self, x: Tensor, *, mask: Tensor, positions: Tensor | None, table: Tensor | None) -> Tensor:
        tape, tokens = x.tape, x.shape[0]
        scores_shape = (self.heads, tokens, tokens)
        q, k, v = (ops.copy(ops.transposed(layer(x))) for layer in (self.q, self.k, self.v))
        scores = ops.matmul(q, ops.scale(k), scores_shape, self.width)
        bias = None
        if positions is not None and table is not None:
            table = ops.dropout(table, self.position_dropout)
            bias = self._bias(q, k, positions, table)
        if bias is not None:
            scores = ops.add(scores, bias)
        allowed = tape.like(mask, Dtype.BOOL)
        scores = ops.where(tape.like(allowed), scores)
        probabilities = ops.dropout(ops.softmax(scores), self.dropout)
        context = ops.matmul(probabilities, v, (tokens, self.heads * self.width), tokens)
        context = ops.copy(context)
        del q, k, v, scores, bias, allowed, probabilities
        return self.o(context)

    def _bias(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> Tensor | None:
        """Scores of contents with positions: products with all relative positions, then each pair's own gathered."""
        tape, tokens = q.tape, q.shape[0]
        shape = (self.heads, tokens, tokens)
        shared = self.position_q is self.q
        position_q = self._by_heads(self.position_q, table) if shared and self.kinds else None
        position_k = self._by_heads(self.position_k, table) if (shared and self.kinds) or "c2p" in self.kinds else None
        if position_q is None and "p2c" in self.kinds:
            position_q = self._by_heads(self.position_q, table)
        score: Tensor | None = None
        if "c2p" in self.kinds and position_k is not None:
            wide = ops.matmul(q, position_k, (*shape[:2], table.shape[0]), self.width)
            index = new_indices(tape, positions, steps=1)
            content = ops.gather(wide, index, shape)
            del wide
            score = ops.shift(ops.scale(content))
        if "p2c" in self.kinds and position_q is not None:
            position_index = new_indices(tape, positions, steps=2)
            wide = ops.matmul(k, position_q, (*shape[:2], table.shape[0]), self.width)
            gathered = ops.gather(wide, position_index, shape)
            del wide
            scaled = ops.scale(gathered)
            score = ops.shift(scaled) if score is None else ops.add_inplace(score, scaled)
        return score

    def _by_heads(self, layer: Any, table: Tensor) -> Tensor:
        return ops.over_batch(ops.copy(ops.transposed(layer(table))))


class FirstConvolution:
    """A convolution over the embeddings, added after the first block (ConvLayer, DeBERTa v2)."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, kernel = config["hidden_size"], config["conv_kernel_size"]
        self.act = config.get("conv_act", "tanh")
        self.dropout = config["hidden_dropout_prob"]
        groups = config.get("conv_groups", 1)
        self.conv = Conv(build, "conv", hidden, hidden, (kernel,), padding=(kernel - 1) // 2, groups=groups)
        self.norm = LayerNorm(build, "LayerNorm", hidden)

    def __call__(self, embedded: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        tokens, hidden = embedded.shape
        out = ops.copy(ops.copy(embedded).view(hidden, tokens))
        out = ops.copy(self.conv(out)).view(tokens, hidden)
        out = activation(self.act, ops.dropout(out, self.dropout))
        total = ops.add(x, out)
        normal = ops.cast(self.norm(total), total.dtype)
        return ops.mul(normal, ops.cast(mask, normal.dtype))


class ComposedNorm:
    """DebertaLayerNorm: mean, differences, root and quotient as separate operations, in fp32."""

    def __init__(self, build: Build, name: str, width: int) -> None:
        self.width = width
        self.weight = build.parameter(f"{name}.weight", (width,))
        self.bias = build.parameter(f"{name}.bias", (width,))

    def __call__(self, x: Tensor) -> Tensor:
        tape, dtype, groups = x.tape, x.dtype, x.numel // self.width
        x = ops.cast(x, Dtype.FP32)
        mean = ops.mean_last(x, groups)
        variance = ops.mean_last(ops.power(ops.subtract(x, mean)), groups)
        root = ops.pointwise(ops.shift(variance), keeps="output")
        x = ops.cast(ops.divide(ops.subtract(x, mean), root), dtype)
        out = ops.add(ops.mul(tape.parameter(self.weight), x), tape.parameter(self.bias))
        del mean, variance
        return out


class FirstDisentangledAttention:
    """DeBERTa's first version: one product for queries, keys and values; biases of the first and last follow."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.width = hidden // self.heads
        self.dropout = config["attention_probs_dropout_prob"]
        self.position_dropout = config["hidden_dropout_prob"]
        self.kinds = tuple(config["pos_att_type"] or ()) if config["relative_attention"] else ()
        self.qkv = build.linear("in_proj", hidden, 3 * hidden, bias=False, attention=True)
        self.q_bias, self.v_bias = (build.parameter(name, (hidden,)) for name in ("q_bias", "v_bias"))
        if "c2p" in self.kinds:
            self.position_k = build.linear("pos_proj", hidden, hidden, bias=False, attention=True)
        if "p2c" in self.kinds:
            self.position_q = build.linear("pos_q_proj", hidden, hidden, attention=True)
        self.o = build.linear("dense", hidden, hidden, attention=True)

    def __call__(self, x: Tensor, *, mask: Tensor, positions: Tensor | None, table: Tensor | None) -> Tensor:
        tape, (tokens, hidden) = x.tape, x.shape
        products = self.qkv(x)
        q, k, v = ops.split(products, [(tokens, hidden)] * 3)
        q = ops.add(q, tape.parameter(self.q_bias))
        v = ops.add(v, tape.parameter(self.v_bias))
        q = ops.scale(q)
        scores = _by_heads_product(q, k, (self.heads, tokens, tokens), self.width)
        bias = None
        if positions is not None and table is not None:
            table = ops.dropout(table, self.position_dropout)
            bias = self._bias(q, k, positions, table)
        if bias is not None:
            scores = ops.add(scores, bias)
        allowed = tape.like(mask, Dtype.BOOL)
        scores = ops.where(tape.like(allowed), scores)
        probabilities = ops.dropout(ops.softmax(scores), self.dropout)
        low = x.dtype if tape.autocast is None else tape.autocast.dtype
        context = ops.matmul(probabilities, ops.copy(ops.cast(v, low)), (tokens, hidden), tokens)
        context = ops.copy(context)
        del products, q, k, v, scores, bias, allowed, probabilities
        return self.o(context)

    def _bias(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> Tensor | None:
        tape, tokens = q.tape, q.shape[0]
        span = min(tokens, table.shape[0] // 2)
        if 2 * span < table.shape[0]:
            table = ops.narrow(table, (2 * span, table.shape[1]))
        wide_shape, shape = (self.heads, tokens, 2 * span), (self.heads, tokens, tokens)
        score: Tensor | None = None
        if "c2p" in self.kinds:
            rows = self.position_k(table)
            wide = _by_heads_product(q, rows, wide_shape, self.width)
            content = ops.gather(wide, new_indices(tape, positions, steps=1), shape)
            del wide
            score = ops.shift(content)
        if "p2c" in self.kinds:
            rows = ops.scale_inplace(self.position_q(table))
            index = new_indices(tape, positions, steps=2)
            wide = _by_heads_product(k, rows, wide_shape, self.width)
            gathered = ops.gather(wide, index, shape)
            del wide
            score = ops.shift(gathered) if score is None else ops.add_inplace(score, gathered)
        return score


def _by_heads_product(a: Tensor, b: Tensor, shape: tuple[int, ...], inner: int) -> Tensor:
    """A product of two tensors that don't lie head by head: each is copied so; one of the table, for every sample."""
    low = a.dtype if a.tape.autocast is None else a.tape.autocast.dtype
    rows = ops.copy(ops.cast(a, low))
    columns = ops.cast(b, low)
    columns = ops.copy(columns) if columns.batched else ops.over_batch(columns)
    return ops.matmul(rows, columns, shape, inner)


class DebertaV2:
    """DebertaV2ForMaskedLM with the head of the library's default (``legacy``)."""

    attention: Callable[[Build, Mapping[str, Any]], Callable[..., Tensor]] = DisentangledAttention
    norm: Callable[[Build, str, int], Callable[[Tensor], Tensor]] = LayerNorm

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        attention, norm = type(self).attention, type(self).norm
        if not config["legacy"]:
            raise ScenarioError("model", f"{config['model_type']} with legacy=false is not calculated; set it to true")
        hidden, dropout, act = config["hidden_size"], config["hidden_dropout_prob"], config["hidden_act"]
        width = config.get("embedding_size") or hidden
        self.dropout = dropout
        self.tokens = Embedding(build, "word_embeddings", config["vocab_size"], width)
        rows, types = config["max_position_embeddings"], config["type_vocab_size"]
        biased = config["position_biased_input"]
        self.positions = Embedding(build, "position_embeddings", rows, width, of_tokens=False) if biased else None
        self.types = Embedding(build, "token_type_embeddings", types, width, of_tokens=False) if types else None
        self.projection = build.linear("embed_proj", width, hidden, bias=False) if width != hidden else None
        self.embedding_norm = norm(build, "LayerNorm", hidden)
        build.buffer(rows * POSITION_BYTES)

        self.relative = config["relative_attention"]
        if self.relative:
            farthest = config["max_relative_positions"]
            span = config.get("position_buckets", -1)
            span = span if span > 0 else farthest if farthest > 0 else rows
            self.table = build.parameter("rel_embeddings.weight", (2 * span, hidden))
            self.table.embedding = True
        normed = "layer_norm" in str(config.get("norm_rel_ebd", "none")).lower()
        self.table_norm = LayerNorm(build, "encoder.LayerNorm", hidden) if normed else None

        def block(_: int) -> PostNormBlock:
            return PostNormBlock(
                build,
                attention(build, config),
                hidden,
                config["intermediate_size"],
                act=act,
                dropout=dropout,
                attention_output_dropout=dropout,
                norm=norm,
            )

        layers = config["num_hidden_layers"]
        convolved = config.get("conv_kernel_size", 0) > 0
        self.first = Blocks(build, ["layer"], block) if convolved else None
        self.convolution = FirstConvolution(build, config) if convolved else None
        self.blocks = Blocks(build, ["layer"] * (layers - convolved), block)
        self.head = MaskedLanguageHead(build, hidden, width, config["vocab_size"], act=act, table=self.tokens.weight)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        for _ in ("ids", "labels"):
            tape.batch_input((shape.sequence_length,), Dtype.INT64)
        x = self._encode(tape, shape.sequence_length)
        return masked_lm_loss(tape, x, self.head)

    def _encode(self, tape: Tape, tokens: int) -> Tensor:
        """Runs the encoder, which holds every block's output until it ends (output_hidden_states=True)."""
        token_mask = tape.empty((tokens, 1), Dtype.FP32, batched=True)
        embedded = self._embed(tape, tokens, token_mask)
        with tape.within("attention"):
            mask = tape.empty((tokens, tokens), Dtype.FP32, batched=True)
            positions = relative_positions(tape, tokens) if self.relative else None
            table = tape.parameter(self.table) if self.relative else None
            if table is not None and self.table_norm is not None:
                table = self.table_norm(table)
        outputs: list[Tensor] = []
        x = embedded
        if self.first is not None and self.convolution is not None:
            x = self.first(tape, x, mask=mask, positions=positions, table=table)
            x = self.convolution(embedded, x, token_mask)
            outputs.append(x)
        return self.blocks(tape, x, outputs=outputs, mask=mask, positions=positions, table=table)

    def _embed(self, tape: Tape, tokens: int, token_mask: Tensor) -> Tensor:
        with tape.within("embeddings"):
            types = tape.empty((tokens,), Dtype.INT64, batched=True)
            words = x = self.tokens(tape, tokens)
            if self.positions is not None:
                positions = self.positions(tape, tokens, batched=False)
                x = ops.add(x, positions)
            else:
                positions = tape.like(words)
            if self.types is not None:
                x = ops.add(x, self.types(tape, tokens))
            if self.projection is not None:
                x = self.projection(x)
            x = self.embedding_norm(x)
            x = ops.mul(x, ops.cast(token_mask, x.dtype))
            x = ops.dropout(x, self.dropout)
            del types, words, positions
            return x


class Deberta(DebertaV2):
    """DebertaForMaskedLM."""

    attention = FirstDisentangledAttention
    norm = ComposedNorm
