"""How the catalogs are searched: by words, in any order, anywhere in an entry's text."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Entry = TypeVar("Entry")

_SEPARATORS = re.compile(r"[^a-z0-9.]+")
_UNIT = re.compile(r"(\d) (gb|gib|m|b|k)\b")


def plain(text: str) -> str:
    """Return a text as it is compared: lower case, words apart by one space, a number joined to its unit.

    >>> plain("RTX-4090, 24 GB")
    'rtx 4090 24gb'
    """
    return _UNIT.sub(r"\1\2", _SEPARATORS.sub(" ", text.lower()).strip())


def matching(query: str, entries: Iterable[Entry], text_of: Callable[[Entry], str]) -> tuple[Entry, ...]:
    """Return the entries whose text holds every word of the query.

    Entries with a word that starts with the query come first; otherwise the catalog's order stays.

    Parameters
    ----------
    query : str
        What was typed; empty matches all.
    entries : iterable
        The catalog.
    text_of : callable
        The text of an entry that is searched.
    """
    wanted = plain(query)
    words = wanted.split()
    found: list[tuple[bool, int, Entry]] = []
    for entry in entries:
        text = plain(text_of(entry))
        if all(word in text for word in words):
            found.append((f" {wanted}" not in f" {text}", len(found), entry))
    return tuple(entry for _, _, entry in sorted(found, key=lambda item: item[:2]))


def closest(name: str, known: Iterable[str]) -> str:
    """Return how a sentence ends that ends in a wrong id: with the nearest known ones, or its stop where none is near.

    >>> closest("gpt-2", ["gpt2", "resnet50"]), closest("foo", ["gpt2", "resnet50"])
    ('; did you mean gpt2?', '.')
    """
    near = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else "."
