"""The planner's answer: the best plan checked by the replay, the fronts, and the choice in words."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any

from calc import collectives, cost
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.multi_gpu import interconnect_of
from calc.planner.recipes import allowed_choices, recipe_of
from calc.planner.search import Candidates, Machine, Objective, best, layouts, pareto, search, within
from calc.scenario import parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calc.planner.search import Plan
    from calc.scenario import Scenario

# A front of more points is thinned for the figure.
_FRONT_POINTS = 40
# How often a best plan that the allocator's replay refuses is struck out before the planner gives up.
_CHECKS = 6


def price_of(scenario: Scenario, dollars_per_gpu_hour: float | None) -> cost.Price:
    """Take the user's price, else a list price, else count GPU-hours as dollars."""
    if dollars_per_gpu_hour is not None:
        return cost.Price(dollars_per_gpu_hour, "entered")
    return cost.default_price(scenario.gpu.id or "") or cost.Price(1.0, "no list price: these are GPU-hours")


def machine_of(scenario: Scenario, price: cost.Price) -> Machine:
    """Describe the scenario's GPUs for the search."""
    return Machine(
        gpus=scenario.gpus,
        gpus_per_node=-(-scenario.gpus // scenario.nodes),
        fabric=collectives.read_fabric(interconnect_of(scenario)),
        limit_bytes=scenario.gpu.limit_bytes,
        dollars_per_gpu_hour=price.dollars_per_gpu_hour,
    )


def candidates_of(
    scenario: Scenario, machine: Machine, global_batch: int, allow: Mapping[str, Sequence[str]] | None
) -> Candidates:
    """Score everything that the scenario allows."""
    config = scenario.model.config
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    shared = int(config.get("num_key_value_heads") or heads)
    layers = int(config.get("num_hidden_layers") or config.get("n_layer") or 1)
    experts = int(config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 1)
    ways = min(machine.gpus_per_node, scenario.gpus)
    tried = layouts(scenario.gpus, largest_tensor=ways, layers=layers, heads=gcd(heads, shared), experts=experts)
    largest_ways = max(layout.tensor * layout.pipeline for layout in tried)
    recipes = [
        recipe_of(scenario, settings, global_batch, largest_ways)
        for settings in allowed_choices(scenario, allow).combinations()
    ]
    return search(recipes, tried, machine, global_batch)


def scenario_of(scenario: Scenario, plan: Plan) -> dict[str, Any]:
    """Write a plan as the scenario that runs it."""
    layout = plan.layout
    filled = dict(scenario.filled) | dict(plan.settings)
    filled |= {"gpus": layout.gpus, "micro_batch": plan.micro_batch}
    filled["parallelism"] = {
        "strategy": layout.strategy.value,
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "expert": layout.expert,
        "sequence_parallel": layout.sequence_parallel,
        "cpu_offload": layout.cpu_offload.value,
    }
    filled["nodes"] = max(1, -(-layout.gpus // -(-scenario.gpus // scenario.nodes)))
    return filled


def checked_best(scenario: Scenario, found: Candidates, objective: Objective) -> tuple[Plan, int] | None:
    """Pick the best plan that the allocator's replay confirms, with what it reserves; refused ones are struck out."""
    feasible = found.feasible.copy()
    narrowed = replace(found, feasible=feasible)
    for _ in range(_CHECKS):
        plan = best(narrowed, objective)
        if plan is None:
            return None
        result = evaluate(scenario_of(scenario, plan))
        if plan.micro_batch <= result["max_micro_batch"]:
            return plan, result["memory"]["peak_reserved_bytes"]
        recipe = next(i for i, recipe in enumerate(found.recipes) if recipe.settings == plan.settings)
        layout = found.layouts.index(plan.layout)
        feasible[recipe, layout, found.micro_batches > result["max_micro_batch"]] = False
    return None


def in_words(scenario: Scenario, plan: Plan, objective: Objective, runner_up: Plan | None) -> str:
    """Explain a plan in a few sentences."""
    layout = plan.layout
    cards = "one GPU" if layout.gpus == 1 else f"{layout.gpus} GPUs"
    ways = [
        f"{degree}-way {name} parallel"
        for name, degree in (("tensor", layout.tensor), ("pipeline", layout.pipeline), ("expert", layout.expert))
        if degree > 1
    ]
    divided = {
        "ddp": "every GPU holds the whole model",
        "zero1": "the optimizer state is divided (ZeRO 1)",
        "zero2": "optimizer state and gradients are divided (ZeRO 2)",
        "zero3": "everything is divided (ZeRO 3)",
        "fsdp": "everything is divided (FSDP)",
    }
    how = f"{plan.micro_batch} samples at a time, {plan.accumulation_steps} times, on {cards}"
    if ways:
        how += ", " + ", ".join(ways)
    if layout.data > 1:
        how += f"; {divided[layout.strategy.value]}"
    changed = [f"{name} {value}" for name, value in plan.settings.items() if str(getattr(scenario, name)) != value]
    why = {"time": "the fastest", "cost": "the cheapest", "headroom": "the one with the most room"}[objective.value]
    text = f"Run {how}."
    if changed:
        text += f" Changed: {', '.join(changed)}."
    text += f" Of all that fit this is {why}, or as good to within 2 % and simpler."
    if runner_up is not None:
        text += (
            f" The fastest of another kind takes {runner_up.update_seconds / plan.update_seconds:.2f} times as long "
            f"an update."
        )
    return text


def _other_kind(found: Candidates, plan: Plan) -> Plan | None:
    """Find the fastest plan with another way of dividing the model."""
    kind = (plan.layout.tensor, plan.layout.pipeline, plan.layout.strategy)
    keep = [(layout.tensor, layout.pipeline, layout.strategy) != kind for layout in found.layouts]
    feasible = found.feasible.copy()
    feasible[:, [not other for other in keep]] = False
    return best(replace(found, feasible=feasible))


def _thinned(front: list[Plan]) -> list[dict[str, Any]]:
    step = max(1, -(-len(front) // _FRONT_POINTS))
    kept = front[::step]
    if front and kept[-1] is not front[-1]:
        kept.append(front[-1])
    return [plan.as_dict() for plan in kept]


def plan(
    given: Mapping[str, Any],
    *,
    allow: Mapping[str, Sequence[str]] | None = None,
    objective: str = "time",
    deadline_hours: float | None = None,
    budget_dollars: float | None = None,
    samples: float | None = None,
) -> dict[str, Any]:
    """Plan the run that makes the scenario's global batch.

    Parameters
    ----------
    given : Mapping
        The scenario; ``global_batch`` is what is to be reached, ``gpus`` what may be used.
    allow : Mapping, optional
        Lists of ``checkpointing``, ``precision``, ``optimizer``, ``attention`` and ``loss`` to choose from.
    objective : str
        ``time``, ``cost`` or ``headroom``. With a deadline the cheapest plan within it is wanted, with a budget the
        fastest, whatever this says.
    deadline_hours, budget_dollars : float, optional
        For the whole run; they need ``samples``.
    samples : float, optional
        Samples of the whole run.

    Returns
    -------
    dict
        ``best`` (None where nothing fits) with the ``reserved_bytes`` that the allocator's replay confirms, its
        ``scenario`` and ``text``; ``fronts`` of time against memory
        and against cost; ``candidates`` scored and ``feasible``.

    Raises
    ------
    ScenarioError
        The field that is wrong and what is allowed.
    """
    scenario = parse(given)
    if scenario.global_batch is None:
        raise ScenarioError("global_batch", "give the batch that is to be reached per optimizer step")
    if (deadline_hours or budget_dollars) and not samples:
        raise ScenarioError("dataset", "a deadline or a budget needs the length of the run: give data set and epochs")
    if objective not in {member.value for member in Objective}:
        raise ScenarioError("objective", f"{objective!r} is unknown: use one of {', '.join(Objective)}")
    price = price_of(scenario, given.get("price_per_gpu_hour"))
    machine = machine_of(scenario, price)
    found = candidates_of(scenario, machine, scenario.global_batch, allow)
    updates = cost.update_count(samples, scenario.global_batch) if samples else 1
    wanted = Objective(objective)
    if deadline_hours:
        wanted = Objective.COST
    elif budget_dollars:
        wanted = Objective.TIME
    met = within(
        found,
        deadline_hours * cost.SECONDS_PER_HOUR / updates if deadline_hours else None,
        budget_dollars / updates if budget_dollars else None,
    )
    confirmed = checked_best(scenario, met, wanted)
    chosen, reserved_bytes = confirmed or (None, None)
    return {
        "candidates": found.count,
        "feasible": int(met.feasible.sum()),
        "objective": wanted.value,
        "best": chosen.as_dict() | {"reserved_bytes": reserved_bytes} if chosen else None,
        "scenario": scenario_of(scenario, chosen) if chosen else None,
        "text": in_words(scenario, chosen, wanted, _other_kind(met, chosen))
        if chosen
        else "Nothing that may be chosen from makes this batch on these GPUs.",
        "fronts": {
            "headroom": _thinned(pareto(met, Objective.HEADROOM)),
            "cost": _thinned(pareto(met, Objective.COST)),
        },
        "dollars_per_gpu_hour": price.dollars_per_gpu_hour,
        "price_source": price.source,
    }
