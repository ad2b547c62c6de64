"""Two or more scenarios side by side: what they set differently, and what comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_SCENARIOS = 8


def differing_fields(scenarios: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the fields that not all scenarios share, in the first one's order."""
    names = dict.fromkeys(name for scenario in scenarios for name in scenario)
    return [name for name in names if any(scenario.get(name) != scenarios[0].get(name) for scenario in scenarios[1:])]


def compare(
    scenarios: Sequence[Mapping[str, Any]], evaluate: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Evaluate scenarios and lay them side by side.

    Parameters
    ----------
    scenarios : Sequence[Mapping]
        Two to eight.
    evaluate : Callable
        The evaluation, ``calc.evaluation.evaluate``.

    Returns
    -------
    dict
        ``fields`` that differ, and ``rows``: each scenario's values of them with its peak, parts, largest batch,
        seconds and samples per second; a scenario that cannot be answered has ``error`` instead.

    Raises
    ------
    ScenarioError
        If there are fewer than two or more than eight.
    """
    if not 2 <= len(scenarios) <= MOST_SCENARIOS:
        raise ScenarioError("scenarios", f"{len(scenarios)} given: compare 2 to {MOST_SCENARIOS}")
    rows: list[dict[str, Any]] = []
    names: list[dict[str, str]] = []
    filled: list[Mapping[str, Any] | None] = []
    for scenario in scenarios:
        try:
            result = evaluate(scenario)
        except ScenarioError as error:
            filled.append(None)
            names.append({})
            rows.append({"error": {"field": error.field, "message": error.message}})
            continue
        filled.append(result["scenario"])
        names.append({key: result[key]["name"] for key in ("model", "gpu")})
        rows.append(
            {
                "parameters": result["parameters"],
                "trainable_parameters": result["trainable_parameters"],
                "micro_batch": result["micro_batch"],
                "max_micro_batch": result["max_micro_batch"],
                "peak_allocated_bytes": result["memory"]["peak_allocated_bytes"],
                "peak_reserved_bytes": result["memory"]["peak_reserved_bytes"],
                "limit_bytes": result["memory"]["limit_bytes"],
                "components": {part["id"]: part["bytes"] for part in result["memory"]["components"]},
                "step_seconds": result["step_seconds"],
                "samples_per_second": result["samples_per_second"],
            }
        )
    # A scenario without an answer is not filled in: what it does not say is as in the first that has one.
    defaults: Mapping[str, Any] = next((answered for answered in filled if answered), {})
    shown = [answered or {**defaults, **given} for answered, given in zip(filled, scenarios, strict=True)]
    fields = differing_fields(shown)
    for row, scenario, named in zip(rows, shown, names, strict=True):
        # Models and cards by their names: they may be whole configurations.
        row["settings"] = {field: named.get(field, scenario.get(field)) for field in fields}
    return {"fields": fields, "rows": rows}
