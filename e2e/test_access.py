"""WCAG 2.2 AA as far as axe sees it, in every state; and what axe does not see: keyboard, focus, targets, speech."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from e2e.driver import assert_accessible, opened, show, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page, Route

    from e2e.driver import Log

LEAST_TARGET_PIXELS = 24
SPOKEN_WITHIN_MILLISECONDS = 15_000


def nothing(_page: Page) -> None:
    """Leave the page as it is."""


def open_list(page: Page) -> None:
    page.locator("#model").click()


def open_all(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def wrong(page: Page) -> None:
    page.locator("#sequence_length").fill("abc")
    expect(page.locator("#sequence_length-message")).not_to_be_empty()


def explain(page: Page) -> None:
    page.locator(".answer .why").first.click()


def save_one(page: Page) -> None:
    page.locator("#open-keep").click()
    page.locator("#keep-this").click()


STATES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "nothing-fits": ("gpu=t4-16gb&model=llama-3.1-8b", nothing),
    "too-large": ("micro_batch=100", nothing),
    "goal": ("global_batch=64&gpus=2", nothing),
    "unknown-key": ("colour=blue", nothing),
    "open": ("", open_all),
    "list": ("", open_list),
    "wrong": ("", wrong),
    "explanation": ("", explain),
    "share": ("", lambda page: page.locator("#open-share").click()),
    "saved": ("", save_one),
}


@pytest.fixture(scope="module")
def page_of_own(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address, service_workers="block") as (page, _):
        page.goto(address)
        until(page, "ready")
        yield page


# The states whose colours differ from the first one's are looked at in the dark, too.
DARK = ("nothing-fits", "wrong")


@pytest.mark.parametrize(
    ("state", "scheme"), [*((state, "light") for state in STATES), *((state, "dark") for state in DARK)]
)
def test_axe_finds_nothing(page_of_own: Page, state: str, scheme: str) -> None:
    page = page_of_own
    link, prepare = STATES[state]
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    page.evaluate("document.querySelectorAll('dialog[open]').forEach(d => d.close())")
    page.evaluate("document.querySelectorAll('.results details').forEach(d => d.open = false)")
    page.locator("#reset").click()
    if state == "unknown-key":
        page.evaluate("link => { location.hash = link }", link)
        expect(page.locator("#notice")).to_be_visible()
    else:
        show(page, link)
    prepare(page)
    assert_accessible(page, whole=state == "open")


def test_axe_finds_nothing_before_python_and_while_it_loads(fresh: tuple[Page, Log], address: str) -> None:
    page, _ = fresh
    held: list[Route] = []
    page.route("**/main.py", lambda route: held.append(route))  # noqa: PLW0108 - it must take attributes
    page.goto(address)
    assert page.locator("html").get_attribute("data-app") == "static"
    assert_accessible(page)
    page.route("**/static/worker.mjs", lambda _route: None)
    for route in held:
        route.continue_()
    page.wait_for_selector('html[data-app="loading"]', state="attached")
    assert_accessible(page)


def test_axe_finds_nothing_when_the_page_could_not_start(fresh: tuple[Page, Log], address: str) -> None:
    page, _ = fresh
    page.route("**/main.py", lambda route: route.abort())
    page.goto(address)
    expect(page.locator("#alert")).to_be_visible()
    assert_accessible(page)


@pytest.mark.parametrize("width", [320, 768])
def test_axe_finds_nothing_on_small_screens(browser: Browser, address: str, width: int) -> None:
    with opened(browser, address, viewport={"width": width, "height": 700}, service_workers="block") as (page, _):
        page.goto(address)
        until(page, "numbers")
        assert_accessible(page)


def test_the_calculator_is_worked_by_keyboard_alone(warm: Page) -> None:
    page = warm
    page.locator("#model").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#model-list")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#model-list")).to_be_hidden()
    page.keyboard.type("gpt-2 medium")
    page.keyboard.press("Enter")
    expect(page.locator("#results")).to_have_attribute("data-scenario", "model=gpt2-medium")
    page.locator("#precision").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#results")).to_have_attribute("data-scenario", "model=gpt2-medium&precision=amp-fp16")
    page.locator("#open-share").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#share")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#share")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "open-share", "the focus goes back to where it was"
    explained = page.locator(".answer .why").first
    explained.focus()
    page.keyboard.press("Enter")
    explanation = page.locator(f"#{explained.get_attribute('popovertarget')}")
    expect(explanation).to_be_visible()
    page.keyboard.press("Escape")
    expect(explanation).to_be_hidden()


# What has the focus: whether it is seen, whole, by its outline; and what would be in its way.
FOCUSED = """() => {
  const element = document.activeElement;
  if (element === document.body) return null;
  const { left, right, top, bottom } = element.getBoundingClientRect();
  const within = (place, size) => Math.min(Math.max(place, 1), size - 1);
  const x = within((left + right) / 2, innerWidth);
  // Not all of what is tall can be seen at once, but something of it must be.
  const hits = [0.1, 0.5, 0.9].map((part) =>
    document.elementFromPoint(x, within(top + part * (bottom - top), innerHeight)));
  const own = (hit) =>
    Boolean(hit) && (element.contains(hit) || hit.contains(element) || Boolean(element.labels?.length));
  return {
    name: element.id || element.name || element.getAttribute("href") || element.className || element.textContent.trim(),
    outline: getComputedStyle(element).outlineStyle,
    seen: bottom > 0 && top < innerHeight && right > 0 && left < innerWidth && hits.some(own),
    covering: hits.map((hit) => hit?.id || hit?.className),
  };
}"""


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (360, 640)])
def test_the_focus_is_always_seen(browser: Browser, address: str, width: int, height: int) -> None:
    with opened(browser, address, viewport={"width": width, "height": height}, service_workers="block") as (page, _):
        page.goto(address)
        until(page, "ready")
        page.evaluate("document.querySelectorAll('#scenario details').forEach(d => d.open = true)")
        reached = set()
        for _ in range(90):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            if focused is None:
                break
            assert focused["outline"] != "none", focused
            assert focused["seen"], focused
            reached.add(focused["name"])
        assert {"model", "gpu", "sequence_length", "precision", "micro_batch", "open-share", "theme"} <= reached


# Inline links are excepted, and a box's label is part of its target.
SMALL_TARGETS = """least => [...document.querySelectorAll("button, input, select, summary, textarea, [role=option]")]
  .filter((element) => element.checkVisibility() && !element.matches(".why, [type=file]"))
  .filter((element) => {
    const { width, height } = element.getBoundingClientRect();
    return Math.min(width, height) < least;
  })
  .map((element) => element.id || element.name || element.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("width", [1280, 320])
def test_targets_are_large_enough(page_of_own: Page, width: int) -> None:
    page = page_of_own
    show(page, "global_batch=64&gpus=2")
    page.set_viewport_size({"width": width, "height": 800})
    open_all(page)
    # A list that is still open from before would lie over what is to be opened.
    page.evaluate("document.activeElement.blur()")
    page.locator("#gpu").click()
    small = page.evaluate(SMALL_TARGETS, LEAST_TARGET_PIXELS)
    page.set_viewport_size({"width": 1280, "height": 720})
    assert small == []


def test_a_message_belongs_to_its_field(warm: Page) -> None:
    wrong(warm)
    box = warm.locator("#sequence_length")
    assert box.get_attribute("aria-invalid") == "true"
    described = box.get_attribute("aria-describedby")
    expect(warm.locator(f"#{described}")).to_contain_text("abc")
    box.fill("1024")


def test_changes_are_said_politely_once_they_have_come_to_rest(warm: Page) -> None:
    spoken = warm.locator("#spoken")
    assert spoken.get_attribute("aria-live") == "polite"
    warm.evaluate(
        """() => {
          window.said = [];
          const note = () => said.push(document.getElementById("spoken").textContent);
          new MutationObserver(note).observe(document.getElementById("spoken"), { childList: true });
        }"""
    )
    slider = warm.locator('[data-slider="micro_batch"]')
    slider.focus()
    for _ in range(6):
        slider.press("ArrowLeft")
    expected = slider.input_value()
    expect(spoken).to_contain_text(f"Batch {expected} fits", timeout=SPOKEN_WITHIN_MILLISECONDS)
    assert len(warm.evaluate("said")) <= 2, "a drag is said once, not at each step"


def test_each_figure_says_what_it_shows_in_words_and_in_a_table(warm: Page) -> None:
    for figure in warm.locator("figure.figure:not([hidden])").all():
        drawing = figure.locator("svg").first
        assert drawing.get_attribute("role") == "img"
        labels = (drawing.get_attribute("aria-labelledby") or "").split()
        assert labels
        assert all(warm.locator(f'[id="{label}"]').text_content() for label in labels)
        assert figure.locator("figcaption").text_content()
        assert figure.locator("table tbody tr").count() > 0


def test_parts_differ_by_pattern_and_not_by_colour_alone(warm: Page) -> None:
    looks = warm.evaluate(
        """() => [...document.querySelectorAll(".part-row .swatch")].map((swatch) => {
          const { backgroundImage, backgroundColor } = getComputedStyle(swatch);
          const pattern = backgroundImage.replace(/rgba?\\([^)]*\\)|color\\([^)]*\\)/g, "");
          return pattern === "none" ? backgroundColor : pattern;
        })"""
    )
    assert len(looks) >= 8
    assert len(set(looks)) == len(looks)


def test_reduced_motion_stops_all_motion(page_of_own: Page) -> None:
    page_of_own.emulate_media(reduced_motion="reduce")
    moving = page_of_own.evaluate(
        """() => [...document.querySelectorAll("*")].filter((element) => {
          const { animationName, transitionDuration } = getComputedStyle(element);
          return animationName !== "none" || parseFloat(transitionDuration) > 0;
        }).length"""
    )
    assert moving == 0


def test_forced_colours_keep_text_and_figures_readable(page_of_own: Page) -> None:
    page = page_of_own
    show(page, "")
    page.emulate_media(forced_colors="active", color_scheme="dark")
    inks = page.evaluate(
        """() => [...document.querySelectorAll("figure svg text")].filter((t) => t.checkVisibility()).map((text) => {
          const card = getComputedStyle(text.closest("section")).backgroundColor;
          return getComputedStyle(text).fill !== card;
        })"""
    )
    page.emulate_media(forced_colors="none")
    assert inks
    assert all(inks)
