"""Activations by their names in Hugging Face's ACT2FN (transformers/activations.py).

Some are one kernel that keeps its input or its output; others are composed of several operations, and autograd keeps
what each of them needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calc.replay.tape import Tensor


def activation(name: str, x: Tensor) -> Tensor:
    """The activation called ``name``, of ``x``."""
    composed = _COMPOSED.get(name)
    if composed is not None:
        return composed(x)
    if name in _KEEP_OUTPUT:
        return ops.pointwise(x, keeps="output")
    if name == "linear":
        return x
    return ops.pointwise(x)


def gelu_new(x: Tensor) -> Tensor:
    """``0.5 * x * (1 + tanh(c * (x + 0.044715 * x^3)))``, each step a tensor (NewGELUActivation)."""
    half = ops.scale(x)
    return ops.mul(half, ops.shift(ops.pointwise(ops.scale(ops.add(x, ops.scale(ops.power(x)))), keeps="output")))


def gelu_fast(x: Tensor) -> Tensor:
    """``0.5 * x * (1 + tanh(c * x * (1 + 0.044715 * x * x)))`` (FastGELUActivation)."""
    half = ops.scale(x)
    return ops.mul(
        half, ops.shift(ops.pointwise(ops.mul(ops.scale(x), ops.shift(ops.mul(ops.scale(x), x))), keeps="output"))
    )


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 * x)`` (QuickGELUActivation)."""
    return ops.mul(x, ops.pointwise(ops.scale(x), keeps="output"))


def relu_squared(x: Tensor) -> Tensor:
    """``relu(x)^2`` (ReLUSquaredActivation): autocast takes the square of an fp32 copy."""
    return ops.power(ops.pointwise(x, keeps="output"))


def bloom_gelu(x: Tensor) -> Tensor:
    """BLOOM's own gradient function: ``gelu_fast`` whose input alone is kept (models/bloom, GeLUFunction)."""
    tape = x.tape
    out = gelu_fast(x.data)
    if x.requires_grad:
        tape.saves()
    kept = x.data

    def backward(grad: Tensor) -> Sequence[Tensor | None]:
        tanh = ops.pointwise(ops.mul(ops.scale(kept), ops.shift(ops.mul(ops.scale(kept), kept))))
        slope = ops.add(
            ops.mul(
                ops.scale(kept),
                ops.mul(ops.shift(ops.mul(tanh, tanh)), ops.shift(ops.mul(ops.scale(kept), kept))),
            ),
            ops.scale(ops.shift(tanh)),
        )
        result = ops.mul(slope, grad.data)
        del tanh, slope
        return [result]

    return tape.record(out, [x], backward)


_COMPOSED = {
    "bloom_gelu": bloom_gelu,
    "gelu_new": gelu_new,
    "gelu_accurate": gelu_new,
    "gelu_fast": gelu_fast,
    "quick_gelu": quick_gelu,
    "relu2": relu_squared,
}
_KEEP_OUTPUT = frozenset({"relu", "relu6", "tanh", "sigmoid"})
