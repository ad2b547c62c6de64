"""How GPUs are divided among data, tensor, pipeline, context and expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from calc.errors import ScenarioError, only_known
from calc.numbers import whole
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping


MAX_GPUS = 1_000_000
DEGREES = ("tensor", "pipeline", "context", "expert")
KEYS = ("strategy", *DEGREES, "sequence_parallel", "cpu_offload")


class Strategy(StrEnum):
    """How data-parallel replicas divide weights, gradients and optimizer state."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    FSDP = "fsdp"

    @property
    def stage(self) -> int:
        """ZeRO stage: 0 nothing divided, 1 optimizer state, 2 gradients too, 3 weights too. FSDP is stage 3."""
        return {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}[self.value]


class Offload(StrEnum):
    """What waits in the host's memory."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the GPUs are divided. ``data`` replicas x ``tensor`` x ``pipeline`` x ``context`` is the number of GPUs.

    ``expert`` groups divide the replicas; ``sequence_parallel`` splits what tensor parallelism alone repeats.
    """

    strategy: Strategy = Strategy.DDP
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    cpu_offload: Offload = Offload.NONE

    @property
    def gpus(self) -> int:
        """GPUs used."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def shards(self) -> int:
        """Ranks that share weights, gradients and optimizer state: context ranks hold the same ones as replicas."""
        return self.data * self.context

    @property
    def state_ways(self) -> int:
        """Parts that the optimizer's state is divided into: those of the model, and the ranks' where a stage does."""
        return self.tensor * self.pipeline * (self.shards if self.strategy.stage else 1)


def _word(parallelism: Mapping[str, Any], key: str, words: type[StrEnum], default: StrEnum) -> str:
    word = parallelism.get(key, default.value)
    allowed = [member.value for member in words]
    if word not in allowed:
        raise ScenarioError(f"parallelism.{key}", f"{word!r} is unknown: use one of {', '.join(allowed)}")
    return str(word)


def _switch(parallelism: Mapping[str, Any], key: str) -> bool:
    value = parallelism.get(key, False)
    if not isinstance(value, bool):
        raise ScenarioError(f"parallelism.{key}", f"{value!r}: give true or false")
    return value


def read_layout(parallelism: Mapping[str, Any], gpus: int) -> Layout:
    """Read a scenario's ``parallelism`` for a number of GPUs; what the other ways leave over becomes replicas.

    Raises
    ------
    ScenarioError
        If a key or a word is unknown or the degrees do not divide the GPUs.
    """
    only_known(parallelism, KEYS, "parallelism")
    degrees = {key: whole(parallelism.get(key, 1), f"parallelism.{key}", 1, MAX_GPUS) for key in DEGREES}
    strategy = Strategy(_word(parallelism, "strategy", Strategy, Strategy.DDP))
    cpu_offload = Offload(_word(parallelism, "cpu_offload", Offload, Offload.NONE))
    split = degrees["tensor"] * degrees["pipeline"] * degrees["context"]
    if gpus % split:
        raise ScenarioError(
            "parallelism",
            f"tensor x pipeline x context is {split}, which does not divide {counted(gpus, 'GPU')}: change the degrees "
            f"or use a multiple of {split}",
        )
    data = gpus // split
    if data % degrees["expert"]:
        raise ScenarioError(
            "parallelism.expert", f"{degrees['expert']:,} does not divide the {counted(data, 'data-parallel replica')}"
        )
    return Layout(
        strategy=strategy,
        data=data,
        sequence_parallel=_switch(parallelism, "sequence_parallel"),
        cpu_offload=cpu_offload,
        **degrees,
    )
