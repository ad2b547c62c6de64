"""The scenario's GPUs: seconds per step, where they go, and speed-up against their number."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from calc import collectives
from calc.errors import ScenarioError
from calc.scaling.layout import Layout, Strategy
from calc.scaling.step_time import UNMODELLED_HIGH, UNMODELLED_LOW, StepParts, Workload, speed_up, step_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.collectives import Fabric


# GPUs of a node where the scenario fills none: the usual server.
USUAL_GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class _Machine:
    """The scenario's fabric, and how a number of GPUs is spread over nodes."""

    fabric: Fabric
    nodes: int
    gpus_per_node: int
    host_bytes_per_second: float
    whole_update_seconds: float

    def nodes_for(self, layout: Layout) -> int:
        """Nodes for a layout: as full as the scenario's, or the usual server's where it has one node."""
        size = self.gpus_per_node if self.nodes > 1 else max(self.gpus_per_node, USUAL_GPUS_PER_NODE)
        return math.ceil(layout.gpus / size)

    def parts(self, work: Workload, layout: Layout, unmodelled: float | None = None) -> StepParts:
        """Split the step of a layout on this machine."""
        return step_parts(
            work,
            layout,
            self.fabric,
            self.nodes_for(layout),
            host_bytes_per_second=self.host_bytes_per_second,
            whole_update_seconds=self.whole_update_seconds,
            unmodelled=unmodelled,
        )


def scale(
    work: Workload,
    *,
    layout: Layout,
    interconnect: str | Mapping[str, Any],
    nodes: int,
    micro_batch: int,
    host_bytes_per_second: float,
    whole_update_seconds: float = 0.0,
) -> dict[str, Any]:
    """Say what the scenario's GPUs give: seconds per step and where they go, by strategy and by number of GPUs.

    Parameters
    ----------
    work : Workload
        One GPU's step.
    layout : Layout
        The scenario's.
    interconnect : str or Mapping
        As in :func:`calc.collectives.read_fabric`.
    nodes : int
        Nodes in use.
    micro_batch : int
        Samples per pass and replica.
    host_bytes_per_second : float
        What passes between one GPU and its host, for offloading.
    whole_update_seconds : float
        The whole model's update on one host, for offloading.

    Raises
    ------
    ScenarioError
        If the nodes do not divide the GPUs, or a link is unknown.
    """
    if layout.gpus % nodes:
        raise ScenarioError("nodes", f"{nodes} nodes do not divide {layout.gpus} GPUs evenly")
    fabric = collectives.read_fabric(interconnect)
    machine = _Machine(fabric, nodes, layout.gpus // nodes, host_bytes_per_second, whole_update_seconds)
    parts = machine.parts(work, layout)
    samples = micro_batch * work.accumulation_steps * layout.data

    def efficiency(unmodelled: float | None = None) -> float:
        return speed_up(work, layout, machine.parts(work, layout, unmodelled)) / layout.gpus

    return {
        "gpus": layout.gpus,
        "nodes": nodes,
        "layout": asdict(layout),
        "fabric": {
            "node": fabric.node.name,
            "network": fabric.network.name if nodes > 1 else None,
            "adapters_per_node": fabric.adapters_per_node,
            "sources": [fabric.node.source] + ([fabric.network.source] if nodes > 1 else []),
        },
        "step_seconds": parts.seconds,
        "samples_per_second": samples / parts.seconds,
        "parts": parts._asdict(),
        "speed_up": speed_up(work, layout, parts),
        "efficiency": efficiency(),
        "efficiency_low": efficiency(UNMODELLED_HIGH),
        "efficiency_high": efficiency(UNMODELLED_LOW),
        "by_gpus": _by_gpus(work, layout, machine),
        "by_strategy": [
            {
                "strategy": strategy.value,
                "step_seconds": machine.parts(work, replace(layout, strategy=strategy)).seconds,
            }
            for strategy in Strategy
        ],
    }


def _by_gpus(work: Workload, layout: Layout, machine: _Machine) -> list[dict[str, Any]]:
    """Double the replicas from one to beyond the scenario's, each replica with the same work (weak scaling)."""
    group = layout.gpus // layout.data
    largest = max(8 * layout.gpus, 64)
    counts = {layout.data}
    replicas = layout.expert
    while group * replicas <= largest:
        counts.add(replicas)
        replicas *= 2
    rows = []
    for count in sorted(counts):
        grown = replace(layout, data=count)
        parts = machine.parts(work, grown)
        rows.append(
            {
                "gpus": grown.gpus,
                "nodes": machine.nodes_for(grown),
                "speed_up": speed_up(work, grown, parts),
                "step_seconds": parts.seconds,
                "parts": parts._asdict(),
            }
        )
    return rows
