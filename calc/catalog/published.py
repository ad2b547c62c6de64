"""Published measurements that the page shows beside its own numbers; every row names its source."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    return content


def critical_batches() -> list[dict[str, Any]]:
    """List measured critical batches and noise scales by task, each in its own unit."""
    rows: list[dict[str, Any]] = _load("critical_batch")["rows"]
    return rows


def steps_to_target() -> list[dict[str, Any]]:
    """List steps to a fixed loss against batch in tokens, one entry a model size."""
    runs: list[dict[str, Any]] = _load("steps_to_target")["runs"]
    return runs


def generalization() -> list[dict[str, Any]]:
    """List final quality against batch, one series a study, with what was and was not tuned again."""
    series: list[dict[str, Any]] = _load("generalization")["series"]
    return series


def scaling_efficiency() -> list[dict[str, Any]]:
    """List throughput on few and on many GPUs, with what the model needs to predict the ratio."""
    rows: list[dict[str, Any]] = _load("scaling_efficiency")["rows"]
    return rows


def training_speeds() -> list[dict[str, Any]]:
    """List published model FLOP utilization (MFU) of training runs."""
    rows: list[dict[str, Any]] = _load("training_speeds")["rows"]
    return rows


def utilization_span(gpu_name: str) -> dict[str, Any]:
    """Span the published MFU of large language models on a kind of GPU, or on all where none was on this one.

    Returns
    -------
    dict
        ``low`` and ``high`` as shares, how many ``runs``, and ``on`` which GPU (None: on all).
    """
    rows = training_speeds()
    kinds = {row["gpu"].split()[0] for row in rows}
    own = next((kind for kind in sorted(kinds) if kind in gpu_name), None)
    alike = [row for row in rows if own is None or row["gpu"].startswith(own)]
    ends = [row[key] for row in alike for key in ("mfu_percent", "mfu_percent_low", "mfu_percent_high") if key in row]
    return {"low": min(ends) / 100, "high": max(ends) / 100, "runs": len(alike), "on": own}


def gpu_prices() -> list[dict[str, Any]]:
    """List on-demand prices of one GPU-hour in US dollars, each with its price list and date."""
    rows: list[dict[str, Any]] = _load("prices")["rows"]
    return rows
