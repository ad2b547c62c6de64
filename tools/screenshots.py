"""Take the pictures of docs/ anew, from the built page in a real browser: one for each state that it can be in.

``python -m tools.screenshots _site docs`` writes them, in colours few enough to keep the repository small.
"""

from __future__ import annotations

import argparse
import io
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from playwright.sync_api import sync_playwright

from tools import browser
from tools.serve import StaticServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page

MOUNT = "/batch-size-optimizer/"
DESK, PHONE = (1280, 1080), (390, 844)
COLOURS = 240
START_MILLISECONDS = 120_000
LIVE = "html[data-app=ready]:not(:has([data-pending]))"
EIGHT_GPUS = (
    "model=llama-3.1-8b&gpu=h100-sxm-80gb&gpus=8&parallelism.strategy=fsdp&checkpointing=full&sequence_length=4096"
    "&global_batch=512&tokens=20000000000"
)


def _explain(page: Page) -> None:
    """Open what the batch says about itself."""
    page.locator(".answer .why").first.click()


def _mistype(page: Page) -> None:
    """Leave a field wrong: the last good result stays, and says that it is the last."""
    page.fill("#sequence_length", "1,5")
    page.locator("html[data-stale]").wait_for(state="attached")


def _compare(page: Page) -> None:
    """Keep the scenario, change it, and look at both."""
    page.click("#keep-a")
    page.select_option("#checkpointing", "full")
    page.locator("#compare table.sides").wait_for()
    page.wait_for_selector(LIVE, state="attached", timeout=START_MILLISECONDS)
    page.locator("#compare").evaluate("section => section.scrollIntoView()")


def _see(section: str) -> Callable[[Page], None]:
    def scroll(page: Page) -> None:
        page.locator(section).evaluate("section => section.scrollIntoView()")

    return scroll


@dataclass(frozen=True)
class State:
    """A picture: its file's name, the scenario, and what is done before it is taken."""

    name: str
    scenario: str = ""
    window: tuple[int, int] = DESK
    colour_scheme: str = "light"
    then: Callable[[Page], None] | None = None


STATES = (
    State("page"),
    State("explained", then=_explain),
    State("dark", colour_scheme="dark"),
    State("phone", window=PHONE),
    State("nothing-fits", "model=llama-3.1-8b&gpu=rtx-4090-24gb"),
    State("stale", then=_mistype),
    State("compared", then=_compare),
    State("many-gpus", EIGHT_GPUS, then=_see("#many")),
    State("trade-off", EIGHT_GPUS, then=_see("#worth")),
    State("vision", "model=resnet50&gpu=rtx-3060-12gb&global_batch=256&dataset=imagenet&epochs=90"),
)


def take(chromium: Browser, address: str, state: State) -> bytes:
    """Return the state's picture as PNG."""
    width, height = state.window
    page = chromium.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if state.colour_scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    page.goto(f"{address}#{state.scenario}" if state.scenario else address)
    page.wait_for_selector(LIVE, state="attached", timeout=START_MILLISECONDS)
    if state.then is not None:
        state.then(page)
    drawn = Image.open(io.BytesIO(page.screenshot(animations="disabled")))
    page.close()
    small = io.BytesIO()
    drawn.convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


def main() -> None:
    """Write every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=[state.name for state in STATES], help="this one alone")
    given = parser.parse_args()
    with StaticServer(given.site, MOUNT) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = playwright.chromium.launch(executable_path=browser.executable(), args=list(browser.ARGUMENTS))
        for state in STATES:
            if given.only in (None, state.name):
                picture = take(chromium, server.url, state)
                (given.folder / f"{state.name}.png").write_bytes(picture)
                print(f"{state.name}.png  {len(picture) / 1000:.0f} kB")
        chromium.close()
        server.shutdown()


if __name__ == "__main__":
    main()
