"""A scenario corrected by readings from one's own machine.

Two things are left open by the calculation, and nothing else is fitted: the *overhead*, memory that torch's allocator
cannot use (the driver's context, other processes, a desktop), and the *activation share*, by how much what grows with
the micro-batch differs from the replay (another version of a library, another kernel, padding).

Bytes that tensors held, or that the allocator reserved, know no overhead: they give the activation share. Readings of
the whole card give the overhead; two at different micro-batches give both. Batches that ran and failed give the range
of shares under which they would, and move the share only where it lies outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from calc.allocator import OutOfMemoryError
from calc.errors import ScenarioError
from calc.memory import step_memory
from calc.model_dimensions import parse_dividable
from calc.readings import FIELD, BytesReading, Kind, Trial
from calc.scenario import Scenario, ZeroGrad

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.memory import StepMemory

GIB = 2**30
LOWEST_SHARE, HIGHEST_SHARE = 0.5, 2.0
"""A share outside speaks of another model or recipe, not of the same one elsewhere."""
HALVINGS = 12
"""Of the interval of shares: to within 0.04 %."""


@dataclass(frozen=True)
class Fit:
    """What the readings say. A None was not asked of them; ``shares`` are the bounds that single readings give."""

    overhead_bytes: int | None
    activation_share: float | None
    shares: tuple[float, float] | None
    overheads: tuple[int, int] | None
    unexplained: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether anything is calculated otherwise than without the readings."""
        return self.overhead_bytes is not None or self.activation_share not in {None, 1.0}


def calibrated(scenario: Scenario) -> tuple[Scenario, dict[str, Any] | None]:
    """The scenario with what its readings say in place of what is usual, and the fit in the result's form.

    Raises
    ------
    ScenarioError
        Field ``calibration``, where a reading's own scenario is wrong.
    """
    if not scenario.calibration:
        return scenario, None
    fit = fit_readings(scenario)
    gpu = scenario.gpu
    if fit.overhead_bytes is not None:
        gpu = replace(gpu, overhead_bytes=fit.overhead_bytes)
    corrected = replace(scenario, gpu=gpu, activation_share=fit.activation_share or 1.0)
    return corrected, _as_dict(scenario, corrected, fit)


def fit_readings(scenario: Scenario) -> Fit:
    """Fit the two unknowns to a scenario's readings."""
    unexplained: list[str] = []
    shares = []
    card: list[tuple[Scenario, BytesReading]] = []
    for number, reading in enumerate(scenario.calibration, 1):
        if isinstance(reading, Trial):
            continue
        of = _scenario_of(scenario, reading)
        if reading.kind is Kind.CARD:
            if of.gpu == scenario.gpu:
                card.append((of, reading))
            continue
        share = _solve(lambda s, of=of, reading=reading: _shown_smoothly(of, reading, s), reading.nbytes)  # type: ignore[misc]
        if share is None:
            unexplained.append(_not_explained(number, _shown_bytes(of, reading, 1.0), reading.nbytes))
        else:
            shares.append(share)
    share_of_all = sum(shares) / len(shares) if shares else None
    if share_of_all is None and len({reading.batch for _, reading in card}) > 1:
        share_of_all = _share_from_card(card)
        shares = [] if share_of_all is None else [share_of_all]
    overheads = [reading.nbytes - _shown_smoothly(of, reading, share_of_all or 1.0) for of, reading in card]
    overhead = sum(overheads) // len(overheads) if overheads else None
    if overhead is not None and overhead < 0:
        unexplained.append(
            f"the whole card shows {-overhead / GIB:.2f} GiB less than the tensors and the allocator need by the "
            "calculation: the scenario may not be what ran"
        )
        overhead = None
    bounds = (min(shares), max(shares)) if shares else None
    fit = Fit(overhead, share_of_all, bounds, (min(overheads), max(overheads)) if overhead is not None else None, ())
    return _within_trials(scenario, fit, unexplained)


def _within_trials(scenario: Scenario, fit: Fit, unexplained: list[str]) -> Fit:
    """Move the share into the range under which the batches that ran run, and those that failed fail."""
    low, high = LOWEST_SHARE, HIGHEST_SHARE
    tried = False
    for number, trial in enumerate(scenario.calibration, 1):
        if not isinstance(trial, Trial):
            continue
        of = _scenario_of(scenario, trial)
        gpu = of.gpu if fit.overhead_bytes is None else replace(of.gpu, overhead_bytes=fit.overhead_bytes)
        of = replace(of, gpu=gpu)
        most = _largest_share(of, trial.ran) if trial.ran is not None else HIGHEST_SHARE
        least = _largest_share(of, trial.failed) if trial.failed is not None else LOWEST_SHARE
        if most is None or (least is not None and least >= HIGHEST_SHARE):
            what = f"{trial.ran:,} ran" if most is None else f"{trial.failed:,} failed"
            unexplained.append(
                f"reading {number}: that a micro-batch of {what} fits no activation share from "
                f"{LOWEST_SHARE} to {HIGHEST_SHARE}: the scenario may not be what ran"
            )
            continue
        tried = True
        low, high = max(low, least or LOWEST_SHARE), min(high, most)
    share, bounds = fit.activation_share, fit.shares
    if tried and low <= high:
        share = min(max(share or 1.0, low), high)
        bounds = bounds or (low, high)
    elif tried:
        unexplained.append("the batches that ran and failed contradict one another")
    return replace(fit, activation_share=share, shares=bounds, unexplained=tuple(unexplained))


def _scenario_of(scenario: Scenario, reading: BytesReading | Trial) -> Scenario:
    if reading.scenario is None:
        return replace(scenario, calibration=(), activation_share=1.0)
    try:
        return parse_dividable(reading.scenario)
    except ScenarioError as error:
        raise ScenarioError(FIELD, f"the scenario of a reading is wrong: {error}") from None


def _memory(scenario: Scenario, share: float) -> StepMemory:
    kept = scenario.zero_grad is ZeroGrad.KEEP
    return step_memory(replace(scenario, activation_share=share), gradients_kept=kept)


def _shown_bytes(scenario: Scenario, reading: BytesReading, share: float) -> int:
    """What the reading's instrument would show by the calculation, without the overhead."""
    allocation = _memory(scenario, share).allocate(reading.batch)
    return allocation.peak_bytes if reading.kind is Kind.ALLOCATED else allocation.reserved_bytes


def _shown_smoothly(scenario: Scenario, reading: BytesReading, share: float) -> int:
    """`_shown_bytes` as it would be if blocks did not jump in size: the tensors' bytes by its ratio at share 1.

    Where blocks split decides on some tenths of a percent of what is allocated, and on some percent of what is
    reserved; a fit must not follow that.
    """
    asked, asked_before = (_memory(scenario, s).requested_peak(reading.batch) for s in (share, 1.0))
    return round(_shown_bytes(scenario, reading, 1.0) * asked / asked_before)


def _solve(shown: Callable[[float], int], wanted: int) -> float | None:
    """The share at which a quantity that rises with it is ``wanted``; None where no share makes it so.

    What cannot be told from 1 is 1: such a reading agrees with the calculation.
    """
    low, high = LOWEST_SHARE, HIGHEST_SHARE
    if shown(low) > wanted or shown(high) < wanted:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if shown(middle) < wanted:
            low = middle
        else:
            high = middle
    share = (low + high) / 2
    return 1.0 if abs(share - 1) <= high - low else share


def _share_from_card(card: list[tuple[Scenario, BytesReading]]) -> float | None:
    """The share from the difference of two readings of the whole card, which the overhead is no part of."""
    (of_small, small), (of_large, large) = (pick(card, key=lambda pair: pair[1].batch) for pick in (min, max))
    grown = large.nbytes - small.nbytes
    return _solve(lambda s: _shown_smoothly(of_large, large, s) - _shown_smoothly(of_small, small, s), grown)


def _largest_share(scenario: Scenario, micro_batch: int) -> float | None:
    """The largest share under which a micro-batch still trains on the card; None where none does."""

    def trains(share: float) -> bool:
        try:
            _memory(scenario, share).allocate_within(micro_batch, scenario.gpu.limit_bytes)
        except OutOfMemoryError:
            return False
        return True

    low, high = LOWEST_SHARE, HIGHEST_SHARE
    if not trains(low):
        return None
    if trains(high):
        return HIGHEST_SHARE
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if trains(middle) else (low, middle)
    return low


def _not_explained(number: int, predicted: int, read: int) -> str:
    return (
        f"reading {number}: {read / GIB:.2f} GiB where the calculation has {predicted / GIB:.2f} GiB fits no "
        f"activation share from {LOWEST_SHARE} to {HIGHEST_SHARE}: the scenario may not be what ran"
    )


def _as_dict(scenario: Scenario, corrected: Scenario, fit: Fit) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for reading in scenario.calibration:
        of = _scenario_of(scenario, reading)
        if isinstance(reading, Trial):
            rows.append({"ran": reading.ran, "failed": reading.failed})
            continue
        card = reading.kind is Kind.CARD
        before, after = (g.overhead_bytes if card else 0 for g in (of.gpu, corrected.gpu))
        rows.append(
            {
                "batch": reading.batch,
                "reading": str(reading.kind),
                "read_bytes": reading.nbytes,
                "before_bytes": _shown_bytes(of, reading, 1.0) + before,
                "after_bytes": _shown_bytes(of, reading, corrected.activation_share) + after,
            }
        )
    return {
        "overhead_bytes": fit.overhead_bytes,
        "overhead_low_bytes": fit.overheads[0] if fit.overheads else None,
        "overhead_high_bytes": fit.overheads[1] if fit.overheads else None,
        "activation_share": fit.activation_share,
        "activation_share_low": fit.shares[0] if fit.shares else None,
        "activation_share_high": fit.shares[1] if fit.shares else None,
        "changes": fit.changes,
        "readings": rows,
        "unexplained": list(fit.unexplained),
        "text": _text(scenario, fit),
    }


def _text(scenario: Scenario, fit: Fit) -> str:
    """The fit and its doubt in words; what disagrees comes first."""
    parts = [f"Not explained: {what}." for what in fit.unexplained]
    if not fit.changes:
        parts.append("The answer stays as it is without readings.")
    elif fit.activation_share is not None:
        parts.append(f"What grows with the micro-batch is taken {fit.activation_share:.3f} times.")
    if fit.shares is not None and fit.shares[0] < fit.shares[1]:
        parts.append(
            f"The readings allow {fit.shares[0]:.3f} to {fit.shares[1]:.3f} times what grows with the micro-batch."
        )
    if fit.overhead_bytes is not None:
        parts.append(
            f"{fit.overhead_bytes / GIB:.2f} GiB of the card are outside torch's allocator, "
            f"instead of the usual {scenario.gpu.overhead_bytes / GIB:.2f} GiB."
        )
        if fit.activation_share is None:
            parts.append(
                "One reading of the whole card cannot tell overhead from activations: all of it is overhead here."
            )
    if len(scenario.calibration) == 1:
        parts.append("Nothing checks a single reading; one at another micro-batch would.")
    return " ".join(parts)


SNIPPET = """\
# Paste after a few training steps, in the process that trains; set batch to the samples of one forward pass.
import json
import torch

batch = 16
gib = 2**30
free, total = torch.cuda.mem_get_info()
print(torch.__version__, torch.cuda.get_device_name(), "total", total / gib)
print(json.dumps([
    {"batch": batch, "reading": "allocated", "gib": round(torch.cuda.max_memory_allocated() / gib, 3)},
    {"batch": batch, "reading": "reserved", "gib": round(torch.cuda.max_memory_reserved() / gib, 3)},
    {"batch": batch, "reading": "card", "gib": round((total - free) / gib, 3)},
]))
"""
"""Python for one's own training script: prints the readings as a scenario's ``calibration`` takes them."""
