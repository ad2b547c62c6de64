"""Attention as Hugging Face's implementations run it: which kernel torch takes, and what each keeps.

transformers/integrations/sdpa_attention.py and each model's eager_attention_forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay import ops
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.replay.ops import Heads
    from calc.replay.tape import Tape, Tensor

EAGER_RECOMPUTED = "eager-recomputed"
"""Composed attention under selective checkpointing: scores and weights are computed again (Korthikanti et al. 2022)."""
FLASH_WIDEST_HEAD = 256
"""Widest head of torch's flash kernel (sdp_utils.cpp, check_head_dim_size_flash)."""


def boolean_mask(tape: Tape, queries: int, keys: int) -> Tensor:
    """A boolean mask (queries, keys), made once for the model."""
    return tape.empty((queries, keys), Dtype.BOOL, batched=False)


def runs_in(q: Tensor) -> Dtype:
    """The type that matrix products of this tensor run in."""
    autocast = q.tape.autocast
    return q.dtype if autocast is None else autocast.dtype


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Heads,
    *,
    dropout: float = 0.0,
    mask: Tensor | None = None,
    heads_first: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention`` by the kernel torch takes on CUDA, its result as one row a token.

    flash: 16-bit, no mask, equal widths up to 256; memory-efficient: the rest with whole heads; math: grouped keys
    where the flash kernel can't run. ``heads_first``: the queries lie in memory head by head, not token by token; the
    flash kernel's output does so too, and must be copied into rows.
    """
    dtype = runs_in(q)
    q, k, v = (ops.cast(t, dtype) for t in (q, k, v))
    if dtype.itemsize == 2 and mask is None and heads.width == heads.value_width and heads.width <= FLASH_WIDEST_HEAD:
        padded = -heads.width % 8
        if padded:
            wide = heads.width + padded
            q, k, v = (ops.pad_last(t, wide, heads.width) for t in (q, k, v))
            heads = heads._replace(width=wide, value_width=wide)
        out = ops.flash_attention(q, k, v, heads, drops=dropout > 0, heads_first=heads_first)
        return ops.copy(out) if heads_first else out
    alignment = 8 if dtype.itemsize == 2 else 4
    if heads.key == heads.query and heads.width % alignment == 0 and heads.value_width % alignment == 0:
        bias = None
        if mask is not None:
            boolean = mask.dtype is Dtype.BOOL
            bias = q.tape.empty(mask.shape, dtype, batched=True) if boolean else ops.cast(mask, dtype)
        return ops.efficient_attention(q, k, v, heads, bias, drops=dropout > 0)
    out = ops.math_attention(q, k, v, heads, dropout_probability=dropout, mask=mask)
    return ops.copy(out)


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Heads,
    *,
    dropout: float = 0.0,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    fp32_softmax: bool = True,
    weights_as_values: bool = False,
    softcap: bool = False,
    heads_first: bool = False,
    returns: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Scores as a matrix: product, scale, soft-cap, bias, mask, softmax (in fp32, cast back), dropout, product.

    A batched product copies an operand that does not lie head by head: keys repeated by copying do, and so do queries
    and keys where ``heads_first``. ``returns`` is told the weights, which the library's code returns beside the result.
    """
    wanted, low = q.dtype, runs_in(q)
    repeated = heads.key not in (1, heads.query)
    if heads.key != heads.query:
        k, v = (repeat_keys(t, heads) for t in (k, v))
    scores = ops.scale(_scores(ops.cast(q, low), ops.cast(k, low), heads, repeated=repeated, heads_first=heads_first))
    if softcap:
        scores = ops.scale(scores)
        scores = ops.pointwise(scores, keeps="output")
        scores = ops.scale(scores)
    if bias is not None:
        scores = ops.add(scores, bias)
    if mask is not None:
        scores = ops.add(scores, mask)
    weights = ops.softmax(scores, Dtype.FP32 if fp32_softmax else None)
    if fp32_softmax:  # one statement of the library, which has the scores' name on its left
        weights = ops.cast(weights, wanted)
    del scores
    if weights_as_values:
        weights = ops.cast(weights, v.dtype)
    weights = ops.dropout(weights, dropout)
    if returns is not None:
        returns(weights)
    v = ops.cast(v, low) if repeated else ops.copy(ops.cast(v, low))
    out = ops.matmul(weights, v, (heads.query, heads.queries, heads.value_width), heads.keys)
    out = ops.copy(out).view(heads.queries, heads.query * heads.value_width)
    del weights
    return out


def repeat_keys(x: Tensor, heads: Heads) -> Tensor:
    """``repeat_kv``: reshapes an expanded view, which copies unless there is one head to repeat."""
    times = heads.query // heads.key
    return ops.expand(x, times) if heads.key == 1 else ops.repeat(x, times)


def _scores(q: Tensor, k: Tensor, heads: Heads, *, repeated: bool, heads_first: bool) -> Tensor:
    rows = q if heads_first else ops.copy(q)
    columns = k if repeated or (heads_first and heads.key == heads.query) else ops.copy(k)
    return ops.matmul(rows, columns, (heads.query, heads.queries, heads.keys), heads.width)


def _recomputed(
    compose: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, returns: Callable[[Tensor], None] | None
) -> Tensor:
    """Attention that is computed again in backward, where nobody takes the weights that it gives once more."""
    if returns is None:
        return q.tape.checkpoint(compose, q, k, v)

    def function(*inputs: Tensor) -> list[Tensor]:
        weights: list[Tensor] = []
        return [compose(*inputs, returns=weights.append), *weights]

    out, weights = q.tape.checkpoint_many(function, q, k, v)
    returns(weights)
    return out


def attend(
    kind: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Heads,
    *,
    dropout: float = 0.0,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    fp32_softmax: bool = True,
    weights_as_values: bool = False,
    softcap: bool = False,
    heads_first: bool = False,
    returns: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Attention by the scenario's choice: ``eager``, ``sdpa`` or ``flash-attention-2``.

    ``bias`` is a position bias (heads, queries, keys). One looked up in a table lies with the heads innermost, which
    the fused kernels refuse (sdp_utils.h, check_last_dim_stride_equals_1_dense): torch composes that attention.
    ``fp32_softmax``: the model's eager code asks for its softmax in fp32 (Llama does, BERT does not).
    ``weights_as_values``: it casts the weights to the values' type in a statement of its own (GPT-2). ``softcap``:
    it soft-caps the scores (Gemma 2); torch's fused kernel never does.
    ``heads_first``: see `sdpa`; ``returns``: see `eager`.
    """
    if kind in ("eager", EAGER_RECOMPUTED):

        def compose(q: Tensor, k: Tensor, v: Tensor, returns: Callable[[Tensor], None] | None = returns) -> Tensor:
            return eager(
                q,
                k,
                v,
                heads,
                dropout=dropout,
                mask=mask,
                bias=bias,
                fp32_softmax=fp32_softmax,
                weights_as_values=weights_as_values,
                softcap=softcap,
                heads_first=heads_first,
                returns=returns,
            )

        if kind == "eager":
            return compose(q, k, v)
        return _recomputed(compose, q, k, v, returns)
    if bias is not None:
        mask = ops.where(boolean_mask(q.tape, heads.queries, heads.keys), bias) if heads.causal else bias
        del bias
        dtype = runs_in(q)
        mask, q, k, v = (ops.cast(t, dtype) for t in (mask, q, k, v))
        return ops.copy(
            ops.math_attention(q, k, v, heads._replace(causal=False), dropout_probability=dropout, mask=mask)
        )
    if kind == "flash-attention-2":
        dtype = Dtype.BF16 if runs_in(q) is Dtype.FP32 else runs_in(q)
        q, k, v = (ops.cast(t, dtype) for t in (q, k, v))
        out = ops.flash_attention(q, k, v, heads, drops=dropout > 0)
        return ops.copy(out) if heads_first else out
    if heads.key != heads.query and mask is not None:
        k, v = (repeat_keys(t, heads) for t in (k, v))
        heads = heads._replace(key=heads.query)
    return sdpa(q, k, v, heads, dropout=dropout, mask=mask, heads_first=heads_first)
