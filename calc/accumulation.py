"""Gradient accumulation: how a wanted batch is made of micro-batches, and what that costs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class AccumulationPlan:
    """One way to make an optimizer step's batch, in samples.

    ``micro_batch`` samples at a time on each of ``data_parallel`` replicas, ``accumulation_steps`` times.
    """

    micro_batch: int
    accumulation_steps: int
    data_parallel: int

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step: micro-batch x accumulation steps x data-parallel replicas."""
        return self.micro_batch * self.accumulation_steps * self.data_parallel

    def as_dict(self) -> dict[str, int]:
        """Return the plan with the batch that it reaches, for the JSON border."""
        return {**asdict(self), "global_batch": self.global_batch}


def _require_positive(field: str, value: int) -> None:
    if value < 1:
        raise ScenarioError(field, f"{value} is not a batch: give a whole number of at least 1")


def divisors(number: int) -> list[int]:
    """Every whole number that divides another, in order."""
    small = [candidate for candidate in range(1, math.isqrt(number) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def split_replica_batch(largest_micro_batch: int, replica_batch: int) -> tuple[int, int]:
    """Split one replica's share of the batch exactly, in as few passes as memory allows.

    Parameters
    ----------
    largest_micro_batch : int
        Samples that fit at once.
    replica_batch : int
        Samples per optimizer step on one replica.

    Returns
    -------
    tuple[int, int]
        Micro-batch and accumulation steps, whose product is ``replica_batch``.
    """
    micro_batch = max(divisor for divisor in divisors(replica_batch) if divisor <= largest_micro_batch)
    return micro_batch, replica_batch // micro_batch


def exact_plan(largest_micro_batch: int, global_batch: int, data_parallel: int = 1) -> AccumulationPlan | None:
    """Find the plan with the fewest passes that makes the wanted batch exactly; None where the replicas do not divide.

    Parameters
    ----------
    largest_micro_batch : int
        Samples that fit on one replica at once.
    global_batch : int
        Samples wanted per optimizer step.
    data_parallel : int
        Replicas that each take an equal share.

    Raises
    ------
    ScenarioError
        If any of them is below 1.
    """
    _require_positive("micro_batch", largest_micro_batch)
    _require_positive("global_batch", global_batch)
    _require_positive("gpus", data_parallel)
    if global_batch % data_parallel:
        return None
    return AccumulationPlan(*split_replica_batch(largest_micro_batch, global_batch // data_parallel), data_parallel)


def nearest_plans(largest_micro_batch: int, global_batch: int, data_parallel: int = 1) -> list[AccumulationPlan]:
    """Find the two plans whose batches lie closest below and above the wanted one.

    Where the wanted batch is out of reach because the replicas do not divide it, the neighbours are the nearest
    multiples of the replicas. Where it can be made but only with a smaller micro-batch, they are the neighbours at
    the full micro-batch, which use the card better. Parameters and errors are those of :func:`exact_plan`.

    Returns
    -------
    list[AccumulationPlan]
        Below first; none where the exact plan already runs the full micro-batch, and no "below" under one sample
        per replica.
    """
    exact = exact_plan(largest_micro_batch, global_batch, data_parallel)
    share = global_batch // data_parallel
    if exact is None:
        return [
            AccumulationPlan(*split_replica_batch(largest_micro_batch, replica_batch), data_parallel)
            for replica_batch in (share, share + 1)
            if replica_batch
        ]
    if exact.micro_batch == largest_micro_batch or exact.accumulation_steps == 1:
        return []
    steps = share // largest_micro_batch
    return [AccumulationPlan(largest_micro_batch, count, data_parallel) for count in (steps, steps + 1) if count]


AS_GOOD_SHARE = 0.01
"""Batches that lie this near to the wanted one, of its size, do as well."""


def way_of(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one of a plan's ways that stands for it: the exact one, else the closest, the larger of two as close.

    Where the closest needs more than twice the passes of one that does as well, that one: a share of the batch that
    is prime would else run sample by sample.

    Parameters
    ----------
    plan : Mapping
        As :func:`plan` gives it.
    """
    ways: list[Mapping[str, Any]] = [plan["exact"]] if plan["exact"] else plan["nearest"][::-1]

    def off(way: Mapping[str, Any]) -> float:
        wanted: float = plan["global_batch"]
        return abs(float(way["global_batch"]) - wanted) / wanted

    closest = min(ways, key=off)
    as_good = [way for way in ways if off(way) <= AS_GOOD_SHARE]
    fewest = min(as_good, key=lambda way: way["accumulation_steps"], default=closest)
    return fewest if closest["accumulation_steps"] > 2 * fewest["accumulation_steps"] else closest


def plan(largest_micro_batch: int, global_batch: int, data_parallel: int = 1) -> dict[str, Any]:
    """Say how to reach the wanted batch: ``{"global_batch", "exact": {...} | None, "nearest": [{...}]}``.

    Parameters and errors are those of :func:`exact_plan`; each plan holds ``micro_batch``, ``accumulation_steps``,
    ``data_parallel`` and the ``global_batch`` that it reaches.
    """
    exact = exact_plan(largest_micro_batch, global_batch, data_parallel)
    return {
        "global_batch": global_batch,
        "exact": exact.as_dict() if exact else None,
        "nearest": [found.as_dict() for found in nearest_plans(largest_micro_batch, global_batch, data_parallel)],
    }


@dataclass(frozen=True, slots=True)
class Caveat:
    """Where an accumulated batch differs from a real one."""

    id: str
    text: str
    source: str


_SUM_OF_MEANS = Caveat(
    "loss-scale",
    "Divide each micro-batch's loss by the number of accumulation steps, or the gradient is that many times too large.",
    "arithmetic of a mean over parts",
)
_TOKEN_MEAN = Caveat(
    "token-mean-loss",
    "The loss is a mean over tokens. Where micro-batches hold unequal numbers of counted tokens, a mean of means is "
    "not the mean: divide by the tokens of the whole batch instead.",
    "Hugging Face Transformers, gradient accumulation fix of October 2024",
)
_BATCH_NORM = Caveat(
    "batch-norm",
    "Batch normalization takes its statistics from each micro-batch alone, so accumulation does not enlarge them. "
    "Synchronized batch norm joins GPUs within one pass, never passes that follow one another. Group or layer "
    "normalization, or frozen statistics, do not depend on the batch.",
    "Ioffe & Szegedy 2015, arXiv:1502.03167; Hoffer et al. 2017, arXiv:1705.08741",
)
_CONTRASTIVE = Caveat(
    "contrastive-loss",
    "A contrastive loss compares the samples of one pass with each other: accumulation adds passes but no negatives. "
    "Gather the embeddings first and replay the passes with their gradients (GradCache) to have the large batch.",
    "Gao et al. 2021, arXiv:2101.06983",
)
_ROUNDING = Caveat(
    "half-precision-sum",
    "Gradients are added up in 16 bit, where small ones are lost beside a large sum. Keep the accumulated gradient in "
    "32 bit where it can be chosen.",
    "rounding of a 16-bit sum; Micikevicius et al. 2017, arXiv:1710.03740, on 32-bit accumulation",
)


def caveats(
    *,
    accumulation_steps: int,
    batch_norm: bool = False,
    token_mean_loss: bool = False,
    contrastive_loss: bool = False,
    gradient_bytes_each: int = 4,
) -> list[dict[str, str]]:
    """List where this model's accumulated batch is not the same as a real one; empty without accumulation.

    Parameters
    ----------
    accumulation_steps : int
        Passes per update.
    batch_norm, token_mean_loss, contrastive_loss : bool
        What the model has.
    gradient_bytes_each : int
        Bytes of one gradient element as accumulated: 4, or 2 in 16 bit.
    """
    if accumulation_steps < 2:
        return []
    present = [
        (True, _SUM_OF_MEANS),
        (token_mean_loss, _TOKEN_MEAN),
        (batch_norm, _BATCH_NORM),
        (contrastive_loss, _CONTRASTIVE),
        (gradient_bytes_each < 4, _ROUNDING),
    ]
    return [asdict(caveat) for applies, caveat in present if applies]
