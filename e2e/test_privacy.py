"""Nothing leaves the origin, and nothing that a person types is in any request: every feature, and what fails."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect

from e2e.conftest import SITE
from e2e.driver import MOUNT, Log, show, until
from tools.serve import StaticServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Request

# Values that nothing but a person's typing puts into a request.
SECRETS = ("1357", "73911", "secret-run", "9753", "rtx-3090", "llama-3.2-1b")
SAID_WITHIN_MILLISECONDS = 40_000
OFFLINE_READY_MILLISECONDS = 90_000


@pytest.fixture
def server() -> Iterator[StaticServer]:
    with StaticServer(SITE, MOUNT) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class Watch:
    """Every request of a context, its service worker's and its worker's included: address, body and headers."""

    def __init__(self, page: Page, server: StaticServer) -> None:
        self.server = server
        self.log = Log(origin=server.url.removesuffix(MOUNT))
        self.log.watch(page.context)
        self.bodies: list[str] = []
        page.context.on("request", self._keep)

    def _keep(self, request: Request) -> None:
        if request.post_data or request.method not in ("GET", "HEAD"):
            self.bodies.append(f"{request.method} {request.url} {request.post_data}")

    def assert_nothing_left(self) -> None:
        """Hold the browser's own list and the server's against what a person typed."""
        assert self.log.foreign == []
        assert self.bodies == []
        local = [url for url in self.log.requests if not url.startswith(("blob:", "data:"))]
        assert local
        for address in [*local, *self.server.requested]:
            path = unquote(address)
            assert not [secret for secret in SECRETS if secret in path], address
            # Only the build's own revisions of files may follow a question mark.
            query = urlsplit(address).query
            assert not query or query.startswith("__WB_REVISION__="), address


@pytest.fixture
def watched(browser: Browser, server: StaticServer) -> Iterator[tuple[Page, Watch]]:
    context = browser.new_context(accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    yield page, Watch(page, server)
    context.close()


def use_everything(page: Page, tmp_path: Path) -> None:
    """Walk through every feature, typing what can be told apart from anything else."""
    page.locator("#model").fill("llama 3.2 1b")
    page.locator("#model").press("Enter")
    page.locator("#gpu").fill("3090")
    page.locator("#gpu").press("Enter")
    folded = page.locator("#scenario details:not([open]) > summary").filter(visible=True)
    while folded.count():
        folded.first.click()
    page.locator("#sequence_length").fill("1357")
    for key in ("precision", "optimizer", "checkpointing", "attention", "loss", "zero_grad"):
        page.locator(f"#{key}").select_option(index=1)
    # What the changes did is noted beside their fields, and moves what lies below.
    expect(page.locator("#results")).to_have_attribute("data-scenario", re.compile("zero_grad="))
    page.locator("[data-enables=global_batch]").check()
    page.locator("#global_batch").fill("9753")
    page.locator('[data-slider="micro_batch"]').focus()
    page.keyboard.press("ArrowLeft")
    page.locator("#micro_batch").fill("secret-run")
    page.locator("[data-automatic]").check()
    expect(page.locator("html")).not_to_have_attribute("data-stale", "micro_batch")
    page.locator(".answer .why").first.click()
    page.keyboard.press("Escape")
    page.evaluate("document.querySelectorAll('.results details').forEach(d => d.open = true)")
    page.locator("[data-apply]").first.click()
    page.locator("#undo").click()
    page.locator("#redo").click()
    page.locator("#theme").click()
    page.locator("#open-share").click()
    page.locator("#copy-link").click()
    page.keyboard.press("Escape")
    page.locator("#open-keep").click()
    page.locator("#keep-name").fill("secret-run 73911")
    page.locator("#keep-this").click()
    with page.expect_download() as download:
        page.locator("#keep-export").click()
    kept = tmp_path / "kept.json"
    download.value.save_as(kept)
    page.locator("#keep-import").set_input_files(kept)
    page.locator("#keep [data-open]").first.click()
    show(page, "gpu=rtx-3090-24gb&model=llama-3.2-1b&sequence_length=1357")
    page.evaluate("location.hash = 'colour=secret-run'")
    expect(page.locator("#notice")).to_be_visible()
    page.locator("#reset").click()


def test_no_feature_lets_anything_out(watched: tuple[Page, Watch], server: StaticServer, tmp_path: Path) -> None:
    page, watch = watched
    page.goto(f"{server.url}#model=llama-3.2-1b&sequence_length=1357")
    until(page, "ready")
    use_everything(page, tmp_path)
    expect(page.locator("html")).to_have_attribute("data-offline", "ready", timeout=OFFLINE_READY_MILLISECONDS)
    # Again, now through the service worker.
    page.reload()
    until(page, "ready")
    page.locator("#micro_batch").fill("1357")
    expect(page.locator("#results")).to_have_attribute("data-scenario", "micro_batch=1357")
    watch.assert_nothing_left()


@pytest.mark.parametrize(
    "path",
    ["vendor/pyscript/core.js", "main.py", "vendor/pyodide/pyodide.asm.wasm", "static/worker.mjs"],
)
def test_no_failure_lets_anything_out(watched: tuple[Page, Watch], server: StaticServer, path: str) -> None:
    page, watch = watched
    page.route(f"**/{path}", lambda route: route.fulfill(status=500, content_type="text/html", body="secret-run"))
    page.goto(f"{server.url}#model=llama-3.2-1b&sequence_length=1357")
    expect(page.locator("#alert")).to_be_visible(timeout=SAID_WITHIN_MILLISECONDS)
    page.locator("#retry").click()
    page.wait_for_timeout(500)
    watch.assert_nothing_left()


def test_a_worker_that_dies_takes_nothing_out(watched: tuple[Page, Watch], server: StaticServer) -> None:
    page, watch = watched
    page.goto(server.url)
    until(page, "numbers")
    page.evaluate("python.stop()")
    page.locator("#sequence_length").fill("1357")
    expect(page.locator("#alert")).to_be_visible(timeout=SAID_WITHIN_MILLISECONDS)
    watch.assert_nothing_left()


def test_the_browser_itself_is_told_to_ask_nobody_else(watched: tuple[Page, Watch], server: StaticServer) -> None:
    page, watch = watched
    page.goto(server.url)
    # The page's own policy refuses, so that nothing reaches the network at all.
    refused = page.evaluate(
        """async () => {
          const violated = new Promise((resolve) =>
            document.addEventListener("securitypolicyviolation", (e) => resolve(e.effectiveDirective), { once: true }));
          await fetch("https://example.org/?secret-run").catch(() => null);
          return violated;
        }"""
    )
    assert refused == "connect-src"
    assert watch.log.foreign == []


def test_the_page_says_how_to_check_this(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    expect(page.locator("footer")).to_contain_text("Network panel")
    page.close()
