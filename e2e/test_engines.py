"""The core of the page in engines besides Chromium: it starts, answers as CPython does, and says what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from calc.evaluation import evaluate
from tools import engines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# WebKitGTK takes its time on a machine without a graphics card.
START_SECONDS = 180
ANSWER_SECONDS = 60
DEFAULT = {"model": "gpt2", "gpu": "rtx-4090-24gb"}

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@contextmanager
def firefox() -> Iterator[tuple[Any, Callable[[str], None]]]:
    program = engines.firefox()
    if program is None:
        pytest.skip("Firefox is not installed: make engines brings it")
    marionette = pytest.importorskip("marionette_driver.marionette", reason="make engines brings Firefox's client")
    browser = marionette.Marionette(bin=program, headless=True, gecko_log=os.devnull)
    browser.start_session()
    try:
        yield browser, browser.navigate
    finally:
        browser.delete_session()
        browser.cleanup()


@contextmanager
def display() -> Iterator[None]:
    """Give WebKit's browser a screen, where there is none."""
    if os.environ.get("DISPLAY"):
        yield
        return
    if shutil.which("Xvfb") is None:
        pytest.skip("WebKit needs a display, and Xvfb is not installed: make engines brings it")
    reading, writing = os.pipe()
    screen = subprocess.Popen(["Xvfb", "-displayfd", str(writing), "-nolisten", "tcp"], pass_fds=[writing])
    os.close(writing)
    with os.fdopen(reading) as answer:
        number = answer.readline().strip()
    os.environ["DISPLAY"] = f":{number}"
    try:
        yield
    finally:
        del os.environ["DISPLAY"]
        screen.terminate()
        screen.wait()


@contextmanager
def webkit() -> Iterator[tuple[Any, Callable[[str], None]]]:
    program = engines.webkit_browser()
    if program is None:
        pytest.skip("WebKitGTK's browser and driver are not installed: make engines brings them")
    webdriver = pytest.importorskip("selenium.webdriver", reason="make engines brings WebKit's client")
    service = pytest.importorskip("selenium.webdriver.webkitgtk.service")
    options = webdriver.WebKitGTKOptions()
    options.binary_location = program
    options.add_argument("--automation")
    with display():
        browser = webdriver.WebKitGTK(options=options, service=service.Service(shutil.which(engines.WEBKIT_DRIVER)))
        try:
            yield browser, browser.get
        finally:
            browser.quit()


ENGINES = {"firefox": firefox, "webkit": webkit}


def wait_for(browser: Any, script: str, seconds: float) -> Any:
    """Run a script until what it returns is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := browser.execute_script(f"return {script}"):
            return found
        time.sleep(0.25)
    raise AssertionError(
        f"{script} within {seconds} seconds: {browser.execute_script('return document.body.innerText')}"
    )


def shown(path: str) -> str:
    return f"document.querySelector('[data-result=\"{path}\"]').dataset.value"


def type_into(browser: Any, name: str, text: str) -> None:
    box = browser.find_element("css selector", f"#{name}")
    box.clear()
    box.send_keys(text)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_page_works(engine: str, address: str) -> None:
    with ENGINES[engine]() as (browser, go):
        go(address)
        state = wait_for(
            browser,
            "['ready', 'error'].includes(document.documentElement.dataset.app) && document.documentElement.dataset.app",
            START_SECONDS,
        )
        assert state == "ready", browser.execute_script("return document.getElementById('alert').textContent")
        assert browser.execute_script("return document.querySelectorAll('figure.figure:not([hidden]) svg').length") >= 4

        # A link, the calculation, and the same numbers as CPython's.
        browser.execute_script("location.hash = 'checkpointing=full'")
        wait_for(
            browser, "document.getElementById('results').dataset.scenario === 'checkpointing=full'", ANSWER_SECONDS
        )
        expected = evaluate({**DEFAULT, "checkpointing": "full"})
        assert int(browser.execute_script(f"return {shown('max_micro_batch')}")) == expected["max_micro_batch"]
        peak = browser.execute_script(f"return {shown('memory.peak_allocated_bytes')}")
        assert int(peak) == expected["memory"]["peak_allocated_bytes"]

        # Typing, and what is wrong with it, beside its field.
        type_into(browser, "sequence_length", "abc")
        assert "abc" in wait_for(
            browser, "document.getElementById('sequence_length-message').textContent", ANSWER_SECONDS
        )
        assert browser.execute_script(f"return {shown('memory.peak_allocated_bytes')}") == peak
        type_into(browser, "sequence_length", "512")
        wait_for(
            browser,
            "document.getElementById('results').dataset.scenario.includes('sequence_length=512')",
            ANSWER_SECONDS,
        )
        wait_for(browser, "location.hash.includes('sequence_length=512')", ANSWER_SECONDS)

        # A later visit starts from what this one has kept.
        wait_for(browser, "document.documentElement.dataset.offline === 'ready'", START_SECONDS)
        go(address)
        wait_for(browser, "document.documentElement.dataset.app === 'ready'", START_SECONDS)
        expected = evaluate(DEFAULT)
        assert int(browser.execute_script(f"return {shown('max_micro_batch')}")) == expected["max_micro_batch"]
