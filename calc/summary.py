"""A result in a few lines of text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from calc.goal import dollars_text, hours_text
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 2**30


def gib(nbytes: int) -> str:
    """Bytes as GiB with two decimals."""
    return f"{nbytes / GIB:.2f} GiB"


def answer_sentence(result: Mapping[str, Any]) -> str:
    """The answer in one sentence, as the page says it."""
    largest = result["max_micro_batch"]
    model, card = result["model"]["name"], result["gpu"]["name"]
    if largest == 0:
        needed = result["memory"]["peak_allocated_bytes"]
        usable = result["gpu"]["usable_bytes"]
        samples = "one sample" if result["micro_batch"] == 1 else f"{result['micro_batch']:,} samples"
        return f"Nothing fits yet: {model} needs {gib(needed)} for {samples}; {card} gives {gib(usable)}."
    sentence = f"Micro-batch {largest:,} fits {model} on {card}."
    sentence += f" {largest + 1:,} would exceed the card by {gib(result['next_needs_bytes'])}."
    return f"{sentence} Safe {result['max_micro_batch_safe']:,}, optimistic {result['max_micro_batch_optimistic']:,}."


def as_text(result: Mapping[str, Any]) -> str:
    """Answer, memory by phase, and the breakdown at the peak."""
    memory = result["memory"]
    lines = [
        answer_sentence(result),
        (
            f"At micro-batch {result['micro_batch']:,}: {gib(memory['peak_allocated_bytes'])} allocated at the peak "
            f"({memory['peak_instant']}), {gib(memory['peak_reserved_bytes'])} reserved, "
            f"{gib(memory['process_bytes'])} for the process."
        ),
        "Phases: " + ", ".join(f"{name} {gib(nbytes)}" for name, nbytes in memory["phases"].items()),
    ]
    run = result["run"]
    if run and result["fits"]:
        cost = f" and {dollars_text(run['dollars'])}" if run["dollars"] is not None else ""
        updates = counted(run["updates"], "update")
        lines.append(f"The run: {updates}, {hours_text(run['seconds'])}{cost}. {run['goal'] or ''}".strip())
    lines += [f"  {c['label']:28} {gib(c['bytes']):>12}   {c['formula']}" for c in memory["components"] if c["bytes"]]
    return "\n".join(lines)


def plan_as_text(found: Mapping[str, Any]) -> str:
    """The planner's choice in words, what it tried, and the scenario that runs the plan."""
    verb = "will do" if found["goal_met"] else "fits" if found["feasible"] == 1 else "fit"
    lines = [
        found["text"],
        *found["notes"],
        f"{counted(found['candidates'], 'plan')} tried, {found['feasible']:,} of them {verb}.",
    ]
    if found["best"]:
        best = found["best"]
        source = found["price_source"]
        price = f"Price: {source}." if source else "No list that was read has this card's price: GPU-hours are counted."
        lines.append(
            f"{gib(best['reserved_bytes'])} reserved on each GPU, {best['update_seconds']:.4g} s an update. {price}"
        )
        lines.append(json.dumps(found["scenario"]))
    return "\n".join(lines)
