"""Time, energy and money of a run."""

from __future__ import annotations

import pytest

from calc import cost
from calc.errors import ScenarioError


def test_imagenet_in_one_hour() -> None:
    # Goyal et al. 2017: 90 epochs at 8192 on 256 GPUs.
    updates = cost.update_count(90 * 1_281_167, 8192)
    assert updates == 14_076
    assert cost.run_seconds(updates, 0.25) / 3600 == pytest.approx(0.98, abs=0.01)


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


@pytest.mark.parametrize("arguments", [{"samples": 0}, {"samples": 5, "dollars_per_gpu_hour": -1}])
def test_nonsense_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ScenarioError):
        cost.run(**{"global_batch": 1, "update_seconds": 1.0, "gpus": 1, **arguments})  # type: ignore[arg-type]
