"""What went wrong in other pages of this kind, by their public bug reports: none of it happens here."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from e2e.driver import opened, show, until, value

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RELOADS = 3
LINKS = 40
VALUES = ("", "0", "-1", "abc", "1e309", "NaN", "gpt2", "null", "%5B%5D", "%7B", "%zz", "9" * 40, "../..", "<b>", "💥")
KEYS = (
    "model model.parameters gpu gpu.memory_gib gpus precision optimizer sequence_length micro_batch global_batch "
    "tokens parallelism.strategy parallelism.tensor interconnect calibration compare v theme view lora_targets nothing "
    "__proto__"
).split()


def test_each_of_several_visits_starts_alike(browser: Browser, address: str) -> None:
    """A package or a lock kept from the first visit must not break the next (pyscript 2228, 2282)."""
    with opened(browser, address) as (page, log):
        page.goto(address)
        until(page, "ready")
        first = value(page, "max_micro_batch")
        for _ in range(RELOADS):
            page.reload()
            until(page, "ready")
            assert value(page, "max_micro_batch") == first
            expect(page.locator('[data-figure="memory"] svg').first).to_be_visible()
        assert log.complaints == []
        assert log.foreign == []


def test_every_id_is_there_once(warm: Page) -> None:
    """Figures side by side must not share their marks' ids (matplotlib 4349, 27833)."""
    show(warm, "global_batch=64&gpus=2")
    until(warm, "ready")
    repeated = """() => {
      const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
      return ids.filter((id, place) => ids.indexOf(id) !== place);
    }"""
    assert warm.evaluate(repeated) == []


def test_a_dialog_opened_again_and_again_answers_once(warm: Page) -> None:
    """Listeners in MicroPython cannot always be taken off again (pyscript 2108)."""
    warm.evaluate(
        """() => {
          window.written = [];
          navigator.clipboard.writeText = (text) => { window.written.push(text); return Promise.resolve(); };
        }"""
    )
    for _ in range(20):
        warm.click("#open-share")
        warm.locator("#share [data-close]").last.click()
    warm.click("#open-share")
    warm.click("#copy-link")
    expect(warm.locator("#share-said")).not_to_be_empty()
    assert len(warm.evaluate("window.written")) == 1
    warm.locator("#share [data-close]").last.click()


def test_no_link_breaks_the_page(browser: Browser, address: str) -> None:
    """Old and invented links get an answer or a message (covid19_scenarios 31, openai-image-token-calculator 108)."""
    drawn = random.Random(2026)  # noqa: S311 - no secret
    with opened(browser, address, service_workers="block") as (page, log):
        page.goto(address)
        until(page, "ready")
        for _ in range(LINKS):
            text = "&".join(f"{drawn.choice(KEYS)}={drawn.choice(VALUES)}" for _ in range(drawn.randint(1, 4)))
            page.evaluate("text => { location.hash = text }", text)
            page.wait_for_timeout(60)
            assert page.locator("html").get_attribute("data-app") != "error", text
        page.evaluate("location.hash = 'sequence_length=abc&colour=blue'")
        notice = page.locator("#notice")
        expect(notice).to_contain_text("since the link says something that it cannot be: Sequence length")
        expect(notice).to_contain_text("colour")
        show(page, "model=resnet50")
        expect(page.locator("#answer .answer")).to_contain_text("ResNet-50")
        assert log.complaints == []


def test_a_figure_is_saved_twice_as_fine_as_it_is_shown(warm: Page) -> None:
    """Images made for one pixel a point are blurred on most screens (marimo 3793)."""
    figure = warm.locator('[data-figure="memory"]')
    width = float((figure.locator("svg").first.get_attribute("viewBox") or "").split()[2])
    figure.locator("[data-save-figure]").click()
    warm.wait_for_function("document.querySelector('#figure-png').naturalWidth > 1")
    points_per_pixel = 0.75
    drawn = warm.evaluate("document.querySelector('#figure-png').naturalWidth")
    assert drawn >= 2 * width / points_per_pixel - 2
    warm.locator("#figure-files [data-close]").click()
