"""Counts in sentences. The page has the like for its own texts in ``page/format.py``: neither sees the other."""

from __future__ import annotations


def counted(number: float, singular: str, plural: str = "", *, said: str = "") -> str:
    """A number with its thousands apart and its noun.

    Parameters
    ----------
    number : float
        How many.
    singular, plural : str
        The noun; the plural only where it is not the singular with an s.
    said : str
        The number as it is written, where that is not to its last digit.

    >>> counted(1, "pass", "passes"), counted(1600, "sample"), counted(0.996, "GPU-hour", said="1")
    ('1 pass', '1,600 samples', '1 GPU-hour')
    """
    said = said or f"{number:,}"
    return f"{said} {singular if said == '1' else plural or singular + 's'}"
