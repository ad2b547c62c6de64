"""Predictions against real training steps: parameters, peaks, reserved bytes, the largest micro-batch, seconds.

Two kinds of limits: what the project promises over all rows, and for each family what it now reaches, so that a change
that makes one family worse is seen.
"""

from __future__ import annotations

from functools import cache
from statistics import median

import pytest

from calc import accuracy
from calc.catalog.measured import Limit, Run, measured
from calc.memory import step_memory
from calc.scenario import parse

RUNS = measured().runs
QUANTITIES = ("peak_allocated_bytes", "peak_forward_bytes", "peak_reserved_bytes", "step_seconds")

# Largest absolute error of each family's steps, in percent, in the order of QUANTITIES.
BANDS = {
    "bert": (1, 1, 13, 35),
    "convnext_tiny": (1, 1, 12, 34),
    "deberta-v2": (1, 1, 5, 46),
    "efficientnet_b0": (1.5, 1, 9, 25),
    "gpt2": (1, 1, 8, 36),
    "inception_v3": (4.5, 1, 25, 32),
    "llama": (2, 2, 10, 36),
    "mobilenet_v2": (2, 1, 10, 34),
    "mobilenet_v3_large": (1.5, 1, 8, 40),
    "modernbert": (1, 1, 3, 33),
    "olmoe": (1, 1, 3, 21),
    "phi": (1, 1, 6, 30),
    "qwen2": (1, 1, 5, 36),
    "qwen3": (1, 1, 3, 26),
    "resnet152": (1, 1, 6, 18),
    "resnet18": (1.5, 1, 22, 35),
    "resnet50": (2.5, 14, 15, 41),
    "resnext50_32x4d": (1, 1, 11, 50),
    "roberta": (1, 1, 16, 27),
    "swin_t": (1, 1, 3, 34),
    "t5": (1, 1, 3, 41),
    "vit": (1, 1, 3, 46),
    "whisper": (1, 1, 3, 31),
}


def run_name(run: Run) -> str:
    return f"{run.model}, {accuracy.conditions(run.scenario)}"


def limit_name(limit: Limit) -> str:
    return f"{limit.model} in {limit.limit_gib} GiB, {accuracy.conditions(limit.scenario)}"


@cache
def compared(place: int) -> list[accuracy.StepComparison]:
    return accuracy.compare_steps(RUNS[place])


def errors(quantity: str) -> list[float]:
    """Absolute errors of all steps in percent, ascending."""
    steps = [step for place in range(len(RUNS)) for step in compared(place)]
    return sorted(100 * abs(step.quantities()[quantity].error) for step in steps)


def share_within(found: list[float], percent: float) -> float:
    return sum(error <= percent for error in found) / len(found)


@pytest.mark.parametrize("run", RUNS, ids=run_name)
def test_parameters_are_exact(run: Run) -> None:
    step = step_memory(parse(run.scenario)).step
    assert (step.parameter_count, step.trainable_count) == (run.parameters, run.trainable_parameters)


@pytest.mark.parametrize("place", range(len(RUNS)), ids=[run_name(run) for run in RUNS])
def test_a_familys_steps_stay_within_its_band(place: int) -> None:
    bands = BANDS[parse(RUNS[place].scenario).model.architecture]
    for step in compared(place):
        for name, band in zip(QUANTITIES, bands, strict=True):
            error = 100 * step.quantities()[name].error
            assert abs(error) <= band, f"{name} at micro-batch {step.step.micro_batch}: {error:+.1f} %"


def test_peak_allocated_as_promised() -> None:
    found = errors("peak_allocated_bytes")
    assert median(found) <= 2
    assert share_within(found, 5) >= 0.95
    assert found[-1] <= 12


def test_peak_forward_as_promised() -> None:
    found = errors("peak_forward_bytes")
    assert median(found) <= 2
    assert share_within(found, 6) >= 0.95


def test_peak_reserved_as_promised() -> None:
    found = errors("peak_reserved_bytes")
    assert median(found) <= 4
    assert share_within(found, 12) >= 0.95


def test_seconds_as_promised() -> None:
    assert median(errors("step_seconds")) <= 15


def test_largest_micro_batch_is_mostly_inside_what_was_measured() -> None:
    compared_limits = [accuracy.compare_limit(limit) for limit in measured().limits]
    assert sum(limit.inside for limit in compared_limits) / len(compared_limits) >= 0.6


@pytest.mark.parametrize("limit", measured().limits, ids=limit_name)
def test_largest_micro_batch_is_at_most_one_sample_off(limit: Limit) -> None:
    band = accuracy.compare_limit(limit).band
    assert limit.ran - 1 <= band.expected <= limit.failed
    assert limit.ran <= band.optimistic, "what ran is not called impossible"
