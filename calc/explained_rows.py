"""How the numbers of a table's row come about: what would let it take more, and the planner's plans."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from calc.cost import gpu_hours
from calc.explanations import (
    ALLOCATOR,
    DEFINITION,
    ROOFLINE,
    SHARED_STEP_PARTS,
    TIMES,
    Explanation,
    gib_text,
    number_text,
    sum_seconds_text,
)
from calc.goal import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.cost import Price
    from calc.planner.search import Candidates, Machine, Plan
    from calc.scaling import StepParts

MINUS, DIVIDED_BY = " \u2212 ", " \u00f7 "
DIVISION = (
    "ZeRO: Rajbhandari et al. 2019, arXiv:1910.02054; tensor and pipeline parallelism: Korthikanti et al. 2022, "
    "arXiv:2205.05198. Tensors alone; of the plan that is recommended the allocator is followed too"
)
UPDATES_PRICED = 1000


def _as_dict(found: Mapping[str, Explanation]) -> dict[str, dict[str, str]]:
    return {field: asdict(explanation) for field, explanation in found.items()}


def _signed(difference: str) -> str:
    """A minus before a result as it is written between numbers."""
    return difference.replace("= -", "= \u2212")


def lever(
    *,
    largest: tuple[int, int],
    reserved_bytes: tuple[int, int],
    micro_batch: int,
    rates: tuple[float, float] | None,
    rates_of: str,
) -> dict[str, dict[str, str]]:
    """Explain a change's numbers, by their names in its row; each pair is without the change and with it.

    Parameters
    ----------
    largest : tuple[int, int]
        Largest micro-batches.
    reserved_bytes : tuple[int, int]
        What the allocator reserves at `micro_batch`.
    micro_batch : int
        The scenario's.
    rates : tuple[float, float], optional
        `rates_of` a second at the largest micro-batches or as planned; None where either fits nothing or has no speed.
    rates_of : str
        Samples, or tokens where the change is the length of a sample.
    """
    (before, after), (taken_before, taken) = largest, reserved_bytes
    found = {
        "max_micro_batch": Explanation(
            "largest micro-batch with the change; in brackets that \u2212 the largest without it",
            _signed(f"{after:,}{MINUS}{before:,} = {after - before:,}"),
            ALLOCATOR,
        ),
        "saved_bytes": Explanation(
            "reserved with the change \u2212 reserved without it, at the same micro-batch",
            _signed(f"{gib_text(taken)}{MINUS}{gib_text(taken_before)} = {gib_text(taken - taken_before)} GiB")
            + f" at micro-batch {micro_batch:,}",
            ALLOCATOR,
        ),
    }
    if rates is not None:
        slow, fast = rates
        found["speed_ratio"] = Explanation(
            f"{rates_of} a second with the change \u00f7 those without it, each at its largest micro-batch or as its "
            "plan makes the batch that is wanted",
            f"{number_text(fast)}{DIVIDED_BY}{number_text(slow)} = {number_text(fast / slow)}",
            ROOFLINE,
        )
    return _as_dict(found)


def plan(
    found: Plan, parts: StepParts, machine: Machine, price: Price | None, *, whole_run: bool
) -> dict[str, dict[str, str]]:
    """Explain a plan's numbers, by their names in its row.

    Parameters
    ----------
    found : Plan
        The plan.
    parts : StepParts
        Its update's seconds.
    machine : Machine
        The GPUs that may be used.
    price : Price, optional
        Of a GPU-hour; GPU-hours stand in its place where none is known.
    whole_run : bool
        Whether the run's length is known; some updates are priced where it is not.
    """
    layout, seconds = found.layout, found.update_seconds
    links = [machine.fabric.node.source] if machine.gpus > 1 else []
    links += [machine.fabric.network.source] if machine.gpus > machine.gpus_per_node else []
    degrees = (layout.data, layout.tensor, layout.pipeline, layout.context)
    explained = {
        "update_seconds": Explanation(
            *sum_seconds_text(parts._asdict(), SHARED_STEP_PARTS, seconds),
            "; ".join(dict.fromkeys([ROOFLINE, *links])),
        ),
        "headroom_bytes": Explanation(
            "what the allocator can use on a GPU \u2212 the plan\u2019s peak on the fullest",
            f"{gib_text(machine.limit_bytes)}{MINUS}{gib_text(found.memory_bytes)} = "
            f"{gib_text(found.headroom_bytes)} GiB",
            DIVISION,
        ),
        "gpus": Explanation(
            "replicas \u00d7 tensor \u00d7 pipeline \u00d7 context parallel",
            f"{TIMES.join(f'{degree:,}' for degree in degrees)} = {math.prod(degrees):,}",
            DEFINITION,
        ),
        "global_batch": Explanation(
            "samples of a pass \u00d7 accumulation steps \u00d7 replicas",
            f"{found.micro_batch:,}{TIMES}{found.accumulation_steps:,}{TIMES}{layout.data:,} = {found.global_batch:,}",
            DEFINITION,
        ),
    }
    if whole_run:
        explained["run_seconds"] = Explanation(
            "updates \u00d7 seconds of an update",
            f"{number_text(found.updates)}{TIMES}{number_text(seconds)} s = {number_text(found.run_seconds)} s",
            DEFINITION,
        )
    return _as_dict(explained | _cost(found, price, whole_run=whole_run))


def _cost(found: Plan, price: Price | None, *, whole_run: bool) -> dict[str, Explanation]:
    """Explain what a plan costs: dollars, or GPU-hours where the card has no price."""
    gpus = found.layout.gpus
    if whole_run:
        formula = "hours \u00d7 GPUs"
        values = f"{number_text(found.run_seconds / SECONDS_PER_HOUR)}{TIMES}{gpus:,}"
    else:
        formula = "updates \u00d7 seconds of an update \u00f7 3600 \u00d7 GPUs"
        values = f"{UPDATES_PRICED:,}{TIMES}{number_text(found.update_seconds)} s{DIVIDED_BY}3600{TIMES}{gpus:,}"
    updates = found.updates if whole_run else UPDATES_PRICED
    hours = gpu_hours(updates * found.update_seconds, gpus)
    if price is None:
        name = "run_gpu_hours" if whole_run else "gpu_hours_per_update"
        return {name: Explanation(formula, f"{values} = {number_text(hours)} GPU-hours", DEFINITION)}
    return {
        "run_dollars" if whole_run else "dollars_per_update": Explanation(
            f"{formula} \u00d7 dollars a GPU-hour",
            f"{values}{TIMES}{number_text(price.dollars_per_gpu_hour)} = "
            f"{number_text(hours * price.dollars_per_gpu_hour)} dollars",
            "your price" if price.source == "entered" else price.source,
        )
    }


def tried(found: Candidates, feasible: int, *, within_goal: bool) -> dict[str, dict[str, str]]:
    """Explain how many plans were tried, and how many will do, by their places in the planner's answer."""
    recipes, exact = len(found.recipes), int(found.exact.sum())
    take = "takes" if feasible == 1 else "take"
    kept = " and whose run keeps to the goal" if within_goal else ""
    return _as_dict(
        {
            "candidates": Explanation(
                "choices of checkpointing, precision, optimizer, attention and loss \u00d7 ways to divide the GPUs and "
                "the batch that make it exactly",
                f"{recipes:,}{TIMES}{exact:,} = {recipes * exact:,}",
                DEFINITION,
            ),
            "feasible": Explanation(
                f"plans whose peak on the fullest GPU is at most what the allocator can use{kept}",
                f"{feasible:,} {take} {gib_text(found.machine.limit_bytes)} GiB or less",
                DIVISION,
            ),
        }
    )
