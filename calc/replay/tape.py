"""The event log, autograd's graph and engine, autocast and activation checkpointing.

Sizes are linear in the micro-batch: a tensor is either *batched* (its shape is that of one sample) or fixed.
Blocks of a model that repeat are replayed three times at most (first, a middle one, last); the log says how often
the middle one stands.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from calc.replay.workspaces import Reduction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Dtype(Enum):
    """Element types by torch's short names, with their size in bytes."""

    FP32 = ("fp32", 4, 3)
    FP16 = ("fp16", 2, 2)
    BF16 = ("bf16", 2, 2)
    INT64 = ("int64", 8, 1)
    INT32 = ("int32", 4, 1)
    BOOL = ("bool", 1, 0)
    UINT8 = ("uint8", 1, 0)

    def __init__(self, label: str, itemsize: int, rank: int) -> None:
        self.label = label
        self.itemsize = itemsize
        self.rank = rank


class TooSmallError(ValueError):
    """The input leaves some layer of the model nothing to work on."""


def something_of(shape: tuple[int, ...]) -> None:
    """Refuse an input, or the result of a layer that makes it smaller, with no element.

    torch's convolutions and poolings do so: "Kernel size can't be greater than actual input size" and "Output size is
    too small" (aten/src/ATen/native/Convolution.cpp, check_shape_forward; Pool.h, pool2d_shape_check).
    """
    if min(shape, default=1) < 1:
        raise TooSmallError(f"no element is left: {shape}")


WORKSPACE = "workspace"
"""Label of what kernels take for their own run."""


class Phase(Enum):
    """The parts of a training step, in order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class Segment(NamedTuple):
    """A stretch of the log. ``repeats`` copies of it follow one another; block is -1 outside repeated blocks."""

    start: int
    phase: Phase
    block: int
    repeats: int


class Fused(Enum):
    """Attention in one kernel, by the kernel."""

    NONE = "none"
    FLASH = "flash"
    EFFICIENT = "memory-efficient"


class Kernel(NamedTuple):
    """One kernel launch, for the time model. Sizes are linear in the micro-batch: per sample, then fixed.

    A matrix product is ``matrices`` products rows x inner times inner x columns in one launch (others have columns 0).
    What grows with the micro-batch is the rows, or the matrices where ``matrices_per_sample`` is not 0; where
    ``contracts_rows`` the rows are what is summed over, as in a weight's gradient (then the result is columns x inner).
    ``itemsize`` is that of the operands: it selects the matrix rate.

    ``recomputed`` marks what activation checkpointing runs again in backward; ``fused`` names kernels that never write
    an attention's scores, ``drops`` those of them that draw a dropout mask. ``threads`` is how many threads run at
    most, each with one operand of ``itemsize`` on its way, where that may be too few to fill the memory's pipeline (0:
    enough). ``same_call`` marks what an operation launches after its first kernel: no further cost on the host.
    ``convolution`` marks products whose operands cuDNN pads to the tensor cores' alignment, ``vector`` those off the
    tensor cores.
    """

    phase: Phase
    repeats: int
    recomputed: bool
    flops_per_sample: int
    flops_fixed: int
    bytes_per_sample: int
    bytes_fixed: int
    rows_per_sample: int
    rows_fixed: int
    columns: int
    inner: int
    itemsize: int
    matrices_per_sample: int = 0
    matrices_fixed: int = 1
    contracts_rows: bool = False
    fused: Fused = Fused.NONE
    drops: bool = False
    threads: int = 0
    same_call: bool = False
    convolution: bool = False
    vector: bool = False


class Storage:
    """A block of memory. Its release is logged when its last reference goes."""

    __slots__ = ("__weakref__", "index", "tape")

    def __init__(self, tape: Tape, index: int) -> None:
        self.tape = tape
        self.index = index

    def __del__(self) -> None:
        if self.index:
            self.tape.events.append(-self.index)


class Node:
    """A step of backward: the closure that computes it, and where its gradients go."""

    __slots__ = ("backward", "edges", "outputs", "owns_gradient", "scope", "segment")

    def __init__(
        self,
        backward: Callable[[Any], Sequence[Tensor | None]] | None,
        edges: Sequence[Edge | None],
        segment: tuple[int, int],
        scope: str,
    ) -> None:
        self.backward = backward
        self.edges = edges
        self.segment = segment
        self.scope = scope
        self.outputs = 1
        self.owns_gradient = False


class Edge(NamedTuple):
    """Where the gradient of one input goes, and the form it must have there."""

    target: Node | Parameter
    output: int
    dtype: Dtype
    numel: int
    batched: bool


class Tensor:
    """Shape of one sample (batched) or of the whole (fixed), element type, storage, and place in autograd's graph."""

    __slots__ = ("batched", "dtype", "is_view", "node", "numel", "output", "shape", "storage")

    def __init__(
        self,
        storage: Storage,
        shape: tuple[int, ...],
        dtype: Dtype,
        batched: bool,  # noqa: FBT001 - every tensor has one, and tensors are made by the thousand
        node: Node | Parameter | None = None,
        output: int = 0,
    ) -> None:
        self.storage = storage
        self.shape = shape
        self.numel = prod(shape)
        """Elements of one sample where batched, else of the whole."""
        self.dtype = dtype
        self.batched = batched
        self.node = node
        self.output = output
        self.is_view = False

    @property
    def tape(self) -> Tape:
        """The log that its storage is in."""
        return self.storage.tape

    @property
    def nbytes(self) -> int:
        """Bytes of one sample where batched, else of the whole."""
        return self.numel * self.dtype.itemsize

    @property
    def requires_grad(self) -> bool:
        """Whether backward reaches it."""
        return self.node is not None

    @property
    def data(self) -> Tensor:
        """The same storage outside autograd's graph (``detach()``); what a node keeps of its own output."""
        return Tensor(self.storage, self.shape, self.dtype, self.batched)

    def view(self, *shape: int) -> Tensor:
        """The same storage and graph position in another shape."""
        return Tensor(self.storage, shape, self.dtype, self.batched, self.node, self.output)


@dataclass(eq=False)
class Parameter:
    """A weight: allocated with the model, alive throughout. ``copies`` counts the blocks it stands for.

    ``embedding`` marks tables and output heads, which some optimizers treat apart from hidden matrices.
    ``unreached``: backward does not come to it (a head that the loss does not read): its gradient stays None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    trainable: bool
    copies: int
    stored_bytes: int
    embedding: bool = False
    unreached: bool = False
    grad: Tensor | None = field(default=None, repr=False)

    @property
    def numel(self) -> int:
        """Elements of one copy."""
        return prod(self.shape)

    @property
    def learns(self) -> bool:
        """Whether it gets a gradient, and so an optimizer's state: torch's optimizers skip those without."""
        return self.trainable and not self.unreached


@dataclass(frozen=True)
class Autocast:
    """torch.autocast: matrix products in ``dtype``, chosen operations in fp32."""

    dtype: Dtype


class Tape:
    """The log of one training step and the graph that backward walks."""

    def __init__(self, autocast: Autocast | None = None, *, gradients_kept: bool = False, fp8: bool = False) -> None:
        self.events: list[int] = []
        self.per_sample: list[int] = [0]
        self.fixed: list[int] = [0]
        self.labels: list[str] = [""]
        self.copies: list[int] = [1]
        self.reductions: dict[int, Reduction] = {}
        self.optional: set[int] = set()
        self.gradient_storages: set[int] = set()
        self.reached: set[Parameter] = set()
        self.segments: list[Segment] = [Segment(0, Phase.FORWARD, -1, 1)]
        self.kernels: list[Kernel] = []
        self.autocast = autocast
        self.gradients_kept = gradients_kept
        self.fp8 = fp8
        self.recording = True
        self.scope = ""
        self._inputs: list[Tensor] = []
        self._nodes: list[Node] = []
        self._buffers: dict[Node, list[Tensor | None]] = {}
        self._casts: dict[Parameter, Tensor] = {}
        self._phase = Phase.FORWARD
        self._block = (-1, 1)
        self._phantom = False
        self._packs = 0
        self._pack_limit = 0
        self._last_pack = -1
        self._kept_results: list[Tensor | None] | None = None
        self._recomputing = False

    # ---- memory

    def empty(self, shape: tuple[int, ...], dtype: Dtype, *, batched: bool) -> Tensor:
        """A new tensor in new memory."""
        if self._phantom:
            return Tensor(Storage(self, 0), shape, dtype, batched)
        index = len(self.per_sample)
        made = Tensor(Storage(self, index), shape, dtype, batched)
        self.per_sample.append(made.nbytes if batched else 0)
        self.fixed.append(0 if batched else made.nbytes)
        self.labels.append(self.scope)
        self.copies.append(self._block[1])
        self.events.append(index)
        return made

    def like(self, tensor: Tensor, dtype: Dtype | None = None) -> Tensor:
        """A new tensor of the same shape."""
        return self.empty(tensor.shape, dtype or tensor.dtype, batched=tensor.batched)

    def batch_input(self, shape: tuple[int, ...], dtype: Dtype) -> Tensor:
        """Images, labels and the like: the training loop holds them for the whole step."""
        something_of(shape)
        with self.within("inputs"):
            made = self.empty(shape, dtype, batched=True)
        self._inputs.append(made)
        return made

    def workspace(self, per_sample_bytes: int, fixed_bytes: int, *, optional: bool = False) -> None:
        """Memory that a kernel takes for its own run; ``optional``: another kernel runs where it is not to be had."""
        if not self._phantom and per_sample_bytes + fixed_bytes > 0:
            index = self._momentary(per_sample_bytes, fixed_bytes)
            if optional:
                self.optional.add(index)

    def reduction(self, grad: Tensor, columns: int) -> None:
        """The buffer of a sum over a gradient's rows, samples included."""
        if not self._phantom:
            rows = grad.numel // columns
            index = self._momentary(0, 0)
            self.reductions[index] = Reduction(*((rows, 0) if grad.batched else (0, rows)), columns)

    def _momentary(self, per_sample_bytes: int, fixed_bytes: int) -> int:
        index = len(self.per_sample)
        self.per_sample.append(per_sample_bytes)
        self.fixed.append(fixed_bytes)
        self.labels.append(WORKSPACE)
        self.copies.append(self._block[1])
        self.events += (index, -index)
        return index

    def _mark(self) -> None:
        block, repeats = self._block
        last = self.segments[-1]
        if (last.phase, last.block) != (self._phase, block):
            self.segments.append(Segment(len(self.events), self._phase, block, repeats))

    @contextmanager
    def block(self, index: int, repeats: int) -> Iterator[None]:
        """A block of a repeated group: ``index`` is unique in the model, it stands for ``repeats`` blocks."""
        outer, self._block = self._block, (index, repeats)
        self._mark()
        yield
        self._block = outer
        self._mark()

    @contextmanager
    def within(self, scope: str) -> Iterator[None]:
        """Labels what is allocated inside, for the breakdown."""
        outer, self.scope = self.scope, scope
        yield
        self.scope = outer

    # ---- time

    def kernel(
        self, reads: Sequence[Tensor], writes: Sequence[Tensor], *, threads: int = 0, same_call: bool = False
    ) -> None:
        """A kernel bound by memory traffic."""
        if self._phantom:
            return
        batched = fixed = 0
        for tensor in (*reads, *writes):
            if tensor.batched:
                batched += tensor.nbytes
            else:
                fixed += tensor.nbytes
        sizes = (0, 0, batched, fixed, 0, 0, 0, 0, reads[0].dtype.itemsize if threads else 0)
        where = (self._phase, self._block[1], self._recomputing)
        self.kernels.append(Kernel(*where, *sizes, threads=threads, same_call=same_call))

    def product(
        self, rows: int, columns: int, inner: int, *, batched: bool, itemsize: int, count: int = 1,
        contracts_rows: bool = False, operand_bytes: int | None = None, vector: bool = False, same_call: bool = False,
    ) -> None:  # fmt: skip
        """A matrix product; rows per sample where batched (else fixed).

        ``count`` of them are separate products in one launch (per sample where batched), as in attention.
        ``operand_bytes`` is the traffic of the operands that have the rows, where it is not their size as matrices (a
        convolution reads each input once, not once for each position of its window). ``vector``: on the GPU's vector
        units, which compute in fp32, not on its tensor cores.
        """
        if self._phantom:
            return
        flops = 2 * rows * columns * inner * count
        traffic = (rows * (inner + columns) * itemsize if operand_bytes is None else operand_bytes) * count
        weights = columns * inner * itemsize * count
        shape = (columns, inner, itemsize)
        if not batched:
            sizes = (0, flops, 0, traffic + weights, 0, rows, *shape, 0, count)
        elif count == 1:
            sizes = (flops, 0, traffic, weights, rows, 0, *shape, 0, 1)
        else:
            sizes = (flops, 0, traffic + weights, 0, 0, rows, *shape, count, 0)
        where = (self._phase, self._block[1], self._recomputing)
        convolution = operand_bytes is not None
        kernel = Kernel(
            *where, *sizes, contracts_rows, same_call=same_call, convolution=convolution, vector=vector
        )  # fmt: skip
        self.kernels.append(kernel)

    def fused_attention(
        self, kind: Fused, rows: int, keys: int, width: int, products: int, moves: Sequence[Tensor], count: int,
        *, drops: bool,
    ) -> None:  # fmt: skip
        """An attention kernel: ``products`` of ``rows`` x ``keys`` x ``width`` for each of ``count`` heads of a sample.

        ``moves`` is what it reads and writes; the scores stay on the chip. ``drops``: with dropout.
        """
        if self._phantom:
            return
        flops = 2 * rows * keys * width * products * count
        traffic = sum(t.nbytes for t in moves)
        sizes = (flops, 0, traffic, 0, 0, rows, keys, width, moves[0].dtype.itemsize, count, 0)
        where = (self._phase, self._block[1], self._recomputing)
        self.kernels.append(Kernel(*where, *sizes, fused=kind, drops=drops))

    # ---- autograd

    def record(
        self, out: Tensor, inputs: Sequence[Tensor], backward: Callable[[Any], Sequence[Tensor | None]]
    ) -> Tensor:
        """Puts ``out`` into the graph: ``backward`` takes its gradient and returns one for each input (None: none)."""
        return self.record_many([out], inputs, backward)[0]

    def record_many(
        self, outs: list[Tensor], inputs: Sequence[Tensor], backward: Callable[[Any], Sequence[Tensor | None]]
    ) -> list[Tensor]:
        """`record` for an operation with several outputs: ``backward`` takes the list of their gradients."""
        if not self.recording:
            return outs
        edges = [None if i.node is None else Edge(i.node, i.output, i.dtype, i.numel, i.batched) for i in inputs]
        if not any(edges):
            return outs
        node = Node(backward, edges, self._block, self.scope)
        node.outputs = len(outs)
        for position, out in enumerate(outs):
            out.node = node
            out.output = position
        self._nodes.append(node)
        return outs

    def saves(self) -> None:
        """To be called where autograd packs a saved tensor, before the node that keeps it is recorded.

        torch.utils.checkpoint (non-reentrant, early stop) does not recompute what follows the last saved tensor. Where
        nothing is recorded nothing is packed.
        """
        if not self.recording:
            return
        self._packs += 1
        self._last_pack = len(self._nodes)
        if self._packs == self._pack_limit:
            self._phantom = True

    def leaf(self, tensor: Tensor) -> Tensor:
        """``tensor.requires_grad_()``: wants a gradient where nothing that trains lies behind; the graph holds it."""
        held = [tensor.data]

        def accumulate(_: object) -> Sequence[Tensor | None]:
            held.clear()
            return ()

        node = Node(accumulate, (), self._block, self.scope)
        self._nodes.append(node)
        return Tensor(tensor.storage, tensor.shape, tensor.dtype, tensor.batched, node)

    def parameter(self, parameter: Parameter) -> Tensor:
        """The parameter as an operand."""
        node = parameter if parameter.trainable else None
        return Tensor(Storage(self, 0), parameter.shape, parameter.dtype, batched=False, node=node)

    def constant(self, shape: tuple[int, ...], dtype: Dtype) -> Tensor:
        """A buffer of the model as an operand: its memory is the model's, it has no gradient."""
        return Tensor(Storage(self, 0), shape, dtype, batched=False)

    def cast_parameter(self, parameter: Parameter, dtype: Dtype) -> Tensor:
        """The parameter in ``dtype``: autocast casts each trainable fp32 weight once and keeps the copy to its end."""
        if parameter.dtype is dtype:
            return self.parameter(parameter)
        if parameter in self._casts:
            return self._casts[parameter]
        with self.within("casts"):
            out = self.empty(parameter.shape, dtype, batched=False)
        operand = self.parameter(parameter)
        self.kernel([operand], [out])
        self.record(out, [operand], lambda grad: [self.cast_gradient(grad, parameter.dtype)])
        if parameter.trainable and parameter.dtype is Dtype.FP32:
            self._casts[parameter] = out
        return out

    def cast_gradient(self, grad: Tensor, dtype: Dtype) -> Tensor:
        """A gradient in another type."""
        out = self.like(grad, dtype)
        self.kernel([grad], [out])
        return out

    def end_autocast(self) -> None:
        """Leaving torch.autocast drops its cache of casts."""
        self._casts.clear()

    def backward(self, loss: Tensor) -> None:
        """Runs backward from the loss, which the caller must not hold any longer than this call."""
        self._phase = Phase.BACKWARD
        self._mark()
        if not isinstance(loss.node, Node):
            return
        self._buffers[loss.node] = [self.like(loss)]
        self._run()
        self._block = (-1, 1)
        self._mark()

    def _run(self, *, recomputed: bool = False) -> None:
        """Walks the nodes at hand. Gradients of nodes outside a recomputed block wait for the walk that reaches it.

        What a ``recomputed`` block saved is handed out once, and gone as soon as its node has used it.
        """
        buffers = self._buffers
        nodes = self._nodes
        while nodes:
            node = nodes.pop()
            arrived = buffers.pop(node, None)
            # The loss holds the last node, and with edges all before it: in the page they would be freed one inside the
            # other, deeper than a browser's stack.
            backward, edges = node.backward, node.edges
            node.backward, node.edges = None, ()
            if arrived is None or backward is None:
                continue
            if node.segment != self._block:
                self._block = node.segment
                self._mark()
            self.scope = node.scope
            gradients = list(backward(arrived if node.owns_gradient or node.outputs > 1 else arrived[0]))
            if recomputed:
                backward = None
            for position, edge in enumerate(edges):
                gradient, gradients[position] = gradients[position], None
                if edge is not None and gradient is not None:
                    gradients[position] = self._formed(edge, gradient)
                del gradient
            del backward, arrived
            for position, edge in enumerate(edges):
                gradient, gradients[position] = gradients[position], None
                if edge is not None and gradient is not None:
                    self._deliver(edge, gradient)
                del gradient

    def _formed(self, edge: Edge, grad: Tensor) -> Tensor:
        """The gradient in its input's form: a sum over broadcast dimensions and a cast make new tensors.

        What the node had saved and received lives until all its gradients have their form (torch/csrc/autograd/
        engine.cpp, call_function and validate_outputs).
        """
        if grad.batched != edge.batched or grad.numel != edge.numel:
            reduced = self.empty((edge.numel,), grad.dtype, batched=edge.batched)
            self.kernel([grad], [reduced])
            if grad.batched and not edge.batched:
                self.reduction(grad, edge.numel)
            grad = reduced
            del reduced
        return grad if grad.dtype is edge.dtype else self.cast_gradient(grad, edge.dtype)

    def _deliver(self, edge: Edge, grad: Tensor) -> None:
        """Adds a gradient to what has arrived at its input.

        A second gradient is added in place, but to a view (the reshaped or transposed result of a product) out of place
        (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace; functions/accumulate_grad.h).
        """
        target = edge.target
        if isinstance(target, Parameter):
            self.reached.add(target)
            if self.gradients_kept:
                self.kernel([grad, grad], [grad])
            else:
                target.grad = self._sum(target.grad, grad)
                self.gradient_storages.add(target.grad.storage.index)
            return
        slots = self._buffers.setdefault(target, [None] * target.outputs)
        slots[edge.output] = self._sum(slots[edge.output], grad)

    def _sum(self, old: Tensor | None, new: Tensor) -> Tensor:
        if old is None:
            kept = new.data
            kept.is_view = new.is_view
            return kept
        self.kernel([old, new], [old])
        return self.like(old) if old.is_view else old

    def _start_at(self, roots: list[tuple[Node | Parameter | None, int]], gradients: list[Tensor | None]) -> None:
        """Gives the results of a recomputed block their gradients; both lists end empty, for nothing else to hold."""
        while roots:
            root, output = roots.pop()
            gradient = gradients.pop()
            if isinstance(root, Node) and gradient is not None:
                self._buffers.setdefault(root, [None] * root.outputs)[output] = gradient

    def recall(self) -> Tensor | None:
        """In recomputation under a selective policy: the result kept the first time; None where it is computed."""
        if self._kept_results is None or not self._recomputing:
            return None
        kept = self._kept_results.pop(0)
        return None if kept is None else kept.data

    def remember(self, out: Tensor, *, always: bool = False) -> None:
        """Offers the result of a product or an attention to a selective policy, which keeps every second product."""
        if self._kept_results is not None and not self._recomputing:
            keeps = always or len(self._kept_results) % 2 == 0
            self._kept_results.append(out.data if keeps else None)

    def checkpoint(self, function: Callable[..., Tensor], *inputs: Tensor, selective: bool = False) -> Tensor:
        """`checkpoint_many` for a function with one result."""
        return self.checkpoint_many(lambda *given: [function(*given)], *inputs, selective=selective)[0]

    def checkpoint_many(
        self, function: Callable[..., list[Tensor]], *inputs: Tensor, selective: bool = False
    ) -> list[Tensor]:
        """torch.utils.checkpoint(use_reentrant=False): keeps the inputs, runs ``function`` again in backward.

        ``selective`` keeps the results of every second matrix product and of attention, so that those are not computed
        again (torch.utils.checkpoint.create_selective_checkpoint_contexts with torchtitan's default policy).
        """
        if not self.recording:
            return function(*inputs)
        self.recording = False
        kept_results: list[Tensor | None] | None = [] if selective else None
        self._kept_results = kept_results
        outs = function(*(i.data for i in inputs))
        self._kept_results = None
        self.recording = True
        kept = tuple(i.data for i in inputs)
        outer_block = self._block
        scope = self.scope

        def backward(arrived: list[Tensor | None]) -> Sequence[Tensor | None]:
            sinks: list[Tensor | None] = [None] * len(kept)

            def sink(position: int) -> Callable[[Tensor], Sequence[Tensor | None]]:
                def keep(gradient: Tensor) -> Sequence[Tensor | None]:
                    sinks[position] = gradient
                    return ()

                return keep

            outer_nodes, outer_casts = self._nodes, self._casts

            def run() -> list[tuple[Node | Parameter | None, int]]:
                """``function`` on the kept inputs: where its results stand among the nodes, which are the tape's."""
                self._nodes, self._casts, self._packs, self._last_pack = [], {}, 0, -1
                fresh = []
                for position, tensor in enumerate(kept):
                    node = Node(sink(position), (), outer_block, scope)
                    self._nodes.append(node)
                    fresh.append(Tensor(tensor.storage, tensor.shape, tensor.dtype, tensor.batched, node))
                with self.within(scope):
                    return [(out.node, out.output) for out in function(*fresh)]

            # The graph of the first run has lost its saved tensors. Its nodes behind the last saved one need none,
            # so they run first; the next one asks for what it saved, and that recomputes the block.
            self._phantom = True
            roots = run()
            self._phantom = False
            graph, packs, last = self._nodes, self._packs, self._last_pack
            self._start_at(roots, arrived)
            self._nodes = graph[last + 1 :]
            self._run()
            waiting = {i: self._buffers.pop(node) for i, node in enumerate(graph) if node in self._buffers}
            del graph
            self._pack_limit = packs
            self._recomputing, self._kept_results = True, kept_results
            run()
            self._recomputing, self._kept_results = False, None
            self._pack_limit, self._phantom = 0, False
            del self._nodes[last + 1 :]
            for i in list(waiting):
                self._buffers[self._nodes[i]] = waiting.pop(i)
            self._casts = outer_casts
            self._run(recomputed=True)
            self._nodes, self._casts = outer_nodes, outer_casts
            return sinks

        edges = [None if i.node is None else Edge(i.node, i.output, i.dtype, i.numel, i.batched) for i in inputs]
        node = Node(backward, edges, self._block, self.scope)
        node.owns_gradient = True
        node.outputs = len(outs)
        self._nodes.append(node)
        return [Tensor(o.storage, o.shape, o.dtype, o.batched, node, i) for i, o in enumerate(outs)]
