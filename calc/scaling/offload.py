"""What of a model's state may wait in the host's memory."""

from __future__ import annotations

from calc.scaling.layout import Offload, Strategy


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
