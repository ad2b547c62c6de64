"""Operations element by element: casts, copies, arithmetic, activations, dropout, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay.tape import Dtype, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def promoted(*tensors: Tensor) -> Dtype:
    """The type that operands of several are brought to: the highest of theirs."""
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


def record_elementwise(out: Tensor, x: Tensor, *kept: Tensor) -> Tensor:
    """Record ``out`` as element for element of ``x``: its gradient a new tensor from the incoming one and ``kept``."""
    tape = x.tape
    if kept and x.requires_grad:
        tape.saves()

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(grad)
        tape.kernel([grad, *kept], [result])
        return [result]

    return tape.record(out, [x], backward)


def record_resized(out: Tensor, x: Tensor, *kept: Tensor) -> Tensor:
    """Record ``out`` as ``x`` in another size: its gradient, of x's, is made of the incoming one and ``kept``."""
    tape = x.tape
    shape, dtype, batched = x.shape, x.dtype, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.empty(shape, dtype, batched=batched)
        tape.kernel([grad, *kept], [result])
        return [result]

    return tape.record(out, [x], backward)


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``: keeps nothing; the gradient goes to both as it is."""
    tape = a.tape
    shape = _broadcast(a, b)
    out = tape.empty(shape.shape, promoted(a, b), batched=shape.batched)
    tape.kernel([a, b], [out])
    return tape.record(out, [a, b], lambda grad: [grad, grad])


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """``a - b``: keeps nothing; b's gradient is the negated one."""
    tape = a.tape
    shape = _broadcast(a, b)
    out = tape.empty(shape.shape, promoted(a, b), batched=shape.batched)
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
    return record_elementwise(out, x)


def scale_inplace(x: Tensor) -> Tensor:
    """``x *= number`` or ``x /= number``: keeps nothing."""
    tape = x.tape
    tape.kernel([x], [x])
    return record_elementwise(x.data, x)


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
    if kept_a or kept_b:
        tape.saves()
    out = tape.empty(shape.shape, promoted(a, b), batched=shape.batched)
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
    if x.requires_grad and keeps == "input":
        tape.saves()
    out = tape.like(x, dtype)
    tape.kernel([x], [out])
    if x.requires_grad and keeps == "output":
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
    if x.requires_grad:
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
    if x.requires_grad:
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
    if a.requires_grad or b.requires_grad:
        tape.saves()
    out = tape.empty(shape.shape, promoted(a, b), batched=shape.batched)
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


def dropout(x: Tensor, probability: float) -> Tensor:
    """``nn.Dropout`` in training: keeps a mask of one byte an element (native_dropout)."""
    if probability <= 0:
        return x
    tape = x.tape
    mask = tape.like(x, Dtype.BOOL)
    out = tape.like(x)
    tape.kernel([x], [out, mask])
    return record_elementwise(out, x, mask)


def dropout_inplace(x: Tensor, probability: float) -> Tensor:
    """``nn.Dropout(inplace=True)``: multiplies by noise of the input's own type, which it keeps (aten Dropout.cpp)."""
    if probability <= 0:
        return x
    tape = x.tape
    noise = tape.like(x)
    tape.kernel([x, noise], [x])
    return record_elementwise(x.data, x, noise)


def where(condition: Tensor, x: Tensor) -> Tensor:
    """``torch.where(condition, x, number)``: keeps the condition."""
    tape = x.tape
    out = tape.like(x)
    tape.kernel([x, condition], [out])
    return record_elementwise(out, x, condition)


def fill_inplace(x: Tensor, mask: Tensor) -> Tensor:
    """``masked_fill_``: keeps the mask, the gradient is a new tensor."""
    tape = x.tape
    tape.kernel([mask], [x])
    return record_elementwise(x.data, x, mask)


def activation_inplace(x: Tensor) -> Tensor:
    """``ReLU(inplace=True)`` and its kin that keep their output: no new memory forward, a gradient backward."""
    tape = x.tape
    tape.kernel([x], [x])
    return record_elementwise(x.data, x, x.data)
