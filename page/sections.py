"""The results as HTML: one function a section, from the contract's result to what its mount in the page holds.

A section whose part of the result is absent returns an empty text, and the page hides it. To add one, write its
function, name it in `SECTIONS` and put an element with ``data-section`` of that name into index.html.
"""

import zlib
from typing import Any

from page import link, sections_take
from page.format import TIMES, at, count, duration, escape, fixed, gib, noun, parameters, percent, signed, significant
from page.html import (
    cited,
    explained,
    explained_cell,
    explaining,
    fact,
    more,
    numbers,
    shown,
    source,
    table,
    tag,
)
from page.sections_plan import PLAN_SECTIONS, wanted_line
from page.words import PHASES, label

GIB = 1 << 30


# The answer


def shape(result: dict[str, Any]) -> str:
    """The input's shape, as it follows the model's name in a sentence."""
    scenario = result["scenario"]
    length, target = scenario.get("sequence_length"), scenario.get("target_length")
    if length:
        more_tokens = f" and {count(target)} target {noun(target, 'token')}" if target else ""
        return f" at {count(length)} {noun(length, 'token')}{more_tokens}"
    if scenario.get("image_size"):
        return f" at {scenario['image_size']} {TIMES} {scenario['image_size']} pixels"
    if scenario.get("audio_frames"):
        return f" at {count(scenario['audio_frames'])} audio {noun(scenario['audio_frames'], 'frame')}"
    return ""


def model_name(result: dict[str, Any]) -> str:
    """The model's name, its size behind it where the name does not say it."""
    name: str = result["model"]["name"]
    says_size = any(word[0].isdigit() and word[-1] in "BM" for word in name.replace("-", " ").split())
    return name if "(" in name or says_size else f"{name} ({parameters(result['parameters'])})"


def card_name(result: dict[str, Any]) -> str:
    """The card or cards, as they stand in a sentence."""
    cards = result["scenario"].get("gpus") or 1
    name = result["gpu"]["name"]
    if result["gpu"]["id"] is None:
        # By its memory alone, "a GPU with 24 GiB".
        return name if cards == 1 else f"{count(cards)} GPUs{name.removeprefix('a GPU')}"
    return f"one {name}" if cards == 1 else f"{count(cards)} {TIMES} {name}"


def _setting(result: dict[str, Any]) -> str:
    scenario = result["scenario"]
    recipe = [label("precision", scenario["precision"])]
    if scenario["method"] != "full":
        recipe.insert(0, label("method", scenario["method"]))
    if scenario["checkpointing"] != "none":
        recipe.append("checkpointing")
    return escape(f"{model_name(result)}{shape(result)}, {', '.join(recipe)}, on {card_name(result)}")


def _next_needs(result: dict[str, Any]) -> str:
    following = count(result["max_micro_batch"] + 1)
    more_bytes = explained(result, "next_needs_bytes", gib(result["next_needs_bytes"]))
    return "; " + tag("span", f"{following} would exceed the card by {more_bytes}.", class_="next")


def _band(result: dict[str, Any]) -> str:
    safe, optimistic = result.get("max_micro_batch_safe"), result.get("max_micro_batch_optimistic")
    if safe is None or optimistic is None:
        return ""
    safe_text = explaining(result, "max_micro_batch_safe", "Safe " + shown("max_micro_batch_safe", safe, count(safe)))
    optimistic_text = explaining(
        result,
        "max_micro_batch_optimistic",
        "optimistic " + shown("max_micro_batch_optimistic", optimistic, count(optimistic)),
    )
    return " " + tag("span", f"{safe_text}, {optimistic_text}.", class_="band")


def answer(result: dict[str, Any]) -> str:
    """Does it fit? The answer in large, then what it is about."""
    largest, chosen = result["max_micro_batch"], result["micro_batch"]
    reserved, limit = result["memory"]["peak_reserved_bytes"], result["memory"]["limit_bytes"]
    chosen_text = shown("micro_batch", chosen, count(chosen))
    needs = explained(result, "memory.peak_reserved_bytes", gib(reserved), "answer-")
    usable = explained(result, "memory.limit_bytes", gib(limit), "answer-")
    band = _band(result)
    if not largest:
        nothing = explained(result, "max_micro_batch", "Nothing")
        said = tag("strong", f"{nothing} fits yet")
        samples = "one sample needs" if chosen == 1 else f"{chosen_text} samples need"
        said += ": " + tag("span", f"{samples} {needs}, and {usable} can be used.", class_="next")
        band = ""
    elif chosen > largest:
        largest_text = explained(result, "max_micro_batch", count(largest))
        said = tag("strong", f"Micro-batch {chosen_text} does not fit") + f"; {largest_text} does."
        band = f" {chosen_text} needs {needs}, and {usable} can be used.{band}"
    elif chosen < largest:
        largest_text = explained(result, "max_micro_batch", count(largest))
        said = tag("strong", f"Micro-batch {chosen_text} fits") + f"; up to {largest_text} would."
    else:
        largest_text = explained(result, "max_micro_batch", count(largest))
        said = tag("strong", f"Micro-batch {largest_text} fits") + _next_needs(result)
    fits = "true" if result["fits"] else "false"
    about = tag("span", f"{_setting(result)}.{band}", class_="about")
    said = tag("span", said, class_="said")
    against = sections_take.disagreement(result)
    return (
        tag("p", f"{said} {about}", class_="answer", data_fits=fits, data_nothing=not largest)
        + (tag("p", tag("a", against, href="#own-runs") + ".", class_="against") if against else "")
        + wanted_line(result)
    )


def _verdict(result: dict[str, Any]) -> str:
    largest, chosen = result["max_micro_batch"], result["micro_batch"]
    if not largest:
        return "Nothing fits"
    return f"Batch {count(chosen)} {'fits' if result['fits'] else 'does not fit'}"


def summary(result: dict[str, Any]) -> str:
    """The answer in one line, for the bar that stays at the bottom of a small screen."""
    used = fixed(result["memory"]["process_bytes"], GIB, 1)
    return tag("strong", _verdict(result)) + tag("span", f"{used} of {gib(result['gpu']['memory_bytes'])}")


def spoken(result: dict[str, Any]) -> str:
    """The answer for a screen reader, said after changes have come to rest."""
    largest, process = result["max_micro_batch"], gib(result["memory"]["process_bytes"])
    beyond = f" {count(largest)} does." if 0 < largest < result["micro_batch"] else ""
    against = sections_take.disagreement(result)
    against = f" {against}." if against else ""
    return f"{_verdict(result)}.{beyond} It takes {process} of {gib(result['gpu']['memory_bytes'])}.{against}"


# Memory


def _family(identifier: str) -> str:
    """The part that a component belongs to, which gives it its colour."""
    return identifier.partition(".")[0]


def _taken_bytes(result: dict[str, Any]) -> int:
    """What the allocator holds: where the step fits only because cached memory is given back, no more than there is."""
    memory = result["memory"]
    reserved: int = memory["peak_reserved_bytes"]
    return min(reserved, memory["limit_bytes"]) if result["fits"] else reserved


def _bar_pieces(result: dict[str, Any]) -> list[tuple[str, str, int]]:
    """What lies on the card, in order: its name for colour and link, its label, its bytes."""
    memory = result["memory"]
    pieces = [(part["id"], part["label"], part["bytes"]) for part in memory["components"]]
    pieces.append(("slack", "Reserved, not used", _taken_bytes(result) - memory["peak_allocated_bytes"]))
    pieces.append(("context", "CUDA context, other processes", memory["process_bytes"] - memory["peak_reserved_bytes"]))
    return pieces


def bar(result: dict[str, Any]) -> str:
    """The card as a bar, its parts in order, what does not fit beyond its end."""
    card, process = result["gpu"]["memory_bytes"], result["memory"]["process_bytes"]
    given_back = result["memory"]["peak_reserved_bytes"] - _taken_bytes(result)
    taken = process - given_back
    scale, over = max(card, taken), taken - card
    end = f"inset-inline-start:{fixed(card * 100, scale, 3)}%"
    pieces = [
        tag(
            "li",
            tag("span", escape(f"{title}: {gib(size)}"), class_="tip"),
            tag("span", escape(title), " ", tag("b", gib(size)), class_="name", aria_hidden="true"),
            class_=f"part part-{_family(name)}",
            style=f"flex-basis:{fixed(size * 100, scale, 3)}%",
        )
        for name, title, size in _bar_pieces(result)
        if size > 0
    ]
    if over > 0:
        pieces.append(tag("li", class_="overflow", style=end, aria_hidden="true"))
    pieces.append(tag("li", class_="end", style=end, aria_hidden="true"))
    process_text = explained(result, "memory.process_bytes", gib(process), "bar-")
    card_text = explained(result, "gpu.memory_bytes", gib(card), "bar-")
    if over > 0:
        said = f"{process_text} of {card_text}: " + tag("strong", f"{gib(over)} too much")
    elif given_back > 0:
        said = (
            f"{card_text}, filled to the brim: PyTorch would keep {gib(given_back)} more in its cache, {process_text} "
            "in all, and gives that back to fit, which costs a little time."
        )
    else:
        said = f"{process_text} of {card_text}, {gib(-over)} free"
    parts_list = tag("ul", *pieces, class_="bar", aria_label="Memory of the card, part by part")
    return parts_list + tag("p", said, class_="bar-said")


def _part(part: dict[str, Any], index: int, total: int) -> str:
    name, size = part["id"], part["bytes"]
    head = (
        tag("span", class_=f"swatch part-{_family(name)}")
        + tag("span", escape(part["label"]), class_="name")
        + tag("span", f"{fixed(size * 100, total, 1)} %", class_="share")
        + shown(f"memory.components.{index}.bytes", size, gib(size))
    )
    explained = (
        ("Formula", tag("code", escape(part["formula"]))),
        ("With this scenario's values", escape(part["values"])),
        ("Of it", ", ".join(f"{escape(piece['label'])} {gib(piece['bytes'])}" for piece in part["parts"])),
        ("Exactly", f"{count(size)} bytes"),
        ("Source", cited(part["source"])),
    )
    rows = [tag("dt", title) + tag("dd", html) for title, html in explained if html]
    return more(f"part-{name}", head, tag("dl", *rows), class_="part-row" if size else "part-row none")


def parts(result: dict[str, Any]) -> str:
    """Where does memory go? The parts at the peak, each with its formula and source, and the peak of each phase."""
    memory = result["memory"]
    total, phase = memory["peak_allocated_bytes"], memory["peak_phase"]
    rows = [_part(part, index, total) for index, part in enumerate(memory["components"])]
    phases = [
        fact(
            f"Peak in {words}",
            explained(result, f"memory.phases.{name}", gib(memory["phases"][name])),
            peak=name == phase,
        )
        for name, words in PHASES
    ]
    totals = [
        fact(title, explained(result, path, gib(at(result, path))))
        for path, title in (
            ("memory.peak_allocated_bytes", "Tensors at the peak"),
            ("memory.peak_reserved_bytes", "Reserved by PyTorch"),
            ("memory.process_bytes", "Whole process"),
            ("memory.limit_bytes", "Usable on the card"),
        )
    ]
    where = f"The peak is {memory['peak_instant']}."
    return tag("p", escape(where)) + tag("div", *rows, class_="parts") + numbers(*phases) + numbers(*totals)


# What to change, and how to go on


LEVERS_SHOWN = 6


def _lever(lever: dict[str, Any], index: int) -> list[str]:
    place = f"advice.{index}"
    largest, gained, saved = lever["max_micro_batch"], lever["batch_gained"], lever["saved_bytes"]
    ratio = lever["speed_ratio"]
    gain = 0 if ratio is None else round((ratio - 1) * 100)
    faster = f"{signed(count(gain), gain)} %" if gain else "same"
    if ratio is not None and ratio >= 2:
        faster = f"{significant(ratio, 2)} {TIMES}"
    risk = tag("small", f"{escape(lever['risk'])} {source(lever['source'])}")
    cells = {
        "max_micro_batch": (largest, count(largest) + (f" ({signed(count(gained), gained)})" if gained else "")),
        "saved_bytes": (saved, signed(gib(-saved), -saved) if saved else "same"),
        "speed_ratio": (ratio, "" if ratio is None else faster),
    }
    return [
        escape(lever["label"]) + risk,
        *[
            explained_cell(lever, place, field, shown(f"{place}.{field}", raw, said)) if said else ""
            for field, (raw, said) in cells.items()
        ],
        tag(
            "button",
            "Apply",
            type="button",
            class_="quiet",
            data_apply=link.write(link.flattened(lever["change"])),
            aria_label=f"Apply: {lever['label']}",
        ),
    ]


def advice(result: dict[str, Any]) -> str:
    """What would let it take more? Each single change, what it buys and what it risks."""
    levers = result.get("advice")
    if not levers:
        return ""
    helps = [lever["batch_gained"] > 0 or lever["saved_bytes"] > 0 for lever in levers]
    rows = [_lever(lever, index) for index, lever in enumerate(levers) if helps[index]]
    rest = ", ".join(lever["label"] for index, lever in enumerate(levers) if not helps[index])
    columns = ["Change", "Largest batch", "Memory", "Speed", tag("span", "Apply", class_="visually-hidden")]
    listed = table("Changes and what they buy", columns, rows[:LEVERS_SHOWN], class_="levers") if rows else ""
    if rows[LEVERS_SHOWN:]:
        others = table("More changes", columns, rows[LEVERS_SHOWN:], class_="levers")
        further = len(rows) - LEVERS_SHOWN
        said = f"{count(further)} more that {noun(further, 'gains', 'gain')} less"
        listed += more("more-levers", said, others, class_="more")
    return listed + (tag("p", escape(f"Tried too, without gain here: {rest}."), class_="rest") if rest else "")


def fits_on(result: dict[str, Any]) -> str:
    """Which card would do? The largest micro-batch on others, each to be taken at once."""
    tiles = []
    for row in result.get("fits_on") or []:
        largest = row.get("max_micro_batch")
        here = row["gpu"] == result["gpu"]["id"]
        said = "not in this precision" if largest is None else count(largest) if largest else "none"
        tiles.append(
            tag(
                "li",
                tag(
                    "button",
                    tag("span", escape(row["name"])),
                    tag("b", said),
                    type="button",
                    class_="card" if largest else "card none",
                    disabled=here,
                    title=row.get("reason"),
                    data_apply=link.write({"gpu": row["gpu"]}),
                ),
            )
        )
    return tag("ul", *tiles, class_="cards", aria_label="Largest micro-batch, card by card") if tiles else ""


def speed(result: dict[str, Any]) -> str:
    """How fast is it? The step's time and what comes out of it."""
    seconds, rate = result.get("step_seconds"), result.get("samples_per_second")
    if seconds is None or rate is None or not result["fits"]:
        return ""
    facts = [
        fact("One optimizer step", explained(result, "step_seconds", duration(seconds))),
        fact("Samples a second", explained(result, "samples_per_second", significant(rate))),
    ]
    length = result["scenario"].get("sequence_length")
    if length:
        facts.append(fact("Tokens a second", explaining(result, "tokens_per_second", count(round(rate * length)))))
    utilization = result["time"]["model_flops_utilization"]
    if utilization is not None:
        alone = " of one GPU alone" if result.get("scaling") else ""
        facts.append(fact(f"MFU{alone}", explained(result, "time.model_flops_utilization", percent(utilization))))
        span, path = result["time"]["published_utilization"], "time.published_utilization"
        on = f" on {span['on']}" if span["on"] else ""
        ends = [shown(f"{path}.{end}", span[end], percent(span[end])) for end in ("low", "high")]
        facts.append(
            fact(f"Published MFU{on}, {span['runs']} language {noun(span['runs'], 'model')}", " to ".join(ends))
        )
    return numbers(*facts)


def facts(result: dict[str, Any]) -> str:
    """What is being trained: exact counts and notes."""
    total, trainable = result["parameters"], result["trainable_parameters"]
    rows = [fact("Parameters", explained(result, "parameters", count(total)))]
    if trainable != total:
        rows.append(fact("Trainable", explained(result, "trainable_parameters", count(trainable))))
    rows.append(fact("Task", escape(label("task", result["scenario"]["task"]))))
    notes = [tag("li", escape(note)) for note in result["model"].get("notes") or []]
    return numbers(*rows) + (tag("ul", *notes, class_="notes") if notes else "")


SECTIONS = {
    "answer": answer,
    "bar": bar,
    "summary": summary,
    "parts": parts,
    "advice": advice,
    "fits_on": fits_on,
    "speed": speed,
    "facts": facts,
}
SECTIONS.update(PLAN_SECTIONS)
SECTIONS.update(sections_take.SECTIONS)
# What takes many evaluations and is asked for after the numbers.
LATER = ("advice",) + sections_take.LATER
# What is asked for last, a few evaluations at a time.
LAST = ("fits_on",)


def digest(html: str) -> str:
    """What tells a section's HTML from another: what the page has already need not come again."""
    return f"{zlib.crc32(html.encode()):08x}"


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """What the page's main thread keeps of a result: for the form, for what a change did, for a screen reader."""
    return {
        "scenario": link.flattened(result["scenario"]),
        "micro_batch": result["micro_batch"],
        "max_micro_batch": result["max_micro_batch"],
        "peak_reserved_bytes": result["memory"]["peak_reserved_bytes"],
        "samples_per_second": result.get("samples_per_second"),
        "parts": sorted(key for key in result if result[key]),
        "spoken": spoken(result),
    }


# Figures


def figure(name: str, drawn: dict[str, Any], narrow: "dict[str, Any] | None" = None) -> str:
    """A figure: the drawing, what it says in words, and the table behind it; empty where there is no such figure.

    `narrow` is the same figure drawn for a small screen, where the width is not known yet.
    """
    if "svg" not in drawn:
        return ""
    columns = [escape(column) for column in drawn["table"]["columns"]]
    rows = [[escape(cell) for cell in row] for row in drawn["table"]["rows"]]
    behind = more(f"table-{name}", "Table", table(drawn["title"], columns, rows), class_="figure-table")
    drawing = tag("div", drawn["svg"], class_="drawing" if narrow is None else "drawing wide")
    if narrow is not None:
        drawing += tag("div", narrow["svg"], class_="drawing narrow")
    save = tag(
        "button",
        "Save",
        type="button",
        class_="quiet save",
        data_save_figure=name,
        aria_label=f"Save figure: {drawn['title']}",
    )
    return drawing + tag("figcaption", escape(drawn["text"])) + tag("div", behind, save, class_="figure-foot")
