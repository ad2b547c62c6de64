"""Bytes per GPU when a model and its training state are divided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calc.scaling.layout import Offload, Strategy

if TYPE_CHECKING:
    from calc.scaling.layout import Layout

GATHERED_BLOCKS = 2  # FSDP holds the block at work and the one fetched ahead
DEEPSPEED_BUCKET_BYTES = 2 * 500_000_000  # DeepSpeed's reduce_bucket_size in 16-bit elements


def activation_share(tensor: int, *, sequence_parallel: bool) -> float:
    """Share of a layer's activations that one tensor-parallel rank keeps, without the attention matrix.

    ``(10 + 24 / t) / 34``, or ``1 / t`` where sequence parallelism divides norms, dropouts and residuals too.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equations 2 and 4.
    """
    return 1 / tensor if sequence_parallel else (10 + 24 / tensor) / 34


def pipeline_activation_share(stages: int, micro_batches: float) -> float:
    """Activations that the first stage keeps, as a share of one micro-batch through the whole model.

    It holds ``min(m, p)`` micro-batches of ``1 / p`` of the layers, so with enough micro-batches nothing is saved. A
    last micro-batch that is smaller counts as a part of one.

    Sources: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3; Narayanan et al. 2021, arXiv:2104.04473, section
    2.2 (1F1B).
    """
    return min(micro_batches, stages) / stages


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What dividing a model needs to know of it.

    ``gathered_bytes`` are all weights in the dtype they are gathered in, ``gradient_bytes`` all gradients. FSDP's units
    are the blocks, the largest with ``block_share`` of all parameters, and what is left of the model, ``root_share``,
    which stays gathered. ``end_share`` is the part of all parameters that the first or the last pipeline stage has
    besides its blocks: embedding or head, whichever is larger. ``expert_share`` is the experts' part.
    """

    gathered_bytes: int
    gradient_bytes: int
    block_share: float
    root_share: float = 0.0
    end_share: float = 0.0
    expert_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Division:
    """What a layout leaves on each GPU: shares of one GPU's components, and bytes that the strategy itself holds.

    ``activations`` is the share before the pipeline divides layers. ``gathered_bytes`` are FSDP's whole units,
    ``bucket_bytes`` the buffers that gradients are exchanged in.
    """

    weights: float
    gradients: float
    optimizer_state: float
    activations: float
    logits_and_loss: float
    casts: float
    pass_temporaries: float
    step_temporaries: float
    gathered_bytes: int
    bucket_bytes: int


def division(layout: Layout, shape: ModelShape) -> Division:
    """Give the shares and buffers of a layout.

    Sources: ZeRO, arXiv:1910.02054; Korthikanti et al., arXiv:2205.05198; torch's DDP and FSDP documentation.
    """
    model_ways = layout.tensor / _stage_share(layout, shape)
    stage = layout.strategy.stage

    def state_share(first_stage: int) -> float:
        ways = layout.shards if stage >= first_stage else 1
        # Expert ranks hold different experts, whatever the stage; what is left of the replicas shares each.
        expert_ways = max(ways, layout.expert)
        return ((1 - shape.expert_share) / ways + shape.expert_share / expert_ways) / model_ways

    on_host = layout.cpu_offload
    gathered, buckets = _buffers(layout, shape)
    token_ways = layout.tensor * layout.context
    return Division(
        weights=0 if on_host is Offload.ALL else state_share(3),
        gradients=0 if on_host is Offload.ALL else state_share(2),
        optimizer_state=0 if on_host is not Offload.NONE else state_share(1),
        activations=activation_share(layout.tensor, sequence_parallel=layout.sequence_parallel) / layout.context,
        logits_and_loss=1 / token_ways,
        casts=0 if _in_units(layout) else 1 / model_ways,
        pass_temporaries=1 / token_ways,
        step_temporaries=0 if on_host is not Offload.NONE else 1 / layout.state_ways,
        gathered_bytes=gathered,
        bucket_bytes=buckets,
    )


def _stage_share(layout: Layout, shape: ModelShape) -> float:
    """Parameters of the fullest pipeline stage as a share of all: its blocks, and the embedding or the head.

    Source: Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2, on the uneven first and last stages.
    """
    if layout.pipeline == 1:
        return 1.0
    return (1 - shape.root_share) / layout.pipeline + shape.end_share


def _ceil(value: float) -> int:
    return math.ceil(value - 1e-6)


def _in_units(layout: Layout) -> bool:
    """Whether weights come unit by unit and go again: from the other GPUs, or from the host."""
    return (layout.strategy.stage == 3 and layout.shards > 1) or layout.cpu_offload is Offload.ALL


def _buffers(layout: Layout, shape: ModelShape) -> tuple[int, int]:
    """Bytes of gathered units and of buckets.

    DistributedDataParallel's are as large as the gradients, which by torch's default are no views of them
    (``gradient_as_bucket_view``).
    """
    if layout.shards == 1 and not _in_units(layout):
        return 0, 0
    own = _stage_share(layout, shape) / layout.tensor
    own_gradients, own_weights = shape.gradient_bytes * own, shape.gathered_bytes * own
    if _in_units(layout):
        held = shape.root_share + GATHERED_BLOCKS * shape.block_share
        largest = max(shape.block_share, shape.root_share)
        return _ceil(min(1.0, held) * own_weights), _ceil(largest * own_gradients)
    if layout.strategy is Strategy.DDP:
        return 0, _ceil(own_gradients)
    return 0, _ceil(min(own_gradients, DEEPSPEED_BUCKET_BYTES))
