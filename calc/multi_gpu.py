"""A scenario's step on several GPUs: what the GPUs exchange, and the report on strategies and scaling."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from calc import collectives, scaling
from calc.errors import ScenarioError
from calc.memory import step_memory
from calc.model_dimensions import ModelDimensions
from calc.scaling import Strategy, Workload
from calc.scenario import Checkpointing, Method, ZeroGrad

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.memory import ReplayedStep, StepMemory
    from calc.scenario import Scenario


def workload_of(
    scenario: Scenario,
    step: ReplayedStep,
    micro_batch: int,
    accumulation_steps: int,
    *,
    forward_seconds: float,
    backward_seconds: float,
    optimizer_seconds: float,
) -> Workload:
    """Describe one GPU's update for the model of many: its passes, and the bytes that the GPUs would exchange.

    Parameters
    ----------
    scenario : Scenario
        What is trained.
    step : ReplayedStep
        Its replayed step.
    micro_batch : int
        Samples per pass and replica.
    accumulation_steps : int
        Passes per update.
    forward_seconds, backward_seconds : float
        Of one pass of the whole model on one GPU.
    optimizer_seconds : float
        Of one update of the whole model on one GPU.
    """
    dimensions = ModelDimensions.of(scenario)
    layer_bytes = micro_batch * dimensions.layer_elements * step.compute_itemsize
    heads = dimensions.heads
    shape = step.shape_for_division
    return Workload(
        forward_seconds=forward_seconds,
        backward_seconds=backward_seconds,
        optimizer_seconds=optimizer_seconds,
        accumulation_steps=accumulation_steps,
        gradient_bytes=shape.gradient_bytes,
        gathered_bytes=shape.gathered_bytes,
        layers=max(1, dimensions.layers),
        layer_bytes=layer_bytes,
        key_value_bytes=2 * layer_bytes * dimensions.key_value_heads // heads if heads else 0,
        routed_bytes=layer_bytes * dimensions.experts_each,
        routed_layers=dimensions.layers if shape.expert_share else 0,
        head_share=step.head_share,
        recomputes=scenario.checkpointing is Checkpointing.FULL,
    )


def interconnect_of(scenario: Scenario) -> str | Mapping[str, Any]:
    """Name the scenario's interconnect; what it leaves open is as the card would have it.

    Raises
    ------
    ScenarioError
        If nothing is named and the card has no link.
    """
    given = scenario.interconnect
    if isinstance(given, str):
        return given
    named: Mapping[str, Any] = given or {}
    return collectives.completed(named, named.get("node") or _own_link(scenario))


def _own_link(scenario: Scenario) -> str:
    """Name the link that the scenario's card has to its neighbours."""
    card = scenario.gpu.catalog
    if card is None or scenario.gpus == 1:
        return collectives.UNKNOWN_CARD_LINK
    per_node = -(-scenario.gpus // scenario.nodes)
    link = collectives.default_node_link(
        card.link_name, card.link_bytes_per_second, card.pcie_bytes_per_second, per_node, card.bridge_gpus
    )
    if link is None:
        raise ScenarioError("gpus", f"{card.name} has no link to others that this page knows: use 1")
    return link


def host_bytes_per_second_of(scenario: Scenario) -> float:
    """What passes between the scenario's card and its host, in bytes per second and direction."""
    card = scenario.gpu.catalog
    return scaling.host_bytes_per_second(card.pcie_bytes_per_second if card is not None else None)


@lru_cache(maxsize=512)
def _peak_bytes(memory: StepMemory, micro_batch: int) -> int:
    return memory.requested_peak(micro_batch)


def report(scenario: Scenario, work: Workload, micro_batch: int, limit_bytes: int) -> dict[str, Any]:
    """Report on the scenario's GPUs: seconds, speed-up by number, memory and seconds by strategy.

    Parameters
    ----------
    scenario : Scenario
        With its GPUs.
    work : Workload
        One GPU's step, from :func:`workload_of`.
    micro_batch : int
        Samples per pass and replica.
    limit_bytes : int
        What one GPU's allocator may reserve.

    Returns
    -------
    dict
        As :func:`calc.scaling.scale`, with ``memory_bytes`` (tensors' own sizes) and ``fits`` for each strategy.
    """
    found = scaling.scale(
        work,
        layout=scenario.layout,
        interconnect=interconnect_of(scenario),
        nodes=scenario.nodes,
        micro_batch=micro_batch,
        host_bytes_per_second=host_bytes_per_second_of(scenario),
        whole_update_seconds=scaling.host_optimizer_seconds(step_memory(scenario).step.trainable_count),
    )
    kept = work.accumulation_steps > 1 or scenario.zero_grad is ZeroGrad.KEEP
    for row in found["by_strategy"]:
        divided = replace(scenario, layout=replace(scenario.layout, strategy=Strategy(row["strategy"])))
        row["memory_bytes"] = _peak_bytes(step_memory(divided, gradients_kept=kept), micro_batch)
        row["fits"] = row["memory_bytes"] <= limit_bytes
    if scenario.method is not Method.FULL:
        found["notes"] = ["Frozen weights are gathered too; only the adapters' gradients are exchanged."]
    return found
