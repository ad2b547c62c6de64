"""Numbers and text as the page shows them: integer arithmetic, so that CPython and MicroPython round alike."""

from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MINUS = "\u2212"
TIMES = "\u00d7"


def escape(text: object) -> str:
    """`text` as HTML text or as the value of a quoted attribute."""
    out = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return out.replace('"', "&quot;").replace("'", "&#39;")


def count(number: int) -> str:
    """A whole number with its thousands apart."""
    sign = MINUS if number < 0 else ""
    return f"{sign}{abs(number):,}"


def noun(number: float, singular: str, plural: str = "") -> str:
    """The noun that follows a count; the plural only where it is not the singular with an s."""
    return singular if number == 1 else plural or singular + "s"


def signed(text: str, number: float) -> str:
    """`text`, which says `number`, with a plus before what grows."""
    return f"+{text}" if number > 0 else text


def fixed(numerator: int, denominator: int, decimals: int) -> str:
    """The quotient of two whole numbers with a fixed number of decimals, a half rounded away from zero."""
    scale = 10**decimals
    scaled = (abs(numerator) * scale * 2 + denominator) // (2 * denominator)
    sign = MINUS if numerator < 0 and scaled else ""
    whole = f"{sign}{scaled // scale:,}"
    if not decimals:
        return whole
    rest = str(scaled % scale)
    return f"{whole}.{'0' * (decimals - len(rest))}{rest}"


def gib(size_bytes: int) -> str:
    """A size in GiB, or in the unit below where GiB would say nothing."""
    size = abs(size_bytes)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size * 10 >= unit:
            decimals = 0 if size >= 100 * unit else 1 if size >= 10 * unit or unit != GIB else 2
            return f"{fixed(size_bytes, unit, decimals)} {name}"
    return f"{count(size_bytes)} B"


def significant(number: float, digits: int = 3) -> str:
    """A positive measured or modelled number with so many digits that mean something."""
    if number == 0:
        return "0"
    decimals = 0
    magnitude = abs(number)
    while magnitude < 10 ** (digits - 1) and decimals < 12:
        magnitude *= 10
        decimals += 1
    return fixed(int(number * 10**12), 10**12, decimals) if magnitude < 10**15 else f"{number:.3g}"


def duration(seconds: float) -> str:
    """A time in the unit a person would say it in."""
    for unit, name in ((86400 * 365, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{significant(seconds / unit)} {name}"
    if seconds >= 1:
        return f"{significant(seconds)} s"
    if seconds >= 1e-3:
        return f"{significant(seconds * 1e3)} ms"
    return f"{significant(seconds * 1e6)} \u00b5s"


def parameters(number: int) -> str:
    """A parameter count as the field says it: 124M, 8.03B."""
    for unit, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            decimals = 0 if number >= 100 * unit else 1 if number >= 10 * unit else 2
            return f"{fixed(number, unit, decimals)}{letter}"
    return str(number)


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{fixed(round(share * 10**6), 10**4, 0)}\u00a0%"


def large(number: float) -> str:
    """A positive number of which the size matters: exact to some thousands, then 1.53M, then 2e19."""
    whole = round(number)
    if number < 10 and number != whole:
        return significant(number)
    if whole < 10**4:
        return count(whole)
    if whole < 10**15:
        return parameters(whole)
    power = len(str(whole)) - 1
    return f"{fixed(whole, 10**power, 0)}e{power}"


def at(result: dict[str, Any], path: str) -> Any:
    """The value in `result` under a dotted path, list positions included; None where there is none."""
    value: Any = result
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(part)
        else:
            return None
    return value
