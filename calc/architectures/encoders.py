"""Encoders with a masked-language head (transformers/models/{bert,roberta,distilbert,...}/modeling_*.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.attention import attend
from calc.architectures.decoder_parts import Rotary, RotaryTables, rotary_buffers, rotate
from calc.architectures.images import classification_loss
from calc.replay import ops
from calc.replay.layers import Blocks, Embedding, LayerNorm
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build, Linear
    from calc.replay.tape import Parameter, Tape, Tensor

POSITION_BYTES = 8


class TokenEmbeddings:
    """Sum of token, type and position tables, LayerNorm and dropout (BertEmbeddings).

    ``own_positions``: each sample has its own position ids, so the positions' rows are looked up per sample
    (RoBERTa counts them past the padding).
    """

    def __init__(
        self,
        build: Build,
        config: Mapping[str, Any],
        width: int,
        *,
        dropout: float,
        own_positions: bool = False,
        buffers: int = 2,
    ) -> None:
        self.dropout = dropout
        self.own_positions = own_positions
        positions = config["max_position_embeddings"]
        types = config.get("type_vocab_size", 0)
        self.tokens = Embedding(build, "word_embeddings", config["vocab_size"], width)
        self.positions = Embedding(build, "position_embeddings", positions, width, of_tokens=False)
        self.types = Embedding(build, "token_type_embeddings", types, width, of_tokens=False) if types else None
        self.norm = LayerNorm(build, "LayerNorm", width)
        for _ in range(buffers):
            build.buffer(positions * POSITION_BYTES)

    def __call__(self, tape: Tape, tokens: int) -> Tensor:
        for _ in ("ids", "labels"):
            tape.batch_input((tokens,), Dtype.INT64)
        with tape.within("embeddings"):
            words = x = self.tokens(tape, tokens)
            if self.types is not None:
                kinds = self.types(tape, tokens)
                x = ops.add(x, kinds)
            positions = self.positions(tape, tokens, batched=self.own_positions)
            x = ops.add(x, positions)
            x = ops.dropout(self.norm(x), self.dropout)
            del words, positions
            return x


class SelfAttention:
    """Queries, keys and values of all heads, attention over the whole sequence, output projection."""

    def __init__(self, build: Build, hidden: int, heads: int, *, dropout: float, names: Sequence[str]) -> None:
        self.kind = build.attention
        self.dropout = dropout
        self.heads = heads
        self.width = hidden // heads
        self.q, self.k, self.v, self.o = (build.linear(name, hidden, hidden, attention=True) for name in names)

    def __call__(self, x: Tensor) -> Tensor:
        tokens = x.shape[0]
        q, k, v = self.q(x), self.k(x), self.v(x)
        heads = Heads(self.heads, self.heads, self.width, self.width, tokens, tokens, causal=False)
        return self.o(attend(self.kind, q, k, v, heads, dropout=self.dropout, fp32_softmax=False))


class PostNormBlock:
    """Attention and feed-forward, each added to its input and normalized (BertLayer, DistilBERT's TransformerBlock).

    ``attention_output_dropout`` is DistilBERT's difference: it drops nothing after the attention's projection.
    """

    def __init__(
        self,
        build: Build,
        attention: Callable[..., Tensor],
        hidden: int,
        inner: int,
        *,
        act: str,
        dropout: float,
        attention_output_dropout: float,
        norm: Callable[[Build, str, int], Callable[[Tensor], Tensor]] = LayerNorm,
    ) -> None:
        self.act = act
        self.dropout = dropout
        self.attention_output_dropout = attention_output_dropout
        self.attention = attention
        self.attention_norm = norm(build, "attention.output.LayerNorm", hidden)
        self.up = build.linear("intermediate.dense", hidden, inner)
        self.down = build.linear("output.dense", inner, hidden)
        self.norm = norm(build, "output.LayerNorm", hidden)

    def __call__(self, x: Tensor, **shared: Tensor | None) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            branch = ops.dropout(self.attention(x, **shared), self.attention_output_dropout)
            x = self.attention_norm(ops.add(branch, x))
            del branch
        with tape.within("mlp"):
            branch = ops.dropout(self.down(activation(self.act, self.up(x))), self.dropout)
            return self.norm(ops.add(branch, x))


class MaskedLanguageHead:
    """Dense, activation, LayerNorm, product with the token table and its bias (BertLMPredictionHead)."""

    def __init__(
        self,
        build: Build,
        hidden: int,
        width: int,
        vocabulary: int,
        *,
        act: str,
        table: Parameter | None,
        dense_bias: bool = True,
        norm_bias: bool = True,
        decoder_bias: bool = True,
    ) -> None:
        self.act = act
        self.dense = build.linear("transform.dense", hidden, width, bias=dense_bias)
        self.norm = LayerNorm(build, "transform.LayerNorm", width, bias=norm_bias)
        with build.without_adapters():
            self.decoder = build.linear("decoder", width, vocabulary, bias=decoder_bias, tied=table)

    def __call__(self, x: Tensor) -> Tensor:
        return self.decoder(self.norm(activation(self.act, self.dense(x))))

    def loss(self, tape: Tape, hidden: Tensor) -> Tensor:
        return masked_lm_loss(tape, hidden, self)


class SequenceClassifier:
    """The first token through a dense layer, an activation and dropout to the labels (...ForSequenceClassification)."""

    def __init__(self, build: Build, config: Mapping[str, Any], hidden: int, *, act: str, dropout: float) -> None:
        self.act = act
        self.dropout = dropout
        self.dense = build.linear("dense", hidden, hidden)
        with build.without_adapters():
            self.labels = build.linear("classifier", hidden, config.get("num_labels", 2))

    def loss(self, tape: Tape, hidden: Tensor) -> Tensor:
        tape.batch_input((1,), Dtype.INT64)
        with tape.within("head"):
            pooled = activation(self.act, self.dense(ops.narrow(hidden, (hidden.shape[-1],))))
            return classification_loss(self.labels(ops.dropout(pooled, self.dropout)))


def masked_lm_loss(tape: Tape, hidden: Tensor, head: MaskedLanguageHead, *, wide: bool = False) -> Tensor:
    """Logits and cross-entropy over every position: labels outside the mask are ignored, not left out.

    ``wide``: the loss is taken of an fp32 copy of the logits (loss_utils.py, ForMaskedLMLoss).
    """
    with tape.within("logits"):
        logits = head(hidden)
        return ops.cross_entropy(ops.cast(logits, Dtype.FP32) if wide else logits)


class MaskedEncoder:
    """Embeddings, blocks and a masked-language head: what BERT's kin are made of, each with its own parts.

    ``projection`` widens embeddings that are narrower than the blocks.
    """

    embeddings: TokenEmbeddings
    projection: Linear | None = None
    blocks: Blocks
    head: MaskedLanguageHead | SequenceClassifier

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = self.embeddings(tape, shape.sequence_length)
        if self.projection is not None:
            with tape.within("embeddings"):
                x = self.projection(x)
        hidden = self.blocks(tape, x)
        # Hugging Face's inner model has returned before the head runs, and its embeddings are gone.
        del x
        return self.head.loss(tape, hidden)


def _bert_block(build: Build, config: Mapping[str, Any], *, ffn_dropout: float | None = None) -> PostNormBlock:
    hidden, dropout = config["hidden_size"], config["hidden_dropout_prob"]
    attention = SelfAttention(
        build,
        hidden,
        config["num_attention_heads"],
        dropout=config["attention_probs_dropout_prob"],
        names=("query", "key", "value", "dense"),
    )
    return PostNormBlock(
        build,
        attention,
        hidden,
        config["intermediate_size"],
        act=config["hidden_act"],
        dropout=dropout if ffn_dropout is None else ffn_dropout,
        attention_output_dropout=dropout,
    )


def _bert_head(
    build: Build, config: Mapping[str, Any], hidden: int, width: int, tokens: Parameter
) -> MaskedLanguageHead | SequenceClassifier:
    if build.classifies:
        return SequenceClassifier(build, config, hidden, act="tanh", dropout=config["hidden_dropout_prob"])
    table = tokens if config["tie_word_embeddings"] else None
    return MaskedLanguageHead(build, hidden, width, config["vocab_size"], act=config["hidden_act"], table=table)


class Bert(MaskedEncoder):
    """BertForMaskedLM; ElectraForMaskedLM, whose embeddings may be narrower than its blocks."""

    own_positions = False

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, dropout = config["hidden_size"], config["hidden_dropout_prob"]
        width = config.get("embedding_size", hidden)
        self.embeddings = TokenEmbeddings(build, config, width, dropout=dropout, own_positions=self.own_positions)
        if width != hidden:
            self.projection = build.linear("embeddings_project", width, hidden)
        self.blocks = Blocks(build, ["layer"] * config["num_hidden_layers"], lambda _: _bert_block(build, config))
        self.head = _bert_head(build, config, hidden, width, self.embeddings.tokens.weight)


class Roberta(Bert):
    """RobertaForMaskedLM, XLMRobertaForMaskedLM, CamembertForMaskedLM (transformers/models/roberta)."""

    own_positions = True


class Albert(MaskedEncoder):
    """AlbertForMaskedLM: groups of layers whose parameters all layers of the group share."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, width = config["hidden_size"], config["embedding_size"]
        self.embeddings = TokenEmbeddings(build, config, width, dropout=config["hidden_dropout_prob"])
        self.projection = build.linear("embedding_hidden_mapping_in", width, hidden)
        layers, groups = config["num_hidden_layers"], config["num_hidden_groups"]
        made = [
            [_bert_block(build, config, ffn_dropout=0.0) for _ in range(config["inner_group_num"])]
            for _ in range(groups)
        ]
        kinds = [(layer * groups // layers, inner) for layer in range(layers) for inner in range(len(made[0]))]
        self.blocks = Blocks(build, kinds, lambda i: made[kinds[i][0]][kinds[i][1]])
        self.head = _bert_head(build, config, hidden, width, self.embeddings.tokens.weight)


class BiasedSelfAttention:
    """MPNetSelfAttention: composed, with a position bias added to the scores in place."""

    def __init__(self, build: Build, hidden: int, heads: int, *, dropout: float) -> None:
        self.dropout = dropout
        self.heads = heads
        self.width = hidden // heads
        self.q, self.k, self.v, self.o = (build.linear(name, hidden, hidden, attention=True) for name in "qkvo")

    def __call__(self, x: Tensor, *, bias: Tensor) -> Tensor:
        tokens, hidden = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = ops.scale(ops.matmul(ops.copy(q), ops.copy(k), (self.heads, tokens, tokens), self.width))
        scores = ops.add_inplace(scores, bias)
        probabilities = ops.dropout(ops.softmax(scores), self.dropout)
        context = ops.copy(ops.matmul(probabilities, ops.copy(v), (tokens, hidden), tokens))
        out = self.o(context)
        del q, k, v, scores, probabilities
        return out


class MPNet:
    """MPNetForMaskedLM: one position bias, copied for every sample and shared by all blocks."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, dropout, act = config["hidden_size"], config["hidden_dropout_prob"], config["hidden_act"]
        heads = config["num_attention_heads"]
        self.embeddings = TokenEmbeddings(build, config, hidden, dropout=dropout, own_positions=True, buffers=1)
        self.table = build.parameter(
            "relative_attention_bias.weight", (config["relative_attention_num_buckets"], heads)
        )
        self.table.embedding = True

        def block(_: int) -> PostNormBlock:
            attention_dropout = config["attention_probs_dropout_prob"]
            attention = BiasedSelfAttention(build, hidden, heads, dropout=attention_dropout)
            inner = config["intermediate_size"]
            return PostNormBlock(
                build, attention, hidden, inner, act=act, dropout=dropout, attention_output_dropout=dropout
            )

        self.blocks = Blocks(build, ["layer"] * config["num_hidden_layers"], block)
        table = self.embeddings.tokens.weight if config["tie_word_embeddings"] else None
        self.head = MaskedLanguageHead(build, hidden, hidden, config["vocab_size"], act="gelu", table=table)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        tokens = shape.sequence_length
        x = self.embeddings(tape, tokens)
        with tape.within("attention"):
            buckets = tape.empty((tokens, tokens), Dtype.INT64, batched=False)
            bias = ops.embedding(tape, tokens * tokens, self.table, batched=False, indices=buckets)
            bias = ops.over_batch(bias.view(self.table.shape[-1], tokens, tokens))
            del buckets
        x = self.blocks(tape, x, bias=bias)
        del bias
        return masked_lm_loss(tape, x, self.head)


class DistilBert(MaskedEncoder):
    """DistilBertForMaskedLM."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, act, dropout = config["dim"], config["activation"], config["dropout"]
        self.embeddings = TokenEmbeddings(build, config, hidden, dropout=dropout, buffers=1)

        def block(_: int) -> PostNormBlock:
            attention = SelfAttention(
                build,
                hidden,
                config["n_heads"],
                dropout=config["attention_dropout"],
                names=("q_lin", "k_lin", "v_lin", "out_lin"),
            )
            return PostNormBlock(
                build, attention, hidden, config["hidden_dim"], act=act, dropout=dropout, attention_output_dropout=0.0
            )

        self.blocks = Blocks(build, ["layer"] * config["n_layers"], block)
        if build.classifies:
            self.head = SequenceClassifier(build, config, hidden, act="relu", dropout=config["seq_classif_dropout"])
            return
        table = self.embeddings.tokens.weight if config["tie_word_embeddings"] else None
        self.head = MaskedLanguageHead(build, hidden, hidden, config["vocab_size"], act=act, table=table)


class ModernBertBlock:
    """Pre-norm attention over everything or a window, and a gated MLP (ModernBertEncoderLayer).

    The first block has no norm before its attention: the embeddings' own is just behind it.
    """

    def __init__(self, build: Build, config: Mapping[str, Any], kind: str, *, first: bool) -> None:
        hidden, inner, bias = config["hidden_size"], config["intermediate_size"], config["norm_bias"]
        self.kind = kind
        self.attention = build.attention
        self.heads = config["num_attention_heads"]
        self.inner = inner
        self.act = config["hidden_activation"]
        self.attention_dropout, self.mlp_dropout = config["attention_dropout"], config["mlp_dropout"]
        self.norm_1 = None if first else LayerNorm(build, "attn_norm", hidden, bias=bias)
        self.qkv = build.linear("Wqkv", hidden, 3 * hidden, bias=config["attention_bias"], attention=True)
        self.out = build.linear("Wo", hidden, hidden, bias=config["attention_bias"], attention=True)
        self.norm_2 = LayerNorm(build, "mlp_norm", hidden, bias=bias)
        self.up = build.linear("Wi", hidden, 2 * inner, bias=config["mlp_bias"])
        self.down = build.linear("Wo", inner, hidden, bias=config["mlp_bias"])

    def __call__(self, x: Tensor, *, masks: Mapping[str, Tensor | None], tables: Mapping[str, RotaryTables]) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            attended = self._attend(
                self.norm_1(x) if self.norm_1 is not None else x, masks[self.kind], tables[self.kind]
            )
            x = ops.add(x, attended)
        with tape.within("mlp"):
            x = ops.add(x, self._mlp(self.norm_2(x)))
            del attended
            return x

    def _attend(self, x: Tensor, mask: Tensor | None, tables: RotaryTables) -> Tensor:
        tokens, width = x.shape[0], x.shape[1] // self.heads
        q, k, v = ops.split(self.qkv(x), [(tokens, self.heads, width)] * 3)
        q, k, _ = rotate(q, k, tables, Rotary(width, wide_inputs=True))
        heads = Heads(self.heads, self.heads, width, width, tokens, tokens, causal=False)
        out = attend(self.attention, q, k, v, heads, dropout=self.attention_dropout, mask=mask)
        out = ops.dropout(self.out(out), self.attention_dropout)
        del q, k, v
        return out

    def _mlp(self, x: Tensor) -> Tensor:
        entered, gate = ops.split(self.up(x), [(x.shape[0], self.inner)] * 2)
        return self.down(ops.dropout(ops.mul(activation(self.act, entered), gate), self.mlp_dropout))


class ModernBert:
    """ModernBertForMaskedLM: rotary positions, most blocks attend within a window."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, bias = config["hidden_size"], config["norm_bias"]
        self.attention = build.attention
        self.dropout = config["embedding_dropout"]
        self.half_window = config["local_attention"] // 2
        self.width = hidden // config["num_attention_heads"]
        self.tokens = Embedding(build, "tok_embeddings", config["vocab_size"], hidden)
        self.embedding_norm = LayerNorm(build, "embeddings.norm", hidden, bias=bias)
        kinds = config["layer_types"]
        self.kinds = sorted(set(kinds))
        for _ in self.kinds:
            rotary_buffers(build, self.width)
        self.first = Blocks(build, kinds[:1], lambda i: ModernBertBlock(build, config, kinds[i], first=True))
        self.blocks = Blocks(build, kinds[1:], lambda i: ModernBertBlock(build, config, kinds[i + 1], first=False))
        self.norm = LayerNorm(build, "final_norm", hidden, bias=bias)
        table = self.tokens.weight if config["tie_word_embeddings"] else None
        self.head = MaskedLanguageHead(
            build,
            hidden,
            hidden,
            config["vocab_size"],
            act=config["classifier_activation"],
            table=table,
            dense_bias=config["classifier_bias"],
            norm_bias=bias,
            decoder_bias=config["decoder_bias"],
        )

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        for _ in ("ids", "labels"):
            tape.batch_input((shape.sequence_length,), Dtype.INT64)
        x = self._encode(tape, shape.sequence_length)
        return masked_lm_loss(tape, x, self.head, wide=True)

    def _encode(self, tape: Tape, tokens: int) -> Tensor:
        with tape.within("embeddings"):
            x = ops.dropout(self.embedding_norm(self.tokens(tape, tokens)), self.dropout)
        with tape.within("attention"):
            masks = {"full_attention": None, "sliding_attention": self._window_mask(tape, tokens, x.dtype)}
            tables = {kind: RotaryTables(tape, tokens, Rotary(self.width), x.dtype) for kind in self.kinds}
        x = self.first(tape, x, masks=masks, tables=tables)
        x = self.blocks(tape, x, masks=masks, tables=tables)
        with tape.within("final norm"):
            return self.norm(x)

    def _window_mask(self, tape: Tape, tokens: int, dtype: Dtype) -> Tensor | None:
        """The mask of a window that is shorter than the sequence, one for all blocks (sdpa_mask, eager_mask)."""
        if tokens < self.half_window or self.attention == "flash-attention-2":
            return None
        pairs = tape.empty((tokens, tokens), Dtype.BOOL, batched=False)
        return tape.empty((1, tokens, tokens), dtype, batched=True) if self.attention.startswith("eager") else pairs
