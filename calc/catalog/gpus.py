"""GPUs by name: memory as driver and torch count it, bandwidth, dense rates, links; cloud instances by theirs.

``gpus.json`` holds the facts, each with its source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from calc.catalog.finding import closest, matching
from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 2**20
GIB = 2**30

FORMATS_BY_PRECISION: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fp32": ("fp32",),
        "tf32": ("tf32",),
        "amp-fp16": ("fp16",),
        "amp-bf16": ("bf16",),
        "fp16": ("fp16",),
        "bf16": ("bf16",),
        "bf16-master": ("bf16",),
        "fp8": ("fp8", "bf16"),
    }
)
"""The number formats that a precision of the scenario computes matrix products in, first its own."""

_ALTERNATIVES = {
    "tf32": ("fp32", "amp-fp16"),
    "amp-bf16": ("amp-fp16", "fp32"),
    "bf16": ("amp-fp16", "fp32"),
    "bf16-master": ("amp-fp16", "fp32"),
    "fp8": ("bf16", "amp-bf16", "amp-fp16"),
    "fp16": ("fp32",),
    "amp-fp16": ("fp32",),
}
_FIRST_WITH = {
    "tf32": "NVIDIA's Ampere (compute capability 8.0) and AMD's CDNA 3",
    "bf16": "NVIDIA's Ampere (compute capability 8.0)",
    "fp8": "NVIDIA's Ada (8.9) and Hopper (9.0), AMD's CDNA 3 and RDNA 4",
    "fp16": "NVIDIA's Pascal",
}
FLASH_ATTENTION_2 = "flash-attention-2"
FLASH_CAPABILITY = (8, 0)
"""The least compute capability that the package flash-attn has kernels for: "FlashAttention only supports Ampere GPUs
or newer" (csrc/flash_attn/flash_api.cpp, mha_fwd)."""
FLASH_VENDORS = ("NVIDIA", "AMD")
"""Whose GPUs flash-attn has kernels for: those of CUDA and ROCm (README.md, Installation and features)."""
RESIDENT_THREADS = 2048
"""Threads that a multiprocessor holds at once, by the CUDA programming guide's table of technical specifications; AMD's
compute units are taken to hold as many, other makers' too."""
_FEWER_RESIDENT_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536}
"""The same where it is fewer, by compute capability."""
_PCIE_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


@dataclass(frozen=True)
class Gpu:
    """One GPU as a training process meets it.

    Attributes
    ----------
    id, name, group, vendor, architecture : str
        ``id`` is the usual name and the memory, such as ``rtx-4090-24gb``; ``group`` is the heading in lists.
    compute_capability : tuple of int or None
        NVIDIA's, such as (8, 9).
    multiprocessors : int or None
        Streaming multiprocessors (NVIDIA), compute units (AMD), Xe cores (Intel), GPU cores (Apple).
    memory_bytes : int
        Total that the driver's tool shows (nvidia-smi).
    visible_bytes : int
        Total that torch sees, ``torch.cuda.get_device_properties(0).total_memory``: what the driver keeps is gone.
    context_bytes : int
        What a torch process takes outside its allocator: CUDA context and kernels.
    memory_bandwidth_bytes_per_second : float
    dense_flops_per_second : Mapping
        Dense matrix rate by number format (fp32, tf32, fp16, bf16, fp8), with fp32 accumulation, without sparsity. A
        format that is not there is not supported.
    pcie_bytes_per_second : float or None
        One direction.
    link_name : str or None
    link_bytes_per_second : float or None
        To the other GPUs of its group, one direction: NVLink, Infinity Fabric.
    bridge_gpus : int
        How many GPUs one bridge joins, where the link is a bridge.
    tdp_watts : float or None
    sources : Mapping
        Where specification, memory, visible memory, rates and context come from, in words.
    note : str
    """

    id: str
    name: str
    group: str
    vendor: str
    architecture: str
    compute_capability: tuple[int, int] | None
    multiprocessors: int | None
    memory_bytes: int
    visible_bytes: int
    context_bytes: int
    memory_bandwidth_bytes_per_second: float
    dense_flops_per_second: Mapping[str, float]
    pcie_bytes_per_second: float | None
    link_name: str | None
    link_bytes_per_second: float | None
    bridge_gpus: int
    tdp_watts: float | None
    sources: Mapping[str, str]
    note: str = ""

    @property
    def resident_threads(self) -> int:
        """Threads that each multiprocessor holds at once."""
        if self.compute_capability is None:
            return RESIDENT_THREADS
        return _FEWER_RESIDENT_THREADS.get(self.compute_capability, RESIDENT_THREADS)


@dataclass(frozen=True)
class Instance:
    """A cloud's or notebook's name for one or more GPUs: ``gpu`` is a `Gpu`'s id, ``gpus`` how many."""

    id: str
    name: str
    gpu: str
    gpus: int
    source: str


def unified_visible_bytes(memory_bytes: int) -> int:
    """Return how much of a Mac's memory its GPU may keep resident.

    Two thirds up to 36 GB, three quarters above: Metal's ``recommendedMaxWorkingSetSize`` in llama.cpp's logs on
    macOS 13 and 14 (10 922.67 MiB of 16 GiB, 49 152 MiB of 64 GiB). Later versions of macOS allow 74 to 84 %, and
    ``iogpu.wired_limit_mb`` changes it. torch itself goes on to 1.7 times that value, into swap.

    >>> unified_visible_bytes(64 * 2**30) // 2**20
    49152
    """
    return memory_bytes * 2 // 3 if memory_bytes <= 36 * GIB else memory_bytes * 3 // 4


def pcie_bytes_per_second(generation: int, lanes: int) -> float:
    """Return a PCIe link's rate in one direction: transfers of one bit a lane, 8b/10b coded to 2.0, 128b/130b after.

    >>> round(pcie_bytes_per_second(4, 16) / 1e9, 1)
    31.5
    """
    coding = 8 / 10 if generation <= 2 else 128 / 130
    return _PCIE_GIGATRANSFERS[generation] * 1e9 * coding * lanes / 8


@cache
def _data() -> dict[str, Any]:
    text = resources.files("calc.catalog").joinpath("gpus.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _parse(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Gpu:
    memory_bytes = entry["memory_mib"] * MIB
    visible_mib = entry["visible_mib"]
    generation, link = entry["pcie_generation"], entry["link_gb_per_second"]
    capability = entry["compute_capability"]
    return Gpu(
        id=entry["id"],
        name=entry["name"],
        group=entry["group"],
        vendor=entry["vendor"],
        architecture=entry["architecture"],
        compute_capability=None if capability is None else (int(capability[:-2]), int(capability[-1])),
        multiprocessors=entry["multiprocessors"],
        memory_bytes=memory_bytes,
        visible_bytes=unified_visible_bytes(memory_bytes) if visible_mib is None else visible_mib * MIB,
        context_bytes=entry["context_bytes"],
        memory_bandwidth_bytes_per_second=entry["memory_bandwidth_gb_per_second"] * 1e9,
        dense_flops_per_second=MappingProxyType({key: rate * 1e12 for key, rate in entry["dense_tflops"].items()}),
        pcie_bytes_per_second=None if generation is None else pcie_bytes_per_second(generation, entry["pcie_lanes"]),
        link_name=entry["link_name"],
        link_bytes_per_second=None if link is None else link * 1e9,
        bridge_gpus=entry.get("bridge_gpus", 2),
        tdp_watts=entry["tdp_watts"],
        sources=MappingProxyType({what: sources[key] for what, key in entry["sources"].items()}),
        note=entry["note"],
    )


@cache
def _by_id() -> dict[str, Gpu]:
    sources = _data()["sources"]
    return {entry["id"]: _parse(entry, sources) for entry in _data()["gpus"]}


@cache
def _instances_by_id() -> dict[str, Instance]:
    return {entry["id"]: Instance(**entry) for entry in _data()["instances"]}


def gpus() -> tuple[Gpu, ...]:
    """Return all GPUs, by group."""
    return tuple(_by_id().values())


def instances() -> tuple[Instance, ...]:
    """Return what clouds and notebooks call their machines, with the GPUs that these really have."""
    return tuple(_instances_by_id().values())


def gpu(gpu_id: str) -> Gpu:
    """Return the GPU with this id, or that of the instance with this id; SageMaker's ``ml.`` may lead it.

    Raises
    ------
    ScenarioError
        Field ``gpu``, with the nearest ids, where there is none.
    """
    instance = _instances_by_id().get(gpu_id.removeprefix("ml."))
    found = _by_id().get(gpu_id if instance is None else instance.gpu)
    if found is None:
        hint = closest(gpu_id, [*_by_id(), *_instances_by_id()])
        raise ScenarioError("gpu", f"there is no GPU {gpu_id!r}{hint} Give a GPU's id, or {{'memory_gib': 24}}")
    return found


def search(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that hold every word of ``text`` in id, name, group, architecture, or an instance's name."""
    machines: dict[str, str] = {}
    for instance in instances():
        machines[instance.gpu] = f"{machines.get(instance.gpu, '')} {instance.id} {instance.name}"
    return matching(
        text,
        gpus(),
        lambda entry: f"{entry.id} {entry.name} {entry.group} {entry.architecture} {machines.get(entry.id, '')}",
    )


def supports(card: Gpu, precision: str) -> bool:
    """Tell whether a GPU computes in a precision of the scenario."""
    return all(format_ in card.dense_flops_per_second for format_ in FORMATS_BY_PRECISION[precision])


def precision_refusal(card: Gpu, precision: str) -> str | None:
    """Return why a GPU cannot train in a precision and what to choose instead, or None where it can."""
    if supports(card, precision):
        return None
    missing = next(f for f in FORMATS_BY_PRECISION[precision] if f not in card.dense_flops_per_second)
    alternatives = [other for other in _ALTERNATIVES[precision] if supports(card, other)]
    which = card.architecture
    if card.compute_capability is not None:
        which += f", compute capability {card.compute_capability[0]}.{card.compute_capability[1]}"
    return (
        f"{card.name} ({which}) does not compute in {missing}; it came with {_FIRST_WITH[missing]}. "
        f"Choose {' or '.join(alternatives)}"
    )


def attention_refusal(card: Gpu | None, attention: str, precision: str) -> str | None:
    """Return why an attention implementation cannot run and what to choose instead, or None where it can.

    flash-attn takes fp16 and bf16 alone, on NVIDIA's Ampere and newer (csrc/flash_attn/flash_api.cpp, mha_fwd). For
    AMD's cards it has kernels of its own, for other makers' none (its README: CUDA or ROCm). Of a card given by its
    size nothing is known: it is taken.
    """
    if attention != FLASH_ATTENTION_2:
        return None
    capability = card.compute_capability if card is not None else None
    if card is not None and card.vendor not in FLASH_VENDORS:
        return f"{attention} is made for NVIDIA's (Ampere or newer) and AMD's GPUs, not {card.name}: choose sdpa"
    if card is not None and capability is not None and capability < FLASH_CAPABILITY:
        return (
            f"{card.name} ({card.architecture}, compute capability {capability[0]}.{capability[1]}) has no kernel of "
            f"{attention}, which needs {FLASH_CAPABILITY[0]}.{FLASH_CAPABILITY[1]} (Ampere) or newer. Choose sdpa"
        )
    if FORMATS_BY_PRECISION[precision][0] in ("fp32", "tf32"):
        return f"{attention} takes fp16 and bf16 alone, not {precision}: choose sdpa, or amp-bf16 as precision"
    return None
