"""Final quality against batch: published points as they were measured. No invented curve."""

from __future__ import annotations

from typing import Any

from calc.catalog import published


def nearest_series(family: str, dataset: str | None = None) -> list[dict[str, Any]]:
    """Pick the published series closest to a run: same data set first, then same family; none where no study is close.

    Parameters
    ----------
    family : str
        Kind of task, as in the task table (``image-classification``, ``causal-lm``, ...).
    dataset : str, optional
        Data set as the user names it.
    """
    same_family = [series for series in published.generalization() if series["family"] == family]
    if dataset is None:
        return same_family
    wanted = plain_name(dataset)
    same_dataset = [series for series in same_family if wanted in plain_name(series["dataset"])]
    return same_dataset or same_family


def plain_name(name: str) -> str:
    """Reduce a data set's name to what spelling variants share."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
