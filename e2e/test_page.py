"""What a person meets: numbers, figures, links, messages; and what nobody may meet: a foreign request."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from calc.evaluation import evaluate
from e2e.driver import changed_value, choose, show, until, value

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from e2e.driver import Log

DEFAULT = {"model": "gpt2", "gpu": "rtx-4090-24gb"}

# Each numeric field: a link that shows it, and what opens its group.
NUMBER_FIELDS = {
    "sequence_length": "",
    "image_size": "model=resnet50",
    "gpus": "",
    "global_batch": "global_batch=64",
    "micro_batch": "micro_batch=4",
    "lora_rank": "method=lora",
    "gpu.memory_gib": "gpu.memory_gib=24&gpu.overhead_gib=0.5",
    "gpu.overhead_gib": "gpu.memory_gib=24&gpu.overhead_gib=0.5",
}
BAD = ("", "0", "-1", "1e308", "abc", "NaN", "1.5")
# Not every bad text is bad everywhere: a card may have 1.5 GiB, and nothing that is lost.
GOOD_AFTER_ALL = {("gpu.memory_gib", "1.5"), ("gpu.overhead_gib", "1.5"), ("gpu.overhead_gib", "0")}


def test_the_page_says_its_example_before_any_python(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("html").get_attribute("data-app") == "static"
    expected = evaluate(DEFAULT)
    assert value(page, "max_micro_batch") == str(expected["max_micro_batch"])
    assert value(page, "memory.peak_allocated_bytes") == str(expected["memory"]["peak_allocated_bytes"])
    assert page.locator("figure svg").count() >= 4
    context.close()


def test_start_goes_through_its_states_and_leaves_its_marks(fresh: tuple[Page, Log], address: str) -> None:
    page, log = fresh
    page.add_init_script(
        """addEventListener("DOMContentLoaded", () => {
          const seen = (window.seen = { states: [], texts: [] });
          const look = () => {
            const state = document.documentElement.dataset.app, text = document.getElementById("state").textContent;
            if (seen.states.at(-1) !== state) seen.states.push(state);
            if (seen.texts.at(-1) !== text) seen.texts.push(text);
          };
          look();
          const everything = { attributes: true, subtree: true, childList: true, characterData: true };
          new MutationObserver(look).observe(document, everything);
        })"""
    )
    page.goto(address)
    until(page, "ready")
    seen = page.evaluate("window.seen")
    assert seen["states"] == ["static", "loading", "numbers", "ready"]
    assert len([text for text in seen["texts"] if " MB" in text]) >= 3, "progress in bytes"
    marks = page.evaluate(
        "performance.getEntriesByType('mark').filter(m => m.name.startsWith('app:')).map(m => m.name)"
    )
    assert marks == ["app:alive", "app:numbers", "app:ready", "app:figures"]
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert not page.evaluate("crossOriginIsolated")
    assert log.foreign == []
    assert log.complaints == []


def test_pre_built_and_live_agree(warm: Page) -> None:
    for path in ("max_micro_batch", "memory.peak_allocated_bytes", "memory.phases.backward", "step_seconds"):
        expected: object = evaluate(DEFAULT)
        for part in path.split("."):
            assert isinstance(expected, dict)
            expected = expected[part]
        assert float(value(warm, path)) == pytest.approx(expected, rel=1e-11)


def test_a_change_changes_the_numbers_the_link_and_the_figures(warm: Page) -> None:
    figure = warm.locator('[data-figure="memory"] figcaption')
    before = figure.inner_text()
    entries = warm.evaluate("history.length")
    largest = changed_value(warm, "max_micro_batch", lambda: choose(warm, "checkpointing", "full"))
    assert int(largest) == evaluate({**DEFAULT, "checkpointing": "full"})["max_micro_batch"]
    expect(warm).to_have_url(re.compile("#checkpointing=full$"))
    expect(figure).not_to_have_text(before)
    warm.select_option("#checkpointing", "none")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "")
    # Changes that follow each other closely come into the address once they rest.
    expect(warm).not_to_have_url(re.compile("#"))
    assert warm.evaluate("history.length") == entries


def test_the_micro_batch_can_be_dragged_and_set_back(warm: Page) -> None:
    slider = warm.locator('[data-slider="micro_batch"]')
    slider.focus()
    slider.press("ArrowLeft")
    largest = evaluate(DEFAULT)["max_micro_batch"]
    expect(warm.locator("#results")).to_have_attribute("data-scenario", f"micro_batch={largest - 1}")
    assert value(warm, "micro_batch") == str(largest - 1)
    warm.locator("[data-automatic]").check()
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "")


def test_a_slider_that_is_dragged_on_while_an_answer_is_shown_stays_where_it_is(
    fresh: tuple[Page, Log], address: str
) -> None:
    page, _ = fresh
    page.goto(address)
    until(page, "ready")
    set_back = page.evaluate(
        """() => {
          // Each part of an answer is slow to show.
          const now = performance.now.bind(performance);
          let ahead = 0;
          performance.now = () => now() + 10 * ++ahead;
          const slider = document.querySelector('[data-slider="micro_batch"]');
          const move = (value) => {
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
          };
          const results = document.getElementById("results");
          const seen = [];
          return new Promise((resolve) => {
            new MutationObserver((_, observer) => {
              observer.disconnect();
              move("3");
              const look = () => {
                seen.push(slider.value);
                if (results.dataset.scenario === "micro_batch=3") resolve(seen.filter((value) => value !== "3"));
                else setTimeout(look);
              };
              look();
            }).observe(results, { childList: true, subtree: true });
            move("4");
          });
        }"""
    )
    assert set_back == []


def test_models_and_cards_are_found_by_typing(warm: Page) -> None:
    box = warm.locator("#model")
    box.click()
    box.fill("llama 8b")
    expect(warm.locator("#model-list")).to_be_visible()
    box.press("Enter")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", re.compile(r"^model=llama-3"))
    card = warm.locator("#gpu")
    card.click()
    card.fill("h100 80")
    card.press("Enter")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", re.compile(r"gpu=h100"))
    card.click()
    card.fill("no such card")
    expect(warm.locator("#gpu-list .nothing")).to_be_visible()
    # The way on where a card has no name here.
    expect(warm.locator("#gpu-list [role=option]:visible")).to_have_text([re.compile("Another card")])
    card.press("Escape")
    assert "H100" in card.input_value()
    card.click()
    card.fill("200")
    listed = warm.locator("#gpu-list [role=option]:visible")
    # By how words begin, so that an H200 is none of them.
    expect(listed.filter(has_text="H200")).to_have_count(0)
    card.fill("colab t4")
    card.press("Enter")
    expect(card).to_have_value("Google Colab T4")
    expect(warm.locator('[data-section="answer"]')).to_contain_text("T4 16 GB")


def test_a_link_may_name_the_layers_that_lora_adapts(fresh: tuple[Page, Log], address: str) -> None:
    page, log = fresh
    page.goto(f"{address}#method=lora&lora_targets=[%22q_proj%22,%22v_proj%22]&model=llama-3.1-8b")
    until(page, "ready")
    targets = page.locator("#lora_targets")
    assert targets.locator("option:checked").text_content() == "q_proj, v_proj"
    page.evaluate("document.querySelectorAll('details.more').forEach(group => { group.open = true })")
    named = int(value(page, "trainable_parameters"))
    assert (
        named
        == evaluate({"model": "llama-3.1-8b", "method": "lora", "lora_targets": ["q_proj", "v_proj"]})[
            "trainable_parameters"
        ]
    )
    everything = int(changed_value(page, "trainable_parameters", lambda: choose(page, "lora_targets", "all-linear")))
    assert everything > named
    own = str(targets.locator("option", has_text="q_proj, v_proj").get_attribute("value"))
    assert int(changed_value(page, "trainable_parameters", lambda: choose(page, "lora_targets", own))) == named
    assert log.complaints == []


@pytest.mark.parametrize("link", ["optimizer=[%22adamw%22]", "precision=[]", "model=message"])
def test_a_link_with_a_value_of_another_kind_does_not_stop_the_start(
    fresh: tuple[Page, Log], address: str, link: str
) -> None:
    page, log = fresh
    page.goto(f"{address}#{link}")
    expect(page.locator("#notice:visible, #model-message:visible")).to_contain_text(re.compile("Left out|preset"))
    choose(page, "precision", "fp16")
    show(page, "model=gpt2")
    assert log.complaints == []


def test_what_is_typed_into_a_list_is_taken_or_said_to_be_none(warm: Page) -> None:
    card = warm.locator("#gpu")
    card.fill("rtx 3060 12")
    card.press("Tab")
    expect(card).to_have_value("RTX 3060 12 GB")
    card.fill("t4 16 gb")
    card.blur()
    expect(card).to_have_value("T4 16 GB")
    expect(warm).to_have_url(re.compile("#gpu=t4-16gb"))
    card.fill("zzzz")
    card.blur()
    expect(card).to_have_value("T4 16 GB")
    expect(warm.locator("#gpu-message")).to_contain_text("\u201czzzz\u201d is not in the list: T4 16 GB stays")


def test_a_keyboard_goes_on_from_where_a_change_was_applied(warm: Page) -> None:
    show(warm, "gpu=rtx-3060-12gb")
    apply = warm.locator('[data-section="advice"]').get_by_role("button", name="Apply").first
    apply.focus()
    apply.press("Enter")
    expect(warm.locator("#results")).not_to_have_attribute("data-scenario", "gpu=rtx-3060-12gb")
    warm.wait_for_timeout(3000)
    assert warm.evaluate("document.activeElement.closest('[data-section]')?.dataset.section") == "advice"


def test_a_model_with_a_choice_of_tasks_offers_it(warm: Page) -> None:
    task = warm.locator("#task")
    assert not task.is_visible(), "GPT-2 is trained for one"
    show(warm, "model=bert-base")
    assert task.input_value() == "masked-lm"
    assert task.evaluate("box => [...box.options].filter(option => !option.hidden).map(option => option.value)") == [
        "masked-lm",
        "sequence-classification",
    ]
    before = int(value(warm, "max_micro_batch"))
    after = changed_value(warm, "max_micro_batch", lambda: choose(warm, "task", "sequence-classification"))
    assert int(after) > before
    model = warm.locator("#model")
    model.fill("ResNet-50")
    model.press("Enter")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "model=resnet50")


def test_the_answer_names_the_method(warm: Page) -> None:
    show(warm, "checkpointing=full&gpu=rtx-3060-12gb&method=qlora&model=llama-3.1-8b")
    expect(warm.locator('[data-section="answer"]')).to_contain_text("QLoRA")
    expect(warm.locator('[data-section="answer"]')).to_contain_text("checkpointing")
    expect(warm.locator('[data-says="recipe"]')).to_contain_text("QLoRA")


def test_a_configuration_that_is_yet_to_be_pasted_is_waited_for(warm: Page) -> None:
    show(warm, "gpu=h100-sxm-80gb&model=llama-3.1-8b")
    fits = value(warm, "max_micro_batch")
    model = warm.locator("#model")
    model.fill("config.json")
    warm.locator("#model-list [role=option]:visible").first.click()
    expect(warm.locator("#config")).to_be_visible()
    expect(warm.locator("#config-message")).to_contain_text("Paste")
    choose(warm, "precision", "fp32")
    expect(warm.locator("html")).to_have_attribute("data-stale", re.compile("."))
    assert warm.locator("#config").is_visible()
    assert value(warm, "max_micro_batch") == fits
    model.fill("Llama 3.1 8B")
    model.press("Enter")
    expect(warm.locator("#results")).to_have_attribute(
        "data-scenario", "gpu=h100-sxm-80gb&model=llama-3.1-8b&precision=fp32"
    )
    expect(warm.locator("html")).not_to_have_attribute("data-stale", re.compile("."))


def test_a_link_is_shown_in_the_field_that_was_typed_into_too(warm: Page) -> None:
    card, length = warm.locator("#gpu"), warm.locator("#sequence_length")
    card.fill("colab t4")
    card.press("Enter")
    expect(warm.locator('[data-section="answer"]')).to_contain_text("T4 16 GB")
    show(warm, "gpu=l4-24gb")
    expect(card).to_have_value("L4 24 GB")
    length.fill("384")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "gpu=l4-24gb&sequence_length=384")
    show(warm, "gpu=l4-24gb&sequence_length=256")
    expect(length).to_have_value("256")


@pytest.mark.parametrize("key", NUMBER_FIELDS)
def test_bad_numbers_get_a_message_and_leave_the_last_good_result(warm: Page, key: str) -> None:
    show(warm, NUMBER_FIELDS[key])
    folded = warm.locator("#scenario > details:not([open]) > summary, details.more:not([open]) > summary")
    while folded.count():
        folded.first.click()
    box = warm.locator(f'[name="{key}"]')
    good = value(warm, "memory.peak_allocated_bytes")
    for text in BAD:
        if (key, text) in GOOD_AFTER_ALL:
            continue
        box.fill(text)
        message = warm.locator(f'[id="{key}-message"]')
        expect(message).not_to_be_empty()
        assert box.get_attribute("aria-invalid") == "true", text
        assert warm.locator("html").get_attribute("data-stale"), text
        assert value(warm, "memory.peak_allocated_bytes") == good, text
        assert "Traceback" not in message.inner_text()
    box.fill(str(4))
    expect(warm.locator("html")).not_to_have_attribute("data-stale", re.compile("."))


def test_an_error_of_the_calculation_stands_beside_its_field(warm: Page) -> None:
    show(warm, "gpu=t4-16gb")
    good = value(warm, "memory.peak_allocated_bytes")
    choose(warm, "precision", "bf16")
    expect(warm.locator("#precision-message")).to_contain_text("T4")
    assert warm.locator("html").get_attribute("data-stale") == "precision"
    assert value(warm, "memory.peak_allocated_bytes") == good
    choose(warm, "precision", "fp32")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "gpu=t4-16gb&precision=fp32")
    assert warm.locator("#precision").get_attribute("aria-invalid") is None


def test_a_fault_leaves_the_last_good_result_and_the_next_change_is_answered(warm: Page) -> None:
    show(warm, "micro_batch=3")
    warm.evaluate(
        """() => {
          const ask = python.ask.bind(python);
          const fault = JSON.stringify({ ok: false, error: { field: "", message: "This scenario cannot be shown" } });
          python.ask = (seconds, name, ...rest) => {
            if (name !== "show") return ask(seconds, name, ...rest);
            python.ask = ask;
            return Promise.resolve(fault);
          };
        }"""
    )
    warm.fill("#micro_batch", "4")
    expect(warm.locator("#notice")).to_have_text("This scenario cannot be shown")
    expect(warm.locator("html")).to_have_attribute("data-stale", "message")
    assert value(warm, "micro_batch") == "3"
    warm.fill("#micro_batch", "5")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "micro_batch=5")
    assert value(warm, "micro_batch") == "5"
    expect(warm.locator("#notice")).to_be_hidden()
    expect(warm.locator("html")).not_to_have_attribute("data-stale", re.compile("."))


def test_a_link_is_read_and_what_it_does_not_know_is_said(fresh: tuple[Page, Log], address: str) -> None:
    page, log = fresh
    page.goto(f"{address}#precision=fp32&optimizer=sgd&colour=blue")
    until(page, "ready")
    expected = evaluate({**DEFAULT, "precision": "fp32", "optimizer": "sgd"})
    assert value(page, "memory.peak_allocated_bytes") == str(expected["memory"]["peak_allocated_bytes"])
    assert page.locator("#precision").input_value() == "fp32"
    expect(page.locator("#notice")).to_contain_text("colour")
    assert log.complaints == []


def test_a_link_to_an_unknown_model_leaves_the_example_and_says_so(fresh: tuple[Page, Log], address: str) -> None:
    page, log = fresh
    page.goto(f"{address}#model=sd15")
    expect(page.locator("#model-message")).to_contain_text("sd15", timeout=60_000)
    expect(page.locator("#state")).to_contain_text("an example, computed when this page was built")
    page.goto(f"{address}#model=bert-base")
    until(page, "ready")
    expect(page.locator("#state")).not_to_contain_text("example")
    assert log.complaints == []


def test_undo_and_redo(warm: Page) -> None:
    warm.select_option("#optimizer", "sgd")
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "optimizer=sgd")
    expect(warm.locator("#undo")).to_be_enabled()
    warm.wait_for_timeout(700)
    warm.locator("#undo").click()
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "")
    assert warm.locator("#optimizer").input_value() == "adamw"
    warm.locator("#redo").click()
    expect(warm.locator("#results")).to_have_attribute("data-scenario", "optimizer=sgd")


def test_the_same_scenarios_give_the_same_text_in_cpython_and_in_the_page(warm: Page) -> None:
    for scenario in golden_scenarios():
        text = json.dumps(scenario)
        call = "text => python.ask(30, 'evaluate', text)"
        answer = json.loads(warm.evaluate(call, text))
        here = json.loads(json.dumps(evaluate(scenario)))
        assert answer["ok"], scenario
        assert differences(answer["result"], here) == [], scenario


def differences(there: object, here: object, path: str = "") -> list[str]:
    """Name the places where two JSON values differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        return [
            found
            for key in there.keys() | here
            for found in differences(there.get(key), here.get(key), f"{path}.{key}")
        ]
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        return [
            found
            for index, pair in enumerate(zip(there, here, strict=True))
            for found in differences(*pair, f"{path}.{index}")
        ]
    return [] if there == here else [f"{path}: {there} there, {here} here"]


def golden_scenarios() -> list[dict[str, object]]:
    return [
        {"model": model, "gpu": gpu, **recipe}
        for model in ("gpt2", "llama-3.2-1b", "bert-base", "vit-base-patch16", "resnet50")
        for gpu, recipe in (
            ("rtx-4090-24gb", {}),
            ("h100-sxm-80gb", {"precision": "bf16", "checkpointing": "full", "global_batch": 96}),
            ("a100-sxm-80gb", {"precision": "fp32", "optimizer": "sgd-momentum", "micro_batch": 3}),
        )
    ] + [
        # The largest graphs: a browser gives its workers a stack of half a megabyte.
        {"model": model, "gpu": "h200-sxm-141gb"}
        for model in ("sdxl-unet", "densenet201", "efficientnet_v2_l", "swin-large", "llama-3.1-8b")
    ]


def test_evaluation_in_the_page_takes_less_than_25_ms(warm: Page) -> None:
    milliseconds = warm.evaluate(
        """async scenario => {
          const start = performance.now();
          for (let i = 0; i < 1000; i++) {
            await python.ask(30, "evaluate", JSON.stringify({ ...scenario, micro_batch: 1 + i % 40 }));
          };
          return (performance.now() - start) / 1000;
        }""",
        DEFAULT,
    )
    assert milliseconds < 25


def test_nothing_left_the_origin_in_all_of_this(warm_pair: tuple[Page, Log]) -> None:
    _, log = warm_pair
    assert log.foreign == []
    assert log.complaints == []
