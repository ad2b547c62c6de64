"""Measure the page beside its alternatives, in one run, in the same Chromium: `make bench`.

Each round opens every page once in each condition, so that whatever else the machine does falls on all of them alike.
Written to bench/results as JSON, with every round, and as Markdown, with the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from bench import sites
from bench.browser import Browser, change_times, readings
from bench.report import markdown
from tools import browser as chromium
from tools.build import ROOT
from tools.serve import Link, StaticServer, compress_in_advance

if TYPE_CHECKING:
    from playwright.sync_api import Page, Playwright

RESULTS = ROOT / "bench/results"
LIMIT_MILLISECONDS = 180_000
# Time after the last mark in which the page settles: figures painted, code cached.
SETTLING_MILLISECONDS = 3_000
CHANGES = 20
# What comes after the figure in view goes on meanwhile, as it does for a person.
CHANGE_PAUSE_MILLISECONDS = 200
LINK_BITS_PER_SECOND = 10_000_000
LINK_LATENCY_SECONDS = 0.04

# The mark by which a page has done what it is measured for.
LAST_MARK = {"ours": "app:figures", "plain": "app:figures", "plain-repacked": "app:figures", "bare": "app:numbers"}


@dataclass(frozen=True, slots=True)
class Visit:
    """What one visit to a page took; times in milliseconds from its begin, None where there is no such mark."""

    page: str
    condition: str
    paint: float | None
    alive: float | None
    numbers: float | None
    ready: float | None
    """When the figures that can be seen were live, the nearest one at least; on a plain page, the first."""
    figures: float | None
    longest_task: float
    longest_task_after_alive: float | None
    layout_shift: float
    sent_bytes: int
    sent_bytes_before_alive: int | None
    memory_bytes: int
    changed_numbers: float | None = None
    """The time within which 95 % of changes gave new numbers."""
    changed_figure: float | None = None
    """The same for the figure in view."""


class Host:
    """A host of one page, that notes when it sent how much."""

    def __init__(self, folder: Path, link: Link | None = None) -> None:
        compress_in_advance(folder)
        self.server = StaticServer(folder, "/app/", link=link)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """End it; what a browser has of it stays there."""
        self.server.shutdown()
        self.server.server_close()


def visit(browser: Browser, host: Host, name: str, condition: str) -> Visit:
    """Open a page, wait until it has done its work, and read what it took."""
    page = browser.new_page()
    sent_before = len(host.server.sent)
    page.goto(host.server.url)
    mark = LAST_MARK.get(name)
    if mark:
        page.wait_for_function(
            "name => performance.getEntriesByName(name).length", arg=mark, timeout=LIMIT_MILLISECONDS, polling=100
        )
    done = time.time()
    page.wait_for_timeout(SETTLING_MILLISECONDS)
    values = readings(page)
    marks = values["marks"]
    alive = marks.get("app:alive")
    sent = [(moment, size) for moment, size in host.server.sent[sent_before:] if moment <= done]
    alive_moment = None if alive is None else (values["origin"] + alive) / 1000
    result = Visit(
        page=name,
        condition=condition,
        paint=values["paint"],
        alive=alive,
        numbers=marks.get("app:numbers"),
        ready=marks.get("app:ready"),
        figures=marks.get("app:figures"),
        longest_task=max((duration for _, duration in values["tasks"]), default=0.0),
        longest_task_after_alive=None
        if alive is None
        else max((duration for start, duration in values["tasks"] if start >= alive), default=0.0),
        layout_shift=values["shifts"],
        sent_bytes=sum(size for _, size in sent),
        sent_bytes_before_alive=None
        if alive_moment is None
        else sum(size for moment, size in sent if moment <= alive_moment),
        memory_bytes=browser.page_memory_bytes(),
    )
    if (name, condition) == ("ours", "warm"):
        times = change_times(page, CHANGES, CHANGE_PAUSE_MILLISECONDS)
        numbers, figure = (statistics.quantiles(each, n=20)[-1] for each in zip(*times, strict=True))
        result = replace(result, changed_numbers=numbers, changed_figure=figure)
    page.close()
    return result


def store_for_offline(browser: Browser, host: Host) -> None:
    """Visit our page until it says that it works without a network."""
    page: Page = browser.new_page()
    page.goto(host.server.url)
    page.wait_for_selector('html[data-offline="ready"]', state="attached", timeout=LIMIT_MILLISECONDS)
    page.close()


def measure_round(playwright: Playwright, folders: dict[str, Path], *, throttled: bool) -> list[Visit]:
    """Visit every page once in each condition."""
    visits = []
    for name, folder in folders.items():
        host = Host(folder)
        with Browser(playwright) as browser:
            visits.append(visit(browser, host, name, "cold"))
            if name == "ours":
                store_for_offline(browser, host)
            # Once more for the browser to keep compiled code, as it does for what is used again.
            visit(browser, host, name, "warm")
            visits.append(visit(browser, host, name, "warm"))
            if name == "ours":
                host.stop()
                visits.append(visit(browser, host, name, "offline"))
        if name != "ours":
            host.stop()
        if throttled and name != "html":
            # The browser's own emulation does not reach what workers fetch.
            host = Host(folder, Link(LINK_BITS_PER_SECOND, LINK_LATENCY_SECONDS))
            with Browser(playwright) as browser:
                visits.append(visit(browser, host, name, "throttled"))
            host.stop()
    return visits


def medians(visits: list[Visit]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the median of each value: by page, condition and value."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for page, condition in dict.fromkeys((visit.page, visit.condition) for visit in visits):
        rows = [asdict(visit) for visit in visits if (visit.page, visit.condition) == (page, condition)]
        for key in rows[0].keys() - {"page", "condition"}:
            values = [row[key] for row in rows if row[key] is not None]
            if values:
                table.setdefault(page, {}).setdefault(condition, {})[key] = statistics.median(values)
    return table


def machine() -> dict[str, str | int | None]:
    """Say what the numbers were measured on."""
    program = chromium.executable()
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True) if program else None
    processors = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in processors.splitlines() if "model name" in line), "")
    return {
        "browser": version.stdout.strip() if version else None,
        "cores": os.cpu_count(),
        "processor": model,
        "system": platform.system(),
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", nargs="*", help="only these")
    parser.add_argument("--no-throttled", action="store_true", help="leave the slow link out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    folders = sites.build(ROOT / ".cache/bench")
    if arguments.pages:
        folders = {name: folder for name, folder in folders.items() if name in arguments.pages}
    visits: list[Visit] = []
    with sync_playwright() as playwright:
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}", flush=True)
            visits += measure_round(playwright, folders, throttled=not arguments.no_throttled)
    results = {"machine": machine(), "rounds": arguments.rounds, "medians": medians(visits)}
    arguments.out.mkdir(parents=True, exist_ok=True)
    every = {**results, "visits": [asdict(visit) for visit in visits]}
    (arguments.out / "results.json").write_text(json.dumps(every, indent=1) + "\n")
    text = markdown(results)
    (arguments.out / "results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
