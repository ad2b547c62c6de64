"""Matrix products: linear layers in every precision, products of two activations, grouped ones of experts."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

from calc.replay.ops.elementwise import cast
from calc.replay.tape import Dtype, Parameter, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def linear(x: Tensor, weight: Parameter, bias: Parameter | None = None, *, cached: bool = True) -> Tensor:
    """``x @ weight (+ bias)``: keeps the input where the weight trains and the weight where the input has a gradient.

    The last dimension of ``x`` is contracted; ``weight`` may be stored either way round. Not ``cached``: autocast keeps
    no copy of a view, such as the transpose that the code itself multiplies with (autocast_mode.cpp, cached_cast).
    """
    tape = x.tape
    if tape.fp8 and x.shape[-1] % FP8_ALIGNMENT == 0 and weight.numel // x.shape[-1] % FP8_ALIGNMENT == 0:
        return fp8_linear(x, weight, bias)
    low = tape.autocast.dtype if tape.autocast is not None else x.dtype
    w = tape.cast_parameter(weight, low) if cached else cast(tape.parameter(weight), low)
    x = cast(x, low)
    b = tape.cast_parameter(bias, low) if bias is not None else None
    return product(x, w, b)


FP8_ALIGNMENT = 16
"""fp8 products need both sides to be multiples of this (Transformer Engine, FP8 primer)."""


def fp8_linear(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """`linear` by Transformer Engine: keeps the input in one byte an element, the weight as it is and transposed.

    The gradient is quantized both ways for the two products of backward; results are 16-bit
    (transformer_engine/pytorch/module/linear.py).
    """
    tape = x.tape
    operands = [x, tape.parameter(weight), *([tape.parameter(bias)] if bias is not None else [])]
    w = operands[1]
    columns = w.numel // x.shape[-1]
    rows, inner = x.numel // x.shape[-1], x.shape[-1]
    tape.saves()
    quantized = tape.like(x, Dtype.UINT8)
    with tape.within("casts"):
        weights = [tape.empty(w.shape, Dtype.UINT8, batched=False) for _ in range(2)]
    tape.kernel([x], [quantized])
    tape.kernel([w], weights)
    out = tape.empty((*x.shape[:-1], columns), x.dtype, batched=x.batched)
    tape.product(rows, columns, inner, batched=x.batched, itemsize=1)
    x_form, w_form = (x.shape, x.dtype, x.batched), (w.shape, w.dtype)
    kept_x = quantized if w.requires_grad else None
    kept_w = weights if x.requires_grad else None
    count = len(operands)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        both_ways = [tape.like(grad, Dtype.UINT8) for _ in range(2)]
        tape.kernel([grad], both_ways)
        of_x = of_w = of_b = None
        if kept_w is not None:
            of_x = tape.empty(x_form[0], x_form[1], batched=x_form[2])
            tape.product(rows, inner, columns, batched=x_form[2], itemsize=1)
        if kept_x is not None:
            of_w = tape.empty(w_form[0], w_form[1], batched=False)
            tape.product(rows, columns, inner, batched=x_form[2], itemsize=1, contracts_rows=True)
        if bias is not None and bias.trainable:
            of_b = tape.empty(bias.shape, bias.dtype, batched=False)
            tape.kernel([grad], [of_b])
        del both_ways
        return [of_x, of_w, of_b][:count]

    return tape.record(out, operands, backward)


def product(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """`linear` of operands that already have the right type."""
    tape = x.tape
    inner = x.shape[-1]
    columns = w.numel // inner
    rows = x.numel // inner
    kept_x = x.data if w.requires_grad else None
    kept_w = w.data if x.requires_grad else None
    if kept_x is not None or kept_w is not None:
        tape.saves()
    out = tape.recall()
    if out is None:
        out = tape.empty((*x.shape[:-1], columns), x.dtype, batched=x.batched)
        tape.product(rows, columns, inner, batched=x.batched, itemsize=x.dtype.itemsize)
        tape.remember(out)
    x_shape, dtype, batched, w_shape = x.shape, x.dtype, x.batched, w.shape
    bias_trains = b is not None and b.requires_grad
    bias_absent = b is None

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        of_x = of_w = of_b = None
        if kept_w is not None:
            of_x = tape.empty(x_shape, dtype, batched=batched)
            of_x.is_view = len(x_shape) > 1
            tape.product(rows, inner, columns, batched=batched, itemsize=dtype.itemsize)
        if kept_x is not None:
            of_w = tape.empty(w_shape, dtype, batched=False)
            of_w.is_view = True
            tape.product(rows, columns, inner, batched=batched, itemsize=dtype.itemsize, contracts_rows=True)
        if bias_trains:
            of_b = tape.empty((columns,), dtype, batched=False)
            tape.kernel([grad], [of_b])
            tape.reduction(grad, columns)
        return [of_x, of_w, of_b][: 2 if bias_absent else 3]

    return tape.record(out, [x, w] if b is None else [x, w, b], backward)


def quantized_linear(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """A frozen NF4 weight: dequantized for the product, forward and backward, and dropped; keeps no input.

    bitsandbytes/autograd/_functions.py, MatMul4Bit.
    """
    tape = x.tape
    low = tape.autocast.dtype if tape.autocast is not None else x.dtype
    x = cast(x, low)
    b = tape.cast_parameter(bias, low) if bias is not None else None
    inner, columns = x.shape[-1], weight.numel // x.shape[-1]
    rows = x.numel // inner
    with tape.within("casts"):
        whole = tape.empty(weight.shape, low, batched=False)
    tape.kernel([], [whole])
    out = tape.empty((*x.shape[:-1], columns), low, batched=x.batched)
    tape.product(rows, columns, inner, batched=x.batched, itemsize=low.itemsize)
    del whole
    shape, batched, input_trains = x.shape, x.batched, x.requires_grad

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        of_b = tape.empty((columns,), low, batched=False) if b is not None and b.requires_grad else None
        if not input_trains:
            return [None, of_b][:count]
        with tape.within("casts"):
            again = tape.empty(weight.shape, low, batched=False)
        tape.kernel([], [again])
        result = tape.empty(shape, low, batched=batched)
        tape.product(rows, inner, columns, batched=grad.batched, itemsize=low.itemsize)
        del again
        return [result, of_b][:count]

    operands = [x] if b is None else [x, b]
    count = len(operands)
    return tape.record(out, operands, backward)


def matmul(a: Tensor, b: Tensor, shape: tuple[int, ...], inner: int) -> Tensor:
    """Batched product of two activations into ``shape``; ``inner`` is the contracted length. Keeps both."""
    tape = a.tape
    if tape.autocast is not None:
        a, b = cast(a, tape.autocast.dtype), cast(b, tape.autocast.dtype)
    kept_a = a.data if b.requires_grad else None
    kept_b = b.data if a.requires_grad else None
    if kept_a is not None or kept_b is not None:
        tape.saves()
    out = tape.empty(shape, a.dtype, batched=a.batched or b.batched)
    columns = shape[-1]
    rows = prod(shape) // columns
    count = prod(shape[:-2])
    log = partial(tape.product, batched=out.batched, itemsize=a.dtype.itemsize, count=count)
    log(rows // count, columns, inner)
    a_form, b_form = (a.shape, a.dtype, a.batched), (b.shape, b.dtype, b.batched)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        del grad
        of_a = of_b = None
        if kept_b is not None:
            of_a = tape.empty(a_form[0], a_form[1], batched=a_form[2])
            log(rows // count, inner, columns)
        if kept_a is not None:
            of_b = tape.empty(b_form[0], b_form[1], batched=b_form[2])
            log(rows // count, columns, inner, contracts_rows=True)
        return [of_a, of_b]

    return tape.record(out, [a, b], backward)


def grouped_product(x: Tensor, w: Tensor, columns: int) -> Tensor:
    """``grouped_mm``: each expert's rows of x times its own matrix; the weights are (experts, columns, inner).

    Not under autocast: x takes the weights' type. Keeps x and the weights (integrations/moe.py, _grouped_mm).
    """
    tape = x.tape
    x = cast(x, w.dtype)
    kept_x = x.data if w.requires_grad else None
    kept_w = w.data if x.requires_grad else None
    if kept_x is not None or kept_w is not None:
        tape.saves()
    rows, inner = x.shape
    out = tape.empty((rows, columns), x.dtype, batched=x.batched)
    log = partial(tape.product, batched=x.batched, itemsize=x.dtype.itemsize)
    log(rows, columns, inner)
    tape.kernel([w], [])
    x_form, w_form = (x.shape, x.dtype, x.batched), (w.shape, w.dtype)

    def backward(_: Tensor) -> Sequence[Tensor | None]:
        of_x = of_w = None
        if kept_x is not None:
            of_w = tape.empty(w_form[0], w_form[1], batched=False)
            log(rows, columns, inner, contracts_rows=True)
            tape.kernel([], [of_w])
        if kept_w is not None:
            of_x = tape.empty(x_form[0], x_form[1], batched=x_form[2])
            log(rows, inner, columns)
            tape.kernel([kept_w], [])
        return [of_x, of_w]

    return tape.record(out, [x, w], backward)


def add_product(w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``w + b @ a`` for every expert (baddbmm) where w is frozen: keeps a and b."""
    tape = w.tape
    kept_a, kept_b = a.data, b.data
    tape.saves()
    out = tape.like(w)
    tape.kernel([w], [out])

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        gradients = [tape.like(kept_a), tape.like(kept_b)]
        tape.kernel([grad], gradients)
        return gradients

    return tape.record(out, [a, b], backward)
