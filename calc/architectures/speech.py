"""Speech recognition: Whisper, wav2vec 2.0 and HuBERT (transformers/models/{whisper,wav2vec2,hubert}/modeling_*.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.attention import attend
from calc.architectures.encoder_decoders import Attention, Block, FeedForward, decoder_mask, shifted_labels, token_batch
from calc.errors import ScenarioError
from calc.replay import ops
from calc.replay.layers import BatchNorm, Blocks, Conv, Embedding, LayerNorm
from calc.replay.ops import Heads
from calc.replay.tape import Dtype, Tensor, TooSmallError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Parameter, Tape


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


SAMPLES_PER_SECOND = 16_000
CHARACTERS_PER_SECOND = 15
"""Read English speech has about so many; the labels' memory is below a hundredth of the step's."""


class FeatureConvolution:
    """One convolution of the waveform's encoder, its norm by ``feat_extract_norm``, its activation.

    ``group``: the first one alone is normalized, each channel over time; ``layer``: every one, over its channels.
    """

    def __init__(self, build: Build, config: Mapping[str, Any], index: int) -> None:
        widths = config["conv_dim"]
        width = widths[index]
        kernel, stride = config["conv_kernel"][index], config["conv_stride"][index]
        inputs = widths[index - 1] if index else 1
        self.act = config["feat_extract_activation"]
        self.conv = Conv(build, "conv", inputs, width, (kernel,), stride=stride, bias=config["conv_bias"])
        self.by_channel = config["feat_extract_norm"] == "group"
        normed = index == 0 or not self.by_channel
        self.norm = LayerNorm(build, "layer_norm", width) if normed else None

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            channels, frames = x.shape
            x = ops.layer_norm(x, self.norm.weight, self.norm.bias, channels if self.by_channel else frames)
        return activation(self.act, x)


class PositionConvolution:
    """A grouped convolution of frames as positions; its weight has a direction and a length, or its input is normed."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, kernel = config["hidden_size"], config["num_conv_pos_embeddings"]
        self.groups = config["num_conv_pos_embedding_groups"]
        self.act = config["feat_extract_activation"]
        self.extra = 1 - kernel % 2
        weight = (hidden, hidden // self.groups, kernel)
        self.batch_norm = BatchNorm(build, "batch_norm", hidden) if config.get("conv_pos_batch_norm") else None
        self.direction = build.parameter("conv.weight", weight)
        self.length = build.parameter("conv.weight.length", (1, 1, kernel)) if self.batch_norm is None else None
        self.bias = build.parameter("conv.bias", (hidden,))

    def __call__(self, x: Tensor) -> Tensor:
        tape = x.tape
        frames, hidden = x.shape
        x = x.view(hidden, frames)
        if self.batch_norm is not None:
            x = self.batch_norm(x)
        weight = self.direction if self.length is None else ops.weight_norm(tape, self.direction, self.length)
        out = ops.convolution(x, weight, self.bias, (hidden, frames + self.extra), groups=self.groups)
        del weight
        if self.extra:
            out = ops.narrow(out, (hidden, frames))
        return activation(self.act, out).view(frames, hidden)


class AdaptedBlock:
    """A block with a small bottleneck after it (Wav2Vec2AttnAdapterLayer)."""

    def __init__(self, build: Build, config: Mapping[str, Any], block: Block) -> None:
        hidden, width = config["hidden_size"], config["adapter_attn_dim"]
        self.block = block
        self.norm = LayerNorm(build, "adapter_layer.norm", hidden)
        self.down = build.linear("linear_1", hidden, width)
        self.up = build.linear("linear_2", width, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.block(x)
        return ops.add(x, self.up(activation("relu", self.down(self.norm(x)))))


def _overwrite_spans(x: Tensor, value: Parameter) -> Tensor:
    """SpecAugment: masked frames become one learned vector, in place; the gradient is copied with zeros there."""
    tape = x.tape
    operand = tape.parameter(value)
    tape.kernel([x], [x])
    if x.requires_grad or operand.requires_grad:
        tape.saves()

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(grad)
        tape.kernel([grad], [result])
        return [result, tape.like(operand)]

    return tape.record(x.data, [x, operand], backward)


class Wav2Vec2:
    """Wav2Vec2ForCTC and HubertForCTC on raw waveforms at 16 kHz, feature encoder trained too (the library's default).

    LayerDrop leaves blocks out at random; the memory is that of a step that drops none.
    """

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        if config.get("add_adapter"):
            message = f"{config['model_type']} with add_adapter=true is not calculated; set it to false"
            raise ScenarioError("model", message)
        hidden, width = config["hidden_size"], config["conv_dim"][-1]
        self.config = config
        self.dtype = build.dtype
        layers = range(len(config["conv_dim"]))
        self.features = Blocks(build, [("conv", i) for i in layers], lambda i: FeatureConvolution(build, config, i))
        normed = config.get("feat_proj_layer_norm", True)
        self.feature_norm = LayerNorm(build, "layer_norm", width) if normed else None
        self.projection = build.linear("projection", width, hidden)
        masked = config["mask_time_prob"] > 0 or config["mask_feature_prob"] > 0
        self.masked_frame = build.parameter("masked_spec_embed", (hidden,)) if masked else None
        self.positions = PositionConvolution(build, config)
        self.stable = config["do_stable_layer_norm"]
        self.blocks = Blocks(build, ["layer"] * config["num_hidden_layers"], lambda _: self._block(build))
        self.norm = LayerNorm(build, "encoder.layer_norm", hidden)
        self.head = build.linear("lm_head", hidden, config["vocab_size"])

    def _block(self, build: Build) -> Block | AdaptedBlock:
        config = self.config
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        dropout = config["attention_dropout"]
        attention = Attention(build, hidden, heads, hidden // heads, dropout=dropout, causal=False)
        act, inner_dropout = config["hidden_act"], config["activation_dropout"]
        feed_forward = FeedForward(build, hidden, config["intermediate_size"], act=act, dropout=inner_dropout)
        norms = [LayerNorm(build, "layer_norm", hidden) for _ in range(2)]
        block = Block(attention, None, feed_forward, norms, dropout=config["hidden_dropout"], pre_norm=self.stable)
        return AdaptedBlock(build, config, block) if self.stable and config.get("adapter_attn_dim") else block

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        samples = shape.audio_frames
        labels = shape.target_length or max(1, samples * CHARACTERS_PER_SECOND // SAMPLES_PER_SECOND)
        wave = tape.leaf(tape.batch_input((1, samples), self.dtype))
        token_batch(tape, labels)
        x, features = self._features(tape, wave)
        x = self._encode(tape, x)
        with tape.within("logits"):
            logits = self.head(ops.dropout(x, self.config["final_dropout"]))
            mask = tape.empty((samples,), Dtype.INT64, batched=True)
            loss = ops.ctc_loss(logits, labels)
            del mask, features
            return loss

    def _features(self, tape: Tape, wave: Tensor) -> tuple[Tensor, Tensor]:
        """Frames as wide as the blocks, and the normalized features that the output holds too."""
        with tape.within("embeddings"):
            x = self.features(tape, wave)
            width, frames = x.shape
            features = x.view(frames, width)
            del x
            if self.feature_norm is not None:
                features = self.feature_norm(features)
            x = ops.dropout(self.projection(features), self.config["feat_proj_dropout"])
            if self.masked_frame is not None and self.config["apply_spec_augment"]:
                self._check_spans(frames)
                x = _overwrite_spans(x, self.masked_frame)
            return x, features

    def _check_spans(self, frames: int) -> None:
        """The library masks whole spans of frames and refuses fewer frames than one has (_compute_mask_indices)."""
        if self.config["mask_time_prob"] > 0 and frames < self.config["mask_time_length"]:
            raise TooSmallError(f"{frames} frames are fewer than a masked span has")

    def _encode(self, tape: Tape, x: Tensor) -> Tensor:
        dropout = self.config["hidden_dropout"]
        with tape.within("embeddings"):
            positions = self.positions(x)
            x = ops.add(x, positions)
            x = ops.dropout(x if self.stable else self.norm(x), dropout)
        x = self.blocks(tape, x)
        del positions
        with tape.within("final norm"):
            return self.norm(x) if self.stable else x
