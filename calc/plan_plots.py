"""The plan's figures: trade-off of the batch, published quality, speed-up and memory on many GPUs, fronts of plans."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from calc import convergence, planner
from calc.catalog import published
from calc.comparison import compare
from calc.convergence import tradeoff
from calc.evaluation import evaluate
from calc.goal import SECONDS_PER_HOUR
from calc.planner.search import TIE_SHARES
from calc.plots import GIB, PARTS, THEME, Kind, Words, plain
from calc.scenario import Objective
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

LOST_COLOURS: Final = {
    "optimizer_seconds": ("Optimizer step", THEME["part-optimizer-state"]),
    "exposed_communication_seconds": ("Exchange that shows", THEME["part-activations"]),
    "bubble_seconds": ("Pipeline bubble", THEME["part-temporaries"]),
    "offload_seconds": ("Host memory and processor", THEME["part-casts"]),
    "unmodelled_seconds": ("Stragglers, input, clocks", THEME["part-allocator-rest"]),
}
STRATEGY_LABELS: Final = {"ddp": "DDP", "zero1": "ZeRO 1", "zero2": "ZeRO 2", "zero3": "ZeRO 3", "fsdp": "FSDP"}
# Of the smallest text in these figures, so that long titles break instead of leaving a narrow one.
LEGEND_LETTERS_PER_INCH: Final = 12
SERIES_MARKERS: Final = "osD^vP*X<>"
PART_HATCHES: Final = dict(zip(PARTS, ("", "//", "\\\\", "..", "xx", "--", "||", "++", "oo", "**"), strict=True))
LEGEND_OF_FOUR_INCHES: Final = 4.5
SHORT_SPAN: Final = 20
SCENARIO_LETTERS: Final = "ABCDEFGH"


def _short(value: float, _position: object = None) -> str:
    """Write a number with its size named: 2k, 1.5M, 3B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _span(low: float, high: float) -> str:
    """Write two ends, or one number where they read the same."""
    ends = (f"{low:.3g}", f"{high:.3g}")
    return " to ".join(dict.fromkeys(ends))


def _plain_log(axes: Axes, *, x: bool = True, y: bool = False) -> None:
    """Scale axes of what is drawn by logarithm, with plain numbers beside the ticks."""
    for wanted, axis, scale, limits in (
        (x, axes.xaxis, axes.set_xscale, axes.get_xlim),
        (y, axes.yaxis, axes.set_yscale, axes.get_ylim),
    ):
        if wanted:
            scale("log")
            low, high = limits()
            axis.set_major_formatter(FuncFormatter(_short))
            # Each tick is an object that takes its time: two between the named ones, not eight.
            axis.set_minor_locator(LogLocator(subs=(2, 5)))
            # Where a single power of ten may be in view, the others have their numbers too.
            axis.set_minor_formatter(FuncFormatter(_short) if high / low < SHORT_SPAN else NullFormatter())


def _measured_steps(batch_tokens: float) -> tuple[str, Sequence[float], list[float]]:
    """Pick the published steps-to-target run whose critical batch is closest, as multiples of its fewest steps."""
    fits = [(run, tradeoff.fit_tradeoff(run["batch_tokens"], run["steps"])) for run in published.steps_to_target()]
    run, fit = min(fits, key=lambda pair: abs(pair[1].critical_batch - batch_tokens))
    return run["model"], run["batch_tokens"], [steps / fit.fewest_steps for steps in run["steps"]]


def known_tradeoff(scenario: Mapping[str, Any]) -> dict[str, list[float]] | None:
    """Steps and data against batch for the scenario; None where no critical batch is known for it."""
    return convergence.tradeoff_curve(evaluate(scenario)["convergence"])


def draw_tradeoff(axes: Axes, result: Mapping[str, Any], curve: Mapping[str, Any]) -> Words:
    """Draw steps and data against batch, the critical batch as a band, measured points and the scenario's batch."""
    assessment = result["convergence"]
    band = assessment["critical_batch"]
    sides = (
        ("steps", "Steps, of the fewest", THEME["accent"], "solid"),
        ("examples", "Data, of the least", THEME["part-gradients"], (0, (4, 2))),
    )
    for name, label, colour, dashes in sides:
        low, high = curve[f"{name}_factor_low"], curve[f"{name}_factor_high"]
        axes.fill_between(curve["batch"], low, high, color=colour, alpha=0.3, linewidth=0)
        middle = [(a * b) ** 0.5 for a, b in zip(low, high, strict=True)]
        axes.plot(curve["batch"], middle, color=colour, linestyle=dashes, label=label)
    if band["unit"] == "tokens":
        model, batches, steps = _measured_steps(band["low"])
        axes.plot(
            batches, steps, "o", color=THEME["ink"], markersize=3.5, label=f"Steps measured at {model} (Zhang 2024)"
        )
    axes.axvspan(band["low"], max(band["high"], band["low"] * 1.02), color=THEME["muted"], alpha=0.2, linewidth=0)
    axes.axvline(band["batch"], color=THEME["over"], linewidth=1.4, dashes=(6, 3), label="Your batch")
    _plain_log(axes, y=True)
    axes.set_xlim(curve["batch"][0], curve["batch"][-1])
    axes.set_ylim(0.9, 400)
    axes.set_xlabel(f"Batch ({band['unit']}); shaded: critical")
    axes.set_ylabel("Times the least possible")
    axes.legend(
        loc="upper right", fontsize="x-small", frameon=True, framealpha=0.85, facecolor=THEME["card"], edgecolor="none"
    )
    columns = ("Batch", "Steps, low", "Steps, high", "Data, low", "Data, high")
    keys = ("steps_factor_low", "steps_factor_high", "examples_factor_low", "examples_factor_high")
    rows = [
        (_short(batch), *(f"{curve[key][index]:.2f}" for key in keys)) for index, batch in enumerate(curve["batch"])
    ]
    fewest, least = (_span(*assessment["tradeoff"][key]) for key in ("steps_factor", "examples_factor"))
    text = (
        f"A larger batch takes fewer steps and more data to the same loss. Your batch takes {fewest} times the fewest "
        f"steps and {least} times the least data; at the critical batch both are 2. Bands span the estimates."
    )
    return Words("Steps and data against batch", text, columns, rows[::4])


def close_studies(scenario: Mapping[str, Any]) -> dict[str, Any] | None:
    """Find the published series closest to the scenario; None where no study is close."""
    wanted = evaluate(scenario)["convergence"]["generalization"]
    return {"series": [series for series in published.generalization() if series["id"] in wanted]} if wanted else None


def draw_quality(axes: Axes, _result: Mapping[str, Any], data: Mapping[str, Any]) -> Words:
    """Draw published final quality against batch for the studies closest to the scenario: points, joined by study."""
    near = data["series"]
    metrics = [series["metric"] for series in near]
    common = max(set(metrics), key=metrics.count)
    shown = [series for series in near if series["metric"] == common]
    colours = (THEME["accent"], THEME["part-gradients"], THEME["part-logits-and-loss"], THEME["ink"])
    rows = []
    for index, series in enumerate(shown):
        batches = [point["batch"] for point in series["points"]]
        values = [point["value"] for point in series["points"]]
        axes.plot(
            batches,
            values,
            SERIES_MARKERS[index % len(SERIES_MARKERS)],
            linestyle="dotted",
            linewidth=1,
            markersize=4.5,
            color=colours[index % len(colours)],
            label=textwrap.fill(
                series["title"], int(LEGEND_LETTERS_PER_INCH * axes.figure.bbox.width / axes.figure.dpi)
            ),
        )
        rows += [
            (series["title"], batch, value, series["retuned"], series["source"])
            for batch, value in zip(batches, values, strict=True)
        ]
    columns = ("Study", "Batch", common, "What was tuned again", "Source")
    _plain_log(axes)
    axes.set_xlabel("Batch (samples)")
    axes.set_ylabel(common[:1].upper() + common[1:])
    axes.figure.legend(loc="upper left", fontsize="x-small")
    text = (
        f"{len(shown)} published series as measured, {common}; {shown[0]['better']} is better. Dotted lines only join "
        "the points of one study. Most of the gap goes when the rate and the number of updates are tuned again."
    )
    return Words("Published quality against batch", text, columns, rows)


def draw_speed_up(axes: Axes, result: Mapping[str, Any], _data: Mapping[str, Any]) -> Words:
    """Draw the share of the ideal speed-up that is reached against GPUs, and what takes the rest."""
    scaling = result["scaling"]
    rows = scaling["by_gpus"]
    gpus = [row["gpus"] for row in rows]
    reached = [100 * row["speed_up"] / row["gpus"] for row in rows]
    bottom = max(0.0, 10 * (min(reached) // 10) - 10)
    # Pale, since it is most of the figure and is written on.
    axes.fill_between(gpus, bottom, reached, color=THEME["accent"], alpha=0.2, linewidth=0, label="Reached")
    floor = reached
    others = [sum(row["parts"].values()) - row["parts"]["compute_seconds"] or 1.0 for row in rows]
    for key, (label, colour) in LOST_COLOURS.items():
        shares = [row["parts"][key] / other for row, other in zip(rows, others, strict=True)]
        if max(shares) < 0.01:
            continue
        tops = [base + max(0.0, 100 - value) * share for base, value, share in zip(floor, reached, shares, strict=True)]
        axes.fill_between(gpus, floor, tops, color=colour, alpha=0.75, linewidth=0, label=label)
        floor = tops
    axes.axvline(scaling["gpus"], color=THEME["over"], linewidth=1.4, dashes=(6, 3), label="Your GPUs")
    for count, value, row in zip(gpus, reached, rows, strict=True):
        axes.annotate(
            f"{row['speed_up']:.3g}x",
            (count, value),
            (0, -12),
            textcoords="offset points",
            ha="center",
            fontsize="x-small",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [f"{count:,}" for count in gpus])
    axes.set_xlim(gpus[0], gpus[-1])
    axes.set_ylim(bottom, max(102.0, 1.04 * max(reached)))
    axes.set_xlabel("GPUs, each with the same work")
    axes.set_ylabel("% of the ideal speed-up")
    axes.figure.legend(loc="upper center", ncols=2, fontsize="x-small")
    low, high = scaling["efficiency_low"], scaling["efficiency_high"]
    cards = counted(scaling["gpus"], "GPU") + (" does" if scaling["gpus"] == 1 else " do")
    text = (
        f"{cards} {scaling['speed_up']:.1f} times the work of one, {scaling['efficiency']:.0%} of ideal "
        f"({low:.0%} to {high:.0%}). Written in: how many times the work of one."
    )
    columns = ("GPUs", "Nodes", "Times one GPU", "Seconds an update", "Exchange that shows, s")
    table = [
        (
            row["gpus"],
            row["nodes"],
            f"{row['speed_up']:.2f}",
            f"{row['step_seconds']:.4g}",
            f"{row['parts']['exposed_communication_seconds']:.3g}",
        )
        for row in rows
    ]
    return Words("Speed-up against GPUs", text, columns, table)


def draw_strategies(axes: Axes, result: Mapping[str, Any], _data: Mapping[str, Any]) -> Words:
    """Draw memory per GPU against how the replicas divide it."""
    rows = result["scaling"]["by_strategy"]
    limit = result["memory"]["limit_bytes"]
    labels = [STRATEGY_LABELS[row["strategy"]] for row in rows]
    sizes = [row["memory_bytes"] / GIB for row in rows]
    bars = axes.barh(
        range(len(rows)), sizes, color=[THEME["accent"] if row["fits"] else THEME["over"] for row in rows], height=0.6
    )
    for bar, row in zip(bars, rows, strict=True):
        if not row["fits"]:
            bar.set_hatch("///")
            bar.set_edgecolor(THEME["card"])
    axes.bar_label(bars, [f"{size:.1f}" for size in sizes], padding=4, fontsize="small")
    axes.axvline(limit / GIB, color=THEME["over"], linewidth=1.4, dashes=(6, 3))
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(*sizes, limit / GIB))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"GiB on each GPU at micro-batch {result['time']['micro_batch']}")
    fitting = [label for label, row in zip(labels, rows, strict=True) if row["fits"]]
    text = f"Fits with {', '.join(fitting)}." if fitting else "Fits with none of them."
    text += f" The line is what a card leaves to tensors, {limit / GIB:.1f} GiB."
    columns = ("Strategy", "GiB on each GPU", "Fits", "Seconds an update")
    table = [
        (label, f"{size:.2f}", "yes" if row["fits"] else "no", f"{row['step_seconds']:.4g}")
        for label, size, row in zip(labels, sizes, rows, strict=True)
    ]
    return Words("Memory on each GPU by strategy", text, columns, table)


def draw_headroom(axes: Axes, result: Mapping[str, Any], _data: Mapping[str, Any]) -> Words:
    """Draw the planner's front of time against memory left."""
    return draw_front(axes, planner.plan(result["scenario"]), "headroom")


def draw_cost(axes: Axes, result: Mapping[str, Any], _data: Mapping[str, Any]) -> Words:
    """Draw the planner's front of time against cost."""
    return draw_front(axes, planner.plan(result["scenario"]), "cost")


def draw_front(axes: Axes, answer: Mapping[str, Any], against: str) -> Words:
    """Draw the plans that no other beats, time against ``headroom`` or ``cost``, with the chosen one.

    Parameters
    ----------
    axes : Axes
        What to draw on.
    answer : Mapping
        The planner's.
    against : str
        Which front.
    """
    front = answer["fronts"][against]
    best = answer["best"]
    whole = bool(best) and best["run_seconds"] is not None
    time_key, time_scale, time_label = (
        ("run_seconds", SECONDS_PER_HOUR, "Hours of the run") if whole else ("update_seconds", 1, "Seconds an update")
    )
    priced = answer["price_source"] is not None
    unit, field, saves = (
        ("Dollars", "dollars", "costs less") if priced else ("GPU-hours", "gpu_hours", "takes fewer GPU-hours")
    )
    cost = (
        (f"run_{field}", f"{unit} of the run", 1)
        if whole
        else (f"{field}_per_update", f"{unit} for 1,000 updates", 1e-3)
    )
    key, label, scale, said = {
        "headroom": ("headroom_bytes", "GiB left on each GPU", GIB, "has more memory left"),
        "cost": (*cost, saves),
    }[against]
    times = [plan[time_key] / time_scale for plan in front]
    others = [plan[key] / scale for plan in front]
    axes.plot(times, others, color=THEME["accent"], marker="o", markersize=4, drawstyle="steps-post")
    if best:
        axes.plot(
            best[time_key] / time_scale, best[key] / scale, "*", color=THEME["over"], markersize=13, label="Chosen"
        )
        axes.legend(loc="best", fontsize="small")
    axes.set_xlabel(time_label)
    axes.set_ylabel(label)
    columns = (time_label, label, "GPUs", "Strategy", "Micro-batch", "Passes", "Checkpointing")
    rows = [
        (
            f"{taken:.4g}",
            plain(other),
            plan["layout"]["data"] * plan["layout"]["tensor"] * plan["layout"]["pipeline"] * plan["layout"]["context"],
            STRATEGY_LABELS[plan["layout"]["strategy"]],
            plan["micro_batch"],
            plan["accumulation_steps"],
            plan["settings"]["checkpointing"],
        )
        for plan, taken, other in zip(front, times, others, strict=True)
    ]
    time_said = time_label[:1].lower() + time_label[1:]
    if len(front) > 1:
        text = (
            f"{len(front)} of the plans that nothing beats: whatever {said} takes longer. From {plain(min(times))} to "
            f"{plain(max(times))} {time_said}; {label} from {plain(min(others))} to {plain(max(others))}."
        )
    elif front:
        text = (
            f"No plan is faster than one, and none {said}: {plain(times[0])} {time_said}; {plain(others[0])} {label}."
        )
        if best and best[time_key] / time_scale != times[0]:
            margin = TIE_SHARES[Objective(answer["objective"])]
            text += f" The chosen one is as good to within {100 * margin:.0f} % and simpler."
    else:
        text = "Nothing fits."
    title = "GPU-hours" if against == "cost" and not priced else against
    return Words(f"Plans: time against {title}", text, columns, rows)


def side_by_side(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Compare ``given["scenarios"]``; there is nothing to draw where one of them has no answer."""
    found = compare(given.get("scenarios") or [], evaluate)
    return {**found, "answered": not any("error" in row for row in found["rows"])}


def draw_comparison(axes: Axes, found: Mapping[str, Any], _data: Mapping[str, Any]) -> Words:
    """Draw each scenario's memory part by part beside its card's limit, with its largest batch and its speed."""
    rows = found["rows"]
    names = SCENARIO_LETTERS[: len(rows)]
    lefts = [0.0] * len(rows)
    for family in PARTS:
        sizes = [
            sum(size for part, size in row["components"].items() if part.partition(".")[0] == family) / GIB
            for row in rows
        ]
        if not any(sizes):
            continue
        axes.barh(
            range(len(rows)),
            sizes,
            left=lefts,
            height=0.5,
            color=THEME[f"part-{family.replace('_', '-')}"],
            edgecolor=THEME["ink"],
            linewidth=0.6,
            hatch=PART_HATCHES[family],
            label=family.replace("_", " ").capitalize(),
        )
        lefts = [left + size for left, size in zip(lefts, sizes, strict=True)]
    table = []
    for place, (name, row) in enumerate(zip(names, rows, strict=True)):
        axes.vlines(row["limit_bytes"] / GIB, place - 0.38, place + 0.38, color=THEME["over"], linewidth=2)
        rate = row["samples_per_second"]
        speed = f", {rate:,.3g} samples a second" if rate else ""
        said = f"micro-batch {row['micro_batch']:,} of at most {row['max_micro_batch']:,}{speed}"
        axes.annotate(
            said,
            (0, place - 0.28),
            (2, 3),
            textcoords="offset points",
            va="bottom",
            fontsize="small",
            bbox={"facecolor": THEME["card"], "edgecolor": "none", "pad": 0.5},
        )
        table.append(
            (
                name,
                f"{row['micro_batch']:,}",
                f"{row['max_micro_batch']:,}",
                f"{row['peak_allocated_bytes'] / GIB:,.2f}",
                f"{row['limit_bytes'] / GIB:,.2f}",
                f"{rate:,.4g}" if rate else "not known",
            )
        )
    axes.set_yticks(range(len(rows)), list(names))
    axes.set_ylim(len(rows) - 0.5, -0.75)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("GiB at the peak; the upright line is what the card leaves to tensors")
    wide = axes.figure.bbox.width / axes.figure.dpi >= LEGEND_OF_FOUR_INCHES
    axes.figure.legend(loc="upper center", ncols=4 if wide else 2, fontsize="x-small")
    text = " ".join(
        f"{row[0]} takes {row[3]} of {row[4]} GiB at micro-batch {row[1]}; {row[2]} would fit." for row in table
    )
    columns = ("Scenario", "Micro-batch", "Largest that fits", "GiB at the peak", "Usable, GiB", "Samples a second")
    return Words("Scenarios side by side", text, columns, table)


PLAN_FIGURES: Final = {
    "tradeoff": Kind(draw_tradeoff, 320, "convergence", known_tradeoff),
    "quality": Kind(draw_quality, 320, "convergence", close_studies),
    "speed-up": Kind(draw_speed_up, 320, "scaling"),
    "strategies": Kind(draw_strategies, 260, "scaling"),
    "plans-headroom": Kind(draw_headroom, 300),
    "plans-cost": Kind(draw_cost, 300),
    "comparison": Kind(draw_comparison, 260, "answered", answer=side_by_side),
}
"""The plan's figures by name."""
