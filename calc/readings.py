"""What a person read on their own machine: bytes at a micro-batch, or which micro-batch ran and which did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from calc.errors import ScenarioError
from calc.numbers import is_number, is_whole

FIELD = "calibration"
MOST_READINGS = 16
LARGEST_BATCH = 100_000_000
LARGEST_GIB = 100_000
RUN_KEYS = ("calibration", "micro_batch", "global_batch")
"""Keys that say nothing about what was read."""


class Kind(StrEnum):
    """What shows the bytes."""

    ALLOCATED = "allocated"
    """``torch.cuda.max_memory_allocated()``: what tensors held at the peak."""
    RESERVED = "reserved"
    """``torch.cuda.max_memory_reserved()``: what torch's allocator took for them."""
    CARD = "card"
    """The whole card, as nvidia-smi shows it: all processes and the driver's context as well."""


@dataclass(frozen=True)
class BytesReading:
    """Bytes at a micro-batch. ``scenario`` is what ran where it is not the scenario that the reading stands in."""

    batch: int
    kind: Kind
    nbytes: int
    scenario: Mapping[str, Any] | None


@dataclass(frozen=True)
class Trial:
    """The largest micro-batch that ran and the smallest that ran out of memory, as far as they are known."""

    ran: int | None
    failed: int | None
    scenario: Mapping[str, Any] | None


def read_calibration(value: object) -> tuple[BytesReading | Trial, ...]:
    """Read a scenario's ``calibration``.

    Raises
    ------
    ScenarioError
        Field ``calibration``; the message numbers the reading that is wrong.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ScenarioError(FIELD, "give a list of readings, each with batch, reading and gib, or with ran and failed")
    if len(value) > MOST_READINGS:
        raise ScenarioError(FIELD, f"{len(value)} readings are too many: allowed are up to {MOST_READINGS}")
    return tuple(_reading(entry, f"reading {number}") for number, entry in enumerate(value, 1))


def _reading(entry: object, name: str) -> BytesReading | Trial:
    if not isinstance(entry, Mapping):
        raise ScenarioError(FIELD, f"{name} is no object with batch, reading and gib, or with ran and failed")
    scenario = entry.get("scenario")
    if scenario is not None and not isinstance(scenario, Mapping):
        raise ScenarioError(FIELD, f"{name}: scenario is the object that describes what ran")
    of = None if scenario is None else MappingProxyType({k: v for k, v in scenario.items() if k not in RUN_KEYS})
    if "ran" in entry or "failed" in entry:
        _only(entry, ("ran", "failed", "scenario"), name)
        return _trial(entry, of, name)
    _only(entry, ("batch", "reading", "gib", "scenario"), name)
    try:
        kind = Kind(entry.get("reading", ""))
    except ValueError:
        raise ScenarioError(FIELD, f"{name}: reading is one of {', '.join(Kind)}") from None
    gib = entry.get("gib")
    if not is_number(gib) or not 0 < gib <= LARGEST_GIB:
        raise ScenarioError(FIELD, f"{name}: gib is a number above 0 and up to {LARGEST_GIB:,}")
    return BytesReading(_batch(entry.get("batch"), "batch", name), kind, round(gib * 2**30), of)


def _trial(entry: Mapping[str, Any], of: Mapping[str, Any] | None, name: str) -> Trial:
    ran, failed = (None if entry.get(key) is None else _batch(entry[key], key, name) for key in ("ran", "failed"))
    if ran is None and failed is None:
        raise ScenarioError(FIELD, f"{name}: give the batch that ran, the one that failed, or both")
    if ran is not None and failed is not None and ran >= failed:
        raise ScenarioError(
            FIELD, f"{name}: {ran:,} ran, so a batch that failed must be larger than that, not {failed:,}"
        )
    return Trial(ran, failed, of)


def _only(entry: Mapping[str, Any], keys: tuple[str, ...], name: str) -> None:
    unknown = next((key for key in entry if key not in keys), None)
    if unknown is not None:
        raise ScenarioError(FIELD, f"{name} has no field {unknown!r}: allowed are {', '.join(keys)}")


def _batch(value: object, key: str, name: str) -> int:
    if not is_whole(value) or not 1 <= value <= LARGEST_BATCH:
        raise ScenarioError(FIELD, f"{name}: {key} is a whole number from 1 to {LARGEST_BATCH:,}")
    return int(value)
