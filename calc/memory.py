"""One training step's memory: the replay's log joined with weights, optimizer and workspaces, and run through the allocator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from calc.allocator import Block, CachingAllocator
from calc.architectures.registry import architecture
from calc.optimizers import OptimizerMemory, optimizer_memory
from calc.replay.layers import Build
from calc.replay.profile import Instant, Profile, rounded
from calc.replay.tape import Autocast, Dtype, Parameter, Phase, Segment, Tape
from calc.scenario import Checkpointing, Loss, Method, Precision

if TYPE_CHECKING:
    from calc.architectures.model import Shape
    from calc.scenario import Attention, ModelChoice, Optimizer, Scenario

MIB = 2**20
CUBLAS_WORKSPACE_BYTES = 4096 * 2 * 1024 + 16 * 8 * 1024
"""cuBLAS's workspace a handle, ":4096:2:16:8" (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize)."""
CUBLAS_WORKSPACE_BYTES_HOPPER = 32 * MIB
"""The same from compute capability 9.0 on."""
CUBLAS_HANDLES = 2
"""Forward's thread and backward's each have a handle with a workspace of its own."""


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

    @cached_property
    def parameter_count(self) -> int:
        """All parameters of the model."""
        return sum(p.numel * p.copies for p in self.parameters)

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
        """Parameters and buffers as requested."""
        return sum(rounded(p.stored_bytes) * p.copies for p in self.parameters) + self.buffer_bytes

    @cached_property
    def gradient_bytes(self) -> int:
        """All gradients."""
        return sum(rounded(p.numel * p.dtype.itemsize) * p.copies for p in self.parameters if p.trainable)

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


@lru_cache(maxsize=256)
def _replay(model: ModelChoice, shape: Shape, recipe: Recipe) -> ReplayedStep:
    lora = recipe.method is not Method.FULL
    build = Build(
        parameter_dtype(recipe.precision),
        full=not lora,
        quantized=recipe.method is Method.QLORA,
        lora_rank=recipe.lora_rank if lora else 0,
        lora_targets=recipe.lora_targets,
        checkpointing=str(recipe.checkpointing),
        attention=str(recipe.attention),
        fused_loss=recipe.loss is Loss.FUSED,
    )
    built = architecture(model.architecture)(build, model.config)
    tape = Tape(autocast_of(recipe.precision), gradients_kept=recipe.gradients_kept)
    loss = built.loss(tape, shape)
    tape.end_autocast()
    tape.backward(loss)
    del loss
    step = ReplayedStep(Profile.of(tape), tuple(build.parameters), build.buffer_bytes, recipe.gradients_kept)
    for parameter in build.parameters:
        parameter.grad = None
    return step


def replay(scenario: Scenario, *, gradients_kept: bool = False) -> ReplayedStep:
    """The scenario's step, replayed once for all micro-batches."""
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
    return _replay(scenario.model, scenario.shape, recipe)


@lru_cache(maxsize=256)
def _optimizer(step: ReplayedStep, optimizer: Optimizer, *, master_weights: bool) -> OptimizerMemory:
    return optimizer_memory(optimizer, list(step.in_model_order), master_weights=master_weights)


@dataclass(frozen=True)
class StepMemory:
    """A step with its optimizer on a card: peaks by micro-batch."""

    step: ReplayedStep
    optimizer: OptimizerMemory
    workspace_bytes: int

    @property
    def state_bytes(self) -> int:
        """Optimizer state, master weights included."""
        return sum(map(rounded, self.optimizer.state_requests))

    @property
    def constant_bytes(self) -> int:
        """Alive throughout: weights, optimizer state, workspaces, and gradients where they are kept."""
        kept = self.step.gradient_bytes if self.step.gradients_kept else 0
        return self.step.weights_bytes + self.state_bytes + self.workspace_bytes + kept

    def requested_peaks(self, micro_batch: int) -> dict[Phase, int]:
        """Peak of each phase as the tensors' own sizes, before the allocator's rests."""
        constant = self.constant_bytes
        peaks = {phase: constant + instant.alive_bytes for phase, instant in self.step.profile.peaks(micro_batch).items()}
        gradients = 0 if self.step.gradients_kept else self.step.gradient_bytes
        peaks[Phase.STEP] = constant + gradients + sum(map(rounded, self.optimizer.step_requests))
        return peaks

    def requested_peak(self, micro_batch: int) -> int:
        """The highest of `requested_peaks`."""
        return max(self.requested_peaks(micro_batch).values())

    def instants(self, micro_batch: int) -> dict[Phase, Instant]:
        """Where forward and backward peak."""
        return self.step.profile.peaks(micro_batch)

    def allocate(self, micro_batch: int, capacity: int | None = None) -> Allocation:
        """Runs a steady step through the caching allocator; `OutOfMemory` where ``capacity`` is too small."""
        allocator = CachingAllocator(capacity)
        for parameter in self.step.in_model_order:
            allocator.malloc(parameter.stored_bytes)
        if self.step.buffer_bytes:
            allocator.malloc(self.step.buffer_bytes)
        for _ in range(CUBLAS_HANDLES):
            allocator.malloc(self.workspace_bytes // CUBLAS_HANDLES)
        if self.step.gradients_kept:
            for parameter in self.step.in_model_order:
                if parameter.trainable:
                    allocator.malloc(parameter.numel * parameter.dtype.itemsize)
        run = _Run(self.step, self.step.profile.sizes(micro_batch), allocator)
        # The optimizer's state is made at the end of the first step, in what its backward has left free: the second
        # step is the first steady one.
        run.passes()
        for request in self.optimizer.state_requests:
            allocator.malloc(request)
        self._update(allocator)
        run.drop_gradients()
        peaks = run.passes()
        peaks[Phase.STEP] = self._update(allocator)
        return Allocation(peaks, allocator.peak_reserved)

    def _update(self, allocator: CachingAllocator) -> int:
        """The optimizer's step: its temporaries, alive together; the peak."""
        allocator.peak_allocated = allocator.allocated
        for block in [allocator.malloc(n) for n in self.optimizer.step_requests]:
            allocator.free(block)
        return allocator.peak_allocated


class Allocation(NamedTuple):
    """What the allocator counts for a step."""

    peaks: dict[Phase, int]
    reserved_bytes: int

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
        self.blocks: dict[int, list[Block]] = {}
        self.first: dict[int, int] = {}
        for stretch in self.stretches:
            segment = stretch.segment
            if segment.phase is Phase.FORWARD and segment.block >= 0:
                self.first[segment.block] = min((e for e in stretch.events if e > 0), default=0)

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
        shift = self.first.get(segment.block, 0) - self.first.get(segment.block - 1, 0) if repetition else 0
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
                if not held and shift:
                    # A later repetition drops its predecessor's tensor, which the log names by the first one's.
                    held = blocks.get(shift - event)
                if held:
                    free(held.pop())
            else:
                while held:
                    free(held.pop())


def step_memory(scenario: Scenario, *, gradients_kept: bool = False) -> StepMemory:
    """The scenario's step with its optimizer and card."""
    step = replay(scenario, gradients_kept=gradients_kept)
    master = scenario.precision is Precision.BF16_MASTER
    return StepMemory(step, _optimizer(step, scenario.optimizer, master_weights=master), workspace_bytes(scenario))


def workspace_bytes(scenario: Scenario) -> int:
    """cuBLAS's workspaces on the scenario's card; the larger size where the card is not known."""
    card = scenario.gpu.catalog
    if card is not None and card.vendor != "NVIDIA":
        return CUBLAS_HANDLES * CUBLAS_WORKSPACE_BYTES
    capability = card.compute_capability if card is not None else None
    hopper = capability is None or capability >= (9, 0)
    return CUBLAS_HANDLES * (CUBLAS_WORKSPACE_BYTES_HOPPER if hopper else CUBLAS_WORKSPACE_BYTES)
