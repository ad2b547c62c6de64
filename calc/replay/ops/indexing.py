"""Lookups: rows of an embedding, and elements taken by an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay.tape import Dtype, Parameter, Tape, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def _record_picked(out: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """Record ``out`` as elements of ``x`` by an index: backward writes into a copy of zeros."""
    tape = x.tape
    full, batched = x.shape, x.batched

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        zeros = tape.empty(full, grad.dtype, batched=batched)
        tape.kernel([], [zeros])
        result = tape.like(zeros)
        tape.kernel([grad, index, zeros], [result])
        return [result]

    return tape.record(out, [x], backward)


def take(x: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[index]``: rows in another order or number; keeps the index. Backward writes into a copy of zeros."""
    tape = x.tape
    if x.requires_grad:
        tape.saves()
    out = tape.empty(shape, x.dtype, batched=x.batched)
    tape.kernel([out, index], [out])
    return _record_picked(out, x, index)


def top_k(x: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """``topk``: values and their indices, which are kept; backward writes into a copy of zeros."""
    tape = x.tape
    values = tape.empty(shape, x.dtype, batched=x.batched)
    index = tape.empty(shape, Dtype.INT64, batched=x.batched)
    tape.kernel([x], [values, index])
    if x.requires_grad:
        tape.saves()
    return _record_picked(values, x, index), index


def gather(x: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``torch.gather``: keeps x and the index; backward scatters into zeros of x's size."""
    tape = x.tape
    if x.requires_grad:
        tape.saves()
    out = tape.empty(shape, x.dtype, batched=x.batched)
    tape.kernel([out, index], [out])
    kept = (x.data, index)

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        result = tape.like(kept[0])
        tape.kernel([grad, kept[1]], [result])
        return [result]

    return tape.record(out, [x], backward)
