"""Seconds that GPUs spend exchanging data: latency plus bytes over bandwidth, with measured bandwidth where it exists.

``bytes`` is always the full tensor's size; ranks are GPUs. Ring and tree are NCCL's algorithms.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calc.errors import ScenarioError
from calc.numbers import is_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN_CARD_LINK = "pcie-4"
"""What joins GPUs of which nothing but the size is known."""
USUAL_NETWORK = "ethernet-100g"
# In-switch reduction needs more than this many GPUs in one node (measured: 4 H200 fall back to the ring).
_SWITCH_REDUCTION_MINIMUM = 4


@dataclass(frozen=True, slots=True)
class BandwidthCurve:
    """Bus bandwidth against message size, ``W(S) = W_inf / (1 + (S0 / S)^q)``, fitted to measurements from 1 MiB."""

    asymptote_bytes_per_second: float
    half_size_bytes: float
    exponent: float
    measured_gpus: int
    rms_percent: float

    def bytes_per_second(self, message_bytes: float) -> float:
        """Bus bandwidth at one message size, in bytes per second."""
        ratio = float((self.half_size_bytes / message_bytes) ** self.exponent)
        return self.asymptote_bytes_per_second / (1 + ratio)


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of link: a node's own (rates per GPU) or a network adapter's. One direction."""

    id: str
    name: str
    kind: str
    spec_bytes_per_second: float
    effective_bytes_per_second: float
    ring_hop_seconds: float
    tree_hop_seconds: float
    source: str
    curve: BandwidthCurve | None = None
    in_switch_reduction_bytes_per_second: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """How GPUs are joined: a link within each node, and adapters between nodes."""

    node: Link
    network: Link
    adapters_per_node: float = 1

    def shared_by(self, groups: float) -> Fabric:
        """Return the fabric as one of several groups sees it that use each node's adapters at the same time."""
        return replace(self, adapters_per_node=self.adapters_per_node / groups)

    @property
    def network_bytes_per_second(self) -> float:
        """What all of a node's adapters carry together, in bytes per second."""
        return self.network.effective_bytes_per_second * self.adapters_per_node


@cache
def _catalog() -> dict[str, Any]:
    path = Path(__file__).with_name("catalog") / "interconnects.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


@cache
def links() -> dict[str, Link]:
    """List every known link by its id."""
    return {
        row["id"]: Link(**{**row, "curve": BandwidthCurve(**row["curve"]) if "curve" in row else None})
        for row in _catalog()["links"]
    }


def launch_seconds() -> float:
    """Return the fixed cost of starting a collective. Source: NCCL's tuning constants (Simple protocol)."""
    return float(_catalog()["launch_seconds"])


def _link(name: str, kind: str) -> Link:
    link = links().get(name)
    if link is None or link.kind != kind:
        known = ", ".join(link.id for link in links().values() if link.kind == kind)
        raise ScenarioError("interconnect", f"{name!r} is no {kind} link: use one of {known}")
    return link


def read_fabric(interconnect: str | Mapping[str, Any]) -> Fabric:
    """Read a scenario's ``interconnect``.

    Parameters
    ----------
    interconnect : str or Mapping
        ``"nvlink-4"``, ``"nvlink-4+infiniband-ndr"``, ``"nvlink-4+infiniband-ndr-x8"`` (adapters per node), or an
        object with ``node``, ``network`` and ``adapters_per_node``. Where no network is named it is `USUAL_NETWORK`.

    Raises
    ------
    ScenarioError
        If a link is unknown, with the known ones.
    """
    adapters: object
    if isinstance(interconnect, str):
        node, _, rest = interconnect.partition("+")
        network, adapters = rest or USUAL_NETWORK, 1
        if counted := re.fullmatch(r"(.+)-x(\d{1,9})", network):
            network, adapters = counted[1], int(counted[2])
    else:
        node = str(interconnect.get("node", ""))
        network = str(interconnect.get("network", USUAL_NETWORK))
        adapters = interconnect.get("adapters_per_node", 1)
    if not is_whole(adapters) or not 1 <= adapters <= 64:
        raise ScenarioError("interconnect", f"{adapters!r} adapters per node: give a whole number from 1 to 64")
    return Fabric(_link(node, "node"), _link(network, "network"), int(adapters))


def default_node_link(
    link_name: str | None,
    link_bytes_per_second: float | None,
    pcie_bytes_per_second: float | None,
    gpus: int,
    bridge_gpus: int = 2,
) -> str | None:
    """Name the link that joins these GPUs in one node, from what the GPU has; None where nothing joins them.

    More GPUs than a bridge joins meet over PCIe.

    Parameters
    ----------
    link_name, link_bytes_per_second : str, float
        The GPU's own link to its neighbours and its rate in one direction; None where it has none.
    pcie_bytes_per_second : float
        Its PCIe rate in one direction.
    gpus : int
        How many are joined.
    bridge_gpus : int
        How many one bridge joins, where the GPU's link is a bridge.
    """
    kinds = ["pcie"]
    if link_name and link_bytes_per_second and "CPU" not in link_name:
        bridged = "bridge" in link_name
        own = "infinity-fabric" if "Infinity" in link_name else "nvlink-bridge" if bridged else "nvlink"
        if not bridged or 1 < gpus <= bridge_gpus:
            kinds.insert(0, own)
    for kind in kinds:
        rate = pcie_bytes_per_second if kind == "pcie" else link_bytes_per_second
        known = [
            link
            for link in links().values()
            if link.kind == "node"
            and link.id.startswith(kind)
            and (kind != "nvlink" or not link.id.startswith("nvlink-bridge"))
        ]
        if rate:
            return min(known, key=lambda link: abs(link.spec_bytes_per_second - rate)).id
    return None


# Adapters of NVIDIA's own servers of each generation (data sheets of DGX-1, DGX A100, DGX H100, DGX B200).
_SERVER_NETWORKS = {
    "nvlink-2": "infiniband-edr-x4",
    "nvlink-3": "infiniband-hdr-x8",
    "nvlink-4": "infiniband-ndr-x8",
    "nvlink-5": "infiniband-ndr-x8",
}


def default_network(node_link: str) -> str:
    """Name the network that servers with this link usually have; 100 Gbit/s Ethernet for all but NVIDIA's own."""
    return _SERVER_NETWORKS.get(node_link, USUAL_NETWORK)


def completed(named: Mapping[str, Any], node_link: str) -> str | Mapping[str, Any]:
    """Return an object's interconnect for `read_fabric`, with what it leaves open as servers with this link have it."""
    network = named.get("network") or default_network(node_link)
    if "adapters_per_node" in named:
        return {"adapters_per_node": named["adapters_per_node"], "node": node_link, "network": network}
    return f"{node_link}+{network}"


def ring_latency(passes: int, gpus: int, nodes: int, fabric: Fabric) -> float:
    """Latency of a ring, in seconds: ``launch + passes x [(n - nodes) hop_node + (nodes - 1) hop_network]``.

    Parameters
    ----------
    passes : int
        2 for an all-reduce, 1 for an all-gather or reduce-scatter.
    gpus, nodes : int
        Ranks and the nodes that they are on.
    fabric : Fabric
        The links.

    Notes
    -----
    Source: NCCL's tuning model; on one node ``launch + passes (n - 1) hop``.
    """
    between = nodes - 1
    within = gpus - 1 - between
    hops = within * fabric.node.ring_hop_seconds + between * fabric.network.ring_hop_seconds
    return launch_seconds() + passes * hops


def tree_latency(gpus: int, nodes: int, fabric: Fabric) -> float:
    """Latency of a tree all-reduce, in seconds: ``launch + 2 [(n / nodes - 1) hop_node + log2(nodes) hop_network]``.

    Source: NCCL's tuning model.
    """
    within = (gpus / nodes - 1) * fabric.node.tree_hop_seconds
    return launch_seconds() + 2 * (within + math.log2(nodes) * fabric.network.tree_hop_seconds)


def bus_bandwidth(fabric: Fabric, gpus: int, nodes: int, message_bytes: float, *, reduces: bool = False) -> float:
    """Bus bandwidth per GPU for a message, in bytes per second.

    On one node the measured curve where one exists. Over several, NCCL runs rings that leave through every adapter, so
    ``min(W_node, adapters x W_adapter)``: W is the node's total, not divided by its GPUs. That gives 384 GB/s for 32
    B200 with 8 x 400 Gbit/s (measured 382) and 192 GB/s for DGX A100 with 8 x 200 Gbit/s (measured 192).

    Parameters
    ----------
    fabric : Fabric
        The links.
    gpus, nodes : int
        Ranks and their nodes.
    message_bytes : float
        The full tensor.
    reduces : bool
        Whether it is an all-reduce, which some switches add up themselves.
    """
    link = fabric.node
    if nodes > 1:
        return min(link.effective_bytes_per_second, fabric.network_bytes_per_second)
    gain = 1.0
    if reduces and link.in_switch_reduction_bytes_per_second and gpus > _SWITCH_REDUCTION_MINIMUM:
        gain = link.in_switch_reduction_bytes_per_second / link.effective_bytes_per_second
    if link.curve:
        return gain * link.curve.bytes_per_second(message_bytes)
    return gain * link.effective_bytes_per_second


def _with_latency(seconds: float, latency: float, fabric: Fabric, nodes: int) -> float:
    """Add the latency, except where a measured curve already holds it."""
    return seconds if nodes == 1 and fabric.node.curve else seconds + latency


def all_reduce_seconds(fabric: Fabric, gpus: int, nodes: int, message_bytes: float) -> float:
    """Seconds to sum a tensor over all ranks: ``latency + 2 (n - 1) / n S / W``; the faster of ring and tree.

    Source: Thakur et al. 2005, and NCCL's definition of bus bandwidth.
    """
    if gpus == 1 or message_bytes == 0:
        return 0.0
    latency = min(ring_latency(2, gpus, nodes, fabric), tree_latency(gpus, nodes, fabric))
    bandwidth = bus_bandwidth(fabric, gpus, nodes, message_bytes, reduces=True)
    return _with_latency(2 * (gpus - 1) / gpus * message_bytes / bandwidth, latency, fabric, nodes)


def all_gather_seconds(fabric: Fabric, gpus: int, nodes: int, message_bytes: float) -> float:
    """Seconds to gather a tensor of which each rank holds a part: ``latency + (n - 1) / n S / W``, by the ring.

    A reduce-scatter of the same tensor takes as long (measured on 8 H200: 361 and 363 GB/s).
    """
    if gpus == 1 or message_bytes == 0:
        return 0.0
    bandwidth = bus_bandwidth(fabric, gpus, nodes, message_bytes)
    latency = ring_latency(1, gpus, nodes, fabric)
    return _with_latency((gpus - 1) / gpus * message_bytes / bandwidth, latency, fabric, nodes)


def all_to_all_seconds(fabric: Fabric, gpus: int, nodes: int, message_bytes: float) -> float:
    """Seconds for each rank to send an equal part of its tensor to every other: ``launch + (n - 1) / n S / W``.

    Across nodes only the parts for other nodes pass the adapters, which a node's GPUs share:
    ``S g (nodes - 1) / nodes`` bytes leave a node of g GPUs.
    """
    if gpus == 1 or message_bytes == 0:
        return 0.0
    within = (gpus - 1) / gpus * message_bytes / fabric.node.effective_bytes_per_second
    leaving = gpus / nodes * message_bytes * (nodes - 1) / nodes
    return launch_seconds() + max(within, leaving / fabric.network_bytes_per_second)


def point_to_point_seconds(fabric: Fabric, nodes: int, message_bytes: float) -> float:
    """Seconds to hand a tensor to one neighbour, over the network where the neighbours are on different nodes."""
    link = fabric.network if nodes > 1 else fabric.node
    return launch_seconds() + link.ring_hop_seconds + message_bytes / link.effective_bytes_per_second
