"""A search box over a list: filters as one types, by every word, with the keyboard as the ARIA pattern asks."""

from typing import Any

from pyscript import document
from pyscript.ffi import create_proxy, to_js


class Combobox:
    """One text box (``role=combobox``) and its list (``role=listbox``), both already in the page."""

    def __init__(self, box: Any, on_choice: Any, on_unknown: Any) -> None:
        self.box = box
        self.list = document.getElementById(box.getAttribute("aria-controls"))
        # The entries and the words each is found by, read when the list is first used.
        self.options: list[Any] = []
        self.texts: list[str] = []
        self.value = box.getAttribute("data-value")
        self.active: Any = None
        # Whether the box holds what was typed since something was chosen.
        self.typed = False
        self.on_choice = on_choice
        self.on_unknown = on_unknown
        for event, handler in (
            ("input", self._typed),
            ("keydown", self._key),
            ("focus", self._focused),
            ("click", self._clicked),
            ("blur", self._left),
        ):
            box.addEventListener(event, create_proxy(handler))
        self.list.addEventListener("mousedown", create_proxy(self._picked))

    def show(self, value: str) -> None:
        """Show a choice made elsewhere."""
        self.value = value
        self.typed = False
        chosen = self.option(value)
        self.box.value = value if chosen is None else chosen.firstChild.textContent
        for option in self.list.querySelectorAll("[aria-selected=true]"):
            option.setAttribute("aria-selected", "false")
        if chosen is not None:
            chosen.setAttribute("aria-selected", "true")

    def option(self, value: str) -> Any:
        """The list's entry with this value, or None."""
        found = document.getElementById(f"{self.box.name}-{value}")
        return found if found is not None and found.getAttribute("role") == "option" else None

    def _read(self) -> None:
        if self.options:
            return
        self.options = list(self.list.querySelectorAll("[role=option]"))
        for option in self.options:
            group = option.parentElement.getAttribute("aria-label")
            shown = f"{option.firstChild.textContent} {option.lastChild.textContent}"
            text = f" {shown} {option.getAttribute('data-value')} {group}".lower()
            self.texts.append(text + text.replace("-", " ").replace("(", " "))

    def _is_open(self) -> bool:
        return not self.list.hidden

    def _open(self) -> None:
        self.list.hidden = False
        self.box.setAttribute("aria-expanded", "true")

    def _close(self) -> None:
        self.list.hidden = True
        self.box.setAttribute("aria-expanded", "false")
        self._activate(None)

    def _filter(self, text: str) -> None:
        self._read()
        words = text.lower().split()
        # By how words begin; by what is inside them only where nothing begins so.
        matches = self._matching([f" {word}" for word in words]) or self._matching(words)
        found = len(matches)
        for place, option in enumerate(self.options):
            # What is in no group opens fields of one's own: the way on where nothing has that name.
            option.hidden = place not in matches and (found > 0 or option.parentElement.id != self.list.id)
        for group in self.list.querySelectorAll("[role=group]"):
            group.hidden = group.querySelector("[role=option]:not([hidden])") is None
        self.list.querySelector(".nothing").hidden = found > 0

    def _matching(self, parts: list[str]) -> set[int]:
        """The places of the entries that have every part."""
        return {place for place, known in enumerate(self.texts) if all(part in known for part in parts)}

    def _visible(self) -> list[Any]:
        return [option for option in self.options if not option.hidden]

    def _activate(self, option: Any) -> None:
        if self.active is not None:
            self.active.classList.remove("active")
        self.active = option
        if option is None:
            self.box.removeAttribute("aria-activedescendant")
        else:
            option.classList.add("active")
            self.box.setAttribute("aria-activedescendant", option.id)
            option.scrollIntoView(to_js({"block": "nearest"}))

    def _move(self, step: int) -> None:
        visible = self._visible()
        if not visible:
            return
        ids = [option.id for option in visible]
        place = (
            ids.index(self.active.id) + step
            if self.active is not None and self.active.id in ids
            else (0 if step > 0 else -1)
        )
        self._activate(visible[place % len(visible)])

    def _choose(self, option: Any) -> None:
        self.show(option.getAttribute("data-value"))
        self._close()
        self.on_choice(self.box.name, self.value)

    def _open_all(self) -> None:
        self._filter("")
        self._open()
        self._activate(self.option(self.value))

    def _typed(self, _event: Any) -> None:
        self.typed = True
        self._filter(self.box.value)
        self._open()
        visible = self._visible()
        self._activate(visible[0] if visible else None)

    def _focused(self, _event: Any) -> None:
        self.box.select()

    def _clicked(self, _event: Any) -> None:
        if not self._is_open():
            self._open_all()

    def _left(self, _event: Any) -> None:
        """Take what was typed where it is one entry's name, or finds one alone; else say that it is none."""
        typed = self.box.value.strip()
        self._close()
        if not self.typed or not typed:
            self.show(self.value)
            return
        named = [option for option in self.options if option.firstChild.textContent.strip().lower() == typed.lower()]
        found = named or self._visible()
        if len(found) == 1 and found[0].parentElement.id != self.list.id:
            self._choose(found[0])
            return
        self.show(self.value)
        self.on_unknown(self.box.name, typed)

    def _picked(self, event: Any) -> None:
        event.preventDefault()
        option = event.target.closest("[role=option]")
        if option is not None:
            self._choose(option)

    def _key(self, event: Any) -> None:
        key = event.key
        if key in ("ArrowDown", "ArrowUp"):
            event.preventDefault()
            if self._is_open():
                self._move(1 if key == "ArrowDown" else -1)
            else:
                self._open_all()
        elif key == "Enter":
            event.preventDefault()
            if self._is_open() and self.active is not None:
                self._choose(self.active)
        elif key == "Tab" and self.typed and self.active is not None:
            # The one that is marked, as with Enter, and on to the next field.
            self._choose(self.active)
        elif key == "Escape" and self._is_open():
            event.preventDefault()
            self._close()
            self.show(self.value)
