"""What of a model's state may wait in the host's memory."""

from __future__ import annotations

from calc.catalog.gpus import pcie_bytes_per_second
from calc.scaling.layout import Offload, Strategy

# NCCL counts on 12 GB/s of PCIe 3 x16, which is specified with 15.75 (src/graph/topo.h, PCI_BW). Copies from the host
# come to 24.8 GB/s on an A100's PCIe 4 (forums.developer.nvidia.com/t/352186).
HOST_LINK_SHARE = 12e9 / pcie_bytes_per_second(3, 16)


def host_bytes_per_second(card_bytes_per_second: float | None) -> float:
    """What passes between a card and its host in one direction, in bytes per second.

    Parameters
    ----------
    card_bytes_per_second : float or None
        The specified rate of the card's PCIe link in one direction; where it is not known, that of PCIe 4 x16.

    Examples
    --------
    >>> [round(host_bytes_per_second(pcie_bytes_per_second(generation, 16)) / 1e9) for generation in (3, 4, 5)]
    [12, 24, 48]
    """
    return HOST_LINK_SHARE * (card_bytes_per_second or pcie_bytes_per_second(4, 16))


def offloads(strategy: Strategy, gpus: int, *, alone: bool) -> list[Offload]:
    """List what may wait in the host's memory, nothing first, as DeepSpeed and FSDP offer it.

    Beside data parallelism alone: the optimizer's state where it is divided or there is one GPU, the weights too where
    they are divided or there is one GPU.

    Parameters
    ----------
    strategy : Strategy
        How replicas divide the state.
    gpus : int
        All of them.
    alone : bool
        Whether there is no tensor, pipeline or context parallelism.
    """
    found = [Offload.NONE]
    if alone and (gpus == 1 or strategy.stage >= 1):
        found.append(Offload.OPTIMIZER)
    if alone and (gpus == 1 or strategy.stage == 3):
        found.append(Offload.ALL)
    return found
