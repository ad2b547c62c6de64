"""What the page may ask of the worker: JSON text in, JSON text out.

PyScript runs this file in the worker and exports the names in ``__export__``. An answer is an envelope,
``{"ok": true, ...}`` or ``{"ok": false, "error": {"field", "message"}}``; an exception that reaches the page is a bug.
"""

import json
from collections.abc import Callable
from typing import Any

from calc import accuracy
from calc.advice import advise, ways_to_fit
from calc.cards import some_cards
from calc.catalog import published
from calc.comparison import compare
from calc.errors import ScenarioError
from calc.evaluation import evaluate as evaluate_scenario
from calc.export import exports_of
from calc.scaling.published import comparison

__export__ = ["evaluate", "figure", "hello", "later", "load_figures"]


def _plan(scenario: dict[str, Any]) -> dict[str, Any]:
    from calc.planner import plan  # noqa: PLC0415 - numpy comes after the first numbers

    return plan(scenario)


# What the page asks for after the numbers, since each takes many evaluations: parts of the contract's result by key.
LATER: dict[str, Callable[[dict[str, Any]], Any]] = {
    "accuracy": accuracy.report,
    "measured": accuracy.some_runs,
    "advice": lambda scenario: advise(evaluate_scenario(scenario)["scenario"], evaluate_scenario),
    "ways_to_fit": lambda scenario: ways_to_fit(evaluate_scenario(scenario)["scenario"], evaluate_scenario),
    "planner": _plan,
    "published": lambda _scenario: {
        "scaling": comparison(),
        "speeds": published.training_speeds(),
        "critical_batches": published.critical_batches(),
    },
    "fits_on": some_cards,
    "comparison": lambda given: compare(given.get("scenarios") or [], evaluate_scenario),
    "exports": lambda scenario: exports_of(evaluate_scenario(scenario)),
}

FIGURE_PACKAGES = ("numpy", "matplotlib")


def _answer(make: Callable[[dict[str, Any]], dict[str, Any]], scenario_text: str) -> str:
    """Answer for the scenario in `scenario_text`, as an envelope."""
    try:
        answer = {"ok": True, **make(json.loads(scenario_text))}
    except ScenarioError as error:
        answer = {"ok": False, "error": {"field": error.field, "message": error.message}}
    return json.dumps(answer, allow_nan=False)


def hello() -> str:
    """Say that the worker is up: its script has run to the end and `calc` is imported."""
    return json.dumps({"ok": True})


def evaluate(scenario_text: str) -> str:
    """Evaluate a scenario; the envelope holds the contract's ``result``."""
    return _answer(lambda scenario: {"result": evaluate_scenario(scenario)}, scenario_text)


def later(key: str, scenario_text: str) -> str:
    """Work out a part of the result that takes longer; the envelope holds it as ``value``."""
    return _answer(lambda scenario: {"value": LATER[key](scenario)}, scenario_text)


async def load_figures() -> str:
    """Load what the figures need, after the numbers are there: numpy and matplotlib, from this site."""
    import pyodide_js  # noqa: PLC0415 - exists in the page alone

    await pyodide_js.loadPackage(list(FIGURE_PACKAGES))
    from calc import plots  # noqa: F401, PLC0415 - imported once here, so that the first figure does not wait for it

    return json.dumps({"ok": True})


def figure(name: str, width: int, scenario_text: str) -> str:
    """Draw the figure `name`, `width` pixels wide; the envelope holds ``svg``, ``title``, ``text`` and ``table``."""
    from calc import plots  # noqa: PLC0415 - numpy and matplotlib come after the first numbers

    return _answer(lambda scenario: plots.draw(name, scenario, width), scenario_text)
