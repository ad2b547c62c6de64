"""What a person keeps and shares: the link, saved scenarios, the theme. All of it stays in this browser."""

import json
from typing import Any

from pyscript import document, window
from pyscript.ffi import create_proxy

from page.embedding import SNIPPETS, snippet
from page.files import by_id, copy, download, text_blob
from page.format import escape
from page.html import tag

PREFIX = "batch-size-optimizer:"
SAVED_VERSION = 1
THEMES = ("auto", "light", "dark")


def _storage() -> Any:
    """The browser's storage; None where it refuses (static/early.js has tried, since MicroPython cannot catch that)."""
    return None if document.documentElement.getAttribute("data-storage") == "refused" else window.localStorage


def kept(key: str) -> "str | None":
    """What this browser keeps for the page under a key; None where there is nothing or it refuses."""
    storage = _storage()
    return storage.getItem(PREFIX + key) if storage else None


def keep(key: str, text: str) -> bool:
    """Keep a text; False where the browser refuses, or where its space is full."""
    storage = _storage()
    if not storage:
        return False
    try:
        storage.setItem(PREFIX + key, text)
    except Exception:
        return False
    return True


def read_saved(text: "str | None") -> "list[dict[str, str]]":
    """The scenarios in a text that `Keep` wrote; an empty list where it is none of those."""
    try:
        data = json.loads(text or "{}")
    except ValueError:
        return []
    if (
        not isinstance(data, dict)
        or data.get("version") != SAVED_VERSION
        or not isinstance(data.get("scenarios"), list)
    ):
        return []
    return [
        {"name": entry["name"], "link": entry["link"]}
        for entry in data["scenarios"]
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("link"), str)
    ]


class Keep:
    """The dialogs for sharing and saving, and the theme's button."""

    def __init__(self, describe: Any, load: Any) -> None:
        self.describe = describe
        self.load = load
        self.saved = read_saved(kept("saved"))
        self.theme = kept("theme") or "auto"
        for name, handler in (
            ("open-share", self._open_share),
            ("copy-link", lambda _event: self._copy("share-link")),
            ("copy-snippet", lambda _event: self._copy("share-snippet")),
            ("open-keep", self._open_keep),
            ("keep-this", self._keep_this),
            ("keep-export", self._export),
            ("theme", self._next_theme),
        ):
            by_id(name).addEventListener("click", create_proxy(handler))
        by_id("share-kind").innerHTML = "".join([tag("option", escape(name), value=kind) for kind, name, _ in SNIPPETS])
        for name in ("share-kind", "share-view"):
            by_id(name).addEventListener("change", create_proxy(self._show_snippet))
        by_id("keep-import").addEventListener("change", create_proxy(self._import))
        by_id("keep-list").addEventListener("click", create_proxy(self._list_clicked))
        for button in document.querySelectorAll("dialog [data-close]"):
            button.addEventListener("click", create_proxy(self._close))
        self._show_theme()

    def _close(self, event: Any) -> None:
        event.target.closest("dialog").close()

    # Share

    def _open_share(self, event: Any) -> None:
        by_id("share-link").value = window.location.href
        by_id("share-said").textContent = ""
        self._show_snippet(event)
        by_id("share").showModal()
        by_id("share-link").select()

    def _show_snippet(self, _event: Any) -> None:
        address = window.location.href.partition("#")[0].partition("?")[0].rpartition("/")[0] + "/"
        kind, view = by_id("share-kind").value, by_id("share-view").value
        by_id("share-snippet").value = snippet(kind, address, self.describe()[1], view=view)

    def _copy(self, name: str) -> None:
        def said(text: str) -> None:
            by_id("share-said").textContent = text

        copy(by_id(name), said)

    # Save

    def _open_keep(self, _event: Any) -> None:
        by_id("keep-name").value = self.describe()[0]
        self._show_saved("")
        by_id("keep").showModal()

    def _show_saved(self, said: str) -> None:
        rows = "".join(
            tag(
                "li",
                tag("button", escape(entry["name"]), type="button", class_="quiet", data_open=place),
                tag(
                    "button",
                    "Remove",
                    type="button",
                    class_="quiet",
                    data_remove=place,
                    aria_label=f"Remove {entry['name']}",
                ),
            )
            for place, entry in enumerate(self.saved)
        )
        by_id("keep-list").innerHTML = rows or "<li>Nothing saved yet.</li>"
        by_id("keep-said").textContent = said

    def _store(self, said: str) -> None:
        stored = keep("saved", self._text())
        self._show_saved(said if stored else "This browser refuses to keep it: export it instead.")

    def _text(self) -> str:
        return json.dumps({"version": SAVED_VERSION, "scenarios": self.saved})

    def _keep_this(self, _event: Any) -> None:
        name, link_text = self.describe()
        name = by_id("keep-name").value.strip() or name
        self.saved = [entry for entry in self.saved if entry["name"] != name] + [{"name": name, "link": link_text}]
        self._store("Saved.")

    def _list_clicked(self, event: Any) -> None:
        button = event.target.closest("button")
        if button is None:
            return
        if button.hasAttribute("data-open"):
            self.load(self.saved[int(button.getAttribute("data-open"))]["link"])
            by_id("keep").close()
        else:
            place = int(button.getAttribute("data-remove"))
            self.saved = self.saved[:place] + self.saved[place + 1 :]
            self._store("Removed.")
            by_id("keep-name").focus()

    def _export(self, _event: Any) -> None:
        download(text_blob(self._text(), "application/json"), "batch-size-optimizer-scenarios.json")

    def _import(self, event: Any) -> None:
        file = event.target.files.item(0)
        if file is None:
            return

        def read(text: str) -> None:
            found = read_saved(text)
            names = [entry["name"] for entry in found]
            self.saved = [entry for entry in self.saved if entry["name"] not in names] + found
            self._store(f"{len(found)} imported." if found else "This file holds no scenarios of this page.")
            event.target.value = ""

        file.text().then(create_proxy(read))

    # Theme

    def _next_theme(self, _event: Any) -> None:
        self.theme = THEMES[(THEMES.index(self.theme) + 1) % len(THEMES)]
        keep("theme", self.theme)
        self._show_theme()

    def _show_theme(self) -> None:
        if self.theme not in THEMES:
            self.theme = "auto"
        root = document.documentElement
        if self.theme != "auto":
            root.setAttribute("data-theme", self.theme)
        elif kept("theme") == "auto":
            root.removeAttribute("data-theme")
        by_id("theme").textContent = f"Theme: {self.theme}"
