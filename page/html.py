"""HTML as text: one function, so that every attribute is quoted and no tag is left open."""

from typing import Any

from page.format import at, escape

VOID = ("input", "br", "hr", "img")


def tag(name: str, *inside: str, **attributes: object) -> str:
    """
    One element: its content is HTML already, its attributes are text.

    An attribute's name is written with underscores (``class_``, ``data_result``); True stands for an attribute without
    a value, None and False for one that is left out.
    """
    head = name
    for key in sorted(attributes):
        value = attributes[key]
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        head += f" {attribute}" if value is True else f' {attribute}="{escape(value)}"'
    return f"<{head}>" if name in VOID else f"<{head}>{''.join(inside)}</{name}>"


def shown(path: str, raw: object, text: str) -> str:
    """One result on the page: what a person reads, with its place in the contract's result and its raw value."""
    # MicroPython reads and writes the last digits of a float its own way: twelve are the same everywhere.
    value = "" if raw is None else f"{raw:.12g}" if isinstance(raw, float) else raw
    return tag("data", escape(text), data_result=path, data_value=value, value=value)


def fact(title: str, html: str, *, peak: bool = False) -> str:
    """One number under its name, for a list of the class ``numbers``."""
    return tag("div", tag("dt", escape(title)), tag("dd", html), class_="peak" if peak else None)


def numbers(*facts: str) -> str:
    """A row of facts."""
    return tag("dl", *facts, class_="numbers")


def cited(text: str) -> str:
    """A source as HTML: what can be looked up is a link."""
    if text.startswith("https://"):
        return tag("a", escape(text), href=text, rel="noreferrer")
    said, *papers = text.split("arXiv:")
    out = escape(said)
    for rest in papers:
        end = 0
        while end < len(rest) and (rest[end].isdigit() or (rest[end] == "." and rest[end + 1 : end + 2].isdigit())):
            end += 1
        number = rest[:end]
        named = "arXiv:" + number
        out += tag("a", named, href="https://arxiv.org/abs/" + number, rel="noreferrer") if number else named
        out += escape(rest[end:])
    return out


def source(text: str) -> str:
    """A source behind what it is for."""
    return tag("span", cited(text), class_="source")


def explained(result: "dict[str, Any]", path: str, text: str, where: str = "") -> str:
    """A result on the page that opens its formula, the formula with its values, and its source.

    `where` tells places apart that show the same number.
    """
    value = at(result, path)
    return explaining(result, path, text if value is None else shown(path, value, text), where)


def explaining(result: "dict[str, Any]", path: str, html: str, where: str = "") -> str:
    """HTML that opens the explanation under `path`, where the result has one."""
    return _opening(result["explanations"].get(path), f"{where}{path}", html)


def explained_cell(row: "dict[str, Any]", path: str, field: str, html: str) -> str:
    """HTML in a table's row that opens the explanation of the row's field, where the row has one."""
    return _opening(row["explanations"].get(field), f"{path}.{field}", html)


def _opening(known: "dict[str, str] | None", name: str, html: str) -> str:
    if not known:
        return html
    rows = (
        ("Formula", escape(known["formula"])),
        ("Here", escape(known["values"])),
        ("Source", cited(known["source"])),
    )
    lines = [tag("span", tag("span", title, class_="term"), " ", said, class_="line") for title, said in rows]
    return why(name.replace(".", "-"), html, "".join(lines))


def why(name: str, html: str, explanation: str) -> str:
    """Some words with a dotted underline that opens their explanation."""
    return tag("button", html, type="button", class_="why", popovertarget=f"why-{name}") + tag(
        "span", explanation, popover=True, id=f"why-{name}", class_="explanation", role="note"
    )


def more(name: str, summary: str, *inside: str, class_: str) -> str:
    """Something folded that opens; what was open stays open when the result changes."""
    return tag("details", tag("summary", summary), *inside, id=name, class_=class_)


def table(label: str, columns: "list[str]", rows: "list[list[str]]", *, class_: "str | None" = None) -> str:
    """A table that scrolls sideways by itself; cells are HTML, the first of a row is its heading."""
    head = tag("tr", *[tag("th", column, scope="col") for column in columns])
    body = "".join(tag("tr", tag("th", row[0], scope="row"), *[tag("td", cell) for cell in row[1:]]) for row in rows)
    inside = tag("table", tag("thead", head), tag("tbody", body), class_=class_)
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=label)
