"""Scenarios for Hypothesis to draw: every model and card of the catalogs, every choice that goes with them."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from calc.architectures.registry import ARCHITECTURES
from calc.catalog import gpus, models
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.scenario import (
    TEXT_TASKS,
    Attention,
    Checkpointing,
    Loss,
    Method,
    Optimizer,
    Precision,
    Task,
    ZeroGrad,
    parse,
)

PARALLELISM: list[dict[str, Any]] = [
    {"strategy": "ddp"},
    {"strategy": "zero1"},
    {"strategy": "zero2"},
    {"strategy": "zero3"},
    {"strategy": "fsdp"},
    {"strategy": "ddp", "tensor": 2},
    {"strategy": "zero1", "tensor": 2, "pipeline": 2},
    {"strategy": "fsdp", "context": 2},
    {"strategy": "zero2", "cpu_offload": "optimizer"},
    {"strategy": "zero3", "cpu_offload": "all"},
]


@cache
def preset_ids() -> tuple[str, ...]:
    """Presets, one of each architecture first: what fails shrinks to the first."""
    first: dict[str, str] = {}
    others = []
    for preset in models.presets():
        if preset.config.get("model_type", preset.id) not in ARCHITECTURES:
            continue
        family = str(preset.config.get("model_type", preset.id))
        if family in first:
            others.append(preset.id)
        else:
            first[family] = preset.id
    return (*first.values(), *others)


@cache
def task_of(model: str) -> Task:
    return parse({"model": model}).model.task


def values(kind: Any) -> list[str]:
    return [str(member) for member in kind]


@st.composite
def cards(draw: st.DrawFn) -> object:
    """A card from the catalog, or one by its size."""
    if draw(st.booleans()):
        return draw(st.sampled_from([card.id for card in gpus.gpus()]))
    return {"memory_gib": draw(st.integers(4, 192)), "overhead_gib": draw(st.sampled_from([0, 0.5, 1]))}


@st.composite
def scenarios(draw: st.DrawFn, *, several_gpus: bool = True) -> dict[str, Any]:
    """A scenario that the contract allows."""
    model = draw(st.sampled_from(preset_ids()))
    task = task_of(model)
    card = draw(cards())
    allowed = [
        precision
        for precision in values(Precision)
        if not isinstance(card, str) or gpus.precision_refusal(gpus.gpu(card), precision) is None
    ]
    precision = draw(st.sampled_from(allowed))
    known = gpus.gpu(card) if isinstance(card, str) else None
    kernels = [kind for kind in values(Attention) if gpus.attention_refusal(known, kind, precision) is None]
    given: dict[str, Any] = {
        "model": model,
        "gpu": card,
        "precision": precision,
        "optimizer": draw(st.sampled_from(values(Optimizer))),
        "checkpointing": draw(st.sampled_from(values(Checkpointing))),
        "attention": draw(st.sampled_from(kernels)),
        "method": draw(st.sampled_from(values(Method))),
        "zero_grad": draw(st.sampled_from(values(ZeroGrad))),
    }
    if given["method"] != Method.FULL:
        given["lora_rank"] = draw(st.sampled_from([1, 8, 64]))
        given["lora_targets"] = draw(st.sampled_from(["all-linear", "attention"]))
    if task in TEXT_TASKS:
        given["loss"] = draw(st.sampled_from(values(Loss)))
        given["sequence_length"] = draw(st.sampled_from([16, 100, 512]))
    if several_gpus and draw(st.booleans()):
        given["gpus"] = draw(st.sampled_from([4, 8, 64]))
        ways = PARALLELISM if task in TEXT_TASKS else [way for way in PARALLELISM if "context" not in way]
        given["parallelism"] = draw(st.sampled_from(ways))
    if draw(st.booleans()):
        given["global_batch"] = draw(st.integers(1, 4096))
    return given


def allowed(given: dict[str, Any]) -> bool:
    """Whether the scenario can be answered: some choices do not go with some models and cards."""
    try:
        evaluate(given)
    except ScenarioError:
        return False
    return True
