"""How right the calculation is said to be: fresh predictions beside measured steps, and the runs nearest to it."""

from __future__ import annotations

import json
import time

import pytest

from calc import accuracy
from calc.catalog.measured import measured
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.scenario import parse

GPT2 = {"model": "gpt2", "sequence_length": 1024, "precision": "amp-bf16"}


@pytest.fixture(scope="module")
def table() -> dict[str, object]:
    return accuracy.table()


def test_the_table_has_every_measured_step(table: dict[str, list[dict[str, object]]]) -> None:
    assert len(table["steps"]) == sum(len(run.steps) for run in measured().runs)
    assert len(table["limits"]) == len(measured().limits)
    json.dumps(table, allow_nan=False)


def test_rows_say_what_ran_and_what_was_found(table: dict[str, list[dict[str, object]]]) -> None:
    row = table["steps"][0]
    assert row["model"] == "gpt2"
    assert row["conditions"] == "1,024 tokens, amp-bf16, adamw"
    assert set(row["peak_allocated_bytes"]) == {"measured", "predicted", "error"}  # type: ignore[call-overload]
    assert row["peak_allocated_bytes"]["measured"] == 3289389056  # type: ignore[index]


def test_the_summary_is_that_of_the_rows(table: dict[str, list[dict[str, dict[str, float]]]]) -> None:
    errors = sorted(abs(row["peak_allocated_bytes"]["error"]) for row in table["steps"])
    summary: dict[str, float] = table["summary"]["peak_allocated_bytes"]  # type: ignore[call-overload]
    assert summary["largest"] == errors[-1]
    assert sum(error <= summary["high"] for error in errors) / len(errors) >= 0.9
    assert summary["median"] <= summary["high"] <= summary["largest"]


def test_a_prediction_is_what_evaluate_says() -> None:
    run = measured().runs[0]
    comparison = accuracy.compare_steps(run)[0]
    result = evaluate({**run.scenario, "micro_batch": run.steps[0].micro_batch})
    assert comparison.peak_allocated_bytes.predicted == result["memory"]["peak_allocated_bytes"]
    assert comparison.peak_reserved_bytes.predicted == result["memory"]["peak_reserved_bytes"]
    assert comparison.step_seconds.predicted == result["step_seconds"]


def test_the_nearest_runs_are_alike_first() -> None:
    runs = accuracy.nearest_runs(parse(GPT2))
    assert len(runs) == accuracy.NEAREST_RUNS
    assert runs[0].model == "gpt2"
    assert runs[0].scenario["sequence_length"] == 1024
    assert runs[0].scenario["precision"] == "amp-bf16"


def test_a_measured_scenario_is_nearest_to_itself() -> None:
    for run in measured().runs:
        nearest = accuracy.nearest_runs(parse(run.scenario))[0]
        assert accuracy.unlikeness(parse(run.scenario), run.parameters, nearest) == 0


def test_a_report_gives_the_error_to_expect() -> None:
    found = accuracy.report(GPT2)
    assert found["alike"] is True
    assert 0 <= found["expect"]["peak_allocated_bytes"]["median"] < 0.02
    assert found["nearest"][0]["model"] == "gpt2"
    json.dumps(found, allow_nan=False)


def test_a_family_that_was_not_measured_is_said_to_be() -> None:
    assert accuracy.report({"model": "vgg16"})["alike"] is False


def test_a_bad_scenario_is_refused() -> None:
    with pytest.raises(ScenarioError, match="sequence_length"):
        accuracy.report({**GPT2, "sequence_length": 0})


def test_a_report_is_quick_enough_to_ask_for_in_the_page() -> None:
    accuracy.report(GPT2)
    taken = []
    for precision in ("fp32", "bf16", "amp-fp16"):
        start = time.perf_counter()
        accuracy.report({**GPT2, "precision": precision})
        taken.append(time.perf_counter() - start)
    # The page's interpreter takes some times as long, and shows it after the numbers. A busy machine may stop for more.
    assert min(taken) < 1


def test_conditions_name_their_gpu_and_software() -> None:
    conditions = accuracy.report(GPT2)["conditions"]
    assert "H100" in conditions["device"]
    assert "torch 2.11" in conditions["software"]
