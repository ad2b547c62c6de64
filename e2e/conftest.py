"""A real Chromium on the built site, served under a sub-path as a project's page on GitHub Pages is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from e2e.driver import MOUNT, opened, show, until
from tools import browser as chromium
from tools.serve import StaticServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from e2e.driver import Log

SITE = Path(__file__).resolve().parent.parent / "_site"

expect.set_options(timeout=30_000)


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
    # The page opens what a link fills in and leaves it open for the person; tests start from closed, and from no field.
    page.evaluate("document.querySelectorAll('details.more').forEach(group => { group.open = false })")
    page.evaluate("document.activeElement.blur()")
    return page
