"""The planner's answer: the best plan checked by the replay, the fronts, and the choice in words."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from calc import collectives, cost, explained_rows, outlook
from calc.accumulation import divisors
from calc.calibration import calibrated
from calc.convergence import tradeoff
from calc.errors import ScenarioError
from calc.evaluation import evaluate_parsed
from calc.goal import Goal, dollars_text, hours_text
from calc.model_dimensions import ModelDimensions
from calc.multi_gpu import host_bytes_per_second_of, interconnect_of
from calc.planner.recipes import choices_of, recipe_of
from calc.planner.search import (
    TIE_SHARES,
    Candidates,
    Machine,
    best,
    gpu_counts,
    layouts,
    least,
    nodes_for,
    pareto,
    search,
    within,
)
from calc.scenario import TEXT_TASKS, Objective, parse
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.planner.search import Plan
    from calc.scenario import Scenario

# A front of more points is thinned for the figure.
_FRONT_POINTS = 40
# How often a best plan that the allocator's replay refuses is struck out before the planner gives up.
_CHECKS = 8
# Where the batch is open, it is tried up to this many times the critical batch: there the steps are within a quarter of
# the fewest, and the data five times the least.
_BEYOND_CRITICAL = 4
_LARGEST_OPEN_BATCH = 2**24


def price_of(scenario: Scenario) -> cost.Price | None:
    """Take the user's price, else a list price; None where no list that was read has the card's.

    Raises
    ------
    ScenarioError
        If there is a budget and neither price.
    """
    own = scenario.filled.get("price_per_gpu_hour")
    if own is not None:
        return cost.Price(own, "entered")
    listed = cost.default_price(scenario.gpu.id or "")
    if listed is None and scenario.filled.get("budget_dollars") is not None:
        raise ScenarioError("price_per_gpu_hour", "a budget needs a price: no list that was read has this card's")
    return listed


def machine_of(scenario: Scenario, price: cost.Price | None) -> Machine:
    """Describe the scenario's GPUs for the search.

    Without a price an hour of a GPU counts as one, so that plans are ranked by their GPU-hours; the answer then names
    no dollars.
    """

    @cache
    def joined(gpus: int, nodes: int) -> collectives.Fabric:
        return collectives.read_fabric(interconnect_of(replace(scenario, gpus=gpus, nodes=nodes)))

    return Machine(
        gpus=scenario.gpus,
        gpus_per_node=-(-scenario.gpus // scenario.nodes),
        joined=joined,
        limit_bytes=scenario.gpu.limit_bytes,
        host_bytes_per_second=host_bytes_per_second_of(scenario),
        dollars_per_gpu_hour=price.dollars_per_gpu_hour if price else 1.0,
    )


def batches_of(scenario: Scenario, critical_batch: Mapping[str, Any] | None, own_batch: int) -> dict[int, float]:
    """List the global batches that will do, with the updates of the run at each; 1 where its length is not known.

    A batch that is not asked for is open: :func:`open_batches`, up to some times the critical batch, and the scenario's
    own. The run's length is then what a small batch would need, and a larger one needs ``1 + B / B_crit`` times as much
    to the same loss.

    Parameters
    ----------
    scenario : Scenario
        What was asked.
    critical_batch : Mapping or None
        The estimates of the critical batch.
    own_batch : int
        Samples that the scenario as it is set takes at once.

    Raises
    ------
    ScenarioError
        If neither a batch nor a length is given, or no critical batch is known for an open one.
    """
    samples, wanted = outlook.run_samples(scenario), scenario.global_batch
    if wanted is not None:
        return {wanted: cost.update_count(samples, wanted) if samples else 1}
    if samples is None:
        raise ScenarioError("global_batch", "give the batch of an optimizer step, or the run's length to leave it open")
    if critical_batch is None:
        raise ScenarioError(
            "global_batch", "no critical batch is known for this run: give the batch, or gradient norms"
        )
    critical = critical_samples(scenario, critical_batch)
    # A batch that no field takes is none to plan with.
    own = {own_batch} if own_batch <= _LARGEST_OPEN_BATCH else set()
    return {
        batch: cost.update_count(samples * tradeoff.examples_factor(batch, critical), batch)
        for batch in sorted(own.union(open_batches(scenario.gpus, critical)))
    }


def odd_factor(number: int) -> int:
    """What is left of a number when it is halved as often as it can be."""
    return number // (number & -number)


def open_batches(gpus: int, critical: float) -> list[int]:
    """List the batches to try where none is asked for: powers of two, and the same times the GPUs' odd factor.

    Without that factor all the GPUs together never make a batch exactly.
    """
    largest = int(max(1, min(_BEYOND_CRITICAL * critical, _LARGEST_OPEN_BATCH)))
    factors = (1, odd_factor(gpus))
    return sorted({factor << place for factor in factors for place in range((largest // factor).bit_length())})


def critical_samples(scenario: Scenario, critical_batch: Mapping[str, Any]) -> float:
    """Take the middle, by ratio, of the critical batch's estimates, in samples."""
    scale = (outlook.tokens_per_sample(scenario) or 1) if critical_batch["unit"] == "tokens" else 1
    return math.sqrt(critical_batch["low"] * critical_batch["high"]) / scale


def candidates_of(scenario: Scenario, machine: Machine, updates: Mapping[int, float]) -> Candidates:
    """Score everything that the scenario allows."""
    model = ModelDimensions.of(scenario)
    stacked = model.heads > 0
    tried = layouts(
        gpu_counts(machine.gpus, machine.gpus_per_node, updates),
        largest_tensor=min(machine.gpus_per_node, scenario.gpus),
        layers=model.layers if stacked else 1,
        heads=model.key_value_heads if stacked else 1,
        experts=model.experts,
        sequence_length=scenario.shape.sequence_length if scenario.model.task in TEXT_TASKS else 0,
    )
    largest_ways = max(layout.tensor * layout.pipeline * layout.context for layout in tried)
    micro_batches = sorted({part for batch in updates for part in divisors(batch)})
    replicas = {layout.data for layout in tried}
    single = sorted({batch // count for batch, count in product(updates, replicas) if batch % count == 0})
    recipes = [recipe_of(scenario, settings, micro_batches, single, largest_ways) for settings in choices_of(scenario)]
    return search(recipes, tried, machine, updates)


def scenario_of(scenario: Scenario, plan: Plan) -> dict[str, Any]:
    """Write a plan as the scenario that runs it."""
    layout = plan.layout
    filled = dict(scenario.filled) | dict(plan.settings)
    filled |= {"gpus": layout.gpus, "global_batch": plan.global_batch, "micro_batch": plan.micro_batch}
    filled["parallelism"] = {
        "strategy": layout.strategy.value,
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "expert": layout.expert,
        "sequence_parallel": layout.sequence_parallel,
        "cpu_offload": layout.cpu_offload.value,
    }
    filled["nodes"] = nodes_for(layout.gpus, -(-scenario.gpus // scenario.nodes))
    return filled


def parsed_plan(scenario: Scenario, plan: Plan) -> Scenario:
    """The plan's scenario as the search saw it: corrected by the readings of the scenario that they were read on."""
    return replace(
        parse(scenario_of(scenario, plan)),
        gpu=scenario.gpu,
        activation_share=scenario.activation_share,
        calibration=(),
    )


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A plan that the allocator's replay confirms, what that reserves, and the candidates that it does not refuse."""

    plan: Plan
    reserved_bytes: int
    among: Candidates


def checked_best(scenario: Scenario, found: Candidates, objective: Objective) -> Confirmed | None:
    """Pick the best plan that the allocator's replay confirms.

    Where one is refused, whatever takes as much memory under the same recipe is struck out with it.
    """
    feasible = found.feasible.copy()
    narrowed = replace(found, feasible=feasible)
    for _ in range(_CHECKS):
        plan = best(narrowed, objective)
        if plan is None:
            return None
        result = evaluate_parsed(parsed_plan(scenario, plan))
        if plan.micro_batch <= result["max_micro_batch"]:
            return Confirmed(plan, result["memory"]["peak_reserved_bytes"], narrowed)
        recipe = next(i for i, recipe in enumerate(found.recipes) if recipe.settings == plan.settings)
        feasible[recipe] &= found.memory_bytes[recipe] < plan.memory_bytes
    return None


DIVIDED = {
    "ddp": "every GPU holds the whole model",
    "zero1": "the optimizer state is divided (ZeRO 1)",
    "zero2": "optimizer state and gradients are divided (ZeRO 2)",
    "zero3": "everything is divided (ZeRO 3)",
    "fsdp": "everything is divided (FSDP)",
}
ON_HOST = {
    "optimizer": "the optimizer state waits in the host's memory",
    "all": "weights and optimizer state wait in the host's memory",
}
SUPERLATIVES = {Objective.TIME: "fastest", Objective.COST: "cheapest", Objective.HEADROOM: "roomiest"}


def how(scenario: Scenario, plan: Plan) -> str:
    """Say what a plan runs."""
    layout = plan.layout
    cards = "one GPU" if layout.gpus == 1 else f"{layout.gpus:,} GPUs"
    degrees = {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "expert": layout.expert,
    }
    ways = [f"{degree}-way {name} parallel" for name, degree in degrees.items() if degree > 1]
    times = "once" if plan.accumulation_steps == 1 else f"{plan.accumulation_steps:,} times"
    said = f"{counted(plan.micro_batch, 'sample')} at a time, {times}, on {', '.join([cards, *ways])}"
    if layout.data > 1:
        said += f"; {DIVIDED[layout.strategy.value]}"
    if layout.cpu_offload.value in ON_HOST:
        said += f"; {ON_HOST[layout.cpu_offload.value]}"
    changed = [f"{name} {value}" for name, value in plan.settings.items() if str(getattr(scenario, name)) != value]
    if scenario.global_batch is None:
        said = f"a batch of {plan.global_batch:,}, {said}"
    return said + (f". Changed: {', '.join(changed)}" if changed else "")


def _comes_to(plan: Plan, *, data_times: float | None, priced: bool) -> str:
    """Say what the whole run takes; where the batch was open, that it is to one loss and so needs more data."""
    hours = _run_gpu_hours(plan)
    gpu_hours = counted(hours, "GPU-hour", said=f"{hours:.3g}" if hours < 100 else f"{hours:,.0f}")
    price = f" and costs {dollars_text(plan.run_dollars)}" if priced else f", {gpu_hours}"
    to_loss = ""
    if data_times is not None:
        to_loss = f" to the same loss as a small batch would reach ({data_times:.2f} times the data)"
    return f" The run takes {hours_text(plan.run_seconds)}{to_loss}{price}."


def _run_gpu_hours(plan: Plan) -> float:
    return cost.gpu_hours(plan.run_seconds, plan.layout.gpus)


def in_words(
    scenario: Scenario,
    plan: Plan,
    objective: Objective,
    *,
    goal: Goal,
    priced: bool,
    critical: float | None,
) -> str:
    """Explain a plan in a few sentences, beginning with whether it keeps to the goal.

    Parameters
    ----------
    scenario : Scenario
        What was asked.
    plan : Plan
        The best, or the nearest where none keeps to the goal.
    objective : Objective
        What it is best at.
    goal : Goal
        What the run is to keep to.
    priced : bool
        Whether the card has a price.
    critical : float or None
        The critical batch in samples that an open batch's data were counted by; None where the batch was asked for.
    """
    superlative, what = SUPERLATIVES[objective], how(scenario, plan)
    dollars = plan.run_dollars if priced else None
    limits = [
        name
        for name, limit in (("deadline", goal.deadline_seconds), ("budget", goal.budget_dollars))
        if limit is not None
    ]
    kept = f"{'meets' if limits[:1] == ['deadline'] else 'keeps to'} the {' and the '.join(limits)}"
    if goal and goal.met(plan.run_seconds, dollars):
        text = f"The {superlative} plan that {kept}: {what}."
    elif goal:
        judged = goal.judged(plan.run_seconds, dollars)
        # The run as it is set may keep to it: that counts the data as given, whatever the batch.
        needed = "" if critical is None else " with the data that its batch needs to the same loss"
        text = f"No plan on these GPUs {kept}{needed}. The {superlative} {judged}: {what}."
    else:
        text = f"Run {what}."
    if outlook.run_samples(scenario) is None:
        return text
    data_times = None if critical is None else tradeoff.examples_factor(plan.global_batch, critical)
    return text + _comes_to(plan, data_times=data_times, priced=priced)


def why(plan: Plan, objective: Objective, runner_up: Plan | None, *, goal_met: bool | None, priced: bool) -> str:
    """Say what a plan was chosen from, and how far the best of another kind is from it."""
    superlative, verb = SUPERLATIVES[objective], "do" if goal_met else "fit"
    margin = f"{100 * TIE_SHARES[objective]:.0f} %"
    text = f"Of all that {verb} this is the {superlative}, or as good to within {margin} and simpler."
    if runner_up is not None:
        costs = "costs {:.2f} times as much" if priced else "takes {:.2f} times the GPU-hours"
        of_both = {
            Objective.TIME: (runner_up.run_seconds, plan.run_seconds, "takes {:.2f} times as long"),
            Objective.COST: (runner_up.run_dollars, plan.run_dollars, costs),
            Objective.HEADROOM: (runner_up.memory_bytes, plan.memory_bytes, "takes {:.2f} times the memory"),
        }
        other, own, ratio = of_both[objective]
        tied = other < own
        if tied:
            text = f"Of all that {verb} and are within {margin} of the {superlative} this is the simplest."
        if own:
            text += f" The {superlative} of another kind {ratio.format(other / own)}"
            text += ", and is no simpler." if tied else "."
    if objective is Objective.COST and not priced:
        text += f" The {superlative} takes the fewest GPU-hours: no list that was read has this card's price."
    return text


def _other_kind(found: Candidates, plan: Plan, objective: Objective) -> Plan | None:
    """Find the best plan with another way of dividing the model."""
    kind = (plan.layout.tensor, plan.layout.pipeline, plan.layout.context, plan.layout.strategy)
    keep = [(layout.tensor, layout.pipeline, layout.context, layout.strategy) != kind for layout in found.layouts]
    feasible = found.feasible.copy()
    feasible[:, [not other for other in keep]] = False
    return least(replace(found, feasible=feasible), objective)


def _thinned(front: list[Plan]) -> list[Plan]:
    step = max(1, -(-len(front) // _FRONT_POINTS))
    kept = front[::step]
    if front and kept[-1] is not front[-1]:
        kept.append(front[-1])
    return kept


def _nearest(scenario: Scenario, found: Candidates, goal: Goal) -> tuple[Confirmed, Objective] | None:
    """Where no plan keeps to the goal: the fastest that keeps to the budget, else the cheapest; the fastest of all."""
    relaxed = [(within(found, None, goal.budget_dollars), Objective.TIME)] if goal.deadline_seconds else []
    for candidates, objective in [*relaxed, (found, Objective.COST)]:
        confirmed = checked_best(scenario, candidates, objective)
        if confirmed:
            return confirmed, objective
    return None


def plan(given: Mapping[str, Any]) -> dict[str, Any]:
    """Plan the run that makes the scenario's global batch, or keeps to its deadline or budget.

    Parameters
    ----------
    given : Mapping
        The scenario; ``gpus`` are what may be used, ``global_batch`` is what is to be reached, or open. ``allow`` lists
        values of ``checkpointing``, ``precision``, ``optimizer``, ``attention`` and ``loss`` to choose from.
        ``deadline_hours`` and ``budget_dollars`` are for the whole run and need its length. ``objective`` is ``time``,
        ``cost`` or ``headroom``: by default cost within a deadline, else time.

    Returns
    -------
    dict
        ``best`` (None where nothing fits) with the ``reserved_bytes`` that the allocator's replay confirms, its
        ``scenario``, ``text`` and ``notes``; ``goal_met`` (None without a goal); ``fronts`` of time against memory and
        against cost, of the plans that keep to the goal, or of all where none does; ``candidates`` scored and
        ``feasible``. The rows of the front against memory, and the counts, have ``explanations`` of their numbers.

    Raises
    ------
    ScenarioError
        The field that is wrong and what is allowed.
    """
    return json.loads(_planned(json.dumps(dict(parse(given).filled))))  # type: ignore[no-any-return]


@lru_cache(maxsize=8)
def _planned(given: str) -> str:
    """Plan once for the words and the figures of a scenario: text in, text out, so that none can change another's."""
    asked = parse(json.loads(given))
    goal = Goal.of(asked.filled)
    if goal and outlook.run_samples(asked) is None:
        field = "tokens" if outlook.tokens_per_sample(asked) else "epochs"
        raise ScenarioError(
            field, "a deadline or a budget needs the run's length: give tokens, or a data set and epochs"
        )
    price = price_of(asked)
    priced = price is not None
    own = evaluate_parsed(asked)
    scenario, _ = calibrated(asked)
    own_batch = own["micro_batch"] * scenario.layout.data
    updates = batches_of(scenario, own["convergence"]["critical_batch"], own_batch)
    found = candidates_of(scenario, machine_of(scenario, price), updates)
    critical = None
    if scenario.global_batch is None:
        critical = critical_samples(scenario, own["convergence"]["critical_batch"])
    met = within(found, goal.deadline_seconds, goal.budget_dollars)
    objective = Objective(asked.filled.get("objective") or ("cost" if goal.deadline_seconds else "time"))
    confirmed = checked_best(scenario, met, objective)
    goal_met = bool(confirmed) if goal else None
    if confirmed is None and goal:
        met, nearest = found, _nearest(scenario, found, goal)
        confirmed, objective = nearest or (None, objective)
    whole_run = outlook.run_samples(scenario) is not None

    def as_dict(plan: Plan) -> dict[str, Any]:
        hours = cost.gpu_hours(plan.update_seconds, plan.layout.gpus)
        return plan.as_dict() | {
            "dollars_per_update": plan.dollars_per_update if priced else None,
            "gpu_hours_per_update": hours,
            "run_seconds": plan.run_seconds if whole_run else None,
            "run_dollars": plan.run_dollars if whole_run and priced else None,
            "run_gpu_hours": _run_gpu_hours(plan) if whole_run else None,
        }

    def explained(plan: Plan) -> dict[str, Any]:
        parts = found.step_parts(plan)
        return as_dict(plan) | {
            "explanations": explained_rows.plan(plan, parts, found.machine, price, whole_run=whole_run)
        }

    said, notes = [], []
    if goal and own["run"]:
        said.append(own["run"]["goal"] if own["fits"] else "As it is set, the scenario does not fit.")
    if confirmed is None:
        said.append("Nothing that may be chosen from makes this batch on these GPUs.")
    else:
        chosen = confirmed.plan
        said.append(in_words(scenario, chosen, objective, goal=goal, priced=priced, critical=critical))
        other = _other_kind(confirmed.among, chosen, objective)
        notes.append(why(chosen, objective, other, goal_met=goal_met, priced=priced))
    if critical is not None:
        odd = odd_factor(scenario.gpus)
        powers = "powers of two" if odd == 1 else f"powers of two and {odd:,} times such"
        own_too = f", and the scenario's own {own_batch:,}," if own_batch in updates else ""
        notes.append(
            f"The batch was open: {powers} up to {max(open_batches(scenario.gpus, critical)):,}{own_too} were tried, "
            f"and the data to one loss counted as 1 + batch / {critical:,.0f} times the least, {critical:,.0f} samples "
            "being the middle of the estimates of the critical batch."
        )
    feasible = int(met.feasible.sum())
    return json.dumps(
        {
            "candidates": found.count,
            "feasible": feasible,
            "explanations": explained_rows.tried(found, feasible, within_goal=bool(goal_met)),
            "objective": objective.value,
            "goal_met": goal_met,
            "best": as_dict(confirmed.plan) | {"reserved_bytes": confirmed.reserved_bytes} if confirmed else None,
            "scenario": scenario_of(asked, confirmed.plan) if confirmed else None,
            "text": " ".join(said),
            "notes": notes,
            "fronts": {
                "headroom": [explained(plan) for plan in _thinned(pareto(met, Objective.HEADROOM))],
                "cost": [as_dict(plan) for plan in _thinned(pareto(met, Objective.COST))],
            },
            "dollars_per_gpu_hour": price.dollars_per_gpu_hour if price else None,
            "price_source": price.source if price else None,
        }
    )
