"""Collectives against NCCL's own model and against published measurements."""

from __future__ import annotations

import pytest

from calc import collectives
from calc.catalog import gpus as catalog_gpus
from calc.errors import ScenarioError

MIB = 2**20
GB = 1e9


@pytest.mark.parametrize(
    ("link", "size_mib", "gigabytes_per_second", "tolerance"),
    [
        # Bus bandwidth measured by all_reduce_perf on 8 GPUs; the A100's curve lies 12 % (rms) off, B200's 6 %.
        ("nvlink-3", 64, 171.54, 0.13),
        ("nvlink-3", 256, 194.07, 0.13),
        ("nvlink-3", 1024, 229.04, 0.13),
        ("nvlink-4", 16, 219.89, 0.03),
        ("nvlink-4", 64, 346.51, 0.03),
        ("nvlink-4", 1024, 463.58, 0.03),
        ("nvlink-4", 16 * 1024, 482.26, 0.03),
        ("nvlink-5", 16, 254.96, 0.12),
        ("nvlink-5", 256, 646.11, 0.12),
        ("nvlink-5", 16 * 1024, 845.67, 0.12),
    ],
)
def test_measured_all_reduce(link: str, size_mib: int, gigabytes_per_second: float, tolerance: float) -> None:
    fabric = collectives.read_fabric(link)
    bandwidth = collectives.bus_bandwidth(fabric, 8, 1, size_mib * MIB, reduces=True)
    assert bandwidth / GB == pytest.approx(gigabytes_per_second, rel=tolerance)


@pytest.mark.parametrize(("link", "expected"), [("nvlink-3", 150), ("nvlink-4", 270), ("nvlink-5", 300)])
def test_a_ddp_bucket_reaches_far_less_than_the_link(link: str, expected: float) -> None:
    bandwidth = collectives.bus_bandwidth(collectives.read_fabric(link), 8, 1, 25 * MIB, reduces=True)
    assert bandwidth / GB == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    ("interconnect", "gpus", "nodes", "measured"),
    [
        ("nvlink-3+infiniband-hdr-x8", 16, 2, 192),
        ("nvlink-5+efa-400g-x8", 32, 4, 382),
        ("nvlink-2+infiniband-edr", 16, 2, 12.2),
        ("nvlink-2+infiniband-edr-x4", 16, 2, 48),
    ],
)
def test_nodes_share_their_adapters(interconnect: str, gpus: int, nodes: int, measured: float) -> None:
    bandwidth = collectives.bus_bandwidth(collectives.read_fabric(interconnect), gpus, nodes, 1e10, reduces=True)
    assert bandwidth / GB == pytest.approx(measured, rel=0.02)


def test_in_switch_reduction_needs_more_than_four_gpus() -> None:
    four = collectives.bus_bandwidth(collectives.read_fabric("nvlink-4"), 4, 1, 8 * 1024 * MIB, reduces=True)
    assert four / GB == pytest.approx(363.3, rel=0.02)


def test_nccl_tuning_model_of_eight_a100() -> None:
    # NCCL's model gives 178 us for 16 MiB at its own 240 GB/s; the measured 277 us show why curves are used.
    fabric = collectives.read_fabric("nvlink-3")
    model = collectives.ring_latency(2, 8, 1, fabric) + 2 * 7 / 8 * 16 * MIB / 240e9
    assert model == pytest.approx(178e-6, rel=0.01)
    measured = collectives.all_reduce_seconds(fabric, 8, 1, 16 * MIB)
    assert measured == pytest.approx(277e-6, rel=0.15)


def test_one_gpu_exchanges_nothing() -> None:
    fabric = collectives.read_fabric("nvlink-4")
    for collective in (
        collectives.all_reduce_seconds,
        collectives.all_gather_seconds,
        collectives.all_to_all_seconds,
    ):
        assert collective(fabric, 1, 1, 1e9) == 0
        assert collective(fabric, 8, 1, 0) == 0


def test_slower_links_take_longer() -> None:
    seconds = [
        collectives.all_reduce_seconds(collectives.read_fabric(link), 8, 1, 1e9)
        for link in ("nvlink-5", "nvlink-4", "nvlink-3", "nvlink-2", "pcie-5", "pcie-4", "pcie-3")
    ]
    assert seconds == sorted(seconds)


def test_an_expert_exchange_across_nodes_shares_the_adapters() -> None:
    fabric = collectives.read_fabric("nvlink-4+infiniband-ndr-x8")
    within = collectives.all_to_all_seconds(fabric, 8, 1, 1e9)
    across = collectives.all_to_all_seconds(fabric, 16, 2, 1e9)
    assert across > within
    assert across == pytest.approx(8 * 1e9 / 2 / (8 * 47e9), rel=0.01)


@pytest.mark.parametrize(
    "interconnect",
    ["nvlink-9", "nvlink-4+token-ring", "nvlink-4+infiniband-ndr-x0", {"node": "pcie-4", "adapters_per_node": "two"}],
)
def test_unknown_links_are_named_with_the_known_ones(interconnect: str | dict[str, str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        collectives.read_fabric(interconnect)
    assert caught.value.field == "interconnect"


def test_an_object_reads_as_the_text() -> None:
    spelled = {"node": "nvlink-4", "network": "infiniband-ndr", "adapters_per_node": 8}
    assert collectives.read_fabric(spelled) == collectives.read_fabric("nvlink-4+infiniband-ndr-x8")


def test_servers_have_the_network_of_their_generation() -> None:
    for link in collectives.links():
        if collectives.links()[link].kind == "node":
            found = collectives.read_fabric(f"{link}+{collectives.default_network(link)}")
            assert found.adapters_per_node == {"nvlink-2": 4, "nvlink-3": 8, "nvlink-4": 8, "nvlink-5": 8}.get(link, 1)


def test_every_link_names_its_source() -> None:
    for link in collectives.links().values():
        assert link.source
        assert 0 < link.effective_bytes_per_second <= link.spec_bytes_per_second


@pytest.mark.parametrize(
    ("gpu", "gpus", "link"),
    [
        ("h100-sxm-80gb", 8, "nvlink-4"),
        ("a100-sxm-80gb", 8, "nvlink-3"),
        ("v100-sxm-16gb", 8, "nvlink-2"),
        ("b200-180gb", 8, "nvlink-5"),
        ("h800-80gb", 8, "nvlink-4-h800"),
        ("rtx-3090-24gb", 2, "nvlink-bridge-ampere"),
        ("rtx-3090-24gb", 4, "pcie-4"),
        ("h100-pcie-80gb", 2, "nvlink-bridge-h100"),
        ("h100-pcie-80gb", 4, "pcie-5"),
        ("h200-nvl-141gb", 2, "nvlink-bridge-h200"),
        ("h200-nvl-141gb", 4, "nvlink-bridge-h200"),
        ("h200-nvl-141gb", 8, "pcie-5"),
        ("rtx-2070-super-8gb", 2, "nvlink-bridge-turing-1"),
        ("rtx-2070-8gb", 2, "pcie-3"),
        ("rtx-4090-24gb", 2, "pcie-4"),
        ("rtx-4060-8gb", 2, "pcie-3"),
        ("rtx-5090-32gb", 4, "pcie-5"),
        ("gh200-96gb", 2, "pcie-5"),
        ("mi300x-192gb", 8, "infinity-fabric-mi300"),
        ("mi300a-128gb", 4, "infinity-fabric-mi300"),
        ("mi250x-64gb", 8, "infinity-fabric-mi210"),
        ("mi210-64gb", 4, "infinity-fabric-mi210"),
        ("mi210-64gb", 8, "pcie-4"),
        ("mi100-32gb", 4, "infinity-fabric-mi210"),
        ("m3-max-64gb", 2, None),
    ],
)
def test_gpus_are_joined_by_what_they_have(gpu: str, gpus: int, link: str | None) -> None:
    card = catalog_gpus.gpu(gpu)
    found = collectives.default_node_link(
        card.link_name, card.link_bytes_per_second, card.pcie_bytes_per_second, gpus, card.bridge_gpus
    )
    assert found == link
