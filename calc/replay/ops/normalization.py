"""Normalizations, each with what its fused kernel keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay.ops.elementwise import cast
from calc.replay.tape import Dtype, Parameter, Tape, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def layer_norm(x: Tensor, weight: Parameter | Tensor | None, bias: Parameter | Tensor | None, groups: int) -> Tensor:
    """``nn.LayerNorm`` or ``nn.GroupNorm``: keeps input, mean and reciprocal deviation; fp32 under autocast."""
    tape = x.tape
    if tape.autocast is not None:
        x = cast(x, Dtype.FP32)
    operands = [p if isinstance(p, Tensor) else tape.parameter(p) for p in (weight, bias) if p is not None]
    if x.requires_grad or any(o.requires_grad for o in operands):
        tape.saves()
    out = tape.like(x)
    mean = tape.empty((groups,), Dtype.FP32, batched=x.batched)
    deviation = tape.empty((groups,), Dtype.FP32, batched=x.batched)
    tape.kernel([x], [out])
    kept = x.data

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(kept)
        of_parameters = [tape.empty(o.shape, o.dtype, batched=False) if o.requires_grad else None for o in operands]
        tape.kernel([grad, kept, mean, deviation], [result])
        if any(o.requires_grad for o in operands):
            tape.kernel([grad, kept], [p for p in of_parameters if p is not None], same_call=True)
        return [result, *of_parameters]

    return tape.record(out, [x, *operands], backward)


def rms_norm_fused(x: Tensor, weight: Parameter | None, groups: int) -> Tensor:
    """``nn.RMSNorm`` (torch's own kernel): keeps input and reciprocal root mean square."""
    tape = x.tape
    if tape.autocast is not None:
        x = cast(x, Dtype.FP32)
    operands = [tape.parameter(weight)] if weight is not None else []
    tape.saves()
    out = tape.like(x)
    root = tape.empty((groups,), Dtype.FP32, batched=x.batched)
    tape.kernel([x], [out])
    kept = x.data

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(kept)
        tape.kernel([grad, kept, root], [result])
        return [result, *(tape.empty(o.shape, o.dtype, batched=False) if o.requires_grad else None for o in operands)]

    return tape.record(out, [x, *operands], backward)


def weight_norm(tape: Tape, direction: Parameter, length: Parameter) -> Tensor:
    """``torch._weight_norm``: a weight of a direction and a length (fused kernel): keeps both and the norms."""
    v, g = tape.parameter(direction), tape.parameter(length)
    if v.requires_grad or g.requires_grad:
        tape.saves()
    out = tape.empty(direction.shape, direction.dtype, batched=False)
    norms = tape.empty(length.shape, Dtype.FP32, batched=False)
    tape.kernel([v], [out])

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        gradients = [tape.like(v), tape.like(g)]
        tape.kernel([grad, v, norms], gradients)
        return [*gradients]

    return tape.record(out, [v, g], backward)


def batch_norm(x: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """``nn.BatchNorm2d`` in training: keeps input, batch mean and reciprocal deviation; 16-bit inputs stay 16-bit.

    Three kernels forward (the count of batches, the statistics, the result) and two backward. cuDNN takes no bf16 here;
    torch's own sums run one block of 512 threads a channel on NCHW tensors, one element a thread, and backward stays in
    these blocks throughout (aten/src/ATen/native/Normalization.cpp; cuda/Normalization.cuh,
    batch_norm_collect_statistics_kernel, batch_norm_backward_kernel).
    """
    tape = x.tape
    operands = [tape.parameter(weight), tape.parameter(bias)]
    channels = weight.shape[0]
    tape.saves()
    out = tape.like(x)
    statistics = [tape.empty((channels,), Dtype.FP32, batched=False) for _ in range(2)]
    tape.kernel([], [])
    threads = channels * 512 if x.dtype is Dtype.BF16 else 0
    tape.kernel([x], statistics, threads=threads)
    tape.kernel([x], [out], same_call=True)
    kept = (x.data, statistics)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(kept[0])
        tape.kernel([grad, kept[0]], [], threads=threads)
        tape.kernel([grad, kept[0]], [result], threads=threads, same_call=True)
        return [result, *(tape.empty(o.shape, o.dtype, batched=False) if o.requires_grad else None for o in operands)]

    return tape.record(out, [x, *operands], backward)
