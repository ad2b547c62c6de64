"""Denoisers of diffusers: the UNet of Stable Diffusion and DiT.

diffusers/models/unets/unet_2d_condition.py, unet_2d_blocks.py, resnet.py, transformers/*.py. The loss is the usual
training script's: mean squared error of the prediction in fp32 (examples/text_to_image/train_text_to_image.py). The
autoencoder and the text encoder are not part of it: latents and text features come ready made.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from calc.architectures.attention import attend
from calc.architectures.convolutional import join_channels, square_conv
from calc.replay import ops
from calc.replay.layers import Blocks, Conv, Embedding, LayerNorm
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

LATENT_SCALE = 8
"""Pixels on a side for each latent: the autoencoders of Stable Diffusion and DiT halve the image three times."""
TEXT_TOKENS = 77
"""Text features of a sample: CLIP's length."""
TIME_CHANNELS = 256
"""Sines and cosines of a time step that DiT embeds (CombinedTimestepLabelEmbeddings)."""


def mean_squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """``F.mse_loss`` of both in fp32: keeps both."""
    tape = prediction.tape
    prediction, target = ops.cast(prediction, Dtype.FP32), ops.cast(target, Dtype.FP32)
    loss = tape.empty((1,), Dtype.FP32, batched=False)
    tape.kernel([prediction, target], [loss])
    kept = (prediction.data, target.data)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        del grad
        result = tape.like(kept[0])
        tape.kernel([kept[0], kept[1]], [result])
        return [result]

    return tape.record(loss, [prediction], backward)


class GroupNorm:
    """``nn.GroupNorm`` of an image."""

    def __init__(self, build: Build, groups: int, channels: int) -> None:
        self.groups = groups
        self.weight = build.parameter("norm.weight", (channels,))
        self.bias = build.parameter("norm.bias", (channels,))

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.groups)


class TimeEmbedding:
    """TimestepEmbedding: linear, SiLU, linear."""

    def __init__(self, build: Build, inputs: int, width: int) -> None:
        self.first = build.linear("linear_1", inputs, width)
        self.second = build.linear("linear_2", width, width)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(ops.pointwise(self.first(x)))


class Attention:
    """Attention of diffusers with its output divided by a factor, which copies it (AttnProcessor2_0)."""

    def __init__(self, build: Build, width: int, heads: int, context: int, *, bias: bool = False) -> None:
        self.kind = build.attention
        self.heads = heads
        self.q = build.linear("to_q", width, width, bias=bias, attention=True)
        self.k = build.linear("to_k", context, width, bias=bias, attention=True)
        self.v = build.linear("to_v", context, width, bias=bias, attention=True)
        self.o = build.linear("to_out.0", width, width, attention=True)

    def __call__(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = self.q(x), self.k(source), self.v(source)
        width = x.shape[-1] // self.heads
        heads = Heads(self.heads, self.heads, width, width, x.shape[0], source.shape[0], causal=False)
        out = attend("eager" if self.kind == "eager" else "sdpa", q, k, v, heads)
        out = self.o(out)
        return ops.scale(out)


class TransformerBlock:
    """BasicTransformerBlock: attention over the image, over the text, and a gated MLP, each after a norm."""

    def __init__(self, build: Build, width: int, heads: int, context: int) -> None:
        self.norm_1 = LayerNorm(build, "norm1", width)
        self.self_attention = Attention(build, width, heads, width)
        self.norm_2 = LayerNorm(build, "norm2", width)
        self.cross_attention = Attention(build, width, heads, context)
        self.norm_3 = LayerNorm(build, "norm3", width)
        self.up = build.linear("ff.net.0.proj", width, 8 * width)
        self.down = build.linear("ff.net.2", 4 * width, width)

    def __call__(self, x: Tensor, *, context: Tensor) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            normal = self.norm_1(x)
            branch = self.self_attention(normal)
            x = ops.add(branch, x)
            normal = self.norm_2(x)
            branch = self.cross_attention(normal, context)
            x = ops.add(branch, x)
        with tape.within("mlp"):
            normal = self.norm_3(x)
            fed = self._feed_forward(normal)
            x = ops.add(fed, x)
            del normal, branch, fed
            return x

    def _feed_forward(self, x: Tensor) -> Tensor:
        both = self.up(x)
        value, gate = ops.split(both, [(x.shape[0], both.shape[-1] // 2)] * 2)
        del both
        gated = ops.mul(value, ops.pointwise(gate))
        del value, gate
        return self.down(gated)


class ImageTransformer:
    """Transformer2DModel on an image: norm, projection to tokens, blocks, projection back, the image added."""

    def __init__(
        self, build: Build, channels: int, heads: int, layers: int, context: int, *, groups: int, linear: bool
    ) -> None:
        self.linear = linear
        self.norm = GroupNorm(build, groups, channels)
        self.project_in = (
            build.linear("proj_in", channels, channels)
            if linear
            else square_conv(build, channels, channels, 1, bias=True)
        )
        self.blocks = Blocks(build, ["block"] * layers, lambda _: TransformerBlock(build, channels, heads, context))
        self.project_out = (
            build.linear("proj_out", channels, channels)
            if linear
            else square_conv(build, channels, channels, 1, bias=True)
        )

    def __call__(self, x: Tensor, context: Tensor) -> Tensor:
        tape, shape = x.tape, x.shape
        tokens = (x.numel // shape[0], shape[0])
        out = self.norm(x)
        if self.linear:
            out = ops.transposed(out).view(*tokens)
        out = self.project_in(out).view(*tokens)
        out = self.blocks(tape, out, context=context)
        if self.linear:
            out = ops.copy(ops.transposed(self.project_out(out))).view(*shape)
        else:
            out = self.project_out(ops.copy(ops.transposed(out)).view(*shape))
        return ops.add(out, x)


class ResidualBlock:
    """ResnetBlock2D: two convolutions after norms and SiLU, the time step added between them."""

    def __init__(self, build: Build, inputs: int, outputs: int, time_width: int, *, groups: int) -> None:
        self.norm_1 = GroupNorm(build, groups, inputs)
        self.conv_1 = square_conv(build, inputs, outputs, 3, bias=True)
        self.time = build.linear("time_emb_proj", time_width, outputs)
        self.norm_2 = GroupNorm(build, groups, outputs)
        self.conv_2 = square_conv(build, outputs, outputs, 3, bias=True)
        self.shortcut = square_conv(build, inputs, outputs, 1, bias=True) if inputs != outputs else None

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        out = self.norm_1(x)
        out = ops.pointwise(out)
        out = self.conv_1(out)
        shift = self.time(ops.pointwise(time))
        out = ops.add(out, shift)
        out = self.norm_2(out)
        out = ops.pointwise(out)
        out = self.conv_2(out)
        if self.shortcut is not None:
            x = self.shortcut(x)
        return ops.scale(ops.add(x, out))


class Stage:
    """A level of the UNet: residual blocks, each with a transformer after it where the level has attention."""

    def __init__(
        self, build: Build, config: Mapping[str, Any], sizes: Sequence[tuple[int, int]], *, heads: int, layers: int
    ) -> None:
        """``sizes``: inputs and outputs of each residual block; ``layers`` 0 where there is no attention."""
        self.build = build
        groups, time_width = config["norm_num_groups"], 4 * config["block_out_channels"][0]
        self.residuals = []
        self.transformers: list[ImageTransformer | None] = []
        for inputs, outputs in sizes:
            self.residuals.append(ResidualBlock(build, inputs, outputs, time_width, groups=groups))
            self.transformers.append(
                ImageTransformer(
                    build,
                    outputs,
                    heads,
                    layers,
                    config["cross_attention_dim"],
                    groups=groups,
                    linear=config["use_linear_projection"],
                )
                if layers
                else None
            )

    def step(self, index: int, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """One residual block and its transformer."""
        block = self.residuals[index]
        x = x.tape.checkpoint(block, x, time) if self.build.checkpointing == "full" else block(x, time)
        transformer = self.transformers[index]
        return x if transformer is None else transformer(x, context)


def _each(value: Any, count: int) -> list[int]:
    return list(value) if isinstance(value, list | tuple) else [value] * count


class UNet:
    """UNet2DConditionModel with the blocks of Stable Diffusion 1, 2 and XL."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        self.build = build
        self.config = config
        channels = list(config["block_out_channels"])
        levels = len(channels)
        # What diffusers calls attention_head_dim is the number of heads (unet_2d_condition.py, __init__).
        heads = _each(config["num_attention_heads"] or config["attention_head_dim"], levels)
        layers = _each(config["transformer_layers_per_block"], levels)
        per_level = _each(config["layers_per_block"], levels)
        time_width = 4 * channels[0]
        self.conv_in = square_conv(build, config["in_channels"], channels[0], 3, bias=True)
        self.time = TimeEmbedding(build, channels[0], time_width)
        added = config["projection_class_embeddings_input_dim"]
        self.added_width = added if config["addition_embed_type"] == "text_time" else 0
        self.added = TimeEmbedding(build, self.added_width, time_width) if self.added_width else None
        stage = partial(Stage, build, config)
        self.down = []
        self.downsamplers: list[Conv | None] = []
        skips = [channels[0]]
        inputs = channels[0]
        for level, outputs in enumerate(channels):
            sizes = [(inputs if i == 0 else outputs, outputs) for i in range(per_level[level])]
            attends = config["down_block_types"][level].startswith("CrossAttn")
            self.down.append(stage(sizes, heads=heads[level], layers=layers[level] if attends else 0))
            skips += [outputs] * per_level[level]
            last = level == levels - 1
            self.downsamplers.append(None if last else square_conv(build, outputs, outputs, 3, stride=2, bias=True))
            if not last:
                skips.append(outputs)
            inputs = outputs
        middle = [(inputs, inputs)]
        self.middle = stage(middle, heads=heads[-1], layers=layers[-1])
        self.middle_end = stage(middle, heads=heads[-1], layers=0)
        self.up = []
        self.upsamplers: list[Conv | None] = []
        for level in reversed(range(levels)):
            outputs = channels[level]
            sizes = []
            for _ in range(per_level[level] + 1):
                sizes.append((inputs + skips.pop(), outputs))
                inputs = outputs
            attends = config["up_block_types"][levels - 1 - level].startswith("CrossAttn")
            self.up.append(stage(sizes, heads=heads[level], layers=layers[level] if attends else 0))
            self.upsamplers.append(square_conv(build, outputs, outputs, 3, bias=True) if level else None)
        self.norm_out = GroupNorm(build, config["norm_num_groups"], channels[0])
        self.conv_out = square_conv(build, channels[0], config["out_channels"], 3, bias=True)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        side, dtype = shape.image_size // LATENT_SCALE, self.build.dtype
        latents = tape.batch_input((self.config["in_channels"], side, side), dtype)
        tape.batch_input((1,), Dtype.INT64)
        context = tape.batch_input((TEXT_TOKENS, self.config["cross_attention_dim"]), dtype)
        target = tape.batch_input((self.config["out_channels"], side, side), dtype)
        with tape.within("embeddings"):
            time = self._time(tape)
            x = self.conv_in(latents)
        with tape.within("stages"):
            x = self._levels(x, time, context)
        with tape.within("head"):
            x = self.norm_out(x)
            x = ops.pointwise(x)
            x = self.conv_out(x)
        with tape.within("logits"):
            return mean_squared_error(x, target)

    def _time(self, tape: Tape) -> Tensor:
        dtype = self.build.dtype
        time = self.time(tape.empty((self.config["block_out_channels"][0],), dtype, batched=True))
        if self.added is None:
            return time
        tape.batch_input((self.added_width,), dtype)
        return ops.add(time, self.added(tape.empty((self.added_width,), dtype, batched=True)))

    def _levels(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        skips = [x]
        for stage, downsampler in zip(self.down, self.downsamplers, strict=True):
            for index in range(len(stage.residuals)):
                x = stage.step(index, x, time, context)
                skips.append(x)
            if downsampler is not None:
                x = downsampler(x)
                skips.append(x)
        x = self.middle.step(0, x, time, context)
        x = self.middle_end.step(0, x, time, context)
        for stage, upsampler in zip(self.up, self.upsamplers, strict=True):
            count = len(stage.residuals)
            held, skips = skips[-count:], skips[:-count]
            for index in range(count):
                x = join_channels([x, held[-1 - index]])
                x = stage.step(index, x, time, context)
            if upsampler is not None:
                x = upsampler(ops.interpolate(x, (x.shape[0], x.shape[1] * 2, x.shape[2] * 2)))
        del held
        return x


class DiTBlock:
    """BasicTransformerBlock with ada_norm_zero: attention and MLP, shifted, scaled and gated by time step and class."""

    def __init__(self, build: Build, width: int, heads: int, classes: int, *, bias: bool) -> None:
        self.width = width
        self.time = TimeEmbedding(build, TIME_CHANNELS, width)
        self.classes = Embedding(build, "class_embedder", classes + 1, width)
        self.modulation = build.linear("norm1.linear", width, 6 * width)
        self.attention = Attention(build, width, heads, width, bias=bias)
        self.norm = LayerNorm(build, "norm", width, weight=False)
        self.up = build.linear("ff.net.0.proj", width, 4 * width)
        self.down = build.linear("ff.net.2", 4 * width, width)

    def condition(self, tape: Tape, dtype: Dtype) -> Tensor:
        """The embedded time step and class."""
        time = self.time(tape.empty((TIME_CHANNELS,), dtype, batched=True))
        return ops.add(time, self.classes(tape, 1).view(self.width))

    def __call__(self, x: Tensor, *, dtype: Dtype) -> Tensor:
        tape, width = x.tape, self.width
        parts = ops.split(self.modulation(ops.pointwise(self.condition(tape, dtype))), [(width,)] * 6)
        with tape.within("attention"):
            normal = modulated(self.norm(x), parts[1], parts[0])
            attended = self.attention(normal)
            attended = ops.mul(parts[2], attended)
            x = ops.add(attended, x)
        with tape.within("mlp"):
            normal = self.norm(x)
            normal = modulated(normal, parts[4], parts[3])
            fed = self._feed_forward(normal)
            fed = ops.mul(parts[5], fed)
            x = ops.add(fed, x)
            del normal, attended, fed
            return x

    def _feed_forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        inner = ops.pointwise(inner)
        return self.down(inner)


def modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """``x * (1 + scale) + shift``."""
    return ops.add(ops.mul(x, ops.shift(scale)), shift)


class DiT:
    """DiTTransformer2DModel."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        self.build = build
        heads, patch = config["num_attention_heads"], config["patch_size"]
        width = heads * config["attention_head_dim"]
        self.width = width
        self.channels = config["in_channels"]
        self.outputs = config["out_channels"] or self.channels
        self.projection = Conv(build, "pos_embed.proj", self.channels, width, (patch, patch), stride=patch)
        rows = (config["sample_size"] // patch) ** 2
        build.buffer(rows * width * build.dtype.itemsize)
        classes, bias = config["num_embeds_ada_norm"], config["attention_bias"]
        blocks: list[DiTBlock] = []

        def make(_: int) -> DiTBlock:
            blocks.append(DiTBlock(build, width, heads, classes, bias=bias))
            return blocks[-1]

        self.blocks = Blocks(build, ["block"] * config["num_layers"], make)
        self.first = blocks[0]
        self.norm = LayerNorm(build, "norm_out", width, weight=False)
        self.modulation = build.linear("proj_out_1", width, 2 * width)
        self.head = build.linear("proj_out_2", width, patch * patch * self.outputs)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        side, dtype = shape.image_size // LATENT_SCALE, self.build.dtype
        latents = tape.batch_input((self.channels, side, side), dtype)
        tape.batch_input((2,), Dtype.INT64)
        target = tape.batch_input((self.channels, side, side), dtype)
        with tape.within("embeddings"):
            x = self.projection(latents)
            x = x.view(x.numel // self.width, self.width)
            positions = tape.empty(x.shape, Dtype.FP32, batched=False).data
            x = ops.cast(ops.add(x, positions), x.dtype)
            del positions
        x = self.blocks(tape, x, dtype=dtype)
        with tape.within("head"):
            condition = ops.pointwise(self.first.condition(tape, dtype))
            shift, scale = ops.split(self.modulation(condition), [(self.width,)] * 2)
            x = modulated(self.norm(x), scale, shift)
            x = self.head(x)
            x = ops.copy(ops.transposed(x)).view(self.outputs, side, side)
        with tape.within("logits"):
            return mean_squared_error(ops.narrow(x, target.shape), target)
