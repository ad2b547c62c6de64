"""Readings of one's own: what they fit, what they leave alone, and how the doubt is said."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from calc.calibration import SNIPPET
from calc.catalog.measured import Run, measured
from calc.curves import memory_curve
from calc.errors import ScenarioError
from calc.evaluation import evaluate

GIB = 2**30
GPT2 = {"model": "gpt2", "sequence_length": 512, "precision": "bf16", "gpu": {"memory_gib": 24, "overhead_gib": 0.5}}


def shown(scenario: dict[str, Any], batch: int, key: str) -> float:
    return float(evaluate({**scenario, "micro_batch": batch})["memory"][key]) / GIB


def with_readings(*readings: dict[str, Any], of: dict[str, Any] = GPT2, **changes: Any) -> dict[str, Any]:
    return evaluate({**of, "calibration": list(readings), **changes})


def allocated(batch: int, gib: float) -> dict[str, Any]:
    return {"batch": batch, "reading": "allocated", "gib": gib}


def card(batch: int, gib: float) -> dict[str, Any]:
    return {"batch": batch, "reading": "card", "gib": gib}


class TestFit:
    def test_a_reading_as_predicted_changes_nothing(self) -> None:
        found = with_readings(allocated(16, shown(GPT2, 16, "peak_allocated_bytes")))
        assert found["calibration"]["activation_share"] == pytest.approx(1, abs=0.002)
        assert found["calibration"]["overhead_bytes"] is None
        assert found["max_micro_batch"] == pytest.approx(evaluate(GPT2)["max_micro_batch"], rel=0.02)

    def test_more_allocated_means_a_larger_share_and_a_smaller_batch(self) -> None:
        found = with_readings(allocated(16, 1.1 * shown(GPT2, 16, "peak_allocated_bytes")))
        share = found["calibration"]["activation_share"]
        # The weights and the optimizer's state stay, so the activations take all of the difference.
        assert share > 1.1
        assert found["max_micro_batch"] < evaluate(GPT2)["max_micro_batch"]
        again = with_readings(allocated(16, 1.1 * shown(GPT2, 16, "peak_allocated_bytes")), micro_batch=16)
        assert again["memory"]["peak_allocated_bytes"] / GIB == pytest.approx(
            1.1 * shown(GPT2, 16, "peak_allocated_bytes"), rel=0.005
        )
        parts = sum(component["bytes"] for component in again["memory"]["components"])
        assert parts == again["memory"]["peak_allocated_bytes"]

    def test_one_reading_of_the_card_is_overhead(self) -> None:
        found = with_readings(card(16, shown(GPT2, 16, "peak_reserved_bytes") + 1.25))
        assert found["calibration"]["overhead_bytes"] == pytest.approx(1.25 * GIB, abs=1024)
        assert found["calibration"]["activation_share"] is None
        assert found["gpu"]["overhead_bytes"] == found["calibration"]["overhead_bytes"]
        assert "cannot tell" in found["calibration"]["text"]

    def test_two_readings_of_the_card_give_both(self) -> None:
        # Made with 1 GiB outside the allocator and activations of 1.2 times what is replayed.
        calibration = [allocated(32, shown_with_share(1.2, 32))]
        made = [evaluate({**GPT2, "calibration": calibration, "micro_batch": b})["memory"] for b in (8, 32)]
        readings = [card(b, m["peak_reserved_bytes"] / GIB + 1) for b, m in zip((8, 32), made, strict=True)]
        found = with_readings(*readings)["calibration"]
        # Blocks of whole MiB and what stays cached blur what the allocator reserves by some percent.
        assert found["activation_share"] == pytest.approx(1.2, abs=0.05)
        assert found["overhead_bytes"] == pytest.approx(GIB, rel=0.3)

    def test_allocated_and_card_together_give_both(self) -> None:
        peak = shown(GPT2, 16, "peak_allocated_bytes")
        reserved = shown(GPT2, 16, "peak_reserved_bytes")
        found = with_readings(allocated(16, peak), card(16, reserved + 2))["calibration"]
        assert found["activation_share"] == pytest.approx(1, abs=0.002)
        assert found["overhead_bytes"] == pytest.approx(2 * GIB, rel=0.02)

    def test_readings_that_differ_show_their_range(self) -> None:
        peaks = {b: shown(GPT2, b, "peak_allocated_bytes") for b in (8, 32)}
        found = with_readings(allocated(8, peaks[8] * 1.02), allocated(32, peaks[32] * 1.06))["calibration"]
        assert found["activation_share_low"] < found["activation_share"] < found["activation_share_high"]
        assert "readings allow" in found["text"]


def shown_with_share(share: float, batch: int) -> float:
    """Allocated GiB where what grows with the batch is ``share`` times as much."""
    small, large = (shown(GPT2, b, "peak_allocated_bytes") for b in (batch, 2 * batch))
    return small + (share - 1) * (large - small)


class TestTrials:
    def test_a_bracket_that_holds_already_changes_nothing(self) -> None:
        largest = evaluate(GPT2)["max_micro_batch"]
        found = with_readings({"ran": largest - 5, "failed": largest + 5})
        assert found["calibration"]["activation_share"] == 1
        assert found["max_micro_batch"] == largest

    @pytest.mark.parametrize("factor", [0.8, 1.3])
    def test_a_bracket_moves_the_largest_batch_into_it(self, factor: float) -> None:
        largest = evaluate(GPT2)["max_micro_batch"]
        ran = round(largest * factor)
        found = with_readings({"ran": ran, "failed": ran + 2})
        assert ran - 1 <= found["max_micro_batch"] <= ran + 2
        assert found["calibration"]["activation_share_low"] < found["calibration"]["activation_share_high"]

    def test_one_end_alone(self) -> None:
        largest = evaluate(GPT2)["max_micro_batch"]
        assert with_readings({"ran": largest + 10})["max_micro_batch"] >= largest + 9
        assert with_readings({"failed": largest - 10})["max_micro_batch"] <= largest - 10

    def test_contradictions_are_said(self) -> None:
        largest = evaluate(GPT2)["max_micro_batch"]
        found = with_readings({"ran": largest + 8}, {"failed": largest - 8})["calibration"]
        assert "contradict" in found["text"]

    def test_what_no_share_explains_is_said_and_left_out(self) -> None:
        found = with_readings(allocated(16, 200))
        assert found["calibration"]["activation_share"] is None
        assert "may not be what ran" in found["calibration"]["text"]
        assert found["max_micro_batch"] == evaluate(GPT2)["max_micro_batch"]


class TestWhatWasRead:
    def test_a_reading_keeps_the_scenario_that_ran(self) -> None:
        # Read without checkpointing; asked for with it: the share carries over, the peak is that of now.
        of = dict(GPT2)
        read = allocated(16, 1.05 * shown(of, 16, "peak_allocated_bytes")) | {"scenario": of}
        now = with_readings(read, of={**GPT2, "checkpointing": "full"}, micro_batch=16)
        direct = with_readings({k: v for k, v in read.items() if k != "scenario"})
        assert now["calibration"]["activation_share"] == direct["calibration"]["activation_share"]
        assert now["memory"]["peak_allocated_bytes"] < direct["memory"]["peak_allocated_bytes"]

    def test_overhead_is_the_cards(self) -> None:
        other = {**GPT2, "gpu": {"memory_gib": 80, "overhead_gib": 1}}
        found = with_readings(card(16, 30) | {"scenario": other})
        assert found["calibration"]["overhead_bytes"] is None

    def test_curves_are_calibrated_too(self) -> None:
        calibration = [allocated(16, 1.2 * shown(GPT2, 16, "peak_allocated_bytes"))]
        calibrated = {**GPT2, "calibration": calibration}
        read, plain = memory_curve(calibrated), memory_curve(GPT2)
        assert evaluate(calibrated)["max_micro_batch_optimistic"] in read["micro_batch"]
        assert read["micro_batch"][0] == plain["micro_batch"][0] == 1
        assert read["forward_bytes"][0] > plain["forward_bytes"][0]

    def test_without_readings_there_is_no_fit(self) -> None:
        assert evaluate(GPT2)["calibration"] is None
        assert with_readings()["calibration"] is None

    def test_the_filled_in_scenario_keeps_them(self) -> None:
        readings = [allocated(16, 9.5), {"ran": 8}]
        assert with_readings(*readings)["scenario"]["calibration"] == readings


@pytest.mark.parametrize(
    ("calibration", "said"),
    [
        (3, "list of readings"),
        ({"batch": 1}, "list of readings"),
        ([3], "reading 1"),
        ([{}], "reading is one of allocated, reserved, card"),
        ([allocated(0, 3)], "batch is a whole number"),
        ([allocated(2, -3)], "gib is a number above 0"),
        ([allocated(2, 3), allocated(2, "3")], "reading 2: gib"),  # type: ignore[arg-type]
        ([{"batch": 2, "reading": "guessed", "gib": 3}], "reading is one of"),
        ([{"ran": 24, "failed": 16}], "must be larger"),
        ([{"ran": None, "failed": None}], "both"),
        ([{"ran": 1, "gib": 3}], "no field 'gib'"),
        ([{**allocated(2, 3), "unit": "GB"}], "no field 'unit'"),
        ([{**allocated(2, 3), "scenario": 3}], "describes what ran"),
        ([{**allocated(2, 3), "scenario": {"model": "no-such"}}], "no-such"),
        ([allocated(2, 3)] * 17, "too many"),
    ],
)
def test_wrong_readings_are_refused_in_words(calibration: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as error:
        evaluate({**GPT2, "calibration": calibration})
    assert error.value.field == "calibration"


def worth_calibrating() -> list[Run]:
    """Measured runs of networks whose peaks are more than 1 % off at two sizes or more."""
    return [run for run in measured().runs if run.model in ("vit-b-16-hf", "mobilenet_v2", "efficientnet_b0")
            and len(run.steps) >= 2 and run.scenario["precision"] == "amp-bf16"]  # fmt: skip


@pytest.mark.parametrize("run", worth_calibrating(), ids=lambda run: f"{run.model}-{len(run.steps)}")
def test_a_real_reading_does_not_take_another_real_batch_away(run: Run) -> None:
    small, large = run.steps[-2:]
    reading = allocated(small.micro_batch, small.peak_allocated_bytes / GIB)
    before = evaluate({**run.scenario, "micro_batch": large.micro_batch})["memory"]["peak_allocated_bytes"]
    after = with_readings(reading, of=dict(run.scenario), micro_batch=large.micro_batch)["memory"][
        "peak_allocated_bytes"
    ]
    assert abs(after / large.peak_allocated_bytes - 1) <= abs(before / large.peak_allocated_bytes - 1) + 0.005


def test_the_snippet_is_python_that_prints_the_three_readings() -> None:
    ast.parse(SNIPPET)
    for name in ("max_memory_allocated", "max_memory_reserved", "mem_get_info", '"reading": "card"'):
        assert name in SNIPPET
