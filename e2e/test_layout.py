"""Nothing jumps while the page loads, nothing has to be scrolled sideways, and paper gets what paper can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from calc.plots import THEME
from e2e.driver import opened, show, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MOST_SHIFT = 0.02
WIDTHS = (1280, 768, 360, 320)

# The score that browsers report: the worst five seconds, gaps under one second.
WATCH_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const { value, startTime, hadRecentInput, sources } of list.getEntries())
    if (!hadRecentInput) shifts.push({ value, startTime, what: sources.map(({ node }) => node?.id || node?.nodeName) });
}).observe({ type: "layout-shift", buffered: true });
"""


WATCH_MOVES = """
window.moves = [];
for (const kind of ["transitionrun", "animationstart"])
  addEventListener(kind, ({ target, propertyName, animationName }) => {
    if (document.documentElement.dataset.app !== "ready")
      moves.push(`${kind} of ${propertyName ?? animationName}: ${target.outerHTML.slice(0, 120)}`);
  }, true);
"""


def shift_score(page: Page) -> float:
    worst = score = 0.0
    start = last = float("-inf")
    for shift in page.evaluate("window.shifts"):
        now = shift["startTime"]
        if now - last > 1000 or now - start > 5000:
            score, start = 0.0, now
        last = now
        score += shift["value"]
        worst = max(worst, score)
    return worst


@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_jumps_while_the_page_loads(browser: Browser, address: str, width: int) -> None:
    size = {"width": width, "height": 800}
    with opened(browser, address, viewport=size, service_workers="block") as (page, _):
        page.add_init_script(WATCH_SHIFTS)
        page.goto(address)
        until(page, "ready")
        page.wait_for_timeout(500)
        assert shift_score(page) < MOST_SHIFT, page.evaluate("window.shifts")


@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_moves_while_python_starts(browser: Browser, address: str, width: int) -> None:
    with opened(browser, address, viewport={"width": width, "height": 800}) as (page, _):
        page.add_init_script(WATCH_MOVES)
        page.goto(address)
        until(page, "ready")
        assert page.evaluate("window.moves") == []


def too_wide(page: Page) -> list[str]:
    """Name what reaches beyond the window and does not scroll by itself."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter((element) => element.checkVisibility())
          .filter((element) => !element.closest(".scroll, .drawing[tabindex], .visually-hidden, svg *, math"))
          .filter((element) => element.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
          .map((element) => element.outerHTML.slice(0, 120))"""
    )
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_has_to_be_scrolled_sideways(browser: Browser, address: str, width: int) -> None:
    with opened(browser, address, java_script_enabled=False, viewport={"width": width, "height": 700}) as (page, _):
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert too_wide(page) == []


def test_figures_are_drawn_for_the_width_that_the_window_gets(warm: Page) -> None:
    drawn = warm.locator('[data-figure="timeline"] svg')
    before = drawn.get_attribute("viewBox") or ""
    warm.set_viewport_size({"width": 400, "height": 720})
    expect(drawn).not_to_have_attribute("viewBox", before)
    warm.set_viewport_size({"width": 1280, "height": 720})
    expect(drawn).to_have_attribute("viewBox", before)


def test_twice_the_text_size_fits_too(warm: Page) -> None:
    warm.set_viewport_size({"width": 640, "height": 700})
    warm.evaluate("document.documentElement.style.fontSize = '200%'")
    found = too_wide(warm)
    warm.evaluate("document.documentElement.style.fontSize = ''")
    warm.set_viewport_size({"width": 1280, "height": 720})
    assert found == []


def test_paper_gets_the_answer_and_the_figures_and_no_controls(browser: Browser, address: str) -> None:
    with opened(browser, address, java_script_enabled=False) as (page, _):
        page.goto(address)
        page.emulate_media(media="print")
        for name in (".answer", ".bar", ".figure svg", "#article"):
            expect(page.locator(name).first).to_be_visible()
        for name in (".scenario", ".tools", ".answer-bar", "[data-slider]", ".skip"):
            expect(page.locator(name).first).to_be_hidden()


def test_every_part_has_a_colour_in_the_page(warm: Page) -> None:
    show(warm, "gpus=8&method=lora&parallelism.strategy=fsdp")
    unset = warm.evaluate(
        "names => names.filter(name => !getComputedStyle(document.documentElement).getPropertyValue(`--${name}`))",
        [*THEME],
    )
    plain = warm.evaluate(
        """() => [...document.querySelectorAll(".part-row .swatch")]
          .filter((swatch) => {
            const { backgroundImage, backgroundColor } = getComputedStyle(swatch);
            return backgroundImage === "none" && backgroundColor === "rgba(0, 0, 0, 0)";
          })
          .map((swatch) => swatch.className)"""
    )
    assert unset == []
    assert plain == []
    expect(warm.locator("html")).to_have_attribute("data-app", "ready", timeout=60_000)


def test_a_long_name_breaks_instead_of_widening(warm: Page) -> None:
    warm.set_viewport_size({"width": 320, "height": 700})
    show(warm, "")
    warm.evaluate("document.getElementById('notice').hidden = false")
    warm.evaluate("document.getElementById('notice').textContent = 'x'.repeat(200)")
    width = warm.evaluate("document.documentElement.scrollWidth")
    warm.evaluate("document.getElementById('notice').hidden = true")
    warm.set_viewport_size({"width": 1280, "height": 720})
    assert width <= 320
