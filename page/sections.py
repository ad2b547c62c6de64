"""The results as HTML: one function a section, from the contract's result to what its mount in the page holds.

A section whose part of the result is absent returns an empty text, and the page hides it. To add one, write its
function, name it in `SECTIONS` and put an element with ``data-section`` of that name into index.html.
"""

from typing import Any

from page import link
from page.format import at, count, duration, escape, fixed, gib, parameters, shown, significant
from page.words import FIELDS, PHASES, label

TIMES = "\u00d7"


def field_name(key: str) -> str:
    """A field's name as the form says it."""
    return FIELDS.get(key, key.replace("_", " ").split(".")[-1])


def _is_known(result: dict[str, Any], path: str) -> bool:
    return at(result, path) is not None


def _fact(title: str, html: str, *, hint: str = "", peak: bool = False) -> str:
    """One number under its name."""
    marked = ' class="peak"' if peak else ""
    tip = f' title="{escape(hint)}"' if hint else ""
    return f"<div{marked}><dt{tip}>{escape(title)}</dt><dd>{html}</dd></div>"


def _why(name: str, text: str, explanation: str) -> str:
    """`text` with a dotted underline that opens its explanation."""
    return (
        f'<button type="button" class="why" popovertarget="why-{name}">{text}</button>'
        f'<span popover id="why-{name}" class="explanation" role="note">{explanation}</span>'
    )


def shape(result: dict[str, Any]) -> str:
    """The input's shape, as it follows the model's name in a sentence."""
    scenario = result["scenario"]
    if scenario.get("sequence_length"):
        target = scenario.get("target_length")
        more = f" and {count(target)} target tokens" if target else ""
        return f" at {count(scenario['sequence_length'])} tokens{more}"
    if scenario.get("image_size"):
        return f" at {scenario['image_size']} {TIMES} {scenario['image_size']} pixels"
    if scenario.get("audio_frames"):
        return f" at {count(scenario['audio_frames'])} audio frames"
    return ""


def model_name(result: dict[str, Any]) -> str:
    """The model's name, its size behind it where the name does not say it."""
    name = result["model"]["name"]
    size = parameters(result["parameters"])
    return name if "(" in name or size in name else f"{name} ({size})"


def _setting(result: dict[str, Any]) -> str:
    scenario = result["scenario"]
    cards = scenario.get("gpus") or 1
    card = f"{cards} {TIMES} {result['gpu']['name']}" if cards > 1 else f"one {result['gpu']['name']}"
    return f"{escape(model_name(result))}{shape(result)} in {escape(label('precision', scenario.get('precision')))} on {escape(card)}"


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
    safe_text = _why(
        "safe",
        f"Safe {shown('max_micro_batch_safe', safe, count(safe))}",
        "Fits even if the run needs as much more than the model says as the runs we compared with needed at worst.",
    )
    optimistic_text = _why(
        "optimistic",
        f"optimistic {shown('max_micro_batch_optimistic', optimistic, count(optimistic))}",
        "May fit if the run needs as much less than the model says as the runs we compared with needed at best.",
    )
    return f' <span class="band">{safe_text}, {optimistic_text}.</span>'


def answer(result: dict[str, Any]) -> str:
    """Does it fit? One sentence."""
    largest, chosen = result["max_micro_batch"], result["micro_batch"]
    reserved, limit = result["memory"]["peak_reserved_bytes"], result["memory"]["limit_bytes"]
    band = _band(result)
    if not largest:
        return (
            f'<p class="answer" data-fits="false"><strong>Nothing fits yet.</strong> {_setting(result)}: micro-batch '
            f"{count(chosen)} needs {gib(reserved)}, and {gib(limit)} can be used. "
            f'{shown("max_micro_batch", 0, "0")} samples fit.</p>'
        )
    why = _why(
        "largest",
        shown("max_micro_batch", largest, count(largest)),
        f"The largest micro-batch whose peak, as the allocator reserves it, stays within the {gib(limit)} that the card leaves to it. "
        "Found by replaying a training step at growing sizes.",
    )
    if chosen > largest:
        return (
            f'<p class="answer" data-fits="false"><strong>Micro-batch {shown("micro_batch", chosen, count(chosen))} does not fit</strong> '
            f"{_setting(result)}: it needs {gib(reserved - limit)} more than the card leaves. {why} fits.{band}</p>"
        )
    if chosen < largest:
        return (
            f'<p class="answer" data-fits="true"><strong>Micro-batch {shown("micro_batch", chosen, count(chosen))} fits</strong> '
            f"{_setting(result)}; up to {why} would.{_next_needs(result)}{band}</p>"
        )
    return f'<p class="answer" data-fits="true"><strong>Micro-batch {why} fits</strong> {_setting(result)}.{_next_needs(result)}{band}</p>'


def summary(result: dict[str, Any]) -> str:
    """The answer in one line, for the bar that stays at the bottom of a small screen."""
    largest, chosen = result["max_micro_batch"], result["micro_batch"]
    memory = result["memory"]
    fits = "Nothing fits" if not largest else f"Batch {count(chosen)} {'fits' if chosen <= largest else 'does not fit'}"
    used = fixed(memory["process_bytes"], 1 << 30, 1)
    return f"<strong>{fits}</strong> <span>{used} of {gib(result['gpu']['memory_bytes'])}</span>"


def spoken(result: dict[str, Any]) -> str:
    """The answer for a screen reader, said after changes have come to rest."""
    largest, chosen = result["max_micro_batch"], result["micro_batch"]
    process = gib(result["memory"]["process_bytes"])
    if not largest:
        return f"Nothing fits. Micro-batch {chosen} needs {process}."
    verdict = "fits" if chosen <= largest else f"does not fit, {largest} does"
    return f"Micro-batch {chosen} {verdict}. It takes {process} of {gib(result['gpu']['memory_bytes'])}."


def _signed(text: str, number: float) -> str:
    return text if number < 0 else f"+{text}"


def effect(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What a change did to the batch and to the speed, in a few words."""
    said = []
    more = after["max_micro_batch"] - before["max_micro_batch"]
    if more:
        said.append(f"{_signed(count(more), more)} batch")
    elif after["memory"]["peak_reserved_bytes"] != before["memory"]["peak_reserved_bytes"]:
        difference = after["memory"]["peak_reserved_bytes"] - before["memory"]["peak_reserved_bytes"]
        said.append(_signed(gib(difference), difference))
    old, new = before.get("samples_per_second"), after.get("samples_per_second")
    if old and new:
        percent = int(round((new / old - 1) * 100))
        if percent:
            said.append(f"{_signed(count(percent), percent)} % speed")
    return ", ".join(said)


def _family(identifier: str) -> str:
    """The part that a component belongs to, which gives it its colour."""
    return identifier.split(".")[0]


def _bar_pieces(result: dict[str, Any]) -> list[tuple[str, str, int]]:
    """What lies on the card, in order: its name for colour and link, its label, its bytes."""
    memory = result["memory"]
    pieces = [(part["id"], part["label"], part["bytes"]) for part in memory["components"] if part["bytes"]]
    slack = memory["peak_reserved_bytes"] - memory["peak_allocated_bytes"]
    outside = memory["process_bytes"] - memory["peak_reserved_bytes"]
    return pieces + [("slack", "Reserved, not used", slack), ("context", "CUDA context and other processes", outside)]


def bar(result: dict[str, Any]) -> str:
    """The card as a bar, its parts in order, what does not fit beyond its end."""
    card, process = result["gpu"]["memory_bytes"], result["memory"]["process_bytes"]
    scale = max(card, process)
    pieces = "".join(
        f'<li class="part part-{escape(_family(name))}" style="flex-basis:{fixed(size * 100, scale, 3)}%">'
        f'<a href="#part-{escape(name)}" tabindex="-1" aria-hidden="true"></a>'
        f'<span class="visually-hidden">{escape(title)}: {gib(size)}</span><span class="tip" aria-hidden="true">{escape(title)} {gib(size)}</span></li>'
        for name, title, size in _bar_pieces(result)
        if size > 0
    )
    over = process - card
    end = fixed(card * 100, scale, 3)
    overflow = f'<span class="overflow" style="inset-inline-start:{end}%"></span>' if over > 0 else ""
    said = (
        f"{shown('memory.process_bytes', process, gib(process))} of {shown('gpu.memory_bytes', card, gib(card))}"
        + (f": <strong>{gib(over)} too much</strong>" if over > 0 else f", {gib(-over)} free")
    )
    return (
        f'<ul class="bar" aria-label="Memory of the card, part by part">{pieces}{overflow}'
        f'<li class="end" style="inset-inline-start:{end}%" aria-hidden="true"></li></ul><p class="bar-said">{said}</p>'
    )


def _values(values: Any) -> str:
    """The numbers that a formula was given."""
    if not values:
        return ""
    if isinstance(values, dict):
        said = ", ".join(
            f"{escape(str(name).replace('_', ' '))} = {count(value) if isinstance(value, int) and not isinstance(value, bool) else escape(value)}"
            for name, value in values.items()
        )
    else:
        said = escape(values)
    return f"<dt>With this scenario's values</dt><dd>{said}</dd>"


def _source(source: Any) -> str:
    if not source:
        return ""
    text = str(source)
    shown_source = f'<a href="{escape(text)}" rel="noreferrer">{escape(text)}</a>' if text.startswith("https://") else escape(text)
    return f"<dt>Source</dt><dd>{shown_source}</dd>"


def _part(part: dict[str, Any], index: int, total: int) -> str:
    name, size = part["id"], part["bytes"]
    number = shown(f"memory.components.{index}.bytes", size, gib(size))
    family = escape(_family(name))
    exact = f"<dt>Exactly</dt><dd>{count(size)} bytes</dd>"
    formula = f"<dt>Formula</dt><dd><code>{escape(part.get('formula') or '')}</code></dd>" if part.get("formula") else ""
    return (
        f'<details id="part-{escape(name)}" class="part-row"><summary><span class="swatch part-{family}"></span>'
        f'<span class="name">{escape(part["label"])}</span><span class="share">{fixed(size * 100, total, 1)} %</span>'
        f"{number}</summary>"
        f"<dl>{formula}{_values(part.get('values'))}{exact}{_source(part.get('source'))}</dl></details>"
    )


def parts(result: dict[str, Any]) -> str:
    """Where does memory go? The parts at the peak, each with its formula and source, and the peak of each phase."""
    memory = result["memory"]
    total = memory["peak_allocated_bytes"]
    rows = "".join(_part(part, index, total) for index, part in enumerate(memory["components"]))
    phases = "".join(
        _fact(
            f"Peak in {words}",
            shown(f"memory.phases.{name}", memory["phases"][name], gib(memory["phases"][name])),
            peak=name == memory["peak_phase"],
        )
        for name, words in PHASES
    )
    peak = f"<p>The peak is in the {dict(PHASES)[memory['peak_phase']]} phase: {escape(memory['peak_instant'])}.</p>"
    sums = (
        ("memory.peak_allocated_bytes", "Tensors at the peak", "What tensors hold, as torch.cuda.max_memory_allocated() reports it"),
        ("memory.peak_reserved_bytes", "Reserved by the allocator", "What the caching allocator takes from the card for it"),
        ("memory.process_bytes", "Process", "That and what the allocator cannot use, as nvidia-smi shows it"),
        ("memory.limit_bytes", "Usable", "What the card leaves to the allocator"),
    )
    totals = "".join(_fact(title, shown(path, at(result, path), gib(at(result, path))), hint=hint) for path, title, hint in sums)
    return f'{peak}<div class="parts">{rows}</div><dl class="numbers">{phases}</dl><dl class="numbers">{totals}</dl>'


def _lever(lever: dict[str, Any], index: int) -> str:
    place = f"advice.{index}"
    gained, saved, ratio = lever["batch_gained"], lever["saved_bytes"], lever["speed_ratio"]
    largest = lever["max_micro_batch"]
    batch = shown(f"{place}.max_micro_batch", largest, f"{count(largest)} ({_signed(count(gained), gained)})")
    memory = shown(f"{place}.saved_bytes", saved, _signed(gib(-saved), -saved)) if saved else "same"
    percent = 0 if ratio is None else int(round((ratio - 1) * 100))
    speed = "" if ratio is None else shown(f"{place}.speed_ratio", ratio, f"{_signed(count(percent), percent)} %" if percent else "same")
    link_text = escape(link.write(link.flattened(lever["change"])))
    return (
        f'<tr><th scope="row">{escape(lever["label"])}<small>{escape(lever["risk"])} '
        f'<span class="source">{escape(lever["source"])}</span></small></th><td>{batch}</td><td>{memory}</td><td>{speed}</td>'
        f'<td><button type="button" class="quiet" data-apply="{link_text}" aria-label="Apply: {escape(lever["label"])}">Apply</button></td></tr>'
    )


def advice(result: dict[str, Any]) -> str:
    """What would let it take more? Each single change, what it buys and what it risks."""
    levers = result.get("advice")
    if not levers:
        return ""
    rows = "".join(_lever(lever, index) for index, lever in enumerate(levers))
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Changes and what they buy"><table class="levers"><thead><tr>'
        '<th scope="col">Change</th><th scope="col">Largest batch</th><th scope="col">Memory</th><th scope="col">Speed at it</th>'
        f'<th scope="col"><span class="visually-hidden">Apply</span></th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _plan_sentence(path: str, plan: dict[str, Any], wanted: int) -> str:
    cards = plan.get("data_parallel") or 1
    total = plan.get("global_batch") or plan["micro_batch"] * plan["accumulation_steps"] * cards
    across = f" {TIMES} {shown(path + '.data_parallel', cards, count(cards))} GPUs" if cards > 1 else ""
    verdict = "" if total == wanted else f" ({'+' if total > wanted else ''}{count(total - wanted)})"
    return (
        f"<strong>{count(total)}</strong> = {shown(path + '.micro_batch', plan['micro_batch'], count(plan['micro_batch']))} samples {TIMES} "
        f"{shown(path + '.accumulation_steps', plan['accumulation_steps'], count(plan['accumulation_steps']))} accumulation steps{across}{verdict}"
    )


def plan(result: dict[str, Any]) -> str:
    """How do I reach the batch I want? Accumulation, exactly or nearest."""
    wanted = result.get("plan")
    if not wanted or not wanted.get("global_batch"):
        return ""
    target = wanted["global_batch"]
    exact = wanted.get("exact")
    lead = (
        f'<p class="lead">{_plan_sentence("plan.exact", exact, target)}.</p>'
        if exact
        else f'<p class="lead">No split makes exactly {shown("plan.global_batch", target, count(target))}.</p>'
    )
    nearest = "".join(
        "<li>" + _plan_sentence(f"plan.nearest.{index}", near, target) + "</li>" for index, near in enumerate(wanted["nearest"])
    )
    others = f"<p>{'Larger passes, other totals' if exact else 'Nearest'}:</p><ul>{nearest}</ul>" if nearest else ""
    return lead + others


def speed(result: dict[str, Any]) -> str:
    """How fast is it? The step's time and what comes out of it."""
    facts = []
    if _is_known(result, "step_seconds"):
        facts.append(("One optimizer step", shown("step_seconds", result["step_seconds"], duration(result["step_seconds"]))))
    if _is_known(result, "samples_per_second"):
        rate = result["samples_per_second"]
        facts.append(("Samples a second", shown("samples_per_second", rate, significant(rate))))
        length = result["scenario"].get("sequence_length")
        if length:
            facts.append(("Tokens a second", escape(significant(rate * length))))
    rows = "".join(_fact(title, html) for title, html in facts)
    return f'<dl class="numbers">{rows}</dl>' if rows else ""


def facts(result: dict[str, Any]) -> str:
    """What is being trained: exact counts and notes."""
    rows = [("Parameters", shown("parameters", result["parameters"], count(result["parameters"])))]
    trainable = result.get("trainable_parameters")
    if trainable is not None and trainable != result["parameters"]:
        rows.append(("Trainable", shown("trainable_parameters", trainable, count(trainable))))
    body = "".join(_fact(title, html) for title, html in rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in result["model"].get("notes") or [])
    return f'<dl class="numbers">{body}</dl>' + (f'<ul class="notes">{notes}</ul>' if notes else "")


SECTIONS = {
    "answer": answer,
    "bar": bar,
    "summary": summary,
    "parts": parts,
    "advice": advice,
    "plan": plan,
    "speed": speed,
    "facts": facts,
}


def table(name: str, columns: list[str], rows: list[list[Any]]) -> str:
    """The table behind a figure."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<details id="table-{escape(name)}" class="figure-table"><summary>Table</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Table of the figure"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )


def figure(name: str, drawn: dict[str, Any]) -> str:
    """A figure: the drawing, what it says in words, and its table."""
    return (
        f'<div class="drawing">{drawn["svg"]}</div><figcaption>{escape(drawn["text"])}</figcaption>'
        f"{table(name, drawn['table']['columns'], drawn['table']['rows'])}"
    )
