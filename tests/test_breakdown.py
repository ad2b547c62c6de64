"""The parts of the peak: what each is worth where a hand can count it."""

from __future__ import annotations

from typing import Any

import pytest

from calc.evaluation import evaluate

PARAMETERS = 124_439_808
LAYERS, WIDTH, VOCABULARY, TOKENS = 12, 768, 50257, 512


def parts(**changes: Any) -> dict[str, int]:
    scenario = {
        "model": "gpt2",
        "sequence_length": TOKENS,
        "gpu": "h100-sxm-80gb",
        "micro_batch": 4,
        "precision": "bf16",
    }
    memory = evaluate({**scenario, **changes})["memory"]
    return {component["id"]: component["bytes"] for component in memory["components"]}


def test_weights_gradients_and_state_of_a_step() -> None:
    # One token: the peak is in the optimizer's step, where all gradients are alive.
    found = parts(sequence_length=1, micro_batch=1, precision="fp32")
    assert found["weights"] == pytest.approx(4 * PARAMETERS, rel=0.001)
    assert found["gradients"] == pytest.approx(4 * PARAMETERS, rel=0.001)
    assert found["optimizer_state"] == pytest.approx(8 * PARAMETERS, rel=0.001)
    assert found["temporaries"] == pytest.approx(4 * PARAMETERS, rel=0.001)
    assert found["activations"] == found["logits_and_loss"] == 0


def test_activations_at_the_logits_peak() -> None:
    found = parts(checkpointing="full")
    # Each layer's input, the embeddings' dropout mask, and the last norm's input and output with little besides.
    inputs = LAYERS * 2 * 4 * TOKENS * WIDTH
    assert inputs < found["activations"] < 1.6 * inputs
    assert found["logits_and_loss"] == pytest.approx(12 * 4 * TOKENS * VOCABULARY, rel=0.01)


def test_hoppers_workspaces() -> None:
    # 32 MiB for each of two handles from compute capability 9.0 on, 8.125 MiB before.
    assert parts()["workspace"] == 64 * 2**20
    assert parts(gpu="a100-sxm-80gb")["workspace"] == 2 * (4096 * 2 * 1024 + 16 * 8 * 1024)


def test_kept_gradients_are_there_throughout() -> None:
    assert parts(zero_grad="keep")["gradients"] == pytest.approx(2 * PARAMETERS, rel=0.001)


def test_every_part_says_how_it_was_found() -> None:
    memory = evaluate({"model": "gpt2", "gpu": "h100-sxm-80gb"})["memory"]
    for component in memory["components"]:
        assert component["label"]
        assert component["formula"]
        assert component["source"]
    ids = [component["id"] for component in memory["components"]]
    assert ids[:8] == (
        "weights gradients optimizer_state activations logits_and_loss casts temporaries workspace".split()
    )
