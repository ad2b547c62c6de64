"""Nothing leaves: every feature is used with all requests kept, the service worker's too, and none carries input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from playwright.sync_api import expect

from e2e.driver import choose, opened, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from e2e.driver import Log

PRIVATE_PARAMETERS = 7_654_321_000
PRIVATE_NAME = "codename-nightingale"


def test_no_feature_sends_anything_anywhere(browser: Browser, address: str) -> None:
    with opened(browser, address) as (page, log):
        page.goto(f"{address}#model.parameters={PRIVATE_PARAMETERS}")
        until(page, "ready")
        page.wait_for_selector('html[data-offline="ready"]', state="attached", timeout=90_000)
        choose(page, "optimizer", "adafactor")
        page.locator("#sequence_length").fill("777")
        page.locator("[data-enables=global_batch]").check()
        page.locator("#global_batch").fill("333")
        until(page, "ready")
        page.locator("[data-apply]").first.click()
        until(page, "ready")
        page.locator("#undo").click()
        page.locator("#open-keep").click()
        page.locator("#keep-name").fill(PRIVATE_NAME)
        page.locator("#keep-this").click()
        with page.expect_download() as exported:
            page.locator("#keep-export").click()
        assert PRIVATE_NAME in exported.value.path().read_text()
        page.locator("#keep-list [data-open]").click()
        page.locator("#open-share").click()
        page.locator("#copy-link").click()
        page.keyboard.press("Escape")
        page.locator("#model").click()
        page.locator('#model-list [data-value="config"]').click()
        config = {"model_type": "gpt2", "n_embd": 256, "n_head": 4, "n_layer": 3, "vocab_size": 4321}
        page.locator("#config").fill(json.dumps(config))
        until(page, "ready")
        page.evaluate("location.hash = 'precision=abc'")
        expect(page.locator("#precision-message")).to_contain_text("abc")
        page.evaluate("location.hash = ''")
        page.reload()
        until(page, "ready")
        assert_nothing_left(log, address)


def assert_nothing_left(log: Log, address: str) -> None:
    assert log.foreign == []
    assert log.requests, "requests are seen at all"
    for url in log.requests:
        if url.startswith("blob:"):
            continue
        parts = urlsplit(url)
        assert url.startswith(address), url
        # What stands behind the # stays in the browser; the path and the query are what a server would see.
        assert parts.query in ("", "fresh"), url
        for private in (str(PRIVATE_PARAMETERS), PRIVATE_NAME, "777", "333", "4321", "adafactor"):
            assert private not in parts.path, url
