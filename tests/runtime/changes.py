"""What a person at the page does to its Python: one change after the other. Run in the page's Python by run.mjs."""

from __future__ import annotations

import gc
import json
from itertools import cycle, islice
from time import perf_counter

from calc import worker

MODELS = ("gpt2", "resnet50", "llama-3.2-1b", "vit_b_16")
GPUS = ("h100-sxm-80gb", "rtx-4090-24gb")
BATCHES = (64, 256, 1024)
FIGURES = ("timeline", "parts", "memory", "throughput", "tradeoff", "quality")
WIDTH = 640
# Whoever drags a slider sees every number, and the figures when it rests.
CHANGES_TO_A_FIGURE = 8
LOOP = 100_000


def numbers() -> str:
    """Evaluate scenarios, and let the collector look at all it may: for a start whose libraries have not come yet."""
    answers = [json.loads(worker.evaluate(json.dumps({"model": model}))) for model in MODELS]
    gc.collect()
    return json.dumps([answer["result"]["max_micro_batch"] for answer in answers])


def pace(turn: int) -> str:
    """Return the seconds of a change to a length that no scenario had before, and of a plain loop beside it."""
    scenario = json.dumps({"model": "gpt2", "gpu": "rtx-4090-24gb", "sequence_length": 513 + 2 * turn})
    begin = perf_counter()
    worker.show(scenario, "{}")
    shown = perf_counter()
    total = 0
    for number in range(LOOP):
        total += number if number % 3 else -number
    return json.dumps({"change": shown - begin, "loop": perf_counter() - shown})


def change(count: int) -> str:
    """Make so many changes, from the first on; return how many objects Python holds afterwards."""
    scenarios = [
        json.dumps({"model": model, "gpu": gpu, "global_batch": batch})
        for batch in BATCHES
        for gpu in GPUS
        for model in MODELS
    ]
    figures = cycle(FIGURES)
    for turn, scenario in enumerate(islice(cycle(scenarios), count)):
        answers = [worker.show(scenario, "{}")]
        if turn % CHANGES_TO_A_FIGURE == 0:
            answers.append(worker.figure(next(figures), WIDTH, scenario))
        if not all(json.loads(answer)["ok"] for answer in answers):
            raise AssertionError(answers)
    gc.collect()
    return json.dumps(len(gc.get_objects()))
