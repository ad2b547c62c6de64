"""The catalogs as text, for the command line: one line an entry, under its group."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from calc.catalog.finding import matching
from calc.catalog.gpus import GIB, Gpu, Instance, gpus, instances
from calc.catalog.gpus import search as search_gpus
from calc.catalog.models import Preset, presets
from calc.catalog.models import search as search_models

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    Entry = TypeVar("Entry")

NOTHING_FOUND = "Nothing found. Without words, all are listed."


def models_text(words: str = "") -> str:
    """Return the model presets that hold every word: id, name, exact parameters, task.

    >>> print(models_text("gpt2-xl"))
    GPT-2, GPT-J, GPT-Neo
      gpt2-xl  GPT-2 XL (1.5B)  1,557,611,200 parameters  causal-lm
    """
    found = search_models(words) if words.strip() else presets()
    return _table(found, lambda entry: entry.group, _model_cells)


def gpus_text(words: str = "") -> str:
    """Return the GPUs that hold every word: id, name, memory for torch, bandwidth, 16-bit rate; then machines.

    Where words name a cloud's machine, only such machines are listed.
    """
    found = search_gpus(words) if words.strip() else gpus()
    ids = {card.id for card in found}
    named = matching(words, instances(), lambda machine: f"{machine.id} {machine.name}")
    machines = named or tuple(machine for machine in instances() if machine.gpu in ids)
    parts = [_table(found, lambda card: card.group, _gpu_cells)]
    if machines:
        parts.append(_table(machines, lambda _: "Cloud and notebook names", _instance_cells))
    return "\n\n".join(parts)


def _model_cells(entry: Preset) -> list[str]:
    return [entry.id, entry.name, f"{entry.parameters:,} parameters", entry.task]


def _gpu_cells(card: Gpu) -> list[str]:
    best = "bf16" if "bf16" in card.dense_flops_per_second else "fp16"
    return [
        card.id,
        card.name,
        f"{card.visible_bytes / GIB:.2f} GiB for torch",
        f"{card.memory_bandwidth_bytes_per_second / 1e9:,.0f} GB/s",
        f"{card.dense_flops_per_second[best] / 1e12:,.0f} TFLOP/s {best}",
    ]


def _instance_cells(machine: Instance) -> list[str]:
    return [machine.id, f"{machine.gpus} x {machine.gpu}", machine.name]


def _table(entries: Sequence[Entry], group_of: Callable[[Entry], str], cells_of: Callable[[Entry], list[str]]) -> str:
    """Return lines of aligned columns; a search's order may bring a group up more than once, so groups are joined."""
    if not entries:
        return NOTHING_FOUND
    order = list(dict.fromkeys(group_of(entry) for entry in entries))
    rows = [(group_of(entry), cells_of(entry)) for entry in entries]
    rows.sort(key=lambda row: order.index(row[0]))
    widths = [max(len(cells[column]) for _, cells in rows) for column in range(len(rows[0][1]))]
    lines = []
    for group, members in groupby(rows, key=lambda row: row[0]):
        lines.append(group)
        for _, cells in members:
            padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            lines.append(("  " + "  ".join(padded)).rstrip())
    return "\n".join(lines)
