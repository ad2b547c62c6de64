"""Operations that change a shape: views, and the copies that some of them need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calc.replay.ops.elementwise import promoted, record_elementwise, record_resized
from calc.replay.tape import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def transposed(x: Tensor) -> Tensor:
    """A view whose gradient comes back in another layout and is made contiguous before its use."""
    return record_elementwise(x.data, x)


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
    dtype = promoted(*parts)
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
    return record_resized(Tensor(x.storage, shape, x.dtype, x.batched), x)


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
    return record_resized(out, x)


def expand(x: Tensor, times: int) -> Tensor:
    """``expand``: a view ``times`` as large; backward sums its gradient."""
    return record_resized(Tensor(x.storage, (times, *x.shape), x.dtype, x.batched), x)


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
