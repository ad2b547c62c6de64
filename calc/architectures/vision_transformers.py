"""Vision transformers of Hugging Face with an image classifier on top.

transformers/models/{vit,deit,beit,clip,siglip,dinov2}/modeling_*.py, the ...ForImageClassification classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.attention import attend, eager
from calc.architectures.images import classification_loss, drop_path, image_batch, linear_rates
from calc.errors import ScenarioError
from calc.replay import ops
from calc.replay.layers import Blocks, Conv, LayerNorm, Linear
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Parameter, Tape, Tensor

POSITION_BYTES = 8
DINOV2_NAMES = ("query", "key", "value", "dense", "fc1", "fc2")


@dataclass(frozen=True)
class Encoder:
    """What the implementations' blocks differ in.

    ``names`` are the projections' own names (query, key, value, output, up, down), ``key_bias`` whether the keys have
    a bias where the others do, ``layer_scale`` whether each branch is scaled by a trained vector. ``relative_side``:
    patches on a side of the image that each block has position biases for, 0 where it has none (BEiT).
    ``holds_attention``: the attention's input and output are locals of their own, alive to the block's end (DINOv2).
    ``causal``: each token sees those before it (CLIP's text tower).
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
    relative_side: int = 0
    holds_attention: bool = False
    causal: bool = False


class Block:
    """Pre-norm attention and MLP, each dropped, scaled and left out by chance as the implementation says."""

    def __init__(self, build: Build, encoder: Encoder, *, drop_rate: float = 0.0) -> None:
        self.kind = build.attention
        self.encoder = encoder
        self.drop_rate = drop_rate
        hidden, names = encoder.hidden, encoder.names
        self.norm_1 = LayerNorm(build, "layernorm_before", hidden)
        self._make_attention(build)
        self.norm_2 = LayerNorm(build, "layernorm_after", hidden)
        self.up = build.linear(names[4], hidden, encoder.inner * (2 if encoder.gated else 1))
        self.down = build.linear(names[5], encoder.inner, hidden)
        scaled = encoder.layer_scale
        self.scale_1 = build.parameter("layer_scale1", (hidden,)) if scaled else None
        self.scale_2 = build.parameter("layer_scale2", (hidden,)) if scaled else None
        entries = (2 * encoder.relative_side - 1) ** 2 + 3
        self.table = (
            build.parameter("relative_position_bias_table", (entries, encoder.heads)) if encoder.relative_side else None
        )

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            normal = self.norm_1(x)
            branch = self._attention(normal, mask)
            held = normal if self.encoder.holds_attention else None
            del normal
            scaled = self._scaled(branch, self.scale_1)
            del branch
            x = ops.add(drop_path(scaled, self.drop_rate), x)
            if not self.encoder.holds_attention:
                del scaled
        with tape.within("mlp"):
            normal = self.norm_2(x)
            branch = self._mlp(normal)
            del normal
            x = ops.add(drop_path(self._scaled(branch, self.scale_2), self.drop_rate), x)
            del held
            return x

    def _make_attention(self, build: Build) -> None:
        encoder, hidden = self.encoder, self.encoder.hidden
        query, key, value, output, *_ = encoder.names
        self.q = build.linear(query, hidden, hidden, bias=encoder.qkv_bias, attention=True)
        self.k = build.linear(key, hidden, hidden, bias=encoder.qkv_bias and encoder.key_bias, attention=True)
        self.v = build.linear(value, hidden, hidden, bias=encoder.qkv_bias, attention=True)
        self.o = build.linear(output, hidden, hidden, attention=True)

    def _attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        encoder = self.encoder
        tokens = x.shape[0]
        q, k, v = self.q(x), self.k(x), self.v(x)
        width = encoder.hidden // encoder.heads
        heads = Heads(encoder.heads, encoder.heads, width, width, tokens, tokens, causal=encoder.causal)
        if self.table is not None:
            return self.o(
                biased_attention(self.kind, q, k, v, heads, position_bias(x.tape, self.table, heads.query, tokens))
            )
        out = attend(
            self.kind, q, k, v, heads, dropout=encoder.attention_dropout, mask=mask, fp32_softmax=encoder.fp32_softmax
        )
        return self.o(out)

    def _mlp(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if not self.encoder.gated:
            x = activation(self.encoder.act, x)
            return self.down(x)
        gate, value = ops.split(x, [(x.shape[0], self.encoder.inner)] * 2)
        return self.down(ops.mul(ops.pointwise(gate), value))

    def _scaled(self, x: Tensor, scale: Parameter | None) -> Tensor:
        x = ops.dropout(x, self.encoder.dropout)
        return x if scale is None else ops.mul(x, x.tape.parameter(scale))


class MultiheadBlock(Block):
    """torchvision's EncoderBlock: the same around ``nn.MultiheadAttention``, which works with tokens before samples."""

    def _make_attention(self, build: Build) -> None:
        hidden = self.encoder.hidden
        self.qkv = Linear(build, "in_proj", hidden, 3 * hidden)
        self.o = Linear(build, "out_proj", hidden, hidden)

    def _attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """One product, its bias added apart, a copy of all three (functional.py, multi_head_attention_forward).

        torchvision asks for no attention weights, so it composes nothing by itself; ``eager`` is as if it did.
        """
        tape, (tokens, hidden) = x.tape, x.shape
        low = x.dtype if tape.autocast is None else tape.autocast.dtype
        weight = tape.cast_parameter(self.qkv.weight, low)
        bias = tape.cast_parameter(self.qkv.bias, low) if self.qkv.bias is not None else None
        rows = ops.copy(ops.cast(x, low))
        product = ops.product(rows, weight)
        del rows
        both = product if bias is None else ops.add(product, bias)
        del product
        qkv = ops.copy(ops.transposed(both))
        del both
        q, k, v = (ops.narrow(qkv, (tokens, hidden)) for _ in range(3))
        width = hidden // self.encoder.heads
        heads = Heads(self.encoder.heads, self.encoder.heads, width, width, tokens, tokens, causal=False)
        out = attend(self.kind, q, k, v, heads, mask=mask, fp32_softmax=False)
        if self.kind == "sdpa" and low.itemsize == Dtype.FP32.itemsize:
            # The memory-efficient kernel puts samples before tokens; the flash kernel keeps the queries' order.
            out = ops.copy(ops.transposed(out))
        return ops.transposed(self.o(out))


MASK_ALIGNMENT = 16
"""Elements that a mask's last dimension is padded to (aten/src/ATen/native/transformers/attention.cpp, pad_bias)."""


def position_bias(tape: Tape, table: Parameter, heads: int, tokens: int) -> Tensor:
    """Each pair of tokens' entry of a table, copied so that every head has a map of its own."""
    return ops.copy(ops.refit(tape.parameter(table), (heads * tokens, tokens)))


def biased_attention(
    kind: str, q: Tensor, k: Tensor, v: Tensor, heads: Heads, bias: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """Attention with trained biases as its mask: composed, or by the memory-efficient kernel with padded rows."""
    if kind == "eager":
        return eager(q, k, v, heads, dropout=dropout, mask=bias)
    low = q.dtype if q.tape.autocast is None else q.tape.autocast.dtype
    bias = ops.cast(bias, low)
    shape = bias.shape
    columns = -(-shape[-1] // MASK_ALIGNMENT) * MASK_ALIGNMENT
    if columns != shape[-1]:
        bias = ops.narrow(ops.refit(bias, (*shape[:-1], columns)), shape)
    return ops.efficient_attention(ops.cast(q, low), ops.cast(k, low), ops.cast(v, low), heads, bias)


class PatchEmbeddings:
    """Patches by a convolution, special tokens before them, learned positions.

    ``table``: positions come from an embedding looked up by a buffer of indices (CLIP, SigLIP), not from a parameter.
    The patches get a gradient under checkpointing even where nothing before the blocks trains, as tokens do in
    `calc.replay.layers.Embedding`.
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
        registers: int = 0,
    ) -> None:
        hidden, patch = config["hidden_size"], config["patch_size"]
        self.hidden = hidden
        self.table = table
        self.dropout = config.get("hidden_dropout_prob", 0.0)
        self.wants_gradient = not build.full and build.checkpointing != "none"
        self.special = [build.parameter("token", (1, hidden)) for _ in range(tokens)]
        if mask_token:
            build.parameter("mask_token", (1, hidden))
        self.registers = build.parameter("register_tokens", (registers, hidden)) if registers else None
        self.projection = Conv(
            build, "projection", config["num_channels"], hidden, (patch, patch), stride=patch, bias=bias
        )
        side = config["image_size"] // patch
        self.rows = side * side + tokens
        self.positions = build.parameter("position_embeddings", (self.rows, hidden)) if positions else None
        if table:
            build.buffer(self.rows * POSITION_BYTES)

    def __call__(self, images: Tensor) -> Tensor:
        return self.placed(self.joined(images))

    def joined(self, images: Tensor) -> Tensor:
        """Patches, and the special tokens before them."""
        tape = images.tape
        with tape.within("embeddings"):
            x = self.projection(images)
            x = x.view(x.shape[1] * x.shape[2], self.hidden)
            if self.wants_gradient:
                x = tape.leaf(x)
            if self.special:
                parts = [ops.expand_batch(tape.parameter(token)) for token in self.special]
                x = ops.cat([*parts, ops.cast(x, parts[0].dtype)], axis_last=False)
            return x

    def placed(self, x: Tensor) -> Tensor:
        """`joined` tokens with their positions."""
        tape = x.tape
        with tape.within("embeddings"):
            if self.positions is not None:
                x = ops.add(x, self._positions(tape, self.positions, x.shape[0]))
            if self.registers is not None:
                tokens, patches = ops.split(x, [(1, self.hidden), (x.shape[0] - 1, self.hidden)])
                x = ops.cat([tokens, ops.expand_batch(tape.parameter(self.registers)), patches], axis_last=False)
                del tokens, patches
            return ops.dropout(x, self.dropout)

    def _positions(self, tape: Tape, table: Parameter, rows: int) -> Tensor:
        if rows != self.rows:
            return ops.interpolate(tape.parameter(table), (rows, self.hidden))
        if self.table:
            return ops.embedding(tape, rows, table, batched=False)
        return tape.parameter(table)


class ImageClassifier:
    """Embeddings, blocks, norms and a linear classifier of a pooled token.

    ``pooling``: ``first`` reads the class token, ``mean`` the mean of the patches, ``both`` the two side by side.
    ``final_norm`` comes before pooling, ``pooled_norm`` after it; ``stem_norm`` before the blocks. ``holds_joined``:
    the tokens without positions stay until the final norm has run.
    """

    def __init__(
        self,
        build: Build,
        config: Mapping[str, Any],
        embeddings: PatchEmbeddings,
        encoder: Encoder,
        *,
        classes: int,
        drop_rates: Sequence[float] | None = None,
        pooling: str = "first",
        final_norm: bool = True,
        pooled_norm: bool = False,
        stem_norm: bool = False,
        holds_joined: bool = False,
        block: type[Block] = Block,
    ) -> None:
        hidden, depth = encoder.hidden, config["num_hidden_layers"]
        rates = drop_rates or [0.0] * depth
        self.build = build
        self.channels = config["num_channels"]
        self.embeddings = embeddings
        self.pooling = pooling
        self.holds_joined = holds_joined
        self.stem_norm = LayerNorm(build, "pre_layernorm", hidden) if stem_norm else None
        kinds = [rate > 0 for rate in rates]
        self.blocks = Blocks(build, kinds, lambda index: block(build, encoder, drop_rate=rates[index]))
        self.final_norm = LayerNorm(build, "layernorm", hidden) if final_norm else None
        self.pooled_norm = LayerNorm(build, "pooler.layernorm", hidden) if pooled_norm else None
        self.unused: PoolingHead | None = None
        self.head = build.linear("classifier", hidden * (2 if pooling == "both" else 1), classes)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        x = self.embeddings.joined(image_batch(tape, self.build, shape.image_size, channels=self.channels))
        joined = x if self.holds_joined else None
        x = self.embeddings.placed(x)
        if self.stem_norm is not None:
            with tape.within("embeddings"):
                x = self.stem_norm(x)
        x = self.blocks(tape, x)
        if self.final_norm is not None:
            with tape.within("final norm"):
                x = self.final_norm(x)
        del joined
        with tape.within("head"):
            held = None if self.unused is None else self.unused(x)
            pooled = self._pooled(x)
            if self.pooled_norm is not None:
                pooled = self.pooled_norm(pooled)
            loss = classification_loss(self.head(pooled))
            del held
            return loss

    def _pooled(self, x: Tensor) -> Tensor:
        tokens, hidden = x.shape
        if self.pooling == "first":
            return ops.narrow(x, (hidden,))
        special = len(self.embeddings.special)
        if self.pooling == "both":
            first = ops.narrow(x, (hidden,))
            patches = ops.narrow(x, (tokens - special, hidden))
            return ops.cat([first, ops.mean_last(patches, hidden)])
        patches = ops.narrow(x, (tokens - special, hidden)) if special else x
        return ops.mean_last(patches, hidden)


def _bert_like(config: Mapping[str, Any], **options: Any) -> Encoder:
    """An encoder whose configuration uses BERT's key names (ViT, DeiT, BEiT, DINOv2)."""
    return Encoder(
        config["hidden_size"],
        config["num_attention_heads"],
        options.pop("inner", None) or config["intermediate_size"],
        config["hidden_act"],
        attention_dropout=config["attention_probs_dropout_prob"],
        dropout=config["hidden_dropout_prob"],
        **options,
    )


def vit(build: Build, config: Mapping[str, Any]) -> ImageClassifier:
    """ViTForImageClassification; DeiTForImageClassification has a distillation token beside the class token."""
    embeddings = PatchEmbeddings(build, config, tokens=2 if config["model_type"] == "deit" else 1)
    encoder = _bert_like(config, qkv_bias=config["qkv_bias"])
    return ImageClassifier(build, config, embeddings, encoder, classes=config["num_labels"])


def dinov2(build: Build, config: Mapping[str, Any]) -> ImageClassifier:
    """Dinov2ForImageClassification, Dinov2WithRegistersForImageClassification.

    Scaled branches, a classifier of the class token beside the patches' mean.
    """
    registers = config.get("num_register_tokens", 0)
    mask_token = config.get("use_mask_token", True)
    embeddings = PatchEmbeddings(build, config, tokens=1, mask_token=mask_token, registers=registers)
    inner = int(config["hidden_size"] * config["mlp_ratio"])
    gated = config["use_swiglu_ffn"]
    encoder = _bert_like(
        config,
        inner=(int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner,
        gated=gated,
        qkv_bias=config["qkv_bias"],
        layer_scale=True,
        holds_attention=True,
        fp32_softmax=False,
        names=DINOV2_NAMES,
    )
    rates = [config["drop_path_rate"]] * config["num_hidden_layers"]
    return ImageClassifier(
        build, config, embeddings, encoder, classes=config["num_labels"], drop_rates=rates, pooling="both"
    )


def tower_encoder(config: Mapping[str, Any], *, causal: bool = False) -> Encoder:
    """The blocks of a tower of CLIP or SigLIP."""
    return Encoder(
        config["hidden_size"],
        config["num_attention_heads"],
        config["intermediate_size"],
        config["hidden_act"],
        names=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
        attention_dropout=config["attention_dropout"],
        causal=causal,
    )


def clip_classifier(build: Build, config: Mapping[str, Any]) -> ImageClassifier:
    """CLIPForImageClassification, SiglipForImageClassification: the vision tower, a classifier of its patches' mean.

    CLIP has a class token and a norm before its blocks; its norm after them is left unused by the classifier.
    """
    vision = config.get("vision_config", config)
    first = config["model_type"].startswith("clip")
    embeddings = PatchEmbeddings(build, vision, tokens=1 if first else 0, bias=not first, table=True)
    encoder = tower_encoder(vision)
    model = ImageClassifier(
        build,
        vision,
        embeddings,
        encoder,
        classes=config["num_labels"],
        pooling="mean",
        final_norm=not first,
        stem_norm=first,
    )
    if first:
        LayerNorm(build, "post_layernorm", vision["hidden_size"])
    else:
        model.unused = PoolingHead(build, vision)
    return model


class PoolingHead:
    """SiglipMultiheadAttentionPoolingHead: the classifier does not read its output, which lives to forward's end."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        build.parameter("probe", (hidden,))
        self.in_proj = Linear(build, "in_proj", hidden, 3 * hidden)
        self.out_proj = build.linear("out_proj", hidden, hidden)
        self.norm = LayerNorm(build, "layernorm", hidden)
        self.up = build.linear("fc1", hidden, inner)
        self.down = build.linear("fc2", inner, hidden)

    def __call__(self, x: Tensor) -> list[Tensor]:
        """What stays of the keys and values; what is made of the one probe is too small to matter."""
        tape, (tokens, hidden) = x.tape, x.shape
        low = x.dtype if tape.autocast is None else tape.autocast.dtype
        weights = [tape.cast_parameter(p, low) for p in (self.in_proj.weight, self.out_proj.weight)]
        rows = ops.copy(ops.cast(x.data, low))
        product = tape.empty((tokens, 2 * hidden), low, batched=True)
        both = tape.like(product)
        del product
        return [*weights, rows, tape.like(both)]


def beit(build: Build, config: Mapping[str, Any]) -> ImageClassifier:
    """BeitForImageClassification: scaled branches left out by chance, position biases in each block, a pooled mean."""
    embeddings = PatchEmbeddings(
        build,
        config,
        tokens=1,
        positions=config["use_absolute_position_embeddings"],
        mask_token=config["use_mask_token"],
    )
    relative = config["use_relative_position_bias"]
    encoder = _bert_like(
        config,
        key_bias=False,
        layer_scale=config["layer_scale_init_value"] > 0,
        relative_side=config["image_size"] // config["patch_size"] if relative else 0,
    )
    mean = config["use_mean_pooling"]
    return ImageClassifier(
        build,
        config,
        embeddings,
        encoder,
        classes=config["num_labels"],
        drop_rates=linear_rates(config["drop_path_rate"], config["num_hidden_layers"]),
        pooling="mean" if mean else "first",
        final_norm=not mean,
        pooled_norm=mean,
    )


@dataclass(frozen=True)
class Variant:
    """torchvision's patch, layers, heads, width and inner width."""

    patch: int
    layers: int
    heads: int
    hidden: int
    inner: int


VARIANTS = {
    "vit_b_16": Variant(16, 12, 12, 768, 3072),
    "vit_b_32": Variant(32, 12, 12, 768, 3072),
    "vit_l_16": Variant(16, 24, 16, 1024, 4096),
    "vit_l_32": Variant(32, 24, 16, 1024, 4096),
    "vit_h_14": Variant(14, 32, 16, 1280, 5120),
}
TORCHVISION_IMAGE_SIZE = 224


def torchvision_vit(build: Build, config: Mapping[str, Any]) -> ImageClassifier:
    """torchvision's VisionTransformer by name, made for the image's size (torchvision/models/vision_transformer.py).

    Raises
    ------
    ScenarioError
        Where patches do not fill the image: "Input shape indivisible by patch size!" (VisionTransformer.__init__).
    """
    variant = VARIANTS[config["name"]]
    image = config.get("image_size", TORCHVISION_IMAGE_SIZE)
    if image % variant.patch:
        raise ScenarioError("image_size", f"{image} is no multiple of {variant.patch}, the side of its patches")
    sizes = {
        "hidden_size": variant.hidden,
        "patch_size": variant.patch,
        "image_size": image,
        "num_channels": 3,
        "num_hidden_layers": variant.layers,
    }
    encoder = Encoder(variant.hidden, variant.heads, variant.inner, "gelu")
    embeddings = PatchEmbeddings(build, sizes, tokens=1)
    classes = config.get("num_classes", 1000)
    # VisionTransformer.forward's own x, which Encoder.forward adds the positions to.
    return ImageClassifier(build, sizes, embeddings, encoder, classes=classes, holds_joined=True, block=MultiheadBlock)
