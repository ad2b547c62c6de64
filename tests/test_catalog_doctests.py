"""The examples in the catalog's documentation are right."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from calc import catalog

MODULES = [f"{catalog.__name__}.{module.name}" for module in pkgutil.iter_modules(catalog.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
