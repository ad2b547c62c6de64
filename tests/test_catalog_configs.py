"""Configurations are completed as transformers itself completes them, and refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calc.catalog.configs import complete_config

CASES = json.loads((Path(__file__).parent / "data" / "config_cases.json").read_text(encoding="utf-8"))["cases"]

# Names that the library answers by an alias, and those that it leaves to the model's code.
ALSO_READ = {"hidden_size", "head_dim"}
LEFT_TO_THE_MODEL = {"head_dim", "num_key_value_heads"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case["given"])[:60])
def test_completed_as_the_library_does(case: dict[str, Any]) -> None:
    completed = complete_config(case["given"])
    wrong = {
        key: (completed.get(key), value)
        for key, value in case["completed"].items()
        if not (key in ALSO_READ and key not in completed)
        and not _same(completed.get(key), value)
        and not (key in LEFT_TO_THE_MODEL and value is None)
    }
    assert not wrong


def _same(ours: Any, library: Any) -> bool:
    if isinstance(library, dict):
        return all(_same(ours.get(key), value) for key, value in library.items())
    return bool(ours == library)
