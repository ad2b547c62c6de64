"""The search for the largest micro-batch, and the band around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.batch import band, largest, tensors_fit
from calc.evaluation import evaluate
from calc.memory import StepMemory, step_memory
from calc.scenario import parse

GIB = 2**30


@pytest.fixture(scope="module")
def memory() -> StepMemory:
    return step_memory(parse({"model": "gpt2", "sequence_length": 512, "precision": "bf16", "gpu": {"memory_gib": 8}}))


@given(st.integers(0, 5000), st.integers(-10, 6000), st.integers(1, 5000))
def test_largest_finds_the_last_that_fits(last: int, start: int, limit: int) -> None:
    assert largest(lambda b: b <= last, start, limit) == min(last, limit)


@given(st.integers(1, 2**20), st.integers(1, 2**20))
def test_a_good_guess_saves_trials(last: int, start: int) -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= last

    largest(fits, start)
    # Doubling away and halving back: twice the logarithm of how far off the guess was.
    assert len(tried) <= 2 * abs(start - last).bit_length() + 4


def test_tensors_fit_up_to_the_limit_and_no_further(memory: StepMemory) -> None:
    for limit in (2 * GIB, 5 * GIB, 23 * GIB):
        found = tensors_fit(memory, limit)
        assert memory.requested_peak(found) <= limit < memory.requested_peak(found + 1)


def test_nothing_fits_where_one_sample_does_not(memory: StepMemory) -> None:
    found = band(memory, GIB)
    assert found[:3] == (0, 0, 0)
    assert found.next_needs_bytes == memory.requested_peak(1) - GIB


@pytest.mark.parametrize("limit_gib", [3, 5, 8, 23])
def test_next_needs_is_enough_and_no_more_than_without_giving_memory_back(memory: StepMemory, limit_gib: int) -> None:
    limit = limit_gib * GIB
    found = band(memory, limit)
    assert band(memory, limit + found.next_needs_bytes).optimistic > found.expected
    assert found.next_needs_bytes <= memory.allocate(found.expected + 1).reserved_bytes - limit


@pytest.mark.parametrize("limit_gib", [3, 5, 8, 23])
def test_the_safe_batch_gives_nothing_back_and_is_within_a_64th(memory: StepMemory, limit_gib: int) -> None:
    limit = limit_gib * GIB
    found = band(memory, limit)
    assert memory.allocate(found.safe).reserved_bytes <= limit
    beyond = found.safe + max(1, found.safe // 64) + 1
    assert beyond > found.expected or memory.allocate(beyond).reserved_bytes > limit


def test_the_optimizer_step_may_be_what_does_not_fit() -> None:
    # Adam's state and its temporary of a model whose forward is small: batch 1 fails although activations are few.
    memory = step_memory(parse({"model": "gpt2", "sequence_length": 8, "precision": "fp32", "gpu": {"memory_gib": 8}}))
    step = memory.step_peak_bytes
    assert memory.requested_peak(1) == step
    assert band(memory, step - 1).expected == 0
    assert tensors_fit(memory, step) >= 1


def test_what_is_kept_out_below_the_largest_does_not_fit() -> None:
    given = {"model": "vgg13_bn", "gpu": "h100-sxm-80gb", "precision": "bf16"}
    largest = evaluate(given)["max_micro_batch"]
    for micro_batch in range(largest - 3, largest + 1):
        result = evaluate({**given, "micro_batch": micro_batch})
        assert result["fits"] == (result["memory"]["peak_reserved_bytes"] <= result["memory"]["limit_bytes"])
