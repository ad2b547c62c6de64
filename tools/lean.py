"""Make what is drawn at build time smaller, and let it wait: it travels with the page, whoever scrolls to it.

The page draws its own, at the width it has; there the time to draw counts, and not the size.
"""

from __future__ import annotations

import re
from typing import Any

from page.html import tag

DECIMALS = 1
NUMBER = re.compile(r"-?\d+\.\d{2,}(?!\d|e)")
# What matplotlib draws behind figure and axes, where it is to be transparent.
INVISIBLE = re.compile(r'<g id="[^"]*-patch_\d+">\s*<path d="[^"]*" style="fill: none"/>\s*</g>')
NOTHING = re.compile(r'<defs>\s*</defs>| transform="rotate\(-0 [^"]*"')
DRAWN = re.compile(r' (d|x|y|x1|x2|y1|y2|transform|points|width|height)="[^"]*"')
BETWEEN_TAGS = re.compile(r">\s+<")
IN_PATH = re.compile(r"\s+")


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.{DECIMALS}f}".rstrip("0").rstrip(".")


def _attribute(match: re.Match[str]) -> str:
    return IN_PATH.sub(" ", NUMBER.sub(_rounded, match[0])).replace(' "', '"')


def lean(svg: str) -> str:
    """Return the same drawing in fewer bytes: a tenth of a point is less than anyone sees.

    Parameters
    ----------
    svg : str
        As `calc.plots.draw` gives it.
    """
    svg = NOTHING.sub("", INVISIBLE.sub("", svg))
    return BETWEEN_TAGS.sub("><", DRAWN.sub(_attribute, svg)).strip()


def leaner(drawn: dict[str, Any]) -> dict[str, Any]:
    """Return what `calc.plots.draw` gave, its drawing made smaller."""
    return {**drawn, "svg": lean(drawn["svg"])} if "svg" in drawn else drawn


def put_away(html: str) -> str:
    """Return content as text that static/later.js puts into place when it is seen: the start need not take it apart.

    A browser without scripts shows it as it is.
    """
    return tag("noscript", html)
