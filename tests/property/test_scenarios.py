"""What holds for every scenario that the contract allows."""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calc.batch import band
from calc.curves import memory_curve, throughput_curve, timeline
from calc.evaluation import evaluate, fitted
from calc.memory import step_memory
from calc.replay.tape import Phase
from calc.scenario import parse
from tests.property.drawing import allowed, scenarios

pytestmark = pytest.mark.property

GIB = 2**30
SCENARIOS = scenarios().filter(allowed)
EXAMPLES = settings(max_examples=500 if os.environ.get("THOROUGH") else 25)


@EXAMPLES
@given(SCENARIOS)
def test_the_components_add_up_to_the_peak(scenario: dict[str, Any]) -> None:
    memory = evaluate(scenario)["memory"]
    parts = {component["id"]: component["bytes"] for component in memory["components"]}
    assert sum(parts.values()) == memory["peak_allocated_bytes"] == max(memory["phases"].values())
    assert all(nbytes >= 0 for nbytes in parts.values()), parts
    for component in memory["components"]:
        assert sum(part["bytes"] for part in component["parts"]) in (0, component["bytes"])
        assert component["formula"]
        assert component["source"]


@EXAMPLES
@given(SCENARIOS)
def test_the_result_is_json_without_nan(scenario: dict[str, Any]) -> None:
    for answer in (evaluate, memory_curve, throughput_curve, timeline):
        json.dumps(answer(scenario), allow_nan=False)


@EXAMPLES
@given(SCENARIOS)
def test_the_filled_in_scenario_gives_the_same_result(scenario: dict[str, Any]) -> None:
    result = evaluate(scenario)
    assert evaluate(result["scenario"]) == result


@EXAMPLES
@given(SCENARIOS)
def test_safe_expected_and_optimistic_are_in_order(scenario: dict[str, Any]) -> None:
    result = evaluate(scenario)
    assert 0 <= result["max_micro_batch_safe"] <= result["max_micro_batch"] <= result["max_micro_batch_optimistic"]


@EXAMPLES
@given(SCENARIOS)
def test_what_fits_is_within_the_limit_and_what_is_next_is_not(scenario: dict[str, Any]) -> None:
    parsed = parse(scenario)
    memory, limits = fitted(parsed)
    limit = parsed.gpu.limit_bytes
    if limits.optimistic:
        assert memory.requested_peak(limits.optimistic) <= limit
    assert memory.requested_peak(limits.optimistic + 1) > limit
    if limits.safe:
        assert memory.allocate(limits.safe).reserved_bytes <= limit
    if limits.expected:
        assert memory.allocate_within(limits.expected, limit).reserved_bytes <= limit
    assert limits.next_needs_bytes > 0


@EXAMPLES
@given(SCENARIOS, st.lists(st.integers(1, 300), min_size=2, max_size=5))
def test_a_larger_batch_never_needs_less(scenario: dict[str, Any], batches: list[int]) -> None:
    parsed = parse(scenario)
    memory = step_memory(parsed)
    peaks = [memory.requested_peaks(batch) for batch in sorted(batches)]
    for smaller, larger in pairwise(peaks):
        assert max(smaller.values()) <= max(larger.values())
        # Of a pipeline these are the fullest stage's, which may be another for a larger batch.
        assert parsed.layout.pipeline > 1 or all(smaller[phase] <= larger[phase] for phase in Phase)


@EXAMPLES
@given(SCENARIOS, st.lists(st.integers(1, 200), min_size=2, max_size=5))
def test_a_larger_card_never_takes_fewer(scenario: dict[str, Any], sizes: list[int]) -> None:
    memory = step_memory(parse(scenario))
    bands = [band(memory, size * GIB) for size in sorted(sizes)]
    for smaller, larger in pairwise(bands):
        assert smaller.optimistic <= larger.optimistic
        assert smaller.safe <= larger.safe


@EXAMPLES
@given(SCENARIOS)
def test_the_plan_is_micro_batch_times_accumulation_times_gpus(scenario: dict[str, Any]) -> None:
    result = evaluate({**scenario, "global_batch": scenario.get("global_batch", 96)})
    plan = result["plan"]
    if result["max_micro_batch"] == 0:
        assert plan is None
        return
    replicas = parse(scenario).layout.data

    def samples(way: dict[str, Any]) -> int:
        assert way["data_parallel"] == replicas
        assert 1 <= way["micro_batch"] <= result["max_micro_batch"]
        return int(way["micro_batch"] * way["accumulation_steps"] * way["data_parallel"])

    if plan["exact"] is not None:
        assert samples(plan["exact"]) == plan["global_batch"]
    for way in plan["nearest"]:
        assert samples(way) == way["global_batch"]
    assert plan["exact"] is not None or plan["nearest"]


@EXAMPLES
@given(SCENARIOS)
def test_seconds_are_positive(scenario: dict[str, Any]) -> None:
    seconds = evaluate(scenario)["step_seconds"]
    assert seconds is None or (math.isfinite(seconds) and seconds > 0)


@EXAMPLES
@given(SCENARIOS)
def test_a_timeline_starts_and_ends_with_what_stays(scenario: dict[str, Any]) -> None:
    drawn = timeline(scenario)
    alive = drawn["allocated_bytes"]
    assert min(alive) > 0
    assert alive[drawn["peak_index"]] == max(alive)
    assert len(drawn["label"]) == len(drawn["phase"]) == len(alive)


@EXAMPLES
@given(scenarios(several_gpus=False).filter(allowed))
def test_one_gpu_is_no_parallelism(scenario: dict[str, Any]) -> None:
    alone = evaluate(scenario)
    assert evaluate({**scenario, "gpus": 1})["memory"] == alone["memory"]


@EXAMPLES
@given(SCENARIOS)
def test_checkpointing_every_block_never_keeps_more(scenario: dict[str, Any]) -> None:
    def kept(checkpointing: str) -> int:
        profile = step_memory(parse({**scenario, "checkpointing": checkpointing})).step.profile
        return sum(profile.per_sample[storage] * profile.copies[storage] for storage in profile.kept_for_backward)

    assume(scenario["method"] == "full")
    assert kept("full") <= kept("none")
