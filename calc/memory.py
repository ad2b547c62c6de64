"""One training step's memory: the replay's log with weights, optimizer and workspaces, run through the allocator."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from calc.allocator import CachingAllocator, OutOfMemoryError
from calc.architectures.attention import EAGER_RECOMPUTED
from calc.architectures.registry import architecture
from calc.errors import ScenarioError
from calc.least_input import too_small
from calc.optimizers import OptimizerMemory, optimizer_memory
from calc.replay.layers import Build
from calc.replay.profile import Instant, Profile, rounded, rounded_sum
from calc.replay.tape import Autocast, Dtype, Parameter, Phase, Tape, TooSmallError
from calc.replay.unrolled import Unrolled, unrolled
from calc.replay.workspaces import H100, Multiprocessors
from calc.scaling.layout import Offload
from calc.scaling.memory import Division, ModelShape, division, pipeline_activation_share
from calc.scenario import Attention, Checkpointing, Loss, Method, Precision, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from calc.allocator import Block
    from calc.architectures.model import Shape
    from calc.replay.tape import Tensor
    from calc.scaling.layout import Layout
    from calc.scenario import ModelChoice, Optimizer, Scenario

Key = TypeVar("Key")
Value = TypeVar("Value")

MIB = 2**20
CUBLAS_WORKSPACE_BYTES = 4096 * 2 * 1024 + 16 * 8 * 1024
"""cuBLAS's workspace a handle, ":4096:2:16:8" (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize)."""
CUBLAS_WORKSPACE_BYTES_HOPPER = 32 * MIB
"""The same from compute capability 9.0 on."""
REMEMBERED = 256
"""Runs of a step, and instants of its peaks, that are kept."""
SHOWN_LAYERS = 20


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
    def _largest_embedding(self) -> Parameter | None:
        return max((p for p in self.parameters if p.embedding), key=lambda p: p.numel, default=None)

    @cached_property
    def head_share(self) -> float:
        """Operations of forward that give the logits, one column a row of the largest embedding, as a share of all."""
        embedding = self._largest_embedding
        forward = [
            (kernel.columns, kernel.flops_per_sample * times)
            for kernel, times in self.profile.counted_kernels
            if kernel.phase is Phase.FORWARD
        ]
        rows = embedding.shape[0] if embedding else 0
        head = sum(operations for columns, operations in forward if columns and columns == rows)
        return head / max(sum(operations for _, operations in forward), 1)

    @cached_property
    def shape_for_division(self) -> ModelShape:
        """What dividing the model among GPUs needs to know of it."""
        total = max(self.parameter_count, 1)
        inside = sum(size * copies for size, copies in self.units)
        # Of what is in no block; a head that shares the embedding's weights has them once more.
        embedding = self._largest_embedding.numel if self._largest_embedding else 0
        experts = sum(p.numel * p.copies for p in self.parameters if "experts" in p.name)
        gradients = sum(p.numel * p.dtype.itemsize * p.copies for p in self.parameters if p.learns)
        return ModelShape(
            gathered_bytes=sum(
                p.numel * min(p.dtype.itemsize, self.compute_itemsize) * p.copies for p in self.parameters
            ),
            gradient_bytes=gradients,
            block_share=max((size for size, _ in self.units), default=0) / total,
            root_share=(total - inside) / total,
            end_share=max(embedding, total - inside - embedding) / total,
            expert_share=experts / total,
        )

    @cached_property
    def unrolled(self) -> Unrolled:
        """The log as the allocator meets it."""
        return unrolled(self.profile)


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

    def forward(size: Shape) -> tuple[Tape, Tensor]:
        fp8 = recipe.precision is Precision.FP8
        tape = Tape(autocast_of(recipe.precision), gradients_kept=recipe.gradients_kept, fp8=fp8)
        return tape, built.loss(tape, size)

    try:
        tape, loss = forward(shape)
    except TooSmallError:
        raise too_small(model.name, shape, forward) from None
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
        Where adapters find no layer to adapt, or the input is too small for the model's layers.
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
    """What one GPU holds of each part where several share the model; all 1 on one GPU.

    ``stages`` are the shares of the log's storages, on each pipeline stage that may hold the most.
    """

    weights: float
    gradients: float
    optimizer_state: float
    step_temporaries: float
    stages: tuple[tuple[float, ...], ...]
    gathered_bytes: int
    bucket_bytes: int


WHOLE = _Shares(1, 1, 1, 1, (), 0, 0)


def _micro_batches(scenario: Scenario) -> float:
    """Micro-batches that a pipeline's stages share at most: those of an update, up to the number of stages.

    Where batch and micro-batch are not both given it is the number of stages, to be safe: the largest micro-batch
    decides then how many make the batch, and their memory decides that. The samples that they hold together never
    become fewer with a larger micro-batch: a replica's share of the batch is in the pipeline at most, and the last
    micro-batch of it may be smaller.
    """
    layout = scenario.layout
    if scenario.global_batch is None or scenario.micro_batch is None:
        return layout.pipeline
    own_samples = -(-scenario.global_batch // layout.data)
    return min(layout.pipeline, max(1.0, own_samples / scenario.micro_batch))


def _stage_shares(profile: Profile, parts: Division, activations: float, logits: float) -> tuple[float, ...]:
    """Shares of the log's storages on a pipeline stage that holds these of the activations and the logits."""
    kept = profile.kept_for_backward

    def share(storage: int) -> float:
        if storage in profile.gradients:
            return parts.gradients
        label = profile.labels[storage]
        if label == "logits":
            return logits
        if label == "casts":
            return parts.casts
        return activations if storage in kept else parts.pass_temporaries

    return tuple(share(storage) for storage in range(len(profile.labels)))


def _fullest_stages(
    profile: Profile, parts: Division, stages: int, micro_batches: float
) -> tuple[tuple[float, ...], ...]:
    """Shares of the log's storages on the pipeline stages of which one holds the most: the only one, or first and last.

    The first holds several micro-batches of its layers (`pipeline_activation_share`) and no logits, the last one
    micro-batch and the logits. A part of the logits may not grow with the micro-batch, so that decides which it is.
    """
    if stages == 1:
        return (_stage_shares(profile, parts, parts.activations, parts.logits_and_loss),)
    first = parts.activations * pipeline_activation_share(stages, micro_batches)
    return (
        _stage_shares(profile, parts, first, 0.0),
        _stage_shares(profile, parts, parts.activations / stages, parts.logits_and_loss),
    )


@lru_cache(maxsize=256)
def _shares(step: ReplayedStep, layout: Layout, micro_batches: float) -> _Shares:
    parts = _division(step, layout)
    stages = _fullest_stages(step.profile, parts, layout.pipeline, micro_batches)
    return _Shares(
        parts.weights, parts.gradients, parts.optimizer_state, parts.step_temporaries, stages,
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
    _outcomes: dict[tuple[int, int | None, bool], Allocation | int] = field(
        default_factory=dict, compare=False, hash=False, repr=False
    )
    _instants: dict[tuple[int, bool], dict[Phase, Instant]] = field(
        default_factory=dict, compare=False, hash=False, repr=False
    )

    def sizes(self, micro_batch: int, *, lean: bool = False) -> list[int]:
        """Bytes of each storage of the log on the fullest GPU; ``lean``: nothing for optional workspaces."""
        grown = micro_batch if self.activation_share == 1 else micro_batch * self.activation_share
        sizes = self.step.profile.sizes(grown, self.multiprocessors)
        for storage in self.step.profile.optional if lean else ():
            sizes[storage] = 0
        if not self.shares.stages:
            return sizes
        held = [
            [(int(s * share) + 511) // 512 * 512 for s, share in zip(sizes, shares, strict=True)]
            for shares in self.shares.stages
        ]
        return max(held, key=self._most_alive) if len(held) > 1 else held[0]

    def _most_alive(self, sizes: list[int]) -> int:
        """Peak of forward and backward above what is constant."""
        return max(instant.alive_bytes for instant in self.step.profile.peaks(sizes).values())

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
        return rounded_sum(self.weight_requests) + self.step.buffer_bytes

    @cached_property
    def state_bytes(self) -> int:
        """Optimizer state, master weights included."""
        return rounded_sum(self.state_requests)

    @cached_property
    def gradient_bytes(self) -> int:
        """All gradients."""
        return rounded_sum(self.gradient_requests)

    @cached_property
    def constant_bytes(self) -> int:
        """Alive throughout: weights, optimizer state, workspaces, exchange, and gradients where they are kept."""
        kept = self.gradient_bytes if self.step.gradients_kept else 0
        exchange = rounded_sum(self.exchange_requests)
        return self.weights_bytes + self.state_bytes + self.workspace_bytes + exchange + kept

    @cached_property
    def step_peak_bytes(self) -> int:
        """Peak of the optimizer's step."""
        gradients = 0 if self.step.gradients_kept else self.gradient_bytes
        return self.constant_bytes + gradients + rounded_sum(self.step_requests)

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
        key = micro_batch, lean
        if key not in self._instants:
            _remember(self._instants, key, self.step.profile.peaks(self.sizes(micro_batch, lean=lean)))
        return self._instants[key]

    @cached_property
    def _lasting(self) -> tuple[int, ...]:
        """Bytes of what is made before the first step and stays, as `CachingAllocator.take` reads them."""
        handles = self.step.cublas_handles
        requests = [*self.weight_requests]
        if self.step.buffer_bytes:
            requests.append(self.step.buffer_bytes)
        requests += [self.workspace_bytes // max(handles, 1)] * handles
        requests += self.exchange_requests
        if self.step.gradients_kept:
            requests += self.gradient_requests
        return _to_take(requests)

    @cached_property
    def _loaded(self) -> CachingAllocator:
        """The allocator before the first step."""
        allocator = CachingAllocator()
        allocator.take(self._lasting)
        return allocator

    @cached_property
    def _states(self) -> tuple[int, ...]:
        return _to_take(self.state_requests)

    @cached_property
    def _step_temporaries(self) -> tuple[int, ...]:
        return _to_take(self.step_requests)

    def allocate(self, micro_batch: int) -> Allocation:
        """What the caching allocator counts for a steady step with all the memory it asks for."""
        return self.allocate_within(micro_batch, None)

    def allocate_within(self, micro_batch: int, capacity: int | None) -> Allocation:
        """Runs a steady step through the caching allocator; `OutOfMemoryError` where ``capacity`` is too small.

        Where memory runs short, caches are given back, and then optional workspaces left out.
        """
        outcome = self._outcome(micro_batch, capacity, lean=False)
        if isinstance(outcome, int) and self.step.profile.optional:
            outcome = self._outcome(micro_batch, capacity, lean=True)
        if isinstance(outcome, int):
            raise OutOfMemoryError(outcome)
        return outcome

    def missing_bytes(self, micro_batch: int, capacity: int) -> int:
        """What the step lacks, with optional workspaces or without, whichever is less; 0 where it trains."""
        # Mostly without is less.
        missing = 0
        for lean in (True, False) if self.step.profile.optional else (False,):
            outcome = self._outcome(micro_batch, capacity, lean=lean)
            if isinstance(outcome, Allocation):
                return 0
            missing = min(missing or outcome, outcome)
        return missing

    def _outcome(self, micro_batch: int, capacity: int | None, *, lean: bool) -> Allocation | int:
        """A steady step under a capacity, or how many bytes are missing."""
        unbounded = self._outcomes.get((micro_batch, None, lean))
        if isinstance(unbounded, Allocation) and (capacity is None or unbounded.reserved_bytes <= capacity):
            return unbounded
        outcome = self._outcomes.get((micro_batch, capacity, lean))
        if outcome is None:
            try:
                outcome = self.allocate_in_turn((micro_batch,), capacity, lean=lean)[0]
            except OutOfMemoryError as error:
                outcome = error.missing_bytes
            short = isinstance(outcome, int) or outcome.released
            _remember(self._outcomes, (micro_batch, capacity if short else None, lean), outcome)
        return outcome

    def allocate_on(self, micro_batch: int, limit_bytes: int) -> Allocation:
        """`allocate_within` a card's limit; with all the memory it asks for where the step does not fit."""
        if self.requested_peak(micro_batch) <= limit_bytes:
            try:
                return self.allocate_within(micro_batch, limit_bytes)
            except OutOfMemoryError:
                pass
        return self.allocate(micro_batch)

    def allocate_in_turn(
        self, micro_batches: Sequence[int], capacity: int | None, *, lean: bool = False
    ) -> list[Allocation]:
        """Two steps at each micro-batch, one after another in one process: the second one's peaks, what both reserved.

        What a micro-batch leaves cached is there for the next, and counts as reserved.
        """
        allocator = self._loaded.copy(capacity)
        if capacity is not None and allocator.reserved > capacity:
            allocator = CachingAllocator(capacity)
            allocator.take(self._lasting)
        # The optimizer's state is made at the end of the first step, in what its backward has left free: the second
        # step is the first steady one.
        states: tuple[int, ...] = self._states
        blocks: list[Block | int] = []
        found = []
        for micro_batch in micro_batches:
            allocator.peak_reserved = allocator.reserved
            sizes = self.sizes(micro_batch, lean=lean)
            peaks: dict[Phase, int] = {}
            for steady in (False, True):
                if blocks:
                    self._zero_grad(allocator, blocks)
                blocks = [0]
                for phase, events in self.step.unrolled.passes.items():
                    allocator.peak_allocated = allocator.allocated
                    allocator.run(events, sizes, blocks)
                    peaks[phase] = allocator.peak_allocated
                allocator.take(states)
                states = ()
                # An update that finds room leaves no trace, and only the steady one's peak counts.
                if steady or not allocator.has_room_for(self._step_temporaries):
                    peaks[Phase.STEP] = self._update(allocator)
            found.append(Allocation(peaks, allocator.peak_reserved, lean, allocator.released))
        return found

    def _zero_grad(self, allocator: CachingAllocator, blocks: list[Block | int]) -> None:
        """``zero_grad(set_to_none=True)`` after a step that took ``blocks``."""
        allocator.run(self.step.unrolled.gradients, (), blocks)

    def _update(self, allocator: CachingAllocator) -> int:
        """The optimizer's step: its temporaries, alive together; the peak."""
        allocator.peak_allocated = allocator.allocated
        blocks = allocator.take(self._step_temporaries)
        allocator.run(range(-1, -len(blocks), -1), (), blocks)
        return allocator.peak_allocated


def _to_take(requests: Iterable[int]) -> tuple[int, ...]:
    """Requests as `CachingAllocator.take` reads them."""
    return 0, *map(rounded, requests)


def _remember(known: dict[Key, Value], key: Key, value: Value) -> None:
    """Keeps a value, of so many at most."""
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = value


class Allocation(NamedTuple):
    """What the allocator counts for a step."""

    peaks: dict[Phase, int]
    reserved_bytes: int
    lean: bool = False
    """Whether optional workspaces were left out."""
    released: bool = False
    """Whether cached memory was given back."""

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at any instant."""
        return max(self.peaks.values())


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
        _micro_batches(scenario),
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
    micro_batches: float,
    activation_share: float,
) -> StepMemory:
    alone = layout.gpus == 1 and layout.cpu_offload is Offload.NONE
    shares = WHOLE if alone else _shares(step, layout, micro_batches)
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
    return Multiprocessors(card.multiprocessors, card.resident_threads)
