"""CLIP trained on pairs of an image and its text (transformers/models/clip/modeling_clip.py, CLIPModel).

Each pair's logits are its row of the micro-batch's similarity matrix. That matrix grows with the micro-batch squared,
which the log's linear sizes leave out: some 20 bytes a pair of pairs around the loss, 0.3 GB at 4,000 pairs, where
the towers' activations take two hundred times as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.architectures.decoder_parts import causal_mask
from calc.architectures.images import image_batch
from calc.architectures.vision_transformers import Block, PatchEmbeddings, clip_classifier, tower_encoder
from calc.replay import ops
from calc.replay.layers import Blocks, Embedding, LayerNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Model, Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Parameter, Tape, Tensor

POSITION_BYTES = 8


class ImageTower:
    """CLIPVisionModel: the class token after the last block, normalized."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        encoder = tower_encoder(config)
        self.width = encoder.hidden
        self.embeddings = PatchEmbeddings(build, config, tokens=1, bias=False, table=True)
        self.stem_norm = LayerNorm(build, "pre_layrnorm", self.width)
        self.blocks = Blocks(build, ["image"] * config["num_hidden_layers"], lambda _: Block(build, encoder))
        self.norm = LayerNorm(build, "post_layernorm", self.width)

    def __call__(self, images: Tensor) -> list[Tensor]:
        """The pooled token; all tokens, which the model's output holds until forward ends."""
        x = self.embeddings(images)
        with x.tape.within("embeddings"):
            x = self.stem_norm(x)
        x = self.blocks(x.tape, x)
        with x.tape.within("final norm"):
            return [self.norm(ops.narrow(x, (self.width,))), x]


class TextTower:
    """CLIPTextModel: the token that ends the text, after a norm of all."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        encoder = tower_encoder(config, causal=True)
        self.build = build
        self.width = encoder.hidden
        longest = config["max_position_embeddings"]
        self.tokens = Embedding(build, "token_embedding", config["vocab_size"], self.width)
        self.positions = Embedding(build, "position_embedding", longest, self.width, of_tokens=False)
        build.buffer(longest * POSITION_BYTES)
        self.blocks = Blocks(build, ["text"] * config["num_hidden_layers"], lambda _: Block(build, encoder))
        self.norm = LayerNorm(build, "final_layer_norm", self.width)

    def __call__(self, tape: Tape, length: int) -> list[Tensor]:
        """The pooled token; all tokens, which the model's output holds until forward ends."""
        with tape.within("embeddings"):
            words = self.tokens(tape, length)
            x = ops.add(words, self.positions(tape, length, batched=False))
            del words
            mask = causal_mask(tape, self.build.attention, length, self.build.dtype)
        x = self.blocks(tape, x, mask=mask)
        with tape.within("final norm"):
            x = self.norm(x)
            return [ops.narrow(x, (self.width,)), x]


class Clip:
    """Two towers, their projections to one space, and the similarity of each image with each text."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        text, vision, width = config["text_config"], config["vision_config"], config["projection_dim"]
        self.build = build
        self.channels = vision["num_channels"]
        self.scale: Parameter = build.parameter("logit_scale", ())
        self.text = TextTower(build, text)
        self.image = ImageTower(build, vision)
        self.image_projection = build.linear("visual_projection", self.image.width, width, bias=False)
        self.text_projection = build.linear("text_projection", self.text.width, width, bias=False)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        tokens = (shape.sequence_length,)
        pooled, *held = self.image(
            image_batch(tape, self.build, shape.image_size, channels=self.channels, labels=tokens)
        )
        with tape.within("head"):
            image = self.image_projection(pooled)
        del pooled
        pooled, *texts = self.text(tape, shape.sequence_length)
        with tape.within("head"):
            text = self.text_projection(pooled)
            del pooled
            loss = self._similarity(_normalized(image), _normalized(text))
        del held, texts
        return loss

    def _similarity(self, image: Tensor, text: Tensor) -> Tensor:
        """Cross-entropy of each pair's own column and row, of which one element a pair is counted."""
        tape = image.tape
        logits = ops.matmul(text, image, (1, 1, 1), image.numel)
        logits = ops.mul(logits, ops.pointwise(tape.parameter(self.scale), keeps="output")).view(1)
        with tape.within("logits"):
            return ops.scale(ops.add(ops.cross_entropy(logits), ops.cross_entropy(logits)))


def _normalized(x: Tensor) -> Tensor:
    """``x`` divided by the root of its squares' sum."""
    squares = ops.power(x)
    length = ops.power(ops.reduce_sum(squares, (1,)))
    del squares
    return ops.divide(x, length)


def clip(build: Build, config: Mapping[str, Any]) -> Model:
    """CLIPModel with its contrastive loss, or CLIPForImageClassification where the build classifies."""
    return clip_classifier(build, config) if build.classifies else Clip(build, config)
