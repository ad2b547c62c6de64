"""Operations that add up or compare along a dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay.ops.elementwise import cast, record_resized
from calc.replay.tape import Dtype, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def vector_norm(x: Tensor, groups: int) -> Tensor:
    """``linalg.vector_norm``, one value for each of ``groups``: keeps input and result; fp32 under autocast."""
    tape = x.tape
    dtype = x.dtype if tape.autocast is None else Dtype.FP32
    if x.requires_grad:
        tape.saves()
    out = tape.empty((groups,), dtype, batched=x.batched)
    tape.kernel([x], [out])
    kept = (x.data, out.data)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        ratio = tape.like(kept[0], dtype)
        tape.kernel([kept[0], kept[1]], [ratio])
        result = tape.like(ratio)
        tape.kernel([ratio, grad], [result])
        return [result]

    return tape.record(out, [x], backward)


def mean_last(x: Tensor, groups: int) -> Tensor:
    """``x.mean(-1, keepdim=True)``: keeps nothing; backward makes the broadcast gradient whole."""
    tape = x.tape
    out = tape.empty((groups,), x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    return record_resized(out, x)


def reduce_sum(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x.sum(dims)``: keeps nothing; its gradient is an expanded view, made whole only where it must be."""
    tape = x.tape
    out = tape.empty(shape, x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    return tape.record(out, [x], lambda grad: [grad])


def softmax(x: Tensor, dtype: Dtype | None = None, *, safe: bool = False) -> Tensor:
    """``softmax``: keeps its output; fp32 under autocast, or in ``dtype``.

    ``safe`` is _safe_softmax: rows that are masked whole become zeros in a second tensor, which is kept. Only fp16
    has a kernel that reads it and writes fp32; bfloat16 is cast first (ATen/native/SoftMax.cpp, softmax).
    """
    tape = x.tape
    given = x
    wanted = dtype or (Dtype.FP32 if tape.autocast is not None else x.dtype)
    if x.dtype is not Dtype.FP16:
        x = cast(x, wanted)
    source = x.dtype
    out = tape.like(x, wanted)
    tape.kernel([x], [out])
    if safe:
        unsafe, masked = out, tape.like(x, Dtype.BOOL)
        tape.kernel([x], [masked])
        out = tape.like(x, wanted)
        tape.kernel([unsafe], [out])
        del unsafe, masked
    del given
    if x.requires_grad:
        tape.saves()
    kept = out.data

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(grad, source)
        # The product of gradient and output, a tensor of its own (aten/src/ATen/native/cuda/SoftMax.cu).
        tape.workspace(*((kept.nbytes, 0) if kept.batched else (0, kept.nbytes)))
        tape.kernel([grad, kept], [result])
        return [result]

    return tape.record(out, [x], backward)
