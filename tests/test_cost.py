"""Time, energy and money of a run."""

from __future__ import annotations

import pytest

from calc import cost
from calc.catalog import published
from calc.errors import ScenarioError


def test_imagenet_in_one_hour() -> None:
    # Goyal et al. 2017: 90 epochs at 8192 on 256 GPUs.
    updates = cost.update_count(90 * 1_281_167, 8192)
    assert updates == 14_076
    assert cost.run_seconds(updates, 0.25) / 3600 == pytest.approx(0.98, abs=0.01)


def test_mlperf_bert_from_8_to_3472() -> None:
    rows = {row["gpus"]: row for row in published.scaling_efficiency() if row["workload"] == "BERT-large"}
    hardware = rows[3472]["throughput"] / rows[3472]["throughput_base"]
    assert hardware == pytest.approx(100, rel=0.01)
    # 5.51 minutes became 0.119.
    assert cost.time_speed_up(hardware, 768, 13_888, 10_140) == pytest.approx(5.51 / 0.119, rel=0.03)


def test_a_run_adds_up() -> None:
    found = cost.run(
        samples=1_000_000,
        global_batch=1000,
        update_seconds=3.6,
        gpus=8,
        board_watts=700,
        dollars_per_gpu_hour=2.5,
    )
    assert found["updates"] == 1000
    assert found["gpu_hours"] == pytest.approx(8)
    assert found["dollars"] == pytest.approx(20)
    assert found["energy_kwh_low"] == pytest.approx(5.6)
    assert found["energy_kwh_high"] == pytest.approx(10.2)
    assert found["price_source"] == "entered"


@pytest.mark.parametrize(
    ("gpu_id", "dollars"), [("h100-sxm-80gb", 3.99), ("a100-sxm-80gb", 2.79), ("rtx-4090-24gb", 0.74)]
)
def test_list_prices_are_a_start(gpu_id: str, dollars: float) -> None:
    price = cost.default_price(gpu_id)
    assert price is not None
    assert price.dollars_per_gpu_hour == dollars
    assert "read 2026" in price.source


def test_no_list_no_price() -> None:
    assert cost.default_price("abacus-1gb") is None
    found = cost.run(samples=10, global_batch=3, update_seconds=1.0, gpus=1, gpu_id="abacus-1gb")
    assert found["dollars"] is None
    assert found["updates"] == 4


def test_mfu_of_mpt_7b() -> None:
    # llm-foundry: 10,643 tokens per second and GPU, 46.4 % of 989 TFLOP/s with 6 N + 12 L h s operations a token.
    operations = 6 * 6_658_859_008 + 12 * 32 * 4096 * 2048
    assert cost.model_flops_utilization(operations, 10_643 * 8, 8, 989e12) == pytest.approx(0.464, abs=0.003)


@pytest.mark.parametrize("arguments", [{"samples": 0}, {"samples": 5, "dollars_per_gpu_hour": -1}])
def test_nonsense_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ScenarioError):
        cost.run(**{"global_batch": 1, "update_seconds": 1.0, "gpus": 1, **arguments})  # type: ignore[arg-type]
