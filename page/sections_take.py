"""The sections that check, correct, compare and take away: measured runs, own readings, two scenarios, files."""

from typing import Any

from page import link
from page.format import count, duration, escape, fixed, gib, noun, significant
from page.html import fact, more, numbers, shown, table, tag
from page.words import FIELDS, field_name, label

MEASURED_FIGURE = "accuracy"
PPM = 10**6
READINGS = {
    "allocated": "torch.cuda.max_memory_allocated()",
    "reserved": "torch.cuda.max_memory_reserved()",
    "card": "the whole card, as nvidia-smi shows it",
}


def _percent(share: float) -> str:
    """A relative error; what is smaller than a thousandth says no more than that."""
    return f"{significant(max(abs(share), 1e-3) * 100, 2)} %"


def _signed_percent(share: float) -> str:
    """A relative error with its sign, to a tenth."""
    return f"{'+' if share > 0 else ''}{fixed(round(share * PPM), PPM // 100, 1)} %"


def _button(text: str, **attributes: object) -> str:
    return tag("button", text, type="button", class_="quiet", **attributes)


# What makes a sample fit


def ways_to_fit(result: dict[str, Any]) -> str:
    """Nothing fits: the nearest ways, each to be applied at once."""
    ways = result.get("ways_to_fit")
    if ways is None or result["max_micro_batch"]:
        return ""
    if not ways:
        said = "No change of recipe that this page knows makes one sample fit: it takes a larger card, or more of them."
        return tag("p", said, class_="ways")
    items = []
    for index, way in enumerate(ways):
        fits, host = way["max_micro_batch"], way["host_bytes"]
        named = " and ".join(way["labels"])
        steps = [tag("span", escape(step), class_="step") for step in way["labels"]]
        apply = _button("Apply", data_apply=link.write(link.flattened(way["change"])), aria_label=f"Apply: {named}")
        largest = shown(f"ways_to_fit.{index}.max_micro_batch", fits, count(fits))
        said = f"fits {largest}"
        if host:
            on_host = shown(f"ways_to_fit.{index}.host_bytes", host, gib(host))
            said += f", with {on_host} in the host\u2019s memory"
        items.append(tag("li", " ".join(steps), tag("span", f"{said} {apply}", class_="outcome")))
    return tag("div", tag("p", "Nearest ways to make it fit:"), tag("ul", *items), class_="ways")


# How right is this?


QUANTITIES = (
    ("peak_allocated_bytes", "Tensors at the peak"),
    ("peak_reserved_bytes", "Reserved by PyTorch"),
    ("step_seconds", "Seconds of a step"),
)


def _expected(report: dict[str, Any]) -> str:
    """The errors to expect, a row for each quantity."""
    rows = []
    for name, title in QUANTITIES:
        cells = [title]
        for key in ("median", "high"):
            off = report["expect"][name][key]
            cells.append("within " + shown(f"accuracy.expect.{name}.{key}", off, _percent(off)))
        rows.append(cells)
    return table("Errors to expect", ["Predicted against measured", "Half", "Nine in ten"], rows, class_="plain")


def _measured_row(step: dict[str, Any], place: str) -> list[str]:
    cells = [
        escape(step["model"]) + tag("small", escape(step["conditions"])),
        shown(place + ".micro_batch", step["micro_batch"], count(step["micro_batch"])),
    ]
    for name, said in (("peak_allocated_bytes", gib), ("peak_reserved_bytes", gib), ("step_seconds", duration)):
        pair = step[name]
        read, had, off = pair["measured"], pair["predicted"], pair["error"]
        cells.append(shown(f"{place}.{name}.measured", read, said(read)))
        cells.append(
            shown(f"{place}.{name}.predicted", had, said(had))
            + " "
            + tag("small", shown(f"{place}.{name}.error", off, _signed_percent(off)))
        )
    return cells


def _highlight(runs: "list[int]") -> str:
    """The rule that lifts some runs' points out of the figure, which shows every measured run."""
    chosen = ",".join([f'[id$="-run-{run}"]' for run in runs])
    place = f'[data-built="{MEASURED_FIGURE}"] '
    lifted = place + f":is({chosen}) use" + "{fill:var(--part-logits-and-loss)!important;fill-opacity:1!important}"
    # SVG draws in the document's order: what lies above the chosen points lets them through.
    return tag("style", place + '[id*="-run-"] use{fill-opacity:.2!important}' + lifted)


def accuracy(result: dict[str, Any]) -> str:
    """How right is this? The error to expect, from the measured runs that are most like the scenario."""
    report = result.get("accuracy")
    if not report:
        return ""
    nearest = report["nearest"]
    runs = sorted({step["run"] for step in nearest})
    alike = (
        f"{noun(len(runs), 'It has', 'They have')} this scenario\u2019s architecture."
        if report["alike"]
        else "None of them has this scenario\u2019s architecture: it can be further off than they were."
    )
    steps = shown("accuracy.expect.peak_allocated_bytes.steps", len(nearest), count(len(nearest)))
    lead = (
        f"The {len(runs)} measured {noun(len(runs), 'run')} most like your scenario, {steps} "
        f"{noun(len(nearest), 'step')} in all, came out this close. "
        f"{noun(len(runs), 'It is', 'They are')} highlighted in the figure. {alike}"
    )
    columns = ["Run", "Batch", "Peak, measured", "predicted", "Reserved, measured", "predicted"]
    columns += ["Step, measured", "predicted"]
    rows = [_measured_row(step, f"accuracy.nearest.{index}") for index, step in enumerate(nearest)]
    listed = table("Measured runs most like this scenario", columns, rows, class_="plain nearest")
    conditions = report["conditions"]
    how = f"{conditions['device']}; {conditions['software']}. {conditions['how']}"
    return (
        _highlight(runs)
        + tag("p", lead)
        + _expected(report)
        + more("nearest-runs", "The runs most like this one", listed, class_="figure-table")
        + more("conditions", "How the runs were measured", tag("p", escape(how)), class_="figure-table")
    )


# Readings of one's own


def _reading(reading: dict[str, Any], index: int) -> "list[str]":
    place = f"calibration.readings.{index}"
    remove = _button("Remove", data_forget_reading=index, aria_label=f"Remove reading {index + 1}")
    if "reading" not in reading:
        ran, failed = reading["ran"], reading["failed"]
        said = []
        if ran is not None:
            said.append(f"micro-batch {shown(place + '.ran', ran, count(ran))} ran")
        if failed is not None:
            said.append(f"micro-batch {shown(place + '.failed', failed, count(failed))} failed")
        return [", ".join(said), "", "", "", remove]
    batch = reading["batch"]
    sizes = [
        shown(f"{place}.{name}", reading[name], gib(reading[name]))
        for name in ("read_bytes", "before_bytes", "after_bytes")
    ]
    what = f"{escape(READINGS[reading['reading']])} at micro-batch {shown(place + '.batch', batch, count(batch))}"
    return [what] + sizes + [remove]


def disagreement(result: dict[str, Any]) -> str:
    """That the answer goes against a reading of one's own, for where the answer stands."""
    fit = result.get("calibration")
    if not fit or not fit["unexplained"]:
        return ""
    said = noun(len(fit["readings"]), "Your own reading disagrees", "Your own readings do not all agree")
    return f"{said} with this answer"


def _use(fit: dict[str, Any]) -> str:
    """What became of the readings, in a word or two."""
    if fit["unexplained"]:
        disagrees = noun(len(fit["readings"]), "This reading disagrees", "Not all readings agree") + " with the answer."
        return f"{disagrees} The rest is in use." if fit["changes"] else disagrees
    return "In use." if fit["changes"] else "No change."


def calibration(result: dict[str, Any]) -> str:
    """What one's own readings changed: the fit, its doubt, and each reading before and after."""
    fit = result.get("calibration")
    if not fit:
        return ""
    rows = [_reading(reading, index) for index, reading in enumerate(fit["readings"])]
    columns = ["Reading", "Read", "Calculated before", "and now", tag("span", "Remove", class_="visually-hidden")]
    facts: list[str] = []
    share, overhead = fit["activation_share"], fit["overhead_bytes"]
    if share is not None and fit["changes"]:
        times = shown("calibration.activation_share", share, significant(share, 4))
        facts.append(fact("What grows with the batch, times", times))
    if overhead is not None:
        facts.append(fact("Outside the allocator", shown("calibration.overhead_bytes", overhead, gib(overhead))))
    return (
        tag("p", tag("strong", _use(fit)), " ", escape(fit["text"]), class_="fit")
        + numbers(*facts)
        + table("Your readings", columns, rows, class_="plain")
        + tag("p", _button("Clear all readings", data_forget_readings=True))
    )


# Two scenarios side by side

COMPARED = (
    ("max_micro_batch", "Largest micro-batch", count),
    ("micro_batch", "Micro-batch", count),
    ("peak_allocated_bytes", "Tensors at the peak", gib),
    ("peak_reserved_bytes", "Reserved by PyTorch", gib),
    ("limit_bytes", "Usable on the card", gib),
    ("parameters", "Parameters", count),
    ("trainable_parameters", "Trainable", count),
    ("step_seconds", "One optimizer step", duration),
    ("samples_per_second", "Samples a second", significant),
)


COMPARED_IF_DIFFERENT = ("limit_bytes", "parameters", "trainable_parameters")


def _setting(key: str, value: Any) -> str:
    if value is None:
        return "\u2013"
    if isinstance(value, dict):
        inner = [f"{field_name(f'{key}.{name}')} {_setting(f'{key}.{name}', value[name])}" for name in sorted(value)]
        return ", ".join(inner)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:,.12g}"
    if isinstance(value, list):
        return escape(", ".join([str(entry) for entry in value]) if value and isinstance(value[0], str) else "own")
    return escape(label(key, value))


def _difference(here: Any, there: Any) -> str:
    if not here or there is None or here == there:
        return "same" if here == there else ""
    return escape(_signed_percent(there / here - 1))


def comparison(result: dict[str, Any]) -> str:
    """The kept scenario, A, beside the present one, B: what differs, and what comes of it."""
    found = result.get("comparison")
    if not found:
        return ""
    first, second = found["rows"]
    wrong = [row["error"]["message"] for row in (first, second) if "error" in row]
    if wrong:
        return tag("p", escape(f"Not comparable: {wrong[0]}"))
    if not found["fields"]:
        return tag("p", "A is what you see. Change anything, and both stand here side by side.")
    rows = [
        [
            escape(FIELDS.get(key, key.replace("_", " "))),
            _setting(key, first["settings"][key]),
            _setting(key, second["settings"][key]),
            "",
        ]
        for key in found["fields"]
    ]
    for key, title, said in COMPARED:
        here, there = first[key], second[key]
        if here == there and key in COMPARED_IF_DIFFERENT:
            continue
        cells = [
            "\u2013" if value is None else shown(f"comparison.rows.{place}.{key}", value, said(value))
            for place, value in ((0, here), (1, there))
        ]
        rows.append([title] + cells + [_difference(here, there)])
    return table("A and B side by side", ["", "A, kept", "B, as it is now", "B against A"], rows, class_="plain sides")


# Files


def _file(row: dict[str, Any]) -> str:
    name, file_name = f"file-{row['id']}", row["file_name"]
    if "text" not in row:
        inside = tag("p", escape(f"Not for this scenario: {row['reason']}."))
    else:
        inside = tag(
            "p",
            _button("Copy", data_copy=f"{name}-text"),
            " ",
            _button(f"Download {escape(file_name)}", data_download=f"{name}-text", data_file_name=file_name),
            class_="dialog-buttons",
        ) + tag("pre", escape(row["text"]), id=f"{name}-text", tabindex="0", aria_label=row["label"], role="region")
        if row.get("note"):
            inside = tag("p", escape(row["note"])) + inside
    return more(name, f"{escape(row['label'])} {tag('code', escape(file_name))}", inside, class_="file-row")


def exports(result: dict[str, Any]) -> str:
    """Take it with you: the plan as files that run, and the numbers as tables."""
    rows = result.get("exports")
    if not rows:
        return ""
    return tag("div", *[_file(row) for row in rows], class_="files")


SECTIONS = {
    "ways_to_fit": ways_to_fit,
    "accuracy": accuracy,
    "calibration": calibration,
    "comparison": comparison,
    "exports": exports,
}
LATER = ("ways_to_fit", "accuracy", "comparison", "exports")
