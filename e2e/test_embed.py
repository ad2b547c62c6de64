"""The calculator inside other people's pages, served from another origin, as their readers use it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from calc.evaluation import evaluate
from e2e.driver import START_MILLISECONDS, assert_accessible, opened, show, until, value
from page import link
from page.embedding import snippet
from tools.build import ROOT
from tools.examples import links
from tools.serve import StaticServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, FrameLocator, Page

SCENARIO = "gpu=rtx-4090-24gb&model=resnet50&precision=fp32"
RUNTIME = ("/vendor/pyscript/", "/vendor/micropython/", "/vendor/pyodide/", "/main.py")
FRAME = "iframe"
# As page/files.py says it; that module runs in a page alone.
REFUSED = "This browser lets no page copy here: the text is selected, copy it with the keyboard."


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve someone else's site: another port is another origin."""
    with StaticServer(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


@contextmanager
def reading(browser: Browser, address: str, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """Open someone else's page, and note what it asks for."""
    context = browser.new_context(**options)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    try:
        page = context.new_page()
        page.goto(address)
        yield page, asked
    finally:
        context.close()


def mkdocs_site(folder: Path, text: str) -> Path:
    """Build a MkDocs site with a page that holds the text."""
    (folder / "docs").mkdir()
    (folder / "docs/index.md").write_text(f"# Course notes\n\nTry it:\n\n{text}\n\nAnd go on.\n")
    (folder / "mkdocs.yml").write_text("site_name: Notes\ntheme:\n  name: mkdocs\nuse_directory_urls: false\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(folder / "mkdocs.yml")]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "site"


def sphinx_site(folder: Path, text: str) -> Path:
    """Build a Sphinx site with a page that holds the text."""
    (folder / "conf.py").write_text('project = "Notes"\nhtml_theme = "alabaster"\n')
    (folder / "index.rst").write_text(f"Course notes\n============\n\nTry it:\n\n{text}\n\nAnd go on.\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(folder), str(folder / "site")]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "site"


def html_site(folder: Path, text: str) -> Path:
    """Make a page by hand that holds the text."""
    (folder / "index.html").write_text(
        f"<!doctype html><title>Notes</title><h1>Course notes</h1>\n{text}\n<p>And go on."
    )
    return folder


def woken(frame: FrameLocator) -> None:
    """Touch the calculator, and wait for its numbers."""
    frame.locator("#wake").click()
    expect(frame.locator('html[data-app="numbers"], html[data-app="ready"]')).to_be_attached(timeout=START_MILLISECONDS)


def largest(frame: FrameLocator) -> str:
    """Return the largest micro-batch that the frame shows."""
    return frame.locator('#answer [data-result="max_micro_batch"]').first.get_attribute("data-value") or ""


@pytest.mark.parametrize(("kind", "make"), [("mkdocs", mkdocs_site), ("sphinx", sphinx_site)])
def test_in_documentation_it_sleeps_then_calculates(
    browser: Browser, address: str, tmp_path: Path, kind: str, make: Any
) -> None:
    site = make(tmp_path, snippet(kind, address, SCENARIO, view="memory"))
    with served(site) as host, reading(browser, host) as (page, asked):
        frame = page.frame_locator(FRAME)
        expect(frame.locator("#wake")).to_have_text("Calculate ResNet-50 on RTX 4090 24 GB")
        # The picture is the built example, and says so.
        expect(frame.locator("#asleep-says")).to_have_text("Until then, an example: GPT-2 (124M) on RTX 4090 24 GB.")
        expect(frame.locator("#answer .answer")).to_contain_text("GPT-2 (124M)")
        expect(frame.locator("#memory .parts")).to_be_visible()
        expect(frame.locator("#worth")).to_be_hidden()
        assert not [url for url in asked if any(part in url for part in RUNTIME)]

        before = largest(frame)
        woken(frame)
        expect(frame.locator("#answer .answer")).to_contain_text("ResNet-50")
        assert largest(frame) != before
        frame.locator("summary", has_text="Recipe").click()
        shown = frame.locator('#answer [data-result="max_micro_batch"]').first
        fp32 = largest(frame)
        frame.locator("#precision").select_option("amp-bf16")
        expect(shown).not_to_have_attribute("data-value", fp32)
        assert int(largest(frame)) > int(fp32)
        expect(frame.locator('html[data-app="ready"]')).to_be_attached(timeout=START_MILLISECONDS)
        expect(frame.locator("#memory svg").first).to_be_visible()
        # The page around it is never navigated, and gets no bars inside its bars.
        assert page.url == host
        inside = frame.locator("body").evaluate("body => body.offsetHeight")
        expect(page.locator(FRAME)).to_have_css("height", f"{inside}px")


def test_it_is_as_high_as_its_content_at_every_width(browser: Browser, address: str, tmp_path: Path) -> None:
    site = html_site(tmp_path, snippet("html", address, SCENARIO, view="plan"))
    with served(site) as host, reading(browser, host) as (page, _):
        heights = []
        for width in (1200, 700, 360):
            page.set_viewport_size({"width": width, "height": 800})
            body = page.frame_locator(FRAME).locator("body")
            expect(body).to_be_visible()
            page.wait_for_function(
                """async () => {
                  const frame = document.querySelector("batch-size-optimizer").shadowRoot.querySelector("iframe");
                  const before = frame.style.height;
                  await new Promise(done => setTimeout(done, 300));
                  return before === frame.style.height;
                }"""
            )
            inside = body.evaluate("body => [body.offsetHeight, document.documentElement.scrollWidth, innerWidth]")
            expect(page.locator(FRAME)).to_have_css("height", f"{inside[0]}px")
            assert inside[1] <= inside[2]
            heights.append(inside[0])
        assert heights[0] < heights[2]


def test_several_on_a_page_wake_one_by_one(browser: Browser, address: str, tmp_path: Path) -> None:
    texts = [snippet("html", address, f"model={model}", view="tradeoff") for model in ("gpt2", "resnet50", "bert-base")]
    site = html_site(tmp_path, "\n".join(texts))
    with served(site) as host, reading(browser, host, viewport={"width": 1000, "height": 4000}) as (page, asked):
        for place in range(3):
            expect(page.frame_locator(FRAME).nth(place).locator("#wake")).to_be_visible()
        assert not [url for url in asked if any(part in url for part in RUNTIME)]
        woken(page.frame_locator(FRAME).nth(1))
        assert len([url for url in asked if url.endswith("/vendor/pyscript/core.js")]) == 1
        for place in (0, 2):
            expect(page.frame_locator(FRAME).nth(place).locator('html[data-embed="asleep"]')).to_be_attached()


def test_far_down_a_page_it_loads_only_when_seen(browser: Browser, address: str, tmp_path: Path) -> None:
    site = html_site(tmp_path, '<div style="height: 20000px"></div>' + snippet("html", address, SCENARIO))
    with served(site) as host, reading(browser, host) as (page, asked):
        expect(page.locator(FRAME)).to_be_attached()
        page.wait_for_timeout(500)
        assert not [url for url in asked if "embed.html" in url]
        page.locator(FRAME).scroll_into_view_if_needed()
        expect(page.frame_locator(FRAME).locator("#wake")).to_be_visible()


def test_attributes_change_what_is_shown(browser: Browser, address: str, tmp_path: Path) -> None:
    site = html_site(tmp_path, snippet("html", address, "model=gpt2", view="memory", theme="light"))
    with served(site) as host, reading(browser, host) as (page, asked):
        root = page.frame_locator(FRAME).locator("html")
        expect(root).to_have_attribute("data-theme", "light")
        element = page.locator("batch-size-optimizer")
        element.evaluate("element => element.setAttribute('theme', 'dark')")
        expect(root).to_have_attribute("data-theme", "dark")
        element.evaluate("element => element.setAttribute('view', 'plan')")
        expect(root).to_have_attribute("data-view", "plan")
        assert len([url for url in asked if "embed.html" in url]) == 1


def test_the_whole_page_opens_with_the_same_scenario(browser: Browser, address: str, tmp_path: Path) -> None:
    site = html_site(tmp_path, snippet("html", address, SCENARIO))
    with served(site) as host, reading(browser, host) as (page, _):
        with page.context.expect_page() as opening:
            page.frame_locator(FRAME).locator("[data-full]").click()
        opened, _, text = opening.value.url.partition("#")
        assert (opened, sorted(text.split("&"))) == (address, sorted(SCENARIO.split("&")))


@pytest.mark.parametrize("rights", ["", "allow-scripts", "allow-scripts allow-popups"])
def test_in_a_sandboxed_frame_the_picture_stays_and_a_message_comes(
    browser: Browser, address: str, tmp_path: Path, rights: str
) -> None:
    frame_of = snippet("iframe", address, SCENARIO, view="memory").replace("<iframe", f'<iframe sandbox="{rights}"')
    site = html_site(tmp_path, frame_of)
    with served(site) as host, reading(browser, host) as (page, _):
        frame = page.frame_locator(FRAME)
        expect(frame.locator("#memory .parts")).to_be_visible()
        frame.locator("#memory .figure").first.scroll_into_view_if_needed()
        expect(frame.locator("#memory svg").first).to_be_visible()
        if not rights:
            expect(frame.locator("#wake")).to_be_hidden()
            return
        frame.locator("#wake").click()
        expect(frame.locator("#alert")).to_contain_text("storage")
        expect(frame.locator("#alone")).to_be_visible()
        expect(frame.locator("#memory .parts")).to_be_visible()


@pytest.mark.parametrize("kind", ["html", "sandbox"])
def test_copying_works_or_selects_the_text(browser: Browser, address: str, tmp_path: Path, kind: str) -> None:
    text = snippet("html" if kind == "html" else "iframe", address, SCENARIO)
    if kind == "sandbox":
        allowed = 'allow="clipboard-write"'
        assert allowed in text
        text = text.replace(allowed, 'sandbox="allow-scripts allow-same-origin"')
    with served(html_site(tmp_path, text)) as host, reading(browser, host) as (page, _):
        frame = page.frame_locator(FRAME)
        woken(frame)
        expect(frame.locator('html[data-app="ready"]')).to_be_attached(timeout=START_MILLISECONDS)
        frame.locator("#file-deepspeed > summary").click()
        frame.locator('[data-copy="file-deepspeed-text"]').click()
        said = frame.locator("#take-said")
        if kind == "html":
            expect(said).to_have_text("Copied.")
            return
        expect(said).to_have_text(REFUSED)
        selected = frame.locator("body").evaluate("() => getSelection().toString()")
        assert json.loads(selected)["train_micro_batch_size_per_gpu"] > 0


def test_an_example_shows_its_own_numbers_before_it_is_touched(browser: Browser, address: str) -> None:
    place, example = next(
        (place, text) for place, text in enumerate(links((ROOT / "index.html").read_text())) if "resnet50" in text
    )
    expected = str(evaluate(link.nested(link.read(example)))["max_micro_batch"])
    with opened(browser, address, service_workers="block") as (page, log):
        page.goto(f"{address}embed.html#theme=dark&view=all&{'&'.join(reversed(example.split('&')))}")
        expect(page.locator("#answer .answer")).to_contain_text("ResNet-50")
        assert value(page, "max_micro_batch") == expected
        expect(page.locator("#asleep-says")).to_have_text(
            "Below is what was computed for ResNet-50 on RTX 3060 12 GB when the calculator was built."
        )
        expect(page.locator('[data-figure="memory"] svg:visible')).to_have_count(1)
        assert [url for url in log.requests if "examples/" in url] == [f"{address}examples/{place}.json"]
        assert not [url for url in log.requests if any(part in url for part in RUNTIME)]
        page.locator("#wake").click()
        until(page, "ready")
        assert value(page, "max_micro_batch") == expected
        assert log.complaints == []
    with opened(browser, address, service_workers="block") as (page, log):
        page.goto(f"{address}embed.html#gpu=rtx-4090-24gb&model=resnet50")
        expect(page.locator("#asleep-says")).to_contain_text("Until then, an example: GPT-2")
        assert not [url for url in log.requests if "examples/" in url]


@pytest.mark.parametrize("view", ["all", "memory", "plan", "tradeoff"])
def test_axe_finds_nothing_asleep_or_awake(browser: Browser, address: str, view: str) -> None:
    with reading(browser, f"{address}embed.html#model=gpt2&view={view}") as (page, _):
        expect(page.locator("#wake")).to_be_visible()
        assert_accessible(page)
        if view in ("all", "plan"):
            page.click("#wake")
            until(page, "ready")
            assert_accessible(page)


def test_without_the_script_there_is_no_hole(browser: Browser, address: str, tmp_path: Path) -> None:
    site = html_site(tmp_path, snippet("iframe", address, SCENARIO))
    with served(site) as host, reading(browser, host, java_script_enabled=False) as (page, _):
        expect(page.frame_locator(FRAME).locator("#answer .answer")).to_be_visible()


def test_the_share_dialog_gives_the_text_to_paste(warm: Page, address: str) -> None:
    show(warm, "model=resnet50&precision=fp32")
    warm.click("#open-share")
    warm.locator(".share-embed summary").click()
    warm.select_option("#share-kind", "sphinx")
    warm.select_option("#share-view", "memory")
    expected = snippet("sphinx", address, "model=resnet50&precision=fp32", view="memory")
    expect(warm.locator("#share-snippet")).to_have_value(expected)
    warm.locator("#share [data-close]").click()


def test_a_link_to_a_section_keeps_the_scenario(warm: Page) -> None:
    show(warm, "model=resnet50&precision=fp32")
    warm.locator('#article a[href="#memory"]').first.click()
    expect(warm.locator("#memory h2")).to_be_in_viewport()
    warm.wait_for_function("() => location.hash === '#model=resnet50&precision=fp32'")
    expect(warm.locator("#model")).to_have_value("ResNet-50")
