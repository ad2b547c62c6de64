"""What an answer costs, counted and not timed: models of many layers, and changes one after the other."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from calc.evaluation import evaluate
from calc.memory import StepMemory, replay, step_memory
from calc.scenario import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calc.memory import Allocation

LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 4096, "vocab_size": 32000,
}  # fmt: skip


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count steps run through the allocator, by micro-batch."""
    counted: Counter[int] = Counter()
    run = StepMemory.allocate_in_turn

    def counting(self: StepMemory, micro_batches: Sequence[int], capacity: int | None, **how: Any) -> list[Allocation]:
        counted.update(micro_batches)
        return run(self, micro_batches, capacity, **how)

    monkeypatch.setattr(StepMemory, "allocate_in_turn", counting)
    return counted


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
def test_ten_times_the_layers_are_no_more_to_replay(checkpointing: str) -> None:
    few, many = (
        replay(parse({"model": {**LLAMA, "num_hidden_layers": layers}, "checkpointing": checkpointing}))
        for layers in (8, 80)
    )
    assert len(many.profile.events) == len(few.profile.events)
    assert len(many.profile.kernels) == len(few.profile.kernels)
    assert many.parameter_count > 5 * few.parameter_count


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_ten_times_the_layers_are_under_five_times_the_requests(checkpointing: str) -> None:
    few, many = (
        sum(map(len, replay(parse(given)).unrolled.passes.values()))
        for given in (
            {"model": {**LLAMA, "num_hidden_layers": layers}, "checkpointing": checkpointing} for layers in (8, 80)
        )
    )
    assert many < 5 * few


# With all the memory that it asks for what the tensors allow, and less until it fits; on this card the next one.
@pytest.mark.parametrize(("sequence_length", "runs"), [(533, 3), (513, 4), (545, 4)])
def test_a_change_runs_few_steps(steps: Counter[int], sequence_length: int, runs: int) -> None:
    evaluate({"model": "gpt2", "gpu": "rtx-4090-24gb", "sequence_length": sequence_length})
    assert sum(steps.values()) <= runs


def test_accumulation_looks_for_one_largest_micro_batch_more_and_not_for_two_bands(steps: Counter[int]) -> None:
    evaluate({"model": "gpt2", "gpu": "rtx-4090-24gb", "sequence_length": 535, "global_batch": 512})
    assert sum(steps.values()) <= 11


def test_a_step_that_never_ran_short_is_not_run_again_without_a_limit(steps: Counter[int]) -> None:
    scenario = parse({"model": "gpt2", "gpu": "rtx-4090-24gb", "sequence_length": 537})
    memory = step_memory(scenario)
    limit = scenario.gpu.limit_bytes
    bounded = memory.allocate_within(8, limit)
    assert memory.allocate(8) == bounded
    assert memory.allocate_within(8, 2 * limit) == bounded
    assert memory.allocate_on(8, limit) == bounded
    assert steps == {8: 1}
