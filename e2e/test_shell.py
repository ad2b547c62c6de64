"""What runs on the main thread, counted rather than timed: it does nothing twice, and one fault stays one fault."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from calc.evaluation import evaluate
from e2e.driver import choose, until
from page.defaults import SCENARIO

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

    from e2e.driver import Log

WATCH_SECTIONS = """addEventListener("DOMContentLoaded", () => {
  window.replaced = [];
  const watch = (changes) => changes.forEach(({ target }) => window.replaced.push(target.dataset.section));
  for (const place of document.querySelectorAll("[data-section]"))
    new MutationObserver(watch).observe(place, { childList: true });
})"""
BREAK_A_FIGURE = """
def _broken(name, scenario, width, draw=__import__("calc.plots", fromlist=["draw"]).draw):
    if name == "memory":
        raise ZeroDivisionError("by zero")
    return draw(name, scenario, width)
__import__("calc.plots", fromlist=["draw"]).draw = _broken
"""


def test_numbers_that_are_shown_already_are_not_written_again(fresh: tuple[Page, Log], address: str) -> None:
    page, _ = fresh
    page.add_init_script(WATCH_SECTIONS)
    page.goto(address)
    until(page, "numbers")
    assert page.evaluate("window.replaced") == []
    until(page, "ready")
    choose(page, "checkpointing", "full")
    expect(page.locator("#results")).to_have_attribute("data-scenario", "checkpointing=full")
    replaced = page.evaluate("window.replaced")
    assert "answer" in replaced
    assert "facts" not in replaced


def test_a_figure_with_a_fault_says_so_in_its_place(fresh: tuple[Page, Log], address: str) -> None:
    def with_fault(route: Route) -> None:
        response = route.fetch()
        start = 'started.pyimport("calc.worker")'
        broken = f"(started.runPython({json.dumps(BREAK_A_FIGURE)}), {start})"
        route.fulfill(response=response, body=response.text().replace(start, broken))

    page, _ = fresh
    page.route("**/static/worker.mjs", with_fault)
    page.goto(address)
    until(page, "ready")
    expect(page.locator('[data-figure="memory"]')).to_contain_text("ZeroDivisionError")
    expect(page.locator('[data-figure="timeline"] svg')).to_have_count(1)
    expect(page.locator("#alert")).to_be_hidden()


def test_what_is_put_away_comes_when_it_is_seen_and_for_print(fresh: tuple[Page, Log], address: str) -> None:
    page, _ = fresh
    page.route("**/main.py", lambda _route: None)
    page.goto(address)
    figure = page.locator('[data-figure="quality"]')
    expect(figure.locator("noscript")).to_have_count(1)
    expect(figure.locator("svg")).to_have_count(0)
    figure.scroll_into_view_if_needed()
    expect(figure.locator("svg").first).to_be_visible()
    expect(page.locator("noscript")).not_to_have_count(0)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("noscript")).to_have_count(0)
    expect(page.locator('[data-published="scaling"] table')).to_have_count(1)


def test_nothing_is_put_away_for_good_nor_on_paper(fresh: tuple[Page, Log], address: str) -> None:
    page, _ = fresh
    page.goto(address)
    until(page, "ready")
    expect(page.locator("noscript")).to_have_count(0)
    page.emulate_media(media="print")
    hidden = page.locator(".results > section, #article > section, .drawing").evaluate_all(
        "all => all.filter((each) => getComputedStyle(each).contentVisibility !== 'visible').length"
    )
    assert hidden == 0


def test_the_slider_stands_where_the_example_does(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    largest = evaluate(SCENARIO)["max_micro_batch"]
    slider = page.locator('[data-slider="micro_batch"]')
    assert slider.input_value() == page.locator("#micro_batch").input_value() == str(largest)
    assert int(slider.get_attribute("max") or 0) == 2 * largest
    context.close()


def test_without_scripts_links_lead_to_their_sections(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(f"{address}#learn-faq")
    expect(page.locator("#learn-faq h3")).to_be_in_viewport()
    context.close()
