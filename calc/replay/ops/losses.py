"""Losses, from logits or without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay.ops.elementwise import cast
from calc.replay.tape import Dtype, Parameter, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def _log_softmax(logits: Tensor) -> Tensor:
    """``F.log_softmax`` in its input's type: keeps its output."""
    tape = logits.tape
    out = tape.like(logits)
    tape.kernel([logits], [out])
    if logits.requires_grad:
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
    if logits.requires_grad:
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
