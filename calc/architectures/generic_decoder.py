"""A causal decoder described by options: what most implementations in transformers differ in.

Each ``models/*/modeling_*.py`` is its own copy of the same module with small changes: which normalization and where,
whether attention and feed-forward follow one another or stand side by side, how positions enter, what has a bias.
`Options` names those changes; `calc.architectures.llama_like` sets them for each family.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from calc.architectures.attention import attend
from calc.architectures.decoder_parts import (
    FusedGatedMLP,
    GatedMLP,
    NormKind,
    NormOfEachHead,
    PlainMLP,
    Rotary,
    RotaryTables,
    ScaledEmbedding,
    causal_lm_loss,
    causal_mask,
    norm,
    rotary_buffers,
    rotate,
)
from calc.replay import ops
from calc.replay.layers import Blocks, Embedding
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


class Order(Enum):
    """How a block joins attention and feed-forward to its input."""

    PRE = "x + f(norm(x)), one after the other"
    POST = "x + norm(f(x)), one after the other"
    POST_SUM = "norm(x + f(x)), one after the other"
    SANDWICH = "x + norm(f(norm(x))), one after the other"
    PARALLEL = "x + attention(norm(x)) + mlp(norm(x)), one normalization for both"
    PARALLEL_TWO_NORMS = "x + attention(norm(x)) + mlp(norm'(x))"


@dataclass(frozen=True)
class Options:
    """A decoder's sizes and what its implementation does. Sizes without a unit are counts of values."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    inner: int
    vocabulary: int
    act: str
    tied: bool
    order: Order = Order.PRE
    norm: NormKind = NormKind.RMS
    rotary: Rotary | None = None
    rotary_kinds: int = 1
    """Layer types with tables of their own (Gemma 3, OLMo 3)."""
    rotary_layers: Sequence[bool] = ()
    """Which layers turn queries and keys; empty: all."""
    window: int | None = None
    windowed_layers: Sequence[bool] = ()
    """Which layers attend within the window only; empty: all."""
    tables_per_layer: bool = False
    """Each layer makes its own rotary tables (GPT-J)."""
    position_rows: int = 0
    """Rows of a table of learned positions; 0: none."""
    positions_per_sample: bool = False
    """Each sample looks up its own positions (OPT)."""
    position_limit: int = 0
    """The longest sequence, where a layer's own buffer holds something for each position."""
    bias_of_positions: Callable[[Tape, int, Dtype], Tensor] | None = None
    """Makes ALiBi's bias of the scores, once a forward."""
    attention: Callable[[Build, Options, int], Callable[[Tensor, Context], Tensor]] | None = None
    """Builds a layer's attention where the library's common functions don't do it."""
    kernels: Sequence[str] = ("eager", "sdpa", "flash-attention-2")
    """The attention implementations that the class has; it takes eager for another one."""
    bias_in_mask: bool = False
    """The mask holds ALiBi's bias (Falcon)."""
    mask_always: bool = False
    """A mask is made even where the kernel could be told "causal" (Falcon)."""
    boolean_mask: bool = False
    """The eager mask is made boolean (MPT)."""
    query_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    fused_projection: str | None = None
    """Name of the one product for queries, keys and values; None: three products."""
    fused_cut: str = "slices"
    """How the one product's result is cut: into three ``slices`` (Phi-3), by one ``split`` (GPT-2), or within each of
    the ``heads`` (GPT-NeoX)."""
    out_name: str = "o_proj"
    query_norm: str | None = None
    """Normalization of queries and keys: ``head`` (each head's values), ``each-head`` (by a module of its own) or
    ``whole``."""
    query_norm_last: bool = False
    """It follows the rotation (HunYuan)."""
    query_norm_per_head: bool = False
    """Each head has its own weight."""
    query_scaled: bool = False
    """Queries are multiplied by a number before attention (OPT)."""
    queries_scaled_by_position: bool = False
    """Turned queries are multiplied by a factor of their position (Ministral 3)."""
    mlp: str = "gated"
    """``gated``, ``fused-gated`` or ``plain``."""
    mlp_names: tuple[str, str] = ("up_proj", "down_proj")
    attention_dropout: float = 0.0
    fp32_softmax: bool = True
    weights_as_values: bool = False
    """Attention weights are cast to the values' type (GPT-2)."""
    branch_dropout: float = 0.0
    mlp_dropout: float = 0.0
    embedding_dropout: float = 0.0
    embedding_scaled: bool = False
    """The token table multiplies its rows by a number (Gemma)."""
    embedding_norm: bool = False
    """A LayerNorm follows the token table (BLOOM)."""
    embedding_product: bool = False
    """The model multiplies them (Granite)."""
    embedding_width: int | None = None
    """Width of the token table where a projection follows (OPT 350M)."""
    residual_scaled: bool = False
    residual_normalized: bool = False
    """A branch is added to its normalized input (an option of BLOOM)."""
    sum_inplace: bool = False
    """The branches are added into the second one's memory (Falcon)."""
    bias_added: bool = False
    """Feed-forward biases are added in an operation of their own (Falcon)."""
    attention_held: bool = False
    """The layer's code names the attention's output until its end (GPT-2)."""
    input_held: bool = False
    """And the attention's normalized input (Falcon)."""
    residual_first: bool = True
    """Parallel branches are added to the input in turn, not to each other first."""
    score_softcap: bool = False
    logits_scaled: bool = False
    logits_softcap: bool = False
    final_norm: bool = True
    weights_passed_on: bool = False
    """A layer returns its attention weights, which the model's loop holds until the next layer has run."""
    sparse: Callable[[Build, int], Callable[[Tensor], Tensor]] | None = None
    """Builds the feed-forward of a layer that has experts."""
    sparse_layers: Sequence[bool] = ()
    experts_take_adapters: bool = False
    """peft turns ``all-linear``'s gate, up and down into the experts' weights, and leaves dense layers' alone."""


class Context(NamedTuple):
    """What the model makes once a forward for all its layers."""

    tables: dict[bool, RotaryTables]
    masks: dict[bool, Tensor | None]
    position_bias: Tensor | None = None
    returned: list[Tensor] | None = None
    """Attention weights that the layer's code still holds, see `Options.weights_passed_on`."""

    def of_layer(self, *, windowed: bool) -> Context:
        """What one layer gets of it: the mask and the tables of its own kind."""
        tables = {w: table for w, table in self.tables.items() if w == windowed}
        return self._replace(tables=tables, masks={windowed: self.masks[windowed]})

    def returns(self, weights: Tensor) -> None:
        """Notes an attention's second result."""
        if self.returned is not None:
            self.returned.append(weights.data)


class Attention:
    """Self-attention with grouped keys, rotary positions and normalized queries, each where the options say so."""

    def __init__(self, build: Build, options: Options, index: int) -> None:
        o = self.options = options
        self.kind = build.attention
        self.windowed = is_windowed(o, index)
        self.rotates = rotates(o, index)
        wide, narrow = o.heads * o.head_width, o.key_heads * o.head_width
        linear = partial(build.linear, attention=True)
        if o.fused_projection is not None:
            self.qkv = linear(o.fused_projection, o.hidden, wide + 2 * narrow, bias=o.query_bias)
        else:
            self.q = linear("q_proj", o.hidden, wide, bias=o.query_bias)
            self.k = linear("k_proj", o.hidden, narrow, bias=o.query_bias)
            self.v = linear("v_proj", o.hidden, narrow, bias=o.query_bias)
        self.o = linear(o.out_name, wide, o.hidden, bias=o.out_bias)
        if o.query_norm is not None:
            self.q_norm = self._query_norm(build, "q_norm", o.heads)
            self.k_norm = self._query_norm(build, "k_norm", o.key_heads)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        o = self.options
        tokens = x.shape[0]
        q, k, v = self._separate(x) if o.fused_projection is None else self._fused(x)
        held: tuple[Tensor, ...] = ()
        if o.rotary is not None and self.rotates:
            q, k, held = rotate(q, k, context.tables[self.windowed], o.rotary)
        if o.queries_scaled_by_position:
            q = ops.mul(q, x.tape.empty((tokens,), q.dtype, batched=False))
        if o.query_norm is not None and o.query_norm_last:
            q, k = self.q_norm(q), self.k_norm(k)
        heads = Heads(o.heads, o.key_heads, o.head_width, o.head_width, tokens, tokens, causal=True)
        mask = context.masks[self.windowed]
        out = attend(
            self.kind,
            q,
            k,
            v,
            heads,
            dropout=o.attention_dropout,
            mask=mask,
            fp32_softmax=o.fp32_softmax,
            weights_as_values=o.weights_as_values,
            softcap=o.score_softcap,
            heads_first=self.rotates and o.rotary is not None and o.rotary.cut,
            returns=context.returns,
        )
        out = self.o(out)
        del held
        return ops.dropout(out, o.branch_dropout)

    def _query_norm(self, build: Build, name: str, heads: int) -> Callable[[Tensor], Tensor]:
        o = self.options
        if o.query_norm == "each-head":
            return NormOfEachHead(build, name, heads, o.head_width)
        width = o.head_width if o.query_norm == "head" else heads * o.head_width
        return norm(build, o.norm, name, width, heads=heads if o.query_norm_per_head else 1)

    def _separate(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        o = self.options
        tokens = x.shape[0]
        q_shape, k_shape = (tokens, o.heads, o.head_width), (tokens, o.key_heads, o.head_width)
        if o.query_norm == "whole":
            q, k = self.q_norm(self.q(x)), self.k_norm(self.k(x))
        elif o.query_norm is not None and not o.query_norm_last:
            q = self.q_norm(self.q(x).view(*q_shape))
            k = self.k_norm(self.k(x).view(*k_shape))
        else:
            q = self.q(x)
            if o.query_scaled:
                q = ops.scale(q)
            k = self.k(x)
        v = self.v(x)
        return ops.transposed(q).view(*q_shape), ops.transposed(k).view(*k_shape), v

    def _fused(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        o = self.options
        tokens = x.shape[0]
        q_shape, k_shape = (tokens, o.heads, o.head_width), (tokens, o.key_heads, o.head_width)
        qkv = self.qkv(x)
        if o.fused_cut == "heads":
            q, k, v = ops.split(ops.transposed(qkv), [q_shape, k_shape, k_shape])
        elif o.fused_cut == "split":
            q, k, v = ops.split(qkv, [q_shape, k_shape, k_shape])
            q, k = ops.transposed(q).view(*q_shape), ops.transposed(k).view(*k_shape)
        else:
            q, k, v = (ops.narrow(qkv, shape) for shape in (q_shape, k_shape, k_shape))
        return q, k, v


def is_windowed(options: Options, index: int) -> bool:
    """Whether layer ``index`` attends within the window only."""
    return options.window is not None and (not options.windowed_layers or options.windowed_layers[index])


def rotates(options: Options, index: int) -> bool:
    """Whether layer ``index`` turns its queries and keys."""
    return options.rotary is not None and (not options.rotary_layers or options.rotary_layers[index])


def feed_forward(build: Build, o: Options) -> Callable[[Tensor], Tensor]:
    """The dense feed-forward that the options describe."""
    if o.mlp == "gated":
        return GatedMLP(
            build,
            o.hidden,
            o.inner,
            o.act,
            bias=o.mlp_bias,
            dropout=o.mlp_dropout,
            by_name_only=o.experts_take_adapters,
        )
    if o.mlp == "fused-gated":
        return FusedGatedMLP(build, o.hidden, o.inner, o.act)
    return PlainMLP(
        build,
        o.mlp_names,
        o.hidden,
        o.inner,
        o.act,
        bias=o.mlp_bias,
        bias_added=o.bias_added,
        dropout=o.mlp_dropout,
    )


class Block:
    """One layer: attention and feed-forward in the order that the options say."""

    def __init__(self, build: Build, options: Options, index: int) -> None:
        o = self.options = options
        self.attention = self._attention(build, index)
        sparse = o.sparse is not None and (not o.sparse_layers or o.sparse_layers[index])
        self.mlp = o.sparse(build, index) if o.sparse is not None and sparse else feed_forward(build, o)
        self.attention_norm = norm(build, o.norm, "input_layernorm", o.hidden)
        if o.order is not Order.PARALLEL:
            self.mlp_norm = norm(build, o.norm, "post_attention_layernorm", o.hidden)
        if o.order is Order.SANDWICH:
            self.attention_out_norm = norm(build, o.norm, "post_self_attn_layernorm", o.hidden)
            self.mlp_out_norm = norm(build, o.norm, "post_mlp_layernorm", o.hidden)

    def _attention(self, build: Build, index: int) -> Callable[[Tensor, Context], Tensor]:
        return (self.options.attention or Attention)(build, self.options, index)

    def __call__(self, x: Tensor, *, context: Context) -> Tensor:
        x = self._run(x, context)
        if context.returned is not None:
            passed_on = self.options.weights_passed_on and not x.tape.recording
            del context.returned[: -1 if passed_on else None]
        return x

    def _run(self, x: Tensor, context: Context) -> Tensor:
        if self.options.order in (Order.PARALLEL, Order.PARALLEL_TWO_NORMS):
            return self._parallel(x, context)
        if self.options.residual_normalized:
            return self._from_normalized(x, context)
        if self.options.attention_held:
            return self._holding(x, context)
        tape = x.tape
        with tape.within("attention"):
            x = self._join(x, self._attention_branch(x, context))
            if self.options.order is Order.POST_SUM:
                x = self.attention_norm(x)
        with tape.within("mlp"):
            x = self._join(x, self._mlp_branch(x))
            return self.mlp_norm(x) if self.options.order is Order.POST_SUM else x

    def _holding(self, x: Tensor, context: Context) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            normal = self.attention_norm(x)
            attention = self.attention(normal, context)
            held = (attention, normal) if self.options.input_held else (attention,)
            del normal
            x = ops.add(x, attention)
        with tape.within("mlp"):
            x = ops.add(x, self.mlp(self.mlp_norm(x)))
        del attention, held
        return x

    def _from_normalized(self, x: Tensor, context: Context) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            normal = self.attention_norm(x)
            x = ops.add(normal, self.attention(normal, context))
        with tape.within("mlp"):
            normal = self.mlp_norm(x)
            return ops.add(normal, self.mlp(normal))

    def _join(self, x: Tensor, branch: Tensor) -> Tensor:
        return ops.add(x, ops.scale(branch) if self.options.residual_scaled else branch)

    def _attention_branch(self, x: Tensor, context: Context) -> Tensor:
        order = self.options.order
        if order is Order.POST:
            return self.attention_norm(self.attention(x, context))
        if order is Order.POST_SUM:
            return self.attention(x, context)
        branch = self.attention(self.attention_norm(x), context)
        return self.attention_out_norm(branch) if order is Order.SANDWICH else branch

    def _mlp_branch(self, x: Tensor) -> Tensor:
        order = self.options.order
        if order is Order.POST:
            return self.mlp_norm(self.mlp(x))
        if order is Order.POST_SUM:
            return self.mlp(x)
        branch = self.mlp(self.mlp_norm(x))
        return self.mlp_out_norm(branch) if order is Order.SANDWICH else branch

    def _parallel(self, x: Tensor, context: Context) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            normal = self.attention_norm(x)
            attention = self.attention(normal, context)
        with tape.within("mlp"):
            if self.options.order is Order.PARALLEL_TWO_NORMS:
                normal = self.mlp_norm(x)
            mlp = self.mlp(normal)
            if self.options.residual_first:
                return ops.add(ops.add(x, attention), mlp)
            joined = (ops.add_inplace if self.options.sum_inplace else ops.add)(mlp, attention)
            return ops.add(joined, x)


class Decoder:
    """A causal language model by its options."""

    def __init__(self, build: Build, options: Options) -> None:
        o = self.options = options
        self.kind = build.attention if build.attention in o.kernels else "eager"
        self.fused_loss = build.fused_loss
        table_width = o.embedding_width or o.hidden
        table = ScaledEmbedding if o.embedding_scaled else Embedding
        self.tokens = table(build, "embed_tokens", o.vocabulary, table_width)
        rows = o.position_rows
        self.positions = Embedding(build, "embed_positions", rows, o.hidden, of_tokens=False) if rows else None
        if table_width != o.hidden:
            self.project_out = build.linear("project_out", o.hidden, table_width, bias=False)
            self.project_in = build.linear("project_in", table_width, o.hidden, bias=False)
        self.embedding_norm = norm(build, o.norm, "embedding_norm", o.hidden) if o.embedding_norm else None
        self.makes_tables = o.rotary is not None and not o.tables_per_layer
        if o.rotary is not None and self.makes_tables:
            for _ in range(o.rotary_kinds):
                rotary_buffers(build, o.rotary.width)
        self.blocks = Blocks(build, [self._layer_kind(i) for i in range(o.layers)], partial(self._block, build))
        self.norm = norm(build, o.norm, "norm", o.hidden) if o.final_norm else None
        with build.without_adapters():
            tied = self.tokens.weight if o.tied else None
            self.head = build.linear("lm_head", table_width, o.vocabulary, bias=o.head_bias, tied=tied)

    def _block(self, build: Build, index: int) -> Callable[..., Tensor]:
        return Block(build, self.options, index)

    def _layer_kind(self, index: int) -> tuple[bool, ...]:
        o = self.options
        return (
            is_windowed(o, index),
            rotates(o, index),
            not o.sparse_layers or o.sparse_layers[index],
        )

    def hidden(self, tape: Tape, tokens: int) -> Tensor:
        """The last layer's normalized output, (tokens, width)."""
        o = self.options
        with tape.within("embeddings"):
            x, held = self._embedded(tape, tokens)
            context = self._context(tape, tokens, x)
        x = self.blocks(tape, x, own=lambda layer: {"context": context.of_layer(windowed=is_windowed(o, layer))})
        del held
        if context.returned is not None:
            context.returned.clear()
        with tape.within("final norm"):
            if self.norm is not None:
                x = self.norm(x)
            return self.project_out(x) if o.embedding_width not in (None, o.hidden) else x

    def _embedded(self, tape: Tape, tokens: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The first block's input, and what the model's code still holds while its blocks run."""
        o = self.options
        x = self.tokens(tape, tokens)
        if o.embedding_product:
            x = ops.scale(x)
        if o.embedding_width not in (None, o.hidden):
            x = self.project_in(x)
        held: tuple[Tensor, ...] = (x,)
        if self.positions is not None:
            positions = self.positions(tape, tokens, batched=o.positions_per_sample)
            held = (x, positions)
            x = ops.add(x, positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return ops.dropout(x, o.embedding_dropout), held

    def _context(self, tape: Tape, tokens: int, x: Tensor) -> Context:
        o = self.options
        windowed = {is_windowed(o, i) for i in range(o.layers)}
        masks = {
            w: causal_mask(tape, self.kind, tokens, x.dtype, o.window if w else None, always=o.mask_always)
            for w in sorted(windowed)
        }
        if o.bias_in_mask:
            masks = {w: tape.empty((o.heads, tokens, tokens), x.dtype, batched=True) for w in masks}
        if o.boolean_mask:
            masks = {w: mask and ops.cast(mask, Dtype.BOOL) for w, mask in masks.items()}
        tables: dict[bool, RotaryTables] = {}
        if o.rotary is not None and self.makes_tables:
            for w in sorted(windowed):
                shared = next(iter(tables.values()), None) if o.rotary_kinds == 1 else None
                tables[w] = shared or RotaryTables(tape, tokens, o.rotary, x.dtype)
        bias = o.bias_of_positions(tape, tokens, x.dtype) if o.bias_of_positions is not None else None
        return Context(tables, masks, bias, [])

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        """Forward and the library's loss for one micro-batch."""
        tokens = shape.sequence_length
        return causal_lm_loss(
            tape,
            self.hidden(tape, tokens),
            self.head,
            fused=self.fused_loss,
            tokens=tokens,
            scaled=self.options.logits_scaled,
            softcapped=self.options.logits_softcap,
        )
