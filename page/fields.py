"""What a person typed, as a number within its limits or as a message that says what is allowed."""

import math

from page.format import count

DIGIT_GROUPS = (",", "_", "\u2009", "\u202f", "\u00a0", " ")


def _ungrouped(text: str) -> str:
    """Take the thousands separators out of `text`; a comma that groups no thousands stays, since it may be decimal."""
    for separator in DIGIT_GROUPS:
        if separator in text:
            first, *groups = text.split(separator)
            whole = all(group.isdigit() and len(group) == 3 for group in groups) and first.lstrip("+-").isdigit()
            if whole and len(first.lstrip("+-")) <= 3:
                return first + "".join(groups)
    return text


def _plain(number: float) -> str:
    return count(int(number)) if number == int(number) else str(number)


def limits(minimum: float, maximum: float, *, whole: bool) -> str:
    """Say which numbers are allowed."""
    kind = "a whole number" if whole else "a number"
    return f"{kind} from {_plain(minimum)} to {_plain(maximum)}"


def number(text: str, minimum: float, maximum: float, *, whole: bool) -> "tuple[float | None, str]":
    """
    Read a number field.

    Returns the number and an empty message, or None and the message for the person who typed it.
    """
    allowed = limits(minimum, maximum, whole=whole)
    typed = _ungrouped(text.strip())
    if not typed:
        return None, f"Empty: enter {allowed}."
    try:
        value = float(typed)
    except ValueError:
        hint = " Write decimals with a point." if "," in typed else ""
        return None, f"\u201c{text.strip()}\u201d is not a number: enter {allowed}.{hint}"
    if not math.isfinite(value) or not minimum <= value <= maximum:
        return None, f"Out of range: enter {allowed}."
    if whole and value != int(value):
        return None, f"Not whole: enter {allowed}."
    return (int(value) if value == int(value) else value), ""


def slider_end(largest: int, chosen: int) -> int:
    """How far the micro-batch's slider goes: well beyond what fits."""
    return max(8, 2 * largest, chosen)
