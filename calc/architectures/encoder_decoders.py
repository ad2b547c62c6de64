"""Encoder-decoders (transformers/models/{t5,mt5,umt5,bart,mbart,pegasus,marian,blenderbot,m2m_100}/modeling_*.py).

The encoder's output is one tensor that every block of the decoder attends to. Labels are as long as the decoder's
input; the loss is the plain cross-entropy over every position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.attention import attend
from calc.errors import ScenarioError
from calc.replay import ops
from calc.replay.layers import Blocks, Embedding, LayerNorm
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Parameter, Tape, Tensor


class Attention:
    """Queries from one sequence, keys and values from the same or another one."""

    def __init__(
        self,
        build: Build,
        hidden: int,
        heads: int,
        width: int,
        *,
        dropout: float,
        causal: bool,
        biases: Sequence[bool] = (True, True, True, True),
        names: Sequence[str] = ("q_proj", "k_proj", "v_proj", "out_proj"),
    ) -> None:
        self.kind = build.attention
        self.dropout = dropout
        self.causal = causal
        self.heads = heads
        self.width = width
        self.q, self.k, self.v = (
            build.linear(name, hidden, heads * width, bias=bias, attention=True)
            for name, bias in zip(names[:3], biases[:3], strict=True)
        )
        self.o = build.linear(names[3], heads * width, hidden, bias=biases[3], attention=True)

    def __call__(
        self, x: Tensor, source: Tensor | None, *, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        source = x if source is None else source
        q, k, v = self.q(x), self.k(source), self.v(source)
        heads = Heads(self.heads, self.heads, self.width, self.width, x.shape[0], source.shape[0], causal=self.causal)
        out = attend(self.kind, q, k, v, heads, dropout=self.dropout, mask=mask, bias=bias, fp32_softmax=False)
        del q, k, v
        return self.o(out)


class FeedForward:
    """``fc2(dropout(act(fc1(x))))``."""

    def __init__(self, build: Build, hidden: int, inner: int, *, act: str, dropout: float) -> None:
        self.act = act
        self.dropout = dropout
        self.up = build.linear("fc1", hidden, inner)
        self.down = build.linear("fc2", inner, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(ops.dropout(activation(self.act, self.up(x)), self.dropout))


class Block:
    """Self-attention, attention to the encoder's output in a decoder, feed-forward, each added to its input.

    ``pre_norm``: normalizes each part's input; else the sum.
    """

    def __init__(
        self,
        attention: Attention,
        cross: Attention | None,
        feed_forward: Callable[[Tensor], Tensor],
        norms: Sequence[Callable[[Tensor], Tensor]],
        *,
        dropout: float,
        pre_norm: bool,
    ) -> None:
        self.attention = attention
        self.cross = cross
        self.feed_forward = feed_forward
        self.norms = tuple(norms)
        self.dropout = dropout
        self.pre_norm = pre_norm

    def __call__(
        self,
        x: Tensor,
        *,
        source: Tensor | None = None,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        cross_mask: Tensor | None = None,
    ) -> Tensor:
        tape, cross = x.tape, self.cross
        with tape.within("attention"):
            x = self._part(x, self.norms[0], lambda h: self.attention(h, None, mask=mask, bias=bias))
            if cross is not None:
                x = self._part(x, self.norms[1], lambda h: cross(h, source, mask=cross_mask))
        with tape.within("mlp"):
            return self._part(x, self.norms[-1], self.feed_forward)

    def _part(self, x: Tensor, norm: Callable[[Tensor], Tensor], branch: Callable[[Tensor], Tensor]) -> Tensor:
        inner = norm(x) if self.pre_norm else x
        inner = branch(inner)
        inner = ops.dropout(inner, self.dropout)
        x = ops.add(x, inner)
        return x if self.pre_norm else norm(x)


def decoder_mask(tape: Tape, x: Tensor, attention: str) -> Tensor | None:
    """Eager attention's additive causal mask of each sample (masking_utils.py, eager_mask); fused kernels take none."""
    if not attention.startswith("eager"):
        return None
    tokens = x.shape[0]
    return tape.empty((tokens, tokens), x.dtype, batched=True)


def token_batch(tape: Tape, *lengths: int) -> None:
    """The token ids and labels that the training loop holds."""
    for tokens in lengths:
        tape.batch_input((tokens,), Dtype.INT64)


def shifted_labels(tape: Tape, tokens: int) -> Tensor:
    """The decoder's input: the labels moved by one (shift_tokens_right)."""
    return tape.empty((tokens,), Dtype.INT64, batched=True)


class T5Norm:
    """T5LayerNorm: the mean square in fp32, the product with the input as it is, cast to the weight's type."""

    def __init__(self, build: Build, name: str, width: int) -> None:
        self.width = width
        self.weight = build.parameter(f"{name}.weight", (width,))

    def __call__(self, x: Tensor) -> Tensor:
        variance = ops.mean_last(ops.power(ops.cast(x, Dtype.FP32)), x.numel // self.width)
        variance = ops.shift(variance)
        x = ops.mul(x, ops.pointwise(variance, keeps="output", temporaries=2))
        del variance
        if self.weight.dtype.itemsize == 2:
            x = ops.cast(x, self.weight.dtype)
        return ops.mul(x.tape.parameter(self.weight), x)


class T5FeedForward:
    """T5DenseActDense and T5DenseGatedActDense: the down projection's input takes that weight's type."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, inner = config["d_model"], config["d_ff"]
        self.act = config["dense_act_fn"]
        self.dropout = config["dropout_rate"]
        gated = config["is_gated_act"]
        self.up = build.linear("wi_0" if gated else "wi", hidden, inner, bias=False)
        self.linear = build.linear("wi_1", hidden, inner, bias=False) if gated else None
        self.down = build.linear("wo", inner, hidden, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        inner = activation(self.act, self.up(x))
        if self.linear is not None:
            inner = ops.mul(inner, self.linear(x))
        inner = ops.dropout(inner, self.dropout)
        inner = ops.cast(inner, self.down.weight.dtype)
        return self.down(inner)


def relative_position_bias(tape: Tape, table: Parameter, queries: int, keys: int, *, recomputed: bool) -> Tensor:
    """A learned number for each head and distance of positions (T5Attention.compute_bias).

    The buckets of all pairs are kept, but where the block that computes them is ``recomputed``.
    """
    with tape.within("attention"):
        scratch = [tape.empty((queries, keys), Dtype.INT64, batched=False) for _ in range(5)]
        buckets = tape.empty((queries, keys), Dtype.INT64, batched=False)
        del scratch
        kept = None if recomputed else buckets
        bias = ops.embedding(tape, queries * keys, table, batched=False, indices=kept)
        return bias.view(table.shape[-1], queries, keys)


class UMT5Attention(Attention):
    """UMT5Attention: every block looks up its own bias, or makes its own zeros; none asks for a causal kernel."""

    def __init__(self, build: Build, config: Mapping[str, Any], *, has_bias: bool) -> None:
        heads, names, biases = config["num_heads"], ("q", "k", "v", "o"), (False,) * 4
        dropout, width = config["dropout_rate"], config["d_kv"]
        super().__init__(
            build, config["d_model"], heads, width, dropout=dropout, causal=False, biases=biases, names=names
        )
        self.table = _bias_table(build, config) if has_bias else None

    def __call__(
        self, x: Tensor, source: Tensor | None, *, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        queries, keys = x.shape[0], (x if source is None else source).shape[0]
        if self.table is not None:
            bias = relative_position_bias(x.tape, self.table, queries, keys, recomputed=False)
        else:
            mask = zero_bias(x, self.heads, keys)
        return super().__call__(x, source, mask=mask, bias=bias)


def _bias_table(build: Build, config: Mapping[str, Any]) -> Parameter:
    shape = (config["relative_attention_num_buckets"], config["num_heads"])
    table = build.parameter("relative_attention_bias.weight", shape)
    table.embedding = True
    return table


def zero_bias(x: Tensor, heads: int, keys: int) -> Tensor:
    """What stands in cross-attention for a bias, in the type of the products (T5Attention.forward)."""
    tape = x.tape
    dtype = x.dtype if tape.autocast is None else tape.autocast.dtype
    with tape.within("attention"):
        return tape.empty((heads, x.shape[0], keys), dtype, batched=False)


class T5Stack:
    """T5Stack: blocks that share the first one's position bias (each of UMT5's blocks has its own)."""

    def __init__(self, build: Build, config: Mapping[str, Any], table: Embedding, *, decoder: bool) -> None:
        self.kind = build.attention
        self.table = table
        self.decoder = decoder
        self.heads = config["num_heads"]
        self.dropout = config["dropout_rate"]
        self.recomputed = build.checkpointing != "none"
        own = config["model_type"] == "umt5"
        self.position_table = None if own else _bias_table(build, config)
        hidden = config["d_model"]

        def attention(*, causal: bool) -> Attention:
            names, biases = ("q", "k", "v", "o"), (False,) * 4
            return Attention(
                build,
                hidden,
                self.heads,
                config["d_kv"],
                dropout=self.dropout,
                causal=causal,
                biases=biases,
                names=names,
            )

        def block(_: int) -> Block:
            norms = [T5Norm(build, "layer_norm", hidden) for _ in range(3 if decoder else 2)]
            cross = None
            if decoder:
                cross = UMT5Attention(build, config, has_bias=False) if own else attention(causal=False)
            return Block(
                UMT5Attention(build, config, has_bias=True) if own else attention(causal=decoder),
                cross,
                T5FeedForward(build, config),
                norms,
                dropout=self.dropout,
                pre_norm=True,
            )

        layers = config["num_decoder_layers"] if decoder else config["num_layers"]
        self.blocks = Blocks(build, ["block"] * layers, block)
        self.norm = T5Norm(build, "final_layer_norm", hidden)

    def __call__(self, tape: Tape, tokens: int, source: Tensor | None = None) -> Tensor:
        with tape.within("embeddings"):
            embedded = self.table(tape, tokens)
            mask = decoder_mask(tape, embedded, self.kind) if self.decoder else None
            x = ops.dropout(embedded, self.dropout)
        bias = zeros = None
        if self.position_table is not None:
            bias = relative_position_bias(tape, self.position_table, tokens, tokens, recomputed=self.recomputed)
            if source is not None:
                zeros = zero_bias(x, self.heads, source.shape[0])
                zeros = tape.leaf(zeros) if self.recomputed else zeros
        x = self.blocks(tape, x, mask=mask, source=source, bias=bias, cross_mask=zeros)
        del bias, zeros
        with tape.within("final norm"):
            return ops.dropout(self.norm(x), self.dropout)


class T5:
    """T5ForConditionalGeneration, MT5ForConditionalGeneration, UMT5ForConditionalGeneration.

    Checkpointing wants a gradient of the zeros in T5's cross-attention (T5Attention.forward).
    """

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        if build.attention == "flash-attention-2":
            message = "T5 adds a learned bias to its scores, which no flash kernel takes; choose sdpa or eager"
            raise ScenarioError("attention", message)
        hidden = config["d_model"]
        self.scales_output = config["model_type"] == "umt5" or config.get("scale_decoder_outputs", False)
        table = Embedding(build, "shared", config["vocab_size"], hidden)
        self.encoder = T5Stack(build, config, table, decoder=False)
        self.decoder = T5Stack(build, config, table, decoder=True)
        with build.without_adapters():
            self.head = build.linear("lm_head", hidden, config["vocab_size"], bias=False, tied=table.weight)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        tokens = shape.target_length or shape.sequence_length
        token_batch(tape, shape.sequence_length, tokens)
        source = self.encoder(tape, shape.sequence_length)
        labels = shifted_labels(tape, tokens)
        x = self.decoder(tape, tokens, source)
        with tape.within("logits"):
            # Bound until forward returns (T5ForConditionalGeneration.forward, sequence_output).
            scaled = ops.scale(x) if self.scales_output else x
            logits = self.head(scaled)
            loss = ops.cross_entropy(logits)
            del labels
            return loss


class BartStack:
    """The encoder or the decoder of BART and its kin, which differ in the options of `Seq2SeqKind`."""

    def __init__(
        self, build: Build, config: Mapping[str, Any], kind: Seq2SeqKind, table: Embedding, *, decoder: bool
    ) -> None:
        side = "decoder" if decoder else "encoder"
        hidden, heads = config["d_model"], config[f"{side}_attention_heads"]
        self.attention = build.attention
        self.kind = kind
        self.decoder = decoder
        self.table = table
        self.dropout = config["dropout"]
        self.positions = kind.positions(build, config["max_position_embeddings"], hidden)
        self.embedding_norm = LayerNorm(build, "layernorm_embedding", hidden) if kind.embedding_norm else None

        def attention(*, causal: bool) -> Attention:
            return Attention(build, hidden, heads, hidden // heads, dropout=config["attention_dropout"], causal=causal)

        def block(_: int) -> Block:
            feed_forward = FeedForward(
                build,
                hidden,
                config[f"{side}_ffn_dim"],
                act=config["activation_function"],
                dropout=config["activation_dropout"],
            )
            return Block(
                attention(causal=decoder),
                attention(causal=False) if decoder else None,
                feed_forward,
                [LayerNorm(build, "layer_norm", hidden) for _ in range(3 if decoder else 2)],
                dropout=self.dropout,
                pre_norm=kind.pre_norm,
            )

        self.blocks = Blocks(build, ["block"] * config[f"{side}_layers"], block)
        self.norm = LayerNorm(build, "layer_norm", hidden) if kind.pre_norm else None

    def __call__(self, tape: Tape, tokens: int, source: Tensor | None = None) -> Tensor:
        with tape.within("embeddings"):
            embedded = ops.scale(self.table(tape, tokens))
            positions = self.positions(tape, tokens, batched=self.kind.own_positions(decoder=self.decoder))
            x = ops.add(embedded, positions)
            if self.embedding_norm is not None:
                x = self.embedding_norm(x)
            x = ops.dropout(x, self.dropout)
        mask = decoder_mask(tape, embedded, self.attention) if self.decoder else None
        x = self.blocks(tape, x, mask=mask, source=source)
        del positions
        with tape.within("final norm"):
            return x if self.norm is None else self.norm(x)


class BufferedPositions:
    """Sinusoids in a buffer, looked up without a gradient (M2M100SinusoidalPositionalEmbedding)."""

    def __init__(self, build: Build, rows: int, width: int) -> None:
        self.width = width
        self.dtype = build.dtype
        build.buffer(rows * width * build.dtype.itemsize)

    def __call__(self, tape: Tape, tokens: int, *, batched: bool = True) -> Tensor:
        return tape.empty((tokens, self.width), self.dtype, batched=batched)


@dataclass(frozen=True)
class Seq2SeqKind:
    """What tells BART's kin apart.

    ``position_kind``: ``learned``, ``frozen`` (sinusoids in a parameter that does not train) or ``buffer``;
    ``position_offset`` rows come on top. ``logits_bias``: a buffer is added to the logits.
    """

    pre_norm: bool = False
    embedding_norm: bool = False
    position_kind: str = "learned"
    position_offset: int = 0
    logits_bias: bool = True

    def positions(self, build: Build, rows: int, width: int) -> Embedding | BufferedPositions:
        """The position table of one stack."""
        rows += self.position_offset
        if self.position_kind == "buffer":
            return BufferedPositions(build, rows, width)
        trainable = False if self.position_kind == "frozen" else None
        return Embedding(build, "embed_positions", rows, width, of_tokens=False, trainable=trainable)

    def own_positions(self, *, decoder: bool) -> bool:
        """Whether each sample's positions are looked up: BART's encoder expands the ids over the batch."""
        return self.position_kind == "buffer" or (self.position_offset > 0 and not decoder)


SEQ2SEQ_KINDS = {
    "bart": Seq2SeqKind(embedding_norm=True, position_offset=2),
    "blenderbot": Seq2SeqKind(pre_norm=True),
    "blenderbot-small": Seq2SeqKind(embedding_norm=True),
    "m2m_100": Seq2SeqKind(pre_norm=True, position_kind="buffer", position_offset=2, logits_bias=False),
    "marian": Seq2SeqKind(position_kind="frozen"),
    "mbart": Seq2SeqKind(pre_norm=True, embedding_norm=True, position_offset=2),
    "pegasus": Seq2SeqKind(pre_norm=True, position_kind="frozen"),
    "plbart": Seq2SeqKind(embedding_norm=True, position_offset=2),
}


class Bart:
    """BartForConditionalGeneration and its kin by `SEQ2SEQ_KINDS`.

    LayerDrop leaves blocks out at random; the memory is that of a step that drops none.
    """

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        kind = SEQ2SEQ_KINDS[config["model_type"]]
        hidden, vocabulary = config["d_model"], config["vocab_size"]
        self.dtype = build.dtype
        table = Embedding(build, "shared", vocabulary, hidden)
        target = table
        if not config.get("share_encoder_decoder_embeddings", True):
            vocabulary = config["decoder_vocab_size"]
            target = Embedding(build, "decoder.embed_tokens", vocabulary, hidden)
        self.encoder = BartStack(build, config, kind, table, decoder=False)
        self.decoder = BartStack(build, config, kind, target, decoder=True)
        tied = target.weight if config["tie_word_embeddings"] else None
        with build.without_adapters():
            self.head = build.linear("lm_head", hidden, vocabulary, bias=False, tied=tied)
        self.logits_bias = kind.logits_bias
        if kind.logits_bias:
            build.buffer(vocabulary * build.dtype.itemsize)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        tokens = shape.target_length or shape.sequence_length
        token_batch(tape, shape.sequence_length, tokens)
        labels = shifted_labels(tape, tokens)
        source = self.encoder(tape, shape.sequence_length)
        x = self.decoder(tape, tokens, source)
        with tape.within("logits"):
            logits = self.head(x)
            if self.logits_bias:
                logits = ops.add(logits, tape.constant((logits.shape[-1],), self.dtype))
            loss = ops.cross_entropy(logits)
            del labels
            return loss
