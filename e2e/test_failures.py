"""What breaks is said, with a way on, and nothing foreign is asked for meanwhile."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from calc.evaluation import evaluate
from e2e.driver import opened, until, value
from page.defaults import SCENARIO
from tools.serve import StaticServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

    from e2e.driver import Log

SAID_WITHIN_MILLISECONDS = 60_000


def missing(route: Route) -> None:
    route.fulfill(status=404, content_type="text/html", body="<!doctype html>Not found")


def truncated(route: Route) -> None:
    route.fulfill(status=200, content_type="application/octet-stream", body=b"half of it")


def page_in_its_place(route: Route) -> None:
    route.fulfill(status=200, content_type="text/html", body="<!doctype html>Welcome to the hotel's network")


@pytest.mark.parametrize(
    ("path", "broken"),
    [
        ("vendor/pyscript/core.js", missing),
        ("main.py", missing),
        ("static/worker.mjs", page_in_its_place),
        ("static/snapshot.mjs", missing),
        ("vendor/pyodide/pyodide.asm.wasm", truncated),
    ],
)
def test_a_broken_file_gives_a_message(fresh: tuple[Page, Log], address: str, path: str, broken: object) -> None:
    page, log = fresh
    page.route(f"**/{path}", broken)  # type: ignore[arg-type] # parametrized
    page.goto(address)
    expect(page.locator("#alert")).to_be_visible(timeout=SAID_WITHIN_MILLISECONDS)
    assert page.locator("html").get_attribute("data-app") == "error"
    expect(page.locator("#retry")).to_be_visible()
    assert int(value(page, "max_micro_batch")) > 0, "the example stays"
    assert log.foreign == []


@pytest.mark.parametrize("path", ["vendor/snapshot/calc.bin", "static/carrier.mjs"])
def test_without_the_snapshot_python_starts_the_ordinary_way(fresh: tuple[Page, Log], address: str, path: str) -> None:
    page, log = fresh
    page.route(f"**/{path}", missing)
    page.goto(address)
    until(page, "ready")
    assert log.foreign == []


def test_another_try_succeeds_once_the_file_is_there(fresh: tuple[Page, Log], address: str) -> None:
    page, log = fresh
    page.route("**/vendor/pyodide/pyodide.asm.wasm", missing)
    page.goto(address)
    expect(page.locator("#alert")).to_be_visible(timeout=SAID_WITHIN_MILLISECONDS)
    page.unroute("**/vendor/pyodide/pyodide.asm.wasm")
    page.locator("#retry").click()
    until(page, "ready")
    expect(page.locator("#alert")).to_be_hidden()
    assert log.foreign == []


def test_a_worker_that_dies_is_noticed_and_replaced(fresh: tuple[Page, Log], address: str) -> None:
    page, _ = fresh
    page.goto(address)
    until(page, "numbers")
    before = value(page, "max_micro_batch")
    page.evaluate("python.stop()")
    page.select_option("#checkpointing", "full")
    expect(page.locator("#alert")).to_be_visible(timeout=SAID_WITHIN_MILLISECONDS)
    assert value(page, "max_micro_batch") == before
    # A change meanwhile asks nobody, and is what the next worker answers.
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.select_option("#optimizer", "sgd")
    page.locator("#retry").click()
    until(page, "ready")
    expected = evaluate({**SCENARIO, "checkpointing": "full", "optimizer": "sgd"})
    assert value(page, "max_micro_batch") == str(expected["max_micro_batch"]) != before
    assert complaints == []


@contextmanager
def framed(folder: Path, address: str, sandbox: str) -> Iterator[str]:
    """Serve a page of someone else's that holds ours in a frame."""
    (folder / "index.html").write_text(f'<iframe src="{address}" {sandbox} width="1000" height="800"></iframe>')
    with StaticServer(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # By another name the site is another site, and its frames have no storage under Playwright's switches.
        yield server.url.replace("127.0.0.1", "localhost")
        server.shutdown()


@pytest.mark.parametrize("sandbox", ["", 'sandbox="allow-scripts"'])
def test_a_frame_without_storage_shows_the_example_and_a_message(
    browser: Browser, address: str, tmp_path: Path, sandbox: str
) -> None:
    with framed(tmp_path, address, sandbox) as host, opened(browser, host) as (page, _):
        page.context.unroute_all()
        page.goto(host)
        frame = page.frame_locator("iframe")
        expect(frame.locator("#alert")).to_be_visible(timeout=SAID_WITHIN_MILLISECONDS)
        expect(frame.locator('[data-result="max_micro_batch"]').first).not_to_be_empty()
        if not sandbox:
            expect(frame.locator("#alone")).to_be_visible()
            expect(frame.locator("#retry")).to_be_hidden()
