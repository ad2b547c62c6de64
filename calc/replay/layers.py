"""Modules with parameters, and the builder that gives them dtype, adapters and copies."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from calc.replay import ops
from calc.replay.tape import Dtype, Parameter, Tape, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

NF4_BLOCK = 64
"""Weights that share one scale in NF4 (Dettmers et al. 2023, arXiv:2305.14314, section 3)."""
DOUBLE_QUANTIZATION_BLOCK = 256
"""Scales that share one second-level scale (same)."""


def nf4_bytes(elements: int) -> int:
    """Bytes of a weight in NF4 with double quantization.

    4 bits a weight, an 8-bit scale per 64 weights, an fp32 scale per 256 of those.
    """
    scales = -(-elements // NF4_BLOCK)
    return -(-elements // 2) + scales + 4 * -(-scales // DOUBLE_QUANTIZATION_BLOCK)


@dataclass
class Build:
    """Creates a model's parameters under one recipe.

    ``dtype`` is the parameters' type, ``full`` whether the base trains, ``quantized`` whether its linear weights are
    NF4. ``lora_rank`` 0 means no adapters; ``lora_targets`` is ``all-linear``, ``attention`` or module names.
    ``adapter_dtype``: peft keeps adapters of a 16-bit base in fp32 (autocast_adapter_dtype).
    """

    dtype: Dtype
    full: bool = True
    quantized: bool = False
    lora_rank: int = 0
    lora_targets: str | tuple[str, ...] = "all-linear"
    adapter_dtype: Dtype = Dtype.FP32
    checkpointing: str = "none"
    attention: str = "sdpa"
    fused_loss: bool = False
    classifies: bool = False
    """Whether what has another task too ends in labels: of the whole sequence (BERT), of the image (CLIP)."""
    parameters: list[Parameter] = field(default_factory=list)
    buffer_bytes: int = 0
    copies: int = 1
    blocks_made: int = 0
    units: list[tuple[int, int]] = field(default_factory=list)
    adapters_allowed: bool = True

    def parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        dtype: Dtype | None = None,
        trainable: bool | None = None,
        stored_bytes: int | None = None,
    ) -> Parameter:
        """A new weight of ``shape``; copies follow the block being built."""
        kind = dtype or self.dtype
        made = Parameter(
            name,
            shape,
            kind,
            self.full if trainable is None else trainable,
            self.copies,
            prod(shape) * kind.itemsize if stored_bytes is None else stored_bytes,
        )
        self.parameters.append(made)
        return made

    def buffer(self, nbytes: int) -> None:
        """A registered buffer: memory, not a parameter."""
        self.buffer_bytes += (nbytes + 511) // 512 * 512 * self.copies

    def linear(
        self,
        name: str,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        attention: bool = False,
        tied: Parameter | None = None,
        by_name_only: bool = False,
        cached: bool = True,
    ) -> Linear:
        """A linear layer, with an adapter where the recipe asks for one; ``tied`` is the weight it shares.

        ``by_name_only``: ``all-linear`` does not reach it. ``cached``: see `calc.replay.ops.linear`.
        """
        targets = self.lora_targets
        adapted = (
            self.lora_rank > 0
            and self.adapters_allowed
            and (
                (targets == "all-linear" and not by_name_only)
                or (targets == "attention" and attention)
                or (isinstance(targets, tuple) and name in targets)
            )
        )
        if adapted:
            return LoraLinear(self, name, inputs, outputs, bias=bias, tied=tied, cached=cached)
        return Linear(self, name, inputs, outputs, bias=bias, tied=tied, cached=cached)

    @contextmanager
    def standing_for(self, copies: int) -> Iterator[None]:
        """What is built inside stands for ``copies`` blocks."""
        outer, self.copies = self.copies, self.copies * copies
        yield
        self.copies = outer

    @contextmanager
    def without_adapters(self) -> Iterator[None]:
        """The output head, which ``all-linear`` leaves alone."""
        outer, self.adapters_allowed = self.adapters_allowed, False
        yield
        self.adapters_allowed = outer


class Linear:
    """``nn.Linear`` (or GPT-2's Conv1D)."""

    def __init__(
        self,
        build: Build,
        name: str,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        tied: Parameter | None = None,
        cached: bool = True,
    ) -> None:
        self.name = name
        self.cached = cached
        self.quantized = build.quantized and build.adapters_allowed and tied is None
        stored = nf4_bytes(inputs * outputs) if self.quantized else None
        self.weight = tied or build.parameter(f"{name}.weight", (outputs, inputs), stored_bytes=stored)
        if not build.adapters_allowed:
            self.weight.embedding = True
        self.bias = build.parameter(f"{name}.bias", (outputs,)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.quantized:
            return ops.quantized_linear(x, self.weight, self.bias)
        return ops.linear(x, self.weight, self.bias, cached=self.cached)


class LoraLinear(Linear):
    """A frozen linear layer with a trained low-rank addition (peft/tuners/lora/layer.py, Linear.forward)."""

    def __init__(
        self,
        build: Build,
        name: str,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        tied: Parameter | None = None,
        cached: bool = True,
    ) -> None:
        super().__init__(build, name, inputs, outputs, bias=bias, tied=tied, cached=cached)
        rank = build.lora_rank
        self.down = build.parameter(f"{name}.lora_A", (rank, inputs), dtype=build.adapter_dtype, trainable=True)
        self.up = build.parameter(f"{name}.lora_B", (outputs, rank), dtype=build.adapter_dtype, trainable=True)

    def __call__(self, x: Tensor) -> Tensor:
        result = super().__call__(x)
        dtype = result.dtype
        x = ops.cast(x, self.down.dtype)
        result = ops.add(result, ops.scale(ops.linear(ops.linear(x, self.down), self.up)))
        return ops.cast(result, dtype)


class Embedding:
    """``nn.Embedding``. ``of_tokens`` marks the model's input table.

    Its output gets a gradient under checkpointing even where the table is frozen: peft needs one for blocks to be
    recomputed (PreTrainedModel.enable_input_require_grads).
    """

    def __init__(
        self, build: Build, name: str, rows: int, width: int, *, of_tokens: bool = True, trainable: bool | None = None
    ) -> None:
        self.weight = build.parameter(f"{name}.weight", (rows, width), trainable=trainable)
        self.weight.embedding = True
        self.wants_gradient = of_tokens and not build.full and build.checkpointing != "none"

    def __call__(self, tape: Tape, tokens: int, *, batched: bool = True) -> Tensor:
        out = ops.embedding(tape, tokens, self.weight, batched=batched)
        return tape.leaf(out) if self.wants_gradient else out


class LayerNorm:
    """``nn.LayerNorm``."""

    def __init__(self, build: Build, name: str, width: int, *, weight: bool = True, bias: bool = True) -> None:
        self.width = width
        self.weight = build.parameter(f"{name}.weight", (width,)) if weight else None
        self.bias = build.parameter(f"{name}.bias", (width,)) if weight and bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, x.numel // self.width)


class RMSNorm:
    """Hugging Face's composed RMSNorm: to fp32, square, mean, reciprocal root, two products.

    ``order`` "cast-then-scale" is Llama's (weight times the value cast back); "scale-then-cast" is OLMo 2's (product
    in fp32, then the cast); "plus-one-scale-then-cast" is Gemma's (one plus the weight in fp32).
    """

    def __init__(
        self, build: Build, name: str, width: int, *, order: str = "cast-then-scale", weight: bool = True
    ) -> None:
        self.width = width
        self.order = order
        self.weight = build.parameter(f"{name}.weight", (width,)) if weight else None

    def __call__(self, x: Tensor) -> Tensor:
        tape = x.tape
        dtype = x.dtype
        x = ops.cast(x, Dtype.FP32)
        groups = x.numel // self.width
        mean = ops.mean_last(ops.power(x), groups)
        mean = ops.shift(mean)
        x = ops.mul(x, ops.pointwise(mean, keeps="output", temporaries=2))
        if self.weight is None:
            return ops.cast(x, dtype)
        scale = tape.parameter(self.weight)
        if self.order == "cast-then-scale":
            return ops.mul(scale, ops.cast(x, dtype))
        if self.order == "plus-one-scale-then-cast":
            scale = ops.shift(ops.cast(scale, Dtype.FP32))
        return ops.cast(ops.mul(scale, x), dtype)


class Conv:
    """``nn.Conv1d/2d``: shapes are (channels, *positions)."""

    def __init__(
        self,
        build: Build,
        name: str,
        inputs: int,
        outputs: int,
        kernel: Sequence[int],
        *,
        stride: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        n = len(kernel)
        self.kernel = tuple(kernel)
        self.stride = (stride,) * n if isinstance(stride, int) else tuple(stride)
        self.padding = (padding,) * n if isinstance(padding, int) else tuple(padding)
        self.dilation = dilation
        self.groups = groups
        self.outputs = outputs
        self.weight = build.parameter(f"{name}.weight", (outputs, inputs // groups, *kernel))
        self.bias = build.parameter(f"{name}.bias", (outputs,)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        positions = tuple(
            (size + 2 * pad - self.dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, kernel, stride in zip(x.shape[1:], self.padding, self.kernel, self.stride, strict=True)
        )
        shape = self.outputs, *positions
        patches = self.kernel == self.stride != (1,) * len(self.kernel)
        return ops.convolution(x, self.weight, self.bias, shape, groups=self.groups, patches=patches)


class BatchNorm:
    """``nn.BatchNorm2d``: two parameters and two running statistics a channel."""

    def __init__(self, build: Build, name: str, channels: int) -> None:
        self.weight = build.parameter(f"{name}.weight", (channels,))
        self.bias = build.parameter(f"{name}.bias", (channels,))
        for _ in range(2):
            build.buffer(channels * build.dtype.itemsize)
        build.buffer(8)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.batch_norm(x, self.weight, self.bias)


@dataclass(frozen=True)
class _Planned:
    layer: int
    block: int
    repeats: int


def _period(kinds: Sequence[Hashable]) -> int:
    """The shortest pattern that the kinds repeat, or their number."""
    n = len(kinds)
    return next((p for p in range(1, n) if all(kinds[i] == kinds[i + p] for i in range(n - p))), n)


def _plan(kinds: Sequence[Hashable], offset: int, first_block: int) -> list[_Planned]:
    """Which layers to replay, and how many of the model's each stands for.

    A pattern that fits four times or more is replayed in its first, one middle and its last turn; else runs of one
    kind are.
    """
    n = len(kinds)
    p = _period(kinds)
    turns = n // p
    if turns >= 4:
        units = [(0, 1), (1, turns - 2), (turns - 1, 1)]
        planned = [
            _Planned(offset + unit * p + i, first_block + number, repeats)
            for number, (unit, repeats) in enumerate(units)
            for i in range(p)
        ]
        return planned + [_Planned(offset + i, first_block + 3 + i - turns * p, 1) for i in range(turns * p, n)]
    planned = []
    start = 0
    while start < n:
        end = start
        while end < n and kinds[end] == kinds[start]:
            end += 1
        block = first_block + len(planned)
        if end - start == n or end - start < 4:
            planned += [_Planned(offset + start + i, block + i, 1) for i in range(end - start)]
        else:
            planned += _plan(kinds[start:end], offset + start, block)
        start = end
    return planned


class Blocks:
    """A model's repeated layers. ``kinds`` tells which layers are alike; ``make(layer index)`` builds one."""

    def __init__(self, build: Build, kinds: Sequence[Hashable], make: Callable[[int], Callable[..., Any]]) -> None:
        self.checkpointing = build.checkpointing
        self._planned = _plan(kinds, 0, build.blocks_made)
        build.blocks_made += len(self._planned)
        self._layers = []
        for planned in self._planned:
            before = len(build.parameters)
            with build.standing_for(planned.repeats):
                self._layers.append(make(planned.layer))
            build.units.append((sum(p.numel for p in build.parameters[before:]), planned.repeats * build.copies))

    def __call__(
        self,
        tape: Tape,
        x: Tensor,
        *,
        outputs: list[Tensor] | None = None,
        own: Callable[[int], dict[str, Any]] | None = None,
        **shared: object,
    ) -> Tensor:
        """Runs the layers in order, each under activation checkpointing where the recipe says so.

        ``shared`` goes to every layer by name: tables, masks, an encoder's output. ``own`` gives what the layer of an
        index gets instead: activation checkpointing holds that until the layer's backward. ``outputs`` takes every
        layer's output, for models that hold them all.
        """
        for planned, layer in zip(self._planned, self._layers, strict=True):
            with tape.block(planned.block, planned.repeats):
                given = own(planned.layer) if own is not None else shared
                call = partial(layer, **given) if given else layer
                if self.checkpointing == "none":
                    x = call(x)
                else:
                    x = tape.checkpoint(call, x, selective=self.checkpointing == "selective")
            if outputs is not None:
                outputs.append(x)
        return x

    def streams(self, tape: Tape, x: Tensor, other: Tensor, **shared: object) -> list[Tensor]:
        """Runs layers that pass on two tensors."""
        for planned, layer in zip(self._planned, self._layers, strict=True):
            with tape.block(planned.block, planned.repeats):
                call = partial(layer, **shared)
                if self.checkpointing == "none":
                    x, other = call(x, other)
                else:
                    x, other = tape.checkpoint_many(call, x, other, selective=self.checkpointing == "selective")
        return [x, other]
