"""Seconds per update on many GPUs: compute, what of the communication shows, pipeline bubble, offloading."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from calc import collectives
from calc.scaling.layout import Offload, Strategy
from calc.scaling.memory import DEEPSPEED_BUCKET_BYTES

if TYPE_CHECKING:
    from calc.collectives import Fabric
    from calc.scaling.layout import Layout

DDP_BUCKET_BYTES = 25 * 2**20  # torch's DistributedDataParallel, bucket_cap_mb

# What a model of communication alone leaves out on one node - input pipeline, stragglers, clocks - as a share of the
# step in NVIDIA's DeepLearningExamples: 2 to 15 %. The middle is used where one number is asked for.
UNMODELLED_LOW, UNMODELLED_HIGH = 0.02, 0.15


def forward_share(*, recomputes: bool) -> float:
    """Forward's share of a pass's operations: a third, a quarter where backward runs it again.

    Sources: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; Korthikanti et al. 2022, arXiv:2205.05198, section 5.
    """
    return 1 / 4 if recomputes else 1 / 3


def bubble_share(stages: int, micro_batches: int) -> float:
    """Idle time of a pipeline as a share of its working time: ``(p - 1) / m``.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.

    >>> bubble_share(8, 32)
    0.21875
    """
    return (stages - 1) / micro_batches


def exposed_seconds(work_seconds: float, pieces: int, piece_seconds: float) -> float:
    """Communication that work cannot hide, when it comes in equal pieces and each may start once its part is done.

    ``max(c, n c - work (n - 1) / n)``: the last piece always shows, and so does all that outlasts the work. This is
    the backward pass of DDP (buckets) and, mirrored, the forward pass of FSDP (units).

    Parameters
    ----------
    work_seconds : float
        Computation to hide behind.
    pieces : int
        Buckets or units, n.
    piece_seconds : float
        One piece's communication, c.
    """
    if pieces == 0:
        return 0.0
    return max(piece_seconds, pieces * piece_seconds - work_seconds * (pieces - 1) / pieces)


@dataclass(frozen=True, slots=True)
class Workload:
    """One GPU's training step, undivided.

    ``forward_seconds`` and ``backward_seconds`` are of one micro-batch; ``optimizer_seconds`` of one update.
    ``layer_bytes`` is one layer's output for a micro-batch (b x s x h x bytes), ``key_value_bytes`` its keys and
    values, ``routed_bytes`` what one mixture-of-experts layer sends to experts; ``routed_layers`` how many there are.
    ``head_share`` is the part of a pass behind the last layer: the product that gives the logits.
    """

    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    accumulation_steps: int
    gradient_bytes: int
    gathered_bytes: int
    layers: int
    layer_bytes: int = 0
    key_value_bytes: int = 0
    routed_bytes: int = 0
    routed_layers: int = 0
    head_share: float = 0.0
    recomputes: bool = False


def slowest_stage_share(work: Workload, stages: int) -> float:
    """Share of a pass that the slowest of a pipeline's stages computes: whole layers each, the last one the head too.

    The last stage has as many layers less as makes the slowest one fastest, as Llama 3's has one less.

    Source: Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2.
    """
    if stages == 1:
        return 1.0
    layer = (1 - work.head_share) / work.layers
    return min(
        max(math.ceil((work.layers - last) / (stages - 1)) * layer, last * layer + work.head_share)
        for last in range(-(-work.layers // stages) + 1)
    )


class StepParts(NamedTuple):
    """Where an update's seconds go on many GPUs."""

    compute_seconds: float
    optimizer_seconds: float
    exposed_communication_seconds: float
    bubble_seconds: float
    offload_seconds: float
    unmodelled_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds of one update."""
        return math.fsum(self)


def _placed(ranks: int, stride: int, gpus_per_node: int, fabric: Fabric) -> tuple[int, Fabric]:
    """Nodes that a group spans whose ranks lie ``stride`` GPUs apart, and its share of the adapters.

    Ranks are numbered tensor first, then context, then data, as Megatron-LM does; where several such groups lie on the
    same nodes they exchange at the same time.
    """
    per_node = min(ranks, max(1, gpus_per_node // stride))
    return math.ceil(ranks / per_node), fabric.shared_by(gpus_per_node / per_node)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What replicas exchange: pieces that hide behind forward and backward passes, and a tail that cannot hide.

    ``each_pass`` says whether every accumulation pass exchanges, or the last alone.
    """

    forward_pieces: int = 0
    forward_piece_seconds: float = 0.0
    backward_pieces: int = 0
    backward_piece_seconds: float = 0.0
    each_pass: bool = False
    tail_seconds: float = 0.0


def data_parallel_exchange(work: Workload, layout: Layout, fabric: Fabric, gpus_per_node: int) -> Exchange:
    """List what the strategy exchanges between replicas.

    DDP all-reduces 25 MiB buckets during the last backward pass. ZeRO 1 and 2 scatter gradients (2: in every pass) and
    gather weights after the update. FSDP and ZeRO 3 gather each unit forward and backward and scatter its gradients, in
    every pass.

    Sources: torch DDP and FSDP documentation; ZeRO, arXiv:1910.02054, section 7.
    """
    ranks = layout.shards
    if ranks == 1:
        return Exchange()
    spans, fabric = _placed(ranks, layout.tensor, gpus_per_node, fabric)
    ways = layout.tensor * layout.pipeline
    gradients, weights = work.gradient_bytes / ways, work.gathered_bytes / ways
    if layout.strategy.stage == 3:
        units = max(1, round(work.layers / layout.pipeline))
        gather = collectives.all_gather_seconds(fabric, ranks, spans, weights / units)
        scatter = collectives.all_gather_seconds(fabric, ranks, spans, gradients / units)
        return Exchange(units, gather, units, gather + scatter, each_pass=True)
    if layout.strategy is Strategy.DDP:
        buckets = max(1, math.ceil(gradients / DDP_BUCKET_BYTES))
        reduce = collectives.all_reduce_seconds(fabric, ranks, spans, gradients / buckets)
        return Exchange(backward_pieces=buckets, backward_piece_seconds=reduce)
    buckets = max(1, math.ceil(gradients / DEEPSPEED_BUCKET_BYTES))
    return Exchange(
        backward_pieces=buckets,
        backward_piece_seconds=collectives.all_gather_seconds(fabric, ranks, spans, gradients / buckets),
        each_pass=layout.strategy is Strategy.ZERO2,
        tail_seconds=collectives.all_gather_seconds(fabric, ranks, spans, weights),
    )


def model_parallel_seconds(work: Workload, layout: Layout, fabric: Fabric, gpus_per_node: int) -> float:
    """Exposed seconds per micro-batch of tensor, context and expert parallelism, and of the pipeline's hand-overs."""
    layers = work.layers / layout.pipeline
    seconds = 0.0
    if layout.tensor > 1:
        # Two all-reduces forward and two backward per layer; recomputation repeats the forward's.
        spans, shared = _placed(layout.tensor, 1, gpus_per_node, fabric)
        reduce = collectives.all_reduce_seconds(shared, layout.tensor, spans, work.layer_bytes / layout.context)
        seconds += (6 if work.recomputes else 4) * layers * reduce
    if layout.context > 1:
        # Keys and values are gathered forward, their gradients scattered backward, gathered again when recomputed.
        spans, shared = _placed(layout.context, layout.tensor, gpus_per_node, fabric)
        own_bytes = work.key_value_bytes / layout.tensor
        gather = collectives.all_gather_seconds(shared, layout.context, spans, own_bytes)
        seconds += (3 if work.recomputes else 2) * layers * gather
    if layout.expert > 1:
        # Dispatch and combine, forward and backward.
        spans, shared = _placed(layout.expert, layout.tensor * layout.context, gpus_per_node, fabric)
        exchange = collectives.all_to_all_seconds(shared, layout.expert, spans, work.routed_bytes)
        seconds += (6 if work.recomputes else 4) * work.routed_layers / layout.pipeline * exchange
    if layout.pipeline > 1:
        spans = 2 if layout.gpus > gpus_per_node else 1
        size = work.layer_bytes / layout.context / (layout.tensor if layout.sequence_parallel else 1)
        seconds += 2 * collectives.point_to_point_seconds(fabric, spans, size)
    return seconds


def host_optimizer_seconds(parameters: float) -> float:
    """Seconds that one host's processors take for an Adam update: 1.5 s for 1e9 parameters, within a factor of two.

    The middle (geometric) of two reports with DeepSpeed: at most 0.8 s (Qwen2.5-3B on 128 cores, 2.4 s for the whole
    step, github.com/deepspeedai/DeepSpeed pull request 7474) and 3.0 s (LLaMA-7B on two Xeon 8358, 20 s more a step,
    gist chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a).
    """
    return 1.5e-9 * parameters


def offload_seconds(
    layout: Layout,
    work: Workload,
    gpus_per_node: int,
    *,
    host_bytes_per_second: float,
    whole_update_seconds: float,
) -> float:
    """Seconds per update of passing gradients and weights over PCIe, and of the update on the host.

    Parameters
    ----------
    layout : Layout
        Which parts wait in the host's memory.
    work : Workload
        Bytes of gradients and weights.
    gpus_per_node : int
        GPUs whose parts one host updates.
    host_bytes_per_second : float
        What passes between one GPU and its host, one direction, as :func:`calc.scaling.offload.host_bytes_per_second`.
    whole_update_seconds : float
        The whole model's update on one host, as :func:`host_optimizer_seconds`.

    Notes
    -----
    Source: Ren et al. 2021, arXiv:2101.06840: gradients go down and weights come back once per update.
    """
    if layout.cpu_offload is Offload.NONE:
        return 0.0
    ways = layout.state_ways
    moved = (work.gradient_bytes + work.gathered_bytes) / ways
    if layout.cpu_offload is Offload.ALL:
        # Weights come in again for every forward and backward pass.
        moved += 2 * work.accumulation_steps * work.gathered_bytes / ways
    return moved / host_bytes_per_second + whole_update_seconds * gpus_per_node / ways


def unmodelled_share(accumulation_steps: int) -> float:
    """Share of a multi-GPU step beyond compute and communication: between 2 and 15 %, less with accumulation.

    Waiting for the slowest rank happens once per update; delays of K passes are independent and average as sqrt(K).
    The middle of the published span at K = 1, never below its lower end.

    Source: the span between communication models and NVIDIA DeepLearningExamples' 8-GPU results (2 to 15 %).
    """
    middle = (UNMODELLED_LOW + UNMODELLED_HIGH) / 2
    return max(UNMODELLED_LOW, middle / math.sqrt(accumulation_steps))


def step_parts(
    work: Workload,
    layout: Layout,
    fabric: Fabric,
    nodes: int,
    *,
    host_bytes_per_second: float,
    whole_update_seconds: float = 0.0,
    unmodelled: float | None = None,
) -> StepParts:
    """Split an update's seconds on many GPUs into compute, exchange that shows, pipeline bubble and the rest.

    Parameters
    ----------
    work : Workload
        One GPU's step.
    layout : Layout
        How the GPUs are divided.
    fabric : Fabric
        How they are joined.
    nodes : int
        Over how many nodes.
    host_bytes_per_second : float
        What passes between one GPU and its host, for offloading.
    whole_update_seconds : float
        The whole model's update on one host, for offloading.
    unmodelled : float, optional
        Share added for what is not modelled; :func:`unmodelled_share` by default.
    """
    ways = layout.tensor * layout.context / slowest_stage_share(work, layout.pipeline)
    gpus_per_node = math.ceil(layout.gpus / nodes)
    micro_batches = work.accumulation_steps
    compute = micro_batches * (work.forward_seconds + work.backward_seconds) / ways
    exchange = micro_batches * model_parallel_seconds(work, layout, fabric, gpus_per_node)
    bubble = bubble_share(layout.pipeline, micro_batches) * (compute + exchange)
    on_host = layout.cpu_offload is not Offload.NONE
    optimizer = 0.0 if on_host else work.optimizer_seconds / layout.state_ways
    replicas = data_parallel_exchange(work, layout, fabric, gpus_per_node)
    forward, backward = work.forward_seconds / ways, work.backward_seconds / ways
    showing = exposed_seconds(forward, replicas.forward_pieces, replicas.forward_piece_seconds)
    showing += exposed_seconds(backward, replicas.backward_pieces, replicas.backward_piece_seconds)
    exposed = exchange + showing * (micro_batches if replicas.each_pass else 1) + replicas.tail_seconds
    offload = offload_seconds(
        layout,
        work,
        gpus_per_node,
        host_bytes_per_second=host_bytes_per_second,
        whole_update_seconds=whole_update_seconds,
    )
    share = unmodelled if unmodelled is not None else unmodelled_share(micro_batches)
    modelled = compute + optimizer + exposed + bubble + offload
    rest = modelled * share / (1 - share) if layout.gpus > 1 else 0.0
    return StepParts(compute, optimizer, exposed, bubble, offload, rest)


def speed_up(work: Workload, layout: Layout, parts: StepParts) -> float:
    """Return samples per second on all GPUs over samples per second on one."""
    single = work.accumulation_steps * (work.forward_seconds + work.backward_seconds) + work.optimizer_seconds
    return layout.data * single / parts.seconds
