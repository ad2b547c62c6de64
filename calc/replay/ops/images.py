"""Convolutions and what resizes an image."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

from calc.replay.ops.elementwise import cast, record_resized
from calc.replay.tape import Dtype, Parameter, Tensor, something_of
from calc.replay.workspaces import (
    ConvolutionSizes,
    convolution_forward,
    convolution_of_input,
    convolution_of_weight,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def convolution(
    x: Tensor,
    weight: Parameter | Tensor,
    bias: Parameter | None,
    out_shape: tuple[int, ...],
    *,
    groups: int = 1,
    patches: bool = False,
) -> Tensor:
    """``nn.Conv1d/2d/3d``: keeps input and weight, whichever of them trains.

    ``x`` is (channels, *positions), ``out_shape`` likewise. cuDNN's tensor-core kernels take NHWC: each NCHW operand is
    also read and written once for its conversion (nchwToNhwcKernel in any profile). Depthwise ones are torch's own, on
    the vector units (aten/src/ATen/native/cuda/DepthwiseConv2d.cu). ``patches``: the result is taken as tokens, so its
    gradient is NHWC already and nothing is copied for it. Where a workspace cannot be allocated, torch takes cuDNN's
    next engine (aten/src/ATen/native/cudnn/Conv_v8.cpp, try_configs).
    """
    something_of(out_shape)
    tape = x.tape
    low = tape.autocast.dtype if tape.autocast is not None else x.dtype
    w = cast(weight, low) if isinstance(weight, Tensor) else tape.cast_parameter(weight, low)
    x = cast(x, low)
    b = tape.cast_parameter(bias, low) if bias is not None else None
    input_trains, weight_trains = x.requires_grad, w.requires_grad
    kept_x, kept_w = x.data, w.data
    if input_trains or weight_trains:
        tape.saves()
    out = tape.empty(out_shape, low, batched=x.batched)
    rows = prod(out_shape[1:])
    columns = out_shape[0] // groups
    inner = w.numel // out_shape[0]
    depthwise = groups == out_shape[0] == x.shape[0]
    moved = (x.nbytes + out.nbytes) * (1 if depthwise else 3)
    log = partial(tape.product, batched=x.batched, itemsize=low.itemsize, operand_bytes=moved, vector=depthwise)
    log(rows * groups, columns, inner)
    sizes = ConvolutionSizes.of(x.shape, out_shape, w.shape[2:], groups, low.itemsize)
    tape.workspace(*convolution_forward(sizes), optional=True)
    bias_trains = b is not None and b.requires_grad

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        of_x = of_w = of_b = None
        if input_trains:
            of_x = tape.like(kept_x)
            log(rows * groups, inner, columns)
            if not patches:
                tape.workspace(*convolution_of_input(sizes), optional=True)
        if weight_trains:
            of_w = tape.like(kept_w)
            if not patches:
                tape.workspace(*convolution_of_weight(sizes), optional=True)
            log(rows * groups, columns, inner, contracts_rows=True, same_call=input_trains)
        if bias_trains:
            of_b = tape.empty((out_shape[0],), low, batched=False)
            tape.kernel([grad], [of_b], same_call=True)
        return [of_x, of_w, of_b][: 2 if b_absent else 3]

    b_absent = b is None
    return tape.record(out, [x, w] if b is None else [x, w, b], backward)


def pooled(
    shape: tuple[int, ...], kernel: int, *, stride: int, padding: int = 0, ceil_mode: bool = False
) -> tuple[int, ...]:
    """Shape (channels, *positions) after square pooling; ``ceil_mode`` keeps a last window that starts inside."""
    positions = []
    for size in shape[1:]:
        reach = size + 2 * padding - kernel
        count = -(-reach // stride) + 1 if ceil_mode else reach // stride + 1
        if ceil_mode and (count - 1) * stride >= size + padding:
            count -= 1
        positions.append(count)
    return (shape[0], *positions)


def max_pool(x: Tensor, out_shape: tuple[int, ...]) -> Tensor:
    """``nn.MaxPool2d``: keeps input and the indices of the maxima (8 bytes an output)."""
    something_of(out_shape)
    tape = x.tape
    if x.requires_grad:
        tape.saves()
    out = tape.empty(out_shape, x.dtype, batched=x.batched)
    indices = tape.empty(out_shape, Dtype.INT64, batched=x.batched)
    tape.kernel([x], [out, indices])
    kept = (x.data, indices)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(kept[0])
        tape.kernel([grad, kept[1]], [result])
        return [result]

    return tape.record(out, [x], backward)


def interpolate(x: Tensor, out_shape: tuple[int, ...]) -> Tensor:
    """``F.interpolate``: in fp32 under autocast."""
    return refit(cast(x, Dtype.FP32) if x.tape.autocast is not None else x, out_shape)


def refit(x: Tensor, out_shape: tuple[int, ...]) -> Tensor:
    """Resampling, padding, look-up by constant indices: keeps nothing; the gradient is of the input's size."""
    tape = x.tape
    out = tape.empty(out_shape, x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    return record_resized(out, x)


def average_pool(x: Tensor, out_shape: tuple[int, ...], *, keeps_input: bool = True) -> Tensor:
    """``nn.AvgPool2d`` and adaptive average pooling: autograd keeps the input (a mean over all positions does not)."""
    something_of(out_shape)
    tape = x.tape
    if keeps_input and x.requires_grad:
        tape.saves()
    out = tape.empty(out_shape, x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    return record_resized(out, x, *([x.data] if keeps_input else []))
