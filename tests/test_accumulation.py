"""Accumulation plans: exact where possible, else the two nearest, checked against a search of everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc import accumulation
from calc.errors import ScenarioError

sizes = st.integers(min_value=1, max_value=48)
batches = st.integers(min_value=1, max_value=400)
replicas = st.integers(min_value=1, max_value=16)


def reachable(largest: int, wanted: int, data_parallel: int) -> set[int]:
    """Every batch up to twice the wanted one that some plan makes."""
    limit = 2 * (wanted + data_parallel)
    return {
        micro * steps * data_parallel
        for micro in range(1, largest + 1)
        for steps in range(1, limit // data_parallel + 1)
        if micro * steps * data_parallel <= limit
    }


def test_the_batch_of_the_example_sentence() -> None:
    found = accumulation.plan(12, 64)
    assert found["exact"] == {"micro_batch": 8, "accumulation_steps": 8, "data_parallel": 1, "global_batch": 64}
    assert [(p["micro_batch"], p["accumulation_steps"], p["global_batch"]) for p in found["nearest"]] == [
        (12, 5, 60),
        (12, 6, 72),
    ]


def test_no_neighbours_beside_a_full_micro_batch() -> None:
    assert accumulation.plan(12, 96, 2) == {
        "global_batch": 96,
        "exact": {"micro_batch": 12, "accumulation_steps": 4, "data_parallel": 2, "global_batch": 96},
        "nearest": [],
    }


def test_replicas_that_do_not_divide_give_the_neighbours() -> None:
    found = accumulation.plan(12, 100, 8)
    assert found["exact"] is None
    assert [p["global_batch"] for p in found["nearest"]] == [96, 104]


def test_fewer_samples_than_replicas_leave_only_the_batch_above() -> None:
    found = accumulation.plan(4, 3, 8)
    assert found["exact"] is None
    assert [p["global_batch"] for p in found["nearest"]] == [8]


@pytest.mark.parametrize(
    ("wanted", "replicas", "taken"), [(64, 1, 64), (100, 3, 99), (101, 3, 102), (100, 8, 104), (3, 8, 8)]
)
def test_a_plan_stands_for_its_closest_way(wanted: int, replicas: int, taken: int) -> None:
    way = accumulation.way_of(accumulation.plan(12, wanted, replicas))
    assert way["micro_batch"] * way["accumulation_steps"] * replicas == taken


def test_of_two_ways_nearly_as_close_the_one_with_fewer_passes_is_taken() -> None:
    # 683 samples on each of 6 are prime: 1 x 683; two samples further off it is 31 x 22.
    found = accumulation.plan(38, 4096, 6)
    assert [(p["micro_batch"], p["accumulation_steps"]) for p in found["nearest"]] == [(31, 22), (1, 683)]
    assert accumulation.way_of(found)["global_batch"] == 4092


@pytest.mark.property
@given(sizes, batches, replicas)
def test_plans_agree_with_a_search_of_everything(largest: int, wanted: int, data_parallel: int) -> None:
    exact = accumulation.exact_plan(largest, wanted, data_parallel)
    everything = reachable(largest, wanted, data_parallel)
    assert (exact is not None) == (wanted in everything)
    if exact:
        assert exact.global_batch == wanted
        assert exact.micro_batch <= largest
        better = [m for m in range(exact.micro_batch + 1, largest + 1) if wanted % (m * data_parallel) == 0]
        assert not better
        return
    below = max((batch for batch in everything if batch < wanted), default=None)
    above = min(batch for batch in everything if batch > wanted)
    nearest = accumulation.nearest_plans(largest, wanted, data_parallel)
    assert [found.global_batch for found in nearest] == [batch for batch in (below, above) if batch]
    assert all(found.micro_batch <= largest for found in nearest)


@pytest.mark.parametrize(
    ("values", "field"), [((0, 8, 1), "micro_batch"), ((8, 0, 1), "global_batch"), ((8, 8, 0), "gpus")]
)
def test_impossible_sizes_name_their_field(values: tuple[int, int, int], field: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        accumulation.plan(*values)
    assert caught.value.field == field


def test_caveats_follow_the_model() -> None:
    assert accumulation.caveats(accumulation_steps=1, batch_norm=True) == []
    ids = [c["id"] for c in accumulation.caveats(accumulation_steps=4, batch_norm=True, gradient_bytes_each=2)]
    assert ids == ["loss-scale", "batch-norm", "half-precision-sum"]
