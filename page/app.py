"""The page's Python: form to scenario, scenario to worker, result to page. It calculates nothing.

Runs on the main thread in MicroPython; the calculation runs in the worker (calc/worker.py).
"""

import asyncio
import json
from typing import Any

from pyscript import document, window
from pyscript.ffi import create_proxy, to_js

from page import link
from page.breath import breath
from page.effect import effect
from page.files import FigureFiles, by_id, copy, download, text_blob, text_of
from page.form import Form, is_known, left_out_notice, unknown_notice
from page.format import escape, fixed
from page.html import tag
from page.keep import Keep
from page.readings import KEY, Readings
from page.runtime import Failure, Runtime
from page.words import field_name

# Of a row of changes only the last is drawn, and what takes longer waits until they have come to rest.
FIGURE_PAUSE_SECONDS = 0.08
REST_PAUSE_SECONDS = 0.25
# Shown once the person has asked for it.
PLANNER = "planner"
# Asked for last, card by card.
CARDS = "fits_on"
# The main thread belongs to the person: after so long it takes a breath before it writes on.
BREATH_MILLISECONDS = 8
SPOKEN_PAUSE_SECONDS = 1.2
EFFECT_SECONDS = 8
UNDO_PAUSE_SECONDS = 0.6
# Browsers take only so many new addresses in a time: Safari a hundred in half a minute.
LINK_PAUSE_SECONDS = 0.5
WIDTH_STEP, NARROWEST, WIDEST = 20, 260, 900
LINK_SETTINGS = ("v", "theme", "view", "compare")
# Measured runs compared at a time: the worker answers other questions in between.
RUNS_AT_ONCE = 4


def app(state: str) -> None:
    """Set the page's state, for its look and for tests."""
    document.documentElement.setAttribute("data-app", state)


def mark(name: str) -> None:
    """Leave a mark in the browser's performance timeline, once."""
    if not window.performance.getEntriesByName(name).length:
        window.performance.mark(name)


def on(target: Any, event: str, handler: Any) -> None:
    """Call the handler at each event."""
    target.addEventListener(event, create_proxy(handler))


class Question:
    """What the worker was asked for: the turn, its scenario and link, and the promise of an answer."""

    def __init__(self, turn: int, scenario: str, shown_link: str, asked: Any) -> None:
        self.turn = turn
        self.scenario = scenario
        self.link = shown_link
        self.asked = asked


class Page:
    """What is shown, and what was last asked for. The newest scenario wins; older ones are skipped."""

    def __init__(self) -> None:
        self.form = Form(self.changed)
        self.readings = Readings(self.form)
        self.figure_files = FigureFiles()
        self.runtime = Runtime()
        self.mounts = {
            place.getAttribute("data-section"): place for place in document.querySelectorAll("[data-section]")
        }
        self.order = [place.getAttribute("data-section") for place in document.querySelectorAll("[data-section]")]
        self.figures = {
            place.getAttribute("data-figure"): place for place in document.querySelectorAll("[data-figure]")
        }
        # The digest of what each mount holds; at first of what the build put there.
        self.digests = {name: place.getAttribute("data-digest") for name, place in self.mounts.items()}
        self.brief: dict[str, Any] = {}
        self.planned = False
        self.searching = False
        self.numbers_wanted = asyncio.Event()
        # Whether `answer` waits for a wish, and what was asked on its behalf.
        self.idle = False
        self.question: Any = None
        self.figures_wanted = asyncio.Event()
        self.drawable: Any = None
        self.later: list[str] = []
        self.latest = 0
        self.changed_key: Any = None
        # Whether the last answer was a refusal that belongs to no field of the form.
        self.unplaced = False
        # When the address was last written, and its part behind the path since then.
        self.link_written = 0.0
        self.link_hash = ""
        self.figures_loaded = False
        self.room = 0
        self.past: list[str] = []
        self.future: list[str] = []
        self.settled = ""
        self.extras: dict[str, Any] = {}

    # Shown to the person

    def state(self, text: str) -> None:
        """Say what the page is doing."""
        by_id("state").textContent = text

    def progress(self, stage: str) -> Any:
        """A function that shows how far a stage is, in bytes."""
        bar = by_id("progress")

        def show(done: int, total: int) -> None:
            if total > 1:
                self.state(f"{stage}: {fixed(done, 10**6, 1)} of {fixed(total, 10**6, 1)} MB")
                bar.max, bar.value = total, done
            else:
                self.state(f"{stage} \u2026")
                bar.removeAttribute("value")
            bar.hidden = False

        return show

    def notice(self, text: str) -> None:
        """Say something that needs no action."""
        by_id("notice").textContent = text
        by_id("notice").hidden = not text

    def fail(self, message: str, details: str = "") -> None:
        """Say what failed, and offer another try."""
        app("error")
        by_id("alert-text").textContent = message
        by_id("alert-details").textContent = details
        by_id("alert-more").hidden = not details
        by_id("alert").hidden = False
        by_id("progress").hidden = True
        self.state("Last good result; not live." if self.brief else "Example, computed when this page was built.")

    def mark_stale(self) -> None:
        """Show whether the results belong to what the form says."""
        root = document.documentElement
        if self.form.wrong or self.unplaced:
            names = ", ".join(field_name(key) for key in self.form.wrong) or "the message"
            root.setAttribute("data-stale", " ".join(self.form.wrong) or "message")
            answered = by_id("results").hasAttribute("data-scenario")
            shown = "the last good result" if answered else "an example, computed when this page was built"
            self.state(f"Not up to date: see {names}. Shown is {shown}.")
        elif root.hasAttribute("data-stale"):
            root.removeAttribute("data-stale")

    def put(self, place: Any, key: str, html: str, digest: str) -> None:
        """Replace what a mount holds, keeping what was opened and where the focus was."""
        if self.digests.get(key) == digest:
            return
        self.digests[key] = digest
        opened = [details.id for details in place.querySelectorAll("details[open]")]
        active = document.activeElement
        inside = place.contains(active)
        focused, looks = (active.id, active.outerHTML) if inside else ("", "")
        place.innerHTML = html
        for name in opened:
            details = by_id(name)
            if details is not None:
                details.open = True
        if inside:
            alike = by_id(focused) if focused else None
            for element in place.querySelectorAll("a, button, summary") if alike is None else ():
                if element.outerHTML == looks:
                    alike = element
            if alike is None:
                # What was pressed is gone: whoever goes on by keyboard goes on from here.
                place.tabIndex = -1
                alike = place
            alike.focus(to_js({"preventScroll": True}))

    async def show(self, answer: dict[str, Any]) -> None:
        """Put a result on the page, in slices between which the page reacts."""
        before, self.brief = self.brief, answer["brief"]
        changed_key, self.changed_key = self.changed_key, None
        scenario, later = self.brief["scenario"], answer["later"]
        # What was asked for stays, and says that it is of an earlier scenario.
        outdated = self.planned and self.can_plan()
        self.planned = outdated
        self.mounts[PLANNER].parentElement.toggleAttribute("data-outdated", outdated)
        for name in later + [CARDS]:
            self.mounts[name].setAttribute("data-pending", "")
        began = window.performance.now()
        for name in self.order:
            if name in answer["html"] and not (name == PLANNER and outdated):
                digest, html = answer["html"][name]
                self.put(self.mounts[name], name, html, digest)
                if window.performance.now() - began > BREATH_MILLISECONDS:
                    await breath()
                    began = window.performance.now()
        self.show_sections()
        self.readings.accepted = scenario.get(KEY) or []
        self.show_kept()
        self.form.show(scenario)
        self.form.show_micro_batch(self.brief["max_micro_batch"], self.brief["micro_batch"])
        if before and changed_key:
            self.form.effect(changed_key, effect(before, self.brief))
            asyncio.create_task(self.forget_effect(changed_key))

    def show_sections(self) -> None:
        """Hide the sections that have nothing to say."""
        for section in document.querySelectorAll("[data-shows]"):
            section.hidden = not self.mounts[section.getAttribute("data-shows")].firstChild
        for place in self.figures.values():
            needs = place.getAttribute("data-needs")
            if needs:
                # Its place is there before it is drawn.
                place.hidden = needs not in self.brief["parts"]
        self.offer_search()
        self.show_on_demand(PLANNER, shown=self.planned)

    def offer_search(self) -> None:
        """Let the planner be asked where it can answer and is not at it."""
        by_id("ask-planner").disabled = self.searching or not (self.figures_loaded and self.can_plan())

    def can_plan(self) -> bool:
        """Whether there is something to plan for: a global batch, or the length of a run."""
        return "global_batch" in self.brief["scenario"] or "run" in self.brief["parts"]

    async def forget_effect(self, key: str) -> None:
        """Take the note of what a change did away again."""
        await asyncio.sleep(EFFECT_SECONDS)
        self.form.effect(key, "")

    async def speak(self, turn: int) -> None:
        """Tell a screen reader the answer, once changes have come to rest."""
        await asyncio.sleep(SPOKEN_PAUSE_SECONDS)
        if turn == self.latest:
            by_id("spoken").textContent = self.brief["spoken"]

    # The link, and undo

    def link_text(self) -> str:
        """What stands behind the # for the scenario in the form."""
        flat = dict(self.extras)
        flat.update(self.form.changes)
        return link.write(flat)

    def write_link(self) -> None:
        """Keep the address up to date without filling the history."""
        text = self.link_text()
        # For the browser it is a navigation, even to where it is.
        if text != window.location.hash[1:]:
            address = f"#{text}" if text else window.location.pathname + window.location.search
            window.history.replaceState(None, "", address)
        self.link_written = float(window.performance.now())
        self.link_hash = window.location.hash
        document.body.setAttribute("data-link", window.location.href)

    def read_link(self) -> None:
        """Take over the scenario that the address holds."""
        self.link_hash = window.location.hash
        flat = link.read(self.link_hash)
        version = flat.pop("v", link.VERSION)
        self.extras = {key: flat.pop(key) for key in LINK_SETTINGS if key in flat}
        unknown = [key for key in flat if not is_known(key)]
        for key in unknown:
            flat.pop(key)
        notice = unknown_notice(unknown)
        if version != link.VERSION:
            notice = f"This link is of version {version}, newer than this page; what it knows is used. {notice}"
        self.form.load(flat)
        self.notice(f"{notice} {left_out_notice(self.form.left_out)}".strip())

    def take_over(self, text: str) -> None:
        """Show the scenario and the settings of a link text that this page wrote."""
        flat = link.read(text)
        settings = {key: flat.pop(key) for key in LINK_SETTINGS if key in flat}
        self.extras.pop("compare", None)
        self.extras.update(settings)
        self.form.load(flat)

    def remember(self) -> None:
        """Make the state before the present one something to go back to."""
        text = self.link_text()
        if text != self.settled:
            self.past.append(self.settled)
            self.future = []
            self.settled = text
        self.show_steps()

    def show_steps(self) -> None:
        """Enable what can be undone and redone."""
        by_id("undo").disabled = not self.past
        by_id("redo").disabled = not self.future

    def step(self, source: list[str], target: list[str]) -> None:
        """Go one step through the changes."""
        if not source:
            return
        target.append(self.settled)
        self.settled = source.pop()
        self.take_over(self.settled)
        self.show_steps()
        self.ask()

    # The worker

    def changed(self, key: Any) -> None:
        """The form changed: validly at a key, or not."""
        self.mark_stale()
        if key is None:
            return
        self.changed_key = key
        self.want()
        due = window.performance.now() > self.link_written + 1000 * LINK_PAUSE_SECONDS
        if due and window.location.hash == self.link_hash:
            self.write_link()
        asyncio.create_task(self.settle(self.latest))

    async def settle(self, turn: int) -> None:
        """Make a drag one change to undo, not fifty, and have the address say how it ended."""
        await asyncio.sleep(UNDO_PAUSE_SECONDS)
        # Unless another link was opened, of which the page is yet to hear.
        if turn == self.latest and window.location.hash == self.link_hash:
            self.write_link()
            self.remember()

    def ask(self) -> None:
        """Want the numbers of what the form says now, and have the address say it."""
        self.want()
        self.write_link()

    def want(self) -> None:
        """Want the numbers of what the form says now."""
        if self.form.typed_wrong():
            return
        self.latest += 1
        if self.idle:
            # The task that waits for this has its turn only milliseconds later.
            self.question = self.put_question()
            self.idle = False
        self.numbers_wanted.set()

    def put_question(self) -> Question:
        """Ask for the numbers of the newest scenario."""
        scenario = self.form.scenario()
        asked = self.runtime.call("show", scenario, json.dumps(self.digests))
        return Question(self.latest, scenario, self.link_text(), asked)

    async def answer(self) -> None:
        """Answer the newest scenario, as long as this worker lives."""
        generation = self.runtime.generation
        while generation == self.runtime.generation:
            self.idle = True
            await self.numbers_wanted.wait()
            if generation != self.runtime.generation:
                return
            self.numbers_wanted.clear()
            question, self.question = self.question, None
            if question is None or question.turn != self.latest:
                question = self.put_question()
            self.idle = False
            turn, scenario = question.turn, question.scenario
            answer = await self.runtime.told(question.asked)
            if turn != self.latest:
                continue
            if not answer["ok"] and answer["error"]["field"] == KEY:
                self.readings.refuse(answer["error"]["message"])
                continue
            if not answer["ok"]:
                field, message = answer["error"]["field"], answer["error"]["message"]
                name = self.form.refuse(field, message) if field else ""
                # What belongs to no field of the form is said above the answer.
                self.unplaced = not self.form.wrong
                if self.unplaced:
                    self.notice(f"{name}: {message}" if name else message)
                self.mark_stale()
                continue
            if self.unplaced:
                self.unplaced = False
                self.notice("")
            self.form.accepted()
            self.mark_stale()
            await self.show(answer)
            by_id("results").setAttribute("data-scenario", question.link)
            mark("app:numbers")
            app("numbers")
            self.live()
            asyncio.create_task(self.speak(turn))
            self.later = answer["later"]
            self.drawable = (turn, scenario)
            self.figures_wanted.set()

    def live(self) -> None:
        """Say that the numbers are computed here."""
        if self.figures_loaded:
            by_id("progress").hidden = True
            self.state("Live: computed in your browser.")

    def width(self, place: Any) -> int:
        """The width to draw a figure at: the room it has, in steps, so that text keeps its size."""
        hidden = bool(place.hidden)
        place.hidden = False
        room = int(place.clientWidth) // WIDTH_STEP * WIDTH_STEP
        place.hidden = hidden
        return max(NARROWEST, min(WIDEST, room))

    def out_of_view(self, name: str) -> float:
        """How far a figure's place is from what the window shows, in pixels; 0 for what can be seen."""
        # The browser has not laid out what is in a section out of view, and asking for its place would make it.
        for element in (self.figures[name].closest("section"), self.figures[name]):
            box = element.getBoundingClientRect()
            distance = max(0, box.top - window.innerHeight, -box.bottom)
            if distance:
                break
        return float(distance)

    def resized(self, _event: Any) -> None:
        """Draw the figures for the window's new width."""
        if self.figures_loaded and self.width(by_id("results")) != self.room:
            self.figures_wanted.set()

    async def draw(self) -> None:
        """Show what comes after the numbers, as long as this worker lives: first the figures that can be seen."""
        generation = self.runtime.generation
        drawn = 0
        await self.figures_wanted.wait()
        await self.runtime.load_figures(self.progress)
        self.figures_loaded = True
        self.show_sections()
        self.live()
        # Nothing has been changed before the first ones.
        soon, rest = 0.0, 0.0
        while generation == self.runtime.generation:
            await self.figures_wanted.wait()
            self.figures_wanted.clear()
            await asyncio.sleep(soon)
            turn, scenario = self.drawable
            # At another width of the window the same scenario is drawn again, and nothing else is new.
            new = turn != drawn
            self.room = self.width(by_id("results"))
            figures = [
                place.getAttribute("data-figure")
                for place in document.querySelectorAll("[data-figure]")
                if not (place.hasAttribute("data-on-demand") or (place.hasAttribute("data-needs") and place.hidden))
            ]
            # At first the nearest one, whether or not it can be seen yet.
            await self.draw_nearest(figures, turn, scenario, in_view=True, least=0 if rest else 1)
            if turn == self.latest:
                mark("app:ready")
            if rest and await self.are_wanted_within(rest):
                continue
            await self.draw_nearest(figures, turn, scenario)
            soon, rest = FIGURE_PAUSE_SECONDS, REST_PAUSE_SECONDS
            if turn == self.latest:
                mark("app:figures")
            for key in self.later if new else ():
                await self.show_later(key, turn, scenario)
            drawn = turn
            if turn == self.latest:
                app("ready")
                if new:
                    await self.ask_cards(turn, scenario)

    async def are_wanted_within(self, seconds: float) -> bool:
        """Wait so long, or until figures are wanted anew."""
        try:
            await asyncio.wait_for(self.figures_wanted.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    async def draw_nearest(
        self, figures: list[str], turn: int, scenario: str, *, in_view: bool = False, least: int = 0
    ) -> None:
        """Draw figures, the nearest to the window first, and take them from the list.

        `in_view` leaves out what is out of view, once there are `least`.
        """
        asked = self.ask_nearest(figures, turn, scenario, in_view=in_view and least < 1)
        while asked is not None:
            name, promise = asked
            answer = await self.runtime.told(promise)
            least -= 1
            # The worker draws on while the page takes in what it has drawn.
            asked = self.ask_nearest(figures, turn, scenario, in_view=in_view and least < 1)
            self.put_figure(name, turn, answer)

    def ask_nearest(self, figures: list[str], turn: int, scenario: str, *, in_view: bool) -> "tuple[str, Any] | None":
        """Ask for the nearest of the figures and take it from the list, unless none is wanted any more."""
        if not figures or turn != self.latest:
            return None
        distance, first = min((self.out_of_view(name), place) for place, name in enumerate(figures))
        if in_view and distance > 0:
            return None
        name = figures.pop(first)
        return name, self.ask_figure(name, scenario)

    async def ask_cards(self, turn: int, scenario: str) -> None:
        """Find out what other cards take, one at a time: the worker answers other questions in between."""
        rows: list[Any] = []
        done, of = 0, 1
        while done < of:
            wanted = json.dumps({"scenario": json.loads(scenario), "first": done, "count": 1})
            answer = await self.runtime.ask("later", CARDS, wanted)
            if turn != self.latest or not answer["ok"]:
                return
            rows += answer["value"]["rows"]
            done, of = answer["value"]["done"], answer["value"]["of"]
        answer = await self.runtime.ask("gathered", CARDS, json.dumps(rows), scenario)
        if turn == self.latest:
            self.put_answer(self.mounts[CARDS], CARDS, answer)
            self.mounts[CARDS].removeAttribute("data-pending")

    def put_answer(self, place: Any, key: str, answer: dict[str, Any]) -> None:
        """Put a part of the page that the worker made by itself into its place, or why it could not."""
        if answer["ok"]:
            self.put(place, key, answer["html"], answer["digest"])
        else:
            message = answer["error"]["message"]
            self.put(place, key, tag("p", escape(message), class_="fault", role="status"), message)

    def ask_figure(self, name: str, scenario: str) -> Any:
        """Ask for a figure as wide as its place is."""
        return self.runtime.call("figure", name, self.width(self.figures[name]), scenario)

    def put_figure(self, name: str, turn: int, answer: dict[str, Any]) -> None:
        """Show a figure, unless a newer scenario came meanwhile."""
        if turn == self.latest:
            place = self.figures[name]
            self.put_answer(place, f"figure-{name}", answer)
            place.hidden = not place.firstChild

    async def draw_on_demand(self, what: str, turn: int, scenario: str) -> None:
        """Draw the figures of a part of the result that was asked for."""
        for name in self.on_demand(what):
            self.put_figure(name, turn, await self.runtime.told(self.ask_figure(name, scenario)))

    def on_demand(self, what: str) -> list[str]:
        """The figures that are drawn when a part of the result is asked for."""
        return [name for name, place in self.figures.items() if place.getAttribute("data-on-demand") == what]

    def show_on_demand(self, what: str, *, shown: bool) -> None:
        """Show or hide the places of the figures of such a part."""
        for name in self.on_demand(what):
            self.figures[name].hidden = not shown

    async def search(self) -> None:
        """Have the planner search for the best plan of the scenario that is shown, and draw what it found."""
        self.searching = True
        self.offer_search()
        by_id("planner-said").textContent = "Searching \u2026"
        said = ""
        try:
            turn, scenario = self.drawable
            answer = await self.runtime.ask("section", PLANNER, scenario)
            while turn != self.latest and self.drawable[0] != turn:
                # Another scenario has been answered meanwhile.
                turn, scenario = self.drawable
                answer = await self.runtime.ask("section", PLANNER, scenario)
            if not answer["ok"]:
                said = answer["error"]["message"]
            elif turn != self.latest:
                said = "The scenario has changed meanwhile: search again."
        finally:
            self.searching = False
            by_id("planner-said").textContent = said
            self.offer_search()
        if said:
            return
        self.planned = True
        self.mounts[PLANNER].parentElement.removeAttribute("data-outdated")
        self.put_answer(self.mounts[PLANNER], PLANNER, answer)
        self.show_on_demand(PLANNER, shown=True)
        await self.draw_on_demand(PLANNER, turn, scenario)

    async def show_later(self, key: str, turn: int, scenario: str) -> None:
        """Fill in a part of the result that takes many evaluations."""
        if turn != self.latest:
            return
        if key == "comparison":
            if not self.kept():
                self.put(self.mounts[key], key, "", "")
                self.mounts[key].removeAttribute("data-pending")
                self.show_on_demand(key, shown=False)
                return
            scenario = json.dumps({"scenarios": [link.nested(link.read(self.kept())), json.loads(scenario)]})
        answer = await self.runtime.ask("section", key, scenario)
        if turn == self.latest:
            self.put_answer(self.mounts[key], key, answer)
            self.mounts[key].removeAttribute("data-pending")
            self.show_sections()
        await self.draw_on_demand(key, turn, scenario)

    # The scenario kept for comparison

    def kept(self) -> str:
        """The link text of scenario A; empty where none is kept."""
        return str(self.extras.get("compare", ""))

    def whole(self) -> str:
        """The present scenario as a link text that names its model and card."""
        flat = self.form.base()
        flat.update(self.form.changes)
        return link.write(flat)

    def show_kept(self) -> None:
        """Offer what can be done with scenario A."""
        for name in ("swap-a", "drop-a"):
            by_id(name).disabled = not self.kept()

    def keep(self, text: str) -> None:
        """Keep a scenario as A, or none."""
        self.extras.pop("compare", None)
        if text:
            self.extras["compare"] = text
        self.remember()
        self.ask()

    def swap(self) -> None:
        """Make A the present scenario, and the present one A."""
        here, there = self.whole(), link.read(self.kept())
        self.form.load({key: there[key] for key in there if there[key] != self.form.defaults.get(key)})
        self.keep(here)

    # The measured runs, once more

    async def measure_again(self) -> None:
        """Compare every measured run in this browser, a few at a time, then draw the figure from that."""
        button, place = by_id("measure-again"), document.querySelector("[data-built=accuracy]")
        button.disabled = True
        said = ""
        try:
            done, of = 0, 1
            while done < of:
                wanted = json.dumps({"first": done, "count": RUNS_AT_ONCE})
                answer = await self.runtime.ask("later", "measured", wanted)
                done, of = answer["value"]["done"], answer["value"]["of"]
                by_id("measure-said").textContent = f"{done} of {of} runs compared"
            answer = await self.runtime.ask("figure", "accuracy", self.width(place), self.form.scenario())
            self.put_answer(place, "built-accuracy", answer)
            said = f"All {of} runs compared in your browser, just now."
        finally:
            by_id("measure-said").textContent = said
            button.disabled = False

    async def guarded(self, work: Any) -> None:
        """Do a worker's work until it fails; then say so, once."""
        generation = self.runtime.generation
        try:
            await work
        except Exception as error:
            if generation != self.runtime.generation:
                return
            self.runtime.stop()
            self.idle = False
            if isinstance(error, Failure):
                self.fail(f"{error.message} The numbers shown stay as they are.", error.details)
            else:
                self.fail("This page has a fault and stopped. The numbers shown stay as they are.", repr(error))
                raise

    async def start(self) -> None:
        """Start a worker, then answer and draw."""
        self.runtime.begin(self.progress)
        # At once: the worker answers it as soon as there is Python.
        self.idle = True
        self.ask()
        await self.runtime.started()
        asyncio.create_task(self.guarded(self.answer()))
        asyncio.create_task(self.guarded(self.draw()))

    def run(self) -> None:
        """Start a worker, again after a failure."""
        by_id("alert").hidden = True
        self.figures_loaded = False
        self.idle, self.question = False, None
        self.figures_wanted.clear()
        app("loading")
        asyncio.create_task(self.guarded(self.start()))


page = Page()


def link_changed(_event: Any) -> None:
    """Take over the scenario of a link that was opened in this page; a link to one of its sections changes nothing."""
    if by_id(window.location.hash.lstrip("#")) is not None:
        page.write_link()
        return
    page.read_link()
    page.remember()
    page.ask()


def key_pressed(event: Any) -> None:
    """Undo and redo with the keyboard, outside text boxes, which have their own."""
    if (
        (event.ctrlKey or event.metaKey)
        and event.key.lower() == "z"
        and event.target.tagName not in ("INPUT", "TEXTAREA")
    ):
        event.preventDefault()
        page.step(*((page.future, page.past) if event.shiftKey else (page.past, page.future)))


def describe() -> "tuple[str, str]":
    """Say what the present scenario is, and give its link text."""
    says = [document.querySelector(f'[data-says="{group}"]').textContent for group in ("model", "gpu", "recipe")]
    return "; ".join(says), page.link_text()


def load(text: str) -> None:
    """Show the scenario of a link text."""
    page.take_over(text)
    page.remember()
    page.ask()


def said(text: str) -> None:
    """Say what became of a file."""
    by_id("take-said").textContent = text


def take(button: Any) -> None:
    """Copy or download the text that a button stands beside."""
    if button.hasAttribute("data-copy"):
        copy(by_id(button.getAttribute("data-copy")), said)
        return
    name = button.getAttribute("data-file-name")
    download(text_blob(text_of(by_id(button.getAttribute("data-download"))), "text/plain"), name)
    said(f"{name} goes to your downloads, unless the browser forbids it here: its text can be selected too.")


def clicked(event: Any) -> None:
    """Do what a button that came with a result offers."""
    button = event.target.closest("button")
    if button is None:
        return
    if button.hasAttribute("data-apply"):
        page.form.apply(link.read(button.getAttribute("data-apply")))
    elif button.hasAttribute("data-copy") or button.hasAttribute("data-download"):
        take(button)
    elif button.hasAttribute("data-save-figure"):
        page.figure_files.open(button.closest("figure"), button.getAttribute("data-save-figure"))
    elif button.hasAttribute("data-save-as"):
        page.figure_files.save(button.getAttribute("data-save-as"))
    elif button.hasAttribute("data-forget-reading"):
        page.readings.forget(int(button.getAttribute("data-forget-reading")))
    elif button.hasAttribute("data-forget-readings"):
        page.readings.clear()


def start_over(_event: Any) -> None:
    """Go back to the page's first scenario."""
    load("")


def listen() -> None:
    """Take part in what happens on the page."""
    # `window` is a module in MicroPython: its methods are called without their object, which listeners need.
    on(document.defaultView, "hashchange", link_changed)
    on(document, "keydown", key_pressed)
    on(document, "click", clicked)
    on(document.defaultView, "resize", page.resized)
    for name, handler in (
        ("undo", lambda _event: page.step(page.past, page.future)),
        ("redo", lambda _event: page.step(page.future, page.past)),
        ("reset", start_over),
        ("ask-planner", lambda _event: asyncio.create_task(page.guarded(page.search()))),
        ("reading-add", lambda _event: page.readings.add()),
        ("reading-take", lambda _event: page.readings.paste()),
        ("keep-a", lambda _event: page.keep(page.whole())),
        ("swap-a", lambda _event: page.swap()),
        ("drop-a", lambda _event: page.keep("")),
        ("measure-again", lambda _event: asyncio.create_task(page.guarded(page.measure_again()))),
        ("retry", lambda _event: page.run()),
    ):
        on(by_id(name), "click", handler)
    on(by_id("reading-kind"), "change", lambda _event: page.readings.kind_changed())
    for button in document.querySelectorAll("[data-needs-python]"):
        button.disabled = False


async def start() -> None:
    """Bring the page to life, in steps between which it reacts."""
    listen()
    await breath()
    Keep(describe, load)
    await breath()
    page.read_link()
    page.settled = page.link_text()
    mark("app:alive")
    # static/early.js has looked, and said so.
    if document.documentElement.getAttribute("data-storage") != "refused":
        page.run()
