"""Vision transformers of Hugging Face with an image classifier on top.

transformers/models/{vit,deit,beit,clip,siglip,dinov2}/modeling_*.py, the ...ForImageClassification classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.architectures.attention import attend
from calc.architectures.decoders import activation
from calc.architectures.images import classification_loss, drop_path, image_batch, linear_rates
from calc.replay import ops
from calc.replay.layers import Blocks, Conv, LayerNorm
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

POSITION_BYTES = 8


@dataclass(frozen=True)
class Encoder:
    """What the implementations' blocks differ in.

    ``names`` are the projections' own names (query, key, value, output, up, down), ``key_bias`` whether the keys have
    a bias where the others do, ``layer_scale`` whether each branch is scaled by a trained vector.
    """

    hidden: int
    heads: int
    inner: int
    act: str
    names: tuple[str, str, str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2")
    qkv_bias: bool = True
    key_bias: bool = True
    fp32_softmax: bool = True
    attention_dropout: float = 0.0
    dropout: float = 0.0
    layer_scale: bool = False
    gated: bool = False


class Block:
    """Pre-norm attention and MLP, each dropped, scaled and left out by chance as the implementation says."""

    def __init__(self, build: Build, encoder: Encoder, *, drop_rate: float = 0.0) -> None:
        self.kind = build.attention
        self.encoder = encoder
        self.drop_rate = drop_rate
        hidden, names = encoder.hidden, encoder.names
        self.norm_1 = LayerNorm(build, "layernorm_before", hidden)
        self.q = build.linear(names[0], hidden, hidden, bias=encoder.qkv_bias, attention=True)
        self.k = build.linear(names[1], hidden, hidden, bias=encoder.qkv_bias and encoder.key_bias, attention=True)
        self.v = build.linear(names[2], hidden, hidden, bias=encoder.qkv_bias, attention=True)
        self.o = build.linear(names[3], hidden, hidden, attention=True)
        self.norm_2 = LayerNorm(build, "layernorm_after", hidden)
        self.up = build.linear(names[4], hidden, encoder.inner * (2 if encoder.gated else 1))
        self.down = build.linear(names[5], encoder.inner, hidden)
        scales = [build.parameter(f"layer_scale{i}", (hidden,)) for i in (1, 2)] if encoder.layer_scale else [None, None]
        self.scale_1, self.scale_2 = scales

    def __call__(self, x: Tensor) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            normal = self.norm_1(x)
            branch = self._attention(normal)
            del normal
            branch = self._branch(branch, self.scale_1)
            x = ops.add(branch, x)
            del branch
        with tape.within("mlp"):
            normal = self.norm_2(x)
            branch = self._mlp(normal)
            del normal
            branch = self._branch(branch, self.scale_2)
            return ops.add(branch, x)

    def _attention(self, x: Tensor) -> Tensor:
        encoder = self.encoder
        tokens = x.shape[0]
        q, k, v = self.q(x), self.k(x), self.v(x)
        width = encoder.hidden // encoder.heads
        heads = Heads(encoder.heads, encoder.heads, width, width, tokens, tokens, causal=False)
        out = attend(self.kind, q, k, v, heads, dropout=encoder.attention_dropout, fp32_softmax=encoder.fp32_softmax)
        return self.o(out)

    def _mlp(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if not self.encoder.gated:
            return self.down(activation(self.encoder.act, x))
        gate, value = ops.split(x, [(x.shape[0], self.encoder.inner)] * 2)
        return self.down(ops.mul(ops.pointwise(gate), value))

    def _branch(self, x: Tensor, scale: Any) -> Tensor:
        x = ops.dropout(x, self.encoder.dropout)
        if scale is not None:
            x = ops.mul(x, x.tape.parameter(scale))
        return drop_path(x, self.drop_rate)


class PatchEmbeddings:
    """Patches by a convolution, special tokens before them, learned positions.

    ``table``: positions come from an embedding looked up by a buffer of indices (CLIP, SigLIP), not from a parameter.
    """

    def __init__(
        self,
        build: Build,
        config: Mapping[str, Any],
        *,
        tokens: int,
        bias: bool = True,
        table: bool = False,
        positions: bool = True,
        mask_token: bool = False,
    ) -> None:
        hidden, patch = config["hidden_size"], config["patch_size"]
        self.hidden = hidden
        self.table = table
        self.dropout = config.get("hidden_dropout_prob", 0.0)
        self.special = [build.parameter("token", (1, hidden)) for _ in range(tokens)]
        if mask_token:
            build.parameter("mask_token", (1, hidden))
        self.projection = Conv(build, "projection", config["num_channels"], hidden, (patch, patch), stride=patch, bias=bias)
        side = config["image_size"] // patch
        self.rows = side * side + tokens
        self.positions = build.parameter("position_embeddings", (self.rows, hidden)) if positions else None
        if table:
            build.buffer(self.rows * POSITION_BYTES)

    def __call__(self, images: Tensor) -> Tensor:
        tape = images.tape
        with tape.within("embeddings"):
            x = self.projection(images)
            x = x.view(x.shape[1] * x.shape[2], self.hidden)
            if self.special:
                parts = [ops.expand_batch(tape.parameter(token)) for token in self.special]
                x = ops.cat([*parts, ops.cast(x, parts[0].dtype)], axis_last=False)
            if self.positions is not None:
                x = ops.add(x, self._positions(tape, x.shape[0]))
            return ops.dropout(x, self.dropout)

    def _positions(self, tape: Tape, rows: int) -> Tensor:
        assert self.positions is not None
        if rows != self.rows:
            return ops.refit(tape.parameter(self.positions), (rows, self.hidden))
        if self.table:
            return ops.embedding(tape, rows, self.positions, batched=False)
        return tape.parameter(self.positions)


class ImageClassifier:
    """Embeddings, blocks, a final norm, and a linear classifier of the first token (ViTForImageClassification)."""

    def __init__(self, build: Build, config: Mapping[str, Any], *, special_tokens: int = 1) -> None:
        self.build = build
        self.embeddings = PatchEmbeddings(build, config, tokens=special_tokens)
        encoder = Encoder(
            config["hidden_size"],
            config["num_attention_heads"],
            config["intermediate_size"],
            config["hidden_act"],
            qkv_bias=config["qkv_bias"],
            attention_dropout=config["attention_probs_dropout_prob"],
            dropout=config["hidden_dropout_prob"],
        )
        self.blocks = Blocks(build, ["layer"] * config["num_hidden_layers"], lambda _: Block(build, encoder))
        self.norm = LayerNorm(build, "layernorm", config["hidden_size"])
        self.head = build.linear("classifier", config["hidden_size"], config["num_labels"])

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = self.embeddings(image_batch(tape, self.build, shape.image_size))
        x = self.blocks(tape, x)
        with tape.within("final norm"):
            x = self.norm(x)
        with tape.within("head"):
            return classification_loss(self.head(ops.narrow(x, (self.embeddings.hidden,))))


def deit(build: Build, config: Mapping[str, Any]) -> ImageClassifier:
    """DeiTForImageClassification: a ViT with a distillation token beside the class token."""
    return ImageClassifier(build, config, special_tokens=2)
