"""How the tests drive the page: what it asked for, what it shows, what it waits for."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route

MOUNT = "/some/where/"
START_MILLISECONDS = 90_000
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
# Never change with the state: one look at the whole page is enough for them.
UNCHANGING = {"exclude": [["#article"], ["figure svg"], ["[role=listbox] [role=group]:nth-of-type(n + 3)"]]}


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


def until(page: Page, state: str) -> None:
    """Wait for the page's state, or for its error."""
    page.wait_for_selector(
        f'html[data-app="{state}"], html[data-app="error"]', timeout=START_MILLISECONDS, state="attached"
    )
    assert page.locator("html").get_attribute("data-app") == state, page.locator("#alert").text_content()


def value(page: Page, path: str) -> str:
    """Return the raw value of a shown result."""
    found = page.locator(f'[data-result="{path}"]').first.get_attribute("data-value")
    assert found is not None
    return found


def show(page: Page, link: str) -> None:
    """Open a scenario in a page that runs, and wait until its numbers are shown."""
    page.evaluate("link => { location.hash = link }", link)
    expect(page.locator("#results")).to_have_attribute("data-scenario", link)


def choose(page: Page, key: str, choice: str) -> None:
    """Choose from a list of the form."""
    page.select_option(f"#{key}", choice)


def changed_value(page: Page, path: str, change: Callable[[], None]) -> str:
    """Make a change and return the result after it differs."""
    before = value(page, path)
    change()
    expect(page.locator(f'[data-result="{path}"]').first).not_to_have_attribute("data-value", before)
    return value(page, path)


def assert_accessible(page: Page, *, whole: bool = False) -> None:
    """See that axe finds nothing."""
    context = {} if whole else {"context": UNCHANGING}
    # What is out of view has no place yet, and would seem to lie over other things.
    page.add_style_tag(content="* { content-visibility: visible !important }")
    results: dict[str, Any] = Axe().run(page, options=RULES, **context).response
    found = [
        f"{violation['id']}: {violation['help']}: {[node['target'] for node in violation['nodes']][:3]}"
        for violation in results["violations"]
    ]
    assert found == []
