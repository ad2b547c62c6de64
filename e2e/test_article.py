"""The article as it is read: without scripts, on a phone, on paper, in the dark, by keyboard and screen reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from e2e.driver import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_it_reads_without_any_script_at_every_width(browser: Browser, address: str, width: int) -> None:
    size = {"width": width, "height": 900}
    with opened(browser, address, java_script_enabled=False, viewport=size) as (page, log):
        page.goto(address)
        article = page.locator("#article")
        expect(article.locator("section")).to_have_count(11)
        expect(article.locator("math").first).to_be_visible()
        expect(article.locator("data").first).not_to_be_empty()
        box = article.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert not log.complaints


def test_nothing_in_it_is_wider_than_a_phone_but_what_scrolls(browser: Browser, address: str) -> None:
    with opened(browser, address, viewport={"width": 320, "height": 700}) as (page, _):
        page.goto(address)
        wide = page.evaluate(
            """() => [...document.querySelectorAll("#article *")]
              .filter(e => e.getBoundingClientRect().right > innerWidth + 1
                && !e.closest(".scroll, .drawing, math, .visually-hidden"))
              .map(e => e.outerHTML.slice(0, 90))"""
        )
        assert wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_it(browser: Browser, address: str, scheme: str) -> None:
    with opened(browser, address, color_scheme=scheme) as (page, _):
        page.goto(address)
        found = Axe().run(page, context="#article")
        assert found.violations_count == 0, found.generate_report()


def test_its_contents_lead_to_its_sections_and_these_to_the_results(browser: Browser, address: str) -> None:
    with opened(browser, address, java_script_enabled=False) as (page, _):
        page.goto(address)
        page.locator("#article nav a", has_text="Practical guidelines").click()
        expect(page.locator("#learn-guidelines-title")).to_be_in_viewport()
        page.locator("#learn-memory .to-result a").click()
        expect(page.locator("#memory h2")).to_be_in_viewport()


def test_on_paper_it_is_whole(browser: Browser, address: str) -> None:
    with opened(browser, address) as (page, _):
        page.goto(address)
        page.emulate_media(media="print")
        expect(page.locator("#learn-privacy")).to_be_visible()
        expect(page.locator("#article nav")).to_be_hidden()
        expect(page.locator("#scenario")).to_be_hidden()
        after = page.locator('#article a[href^="https:"]').first.evaluate("a => getComputedStyle(a, '::after').content")
        assert "https" in after
