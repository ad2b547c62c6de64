"""One Chromium with a profile of its own, and what a page in it took: times, memory, blocked moments."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tools import browser as chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page, Playwright

START_SECONDS = 30
# A browser that has just started draws its own windows for a while: it is left alone until it uses less than this share
# of a processor.
QUIET_SHARE, QUIET_SECONDS = 0.1, 0.5
# The flags of a browser that a test drives, less those that would change what is measured.
ARGUMENTS = (*chromium.ARGUMENTS, "--headless=new", "--remote-debugging-port=0", "--no-default-browser-check")

# Runs before the page's own scripts.
WATCH = """
globalThis.watched = { tasks: [], shifts: 0 };
new PerformanceObserver((list) => {
  for (const { startTime, duration } of list.getEntries()) watched.tasks.push([startTime, duration]);
}).observe({ type: "longtask", buffered: true });
new PerformanceObserver((list) => {
  for (const { value, hadRecentInput } of list.getEntries()) if (!hadRecentInput) watched.shifts += value;
}).observe({ type: "layout-shift", buffered: true });
"""
READ = """() => ({
  origin: performance.timeOrigin,
  marks: Object.fromEntries(performance.getEntriesByType("mark").map(({ name, startTime }) => [name, startTime])),
  paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null,
  tasks: watched.tasks,
  shifts: watched.shifts,
})"""

# One change after the other to a number that no scenario had before, with a figure in view.
CHANGE = """async ([count, pause]) => {
  const results = document.getElementById("results"), input = document.getElementById("sequence_length");
  const figure = document.querySelector('[data-figure="timeline"]');
  figure.scrollIntoView({ block: "center" });
  // What comes into view is none of the changes' work.
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const next = (target, options) => new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      observer.disconnect();
      resolve(performance.now());
    });
    observer.observe(target, options);
  });
  const times = [];
  for (let turn = 0; turn < count; turn++) {
    const numbers = next(results, { attributeFilter: ["data-scenario"] }), drawn = next(figure, { childList: true });
    const begin = performance.now();
    input.value = String(513 + 2 * turn);
    input.dispatchEvent(new Event("input", { bubbles: true }));
    times.push([(await numbers) - begin, (await drawn) - begin]);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  return times;
}"""


class Browser:
    """A browser that starts with an empty profile and keeps it until it is closed."""

    def __init__(self, playwright: Playwright) -> None:
        program = chromium.executable()
        if program is None:
            raise RuntimeError("no installed Chromium")
        self._profile = Path(tempfile.mkdtemp())
        self._process = subprocess.Popen(
            [program, *ARGUMENTS, f"--user-data-dir={self._profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._browser = playwright.chromium.connect_over_cdp(self._address())
        self._context = self._browser.contexts[0]
        self._session = self._browser.new_browser_cdp_session()
        self._used: dict[int, float] = {}
        self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _address(self) -> str:
        port_file = self._profile / "DevToolsActivePort"
        for _ in range(START_SECONDS * 20):
            if port_file.exists() and (lines := port_file.read_text().splitlines()):
                return f"http://127.0.0.1:{lines[0]}"
            time.sleep(0.05)
        raise RuntimeError(f"Chromium did not start within {START_SECONDS} s")

    def _processor_seconds(self, kind: str | None = None) -> dict[int, float]:
        """Return how long each process of the browser, or each of a kind, has computed, by its number."""
        processes = self._session.send("SystemInfo.getProcessInfo")["processInfo"]
        return {process["id"]: process["cpuTime"] for process in processes if kind in {None, process["type"]}}

    def _settle(self) -> None:
        until = time.monotonic() + START_SECONDS
        before = sum(self._processor_seconds().values())
        while time.monotonic() < until:
            time.sleep(QUIET_SECONDS)
            now = sum(self._processor_seconds().values())
            if now - before < QUIET_SHARE * QUIET_SECONDS:
                return
            before = now

    def new_page(self) -> Page:
        """Open an empty page that watches itself."""
        page = self._context.new_page()
        page.add_init_script(WATCH)
        self._used = self._processor_seconds("renderer")
        return page

    def page_memory_bytes(self) -> int:
        """Return the memory of the process that shows the newest page and its workers; what it shares counts in parts.

        The browser draws parts of its own window in such processes, too. The page's is the one that has computed.
        """
        used = self._processor_seconds("renderer")
        return _proportional_bytes(max(used, key=lambda process: used[process] - self._used.get(process, 0.0)))


def _proportional_bytes(process_id: int) -> int:
    text = Path(f"/proc/{process_id}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", text, flags=re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def readings(page: Page) -> dict[str, Any]:
    """Return the marks, paints and long tasks of a page so far, in milliseconds since its navigation began."""
    values: dict[str, Any] = page.evaluate(READ)
    return values


def change_times(page: Page, count: int, pause_milliseconds: int) -> list[tuple[float, float]]:
    """Make changes in our page; return after how many milliseconds each gave new numbers and a new figure."""
    return [(numbers, figure) for numbers, figure in page.evaluate(CHANGE, [count, pause_milliseconds])]
