"""The plan as HTML: the wanted batch, whether a larger one is worth it, more GPUs, the whole run, the planner."""

from typing import Any

from page import link
from page.format import TIMES, count, duration, escape, fixed, gib, large, noun, percent, signed, significant
from page.html import (
    explained,
    explained_cell,
    explaining,
    fact,
    numbers,
    shown,
    source,
    table,
    tag,
    why,
)
from page.words import label

START_BATCH, START_GPUS = 64, 8
# Compute-optimal length of a language model's training: Hoffmann et al. 2022, arXiv:2203.15556.
TOKENS_PER_PARAMETER = 20
# The recipe of He et al. 2016, arXiv:1512.03385.
IMAGENET_EPOCHS = 90


def _apply(text: str, changes: dict[str, Any]) -> str:
    """A button that sets fields of the form."""
    return tag("button", escape(text), type="button", class_="quiet", data_apply=link.write(changes))


def _invite(sentence: str, *buttons: str) -> str:
    """What a section says where it needs something first, and a button that gives it."""
    return tag("p", escape(sentence), class_="invite") + tag("p", *buttons)


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _said(path: str, sentence: str) -> str:
    """A sentence of the result, numbers included."""
    return tag("p", shown(path, sentence, sentence), class_="lead")


def _dollars(amount: float) -> str:
    if amount >= 100:
        return f"${count(round(amount))}"
    return f"${fixed(round(amount * 100), 100, 2)}" if amount >= 0.1 else f"${significant(amount)}"


def _gpu_hours(hours: float) -> str:
    return f"{large(hours)} {noun(hours, 'GPU-hour')}"


# How do I reach the batch I want?


def _way(path: str, way: dict[str, Any], wanted: int) -> str:
    """One way to make a batch: samples, passes, cards, and what comes out."""
    micro, steps, cards = way["micro_batch"], way["accumulation_steps"], way["data_parallel"]
    total = micro * steps * cards
    factors = [
        f"{shown(path + '.micro_batch', micro, count(micro))} {noun(micro, 'sample')}",
        f"{shown(path + '.accumulation_steps', steps, count(steps))} {noun(steps, 'accumulation step')}",
    ]
    if cards > 1:
        factors.append(f"{shown(path + '.data_parallel', cards, count(cards))} GPUs")
    off = total - wanted
    sum_text = tag("strong", count(total)) + " = " + f" {TIMES} ".join(factors)
    return f"{sum_text} ({signed(count(off), off)})" if off else sum_text


def _short_way(way: dict[str, Any]) -> str:
    factors = [way["micro_batch"], way["accumulation_steps"]]
    if way["data_parallel"] > 1:
        factors.append(way["data_parallel"])
    product = f" {TIMES} ".join([count(factor) for factor in factors])
    return f"{product} = {count(way['global_batch'])}"


def wanted_line(result: dict[str, Any]) -> str:
    """The answer's second line, where a global batch is wanted: the ways in short, a link to all of them."""
    found = result.get("plan")
    if not found or not found.get("global_batch"):
        return ""
    wanted, exact, nearest = found["global_batch"], found["exact"], found["nearest"] or []
    others = ", ".join([_short_way(way) for way in nearest])
    wanted_text = shown("plan.global_batch", wanted, count(wanted))
    if exact:
        steps = exact["accumulation_steps"]
        factors = f"{count(exact['micro_batch'])} {TIMES} {count(steps)} {noun(steps, 'accumulation step')}"
        if exact["data_parallel"] > 1:
            factors += f" {TIMES} {count(exact['data_parallel'])} GPUs"
        said = f"{wanted_text} = {factors}" + (f", or {others}" if others else "")
    else:
        said = f"No split makes exactly {wanted_text}; nearest: {others}"
    return tag("p", tag("a", said, href="#reach") + ".", class_="wanted")


def _accumulation(result: dict[str, Any], cost: dict[str, Any]) -> str:
    """What accumulation costs, in the closest way where none is exact, and where it is not the same as a real batch."""
    update, sample, single = cost["update_seconds"], cost["sample_seconds"], cost["sample_seconds_single"]
    facts = ""
    if update is not None:
        said = [
            fact("One update on one GPU", explained(result, "accumulation.update_seconds", duration(update))),
            fact("A sample, accumulated", explained(result, "accumulation.sample_seconds", duration(sample))),
            fact(
                "A sample, an update each pass",
                explained(result, "accumulation.sample_seconds_single", duration(single)),
            ),
        ]
        steps, samples = cost["accumulation_steps"], cost["micro_batch"]
        way = f"{count(steps)} passes of {count(samples)} {noun(samples, 'sample')}"
        facts = ("" if result["plan"]["exact"] else tag("p", f"The closest, {way}:")) + numbers(*said)
    caveats = [tag("li", f"{escape(caveat['text'])} {source(caveat['source'])}") for caveat in cost["caveats"]]
    listed = tag("p", "An accumulated batch and a real one:") + tag("ul", *caveats, class_="notes") if caveats else ""
    return facts + listed


def plan(result: dict[str, Any]) -> str:
    """How do I reach the batch I want? Accumulation, exactly or nearest, what it costs and what it does not do."""
    found = result.get("plan")
    if not found or not found.get("global_batch"):
        if result["scenario"].get("global_batch"):
            return tag("p", "Not even one sample fits: see above what would let it take more.", class_="invite")
        return _invite(
            "No global batch is asked for, so every pass ends in an update. A batch that does not fit is reached by "
            "accumulating the gradients of several passes.",
            _apply(f"I want {START_BATCH} samples a step", {"global_batch": START_BATCH}),
        )
    wanted, exact, nearest = found["global_batch"], found["exact"], found["nearest"] or []
    lead = (
        _way("plan.exact", exact, wanted)
        if exact
        else f"No split makes exactly {shown('plan.global_batch', wanted, count(wanted))}, which "
        f"{count(nearest[0]['data_parallel'])} replicas do not divide"
    )
    ways = [tag("li", _way(f"plan.nearest.{index}", way, wanted)) for index, way in enumerate(nearest)]
    others = tag("p", "Fewer passes, other totals:" if exact else "Nearest:") + tag("ul", *ways) if ways else ""
    cost = result.get("accumulation")
    return tag("p", lead + ".", class_="lead") + others + (_accumulation(result, cost) if cost else "")


# Is a larger batch worth it?


def _ends(result: dict[str, Any], paths: "list[str]", said: "list[str]") -> str:
    """A span of two results; one where both say the same."""
    ends = [explained(result, paths[place], said[place]) for place in range(len(paths))]
    return ends[0] if said[0] == said[-1] else " to ".join(ends)


def _band_facts(result: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The critical batch as a band, one's own batch beside it, and what that batch costs in steps and data."""
    band, traded, path = found["critical_batch"], found["tradeoff"], "convergence.critical_batch"
    unit = band["unit"]
    ends = _ends(result, [f"{path}.low", f"{path}.high"], [large(band["low"]), large(band["high"])])
    factors = [
        _ends(
            result,
            [f"convergence.tradeoff.{name}.{place}" for place in range(len(traded[name]))],
            [significant(value) for value in traded[name]],
        )
        for name in ("steps_factor", "examples_factor")
    ]
    return [
        fact("Critical batch", f"{ends} {unit}"),
        fact(
            "Your batch", f"{explained(result, path + '.batch', large(band['batch']))} {noun(band['batch'], unit[:-1])}"
        ),
        fact("Steps it takes", f"{factors[0]} {TIMES} the fewest"),
        fact("Data it takes", f"{factors[1]} {TIMES} the least"),
    ]


def _law(law: dict[str, Any], place: int) -> list[str]:
    path = f"convergence.laws.{place}"
    low, high = law["range"]
    fitted = f"{large(low)} to {large(high)} {law['range_of']}"
    if law["extrapolated"]:
        fitted += " (this run lies outside)"
    return [
        escape(law["name"]) + tag("small", f"{escape(law['doubt'])} {source(law['source'])}"),
        why(
            f"law-{law['id']}",
            escape(law["definition"]),
            escape(law["definition_text"][:1].upper() + law["definition_text"][1:] + "."),
        ),
        shown(f"{path}.batch_tokens", law["batch_tokens"], large(law["batch_tokens"])),
        shown(f"{path}.batch_samples", law["batch_samples"], large(law["batch_samples"])),
        fitted,
    ]


def _laws(found: dict[str, Any]) -> str:
    if not found["laws"]:
        return ""
    rows = [_law(law, place) for place, law in enumerate(found["laws"])]
    columns = ["Law", "What it calls critical", "Tokens", "Samples", "Fitted on"]
    return tag("h3", "Each law for this run") + table("Laws of the critical batch", columns, rows, class_="facts-table")


def _learning_rate(result: dict[str, Any], found: "dict[str, Any] | None") -> str:
    """What learning rate to start from at the new batch, from one that is known."""
    head = tag("h3", "Which learning rate to start from?")
    if not found:
        return head + tag(
            "p",
            "Enter below a batch and a learning rate that work: the rule for the optimizer carries the rate over.",
            class_="invite",
        )
    path = "convergence.learning_rate"
    rate, low, high = found["learning_rate"], found["low"], found["high"]
    facts = [fact("Start from", explained(result, f"{path}.learning_rate", significant(rate)))]
    if low != high:
        ends = f"{shown(path + '.low', low, significant(low))} and {shown(path + '.high', high, significant(high))}"
        facts.append(fact("Try between", ends))
    facts.append(
        fact(
            "Batch grows by",
            explained(result, f"{path}.batch_ratio", significant(found["batch_ratio"])) + f" {TIMES}",
        )
    )
    adam = found.get("adam")
    if adam:
        for key, title in (("beta1", "Adam\u2019s beta1"), ("beta2", "Adam\u2019s beta2")):
            facts.append(fact(title, shown(f"{path}.adam.{key}", adam[key], fixed(round(adam[key] * 10**6), 10**6, 4))))
    rule = f"Rule: {found['rule']}. {found['reason']} {found['warmup']} {' '.join(found['notes'])}"
    return head + numbers(*facts) + tag("p", f"{escape(rule)} {source(found['source'])}", class_="notes")


def worth(result: dict[str, Any]) -> str:
    """Is a larger batch worth it? One sentence with its doubt, then what it rests on."""
    found = result["convergence"]
    facts = _band_facts(result, found) if found["critical_batch"] else []
    if found["updates"] is not None:
        facts.append(fact("Updates in the run", explained(result, "convergence.updates", count(found["updates"]))))
    own = found["own_noise_scale"]
    if own:
        scale = own["noise_scale"]
        facts.append(
            fact(
                "Your noise scale",
                f"{explained(result, 'convergence.own_noise_scale.noise_scale', large(scale))} {escape(own['unit'])}",
            )
        )
    closest = found["closest_task"]
    near = (
        tag("p", f"Closest measured task: {escape(closest['task'])} ({source(closest['source'])}).", class_="notes")
        if closest
        else ""
    )
    return _said("convergence.verdict", found["verdict"]) + (numbers(*facts) if facts else "") + near


def laws(result: dict[str, Any]) -> str:
    """The laws one by one, and the learning rate."""
    found = result["convergence"]
    return _laws(found) + _learning_rate(result, found["learning_rate"])


def tasks(rows: "list[dict[str, Any]]") -> str:
    """The published critical batches, task by task, for a table that is the same for every scenario."""

    def ends(values: "list[float | None] | None") -> str:
        known = [value for value in values or [] if value is not None]
        return _span(large(known[0]), large(known[-1])) if known and known[-1] else ""

    cells = [
        [
            escape(row["task"]) + tag("small", source(row["source"])),
            ends(row.get("critical_batch_start")),
            ends(row["critical_batch"]),
            escape(row["unit"]),
            ends(row.get("noise_scale")),
            escape(row["definition"]),
        ]
        for row in rows
    ]
    columns = ["Task", "Critical batch at the start", "Over the run", "Unit", "Noise scale", "Definition"]
    return table("Measured critical batches", columns, cells, class_="facts-table long")


def _numbered(rows: "list[dict[str, Any]]") -> "tuple[list[str], str]":
    """The number of each row's source, and the list of the sources: most are those of many rows."""
    sources: list[str] = []
    for row in rows:
        if row["source"] not in sources:
            sources.append(row["source"])
    listed = tag("ol", *[tag("li", source(said)) for said in sources], class_="notes")
    return [f"[{sources.index(row['source']) + 1}]" for row in rows], listed


def utilizations(rows: "list[dict[str, Any]]") -> str:
    """The published MFU of training runs, for a table that is the same for every scenario."""
    places, sources = _numbered(rows)
    cells = []
    for row, place in zip(rows, places):  # noqa: B905 - made of them
        low, high = [
            row[f"mfu_percent_{end}" if "mfu_percent" not in row else "mfu_percent"] for end in ("low", "high")
        ]
        micro_batch, length = row.get("micro_batch"), row.get("sequence_length")
        cells.append(
            [
                escape(row["model"]),
                f"{count(row['gpus'])} {TIMES} {escape(row['gpu'])}" if row.get("gpus") else escape(row["gpu"]),
                escape(label("precision", row["precision"])),
                f"{count(micro_batch)} of {count(length)} {noun(length, 'token')}" if micro_batch and length else "",
                f"{_span(significant(low), significant(high))} % {place}",
            ]
        )
    columns = ["Model", "GPUs", "Precision", "Micro-batch", "MFU, source"]
    return table("Published MFU", columns, cells, class_="facts-table long") + sources


def scaling_rows(rows: "list[dict[str, Any]]") -> str:
    """Published scaling row by row with this page's prediction beside it; the same for every scenario."""
    places, sources = _numbered(rows)
    errors = sorted([abs(row["error_points"]) for row in rows if row["predicted"] is not None])
    middle = len(errors) // 2
    median = errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
    cells = []
    for row, place in zip(rows, places):  # noqa: B905 - made of them
        predicted, error = row["predicted"], row["error_points"]
        cells.append(
            [
                escape(f"{row['workload']}, {row['strategy']}"),
                escape(f"{row['gpu']}, {row['network']}"),
                f"{count(row['gpus_base'])} to {count(row['gpus'])}",
                f"{percent(row['efficiency'])} {place}",
                escape(row["skipped"]) if predicted is None else percent(predicted),
                "" if predicted is None else signed(fixed(round(error * 10), 10, 1), error),
            ]
        )
    columns = ["Workload", "GPUs and network", "From, to", "Published efficiency", "By this page", "Points off"]
    said = (
        f"Speed per GPU on the many over that on the few. Of {len(rows)} published rows {len(errors)} say enough to be "
        f"predicted; half of those are within {significant(median, 2)} points."
    )
    return tag("p", said) + table("Published scaling", columns, cells, class_="facts-table long") + sources


# More GPUs?

PARTS = (
    ("compute_seconds", "Passes"),
    ("optimizer_seconds", "Optimizer step"),
    ("exposed_communication_seconds", "Exchange that shows"),
    ("bubble_seconds", "Pipeline bubble"),
    ("offload_seconds", "Host memory and processor"),
    ("unmodelled_seconds", "Stragglers, input, clocks"),
)


def _strategy(row: dict[str, Any], place: int, chosen: str) -> list[str]:
    path, name = f"scaling.by_strategy.{place}", row["strategy"]
    words = label("parallelism.strategy", name)
    size, seconds = row["memory_bytes"], row["step_seconds"]
    button = (
        "chosen"
        if name == chosen
        else tag(
            "button",
            "Apply",
            type="button",
            class_="quiet",
            data_apply=link.write({"parallelism.strategy": name}),
            aria_label=f"Apply: {words}",
        )
    )
    return [
        escape(words),
        shown(f"{path}.memory_bytes", size, gib(size)),
        "yes" if row["fits"] else "no",
        shown(f"{path}.step_seconds", seconds, duration(seconds)),
        button,
    ]


UNFIT = "As it is set, the step does not fit"


def scaling(result: dict[str, Any]) -> str:
    """More GPUs? What they bring, what eats the rest, and memory by strategy."""
    found = result.get("scaling")
    if not found:
        if result.get("step_seconds") is None:
            return tag("p", "This card\u2019s speed is not known, so neither is that of several.", class_="invite")
        return _invite(
            "One GPU. Several divide the batch, and with sharding the memory too.",
            _apply(f"Try {START_GPUS} GPUs", {"gpus": START_GPUS}),
        )
    low, high, efficiency = found["efficiency_low"], found["efficiency_high"], found["efficiency"]
    cards, gain = found["gpus"], found["speed_up"]
    counted = f"{shown('scaling.gpus', cards, count(cards))} {noun(cards, 'GPU')}"
    lead = (
        f"{counted} {noun(cards, 'does', 'do')} {explained(result, 'scaling.speed_up', significant(gain))} times the "
        f"work of one{' that offloads nothing' if cards == 1 else ''}: "
        f"{explained(result, 'scaling.efficiency', percent(efficiency))} of ideal "
        f"({percent(low)} to {percent(high)})."
    )
    if efficiency > 1:
        lead += " Above 100\u00a0%, since they divide the optimizer\u2019s update too, all of which one GPU does alone."
    facts = [
        fact("One update", explained(result, "scaling.step_seconds", duration(found["step_seconds"]))),
        fact(
            "Samples a second",
            explaining(
                result,
                "samples_per_second",
                shown(
                    "scaling.samples_per_second", found["samples_per_second"], significant(found["samples_per_second"])
                ),
                "scaling-",
            ),
        ),
    ]
    seconds = found["parts"]
    facts += [
        fact(title, shown(f"scaling.parts.{name}", seconds[name], duration(seconds[name])))
        for name, title in PARTS
        if seconds[name]
    ]
    fabric = found["fabric"]
    joined = f"Within a node: {fabric['node']}."
    if found["nodes"] > 1:
        adapters = fabric["adapters_per_node"]
        each = f"{adapters} {TIMES} " if adapters != 1 else ""
        joined += f" Between {count(found['nodes'])} nodes: {each}{fabric['network']}."
    sources = source("; ".join(fabric["sources"]))
    rows = [_strategy(row, place, found["layout"]["strategy"]) for place, row in enumerate(found["by_strategy"])]
    memory = f"Memory on each GPU at micro-batch {count(result['time']['micro_batch'])}"
    columns = ["Strategy", memory, "Fits", "One update", tag("span", "Apply", class_="visually-hidden")]
    notes = [tag("li", escape(note)) for note in found.get("notes") or []]
    if result["fits"]:
        said = tag("p", lead, class_="lead") + numbers(*facts)
    else:
        said = tag("p", f"{UNFIT} on {'' if cards == 1 else 'each of '}{counted}.", class_="lead")
    return (
        said
        + tag("p", f"{escape(joined)} {sources}", class_="notes")
        + table("Strategies", columns, rows, class_="facts-table")
        + (tag("ul", *notes, class_="notes") if notes else "")
    )


# How long, how much?


def run(result: dict[str, Any]) -> str:
    """How long, how much? Time, GPU-hours, energy and money of the whole run."""
    found = result.get("run")
    scenario = result["scenario"]
    if not found:
        if result.get("step_seconds") is None:
            return tag("p", "This card\u2019s speed is not known, so neither is the time of a run.", class_="invite")
        buttons = []
        if scenario["task"] == "image-classification":
            changes = {"epochs": IMAGENET_EPOCHS, "dataset": "imagenet"}
            buttons.append(_apply(f"Try {IMAGENET_EPOCHS} epochs of ImageNet", changes))
        elif scenario.get("sequence_length"):
            tokens = TOKENS_PER_PARAMETER * result["parameters"]
            buttons.append(_apply(f"Try {TOKENS_PER_PARAMETER} tokens a parameter", {"tokens": tokens}))
        return _invite("Give the run\u2019s length under Goal: tokens, or a data set and epochs.", *buttons)
    if not result["fits"]:
        return tag("p", f"{UNFIT}, so there is no run to time: see above what would let it.", class_="invite")
    facts = [
        fact("Time", explained(result, "run.seconds", duration(found["seconds"]))),
        fact("Updates", explained(result, "run.updates", count(found["updates"]))),
        fact("GPU-hours", explained(result, "run.gpu_hours", significant(found["gpu_hours"]))),
    ]
    low, high = found["energy_kwh_low"], found["energy_kwh_high"]
    if low is not None:
        ends = explained(result, "run.energy_kwh_low", significant(low)) + " to "
        ends += explained(result, "run.energy_kwh_high", significant(high))
        facts.append(fact("Energy", f"{ends} kWh"))
    notes = list(found["notes"])
    price = found["dollars_per_gpu_hour"]
    if price is None:
        notes.append("No list that was read has this card\u2019s price: enter yours under Goal.")
    else:
        facts.append(fact("Cost", explained(result, "run.dollars", _dollars(found["dollars"]))))
        facts.append(fact("A GPU-hour", shown("run.dollars_per_gpu_hour", price, _dollars(price))))
        entered = found["price_source"] == "entered"
        notes.append("The price is yours." if entered else f"Price: {found['price_source']}. Enter yours under Goal.")
    goal = _said("run.goal", found["goal"]) if found["goal"] else ""
    if found["goal_met"] is False:
        goal += tag("p", tag("a", "Find a plan that keeps to it", href="#plans") + ".")
    return goal + numbers(*facts) + tag("ul", *[tag("li", escape(note)) for note in notes], class_="notes")


# What should I run?

SETTINGS = ("checkpointing", "precision", "optimizer", "attention", "loss")
PLACES = ("gpus", "nodes", "global_batch", "micro_batch")
DEGREES = ("tensor", "pipeline", "context", "expert")


def _planned(plans: dict[str, Any]) -> dict[str, Any]:
    """The fields of the form that the best plan sets."""
    changes = {key: plans["scenario"][key] for key in SETTINGS + PLACES if key in plans["scenario"]}
    changes.update(link.flattened({"parallelism": plans["scenario"]["parallelism"]}))
    return changes


def _layout(layout: dict[str, Any]) -> str:
    said = [label("parallelism.strategy", layout["strategy"])] if layout["data"] > 1 else []
    said += [f"{name} {layout[name]}" for name in DEGREES if layout[name] > 1]
    if layout["cpu_offload"] != "none":
        said.append(f"on the host: {label('parallelism.cpu_offload', layout['cpu_offload']).lower()}")
    return ", ".join(said) or "one GPU"


def _planned_row(row: dict[str, Any], path: str, scenario: dict[str, Any]) -> list[str]:
    settings, layout = row["settings"], row["layout"]
    cards = layout["data"] * layout["tensor"] * layout["pipeline"] * layout["context"]
    seconds, left, run_seconds = row["update_seconds"], row["headroom_bytes"], row["run_seconds"]
    changed = [f"{key} {label(key, settings[key])}" for key in SETTINGS if settings[key] != scenario.get(key)]

    def cell(field: str, raw: float, said: str) -> str:
        return explained_cell(row, path, field, shown(f"{path}.{field}", raw, said))

    def cost(whole: str, update: str, said: Any) -> str:
        """The whole run's, or that of 1,000 updates where its length is not known."""
        if run_seconds is None:
            return cell(update, row[update], said(1000 * row[update]))
        return (
            cell("run_seconds", run_seconds, duration(run_seconds)) + ", " + cell(whole, row[whole], said(row[whole]))
        )

    return [
        cell("update_seconds", seconds, duration(seconds)),
        cell("headroom_bytes", left, gib(left)),
        cost("run_gpu_hours", "gpu_hours_per_update", _gpu_hours)
        if row["dollars_per_update"] is None
        else cost("run_dollars", "dollars_per_update", _dollars),
        f"{explained_cell(row, path, 'gpus', count(cards))} ({escape(_layout(layout))})",
        cell("global_batch", row["global_batch"], count(row["global_batch"])) + " = "
        f"{shown(path + '.micro_batch', row['micro_batch'], count(row['micro_batch']))} {TIMES} "
        + shown(f"{path}.accumulation_steps", row["accumulation_steps"], count(row["accumulation_steps"]))
        + (f" {TIMES} {count(layout['data'])}" if layout["data"] > 1 else ""),
        escape("; ".join(changed)) or "nothing",
    ]


def planner(result: dict[str, Any]) -> str:
    """What should I run? The planner's choice in words, and the plans that no other beats."""
    found = result.get("planner")
    if not found:
        if not (result["scenario"].get("global_batch") or result["run"]):
            return _invite(
                "The planner looks for the best way to a global batch, or through a whole run by a deadline or within "
                "a budget: ask for a batch, or give the run\u2019s length under Goal.",
                _apply(f"I want {START_BATCH} samples a step", {"global_batch": START_BATCH}),
            )
        return tag(
            "p",
            "Tries every combination of micro-batch, checkpointing, attention, loss and sharding on these GPUs, and of "
            "what else it may choose, and shows those that no other beats. Without a global batch it chooses that too.",
            class_="invite",
        )
    best = found["best"]
    lead = _said("planner.text", found["text"])
    if best:
        lead += tag("p", _apply("Use this plan", _planned(found)))
    counts = [
        explained_cell(found, "planner", key, shown(f"planner.{key}", found[key], count(found[key])))
        for key in ("candidates", "feasible")
    ]
    tried = f"{counts[0]} {noun(found['candidates'], 'plan')} tried, {counts[1]} of them "
    tried += "will do." if found["goal_met"] else noun(found["feasible"], "fits.", "fit.")
    if found["price_source"] is None:
        tried += " No list that was read has this card\u2019s price, so GPU-hours are counted: enter yours under Goal."
    elif found["price_source"] != "entered":
        tried += f" Price: {escape(found['price_source'])}."
    front = found["fronts"]["headroom"]
    rows = [
        _planned_row(row, f"planner.fronts.headroom.{place}", result["scenario"]) for place, row in enumerate(front)
    ]
    whole = "The run" if best and best["run_seconds"] is not None else "1,000 updates"
    columns = ["One update", "Left on each GPU", whole, "GPUs", "Batch", "Changed"]
    listed = table("Plans that no other beats", columns, rows, class_="facts-table long") if rows else ""
    notes = [tag("li", escape(note)) for note in found["notes"]] + [tag("li", tried)]
    return lead + tag("ul", *notes, class_="notes") + listed


PLAN_SECTIONS = {
    "plan": plan,
    "worth": worth,
    "laws": laws,
    "scaling": scaling,
    "run": run,
    "planner": planner,
}
"""The sections of the plan by name."""
