"""GPUs: enough of them, found by typing, with the figures that their makers and drivers print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.catalog.gpus import (
    FORMATS_BY_PRECISION,
    GIB,
    MIB,
    Gpu,
    gpu,
    gpus,
    instances,
    precision_refusal,
    search,
    supports,
    unified_visible_bytes,
)
from calc.errors import ScenarioError
from calc.scenario import parse
from calc.throughput import Machine


def test_there_are_at_least_90_with_unique_ids() -> None:
    ids = [card.id for card in gpus()]
    assert len(ids) >= 90
    assert len(set(ids) | {instance.id for instance in instances()}) == len(ids) + len(instances())


@pytest.mark.parametrize(
    ("gpu_id", "mib"),
    [
        # Totals of nvidia-smi.
        ("h100-sxm-80gb", 81559),
        ("a100-sxm-80gb", 81920),
        ("a10-24gb", 23028),
        ("l4-24gb", 23034),
        ("t4-16gb", 15360),
        ("l40s-48gb", 46068),
        ("rtx-4090-24gb", 24564),
        ("b200-180gb", 183359),
    ],
)
def test_memory_is_what_the_driver_reports(gpu_id: str, mib: int) -> None:
    assert gpu(gpu_id).memory_bytes == mib * MIB


@pytest.mark.parametrize(
    ("gpu_id", "precision", "teraflops"),
    [
        # Makers' dense figures: data sheets and architecture whitepapers.
        ("rtx-4090-24gb", "bf16", 165.2),
        ("rtx-3090-24gb", "amp-fp16", 71),
        ("rtx-5090-32gb", "bf16", 209.5),
        ("rtx-2080-ti-11gb", "amp-fp16", 53.8),
        ("titan-rtx-24gb", "fp16", 130.5),
        ("rtx-a6000-48gb", "bf16", 154.8),
        ("rtx-6000-ada-48gb", "fp8", 728.5),
        ("a40-48gb", "tf32", 74.8),
        ("h100-sxm-80gb", "tf32", 494.7),
        ("v100-sxm-16gb", "amp-fp16", 125),
        ("rtx-pro-5000-48gb", "bf16", 2064 / 8),
        ("mi300x-192gb", "bf16", 1307.4),
    ],
)
def test_rates_are_the_makers_dense_figures(gpu_id: str, precision: str, teraflops: float) -> None:
    itemsize = {"tf32": 4, "fp8": 1}.get(precision, 2)
    assert Machine.of(gpu(gpu_id)).peak(itemsize, precision) == pytest.approx(teraflops * 1e12, rel=0.005)


@pytest.mark.parametrize(
    ("gpu_id", "figure", "value"),
    [
        # What a card's own driver or its maker's data sheet says where databases repeat something else.
        ("a10g-24gb", "multiprocessors", 80),  # torch.cuda.get_device_properties
        ("l4-24gb", "multiprocessors", 58),  # deviceQuery: 7424 cores of 128
        ("arc-a770-16gb", "memory_bandwidth_bytes_per_second", 17.5e9 * 256 / 8),
        ("rtx-2000-ada-16gb", "memory_bandwidth_bytes_per_second", 14e9 * 128 / 8),
        ("a16-16gb", "tdp_watts", 250 / 4),
        ("v100-pcie-16gb", "tdp_watts", 250),
        ("v100-sxm-16gb", "tdp_watts", 300),
    ],
)
def test_figures_are_those_of_the_card_itself(gpu_id: str, figure: str, value: float) -> None:
    assert getattr(gpu(gpu_id), figure) == value


@pytest.mark.parametrize(
    ("gpu_id", "threads"),
    [
        # CUDA programming guide, technical specifications per compute capability; deviceQuery on RTX 5090 and A100.
        ("v100-sxm-16gb", 2048),
        ("t4-16gb", 1024),
        ("a100-sxm-80gb", 2048),
        ("rtx-3090-24gb", 1536),
        ("rtx-4090-24gb", 1536),
        ("h100-sxm-80gb", 2048),
        ("b200-180gb", 2048),
        ("rtx-5090-32gb", 1536),
    ],
)
def test_threads_that_a_multiprocessor_holds(gpu_id: str, threads: int) -> None:
    assert gpu(gpu_id).resident_threads == threads


@pytest.mark.parametrize(
    ("gpu_id", "cores", "gigahertz"),
    [("a10g-24gb", 128, 1.71), ("l4-24gb", 128, 2.04), ("v100-sxm-16gb", 64, 1.53), ("v100-sxm-32gb", 64, 1.53)],
)
def test_the_fp32_rate_is_that_of_all_cores_at_the_boost_clock(gpu_id: str, cores: int, gigahertz: float) -> None:
    card = gpu(gpu_id)
    assert card.multiprocessors is not None
    made = card.multiprocessors * cores * 2 * gigahertz * 1e9
    assert card.dense_flops_per_second["fp32"] == pytest.approx(made, rel=0.002)


def test_the_context_of_the_h100_is_the_measured_one() -> None:
    assert gpu("h100-sxm-80gb").context_bytes == 650_969_088


@pytest.mark.parametrize("card", gpus(), ids=lambda card: card.id)
def test_every_card_is_whole(card: Gpu) -> None:
    assert 0.6 * card.memory_bytes < card.visible_bytes <= card.memory_bytes
    assert card.context_bytes < 0.2 * card.visible_bytes
    assert 5e10 < card.memory_bandwidth_bytes_per_second < 1e13
    rates = card.dense_flops_per_second
    assert {"fp32", "fp16"} <= rates.keys()
    assert rates["fp16"] >= rates["fp32"]
    assert rates.get("fp8", rates["fp16"]) >= rates["fp16"]
    assert rates["fp32"] <= rates.get("tf32", rates["fp32"]) <= rates["fp16"]
    assert set(card.sources) == {"specification", "memory", "visible", "rates", "context"}
    assert all(card.sources.values())
    size = int(card.id.removesuffix("gb").rsplit("-", 1)[1])
    assert card.memory_bytes == pytest.approx(size * GIB, rel=0.08)


@pytest.mark.parametrize(
    ("gpu_id", "precision", "instead"),
    [
        ("t4-16gb", "bf16", "amp-fp16"),
        ("v100-sxm-32gb", "amp-bf16", "amp-fp16"),
        ("rtx-2080-ti-11gb", "tf32", "fp32"),
        ("a100-sxm-40gb", "fp8", "bf16"),
        ("rtx-3090-24gb", "fp8", "amp-bf16"),
        ("m3-max-64gb", "fp8", "bf16"),
        ("arc-a770-16gb", "tf32", "fp32"),
    ],
)
def test_a_missing_precision_is_refused_with_the_alternative(gpu_id: str, precision: str, instead: str) -> None:
    refusal = precision_refusal(gpu(gpu_id), precision)
    assert refusal is not None
    assert instead in refusal
    with pytest.raises(ScenarioError) as caught:
        parse({"model": "gpt2", "gpu": gpu_id, "precision": precision})
    assert caught.value.field == "precision"


@pytest.mark.property
@given(st.sampled_from(gpus()), st.sampled_from(sorted(FORMATS_BY_PRECISION)))
def test_what_a_refusal_recommends_is_supported(card: Gpu, precision: str) -> None:
    refusal = precision_refusal(card, precision)
    if refusal is not None:
        named = refusal.rsplit("Choose ", 1)[1].split(" or ")
        assert named
        assert all(supports(card, other) for other in named)


@pytest.mark.parametrize(
    ("gib", "mib"),
    [(16, 10922), (32, 21845), (64, 49152), (192, 147456)],  # llama.cpp logs: recommendedMaxWorkingSetSize
)
def test_unified_memory_rule(gib: int, mib: int) -> None:
    assert unified_visible_bytes(gib * GIB) // MIB == mib


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("4090", "rtx-4090-24gb"),
        ("h100", "h100-sxm-80gb"),
        ("colab t4", "t4-16gb"),
        ("kaggle p100", "p100-16gb"),
        ("g5.12xlarge", "a10g-24gb"),
        ("M3 Max 128 GB", "m3-max-128gb"),
        ("7900 xtx", "rx-7900-xtx-24gb"),
    ],
)
def test_typing_finds(typed: str, first: str) -> None:
    assert search(typed)[0].id == first


def test_typing_a_memory_size_finds_all_of_that_size() -> None:
    found = {card.id for card in search("24 gb")}
    assert {"rtx-4090-24gb", "rtx-3090-24gb", "l4-24gb", "a10-24gb", "rx-7900-xtx-24gb"} <= found
    assert all("24gb" in gpu_id for gpu_id in found)


def test_instances_are_answered_with_their_gpu() -> None:
    assert gpu("colab-t4").id == "t4-16gb"
    assert gpu("ml.p4d.24xlarge").id == "a100-sxm-40gb"


def test_a_wrong_id_is_answered_with_the_nearest() -> None:
    with pytest.raises(ScenarioError, match="rtx-4090-24gb") as caught:
        gpu("rtx-4090")
    assert caught.value.field == "gpu"
