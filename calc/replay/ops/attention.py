"""Attention's kernels, and the rotation of its queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calc.replay.ops.elementwise import add, add_inplace, cast, copy, dropout, mul, scale
from calc.replay.ops.products import matmul
from calc.replay.ops.reductions import softmax
from calc.replay.ops.shapes import cat, narrow, repeat
from calc.replay.tape import Dtype, Fused, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    if q.requires_grad:
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
    if q.requires_grad:
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
