"""Use without a network: all of it, its updates, and what it must leave alone."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Error, expect

from e2e.driver import MOUNT, START_MILLISECONDS, show, until, value
from tools.build import ROOT, offline_files
from tools.serve import Link, StaticServer
from tools.withdraw_offline import withdraw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page

SITE = ROOT / "_site"
CACHE_PREFIX = "batch-size-optimizer"
EXERCISED = "batch-size-optimizer:exercised"


class _Held(Link):
    """A line that carries some bodies only once it is told to."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self._bodies = bodies
        self.released = threading.Event()

    def pieces(self, body: bytes) -> Iterator[bytes]:
        if body in self._bodies:
            self.released.wait()
        yield body


class Host:
    """A host of one copy of the site that can be changed, and ended and begun again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = 0
        self.start()

    def start(self) -> None:
        self._server = StaticServer(self.folder, MOUNT, self._port)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def hold(self, *bodies: bytes) -> threading.Event:
        """Answer requests for these bodies only once the event is set."""
        line = _Held(bodies)
        self._server.link = line
        return line.released

    @property
    def requested(self) -> list[str]:
        return self._server.requested

    @property
    def url(self) -> str:
        return self._server.url

    def publish(self, name: str, content: bytes) -> None:
        """Put a changed file into the site, as a new build would, its list of files included."""
        (self.folder / name).write_bytes(content)
        worker = (self.folder / "sw.js").read_text()
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        files = {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}
        listed = f"const FILES = {json.dumps(offline_files(files))};"
        (self.folder / "sw.js").write_text(re.sub(r"const FILES = \[.*?\];", lambda _: listed, worker, flags=re.DOTALL))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    folder = tmp_path / "site"
    shutil.copytree(SITE, folder)
    host = Host(folder)
    yield host
    host.stop()


@contextmanager
def visited(browser: Browser, host: Host, **options: Any) -> Iterator[tuple[BrowserContext, Page]]:
    """A browser that has been to the page and stored it."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.goto(host.url)
    offline_state(page, "ready")
    yield context, page
    context.close()


def offline_state(page: Page, state: str) -> None:
    page.wait_for_selector(f'html[data-offline="{state}"]', timeout=START_MILLISECONDS, state="attached")


# The files of the kept snapshot: each its name, and a hash of what it holds.
KEPT = """async () => {
  const root = await navigator.storage.getDirectory();
  const found = [];
  for await (const folder of root.values()) for await (const [name, handle] of folder.entries()) {
    const content = await (await handle.getFile()).arrayBuffer();
    found.push([name, String(new Uint8Array(await crypto.subtle.digest("SHA-256", content)))]);
  }
  return found;
}"""


def kept_files(page: Page) -> list[list[str]]:
    found: list[list[str]] = page.evaluate(KEPT)
    return found


def caches(page: Page) -> list[str]:
    names: list[str] = page.evaluate("caches.keys()")
    return names


def test_everything_works_with_the_server_gone(browser: Browser, host: Host) -> None:
    with visited(browser, host) as (context, first):
        expect(first.locator('[data-says-offline="ready"]')).to_be_visible()
        first.close()
        host.stop()
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(host.url + "?from=elsewhere#micro_batch=3")
        until(page, "ready")
        assert value(page, "micro_batch") == "3"
        show(page, "micro_batch=5")
        assert value(page, "micro_batch") == "5"
        assert page.locator("figure svg").count() >= 3
        for address in (host.url + "index.html", host.url):
            page.goto(address)
            until(page, "ready")
        # The browser's own look for a newer service worker fails, as it must; nothing else may.
        assert [text for text in complaints if "sw.js" not in text and "ERR_CONNECTION_REFUSED" not in text] == []
        host.start()


def test_a_start_does_not_wait_for_the_service_worker(browser: Browser, host: Host) -> None:
    with visited(browser, host) as (_, page):
        page.goto("about:blank")
        page.goto(host.url + "#micro_batch=3")
        until(page, "ready")
        found = page.evaluate(
            """() => performance.getEntries()
              .filter(({ entryType }) => ["navigation", "resource"].includes(entryType))
              .map(({ name, workerFinalSourceType }) => [name.split("#")[0], workerFinalSourceType])"""
        )
        answered = {name.removeprefix(host.url) for name, source in found if source == "cache"}
        assert {"", "main.py", "page.pack", "static/page.css", "static/worker.mjs"} < answered
        assert {name.partition("/")[0] for name in answered} <= {"", "main.py", "page.pack", "static", "vendor"}


def test_the_ordinary_start_works_with_the_server_gone_too(browser: Browser, host: Host) -> None:
    host.publish("vendor/snapshot/calc.bin", gzip.compress(b"damaged"))
    with visited(browser, host) as (context, first):
        first.close()
        host.stop()
        page = context.new_page()
        page.goto(host.url)
        until(page, "ready")
        host.start()


def test_only_what_changed_is_fetched_and_a_new_version_waits_for_its_user(browser: Browser, host: Host) -> None:
    with visited(browser, host) as (_, page):
        show(page, "micro_batch=3")
        style = (host.folder / "static/page.css").read_bytes()
        host.publish("static/page.css", style + b"\n:root { --version: two; }\n")
        host.requested.clear()
        page.evaluate("navigator.serviceWorker.ready.then(registration => registration.update())")
        offline_state(page, "update")
        assert {name for name in host.requested if not name.endswith(("/sw.js", ".prod.js"))} == {
            f"{MOUNT}static/page.css"
        }

        version = "getComputedStyle(document.documentElement).getPropertyValue('--version')"
        expect(page.locator("#offline-offer")).to_be_visible()
        assert page.evaluate(version) == ""
        with page.expect_navigation():
            page.locator("#offline-update").click()
        until(page, "ready")
        assert page.evaluate(version).strip() == "two"
        assert value(page, "micro_batch") == "3"
        offline_state(page, "ready")
        assert [name.split("-")[3] for name in caches(page)] == ["precache", "first"]


def versions(page: Page) -> tuple[str, str]:
    """The version that the page itself and its style are of; empty as built."""
    style, marked = page.evaluate(
        """[getComputedStyle(document.documentElement).getPropertyValue("--version"),
          document.querySelector("meta[name=version]")?.content ?? ""]"""
    )
    return style.strip(), marked


def test_while_a_new_version_is_stored_and_waits_all_answers_are_of_the_old_one(browser: Browser, host: Host) -> None:
    icon = (host.folder / "static/icon-192.png").read_bytes() + b"two"
    style = (host.folder / "static/page.css").read_bytes()
    page_text = (host.folder / "index.html").read_bytes()
    with visited(browser, host) as (context, page):
        released = host.hold(icon)
        host.publish("static/page.css", style + b"\n:root { --version: two; }\n")
        host.publish("index.html", page_text.replace(b"</title>", b'</title><meta name="version" content="two">', 1))
        host.publish("static/icon-192.png", icon)
        page.evaluate("navigator.serviceWorker.ready.then(registration => void registration.update())")
        page.wait_for_function("navigator.serviceWorker.ready.then(registration => registration.installing)")

        other = context.new_page()
        other.goto(host.url)
        until(other, "ready")
        assert versions(other) == ("", "")
        asked = "name => fetch(name).then(response => response.text())"
        assert "--version: two" not in page.evaluate(asked, "static/page.css")
        assert 'content="two"' not in page.evaluate(asked, "index.html")
        assert page.evaluate("navigator.serviceWorker.ready.then(registration => Boolean(registration.installing))")

        released.set()
        offline_state(page, "update")
        other.reload()
        until(other, "ready")
        assert versions(other) == ("", "")
        # Whoever takes it in one tab takes it in all, also in one that is only starting.
        starting = context.new_page()
        starting.add_init_script(
            """if (!sessionStorage.hung) {
              sessionStorage.hung = true;
              globalThis.Worker = class extends EventTarget { postMessage() {} };
            }"""
        )
        starting.goto(host.url)
        until(starting, "loading")
        assert versions(starting) == ("", "")
        page.locator("#offline-update").click()
        for tab in (page, other, starting):
            tab.wait_for_selector("meta[name=version]", state="attached", timeout=START_MILLISECONDS)
            until(tab, "ready")
            assert versions(tab) == ("two", "two")


def until_gone(page: Page, others: list[str]) -> None:
    """Wait until no worker is registered and no cache but these is left, however often the page loads anew."""
    registered = "navigator.serviceWorker.getRegistrations().then(found => found.length)"
    for _ in range(START_MILLISECONDS // 250):
        # A page that loads anew answers nothing.
        with suppress(Error):
            if page.evaluate(registered) == 0 and set(caches(page)) == set(others):
                return
        page.wait_for_timeout(250)
    raise AssertionError(caches(page))


def test_offline_use_can_be_taken_back(browser: Browser, host: Host) -> None:
    with visited(browser, host) as (context, first):
        others = ["another-precache-v2-" + host.url, "batch-size-optimizer-precache-v2-" + host.url + "deeper/"]
        first.evaluate("names => Promise.all(names.map(name => caches.open(name)))", others)
        show(first, "micro_batch=3")
        assert kept_files(first) != []
        withdraw(host.folder)
        # The stored page answers once more, and the browser looks for a newer worker meanwhile. Whatever its page has
        # asked for by now, it is rid of both.
        first.reload()
        first.wait_for_function(f"caches.keys().then(names => names.length == {len(others)})")
        until(first, "ready")
        # What the old worker was still answering may have opened its cache anew, and the page may show itself once more
        # where another worker takes over: in the end nothing is left.
        until_gone(first, others)
        first.wait_for_function(f"() => ({KEPT})().then(files => files.length == 0)")
        first.close()

        host.requested.clear()
        page = context.new_page()
        page.goto(host.url + "#micro_batch=3")
        # The browser may still hold the page itself as any file of a host, for some minutes.
        page.reload()
        until(page, "ready")
        assert value(page, "micro_batch") == "3"
        assert MOUNT in host.requested
        assert page.locator("html").get_attribute("data-offline") is None
        assert page.evaluate("navigator.serviceWorker.controller") is None
        assert page.evaluate("navigator.serviceWorker.getRegistrations().then(found => found.length)") == 0
        assert set(caches(page)) == set(others)


def test_what_is_kept_takes_the_place_of_the_snapshot(browser: Browser, host: Host) -> None:
    with visited(browser, host) as (context, first):
        first.evaluate(
            f"""async () => {{
              const [cacheName] = (await caches.keys()).filter((name) => name.startsWith("{CACHE_PREFIX}"));
              const cache = await caches.open(cacheName);
              for (const key of await cache.keys()) if (key.url.includes(".bin")) await cache.delete(key);
            }}"""
        )
        first.close()
        host.stop()
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.goto(host.url + "#micro_batch=3")
        until(page, "ready")
        assert value(page, "micro_batch") == "3"
        assert [text for text in said if "without the snapshot" in text] == []
        host.start()


def compiled(browser: Browser, page: Page, url: str) -> list[str]:
    """What the browser does about WebAssembly while a page starts, by the names that it has for it."""
    browser.start_tracing(page=page, categories=["disabled-by-default-v8.wasm.detailed", "v8.wasm"])
    page.goto(url)
    until(page, "ready")
    events = json.loads(browser.stop_tracing())["traceEvents"]
    return [event["name"] for event in events if event["name"].startswith("wasm.")]


def test_machine_code_is_kept_for_the_next_visit(browser: Browser, host: Host) -> None:
    with visited(browser, host) as (context, page):
        # The first visit that the service worker answers has to compile, and Python exercises after it.
        assert "wasm.Deserialize" not in compiled(browser, page, host.url)
        page.wait_for_function(f"localStorage.getItem('{EXERCISED}')", timeout=START_MILLISECONDS)
        page.close()
        assert "wasm.Deserialize" in compiled(browser, context.new_page(), host.url)


@pytest.mark.parametrize(
    "damage",
    [
        "writable.truncate(file.size - 100)",
        "writable.truncate(1000)",
        "writable.write(new Uint8Array(file.size).fill(7))",
    ],
)
def test_what_is_kept_is_mended_and_the_page_works_without(browser: Browser, host: Host, damage: str) -> None:
    with visited(browser, host) as (_, page):
        [name, content] = kept_files(page)[0]
        page.evaluate(
            f"""async () => {{
              const root = await navigator.storage.getDirectory();
              for await (const folder of root.values()) for await (const handle of folder.values()) {{
                const file = await handle.getFile();
                const writable = await handle.createWritable({{ keepExistingData: true }});
                await {damage};
                await writable.close();
              }}
            }}"""
        )
        assert kept_files(page) != [[name, content]]
        page.reload()
        until(page, "ready")
        offline_state(page, "ready")
        assert kept_files(page) == [[name, content]]


def test_only_what_this_version_starts_from_is_kept(browser: Browser, host: Host) -> None:
    with visited(browser, host) as (_, page):
        before = kept_files(page)
        page.evaluate(
            """async () => {
              const root = await navigator.storage.getDirectory();
              for await (const folder of root.values()) await folder.getFileHandle("older", { create: true });
              await root.getDirectoryHandle("another site's", { create: true });
            }"""
        )
        assert len(kept_files(page)) == len(before) + 1
        page.reload()
        offline_state(page, "ready")
        assert kept_files(page) == before
        assert page.evaluate(
            "navigator.storage.getDirectory().then(root => root.getDirectoryHandle(`another site's`)).then(Boolean)"
        )


def test_a_first_visit_broken_off_heals_at_the_next(browser: Browser, host: Host) -> None:
    big = host.folder / "vendor/pyodide/python_stdlib.zip"
    content = big.read_bytes()
    big.unlink()
    context = browser.new_context()
    page = context.new_page()
    page.goto(host.url)
    until(page, "ready")
    page.wait_for_function("navigator.serviceWorker.getRegistration().then(found => !found || !found.installing)")
    assert page.locator("html").get_attribute("data-offline") != "ready"
    big.write_bytes(content)
    page.reload()
    offline_state(page, "ready")
    context.close()


@pytest.mark.parametrize(
    ("cache", "name", "damage"),
    [
        ("precache", "vendor/snapshot/runtime.bin", "cache.put(key, new Response('damaged'))"),
        ("precache", "vendor/pyodide/pyodide.asm.wasm", "cache.delete(key)"),
        ("precache", "page.pack", "cache.put(key, new Response('damaged'))"),
        ("first", "page.pack", "cache.put(key, new Response('damaged'))"),
        ("first", "static/worker.mjs", "cache.delete(key)"),
    ],
)
def test_a_damaged_cache_heals_itself(browser: Browser, host: Host, cache: str, name: str, damage: str) -> None:
    with visited(browser, host) as (_, page):
        damaged = page.evaluate(
            f"""async () => {{
              const [cacheName] = (await caches.keys()).filter((name) => name.startsWith("{CACHE_PREFIX}-{cache}-"));
              const cache = await caches.open(cacheName);
              const key = (await cache.keys()).find((request) => request.url.includes("{name}"));
              await {damage};
              return key.url;
            }}"""
        )
        assert name in damaged
        # One visit may be spoiled where the file is needed before the check; the check runs all the same, and mends it.
        page.reload()
        page.wait_for_selector(
            'html[data-app="ready"], html[data-app="error"]', timeout=START_MILLISECONDS, state="attached"
        )
        offline_state(page, "ready")
        page.reload()
        until(page, "ready")
        offline_state(page, "ready")


def test_caches_of_other_sites_on_the_origin_are_left_alone(browser: Browser, host: Host) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(host.url + "static/icon.svg")
    others = ["another-precache-v2-" + host.url, "workbox-precache-v2-" + host.url + "deeper/"]
    page.evaluate("names => Promise.all(names.map(name => caches.open(name)))", others)
    page.goto(host.url)
    offline_state(page, "ready")
    host.publish("static/page.css", b":root { --version: two; }\n")
    page.evaluate("navigator.serviceWorker.ready.then(registration => registration.update())")
    offline_state(page, "update")
    with page.expect_navigation():
        page.locator("#offline-update").click()
    offline_state(page, "ready")
    assert set(others) < set(caches(page))
    assert all(name.startswith(CACHE_PREFIX) and name.endswith(host.url) for name in set(caches(page)) - set(others))
    context.close()


def test_without_service_workers_everything_else_works(browser: Browser, host: Host) -> None:
    context = browser.new_context(service_workers="block")
    page = context.new_page()
    page.goto(host.url)
    until(page, "ready")
    assert page.locator("html").get_attribute("data-offline") is None
    context.close()


def test_what_is_stored_was_not_redirected(browser: Browser, host: Host) -> None:
    with visited(browser, host) as (_, page):
        redirected = page.evaluate(
            f"""async () => {{
              const [name] = (await caches.keys()).filter((name) => name.startsWith("{CACHE_PREFIX}"));
              const cache = await caches.open(name);
              const responses = await Promise.all((await cache.keys()).map((key) => cache.match(key)));
              return responses.filter((response) => response.redirected || !response.ok).length;
            }}"""
        )
        assert redirected == 0
