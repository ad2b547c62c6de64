"""What a person checks, corrects, compares and takes away."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from calc.catalog import models
from calc.evaluation import evaluate
from calc.export import exports_of
from e2e.driver import START_MILLISECONDS, choose, show, until, value

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

DEFAULT = {"model": "gpt2", "gpu": "rtx-4090-24gb"}


def settled(page: Page, link: str) -> None:
    """Wait until a scenario's numbers and figures are all there."""
    show(page, link)
    expect(page.locator("[data-pending]")).to_have_count(0)


def test_files_are_copied_and_downloaded(warm: Page) -> None:
    warm.context.grant_permissions(["clipboard-read", "clipboard-write"])
    settled(warm, "global_batch=64")
    expected = {row["id"]: row.get("text") for row in exports_of(evaluate({**DEFAULT, "global_batch": 64}))}
    warm.locator("#file-deepspeed > summary").click()
    text = warm.locator("#file-deepspeed-text")
    expect(text).to_have_text(expected["deepspeed"] or "", use_inner_text=True)
    warm.locator('[data-copy="file-deepspeed-text"]').click()
    expect(warm.locator("#take-said")).to_have_text("Copied.")
    assert warm.evaluate("navigator.clipboard.readText()") == expected["deepspeed"]
    with warm.expect_download() as waiting:
        warm.locator('[data-download="file-deepspeed-text"]').click()
    assert waiting.value.suggested_filename == "deepspeed.json"
    assert waiting.value.path().read_text() == expected["deepspeed"]
    whole = json.loads(warm.locator("#file-json-text").text_content() or "")
    assert whole["max_micro_batch"] == int(value(warm, "max_micro_batch"))


def test_text_is_selected_where_the_clipboard_is_refused(warm: Page) -> None:
    settled(warm, "")
    warm.locator("#file-loop").evaluate("details => { details.open = true }")
    warm.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')) }")
    warm.locator('[data-copy="file-loop-text"]').click()
    expect(warm.locator("#take-said")).to_contain_text("selected")
    assert "MICRO_BATCH" in warm.evaluate("getSelection().toString()")
    warm.evaluate("delete navigator.clipboard.writeText")


def test_a_figure_is_saved_as_svg_png_and_csv(warm: Page) -> None:
    settled(warm, "")
    warm.locator('[data-save-figure="memory"]').click()
    expect(warm.locator("#figure-png")).to_have_attribute("src", re.compile("^data:image/png"))
    found = {}
    for kind in ("svg", "png", "csv"):
        with warm.expect_download() as waiting:
            warm.locator(f'[data-save-as="{kind}"]').click()
        assert waiting.value.suggested_filename == f"memory.{kind}"
        found[kind] = waiting.value.path().read_bytes()
    assert found["svg"].startswith(b"<?xml")
    assert b"var(--" not in found["svg"]
    assert found["png"].startswith(b"\x89PNG")
    assert found["csv"].startswith(b"Micro-batch,")
    warm.locator("#figure-files [data-close]").click()


def test_readings_correct_the_result_until_cleared(warm: Page) -> None:
    settled(warm, "")
    before = value(warm, "max_micro_batch")
    warm.locator("#reading-batch").fill("8")
    warm.locator("#reading-add").click()
    expect(warm.locator("#reading-gib-message")).to_contain_text("Empty")
    warm.locator("#reading-gib").fill("14.5")
    warm.locator("#reading-add").click()
    expect(warm.locator('[data-section="calibration"]')).to_contain_text("In use.")
    reading = {"batch": 8, "reading": "allocated", "gib": 14.5}
    expected = evaluate({**DEFAULT, "calibration": [reading]})
    assert value(warm, "calibration.activation_share") == f"{expected['calibration']['activation_share']:.12g}"
    assert value(warm, "max_micro_batch") == str(expected["max_micro_batch"]) != before
    expect(warm).to_have_url(re.compile("calibration="))
    warm.locator("[data-forget-readings]").click()
    expect(warm.locator('[data-section="calibration"]')).to_be_empty()
    assert value(warm, "max_micro_batch") == before


def test_a_wrong_reading_is_said_and_leaves_the_result(warm: Page) -> None:
    settled(warm, "")
    warm.locator("#own-runs summary").click()
    warm.locator("#reading-paste").fill('[{"batch": 4, "reading": "guessed", "gib": 3}]')
    warm.locator("#reading-take").click()
    expect(warm.locator("#readings-message")).to_contain_text("reading is one of")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "")
    assert warm.locator("html").get_attribute("data-stale") is None


def test_two_scenarios_stand_side_by_side(warm: Page) -> None:
    settled(warm, "")
    warm.locator("#keep-a").click()
    expect(warm.locator('[data-section="comparison"]')).to_contain_text("A is what you see")
    choose(warm, "checkpointing", "full")
    sides = warm.locator(".sides")
    expect(sides).to_contain_text("Every block")
    assert value(warm, "comparison.rows.0.max_micro_batch") == str(evaluate(DEFAULT)["max_micro_batch"])
    assert value(warm, "comparison.rows.1.max_micro_batch") == value(warm, "max_micro_batch")
    drawn = warm.locator('[data-figure="comparison"]')
    expect(drawn.locator("svg").first).to_be_visible(timeout=START_MILLISECONDS)
    expect(drawn.locator("figcaption")).to_contain_text("B takes")
    expect(warm).to_have_url(re.compile("compare="))
    now = value(warm, "max_micro_batch")
    warm.locator("#swap-a").click()
    expect(warm.locator('[data-result="comparison.rows.0.max_micro_batch"]')).to_have_attribute("data-value", now)
    assert warm.locator("#checkpointing").input_value() == "none"
    warm.locator("#drop-a").click()
    expect(sides).to_have_count(0)
    expect(drawn).to_be_hidden()


def test_nothing_fits_names_the_nearest_ways(warm: Page) -> None:
    settled(warm, "model=llama-3.1-8b")
    ways = warm.locator('[data-section="ways_to_fit"]')
    expect(ways).to_contain_text("Nearest ways")
    promised = value(warm, "ways_to_fit.0.max_micro_batch")
    ways.locator("[data-apply]").first.click()
    expect(warm.locator("[data-fits=true]")).to_be_visible()
    assert value(warm, "max_micro_batch") == promised


def test_a_config_is_chosen_as_a_file(warm: Page, tmp_path: Path) -> None:
    settled(warm, "")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(dict(models.preset("llama-3.2-1b").config)))
    warm.locator("#config-file").set_input_files(file)
    expect(warm.locator('[data-section="answer"]')).to_contain_text("1.24B")
    file.write_text("LlamaForCausalLM(\n  (model): LlamaModel(\n)")
    warm.locator("#config-file").set_input_files(file)
    expect(warm.locator("#config-message")).to_contain_text("print(model.config")
    assert "1.24B" in warm.locator('[data-section="answer"]').inner_text()
    # As print(model.config) shows it.
    file.write_text(f"GPT2Config {json.dumps(dict(models.preset('gpt2-medium').config))}\n")
    warm.locator("#config-file").set_input_files(file)
    expect(warm.locator('[data-section="answer"]')).to_contain_text("355M")


def test_a_config_is_dropped_anywhere_on_the_page(warm: Page) -> None:
    settled(warm, "")
    drop = """([name, text]) => {
      const held = new DataTransfer();
      held.items.add(new File([text], name, { type: "application/json" }));
      const dropped = (kind) => new DragEvent(kind, { dataTransfer: held, bubbles: true, cancelable: true });
      const place = document.querySelector("#memory h2");
      // Not prevented, the browser would open the file in the page's place.
      return ["dragover", "drop"].map((kind) => !place.dispatchEvent(dropped(kind)));
    }"""
    config = json.dumps(dict(models.preset("llama-3.2-1b").config))
    assert warm.evaluate(drop, ["config.json", config]) == [True, True]
    expect(warm.locator('[data-section="answer"]')).to_contain_text("1.24B")
    expect(warm.locator('[data-field="model.config"]')).to_be_visible()
    assert warm.evaluate(drop, ["config.json", "x" * 1_000_001]) == [True, True]
    expect(warm.locator("#config-message")).to_contain_text("larger than 1 MB")


def test_the_nearest_measured_runs_are_highlighted_and_all_can_be_compared_again(
    browser: Browser, address: str
) -> None:
    page = browser.new_context().new_page()
    page.goto(address)
    until(page, "ready")
    figure = page.locator('[data-built="accuracy"]')
    assert '[id$="-run-' in (page.locator('[data-section="accuracy"] style').text_content() or "")
    page.locator("#measure-again").click()
    expect(page.locator("#measure-said")).to_contain_text("in your browser", timeout=90_000)
    assert figure.locator("svg").count() == 1
    assert float(value(page, "accuracy.expect.peak_allocated_bytes.high")) < 0.12
    page.context.close()
