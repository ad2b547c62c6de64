"""What is alive at the peak, in parts that add up to it, each with its formula and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.optimizers import RULES
from calc.replay.profile import rounded_sum
from calc.replay.tape import Phase
from calc.scenario import Method, Precision
from calc.wording import counted

if TYPE_CHECKING:
    from calc.memory import Allocation, StepMemory
    from calc.scenario import Scenario

AUTOGRAD = "torch, tools/autograd/derivatives.yaml: what each operation keeps for backward"
GROUP_LABELS = {
    "attention": "attention",
    "mlp": "feed-forward",
    "embeddings": "embeddings and masks",
    "final norm": "final norm",
}


@dataclass(frozen=True)
class Component:
    """One part of the peak."""

    id: str
    label: str
    nbytes: int
    formula: str
    values: str
    source: str
    parts: tuple[tuple[str, int], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For the JSON border."""
        return {
            "id": self.id,
            "label": self.label,
            "bytes": self.nbytes,
            "formula": self.formula,
            "values": self.values,
            "source": self.source,
            "parts": [{"label": label, "bytes": nbytes} for label, nbytes in self.parts],
        }


@dataclass(frozen=True)
class Breakdown:
    """The peak's parts in order, and when it is, in words."""

    components: tuple[Component, ...]
    instant: str


def components(scenario: Scenario, memory: StepMemory, micro_batch: int, allocation: Allocation) -> Breakdown:
    """Parts of the peak that the allocator counts; they add up to it."""
    phase = max(allocation.peaks, key=lambda p: allocation.peaks[p])
    moving = moving_bytes(memory, micro_batch, phase, lean=allocation.lean)
    activations, activation_parts = moving["activations"]
    found = [
        Component("weights", "Weights", memory.weights_bytes, *_weights_formula(scenario, memory)),
        Component("gradients", "Gradients", moving["gradients"][0], *_gradient_formula(memory)),
        Component("optimizer_state", "Optimizer state", memory.state_bytes, *_state_formula(scenario, memory)),
        Component(
            "activations",
            "Activations",
            activations,
            "micro-batch x what autograd keeps of one sample",
            f"{micro_batch:,} x {activations // max(micro_batch, 1):,} B",
            AUTOGRAD,
            activation_parts,
        ),
        Component(
            "logits_and_loss",
            "Logits and loss",
            moving["logits"][0],
            "logits, their fp32 copy, log-softmax and its gradient, as far as they are alive together",
            f"{moving['logits'][0] // max(micro_batch, 1):,} B a sample",
            "transformers, loss/loss_utils.py; torch, _log_softmax keeps its output",
        ),
        Component(
            "casts",
            "16-bit copies of weights",
            moving["casts"][0],
            "2 B x each weight that a matrix product reads",
            "kept from forward to backward",
            "torch, autocast's cast cache (aten/src/ATen/autocast_mode.cpp)",
        ),
        Component(
            "temporaries",
            "Temporaries",
            moving["temporaries"][0],
            "tensors that live within one operation or a few, and what kernels take for their own run",
            f"at the peak, in {phase.value}",
            AUTOGRAD,
        ),
        Component(
            "workspace",
            "cuBLAS workspaces",
            memory.workspace_bytes,
            "one workspace for each thread that multiplies matrices: forward's and backward's",
            f"{memory.step.cublas_handles} x {memory.workspace_bytes // max(memory.step.cublas_handles, 1):,} B",
            "torch, aten/src/ATen/cuda/CublasHandlePool.cpp",
        ),
    ]
    if memory.exchange_requests:
        found.append(
            Component(
                "exchange",
                "Buffers of exchange",
                rounded_sum(memory.exchange_requests),
                "gathered weights of two units, and the buckets that gradients are exchanged in",
                f"{counted(scenario.gpus, 'GPU')}, {scenario.layout.strategy}",
                "torch, DistributedDataParallel and FSDP; DeepSpeed, reduce_bucket_size",
            )
        )
    rest = allocation.peaks[phase] - sum(c.nbytes for c in found)
    found.append(
        Component(
            "allocator_rest",
            "Unused rests of blocks",
            rest,
            "what the allocator counts as allocated minus the tensors' sizes",
            "rests up to 1 MiB are not split off",
            "torch, c10/cuda/CUDACachingAllocator.cpp, should_split",
        )
    )
    return Breakdown(tuple(found), _instant(memory, micro_batch, phase, lean=allocation.lean))


def moving_bytes(
    memory: StepMemory, micro_batch: int, phase: Phase, *, lean: bool = False
) -> dict[str, tuple[int, tuple[tuple[str, int], ...]]]:
    """Bytes of what comes and goes at the phase's peak: gradients, activations by group, logits, casts, temporaries."""
    step = memory.step
    if phase is Phase.STEP:
        temporaries = memory.step_peak_bytes - memory.constant_bytes
        gradients = memory.gradient_bytes
        if not step.gradients_kept:
            temporaries -= gradients
        none: tuple[int, tuple[tuple[str, int], ...]] = (0, ())
        return {
            "gradients": (gradients, ()),
            "activations": none,
            "logits": none,
            "casts": none,
            "temporaries": (temporaries, ()),
        }
    profile = step.profile
    instant = memory.instants(micro_batch, lean=lean)[phase]
    kept = profile.kept_for_backward
    totals = dict.fromkeys(("gradients", "logits", "casts", "temporaries"), 0)
    groups: dict[str, int] = {}
    for storage, nbytes in profile.alive_at(instant, memory.sizes(micro_batch, lean=lean)).items():
        label = profile.labels[storage]
        if storage in profile.gradients:
            totals["gradients"] += nbytes
        elif label in ("logits", "casts"):
            totals[label] += nbytes
        elif storage in kept:
            groups[label] = groups.get(label, 0) + nbytes
        else:
            totals["temporaries"] += nbytes
    if step.gradients_kept:
        totals["gradients"] = memory.gradient_bytes
    parts = tuple(
        (GROUP_LABELS.get(label, label or "other"), nbytes)
        for label, nbytes in sorted(groups.items(), key=lambda g: -g[1])
    )
    return {key: (nbytes, ()) for key, nbytes in totals.items()} | {"activations": (sum(groups.values()), parts)}


def _instant(memory: StepMemory, micro_batch: int, phase: Phase, *, lean: bool) -> str:
    if phase is Phase.STEP:
        return "in the optimizer's step, with all gradients alive"
    profile = memory.step.profile
    label = profile.labels[profile.events[memory.instants(micro_batch, lean=lean)[phase].event]]
    where = {"logits": "the logits and the loss", "casts": "a weight's 16-bit copy"}.get(
        label, GROUP_LABELS.get(label, label)
    )
    return f"in {phase.value}, at {where}" if where else f"in {phase.value}"


def _weights_formula(scenario: Scenario, memory: StepMemory) -> tuple[str, str, str]:
    count = memory.step.parameter_count
    if scenario.method is Method.QLORA:
        return (
            "0.516 B x quantized weights + 2 B x the rest + 4 B x adapters",
            f"{count:,} parameters",
            "Dettmers et al. 2023, arXiv:2305.14314, section 3: NF4 with double quantization",
        )
    if scenario.method is Method.LORA:
        trained = memory.step.trainable_count
        return (
            "bytes of a weight x frozen parameters + 4 B x adapters",
            f"{count - trained:,} frozen and {trained:,} trained",
            "peft, adapters of a 16-bit base stay fp32 (autocast_adapter_dtype)",
        )
    size = 2 if scenario.precision in (Precision.BF16, Precision.FP16, Precision.BF16_MASTER, Precision.FP8) else 4
    return (
        "bytes of a weight x parameters, and buffers",
        f"{size} B x {count:,}",
        "torch.nn.Parameter; counts equal the library's",
    )


def _gradient_formula(memory: StepMemory) -> tuple[str, str, str]:
    return (
        "bytes of a weight x trained parameters, as far as backward has made them",
        f"{memory.step.trainable_count:,} trained parameters, {memory.gradient_bytes:,} B in the end",
        "torch, AccumulateGrad: a gradient has its parameter's type",
    )


def _state_formula(scenario: Scenario, memory: StepMemory) -> tuple[str, str, str]:
    trained = max(memory.step.trainable_count, 1)
    return (
        "state tensors x trained parameters"
        + (", and fp32 master weights" if scenario.precision is Precision.BF16_MASTER else ""),
        f"{memory.state_bytes / trained:.4g} B x {trained:,}",
        RULES[scenario.optimizer].source,
    )
