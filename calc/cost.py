"""Time, energy and money of a whole run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from calc.catalog import published
from calc.errors import ScenarioError
from calc.goal import SECONDS_PER_HOUR, Goal

JOULES_PER_KILOWATT_HOUR = 3.6e6

# What a full server draws over its GPUs' own board power: NVIDIA rates the DGX H100 at 10.2 kW for 8 x 700 W and the
# DGX A100 at 6.5 kW for 8 x 400 W.
SERVER_POWER_FACTOR = 10_200 / (8 * 700)


OPEN = Goal()


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for one GPU for one hour, and where the figure comes from."""

    dollars_per_gpu_hour: float
    source: str


def default_price(gpu_id: str) -> Price | None:
    """Find a list price to start from; None where no list that was read has this GPU.

    Parameters
    ----------
    gpu_id : str
        The GPU preset's id.
    """
    matching = [row for row in published.gpu_prices() if gpu_id.startswith(row["id"])]
    if not matching:
        return None
    row = max(matching, key=lambda candidate: len(candidate["id"]))
    return Price(row["dollars_per_gpu_hour"], row["source"])


def update_count(samples: float, global_batch: int) -> int:
    """Optimizer updates that a number of samples takes; the last one may be partly filled.

    The part of the "generalization gap" that is arithmetic: over as many samples, twice the batch means half the
    updates (Hoffer et al. 2017, arXiv:1705.08741).
    """
    return math.ceil(samples / global_batch)


def run_seconds(updates: int, update_seconds: float) -> float:
    """Seconds of the whole run, without evaluation, checkpoints and failures."""
    return updates * update_seconds


def gpu_hours(seconds: float, gpus: int) -> float:
    """GPU-hours, the unit that is billed."""
    return seconds * gpus / SECONDS_PER_HOUR


def energy_kilowatt_hours(seconds: float, gpus: int, board_watts: float) -> float:
    """Energy of the boards at their power limit, in kWh: an upper bound for them, without server and cooling."""
    return seconds * gpus * board_watts / JOULES_PER_KILOWATT_HOUR


def run(
    *,
    samples: float,
    global_batch: int,
    update_seconds: float,
    gpus: int,
    board_watts: float | None = None,
    dollars_per_gpu_hour: float | None = None,
    gpu_id: str = "",
    goal: Goal = OPEN,
) -> dict[str, Any]:
    """Sum up the whole run: updates, seconds, GPU-hours, energy as a span, money, and whether it keeps to the goal.

    Parameters
    ----------
    samples : float
        Samples of the whole run (epochs x data set).
    global_batch : int
        Samples per update.
    update_seconds : float
        Seconds of one update.
    gpus : int
        GPUs in use.
    board_watts : float, optional
        One board's power limit.
    dollars_per_gpu_hour : float, optional
        The user's own price; a list price where none is given.
    gpu_id : str
        To find the list price.
    goal : Goal
        What the run is to keep to.

    Raises
    ------
    ScenarioError
        If there is no sample, or a price below zero.
    """
    if not (samples > 0 and math.isfinite(samples)):
        raise ScenarioError("dataset", f"{samples} samples: a run needs at least one")
    if dollars_per_gpu_hour is not None and not (dollars_per_gpu_hour >= 0 and math.isfinite(dollars_per_gpu_hour)):
        raise ScenarioError("price_per_gpu_hour", f"{dollars_per_gpu_hour} is not a price: give 0 or more")
    updates = update_count(samples, global_batch)
    seconds = run_seconds(updates, update_seconds)
    hours = gpu_hours(seconds, gpus)
    price = Price(dollars_per_gpu_hour, "entered") if dollars_per_gpu_hour is not None else default_price(gpu_id)
    energy = energy_kilowatt_hours(seconds, gpus, board_watts) if board_watts else None
    dollars = hours * price.dollars_per_gpu_hour if price else None
    return {
        "updates": updates,
        "seconds": seconds,
        "gpu_hours": hours,
        "energy_kwh_low": energy,
        "energy_kwh_high": energy * SERVER_POWER_FACTOR if energy is not None else None,
        "dollars": dollars,
        "dollars_per_gpu_hour": price.dollars_per_gpu_hour if price else None,
        "price_source": price.source if price else None,
        "goal_met": goal.met(seconds, dollars) if goal else None,
        "goal": f"As it is set, the run {goal.judged(seconds, dollars)}." if goal else None,
        "notes": [
            "Without evaluation, checkpoints, failures and restarts.",
            "Energy: the boards at their power limit; the high end counts a whole server as NVIDIA rates it.",
        ],
    }
