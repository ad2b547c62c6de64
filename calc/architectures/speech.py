"""Speech recognition: Whisper (transformers/models/whisper/modeling_whisper.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.architectures.attention import attend
from calc.architectures.encoder_decoders import Attention, Block, FeedForward, decoder_mask, shifted_labels, token_batch
from calc.replay import ops
from calc.replay.layers import Blocks, Conv, Embedding, LayerNorm
from calc.replay.ops import Heads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


class WhisperAttention(Attention):
    """Scales its queries itself, and makes queries, keys and values contiguous by heads; keys have no bias.

    The flash kernel's output then lies by heads too, and is copied once more.
    """

    def __init__(self, build: Build, hidden: int, heads: int, *, dropout: float, causal: bool) -> None:
        biases = (True, False, True, True)
        super().__init__(build, hidden, heads, hidden // heads, dropout=dropout, causal=causal, biases=biases)

    def __call__(
        self, x: Tensor, source: Tensor | None, *, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        source = x if source is None else source
        q = ops.copy(ops.transposed(ops.scale(self.q(x))))
        k = ops.copy(ops.transposed(self.k(source)))
        v = ops.copy(ops.transposed(self.v(source)))
        heads = Heads(self.heads, self.heads, self.width, self.width, x.shape[0], source.shape[0], causal=self.causal)
        out = attend(self.kind, q, k, v, heads, dropout=self.dropout, mask=mask, bias=bias, fp32_softmax=False)
        if not self.kind.startswith("eager") and out.dtype.itemsize == 2:
            out = ops.copy(out)
        del q, k, v
        return self.o(out)


def _blocks(build: Build, config: Mapping[str, Any], *, decoder: bool) -> Blocks:
    side = "decoder" if decoder else "encoder"
    hidden, heads, dropout = config["d_model"], config[f"{side}_attention_heads"], config["attention_dropout"]

    def block(_: int) -> Block:
        attention = WhisperAttention(build, hidden, heads, dropout=dropout, causal=decoder)
        cross = WhisperAttention(build, hidden, heads, dropout=dropout, causal=False) if decoder else None
        act, activation_dropout = config["activation_function"], config["activation_dropout"]
        feed_forward = FeedForward(build, hidden, config[f"{side}_ffn_dim"], act=act, dropout=activation_dropout)
        norms = [LayerNorm(build, "layer_norm", hidden) for _ in range(3 if decoder else 2)]
        return Block(attention, cross, feed_forward, norms, dropout=config["dropout"], pre_norm=True)

    return Blocks(build, ["block"] * config[f"{side}_layers"], block)


class WhisperEncoder:
    """Two convolutions over the mel frames, the second of stride 2, fixed positions, blocks."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden = config["d_model"]
        self.mel_bins = config["num_mel_bins"]
        self.dtype = build.dtype
        self.dropout = config["dropout"]
        self.conv_1 = Conv(build, "conv1", self.mel_bins, hidden, (3,), padding=1)
        self.conv_2 = Conv(build, "conv2", hidden, hidden, (3,), stride=2, padding=1)
        positions = config["max_source_positions"]
        self.positions = Embedding(build, "embed_positions", positions, hidden, of_tokens=False, trainable=False)
        self.blocks = _blocks(build, config, decoder=False)
        self.norm = LayerNorm(build, "layer_norm", hidden)
        self.wants_gradient = not build.full and build.checkpointing != "none"

    def __call__(self, tape: Tape, mel: Tensor) -> Tensor:
        with tape.within("embeddings"):
            x = self.conv_1(mel)
            if self.wants_gradient:
                x = tape.leaf(x)
            x = self.conv_2(ops.pointwise(x))
            features = ops.pointwise(x)
            hidden, tokens = features.shape
            features = features.view(tokens, hidden)
            x = ops.add(features, self.positions(tape, tokens, batched=False))
            x = ops.dropout(x, self.dropout)
        x = self.blocks(tape, x)
        del features
        with tape.within("final norm"):
            return self.norm(x)


class Whisper:
    """WhisperForConditionalGeneration: the decoder attends to the encoded audio."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden = config["d_model"]
        self.attention = build.attention
        self.dropout = config["dropout"]
        self.encoder = WhisperEncoder(build, config)
        self.tokens = Embedding(build, "embed_tokens", config["vocab_size"], hidden)
        self.positions = Embedding(build, "embed_positions", config["max_target_positions"], hidden, of_tokens=False)
        self.blocks = _blocks(build, config, decoder=True)
        self.norm = LayerNorm(build, "layer_norm", hidden)
        tied = self.tokens.weight if config["tie_word_embeddings"] else None
        with build.without_adapters():
            self.head = build.linear("proj_out", hidden, config["vocab_size"], bias=False, tied=tied)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        tokens = shape.target_length or shape.sequence_length
        mel = tape.batch_input((self.encoder.mel_bins, shape.audio_frames), self.encoder.dtype)
        token_batch(tape, tokens)
        labels = shifted_labels(tape, tokens)
        source = self.encoder(tape, mel)
        x = self._decode(tape, tokens, source)
        with tape.within("logits"):
            logits = self.head(x)
            loss = ops.cross_entropy(logits)
            del labels
            return loss

    def _decode(self, tape: Tape, tokens: int, source: Tensor) -> Tensor:
        with tape.within("embeddings"):
            embedded = self.tokens(tape, tokens)
            positions = self.positions(tape, tokens)
            x = ops.dropout(ops.add(embedded, positions), self.dropout)
            mask = decoder_mask(tape, embedded, self.attention)
        x = self.blocks(tape, x, mask=mask, source=source)
        del embedded, positions
        with tape.within("final norm"):
            return self.norm(x)
