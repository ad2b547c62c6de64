"""A real Chromium on the built site, served under a sub-path as a project's page on GitHub Pages is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route, expect

from tools import browser as chromium
from tools.serve import StaticServer

SITE = Path(__file__).resolve().parent.parent / "_site"
MOUNT = "/some/where/"
START_MILLISECONDS = 90_000

expect.set_options(timeout=30_000)


@dataclass
class Log:
    """What a page asked for and complained about."""

    origin: str
    requests: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def watch(self, context: BrowserContext) -> None:
        """Listen to everything in the context; what would leave the origin is refused and kept."""
        context.on("request", self._request)
        context.on("console", self._console)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.route(lambda url: not url.startswith((self.origin, "blob:", "data:")), self._refuse)

    def _request(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith((self.origin, "blob:", "data:")):
            self.foreign.append(request.url)

    def _refuse(self, route: Route) -> None:
        self.foreign.append(route.request.url)
        route.abort()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    return {**browser_type_launch_args, "executable_path": chromium.executable(), "args": list(chromium.ARGUMENTS)}


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The site's address."""
    with StaticServer(SITE, MOUNT) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[tuple[Page, Log]]:
    """Give a new page in a context of its own, nothing loaded yet."""
    context = browser.new_context(**options)
    log = Log(origin=address.removesuffix(MOUNT))
    log.watch(context)
    try:
        yield context.new_page(), log
    finally:
        context.close()


@pytest.fixture
def fresh(browser: Browser, address: str) -> Iterator[tuple[Page, Log]]:
    """A page of one's own, nothing loaded yet."""
    with opened(browser, address, service_workers="block") as pair:
        yield pair


@pytest.fixture(scope="session")
def warm_pair(browser: Browser, address: str) -> Iterator[tuple[Page, Log]]:
    """One page for many tests, since Python takes seconds to start."""
    with opened(browser, address) as (page, log):
        page.goto(address)
        until(page, "ready")
        yield page, log


@pytest.fixture
def warm(warm_pair: tuple[Page, Log]) -> Page:
    """Give the shared page with its default scenario."""
    page, _ = warm_pair
    show(page, "")
    return page


def until(page: Page, state: str) -> None:
    """Wait for the page's state, or for its error."""
    page.wait_for_selector(f'html[data-app="{state}"], html[data-app="error"]', timeout=START_MILLISECONDS, state="attached")
    assert page.locator("html").get_attribute("data-app") == state, page.locator("#alert").inner_text()


def value(page: Page, path: str) -> str:
    """Return the raw value of a shown result."""
    found = page.locator(f'[data-result="{path}"]').first.get_attribute("data-value")
    assert found is not None
    return found


def show(page: Page, link: str) -> None:
    """Open a scenario in a page that runs, and wait until its numbers are shown."""
    page.evaluate("link => { location.hash = link }", link)
    expect(page.locator("#results")).to_have_attribute("data-scenario", link)


def changed_value(page: Page, path: str, change: Callable[[], None]) -> str:
    """Make a change and return the result after it differs."""
    before = value(page, path)
    change()
    expect(page.locator(f'[data-result="{path}"]').first).not_to_have_attribute("data-value", before)
    return value(page, path)
