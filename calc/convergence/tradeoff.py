"""Steps against examples: what a larger batch buys and what it costs (McCandlish et al. 2018).

All batches are in one unit (samples or tokens); the critical batch has the "2x" definition: training at it takes twice
the fewest steps and twice the fewest examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = "McCandlish, Kaplan, Amodei et al. 2018, arXiv:1812.06162"


def steps_factor(batch: float, critical_batch: float) -> float:
    """Give the steps to reach a loss as a multiple of the fewest possible: ``S / S_min = 1 + B_crit / B``.

    Source: arXiv:1812.06162, equation 2.11 solved for S with E = B S.
    """
    return 1 + critical_batch / batch


def examples_factor(batch: float, critical_batch: float) -> float:
    """Give the examples to reach a loss as a multiple of the fewest possible: ``E / E_min = 1 + B / B_crit``.

    Source: arXiv:1812.06162, equation 2.11 solved for E with E = B S.
    """
    return 1 + batch / critical_batch


def steps_saved_by_doubling(batch: float, critical_batch: float) -> float:
    """Share of the steps that twice the batch saves: one half far below the critical batch, none far above."""
    return 1 - steps_factor(2 * batch, critical_batch) / steps_factor(batch, critical_batch)


def examples_added_by_doubling(batch: float, critical_batch: float) -> float:
    """Share by which twice the batch raises the examples needed: none far below the critical batch, all far above."""
    return examples_factor(2 * batch, critical_batch) / examples_factor(batch, critical_batch) - 1


@dataclass(frozen=True, slots=True)
class TradeoffFit:
    """Fewest steps and critical batch fitted to runs that reached one loss, and how far the runs lie from the fit."""

    fewest_steps: float
    critical_batch: float
    rms_log_error: float


def fit_tradeoff(batches: Sequence[float], steps: Sequence[float]) -> TradeoffFit:
    """Fit ``S = S_min (1 + B_crit / B)`` to steps-to-target measurements, by least squares of log S.

    Parameters
    ----------
    batches, steps : Sequence[float]
        Batch and steps to the same loss of each run, at least two different batches.

    Raises
    ------
    ScenarioError
        If there are fewer than two batches or a number is not positive.
    """
    if len(set(batches)) < 2 or len(batches) != len(steps):
        raise ScenarioError("steps_to_target", "give the steps of at least two runs with different batches")
    if min(*batches, *steps) <= 0:
        raise ScenarioError("steps_to_target", "batches and steps must be positive")

    def residuals(log_critical: float) -> tuple[float, float]:
        """Return log S_min and the mean squared log error at this critical batch."""
        critical = math.exp(log_critical)
        offsets = [math.log(s / steps_factor(b, critical)) for b, s in zip(batches, steps, strict=True)]
        log_fewest = math.fsum(offsets) / len(offsets)
        return log_fewest, math.fsum((o - log_fewest) ** 2 for o in offsets) / len(offsets)

    # Beyond these the data hold no information on the bend: 1000 times outside the batches tried.
    low, high = math.log(min(batches) / 1e3), math.log(max(batches) * 1e3)
    golden = (math.sqrt(5) - 1) / 2
    while high - low > 1e-9:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if residuals(left)[1] < residuals(right)[1]:
            high = right
        else:
            low = left
    log_critical = (low + high) / 2
    log_fewest, error = residuals(log_critical)
    return TradeoffFit(math.exp(log_fewest), math.exp(log_critical), math.sqrt(error))
