"""Real training steps, measured on one GPU: what the calculation is compared with.

``measured.json`` holds them with the conditions under which they were taken. No prediction is stored beside them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

GPU = "h100-sxm-80gb"


@dataclass(frozen=True)
class Step:
    """One measured step: bytes at their peaks, and seconds."""

    micro_batch: int
    peak_allocated_bytes: int
    peak_forward_bytes: int
    peak_reserved_bytes: int
    step_seconds: float


@dataclass(frozen=True)
class Run:
    """Steps of one model under one recipe, in the order in which one process ran them."""

    model: str
    scenario: Mapping[str, Any]
    """Without a micro-batch: the same for all steps."""
    parameters: int
    trainable_parameters: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Limit:
    """The largest micro-batch that ran where the allocator was held to ``limit_gib``, and the smallest that failed."""

    model: str
    scenario: Mapping[str, Any]
    limit_gib: float
    ran: int
    failed: int


@dataclass(frozen=True)
class Measured:
    """All that was measured, and how."""

    conditions: Mapping[str, str]
    runs: tuple[Run, ...]
    limits: tuple[Limit, ...]


@cache
def measured() -> Measured:
    """What ``measured.json`` holds."""
    data = json.loads(resources.files("calc.catalog").joinpath("measured.json").read_text("utf-8"))
    models = data["models"]

    def scenario(row: Mapping[str, Any], gpu: object) -> Mapping[str, Any]:
        return MappingProxyType({"model": models[row["model"]], "gpu": gpu, **row["scenario"]})

    return Measured(
        MappingProxyType(data["conditions"]),
        tuple(
            Run(
                row["model"],
                scenario(row, GPU),
                row["parameters"],
                row["trainable_parameters"],
                tuple(Step(**step) for step in row["steps"]),
            )
            for row in data["runs"]
        ),
        tuple(
            Limit(
                row["model"],
                scenario(row, {"memory_gib": row["limit_gib"], "overhead_gib": 0}),
                row["limit_gib"],
                row["ran"],
                row["failed"],
            )
            for row in data["limits"]
        ),
    )
