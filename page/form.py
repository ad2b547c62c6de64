"""The form: what a person set, what the calculation filled in, and what is wrong with it."""

import json
from typing import Any

from pyscript import document
from pyscript.ffi import create_proxy

from page import fields, files, link
from page.combobox import Combobox
from page.format import count, escape, noun, parameters
from page.words import FIELDS, label

# Entries of the search boxes that open fields instead of naming a preset.
OWN_ENTRIES = {"model": ("hand", "config"), "gpu": ("custom",)}
BY_HAND = "model.parameters"
LISTS = ("calibration",)
# A choice that may also be a list of names of one's own.
CHOICE_OR_LIST = "lora_targets"
SHAPES = ("sequence_length", "target_length", "image_size", "audio_frames")
SHAPE_UNITS = {
    "sequence_length": ("token", "tokens"),
    "target_length": ("target token", "target tokens"),
    "image_size": ("px", "px"),
    "audio_frames": ("frame", "frames"),
}
LOG2 = "log2"
# Fields that say something only together; the calculation hears of them once all are there.
TOGETHER = ("gradient_norms",)
# Where the calculation's message about several fields stands.
FIRST_OF = {
    "parallelism": "parallelism.tensor",
    "interconnect": "interconnect.node",
    "gradient_norms": "gradient_norms.small_batch",
}
NO_CONFIG = "Paste the whole content of a config.json: an object that begins with { and ends with }."
PRINTED = (
    "This is what print(model) shows, which leaves out what is needed. Paste what print(model.config.to_json_string()) "
    "shows, or the model's config.json."
)


def _typed_value(value: Any) -> str:
    return count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _counted(value: Any, singular: str, plural: str = "") -> str:
    return f"{_typed_value(value)} {noun(value, singular, plural)}"


class Form:
    """
    The scenario as the form holds it.

    `changes` are the dotted keys that differ from the defaults, `wrong` the fields with a message, `refused` those of
    them that the calculation did not take; `on_change` is called with the key after each valid change and with None
    after an invalid one.
    """

    def __init__(self, on_change: Any) -> None:
        self.on_change = on_change
        self.changes: dict[str, Any] = {}
        self.wrong: dict[str, str] = {}
        self.refused: list[str] = []
        # The fields that show what their change did.
        self.noted: list[str] = []
        self.left_out: list[str] = []
        self.inputs = {box.name: box for box in document.querySelectorAll("[data-kind]")}
        self.sliders = {
            slider.getAttribute("data-slider"): slider for slider in document.querySelectorAll("[data-slider]")
        }
        self.searches = {key: Combobox(self.inputs[key], self._chosen, self._unknown) for key in OWN_ENTRIES}
        self.enablers = {box.getAttribute("data-enables"): box for box in document.querySelectorAll("[data-enables]")}
        self.automatic = document.querySelector("[data-automatic]")
        # What the page says of its fields once and for all, since each question to it takes longer than all else here.
        self.kinds = {key: box.getAttribute("data-kind") for key, box in self.inputs.items()}
        self.optional = [key for key, box in self.inputs.items() if box.hasAttribute("data-optional")]
        self.in_powers = [key for key, slider in self.sliders.items() if slider.getAttribute("data-scale") == LOG2]
        self.for_input, self.for_model, self.for_gpu = (
            [(field, field.getAttribute(name)) for field in document.querySelectorAll(f"[{name}]")]
            for name in ("data-for-input", "data-for-model", "data-for-gpu")
        )
        self.for_many = list(document.querySelectorAll("[data-for-many]"))
        self.for_adapters = list(document.querySelectorAll("[data-for-adapters]"))
        self.opened = {key: box.closest(".field").querySelector(".enabled") for key, box in self.enablers.items()}
        self.says = {place.getAttribute("data-says"): place for place in document.querySelectorAll("[data-says]")}
        # The values that the fields were last made to show.
        self.shown: dict[str, Any] = {}
        # What the chosen model may be trained for, where there is a choice.
        self.tasks = ""
        # The field that the person has entered something into last, until a whole scenario comes from elsewhere.
        self.entered = ""
        # Boxes that together say one list: what the planner may choose of a setting.
        self.allowing = list(document.querySelectorAll("[data-allow]"))
        self.config = document.getElementById("config")
        self.defaults = {key: self._default(box) for key, box in self.inputs.items()}
        for event in ("input", "change"):
            document.addEventListener(event, create_proxy(self._changed))
        document.getElementById("config-file").addEventListener("change", create_proxy(self._picked))
        document.addEventListener("dragover", create_proxy(self._dragged))
        document.addEventListener("drop", create_proxy(self._dropped))

    def _default(self, box: Any) -> Any:
        kind = self.kinds[box.name]
        if kind == "search":
            return box.getAttribute("data-value")
        if kind == "flag":
            return False
        if kind == "choice":
            return box.value
        if box.name in self.optional:
            return None
        value, _ = self._number(box)
        return value

    def _number(self, box: Any) -> "tuple[float | None, str]":
        low, high = float(box.getAttribute("data-min")), float(box.getAttribute("data-max"))
        return fields.number(box.value, low, high, whole=self.kinds[box.name] == "whole")

    def _holds(self, key: str, value: Any) -> bool:
        """Whether a value is of its field's kind; whether it is allowed, the calculation says."""
        if key in LISTS or key.startswith("allow."):
            return isinstance(value, list)
        kind = self.kinds.get(key)
        if kind in ("whole", "real"):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind == "flag":
            return isinstance(value, bool)
        if kind == "choice":
            return isinstance(value, str) or (key == CHOICE_OR_LIST and isinstance(value, list))
        return kind != "search" or isinstance(value, str)

    def base(self) -> dict[str, Any]:
        """What the page's own defaults add: a preset, unless the scenario describes its own."""
        return {key: self.defaults[key] for key in OWN_ENTRIES if not self._describes(key)}

    def _describes(self, key: str) -> bool:
        return any(name.startswith(f"{key}.") for name in self.changes)

    def _own_entry(self, key: str) -> str:
        """The entry of the search box that stands for what the scenario describes itself."""
        return "config" if key == "model" and BY_HAND not in self.changes else OWN_ENTRIES[key][0]

    def scenario(self) -> str:
        """The scenario as the contract's JSON."""
        flat = self.base()
        flat.update(self.changes)
        for group in TOGETHER:
            parts = [key for key in self.inputs if key.startswith(f"{group}.")]
            if not all(key in flat for key in parts):
                for key in parts:
                    flat.pop(key, None)
        return json.dumps(link.nested(flat))

    def set(self, key: str, value: Any) -> None:
        """Set a field, or leave it to the defaults where it says the same; one that is switched on has none."""
        if value is None or (value == self.defaults.get(key) and key not in self.enablers):
            self.changes.pop(key, None)
        else:
            self.changes[key] = value

    def load(self, changes: dict[str, Any]) -> None:
        """Take over a whole scenario: from a link, from what is kept, or undone; what no field can hold is left out."""
        self.left_out = [key for key in changes if not self._holds(key, changes[key])]
        self.changes = {key: changes[key] for key in changes if key not in self.left_out}
        changes = self.changes
        if isinstance(changes.get("interconnect"), str):
            node, _, network = changes.pop("interconnect").partition("+")
            self.set("interconnect.node", node)
            self.set("interconnect.network", network)
        for key in list(self.wrong) + self.noted:
            self.say(key, "")
        self.wrong = {}
        self.refused = []
        self.noted = []
        self.entered = ""
        if self._describes("model") and BY_HAND not in changes:
            self.config.value = json.dumps(
                link.nested({key[6:]: value for key, value in changes.items() if key.startswith("model.")})
            )
        self.show({})

    def apply(self, changes: dict[str, Any]) -> None:
        """Make changes that the page itself proposed."""
        for key, value in changes.items():
            self.set(key, value)
        self.show({})
        self.on_change(next(iter(changes)))

    # From the person

    def _chosen(self, key: str, value: str) -> None:
        for name in [name for name in self.changes if name.startswith(f"{key}.")]:
            del self.changes[name]
        self.set(key, None if value in OWN_ENTRIES[key] else value)
        self.say(key, "")
        if key == "model":
            self.changes.pop("task", None)
            wanted = self.searches[key].option(value).getAttribute("data-inputs").split()
            for shape in SHAPES:
                if shape not in wanted:
                    self.changes.pop(shape, None)
        if value == "config":
            self._apply_visibility()
            self.config.focus()
            # Until there is one, nothing else that is changed makes a scenario.
            self._refuse_config(NO_CONFIG)
            return
        if key == "model":
            self.say("config", "")
        fields_of_entry = {"hand": (BY_HAND,), "custom": ("gpu.memory_gib", "gpu.overhead_gib")}
        for name in fields_of_entry.get(value, ()):
            self.changes[name] = self.defaults[name]
        self._apply_visibility()
        self.on_change(key)

    def _unknown(self, key: str, typed: str) -> None:
        """Say that what was typed into a search box is none of its entries, so that what was there stays."""
        self.effect(key, f"\u201c{typed}\u201d is not in the list: {self.inputs[key].value} stays.")

    def _changed(self, event: Any) -> None:
        target = event.target
        slider = target.getAttribute("data-slider")
        if slider:
            if event.type == "input":
                self._slid(slider, target)
        elif any(target.hasAttribute(f"data-{name}") for name in ("enables", "automatic", "allow")):
            if event.type == "change":
                self._ticked(target)
        elif target.id == "config":
            self._pasted(target.value)
        elif target.name in self.inputs and (event.type == "input") == (
            self.kinds[target.name] not in ("choice", "flag")
        ):
            self._entered(target.name, target)

    def _ticked(self, box: Any) -> None:
        """Take over a box beside the fields themselves: one that opens a field, fills it, or is one of a list."""
        enables, automatic, allow = (box.getAttribute(f"data-{name}") for name in ("enables", "automatic", "allow"))
        if enables:
            self._enabled(enables, box)
        elif automatic:
            self._accept(automatic, None if box.checked else self._number(self.inputs[automatic])[0])
        else:
            ticked = [
                other.value for other in self.allowing if other.checked and other.getAttribute("data-allow") == allow
            ]
            self._accept(f"allow.{allow}", ticked or None)

    def _slid(self, key: str, slider: Any) -> None:
        place = float(slider.value)
        value = 2 ** int(place) if key in self.in_powers else place
        self.inputs[key].value = _typed_value(int(value) if value == int(value) else value)
        self._entered(key, self.inputs[key])

    def _entered(self, key: str, box: Any) -> None:
        self.shown.pop(key, None)
        self.entered = key
        kind = self.kinds[key]
        if kind == "search":
            return
        if kind in ("choice", "flag"):
            value = box.checked if kind == "flag" else box.value
            self._accept(key, json.loads(value) if key == CHOICE_OR_LIST and value.startswith("[") else value)
            return
        typed = box.value.strip()
        if key in self.optional and (kind == "text" or not typed):
            self._accept(key, typed or None)
            return
        value, message = self._number(box)
        automatic = key == self.automatic.getAttribute("data-automatic")
        if automatic:
            # Before the value is judged: ticking the box again is the way back from a wrong one.
            self.automatic.checked = False
        if value is None:
            self.say(key, message, wrong=True)
            self.on_change(None)
            return
        self._accept(key, value, keep=automatic or key in self.enablers or key.partition(".")[0] in OWN_ENTRIES)

    def _accept(self, key: str, value: Any, *, keep: bool = False) -> None:
        group, dotted, _ = key.partition(".")
        if dotted:
            # A link may name the whole group by a preset.
            self.changes.pop(group, None)
        if keep:
            self.changes[key] = value
        else:
            self.set(key, value)
        self.say(key, "")
        self._place_slider(key, value)
        self._apply_visibility()
        self.on_change(key)

    def _enabled(self, key: str, switch: Any) -> None:
        if switch.checked:
            self.inputs[key].value = switch.getAttribute("data-start")
            self._apply_visibility()
            self._entered(key, self.inputs[key])
        else:
            self._accept(key, None)

    def _picked(self, event: Any) -> None:
        if event.target.files.length:
            self._take_file(event.target.files.item(0))
            event.target.value = ""

    def _dragged(self, event: Any) -> None:
        # Without this the browser would leave the page for the file.
        event.preventDefault()

    def _dropped(self, event: Any) -> None:
        if event.dataTransfer.files.length:
            event.preventDefault()
            self._take_file(event.dataTransfer.files.item(0))

    def _take_file(self, file: Any) -> None:
        """Read a config.json that was chosen or dropped; it stays in the browser."""
        self.searches["model"].show("config")
        self._apply_visibility()
        self.config.closest("details").open = True

        def got(text: str) -> None:
            self.config.value = text
            self._pasted(text)

        files.read(file, got, self._refuse_config)

    def _refuse_config(self, message: str) -> None:
        self.say("config", message, wrong=True)
        self.on_change(None)

    def _pasted(self, text: str) -> None:
        try:
            config = json.loads(without_class_name(text))
        except ValueError:
            config = None
        if not isinstance(config, dict) or not config:
            self._refuse_config(PRINTED if is_printed_model(text) else NO_CONFIG)
            return
        for name in [name for name in self.changes if name == "model" or name.startswith("model.") or name in SHAPES]:
            del self.changes[name]
        for name, value in link.flattened(config, "model.").items():
            self.changes[name] = value
        self.say("config", "")
        self._apply_visibility()
        self.on_change("model")

    # To the person

    def _box(self, key: str) -> Any:
        """The element that a field's message is about."""
        if key == "config":
            return self.config
        return self.inputs[key] if key in self.inputs else document.querySelector(f'[data-field="{key}"]')

    def say(self, key: str, message: str, *, wrong: bool = False) -> None:
        """Put a message beside a field, or take it away."""
        line = document.getElementById(f"{key}-message")
        if line is None:
            return
        box = self._box(key)
        if wrong:
            self.wrong[key] = message
            box.setAttribute("aria-invalid", "true")
            group = box.closest("details.more")
            if group is not None:
                group.open = True
        else:
            self.wrong.pop(key, None)
            if key in self.refused:
                self.refused.remove(key)
            box.removeAttribute("aria-invalid")
        line.textContent = message
        line.classList.remove("effect")
        line.parentElement.classList.toggle("wrong", wrong)

    def typed_wrong(self) -> bool:
        """Whether a field that is shown holds what cannot be asked of the calculation."""
        return any(
            key not in self.refused and not self._box(key).closest("[hidden]")
            for key in self.wrong
            if key in self.inputs or key == "config"
        )

    def effect(self, key: str, text: str) -> None:
        """Say for a moment what a change did."""
        line = document.getElementById(f"{key}-message")
        if line is not None and key not in self.wrong:
            line.textContent = text
            line.classList.toggle("effect", bool(text))
            self.noted = [name for name in self.noted if name != key] + ([key] if text else [])

    def refuse(self, field: str, message: str) -> str:
        """Show the calculation's error beside its field; the field's name where the form has none, for a notice."""
        part = field.partition(".")[0]
        whole = "config" if part == "model" and self.searches["model"].value == "config" else FIRST_OF.get(part, part)
        for key in (field, whole):
            if key in self.inputs or key == "config" or key.startswith("allow."):
                self.say(key, message, wrong=True)
                self.refused.append(key)
                return FIELDS.get(key, key)
        return field

    def accepted(self) -> None:
        """Take away the calculation's errors, since it has answered, and those of fields that are no longer shown."""
        for key in list(self.wrong):
            box = self._box(key)
            if key in self.refused or box.closest("[hidden]"):
                self.say(key, "")

    def show(self, filled: dict[str, Any]) -> None:
        """Show every field, but for one that is being typed into: what was set, else what the calculation filled in."""
        active = document.activeElement
        focused = None if active is None else active.getAttribute("name")
        for key, box in self.inputs.items():
            if key not in self.changes and filled.get(key) is not None and key not in self.optional:
                self.defaults[key] = filled[key] if not isinstance(filled[key], list) else self.defaults[key]
            pending = key == "model" and "config" in self.wrong
            if key in self.wrong or pending or (key == focused and key == self.entered):
                self.shown.pop(key, None)
                continue
            value: Any = self.changes.get(key, self.defaults.get(key))
            if key in self.searches:
                value = self._own_entry(key) if self._describes(key) else value
                if self.searches[key].value != value:
                    self.shown.pop(key, None)
            if key not in self.shown or self.shown[key] != value:
                self.shown[key] = value
                self._show_value(key, box, value)
        self._apply_visibility()

    def _show_value(self, key: str, box: Any, value: Any) -> None:
        if key in self.searches:
            self.searches[key].show(value)
        elif self.kinds[key] == "flag":
            box.checked = bool(value)
        elif value is not None:
            if isinstance(value, list):
                value = self._own_choice(box, value)
            box.value = value if self.kinds[key] == "choice" else _typed_value(value)
            self._place_slider(key, value)
        elif key in self.optional:
            box.value = ""

    def _own_choice(self, box: Any, names: list[Any]) -> str:
        """Give a list of choices an entry for names of one's own; the entry's value."""
        value = json.dumps(names)
        option = box.querySelector("[data-own]")
        if option is None:
            option = document.createElement("option")
            option.setAttribute("data-own", "")
            box.appendChild(option)
        option.value = value
        option.textContent = ", ".join([str(name) for name in names])
        return value

    def show_micro_batch(self, largest: int, evaluated: int) -> None:
        """Show the evaluated micro-batch and let its slider reach well beyond what fits."""
        key = self.automatic.getAttribute("data-automatic")
        self.automatic.checked = key not in self.changes and key not in self.wrong
        # Where the person has chosen another one while this answer was being shown, theirs stays.
        value = self.changes.get(key, evaluated)
        self.sliders[key].max = str(fields.slider_end(largest, value))
        if key in self.wrong:
            return
        self._place_slider(key, value)
        if not self.inputs[key].isSameNode(document.activeElement):
            self.inputs[key].value = _typed_value(value)
            self.shown.pop(key, None)

    def _place_slider(self, key: str, value: Any) -> None:
        slider = self.sliders.get(key)
        if slider is None or value is None:
            return
        if key in self.in_powers:
            place = 0
            while 2 ** (place + 1) <= value:
                place += 1
            slider.value = str(place)
            slider.setAttribute("aria-valuetext", _typed_value(value))
        else:
            slider.value = str(value)

    def _apply_visibility(self) -> None:
        """Show the fields that the scenario has, and what each group holds in a line."""
        get = self._current
        chosen = {key: self.searches[key].value for key in OWN_ENTRIES}
        model = self.searches["model"].option(chosen["model"])
        inputs = model.getAttribute("data-inputs").split() if model is not None else []
        for field, wanted in self.for_input:
            field.hidden = wanted not in inputs
        tasks = (model.getAttribute("data-tasks") or "") if model is not None else ""
        if tasks != self.tasks:
            self.tasks = tasks
            self.inputs["task"].closest(".field").hidden = not tasks
            for option in self.inputs["task"].querySelectorAll("option"):
                option.hidden = option.value not in tasks.split()
        for key, fields_of_entries in (("model", self.for_model), ("gpu", self.for_gpu)):
            for field, entry in fields_of_entries:
                field.hidden = entry != chosen[key]
        many = (get("gpus") or 1) > 1 or self._describes("parallelism")
        for field in self.for_many:
            field.hidden = not many
        for field in self.for_adapters:
            field.hidden = get("method") == "full"
        for box in self.allowing:
            box.checked = box.value in (get(f"allow.{box.getAttribute('data-allow')}") or [])
        for key, switch in self.enablers.items():
            switch.checked = switch.checked if key in self.wrong else key in self.changes
            self.opened[key].hidden = not switch.checked
        self._say_groups(inputs)

    def _current(self, key: str) -> Any:
        return self.changes.get(key, self.defaults.get(key))

    def _run_length(self) -> list[str]:
        """The length of the run, its deadline and its budget in words, where they are given."""
        get = self.changes.get
        tokens, epochs, hours, dollars = (get(key) for key in ("tokens", "epochs", "deadline_hours", "budget_dollars"))
        said = [f"{parameters(int(tokens))} {noun(tokens, 'token')}"] if tokens else []
        said += [_counted(epochs, "epoch")] if epochs else []
        said += [f"within {_typed_value(hours)} h"] if hours else []
        return said + ([f"for ${_typed_value(dollars)}"] if dollars else [])

    def _say_groups(self, inputs: list[str]) -> None:
        shapes = [_counted(self._current(shape), *SHAPE_UNITS[shape]) for shape in inputs if self._current(shape)]
        cards = self._current("gpus") or 1
        card = self.inputs["gpu"].value
        wanted = self.changes.get("global_batch")
        says = {
            "model": ", ".join([self.inputs["model"].value] + shapes),
            "gpu": f"{count(cards)} \u00d7 {card}" if cards > 1 else card,
            "recipe": ", ".join(
                label(key, self._current(key))
                for key in ("method", "precision", "optimizer")
                if key != "method" or self._current(key) != "full"
            ),
            "goal": ", ".join(
                [f"{_counted(wanted, 'sample')} a step" if wanted else "the largest micro-batch"] + self._run_length()
            ),
        }
        for group, text in says.items():
            self.says[group].textContent = text


def without_class_name(text: str) -> str:
    """A configuration without the name of its class, which ``print(model.config)`` shows before it."""
    name, brace, rest = text.partition("{")
    return brace + rest if brace and name.strip().endswith("Config") else text


def is_printed_model(text: str) -> bool:
    """Whether a text is what ``print(model)`` shows."""
    first = text.strip().partition("\n")[0]
    return (
        len(first) > 1 and first.endswith("(") and all(part.isalpha() or part in "0123456789_" for part in first[:-1])
    )


def is_known(key: str) -> bool:
    """Whether a link's key is part of the contract."""
    return key.partition(".")[0] in link.KEYS


def left_out_notice(keys: list[str]) -> str:
    """Say which keys of a link hold what their field cannot."""
    names = ", ".join([escape(FIELDS.get(key, key)) for key in keys])
    return f"Left out, since the link says something that it cannot be: {names}." if keys else ""


def unknown_notice(keys: list[str]) -> str:
    """Say which keys of a link were not understood."""
    return f"Not understood in the link, and left out: {', '.join(escape(key) for key in keys)}." if keys else ""
