"""One training step's memory: the replay's log with weights, optimizer and workspaces, run through the allocator."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from calc.allocator import Block, CachingAllocator, OutOfMemoryError
from calc.architectures.attention import EAGER_RECOMPUTED
from calc.architectures.registry import architecture
from calc.errors import ScenarioError
from calc.optimizers import OptimizerMemory, optimizer_memory
from calc.replay.layers import Build
from calc.replay.profile import Instant, Profile, rounded
from calc.replay.tape import Autocast, Dtype, Parameter, Phase, Segment, Tape
from calc.replay.workspaces import H100, Multiprocessors
from calc.scaling.layout import Offload
from calc.scaling.memory import Division, ModelShape, division
from calc.scenario import Attention, Checkpointing, Loss, Method, Precision, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calc.architectures.model import Shape
    from calc.scaling.layout import Layout
    from calc.scenario import ModelChoice, Optimizer, Scenario

MIB = 2**20
CUBLAS_WORKSPACE_BYTES = 4096 * 2 * 1024 + 16 * 8 * 1024
"""cuBLAS's workspace a handle, ":4096:2:16:8" (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize)."""
CUBLAS_WORKSPACE_BYTES_HOPPER = 32 * MIB
"""The same from compute capability 9.0 on."""
REMEMBERED_ALLOCATIONS = 256
SHOWN_LAYERS = 20
THREADS_PER_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536}
"""Resident threads by compute capability, 2048 where none is named (CUDA programming guide, specifications)."""


class Recipe(NamedTuple):
    """What the log depends on beside the model and its input."""

    precision: Precision
    checkpointing: Checkpointing
    attention: Attention
    loss: Loss
    method: Method
    lora_rank: int
    lora_targets: str | tuple[str, ...]
    gradients_kept: bool


def parameter_dtype(precision: Precision) -> Dtype:
    """The type that weights are stored in."""
    if precision in (Precision.BF16, Precision.BF16_MASTER, Precision.FP8):
        return Dtype.BF16
    return Dtype.FP16 if precision is Precision.FP16 else Dtype.FP32


def autocast_of(precision: Precision) -> Autocast | None:
    """torch.autocast's setting, None outside it."""
    if precision is Precision.AMP_BF16:
        return Autocast(Dtype.BF16)
    return Autocast(Dtype.FP16) if precision is Precision.AMP_FP16 else None


class _Stretch(NamedTuple):
    """A segment's events, and those of a later repetition: what it neither makes nor drops itself is left out there."""

    segment: Segment
    events: tuple[int, ...]
    lasting: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ReplayedStep:
    """A model under a recipe, replayed once; answers for any micro-batch."""

    profile: Profile
    parameters: tuple[Parameter, ...]
    buffer_bytes: int
    gradients_kept: bool
    units: tuple[tuple[int, int], ...]
    """Parameters of each repeated layer, and how many layers it stands for: what FSDP wraps."""
    compute_itemsize: int

    @cached_property
    def parameter_count(self) -> int:
        """All parameters of the model."""
        return sum(p.numel * p.copies for p in self.parameters)

    @cached_property
    def cublas_handles(self) -> int:
        """How many of forward's thread and backward's compute matrix products: each has a handle with a workspace."""
        multiplying = {k.phase for k in self.profile.kernels if k.columns and not k.convolution and not k.vector}
        return len(multiplying)

    @cached_property
    def trainable_count(self) -> int:
        """Parameters that train."""
        return sum(p.numel * p.copies for p in self.parameters if p.trainable)

    @cached_property
    def in_model_order(self) -> tuple[Parameter, ...]:
        """Each parameter as often as it stands in the model, repeated blocks one after another."""
        out: list[Parameter] = []
        i = 0
        while i < len(self.parameters):
            copies = self.parameters[i].copies
            j = i
            while j < len(self.parameters) and self.parameters[j].copies == copies:
                j += 1
            out += self.parameters[i:j] * copies
            i = j
        return tuple(out)

    @cached_property
    def weights_bytes(self) -> int:
        """Parameters and buffers of the whole model."""
        return sum(rounded(p.stored_bytes) * p.copies for p in self.parameters) + self.buffer_bytes

    @cached_property
    def gradient_bytes(self) -> int:
        """All gradients of the whole model."""
        return sum(rounded(p.numel * p.dtype.itemsize) * p.copies for p in self.parameters if p.learns)

    @cached_property
    def shape_for_division(self) -> ModelShape:
        """What dividing the model among GPUs needs to know of it."""
        total = max(self.parameter_count, 1)
        inside = sum(size * copies for size, copies in self.units)
        experts = sum(p.numel * p.copies for p in self.parameters if "experts" in p.name)
        gradients = sum(p.numel * p.dtype.itemsize * p.copies for p in self.parameters if p.learns)
        return ModelShape(
            gathered_bytes=sum(
                p.numel * min(p.dtype.itemsize, self.compute_itemsize) * p.copies for p in self.parameters
            ),
            gradient_bytes=gradients,
            block_share=max((size for size, _ in self.units), default=0) / total,
            root_share=(total - inside) / total,
            expert_share=experts / total,
        )

    @cached_property
    def counterparts(self) -> dict[int, int]:
        """For a tensor of a repeated block's predecessor: the repeated block's own that has its place later on.

        What the repeated block drops of its predecessor, in order, is what its successor drops of it. The predecessor
        is the block before where forward made the tensor, the block behind where backward did.
        """
        dropped = _dropped_of_neighbours(self.stretches)
        pairs: dict[int, int] = {}
        for stretch in self.stretches:
            if stretch.segment.repeats > 1:
                phase, block = stretch.segment.phase, stretch.segment.block
                for maker, onwards in ((Phase.FORWARD, 1), (Phase.BACKWARD, -1)):
                    here = dropped.get((maker, phase, block), [])
                    pairs.update(zip(here, dropped.get((maker, phase, block + onwards), []), strict=False))
        return pairs

    @cached_property
    def stretches(self) -> tuple[_Stretch, ...]:
        """The log cut at segments."""
        profile = self.profile
        found = []
        for start, end, segment in profile.stretches():
            events = profile.events[start:end]
            made = {e for e in events if e > 0}
            dropped = {-e for e in events if e < 0}
            local = made & dropped
            found.append(_Stretch(segment, events, tuple(e for e in events if abs(e) not in local)))
        return tuple(found)


def _dropped_of_neighbours(stretches: tuple[_Stretch, ...]) -> dict[tuple[Phase, Phase, int], list[int]]:
    """Tensors that a block drops, in order, of those that its predecessor made in forward, or in backward.

    Keys are the phase in which they were made, the phase in which they are dropped, and the block that drops them.
    """
    made: dict[tuple[Phase, int], set[int]] = {}
    for stretch in stretches:
        key = stretch.segment.phase, stretch.segment.block
        made.setdefault(key, set()).update(e for e in stretch.events if e > 0)
    dropped: dict[tuple[Phase, Phase, int], list[int]] = {}
    for stretch in stretches:
        phase, block = stretch.segment.phase, stretch.segment.block
        for maker, back in ((Phase.FORWARD, -1), (Phase.BACKWARD, 1)):
            neighbour = made.get((maker, block + back), set()) if block >= 0 else set()
            dropped.setdefault((maker, phase, block), []).extend(-e for e in stretch.events if -e in neighbour)
    return dropped


@lru_cache(maxsize=256)
def _replay(model: ModelChoice, shape: Shape, recipe: Recipe) -> ReplayedStep:
    lora = recipe.method is not Method.FULL
    # Fused attention already computes its scores again: there "selective" is a policy over the block's products.
    core_again = recipe.checkpointing is Checkpointing.SELECTIVE and recipe.attention is Attention.EAGER
    build = Build(
        parameter_dtype(recipe.precision),
        full=not lora,
        quantized=recipe.method is Method.QLORA,
        lora_rank=recipe.lora_rank if lora else 0,
        lora_targets=recipe.lora_targets,
        checkpointing="none" if core_again else str(recipe.checkpointing),
        attention=EAGER_RECOMPUTED if core_again else str(recipe.attention),
        fused_loss=recipe.loss is Loss.FUSED,
        classifies=model.task in (Task.SEQUENCE_CLASSIFICATION, Task.IMAGE_CLASSIFICATION),
    )
    built = architecture(model.architecture)(build, model.config)
    fp8 = recipe.precision is Precision.FP8
    tape = Tape(autocast_of(recipe.precision), gradients_kept=recipe.gradients_kept, fp8=fp8)
    loss = built.loss(tape, shape)
    tape.end_autocast()
    tape.backward(loss)
    del loss
    compute = tape.autocast.dtype if tape.autocast is not None else build.dtype
    step = ReplayedStep(
        Profile.of(tape),
        tuple(build.parameters),
        build.buffer_bytes,
        recipe.gradients_kept,
        tuple(build.units),
        compute.itemsize,
    )
    for parameter in build.parameters:
        parameter.grad = None
        parameter.unreached = parameter not in tape.reached
    return step


def replay(scenario: Scenario, *, gradients_kept: bool = False) -> ReplayedStep:
    """The scenario's step, replayed once for all micro-batches.

    Raises
    ------
    ScenarioError
        Where adapters find no layer to adapt.
    """
    recipe = Recipe(
        scenario.precision,
        scenario.checkpointing,
        scenario.attention,
        scenario.loss,
        scenario.method,
        scenario.lora_rank if scenario.method is not Method.FULL else 0,
        scenario.lora_targets if scenario.method is not Method.FULL else "all-linear",
        gradients_kept,
    )
    step = _replay(scenario.model, scenario.shape, recipe)
    if step.trainable_count == 0:
        raise _nothing_adapted(scenario, step)
    return step


def _nothing_adapted(scenario: Scenario, step: ReplayedStep) -> ScenarioError:
    matrices = {p.name.removesuffix(".weight") for p in step.parameters if len(p.shape) == 2 and not p.embedding}
    if not matrices:
        return ScenarioError("method", f"{scenario.model.name} has no linear layer for adapters: use full")
    names = ", ".join(sorted(matrices)[:SHOWN_LAYERS])
    return ScenarioError("lora_targets", f"no linear layer is named so: use all-linear, or of {names}")


@lru_cache(maxsize=256)
def _optimizer(step: ReplayedStep, optimizer: Optimizer, *, master_weights: bool) -> OptimizerMemory:
    return optimizer_memory(optimizer, list(step.in_model_order), master_weights=master_weights)


@lru_cache(maxsize=256)
def _division(step: ReplayedStep, layout: Layout) -> Division:
    return division(layout, step.shape_for_division)


class _Shares(NamedTuple):
    """What one GPU holds of each part where several share the model; all 1 on one GPU."""

    weights: float
    gradients: float
    optimizer_state: float
    step_temporaries: float
    storages: tuple[float, ...] | None
    gathered_bytes: int
    bucket_bytes: int


WHOLE = _Shares(1, 1, 1, 1, None, 0, 0)


def _fullest_stage(profile: Profile, parts: Division, stages: int) -> tuple[float, float]:
    """Shares of activations and logits on the pipeline stage that holds the most of them.

    The first holds as many micro-batches as there are stages, so its share of the layers is undone, and no logits; the
    last holds one micro-batch and the logits (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3).
    """
    if stages == 1:
        return parts.activations, parts.logits_and_loss
    kept = profile.kept_for_backward
    sizes = [nbytes * copies for nbytes, copies in zip(profile.per_sample, profile.copies, strict=True)]
    layers = parts.activations * sum(sizes[storage] for storage in kept if profile.labels[storage] != "logits")
    logits = parts.logits_and_loss * sum(n for n, label in zip(sizes, profile.labels, strict=True) if label == "logits")
    if layers >= layers / stages + logits:
        return parts.activations, 0.0
    return parts.activations / stages, parts.logits_and_loss


@lru_cache(maxsize=256)
def _shares(step: ReplayedStep, layout: Layout) -> _Shares:
    parts = _division(step, layout)
    profile = step.profile
    kept = profile.kept_for_backward
    layers, logits = _fullest_stage(profile, parts, layout.pipeline)

    def share(storage: int) -> float:
        if storage in profile.gradients:
            return parts.gradients
        label = profile.labels[storage]
        if label == "logits":
            return logits
        if label == "casts":
            return parts.casts
        return layers if storage in kept else parts.pass_temporaries

    storages = tuple(share(storage) for storage in range(len(profile.labels)))
    return _Shares(
        parts.weights, parts.gradients, parts.optimizer_state, parts.step_temporaries, storages,
        parts.gathered_bytes, parts.bucket_bytes,
    )  # fmt: skip


@dataclass(frozen=True)
class StepMemory:
    """A step with its optimizer on a card: peaks by micro-batch."""

    step: ReplayedStep
    optimizer: OptimizerMemory
    workspace_bytes: int
    multiprocessors: Multiprocessors = H100
    shares: _Shares = WHOLE
    activation_share: float = 1.0
    """By how much what grows with the micro-batch is more than replayed: a person's own calibration."""
    _allocations: dict[int, Allocation] = field(default_factory=dict, compare=False, hash=False, repr=False)

    def sizes(self, micro_batch: int, *, lean: bool = False) -> list[int]:
        """Bytes of each storage of the log on one GPU; ``lean``: nothing for optional workspaces."""
        grown = micro_batch if self.activation_share == 1 else micro_batch * self.activation_share
        sizes = self.step.profile.sizes(grown, self.multiprocessors)
        for storage in self.step.profile.optional if lean else ():
            sizes[storage] = 0
        if self.shares.storages is None:
            return sizes
        return [rounded(int(size * share)) for size, share in zip(sizes, self.shares.storages, strict=True)]

    @cached_property
    def weight_requests(self) -> tuple[int, ...]:
        """Bytes of each weight."""
        return tuple(int(p.stored_bytes * self.shares.weights) for p in self.step.in_model_order)

    @cached_property
    def state_requests(self) -> tuple[int, ...]:
        """Bytes of each state tensor of the optimizer."""
        return tuple(int(n * self.shares.optimizer_state) for n in self.optimizer.state_requests)

    @cached_property
    def gradient_requests(self) -> tuple[int, ...]:
        """Bytes of each gradient."""
        return tuple(
            int(p.numel * p.dtype.itemsize * self.shares.gradients) for p in self.step.in_model_order if p.learns
        )

    @cached_property
    def step_requests(self) -> tuple[int, ...]:
        """Bytes of the optimizer step's temporaries."""
        return tuple(int(n * self.shares.step_temporaries) for n in self.optimizer.step_requests)

    @cached_property
    def exchange_requests(self) -> tuple[int, ...]:
        """Bytes that exchanging with other GPUs holds throughout: gathered units, buckets."""
        return tuple(n for n in (self.shares.gathered_bytes, self.shares.bucket_bytes) if n)

    @cached_property
    def weights_bytes(self) -> int:
        """Weights and buffers."""
        return sum(map(rounded, self.weight_requests)) + self.step.buffer_bytes

    @cached_property
    def state_bytes(self) -> int:
        """Optimizer state, master weights included."""
        return sum(map(rounded, self.state_requests))

    @cached_property
    def gradient_bytes(self) -> int:
        """All gradients."""
        return sum(map(rounded, self.gradient_requests))

    @cached_property
    def constant_bytes(self) -> int:
        """Alive throughout: weights, optimizer state, workspaces, exchange, and gradients where they are kept."""
        kept = self.gradient_bytes if self.step.gradients_kept else 0
        exchange = sum(map(rounded, self.exchange_requests))
        return self.weights_bytes + self.state_bytes + self.workspace_bytes + exchange + kept

    @cached_property
    def step_peak_bytes(self) -> int:
        """Peak of the optimizer's step."""
        gradients = 0 if self.step.gradients_kept else self.gradient_bytes
        return self.constant_bytes + gradients + sum(map(rounded, self.step_requests))

    def requested_peaks(self, micro_batch: int) -> dict[Phase, int]:
        """Peak of each phase as the tensors' own sizes, before the allocator's rests."""
        constant = self.constant_bytes
        peaks = {phase: constant + instant.alive_bytes for phase, instant in self.instants(micro_batch).items()}
        peaks[Phase.STEP] = self.step_peak_bytes
        return peaks

    def requested_peak(self, micro_batch: int) -> int:
        """The least that the step can do with: the highest of `requested_peaks` without optional workspaces."""
        alive = max(instant.alive_bytes for instant in self.instants(micro_batch, lean=True).values())
        return max(self.constant_bytes + alive, self.step_peak_bytes)

    def instants(self, micro_batch: int, *, lean: bool = False) -> dict[Phase, Instant]:
        """Where forward and backward peak."""
        return self.step.profile.peaks(self.sizes(micro_batch, lean=lean))

    def allocate(self, micro_batch: int) -> Allocation:
        """What the caching allocator counts for a steady step with all the memory it asks for."""
        known = self._allocations.get(micro_batch)
        if known is None:
            if len(self._allocations) >= REMEMBERED_ALLOCATIONS:
                self._allocations.clear()
            known = self._allocations[micro_batch] = self.allocate_within(micro_batch, None)
        return known

    def allocate_within(self, micro_batch: int, capacity: int | None) -> Allocation:
        """Runs a steady step through the caching allocator; `OutOfMemoryError` where ``capacity`` is too small.

        Where memory runs short, caches are given back, and then optional workspaces left out.
        """
        try:
            return self.allocate_in_turn((micro_batch,), capacity)[0]
        except OutOfMemoryError:
            if not self.step.profile.optional:
                raise
        return self.allocate_in_turn((micro_batch,), capacity, lean=True)[0]

    def allocate_on(self, micro_batch: int, limit_bytes: int) -> Allocation:
        """`allocate_within` a card's limit; with all the memory it asks for where the step does not fit."""
        allocation = self.allocate(micro_batch)
        if allocation.reserved_bytes <= limit_bytes:
            return allocation
        try:
            return self.allocate_within(micro_batch, limit_bytes)
        except OutOfMemoryError:
            return allocation

    def allocate_in_turn(
        self, micro_batches: Sequence[int], capacity: int | None, *, lean: bool = False
    ) -> list[Allocation]:
        """Two steps at each micro-batch, one after another in one process: the second one's peaks, what both reserved.

        What a micro-batch leaves cached is there for the next, and counts as reserved.
        """
        allocator = CachingAllocator(capacity)
        for request in self.weight_requests:
            allocator.malloc(request)
        if self.step.buffer_bytes:
            allocator.malloc(self.step.buffer_bytes)
        for _ in range(self.step.cublas_handles):
            allocator.malloc(self.workspace_bytes // self.step.cublas_handles)
        for request in self.exchange_requests:
            allocator.malloc(request)
        if self.step.gradients_kept:
            for request in self.gradient_requests:
                allocator.malloc(request)
        # The optimizer's state is made at the end of the first step, in what its backward has left free: the second
        # step is the first steady one.
        states = self.state_requests
        found = []
        for micro_batch in micro_batches:
            allocator.peak_reserved = allocator.reserved
            run = _Run(self.step, self.sizes(micro_batch, lean=lean), allocator)
            run.passes()
            for request in states:
                allocator.malloc(request)
            states = ()
            self._update(allocator)
            run.drop_gradients()
            peaks = run.passes()
            peaks[Phase.STEP] = self._update(allocator)
            run.drop_gradients()
            found.append(Allocation(peaks, allocator.peak_reserved, lean))
        return found

    def _update(self, allocator: CachingAllocator) -> int:
        """The optimizer's step: its temporaries, alive together; the peak."""
        allocator.peak_allocated = allocator.allocated
        for block in [allocator.malloc(n) for n in self.step_requests]:
            allocator.free(block)
        return allocator.peak_allocated


class Allocation(NamedTuple):
    """What the allocator counts for a step."""

    peaks: dict[Phase, int]
    reserved_bytes: int
    lean: bool = False
    """Whether optional workspaces were left out."""

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at any instant."""
        return max(self.peaks.values())


class _Run:
    """A log's events against an allocator, repeated blocks unrolled."""

    def __init__(self, step: ReplayedStep, sizes: list[int], allocator: CachingAllocator) -> None:
        self.stretches = step.stretches
        self.sizes = sizes
        self.allocator = allocator
        self.blocks: dict[int, list[Block | int]] = {}
        self.counterparts = step.counterparts

    def passes(self) -> dict[Phase, int]:
        """Forward and backward; the peak of each."""
        peaks: dict[Phase, int] = {}
        allocator = self.allocator
        for stretch in self.stretches:
            segment = stretch.segment
            allocator.peak_allocated = allocator.allocated
            for repetition in range(segment.repeats):
                whole = repetition in (0, 1, segment.repeats - 1)
                self._apply(stretch.events if whole else stretch.lasting, segment, repetition)
            peaks[segment.phase] = max(peaks.get(segment.phase, 0), allocator.peak_allocated)
        return peaks

    def drop_gradients(self) -> None:
        """``zero_grad(set_to_none=True)``."""
        for held in self.blocks.values():
            while held:
                self.allocator.free(held.pop())

    def _apply(self, events: tuple[int, ...], segment: Segment, repetition: int) -> None:
        allocator, sizes, blocks = self.allocator, self.sizes, self.blocks
        malloc, free = allocator.malloc, allocator.free
        in_block = segment.block >= 0
        counterparts = self.counterparts if repetition else {}
        for event in events:
            if event > 0:
                held = blocks.get(event)
                if held is None:
                    blocks[event] = [malloc(sizes[event])]
                else:
                    held.append(malloc(sizes[event]))
                continue
            held = blocks.get(-event)
            if in_block:
                if not held and -event in counterparts:
                    # A later repetition drops its predecessor's tensor, which the log names by the first one's.
                    held = blocks.get(counterparts[-event])
                if held:
                    free(held.pop())
            else:
                while held:
                    free(held.pop())


def step_memory(scenario: Scenario, *, gradients_kept: bool = False) -> StepMemory:
    """The scenario's step with its optimizer and card, on one of its GPUs."""
    step = replay(scenario, gradients_kept=gradients_kept)
    workspace = step.cublas_handles * cublas_workspace_bytes(scenario)
    return _step_memory(
        step,
        scenario.optimizer,
        scenario.precision,
        workspace,
        multiprocessors(scenario),
        scenario.layout,
        scenario.activation_share,
    )


@lru_cache(maxsize=512)
def _step_memory(
    step: ReplayedStep,
    optimizer: Optimizer,
    precision: Precision,
    workspace: int,
    multiprocessors: Multiprocessors,
    layout: Layout,
    activation_share: float,
) -> StepMemory:
    alone = layout.gpus == 1 and layout.cpu_offload is Offload.NONE
    shares = WHOLE if alone else _shares(step, layout)
    state = _optimizer(step, optimizer, master_weights=precision is Precision.BF16_MASTER)
    return StepMemory(step, state, workspace, multiprocessors, shares, activation_share)


def cublas_workspace_bytes(scenario: Scenario) -> int:
    """One cuBLAS handle's workspace on the scenario's card; the larger size where the card is not known."""
    card = scenario.gpu.catalog
    if card is not None and card.vendor != "NVIDIA":
        return CUBLAS_WORKSPACE_BYTES
    capability = card.compute_capability if card is not None else None
    hopper = capability is None or capability >= (9, 0)
    return CUBLAS_WORKSPACE_BYTES_HOPPER if hopper else CUBLAS_WORKSPACE_BYTES


def multiprocessors(scenario: Scenario) -> Multiprocessors:
    """The card's multiprocessors; an H100's where they are not known."""
    card = scenario.gpu.catalog
    if card is None or card.multiprocessors is None or card.compute_capability is None:
        return H100
    threads = THREADS_PER_MULTIPROCESSOR.get(card.compute_capability, H100.threads)
    return Multiprocessors(card.multiprocessors, threads)
