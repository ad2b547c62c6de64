"""The results as HTML: one function a section, from the contract's result to what its mount in the page holds.

A section whose part of the result is absent returns an empty text, and the page hides it. To add one, write its
function, name it in `SECTIONS` and put an element with ``data-section`` of that name into index.html.
"""

from typing import Any

from page import link, sections_take
from page.format import TIMES, at, count, duration, escape, fixed, gib, parameters, signed, significant
from page.html import fact, more, numbers, shown, table, tag, why
from page.sections_plan import PLAN_SECTIONS, wanted_line
from page.words import FIELDS, PHASES, label

GIB = 1 << 30


def field_name(key: str) -> str:
    """A field's name as the form says it."""
    return FIELDS.get(key, (key.partition(".")[2] or key).replace("_", " "))


# The answer


def shape(result: dict[str, Any]) -> str:
    """The input's shape, as it follows the model's name in a sentence."""
    scenario = result["scenario"]
    if scenario.get("sequence_length"):
        target = scenario.get("target_length")
        more_tokens = f" and {count(target)} target tokens" if target else ""
        return f" at {count(scenario['sequence_length'])} tokens{more_tokens}"
    if scenario.get("image_size"):
        return f" at {scenario['image_size']} {TIMES} {scenario['image_size']} pixels"
    if scenario.get("audio_frames"):
        return f" at {count(scenario['audio_frames'])} audio frames"
    return ""


def model_name(result: dict[str, Any]) -> str:
    """The model's name, its size behind it where the name does not say it."""
    name: str = result["model"]["name"]
    size = parameters(result["parameters"])
    return name if "(" in name or size in name else f"{name} ({size})"


def card_name(result: dict[str, Any]) -> str:
    """The card or cards, as they stand in a sentence."""
    cards = result["scenario"].get("gpus") or 1
    name = result["gpu"]["name"]
    if cards > 1:
        return f"{cards} {TIMES} {name}"
    return name if name.startswith("a ") else f"one {name}"


def _setting(result: dict[str, Any]) -> str:
    precision = label("precision", result["scenario"]["precision"])
    return escape(f"{model_name(result)}{shape(result)} in {precision} on {card_name(result)}")


def _next_needs(result: dict[str, Any]) -> str:
    needs = result.get("next_needs_bytes")
    if needs is None:
        return ""
    following = count(result["max_micro_batch"] + 1)
    return f" {following} would need {shown('next_needs_bytes', needs, gib(needs))} more."


def _band(result: dict[str, Any]) -> str:
    safe, optimistic = result.get("max_micro_batch_safe"), result.get("max_micro_batch_optimistic")
    if safe is None or optimistic is None:
        return ""
    safe_text = why(
        "safe",
        "Safe " + shown("max_micro_batch_safe", safe, count(safe)),
        "Fits even if the run needs as much more than the model says as the runs we compared with needed at worst.",
    )
    optimistic_text = why(
        "optimistic",
        "optimistic " + shown("max_micro_batch_optimistic", optimistic, count(optimistic)),
        "May fit if the run needs as much less than the model says as the runs we compared with needed at best.",
    )
    return " " + tag("span", f"{safe_text}, {optimistic_text}.", class_="band")


def answer(result: dict[str, Any]) -> str:
    """Does it fit? One sentence."""
    largest, chosen = result["max_micro_batch"], result["micro_batch"]
    reserved, limit = result["memory"]["peak_reserved_bytes"], result["memory"]["limit_bytes"]
    setting, band = _setting(result), _band(result)
    chosen_text = shown("micro_batch", chosen, count(chosen))
    largest_text = why(
        "largest",
        shown("max_micro_batch", largest, count(largest)),
        "The largest micro-batch whose peak, as the allocator reserves it, stays within the "
        f"{gib(limit)} that the card leaves to it. Found by replaying a training step at growing sizes.",
    )
    if not largest:
        said = (
            tag("strong", "Nothing fits yet.")
            + f" {setting}: micro-batch {chosen_text} needs {gib(reserved)}, and {gib(limit)} can be used:"
            + f" {largest_text} samples fit."
        )
    elif chosen > largest:
        said = (
            tag("strong", f"Micro-batch {chosen_text} does not fit")
            + f" {setting}: it needs {gib(reserved - limit)} more than the card leaves. {largest_text} fits.{band}"
        )
    elif chosen < largest:
        said = (
            tag("strong", f"Micro-batch {chosen_text} fits")
            + f" {setting}; up to {largest_text} would.{_next_needs(result)}{band}"
        )
    else:
        said = tag("strong", f"Micro-batch {largest_text} fits") + f" {setting}.{_next_needs(result)}{band}"
    fits = "true" if result["fits"] else "false"
    return tag("p", said, class_="answer", data_fits=fits, data_nothing=not largest) + wanted_line(result)


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
    return f"{_verdict(result)}.{beyond} It takes {process} of {gib(result['gpu']['memory_bytes'])}."


def effect(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What a change did to the batch and to the speed, in a few words."""
    said = []
    gained = after["max_micro_batch"] - before["max_micro_batch"]
    needed = after["memory"]["peak_reserved_bytes"] - before["memory"]["peak_reserved_bytes"]
    if gained:
        said.append(f"{signed(count(gained), gained)} batch")
    elif needed:
        said.append(signed(gib(needed), needed))
    old, new = before.get("samples_per_second"), after.get("samples_per_second")
    if old and new:
        percent = round((new / old - 1) * 100)
        if percent:
            said.append(f"{signed(count(percent), percent)} % speed")
    return ", ".join(said)


# Memory


def _family(identifier: str) -> str:
    """The part that a component belongs to, which gives it its colour."""
    return identifier.partition(".")[0]


def _bar_pieces(result: dict[str, Any]) -> list[tuple[str, str, int]]:
    """What lies on the card, in order: its name for colour and link, its label, its bytes."""
    memory = result["memory"]
    pieces = [(part["id"], part["label"], part["bytes"]) for part in memory["components"]]
    pieces.append(("slack", "Reserved, not used", memory["peak_reserved_bytes"] - memory["peak_allocated_bytes"]))
    pieces.append(("context", "CUDA context, other processes", memory["process_bytes"] - memory["peak_reserved_bytes"]))
    return pieces


def bar(result: dict[str, Any]) -> str:
    """The card as a bar, its parts in order, what does not fit beyond its end."""
    card, process = result["gpu"]["memory_bytes"], result["memory"]["process_bytes"]
    scale, over = max(card, process), process - card
    end = f"inset-inline-start:{fixed(card * 100, scale, 3)}%"
    pieces = [
        tag(
            "li",
            tag("span", escape(f"{title}: {gib(size)}"), class_="tip"),
            class_=f"part part-{_family(name)}",
            style=f"flex-basis:{fixed(size * 100, scale, 3)}%",
        )
        for name, title, size in _bar_pieces(result)
        if size > 0
    ]
    if over > 0:
        pieces.append(tag("li", class_="overflow", style=end, aria_hidden="true"))
    pieces.append(tag("li", class_="end", style=end, aria_hidden="true"))
    said = f"{shown('memory.process_bytes', process, gib(process))} of {shown('gpu.memory_bytes', card, gib(card))}"
    said += ": " + tag("strong", f"{gib(over)} too much") if over > 0 else f", {gib(-over)} free"
    parts_list = tag("ul", *pieces, class_="bar", aria_label="Memory of the card, part by part")
    return parts_list + tag("p", said, class_="bar-said")


def _source(source: str) -> str:
    if source.startswith("https://"):
        return tag("a", escape(source), href=source, rel="noreferrer")
    return escape(source)


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
        ("Source", _source(part["source"])),
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
            shown(f"memory.phases.{name}", memory["phases"][name], gib(memory["phases"][name])),
            peak=name == phase,
        )
        for name, words in PHASES
    ]
    totals = [
        fact(title, shown(path, at(result, path), gib(at(result, path))), hint=hint)
        for path, title, hint in (
            ("memory.peak_allocated_bytes", "Tensors at the peak", "As torch.cuda.max_memory_allocated() counts them"),
            ("memory.peak_reserved_bytes", "Reserved", "What the caching allocator takes from the card for them"),
            ("memory.process_bytes", "Process", "That and what the allocator cannot use, as nvidia-smi shows it"),
            ("memory.limit_bytes", "Usable", "What the card leaves to the allocator"),
        )
    ]
    where = f"The peak is {memory['peak_instant']}."
    return tag("p", escape(where)) + tag("div", *rows, class_="parts") + numbers(*phases) + numbers(*totals)


# What to change, and how to go on


def _lever(lever: dict[str, Any], index: int) -> list[str]:
    place = f"advice.{index}"
    largest, gained, saved = lever["max_micro_batch"], lever["batch_gained"], lever["saved_bytes"]
    ratio = lever["speed_ratio"]
    percent = 0 if ratio is None else round((ratio - 1) * 100)
    faster = f"{signed(count(percent), percent)} %" if percent else "same"
    risk = tag("small", f"{escape(lever['risk'])} {tag('span', escape(lever['source']), class_='source')}")
    return [
        escape(lever["label"]) + risk,
        shown(
            f"{place}.max_micro_batch",
            largest,
            count(largest) + (f" ({signed(count(gained), gained)})" if gained else ""),
        ),
        shown(f"{place}.saved_bytes", saved, signed(gib(-saved), -saved) if saved else "same"),
        "" if ratio is None else shown(f"{place}.speed_ratio", ratio, faster),
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
    columns = ["Change", "Largest batch", "Memory", "Speed at it", tag("span", "Apply", class_="visually-hidden")]
    listed = table("Changes and what they buy", columns, rows, class_="levers") if rows else ""
    return listed + (tag("p", escape(f"Tried too, without gain here: {rest}."), class_="rest") if rest else "")


def speed(result: dict[str, Any]) -> str:
    """How fast is it? The step's time and what comes out of it."""
    seconds, rate = result.get("step_seconds"), result.get("samples_per_second")
    if seconds is None or rate is None:
        return ""
    facts = [
        fact("One optimizer step", shown("step_seconds", seconds, duration(seconds))),
        fact("Samples a second", shown("samples_per_second", rate, significant(rate))),
    ]
    length = result["scenario"].get("sequence_length")
    if length:
        facts.append(fact("Tokens a second", significant(rate * length)))
    return numbers(*facts)


def facts(result: dict[str, Any]) -> str:
    """What is being trained: exact counts and notes."""
    total, trainable = result["parameters"], result["trainable_parameters"]
    rows = [fact("Parameters", shown("parameters", total, count(total)))]
    if trainable != total:
        rows.append(fact("Trainable", shown("trainable_parameters", trainable, count(trainable))))
    rows.append(fact("Task", escape(label("task", result["scenario"]["task"]))))
    notes = [tag("li", escape(note)) for note in result["model"].get("notes") or []]
    return numbers(*rows) + (tag("ul", *notes, class_="notes") if notes else "")


SECTIONS = {
    "answer": answer,
    "bar": bar,
    "summary": summary,
    "parts": parts,
    "advice": advice,
    "speed": speed,
    "facts": facts,
}
SECTIONS.update(PLAN_SECTIONS)
SECTIONS.update(sections_take.SECTIONS)
# What takes many evaluations and is asked for after the numbers.
LATER = ("advice",) + sections_take.LATER


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
    return drawing + tag("figcaption", escape(drawn["text"]), save) + behind
