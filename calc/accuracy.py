"""How far the calculation is from real training steps, and how far it may be from a scenario like them.

Predictions are made anew from ``catalog/measured.json`` each time, never stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2
from statistics import median
from typing import TYPE_CHECKING, Any

from calc.catalog.measured import Limit, Run, Step, measured
from calc.evaluation import fitted
from calc.memory import step_memory
from calc.model_dimensions import parse_dividable
from calc.replay.tape import Phase
from calc.scenario import parse
from calc.timing import step_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.batch import Band
    from calc.scenario import Scenario

NEAREST_RUNS = 6
"""Runs that the error to expect is read from."""
HIGH_SHARE = 0.9


@dataclass(frozen=True)
class Comparison:
    """One quantity: measured, and as the calculation has it."""

    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error; 0.02 means 2 % too much."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class StepComparison:
    """A measured step beside its prediction."""

    run: Run
    step: Step
    peak_allocated_bytes: Comparison
    peak_forward_bytes: Comparison
    peak_reserved_bytes: Comparison
    step_seconds: Comparison

    def as_dict(self) -> dict[str, Any]:
        """For the JSON border."""
        return {
            "run": measured().runs.index(self.run),
            "model": self.run.model,
            "conditions": conditions(self.run.scenario),
            "micro_batch": self.step.micro_batch,
            **{
                name: {"measured": pair.measured, "predicted": pair.predicted, "error": pair.error}
                for name, pair in self.quantities().items()
            },
        }

    def quantities(self) -> dict[str, Comparison]:
        """The compared quantities by name."""
        return {
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_forward_bytes": self.peak_forward_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "step_seconds": self.step_seconds,
        }


@dataclass(frozen=True)
class LimitComparison:
    """A measured largest micro-batch beside the predicted band."""

    limit: Limit
    band: Band

    @property
    def inside(self) -> bool:
        """Whether the expected batch is one that is known to run, and not known to fail."""
        return self.limit.ran <= self.band.expected < self.limit.failed

    def as_dict(self) -> dict[str, Any]:
        """For the JSON border."""
        return {
            "model": self.limit.model,
            "conditions": conditions(self.limit.scenario),
            "limit_gib": self.limit.limit_gib,
            "ran": self.limit.ran,
            "failed": self.limit.failed,
            "safe": self.band.safe,
            "expected": self.band.expected,
            "optimistic": self.band.optimistic,
            "inside": self.inside,
        }


def conditions(scenario: Mapping[str, Any]) -> str:
    """What sets a run apart, in a few words: input size, precision, optimizer, and what is not usual."""
    words = [
        f"{scenario[key]:,} {unit}"
        for key, unit in (("sequence_length", "tokens"), ("image_size", "px"), ("target_length", "target tokens"))
        if key in scenario
    ]
    words += [scenario["precision"], scenario["optimizer"]]
    words += [scenario[key] for key in ("attention", "method") if scenario.get(key, "sdpa") != "sdpa"]
    if "checkpointing" in scenario:
        words.append("checkpointing")
    return ", ".join(words)


def compare_steps(run: Run) -> list[StepComparison]:
    """Every step of a run beside its prediction, in their order: what one leaves cached is there for the next."""
    scenario = parse(run.scenario)
    memory = step_memory(scenario)
    allocations = memory.allocate_in_turn([step.micro_batch for step in run.steps], scenario.gpu.limit_bytes)
    found = []
    for step, allocation in zip(run.steps, allocations, strict=True):
        time = step_time(scenario, memory.step, step.micro_batch)
        assert time is not None, "the measured card is in the catalog"  # noqa: S101
        found.append(
            StepComparison(
                run,
                step,
                Comparison(step.peak_allocated_bytes, allocation.peak_bytes),
                Comparison(step.peak_forward_bytes, allocation.peaks[Phase.FORWARD]),
                Comparison(step.peak_reserved_bytes, allocation.reserved_bytes),
                Comparison(step.step_seconds, time.seconds),
            )
        )
    return found


@lru_cache(maxsize=1024)
def compared_run(place: int) -> tuple[StepComparison, ...]:
    """`compare_steps` of the measured run at this place, kept."""
    return tuple(compare_steps(measured().runs[place]))


def compared_runs() -> list[tuple[StepComparison, ...]]:
    """Every measured run beside its prediction. Takes seconds the first time."""
    return [compared_run(place) for place in range(len(measured().runs))]


def some_runs(given: Mapping[str, Any]) -> dict[str, int]:
    """Compare the runs from place ``first``, ``count`` of them; ``done`` and ``of`` say how far that is.

    The page asks for a few at a time, so that its other questions are answered in between.
    """
    runs = len(measured().runs)
    done = min(given["first"] + given["count"], runs)
    for place in range(given["first"], done):
        compared_run(place)
    return {"done": done, "of": runs}


def compare_limit(limit: Limit) -> LimitComparison:
    """A measured largest micro-batch beside the predicted band."""
    return LimitComparison(limit, fitted(parse(limit.scenario))[1])


def table() -> dict[str, Any]:
    """Every measured step and limit beside its prediction, the errors' spread, and the conditions. Takes seconds.

    ``steps`` are rows for a table and for a figure of predicted against measured.
    """
    steps = [comparison for run in compared_runs() for comparison in run]
    limits = [compare_limit(limit) for limit in measured().limits]
    return {
        "conditions": dict(measured().conditions),
        "summary": spreads(steps),
        "limits_inside": sum(limit.inside for limit in limits),
        "steps": [comparison.as_dict() for comparison in steps],
        "limits": [limit.as_dict() for limit in limits],
    }


def report(given: Mapping[str, Any]) -> dict[str, Any]:
    """The measured runs that are most like a scenario, and the errors seen on them.

    Returns
    -------
    dict
        ``nearest``: steps as in `table`, the most similar run first; ``expect``: for each quantity the median and the
        high (90 % are below) absolute relative error on them; ``alike``: whether one of them has the scenario's
        architecture; ``conditions``.

    Raises
    ------
    ScenarioError
        As `calc.evaluation.evaluate`.
    """
    scenario = parse_dividable(given)
    runs = nearest_runs(scenario)
    steps = [comparison for run in runs for comparison in compare_steps(run)]
    return {
        "conditions": dict(measured().conditions),
        "alike": any(_parsed(run).model.architecture == scenario.model.architecture for run in runs),
        "expect": spreads(steps),
        "nearest": [comparison.as_dict() for comparison in steps],
    }


def spreads(steps: Sequence[StepComparison]) -> dict[str, dict[str, float]]:
    """For each quantity: number of steps, median, high and largest absolute relative error."""
    found = {}
    for name in ("peak_allocated_bytes", "peak_forward_bytes", "peak_reserved_bytes", "step_seconds"):
        errors = sorted(abs(step.quantities()[name].error) for step in steps)
        found[name] = {
            "steps": len(errors),
            "median": median(errors),
            "high": errors[ceil(HIGH_SHARE * len(errors)) - 1],
            "largest": errors[-1],
        }
    return found


def nearest_runs(scenario: Scenario) -> list[Run]:
    """The measured runs most like the scenario, nearest first."""
    parameters = step_memory(scenario).step.parameter_count
    return sorted(measured().runs, key=lambda run: unlikeness(scenario, parameters, run))[:NEAREST_RUNS]


def unlikeness(scenario: Scenario, parameters: int, run: Run) -> float:
    """How little a scenario and a measured run have in common: what changes the memory's structure counts most.

    A rule for choosing what to show, not a law: another task 16, another architecture 4, another precision, method or
    checkpointing 2, another attention or optimizer 1, each doubling of the input 1, of the parameters a half.
    """
    other = _parsed(run)
    differences = (
        (16.0, scenario.model.task is not other.model.task),
        (4.0, scenario.model.architecture != other.model.architecture),
        (2.0, scenario.precision is not other.precision),
        (2.0, scenario.method is not other.method),
        (2.0, scenario.checkpointing is not other.checkpointing),
        (1.0, scenario.attention is not other.attention),
        (1.0, scenario.optimizer is not other.optimizer),
    )
    return (
        sum(weight for weight, differs in differences if differs)
        + abs(log2(_input_size(scenario) / _input_size(other)))
        + abs(log2(parameters / run.parameters)) / 2
    )


def _parsed(run: Run) -> Scenario:
    return _parsed_by_place(measured().runs.index(run))


@lru_cache(maxsize=1024)
def _parsed_by_place(place: int) -> Scenario:
    return parse(measured().runs[place].scenario)


def _input_size(scenario: Scenario) -> int:
    shape = scenario.shape
    return max(shape.sequence_length, shape.image_size, shape.target_length, 1)
