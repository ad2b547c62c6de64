"""What the page may ask of the worker: JSON text in, JSON text out.

It is the border, so it alone in `calc` knows `page`: a result becomes HTML here, and the page's main thread puts that
into its place. static/worker.mjs calls these functions by their names. An answer is an envelope,
``{"ok": true, ...}`` or ``{"ok": false, "error": {"field", "message"}}``; an exception that reaches the page is a bug.
"""

import gc
import json
import sys
from collections.abc import Callable
from traceback import print_exc
from typing import Any

from calc import accuracy
from calc import exercise as exercises
from calc.advice import advise, ways_to_fit
from calc.cards import some_cards
from calc.comparison import compare
from calc.errors import ScenarioError
from calc.evaluation import evaluate as evaluate_scenario
from calc.export import exports_of
from page import sections


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
    "fits_on": some_cards,
    "comparison": lambda given: compare(given.get("scenarios") or [], evaluate_scenario),
    "exports": lambda scenario: exports_of(evaluate_scenario(scenario)),
}

YOUNG = 0
"""The garbage collector's generation of what was made since it last looked."""

FIGURE_PACKAGES = ("numpy", "matplotlib")


def _answer(make: Callable[[dict[str, Any]], dict[str, Any]], scenario_text: str) -> str:
    """Answer for the scenario in `scenario_text`, as an envelope."""
    try:
        answer = {"ok": True, **make(json.loads(scenario_text))}
    except ScenarioError as error:
        answer = {"ok": False, "error": {"field": error.field, "message": error.message}}
    return json.dumps(answer, allow_nan=False)


def _apart(what: str, make: Callable[[dict[str, Any]], dict[str, Any]], scenario_text: str) -> str:
    """Answer as `_answer` does, for a part of the page whose fault must not take the rest with it."""
    try:
        return _answer(make, scenario_text)
    except Exception as error:  # noqa: BLE001 - whatever it is
        print_exc()
        fault = f"{type(error).__name__}: {error}"
        message = f"{what} cannot be shown: a fault of this page ({fault}). The rest is not affected."
        return json.dumps({"ok": False, "error": {"field": "", "message": message}})


def hello() -> str:
    """Say that the worker is up: its script has run to the end, `calc` is imported. ``python`` tells its version."""
    return json.dumps({"ok": True, "python": sys.version})


def evaluate(scenario_text: str) -> str:
    """Evaluate a scenario; the envelope holds the contract's ``result``."""
    return _answer(lambda scenario: {"result": evaluate_scenario(scenario)}, scenario_text)


def show(scenario_text: str, shown_text: str) -> str:
    """
    Evaluate a scenario for the page.

    The envelope holds ``brief`` (`page.sections.brief`), ``later`` (the sections to be asked for by themselves) and
    ``html``: by section its digest and its HTML, where the digest is another than the one in `shown_text`.
    """

    def make(scenario: dict[str, Any]) -> dict[str, Any]:
        result = evaluate_scenario(scenario)
        shown = json.loads(shown_text)
        html = {}
        for name, section in sections.SECTIONS.items():
            if name not in sections.LATER + sections.LAST:
                text = section(result)
                digest = sections.digest(text)
                if digest != shown.get(name):
                    html[name] = [digest, text]
        return {"brief": sections.brief(result), "later": sections.LATER, "html": html}

    return _apart("This scenario", make, scenario_text)


def section(key: str, given_text: str) -> str:
    """
    Work out a section that takes longer, for a scenario or, to compare, ``{"scenarios": [one, other]}``.

    The envelope holds its ``digest`` and ``html``.
    """

    def make(given: dict[str, Any]) -> dict[str, Any]:
        scenario = given["scenarios"][-1] if "scenarios" in given else given
        result = evaluate_scenario(scenario) | {key: LATER[key](given)}
        html = sections.SECTIONS[key](result)
        return {"digest": sections.digest(html), "html": html}

    return _apart("This part", make, given_text)


def gathered(key: str, value_text: str, scenario_text: str) -> str:
    """Make a section of what `later` gave piece by piece; the envelope holds its ``digest`` and ``html``."""

    def make(scenario: dict[str, Any]) -> dict[str, Any]:
        html = sections.SECTIONS[key](evaluate_scenario(scenario) | {key: json.loads(value_text)})
        return {"digest": sections.digest(html), "html": html}

    return _apart("This part", make, scenario_text)


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
    """Draw the figure `name`, `width` pixels wide; the envelope holds its ``digest`` and ``html``, maybe empty."""
    from calc import plots  # noqa: PLC0415 - numpy and matplotlib come after the first numbers

    def make(scenario: dict[str, Any]) -> dict[str, Any]:
        # matplotlib's objects name one another in circles. They are all young, since the collector rests meanwhile
        # (static/worker.mjs), and need not wait until it looks at what was there before.
        try:
            html = sections.figure(name, plots.draw(name, scenario, width))
        finally:
            gc.collect(YOUNG)
        return {"digest": sections.digest(html), "html": html}

    return _apart("This figure", make, scenario_text)


def exercise(turn: int) -> str:
    """Work for the browser's sake (`calc.exercise`), turn by turn; the envelope holds how many are ``left``."""
    return json.dumps({"ok": True, "left": exercises.exercise(turn)})
