"""torch's operations as the replay sees them: what each allocates, keeps for backward, and computes.

Source of what is kept: torch/tools/autograd/derivatives.yaml; of autocast's lists: aten/src/ATen/autocast_mode.h;
of attention kernels: aten/src/ATen/native/transformers/cuda. A ``backward`` closure keeps alive what it names:
each says so by naming as little as torch saves.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from calc.replay.tape import Dtype, Fused, Tensor, something_of
from calc.replay.workspaces import (
    ConvolutionSizes,
    convolution_forward,
    convolution_of_input,
    convolution_of_weight,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calc.replay.tape import Parameter, Tape


def _promoted(*tensors: Tensor) -> Dtype:
    return max((t.dtype for t in tensors), key=lambda d: d.rank)


def _broadcast(*tensors: Tensor) -> Tensor:
    """The operand whose shape the result has."""
    return max(tensors, key=lambda t: (t.batched, t.numel))


def cast(x: Tensor, dtype: Dtype) -> Tensor:
    """``x.to(dtype)``: the tensor itself where it has that type."""
    if x.dtype is dtype:
        return x
    tape, source = x.tape, x.dtype
    out = tape.like(x, dtype)
    tape.kernel([x], [out])
    return tape.record(out, [x], lambda grad: [tape.cast_gradient(grad, source)])


def copy(x: Tensor) -> Tensor:
    """``clone()`` or ``contiguous()`` of a tensor that is not."""
    tape = x.tape
    out = tape.like(x)
    tape.kernel([x], [out])
    return tape.record(out, [x], lambda grad: [grad])


def _elementwise(out: Tensor, x: Tensor, *kept: Tensor) -> Tensor:
    """Record ``out`` as element for element of ``x``: its gradient a new tensor from the incoming one and ``kept``."""
    tape = x.tape
    if kept and tape.recording and x.requires_grad:
        tape.saves()

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(grad)
        tape.kernel([grad, *kept], [result])
        return [result]

    return tape.record(out, [x], backward)


def transposed(x: Tensor) -> Tensor:
    """A view whose gradient comes back in another layout and is made contiguous before its use."""
    return _elementwise(x.data, x)


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``: keeps nothing; the gradient goes to both as it is."""
    tape = a.tape
    shape = _broadcast(a, b)
    out = tape.empty(shape.shape, _promoted(a, b), batched=shape.batched)
    tape.kernel([a, b], [out])
    return tape.record(out, [a, b], lambda grad: [grad, grad])


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """``a - b``: keeps nothing; b's gradient is the negated one."""
    tape = a.tape
    shape = _broadcast(a, b)
    out = tape.empty(shape.shape, _promoted(a, b), batched=shape.batched)
    tape.kernel([a, b], [out])
    b_trains = b.requires_grad

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        negative = None
        if b_trains:
            negative = tape.like(grad)
            tape.kernel([grad], [negative])
        return [grad, negative]

    return tape.record(out, [a, b], backward)


def add_inplace(a: Tensor, b: Tensor) -> Tensor:
    """``a += b``."""
    tape = a.tape
    tape.kernel([a, b], [a])
    return tape.record(a.data, [a, b], lambda grad: [grad, grad])


def scale(x: Tensor) -> Tensor:
    """``x * number`` or ``x / number``: keeps nothing."""
    tape = x.tape
    out = tape.like(x)
    tape.kernel([x], [out])
    return _elementwise(out, x)


def scale_inplace(x: Tensor) -> Tensor:
    """``x *= number`` or ``x /= number``: keeps nothing."""
    tape = x.tape
    tape.kernel([x], [x])
    return _elementwise(x.data, x)


def shift(x: Tensor) -> Tensor:
    """``x + number``: keeps nothing, the gradient passes."""
    tape = x.tape
    out = tape.like(x)
    tape.kernel([x], [out])
    return tape.record(out, [x], lambda grad: [grad])


def mul(a: Tensor, b: Tensor) -> Tensor:
    """``a * b``: keeps each operand that the other's gradient needs."""
    tape = a.tape
    shape = _broadcast(a, b)
    kept_a = a.data if b.requires_grad else None
    kept_b = b.data if a.requires_grad else None
    if tape.recording and (kept_a or kept_b):
        tape.saves()
    out = tape.empty(shape.shape, _promoted(a, b), batched=shape.batched)
    tape.kernel([a, b], [out])

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        of_a = of_b = None
        if kept_b is not None:
            of_a = tape.like(grad)
            tape.kernel([grad, kept_b], [of_a])
        if kept_a is not None:
            of_b = tape.like(grad)
            tape.kernel([grad, kept_a], [of_b])
        return [of_a, of_b]

    return tape.record(out, [a, b], backward)


def pointwise(x: Tensor, *, keeps: str = "input", temporaries: int = 0, dtype: Dtype | None = None) -> Tensor:
    """A function of one tensor by one kernel (gelu, silu, tanh, sigmoid, exp, rsqrt, pow...).

    ``keeps`` is ``input``, ``output`` or ``nothing``; ``temporaries`` counts tensors of x's size that backward makes
    and drops beside its result.
    """
    tape = x.tape
    if tape.recording and x.requires_grad and keeps == "input":
        tape.saves()
    out = tape.like(x, dtype)
    tape.kernel([x], [out])
    if tape.recording and x.requires_grad and keeps == "output":
        tape.saves()
    kept = {"input": x, "output": out, "nothing": None}[keeps]
    kept = kept.data if kept is not None else None

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        scratch = [tape.like(grad) for _ in range(temporaries)]
        result = tape.like(grad)
        tape.kernel([grad, *([kept] if kept is not None else []), *scratch], [result, *scratch])
        return [result]

    return tape.record(out, [x], backward)


def clamp(x: Tensor, *, bounds: int) -> Tensor:
    """``x.clamp(...)`` by one or two bounds: keeps x; backward compares it with each bound."""
    tape = x.tape
    if tape.recording and x.requires_grad:
        tape.saves()
    out = tape.like(x)
    tape.kernel([x], [out])
    kept = x.data

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        inside = [tape.like(kept, Dtype.BOOL) for _ in range(bounds)]
        tape.kernel([kept], inside)
        result = tape.like(grad)
        tape.kernel([grad, *inside], [result])
        return [result]

    return tape.record(out, [x], backward)


def power(x: Tensor) -> Tensor:
    """``x.pow(n)``: fp32 under autocast; backward computes n * x^(n-1) * grad in three kernels, all kept to its end."""
    tape = x.tape
    if tape.autocast is not None:
        x = cast(x, Dtype.FP32)
    if tape.recording and x.requires_grad:
        tape.saves()
    out = tape.like(x)
    tape.kernel([x], [out])
    kept = x.data

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        raised = tape.like(kept)
        tape.kernel([kept], [raised])
        scaled = tape.like(kept)
        tape.kernel([raised], [scaled])
        result = tape.like(kept)
        tape.kernel([scaled, grad], [result])
        del raised, scaled
        return [result]

    return tape.record(out, [x], backward)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """``a / b``: keeps both where ``b`` has a gradient, which takes a quotient, its quotient and a negation to make."""
    tape = a.tape
    shape = _broadcast(a, b)
    kept_a = a.data if b.requires_grad else None
    kept_b = b.data
    if tape.recording and (a.requires_grad or b.requires_grad):
        tape.saves()
    out = tape.empty(shape.shape, _promoted(a, b), batched=shape.batched)
    tape.kernel([a, b], [out])
    a_trains = a.requires_grad

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        of_a = of_b = None
        if a_trains:
            of_a = tape.like(grad)
            tape.kernel([grad, kept_b], [of_a])
        if kept_a is not None:
            once = tape.like(grad)
            tape.kernel([kept_a, kept_b], [once])
            twice = tape.like(grad)
            tape.kernel([once, kept_b], [twice])
            del once
            negative = tape.like(grad)
            tape.kernel([grad], [negative])
            of_b = tape.like(grad)
            tape.kernel([negative, twice], [of_b])
        return [of_a, of_b]

    return tape.record(out, [a, b], backward)


def vector_norm(x: Tensor, groups: int) -> Tensor:
    """``linalg.vector_norm``, one value for each of ``groups``: keeps input and result; fp32 under autocast."""
    tape = x.tape
    dtype = x.dtype if tape.autocast is None else Dtype.FP32
    if tape.recording and x.requires_grad:
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


def mean_last(x: Tensor, groups: int, dtype: Dtype | None = None) -> Tensor:
    """``x.mean(-1, keepdim=True)``: keeps nothing; backward makes the broadcast gradient whole."""
    tape = x.tape
    out = tape.empty((groups,), dtype or x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    shape, kind, batched = x.shape, x.dtype, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.empty(shape, kind, batched=batched)
        tape.kernel([grad], [result])
        return [result]

    return tape.record(out, [x], backward)


def reduce_sum(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x.sum(dims)``: keeps nothing; its gradient is an expanded view, made whole only where it must be."""
    tape = x.tape
    out = tape.empty(shape, x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    return tape.record(out, [x], lambda grad: [grad])


def dropout(x: Tensor, probability: float) -> Tensor:
    """``nn.Dropout`` in training: keeps a mask of one byte an element (native_dropout)."""
    if probability <= 0:
        return x
    tape = x.tape
    mask = tape.like(x, Dtype.BOOL)
    out = tape.like(x)
    tape.kernel([x], [out, mask])
    return _elementwise(out, x, mask)


def dropout_inplace(x: Tensor, probability: float) -> Tensor:
    """``nn.Dropout(inplace=True)``: multiplies by noise of the input's own type, which it keeps (aten Dropout.cpp)."""
    if probability <= 0:
        return x
    tape = x.tape
    noise = tape.like(x)
    tape.kernel([x, noise], [x])
    return _elementwise(x.data, x, noise)


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
    if tape.recording and x.requires_grad:
        tape.saves()
    kept = out.data

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(grad, source)
        # The product of gradient and output, a tensor of its own (aten/src/ATen/native/cuda/SoftMax.cu).
        tape.workspace(*((kept.nbytes, 0) if kept.batched else (0, kept.nbytes)))
        tape.kernel([grad, kept], [result])
        return [result]

    return tape.record(out, [x], backward)


def layer_norm(x: Tensor, weight: Parameter | Tensor | None, bias: Parameter | Tensor | None, groups: int) -> Tensor:
    """``nn.LayerNorm`` or ``nn.GroupNorm``: keeps input, mean and reciprocal deviation; fp32 under autocast."""
    tape = x.tape
    if tape.autocast is not None:
        x = cast(x, Dtype.FP32)
    operands = [p if isinstance(p, Tensor) else tape.parameter(p) for p in (weight, bias) if p is not None]
    if tape.recording and (x.requires_grad or any(o.requires_grad for o in operands)):
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


def embedding(
    tape: Tape, tokens: int, weight: Parameter, *, batched: bool = True, indices: Tensor | None = None
) -> Tensor:
    """``nn.Embedding``: its gradient is a whole table. Keeps ``indices``; None where the batch holds them anyway."""
    operand = tape.parameter(weight)
    width = weight.shape[-1]
    out = tape.empty((tokens, width), weight.dtype, batched=batched)
    tape.kernel([out], [out])
    kept = indices if weight.trainable else None
    del indices

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        table = tape.empty(operand.shape, operand.dtype, batched=False)
        tape.kernel([grad] if kept is None else [grad, kept], [table])
        return [table]

    return tape.record(out, [operand], backward)


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
    if tape.recording and (kept_x is not None or kept_w is not None):
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
    if tape.recording and (kept_a is not None or kept_b is not None):
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


def where(condition: Tensor, x: Tensor) -> Tensor:
    """``torch.where(condition, x, number)``: keeps the condition."""
    tape = x.tape
    out = tape.like(x)
    tape.kernel([x, condition], [out])
    return _elementwise(out, x, condition)


def take(x: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[index]``: rows in another order or number; keeps the index. Backward writes into a copy of zeros."""
    tape = x.tape
    if tape.recording and x.requires_grad:
        tape.saves()
    out = tape.empty(shape, x.dtype, batched=x.batched)
    tape.kernel([out, index], [out])
    full, batched = x.shape, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        zeros = tape.empty(full, grad.dtype, batched=batched)
        tape.kernel([], [zeros])
        result = tape.like(zeros)
        tape.kernel([grad, index, zeros], [result])
        return [result]

    return tape.record(out, [x], backward)


def top_k(x: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """``topk``: values and their indices, which are kept; backward writes into a copy of zeros."""
    tape = x.tape
    values = tape.empty(shape, x.dtype, batched=x.batched)
    index = tape.empty(shape, Dtype.INT64, batched=x.batched)
    tape.kernel([x], [values, index])
    if tape.recording and x.requires_grad:
        tape.saves()
    full, batched = x.shape, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        zeros = tape.empty(full, grad.dtype, batched=batched)
        tape.kernel([], [zeros])
        result = tape.like(zeros)
        tape.kernel([grad, index, zeros], [result])
        return [result]

    return tape.record(values, [x], backward), index


def fill_inplace(x: Tensor, mask: Tensor) -> Tensor:
    """``masked_fill_``: keeps the mask, the gradient is a new tensor."""
    tape = x.tape
    tape.kernel([mask], [x])
    return _elementwise(x.data, x, mask)


def grouped_product(x: Tensor, w: Tensor, columns: int) -> Tensor:
    """``grouped_mm``: each expert's rows of x times its own matrix; the weights are (experts, columns, inner).

    Not under autocast: x takes the weights' type. Keeps x and the weights (integrations/moe.py, _grouped_mm).
    """
    tape = x.tape
    x = cast(x, w.dtype)
    kept_x = x.data if w.requires_grad else None
    kept_w = w.data if x.requires_grad else None
    if tape.recording and (kept_x is not None or kept_w is not None):
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
    if tape.recording:
        tape.saves()
    out = tape.like(w)
    tape.kernel([w], [out])

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        gradients = [tape.like(kept_a), tape.like(kept_b)]
        tape.kernel([grad], gradients)
        return gradients

    return tape.record(out, [a, b], backward)


def gather(x: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``torch.gather``: keeps x and the index; backward scatters into zeros of x's size."""
    tape = x.tape
    if tape.recording and x.requires_grad:
        tape.saves()
    out = tape.empty(shape, x.dtype, batched=x.batched)
    tape.kernel([out, index], [out])
    kept = (x.data, index)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(kept[0])
        tape.kernel([grad, kept[1]], [result])
        return [result]

    return tape.record(out, [x], backward)


def over_batch(x: Tensor) -> Tensor:
    """``repeat`` of a tensor without a batch, once for each sample; its gradient is summed over them."""
    tape = x.tape
    out = tape.empty(x.shape, x.dtype, batched=True)
    tape.kernel([x], [out])
    return tape.record(out, [x], lambda grad: [grad])


def pad_last(x: Tensor, wide: int, width: int) -> Tensor:
    """``F.pad`` of the last dimension from ``width`` to ``wide``: a new tensor; its gradient is a copied slice."""
    tape = x.tape
    out = tape.empty((x.numel // width, wide), x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    shape = x.shape

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.empty(shape, grad.dtype, batched=grad.batched)
        tape.kernel([grad], [result])
        return [result]

    return tape.record(out, [x], backward)


def cat(parts: Sequence[Tensor], *, axis_last: bool = True) -> Tensor:
    """``torch.cat``: keeps nothing; each part's gradient is a view of the whole's."""
    tape = parts[0].tape
    dtype = _promoted(*parts)
    whole = max(parts, key=lambda t: t.batched)
    total = sum(p.numel for p in parts)
    last = whole.shape[-1] if not axis_last else total // (whole.numel // whole.shape[-1])
    out = tape.empty((total // last, last), dtype, batched=whole.batched)
    tape.kernel(list(parts), [out])
    forms = [(p.shape, p.batched) for p in parts]

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        slices = [Tensor(grad.storage, shape, grad.dtype, batched) for shape, batched in forms]
        for part in slices:
            part.is_view = True
        return slices

    return tape.record(out, list(parts), backward)


def split(x: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """``split``/``chunk``/``unbind``: views; backward concatenates the parts' gradients into a new tensor."""
    tape = x.tape
    shape, dtype, batched = x.shape, x.dtype, x.batched

    def backward(grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        whole = tape.empty(shape, dtype, batched=batched)
        tape.kernel([g for g in grads if g is not None], [whole])
        return [whole]

    parts = [Tensor(x.storage, part, x.dtype, x.batched) for part in shapes]
    return tape.record_many(parts, [x], backward)


def narrow(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A slice or selected row: a view; its gradient is a whole tensor of zeros with the part put in."""
    tape = x.tape
    full, dtype, batched = x.shape, x.dtype, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        whole = tape.empty(full, dtype, batched=batched)
        tape.kernel([grad], [whole])
        return [whole]

    return tape.record(Tensor(x.storage, shape, x.dtype, x.batched), [x], backward)


def expand_batch(x: Tensor) -> Tensor:
    """``expand`` of one tensor to every sample of the batch: a view; its gradient is summed over the batch."""
    view = Tensor(x.storage, x.shape, x.dtype, batched=True)
    return x.tape.record(view, [x], lambda grad: [grad])


def repeat(x: Tensor, times: int) -> Tensor:
    """``expand`` made whole (repeat_kv): a copy ``times`` as large; backward sums it again."""
    if times == 1:
        return x
    tape = x.tape
    out = tape.empty((times, *x.shape), x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    shape, dtype, batched = x.shape, x.dtype, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.empty(shape, dtype, batched=batched)
        tape.kernel([grad], [result])
        return [result]

    return tape.record(out, [x], backward)


def expand(x: Tensor, times: int) -> Tensor:
    """``expand``: a view ``times`` as large; backward sums its gradient."""
    tape = x.tape
    shape, dtype, batched = x.shape, x.dtype, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.empty(shape, dtype, batched=batched)
        tape.kernel([grad], [result])
        return [result]

    return tape.record(Tensor(x.storage, (times, *shape), x.dtype, x.batched), [x], backward)


def filled_keys(plain: Tensor, shared: Tensor) -> Tensor:
    """Keys written into new memory: each head's own part, and one that all heads share.

    Each write into a slice is a node whose backward clones the whole gradient and the slice (autograd's CopySlices).
    ``plain`` is (tokens, heads, width), ``shared`` (tokens, 1, width).
    """
    tape = plain.tape
    tokens, heads, width = plain.shape
    extra = shared.shape[-1]
    out = tape.empty((tokens, heads, width + extra), plain.dtype, batched=True)
    tape.kernel([plain, shared], [out])

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        whole = tape.like(grad)
        tape.kernel([grad], [whole])
        part = tape.empty((tokens, heads, extra), grad.dtype, batched=True)
        of_shared = tape.empty((tokens, 1, extra), grad.dtype, batched=True)
        tape.kernel([part], [of_shared])
        del part
        again = tape.like(whole)
        tape.kernel([whole], [again])
        del whole
        of_plain = tape.empty((tokens, heads, width), grad.dtype, batched=True)
        tape.kernel([again], [of_plain])
        return [of_plain, of_shared]

    return tape.record(out, [plain, shared], backward)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x * cos + rotate_half(x) * sin`` as Hugging Face composes it: keeps the tables alone.

    transformers/models/llama/modeling_llama.py, apply_rotary_pos_emb.
    """
    direct = mul(x, cos)
    half = (x.numel // 2,)
    first = narrow(x, half)
    second = narrow(x, half)
    turned = cat([scale(second), first]).view(*x.shape)
    del first, second
    other = mul(turned, sin)
    del turned
    return add(direct, other)


class Heads(NamedTuple):
    """Sizes of an attention: heads of queries and of keys, width of a head (of values where it differs), lengths."""

    query: int
    key: int
    width: int
    value_width: int
    queries: int
    keys: int
    causal: bool


def _log_attention(kind: Fused, heads: Heads, products: int, moves: Sequence[Tensor], *, drops: bool) -> None:
    """A fused kernel of ``products`` matrix products a head; causal kernels skip half."""
    keys = heads.keys // 2 if heads.causal and heads.queries == heads.keys else heads.keys
    log = moves[0].tape.fused_attention
    log(kind, heads.queries, keys or 1, heads.width, products, moves, heads.query, drops=drops)


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, heads: Heads, *, drops: bool = False, heads_first: bool = False
) -> Tensor:
    """FlashAttention-2 (torch's kernel or the package): keeps q, k, v, output and each row's log-sum-exp.

    Backward takes an fp32 accumulator for the queries' gradient, a row sum each, and with fewer key than query heads
    whole-size gradients of keys and values (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd).
    ``heads_first``: the output lies head by head in memory, and backward takes a contiguous copy of it
    (aten/src/ATen/native/transformers/cuda/attention_backward.cu, _flash_attention_backward).
    """
    tape = q.tape
    if tape.recording and q.requires_grad:
        tape.saves()
    out = tape.recall()
    kept_out = out is not None
    if out is None:
        out = tape.empty((heads.queries, heads.query * heads.value_width), q.dtype, batched=True)
    log_sum = tape.empty((heads.query, heads.queries), Dtype.FP32, batched=True)
    if not kept_out:
        _log_attention(Fused.FLASH, heads, 2, [q, k, v, out], drops=drops)
        tape.remember(out, always=True)
    kept = (q.data, k.data, v.data, out.data, log_sum)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        del grad
        kept_q, kept_k, kept_v = kept[:3]
        gradients = [tape.like(kept_q), tape.like(kept_k), tape.like(kept_v)]
        rows = heads.query * (-(-heads.queries // 128) * 128)
        multiple = 32 if heads.width <= 128 else 64
        contiguous = tape.like(kept[3]) if heads_first else None
        row_sums = tape.empty((rows,), Dtype.FP32, batched=True)
        accumulator = tape.empty((rows, -(-heads.width // multiple) * multiple), Dtype.FP32, batched=True)
        whole = (
            [tape.empty((heads.keys, heads.query * heads.width), kept_k.dtype, batched=True) for _ in range(2)]
            if heads.key != heads.query
            else []
        )
        moved = [kept_q, kept_k, kept_v, kept[3], kept[3], *gradients, accumulator, accumulator]
        _log_attention(Fused.FLASH, heads, 5, moved, drops=drops)
        tape.kernel([kept[3], kept[3]], [row_sums], same_call=True)
        tape.kernel([accumulator], [gradients[0]], same_call=True)
        for i in range(len(whole)):
            tape.kernel([whole[i]], [gradients[1 + i]], same_call=True)
        del moved
        del row_sums, accumulator, whole, contiguous
        return gradients

    return tape.record(out, [q, k, v], backward)


def efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, heads: Heads, bias: Tensor | None = None, *, drops: bool = False
) -> Tensor:
    """The memory-efficient kernel (fp32, or a mask): keeps q, k, v, mask, output and log-sum-exp.

    Backward takes row sums, and for 16-bit types an fp32 accumulator of the queries' gradient
    (aten/src/ATen/native/transformers/cuda/attention_backward.cu).
    """
    tape = q.tape
    if tape.recording and q.requires_grad:
        tape.saves()
    out = tape.empty((heads.queries, heads.query * heads.value_width), q.dtype, batched=True)
    log_sum = tape.empty((heads.query, -(-heads.queries // 32) * 32), Dtype.FP32, batched=True)
    _log_attention(Fused.EFFICIENT, heads, 2, [q, k, v, out], drops=drops)
    kept = (q.data, k.data, v.data, out.data, log_sum, bias.data if bias is not None else None)
    bias_trains = bias is not None and bias.requires_grad

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        del grad
        gradients: list[Tensor | None] = [tape.like(kept[0]), tape.like(kept[1]), tape.like(kept[2])]
        scratch = [tape.empty((heads.query, heads.queries), Dtype.FP32, batched=True)]
        if kept[0].dtype.itemsize == 2:
            scratch.append(tape.like(kept[0], Dtype.FP32))
        if bias_trains:
            gradients.append(tape.empty((heads.query, heads.queries, heads.keys), kept[0].dtype, batched=True))
        moved = [t for t in (*kept[:4], *gradients, *scratch[1:]) if t is not None]
        _log_attention(Fused.EFFICIENT, heads, 5, moved, drops=drops)
        tape.kernel([kept[3], kept[3]], scratch[:1], same_call=True)
        del scratch, moved
        return gradients

    return tape.record(out, [q, k, v, *([bias] if bias_trains and bias is not None else [])], backward)


def math_attention(
    q: Tensor, k: Tensor, v: Tensor, heads: Heads, *, dropout_probability: float = 0.0, mask: Tensor | None = None
) -> Tensor:
    """torch's composed attention, taken where no kernel fits (fp32 with grouped keys, for one).

    Half types are computed in fp32; queries and keys are both scaled; the mask is added to the scores in place. The
    weights are returned too, in the inputs' type, though nobody takes them (aten/src/ATen/native/transformers/
    attention.cpp, _scaled_dot_product_attention_math).
    """
    tape = q.tape
    dtype = q.dtype
    q, k, v = (cast(t, Dtype.FP32) for t in (q, k, v))
    if heads.key != heads.query:
        k, v = (repeat(t, heads.query // heads.key) for t in (k, v))
    outer, tape.autocast = tape.autocast, None
    q = scale(q)
    if heads.causal and mask is None:
        mask = tape.empty((heads.queries, heads.keys), Dtype.BOOL, batched=False)
    if mask is not None and mask.dtype is Dtype.BOOL:
        mask = tape.like(mask, q.dtype)
    k = scale(k)
    scores = matmul(copy(q), copy(k), (heads.query, heads.queries, heads.keys), heads.width)
    del q, k
    if mask is not None:
        scores = add_inplace(scores, mask)
    weights = softmax(scores, safe=True)
    del scores, mask
    weights = dropout(weights, dropout_probability)
    returned = tape.like(weights, dtype) if dtype is not weights.dtype else None
    out = matmul(weights, copy(v), (heads.query, heads.queries, heads.value_width), heads.keys)
    tape.autocast = outer
    del returned
    return cast(out, dtype).view(heads.queries, heads.query * heads.value_width)


def _log_softmax(logits: Tensor) -> Tensor:
    """``F.log_softmax`` in its input's type: keeps its output."""
    tape = logits.tape
    out = tape.like(logits)
    tape.kernel([logits], [out])
    if tape.recording and logits.requires_grad:
        tape.saves()
    kept = out.data

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(kept)
        tape.kernel([grad, kept], [result])
        return [result]

    return tape.record(out, [logits], backward)


def cross_entropy(logits: Tensor) -> Tensor:
    """``F.cross_entropy``: log-softmax in the logits' type, fp32 under autocast; backward makes two of that size.

    derivatives.yaml: _log_softmax keeps its output, nll_loss its input. Autocast runs nll_loss in fp32 but leaves
    log_softmax alone, for cross_entropy_loss names its type (aten/src/ATen/native/LossNLL.cpp).
    """
    tape = logits.tape
    out = _log_softmax(logits)
    if tape.autocast is not None:
        out = cast(out, Dtype.FP32)
    total = tape.empty((1,), Dtype.FP32, batched=False)
    loss = tape.empty((1,), Dtype.FP32, batched=False)
    if tape.recording and logits.requires_grad:
        tape.saves()
    negative_log = (out.data, total)

    def nll_backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(negative_log[0])
        tape.kernel([grad], [result])
        return [result]

    return tape.record(loss, [out], nll_backward)


def ctc_loss(logits: Tensor, labels: int) -> Tensor:
    """Log-softmax in fp32 and ``F.ctc_loss``: keeps the log-probabilities and the forward variables of all positions.

    Backward makes the backward variables and a gradient of the log-probabilities (LossCTC.cu): between labels and
    around them lie blanks, so a sample has 2 * labels + 1 positions.
    """
    tape = logits.tape
    logits = cast(logits, Dtype.FP32)
    out = _log_softmax(logits)
    kept = out.data
    del logits
    forward_variables = tape.empty((kept.shape[0], 2 * labels + 1), Dtype.FP32, batched=True)
    loss = tape.empty((1,), Dtype.FP32, batched=False)
    tape.kernel([out], [forward_variables])
    saved = (out.data, forward_variables)
    del forward_variables

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        backward_variables = tape.like(saved[1])
        result = tape.like(saved[0])
        tape.kernel([grad, *saved, backward_variables], [backward_variables, result])
        return [result]

    return tape.record(loss, [out], backward)


def weight_norm(tape: Tape, direction: Parameter, length: Parameter) -> Tensor:
    """``torch._weight_norm``: a weight of a direction and a length (fused kernel): keeps both and the norms."""
    v, g = tape.parameter(direction), tape.parameter(length)
    if tape.recording and (v.requires_grad or g.requires_grad):
        tape.saves()
    out = tape.empty(direction.shape, direction.dtype, batched=False)
    norms = tape.empty(length.shape, Dtype.FP32, batched=False)
    tape.kernel([v], [out])

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        gradients = [tape.like(v), tape.like(g)]
        tape.kernel([grad, v, norms], gradients)
        return [*gradients]

    return tape.record(out, [v, g], backward)


def fused_cross_entropy(x: Tensor, weight: Parameter) -> Tensor:
    """Linear head and cross-entropy in chunks that never hold all logits; gradients are made in forward.

    Liger kernel, liger_kernel/ops/fused_linear_cross_entropy.py: chunks of about hidden/vocabulary of the tokens.
    """
    tape = x.tape
    x = cast(x, tape.autocast.dtype) if tape.autocast is not None else x
    vocabulary = weight.numel // x.shape[-1]
    tokens = x.numel // x.shape[-1]
    chunk_tokens = -(-tokens // max(1, -(-vocabulary // x.shape[-1])))
    w = tape.cast_parameter(weight, x.dtype)
    of_x = tape.like(x)
    of_w = tape.empty(w.shape, w.dtype, batched=False) if w.requires_grad else None
    with tape.within("logits"):
        chunk = tape.empty((chunk_tokens, vocabulary), x.dtype, batched=True)
        wide = tape.like(chunk, Dtype.FP32)
    for _ in range(3):
        tape.product(x.numel // x.shape[-1], vocabulary, x.shape[-1], batched=x.batched, itemsize=x.dtype.itemsize)
    del chunk, wide
    loss = tape.empty((1,), Dtype.FP32, batched=False)
    kept = [of_x, of_w]
    del of_x, of_w

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        del grad
        gradients = list(kept)
        kept.clear()
        return gradients

    return tape.record(loss, [x, w], backward)


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
    if tape.recording and (input_trains or weight_trains):
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


def activation_inplace(x: Tensor) -> Tensor:
    """``ReLU(inplace=True)`` and its kin that keep their output: no new memory forward, a gradient backward."""
    tape = x.tape
    tape.kernel([x], [x])
    return _elementwise(x.data, x, x.data)


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
    if tape.recording and x.requires_grad:
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
    shape, dtype, batched = x.shape, x.dtype, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.empty(shape, dtype, batched=batched)
        tape.kernel([grad], [result])
        return [result]

    return tape.record(out, [x], backward)


def average_pool(x: Tensor, out_shape: tuple[int, ...], *, keeps_input: bool = True) -> Tensor:
    """``nn.AvgPool2d`` and adaptive average pooling: autograd keeps the input (a mean over all positions does not)."""
    something_of(out_shape)
    tape = x.tape
    if keeps_input and tape.recording and x.requires_grad:
        tape.saves()
    out = tape.empty(out_shape, x.dtype, batched=x.batched)
    tape.kernel([x], [out])
    shape, dtype, batched = x.shape, x.dtype, x.batched
    kept = x.data if keeps_input else None

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.empty(shape, dtype, batched=batched)
        tape.kernel([grad, *([kept] if kept is not None else [])], [result])
        return [result]

    return tape.record(out, [x], backward)
