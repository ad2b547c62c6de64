"""FLUX.1's denoiser: blocks that attend over text and image together, first with weights for each, then with one set.

diffusers/models/transformers/transformer_flux.py, normalization.py and embeddings.py. Latents come packed in tokens of
2 x 2, text features and the time step ready made; the loss is `calc.architectures.diffusion.mean_squared_error`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.architectures.attention import attend
from calc.architectures.diffusion import LATENT_SCALE, TIME_CHANNELS, TimeEmbedding, mean_squared_error, modulated
from calc.replay import ops
from calc.replay.layers import Blocks, LayerNorm
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor

TEXT_TOKENS = 512
"""Features of T5 for a sample: the pipeline's max_sequence_length."""
PACKED_SIDE = 2
"""Latents on a side of a token (pipelines/flux/pipeline_flux.py, _pack_latents)."""
POSITION_AXES = 3


class HeadNorm:
    """``nn.RMSNorm`` over each head: composed, and fp32, where its weight has another type than its input.

    aten/src/ATen/native/layer_norm.cpp, rms_norm.
    """

    def __init__(self, build: Build, name: str, width: int) -> None:
        self.width = width
        self.weight = build.parameter(f"{name}.weight", (width,))

    def __call__(self, x: Tensor) -> Tensor:
        groups = x.numel // self.width
        if x.dtype is self.weight.dtype:
            return ops.rms_norm_fused(x, self.weight, groups)
        wide = ops.cast(x, Dtype.FP32)
        mean = ops.mean_last(ops.power(wide), groups)
        normal = ops.mul(wide, ops.pointwise(mean, keeps="output", temporaries=2))
        del wide, mean
        return ops.mul(normal, x.tape.parameter(self.weight))


def rotary_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours turned as pairs, in fp32 (embeddings.py, apply_rotary_emb)."""
    real, imaginary = ops.split(x, [(x.numel // 2,)] * 2)
    turned = ops.cat([ops.scale(imaginary), real]).view(*x.shape)
    direct = ops.mul(ops.cast(x, Dtype.FP32), cos)
    return ops.cast(ops.add(direct, ops.mul(ops.cast(turned, Dtype.FP32), sin)), x.dtype)


class JointAttention:
    """Attention over text and image; the text's own projections where ``added``."""

    def __init__(self, build: Build, heads: int, head_width: int, *, added: bool) -> None:
        width = heads * head_width
        self.kind = build.attention
        self.heads, self.head_width = heads, head_width
        self.norm_q = HeadNorm(build, "norm_q", head_width)
        self.norm_k = HeadNorm(build, "norm_k", head_width)
        self.projections = [
            build.linear(name, width, width, attention=True)
            for name in ("to_q", "to_k", "to_v", *(("add_q_proj", "add_k_proj", "add_v_proj") if added else ()))
        ]
        self.added = added
        if added:
            self.norm_added_q = HeadNorm(build, "norm_added_q", head_width)
            self.norm_added_k = HeadNorm(build, "norm_added_k", head_width)
            self.to_out = build.linear("to_out.0", width, width, attention=True)
            self.to_add_out = build.linear("to_add_out", width, width, attention=True)

    def joint(self, text: Tensor, image: Tensor, tables: tuple[Tensor, Tensor]) -> list[Tensor]:
        """Both streams' results: text, image."""
        q, k, v = (project(image) for project in self.projections[:3])
        text_q, text_k, text_v = (project(text) for project in self.projections[3:])
        q, k = self.norm_q(q), self.norm_k(k)
        text_q, text_k = self.norm_added_q(text_q), self.norm_added_k(text_k)
        q = ops.cat([text_q, q], axis_last=False)
        k = ops.cat([text_k, k], axis_last=False)
        v = ops.cat([text_v, v], axis_last=False)
        out = self._attended(q, k, v, tables)
        of_text, of_image = ops.split(out, [text.shape, image.shape])
        del out
        of_image = self.to_out(ops.copy(of_image))
        of_text = self.to_add_out(ops.copy(of_text))
        return [of_text, of_image]

    def __call__(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (project(x) for project in self.projections)
        q, k = self.norm_q(q), self.norm_k(k)
        return self._attended(q, k, v, tables)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        q, k = rotary_pairs(q, *tables), rotary_pairs(k, *tables)
        tokens = q.numel // (self.heads * self.head_width)
        heads = Heads(self.heads, self.heads, self.head_width, self.head_width, tokens, tokens, causal=False)
        out = attend("eager" if self.kind == "eager" else "sdpa", q, k, v, heads)
        return ops.cast(out, q.dtype)


class Modulation:
    """AdaLayerNormZero: a norm scaled and shifted by the time step, and what gates and modulates the rest."""

    def __init__(self, build: Build, width: int, parts: int) -> None:
        self.width, self.parts = width, parts
        self.linear = build.linear("norm.linear", width, parts * width)
        self.norm = LayerNorm(build, "norm", width, weight=False)

    def __call__(self, x: Tensor, time: Tensor) -> list[Tensor]:
        """The normalized input, then all parts but the first two."""
        shift, scale, *rest = ops.split(self.linear(ops.pointwise(time)), [(self.width,)] * self.parts)
        return [modulated(self.norm(x), scale, shift), *rest]


class FeedForward:
    """Linear, GELU, linear."""

    def __init__(self, build: Build, width: int) -> None:
        self.up = build.linear("net.0.proj", width, 4 * width)
        self.down = build.linear("net.2", 4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = ops.pointwise(x)
        return self.down(x)


class DoubleBlock:
    """FluxTransformerBlock: text and image with weights of their own, one attention over both."""

    def __init__(self, build: Build, heads: int, head_width: int) -> None:
        width = heads * head_width
        self.norm_1 = Modulation(build, width, 6)
        self.norm_1_text = Modulation(build, width, 6)
        self.attention = JointAttention(build, heads, head_width, added=True)
        self.norm_2 = LayerNorm(build, "norm2", width, weight=False)
        self.feed_forward = FeedForward(build, width)
        self.norm_2_text = LayerNorm(build, "norm2_context", width, weight=False)
        self.feed_forward_text = FeedForward(build, width)

    def __call__(self, text: Tensor, image: Tensor, *, time: Tensor, tables: tuple[Tensor, Tensor]) -> list[Tensor]:
        with image.tape.within("attention"):
            normal, gate, mlp_shift, mlp_scale, mlp_gate = self.norm_1(image, time)
            text_normal, text_gate, text_shift, text_scale, text_mlp_gate = self.norm_1_text(text, time)
            both = self.attention.joint(text_normal, normal, tables)
            gated = ops.mul(gate, both[1])
            image = ops.add(image, gated)
        with image.tape.within("mlp"):
            normal = self.norm_2(image)
            normal = modulated(normal, mlp_scale, mlp_shift)
            fed = self.feed_forward(normal)
            fed = ops.mul(mlp_gate, fed)
            image = ops.add(image, fed)
        with image.tape.within("attention"):
            text_gated = ops.mul(text_gate, both[0])
            text = ops.add(text, text_gated)
        with image.tape.within("mlp"):
            text_normal = self.norm_2_text(text)
            text_normal = modulated(text_normal, text_scale, text_shift)
            text_fed = self.feed_forward_text(text_normal)
            text = ops.add(text, ops.mul(text_mlp_gate, text_fed))
            del normal, text_normal, gated, text_gated, fed, text_fed, both
            return [text, image]


class SingleBlock:
    """FluxSingleTransformerBlock: attention and MLP side by side on text and image as one sequence."""

    def __init__(self, build: Build, heads: int, head_width: int) -> None:
        width = heads * head_width
        self.norm = Modulation(build, width, 3)
        self.up = build.linear("proj_mlp", width, 4 * width)
        self.out = build.linear("proj_out", 5 * width, width)
        self.attention = JointAttention(build, heads, head_width, added=False)

    def __call__(self, text: Tensor, image: Tensor, *, time: Tensor, tables: tuple[Tensor, Tensor]) -> list[Tensor]:
        text_shape, image_shape = text.shape, image.shape
        x = ops.cat([text, image], axis_last=False)
        del text, image
        residual = x
        normal, gate = self.norm(x, time)
        with x.tape.within("mlp"):
            fed = ops.pointwise(self.up(normal))
        with x.tape.within("attention"):
            attended = self.attention(normal, tables)
            x = ops.cat([attended, fed])
            x = ops.mul(gate, self.out(x))
            x = ops.add(residual, x)
            del attended, fed, normal, residual
        return [ops.narrow(x, text_shape), ops.narrow(x, image_shape)]


class Flux:
    """FluxTransformer2DModel."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        self.build = build
        heads, head_width = config["num_attention_heads"], config["attention_head_dim"]
        width = heads * head_width
        self.width, self.head_width = width, head_width
        self.channels, self.text_width = config["in_channels"], config["joint_attention_dim"]
        self.pooled_width = config["pooled_projection_dim"]
        self.outputs = config["patch_size"] ** 2 * (config["out_channels"] or self.channels)
        self.times = [TimeEmbedding(build, TIME_CHANNELS, width) for _ in range(2 if config["guidance_embeds"] else 1)]
        self.pooled = TimeEmbedding(build, self.pooled_width, width)
        self.text = build.linear("context_embedder", self.text_width, width)
        self.image = build.linear("x_embedder", self.channels, width)
        double, single = config["num_layers"], config["num_single_layers"]
        self.double = Blocks(build, ["double"] * double, lambda _: DoubleBlock(build, heads, head_width))
        self.single = Blocks(build, ["single"] * single, lambda _: SingleBlock(build, heads, head_width))
        self.modulation = build.linear("norm_out.linear", width, 2 * width)
        self.norm = LayerNorm(build, "norm_out", width, weight=False)
        self.head = build.linear("proj_out", width, self.outputs)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        dtype = self.build.dtype
        side = shape.image_size // LATENT_SCALE // PACKED_SIDE
        tokens, text_tokens = side * side, shape.sequence_length or TEXT_TOKENS
        latents = tape.batch_input((tokens, self.channels), dtype)
        features = tape.batch_input((text_tokens, self.text_width), dtype)
        pooled = tape.batch_input((self.pooled_width,), dtype)
        for _ in self.times:
            tape.batch_input((1,), dtype)
        target = tape.batch_input((tokens, self.outputs), dtype)
        positions = tape.empty((tokens + text_tokens, POSITION_AXES), dtype, batched=False)
        with tape.within("embeddings"):
            image = self.image(latents)
            time = self._time(tape, pooled)
            text = self.text(features)
            rows = (tokens + text_tokens, self.head_width)
            tables = (tape.empty(rows, Dtype.FP32, batched=False), tape.empty(rows, Dtype.FP32, batched=False))
        text, image = self.double.streams(tape, text, image, time=time, tables=tables)
        text, image = self.single.streams(tape, text, image, time=time, tables=tables)
        with tape.within("head"):
            scale, shift = ops.split(self.modulation(ops.pointwise(time)), [(self.width,)] * 2)
            image = modulated(self.norm(image), scale, shift)
            prediction = self.head(image)
            del image, text, time, tables, scale, shift
        with tape.within("logits"):
            loss = mean_squared_error(prediction, target)
        del positions
        return loss

    def _time(self, tape: Tape, pooled: Tensor) -> Tensor:
        """The sum of the embedded time step, guidance and pooled text."""
        time, *guidance = (embed(tape.empty((TIME_CHANNELS,), self.build.dtype, batched=True)) for embed in self.times)
        for embedded in guidance:
            time = ops.add(time, embedded)
        return ops.add(time, self.pooled(pooled))
