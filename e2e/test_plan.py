"""The plan as a person asks for it: the wanted batch, more GPUs, the run's length, own measurements, the planner."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from calc.evaluation import evaluate
from calc.planner import plan
from e2e.driver import START_MILLISECONDS, opened, show, until, value

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DEFAULT = {"model": "gpt2", "gpu": "rtx-4090-24gb"}
LONG = "global_batch=512&gpus=16&tokens=10000000000"
LONG_SCENARIO = {**DEFAULT, "global_batch": 512, "gpus": 16, "tokens": 10_000_000_000}


def answered(page: Page, pattern: str) -> None:
    """Wait until the numbers of a link that matches are shown."""
    expect(page.locator("#results")).to_have_attribute("data-scenario", re.compile(pattern))


def test_every_number_of_the_plan_is_the_calculations(warm: Page) -> None:
    show(warm, LONG)
    expected = evaluate(LONG_SCENARIO)
    for path in (
        "plan.exact.accumulation_steps",
        "accumulation.sample_seconds",
        "convergence.critical_batch.low",
        "convergence.laws.0.batch_tokens",
        "scaling.efficiency",
        "scaling.by_strategy.4.memory_bytes",
        "run.seconds",
        "run.dollars",
    ):
        found: object = expected
        for part in path.split("."):
            found = found[int(part)] if isinstance(found, list) else found[part]  # type: ignore[index]
        assert isinstance(found, int | float)
        assert float(value(warm, path)) == pytest.approx(found, rel=1e-11), path
    expect(warm.locator(".wanted")).to_contain_text("512 = 8 \N{MULTIPLICATION SIGN} 4 accumulation steps")
    for name in ("tradeoff", "quality", "speed-up", "strategies"):
        figure = warm.locator(f'[data-figure="{name}"]')
        expect(figure.locator("svg").first).to_be_attached(timeout=START_MILLISECONDS)
        expect(figure.locator("figcaption")).not_to_be_empty()
        expect(figure.locator("table")).to_be_attached()


def test_the_planner_answers_when_asked_and_says_when_it_is_out_of_date(warm: Page) -> None:
    show(warm, "global_batch=512&gpus=4")
    warm.locator("#ask-planner").click()
    expected = plan({**DEFAULT, "global_batch": 512, "gpus": 4})
    expect(warm.locator('[data-result="planner.text"]')).to_have_text(expected["text"], timeout=START_MILLISECONDS)
    assert value(warm, "planner.feasible") == str(expected["feasible"])
    expect(warm.locator('[data-figure="plans-cost"] svg')).to_be_attached(timeout=START_MILLISECONDS)
    show(warm, "global_batch=256&gpus=4")
    expect(warm.locator("#plans")).to_have_attribute("data-outdated", "")
    warm.locator("#ask-planner").click()
    expect(warm.locator("#plans")).not_to_have_attribute("data-outdated", "", timeout=START_MILLISECONDS)
    warm.get_by_role("button", name="Use this plan").click()
    answered(warm, "loss=fused")
    assert value(warm, "micro_batch") == str(plan({**DEFAULT, "global_batch": 256, "gpus": 4})["best"]["micro_batch"])


def test_a_deadline_and_a_budget_are_judged_and_planned_for(warm: Page) -> None:
    show(warm, "gpus=8&tokens=2500000000")
    warm.fill("#deadline_hours", "1")
    answered(warm, "deadline_hours=1&gpus=8")
    asked = {**DEFAULT, "gpus": 8, "tokens": 2_500_000_000, "deadline_hours": 1}
    expect(warm.locator('[data-result="run.goal"]')).to_have_text(evaluate(asked)["run"]["goal"])
    expect(warm.locator("#whole-run")).to_contain_text("misses the deadline of 60 min by")
    warm.fill("#deadline_hours", "3")
    warm.fill("#budget_dollars", "20")
    warm.locator("#allowed > summary").click()
    warm.locator('[data-allow="precision"][value="bf16"]').check()
    answered(warm, "allow.precision=%5B%22bf16%22%5D&budget_dollars=20&deadline_hours=3")
    asked |= {"deadline_hours": 3, "budget_dollars": 20, "allow": {"precision": ["bf16"]}}
    warm.locator("#ask-planner").click()
    expected = plan(asked)
    assert expected["goal_met"]
    expect(warm.locator('[data-result="planner.text"]')).to_have_text(expected["text"], timeout=START_MILLISECONDS)
    expect(warm.locator('[data-figure="plans-cost"] svg').first).to_be_attached(timeout=START_MILLISECONDS)
    warm.get_by_role("button", name="Use this plan").click()
    answered(warm, "precision=bf16")
    expect(warm.locator("#whole-run")).to_contain_text("meets the deadline")
    assert value(warm, "run.goal").startswith("As it is set, the run meets the deadline")
    show(warm, "allow.precision=%5B%22tf32%22%5D")
    expect(warm.locator('[data-allow="precision"][value="tf32"]')).to_be_checked()
    expect(warm.locator('[data-allow="precision"][value="bf16"]')).not_to_be_checked()


def test_a_deadline_without_a_runs_length_asks_for_it(warm: Page) -> None:
    show(warm, "deadline_hours=5&global_batch=64")
    warm.locator("#ask-planner").click()
    expect(warm.locator("#planner-said")).to_contain_text("needs the run's length", timeout=START_MILLISECONDS)


def test_a_section_that_needs_something_offers_it(warm: Page) -> None:
    warm.get_by_role("button", name="Try 8 GPUs").click()
    answered(warm, "^gpus=8$")
    assert value(warm, "scaling.gpus") == "8"
    warm.locator("#reach").get_by_role("button", name="I want 64 samples a step").click()
    answered(warm, "global_batch=64")
    assert warm.locator('[data-enables="global_batch"]').is_checked()
    warm.get_by_role("button", name="Try 20 tokens a parameter").click()
    answered(warm, "tokens=")
    assert value(warm, "run.updates")


def test_own_measurements_give_a_rate_and_a_noise_scale(warm: Page) -> None:
    warm.locator("details.measured > summary").click()
    warm.fill("#known_batch", "16")
    warm.fill("#known_learning_rate", "3e-4")
    answered(warm, "known_learning_rate")
    assert float(value(warm, "convergence.learning_rate.learning_rate")) > 0
    norms = {"small_batch": "8", "small_batch_norm": "3", "large_batch": "64", "large_batch_norm": "1.5"}
    for key, typed in norms.items():
        expect(warm.locator('[data-result="convergence.own_noise_scale.noise_scale"]')).to_have_count(0)
        warm.fill(f'[id="gradient_norms.{key}"]', typed)
    expect(warm.locator('[data-result="convergence.own_noise_scale.noise_scale"]')).to_have_text("48")
    warm.fill('[id="gradient_norms.large_batch_norm"]', "4")
    expect(warm.locator('[id="gradient_norms.small_batch-message"]')).to_contain_text("smaller norm")
    warm.fill('[id="gradient_norms.large_batch_norm"]', "")
    expect(warm.locator("html")).not_to_have_attribute("data-stale", re.compile("."))


def test_what_the_plan_refuses_stands_beside_its_field_and_another_field_may_mend_it(warm: Page) -> None:
    show(warm, "gpus=6")
    warm.locator('details.more:has([id="nodes"]) > summary').click()
    warm.fill('[id="parallelism.tensor"]', "4")
    expect(warm.locator('[id="parallelism.tensor-message"]')).to_contain_text("does not divide 6 GPUs")
    warm.fill("#gpus", "8")
    answered(warm, r"gpus=8&parallelism.tensor=4")
    expect(warm.locator('[id="parallelism.tensor-message"]')).to_be_empty()
    warm.fill("#epochs", "3")
    expect(warm.locator("#dataset_samples-message")).to_contain_text("imagenet")
    warm.fill("#dataset", "alpaca")
    answered(warm, "dataset=alpaca")
    assert value(warm, "run.updates")
    warm.fill("#epochs", "")
    answered(warm, "^dataset=alpaca&gpus=8")


def test_the_plan_fits_a_phone(browser: Browser, address: str) -> None:
    with opened(browser, address, viewport={"width": 360, "height": 780}, service_workers="block") as (page, log):
        page.goto(f"{address}#{LONG}")
        until(page, "ready")
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert log.complaints == []
        assert log.foreign == []
