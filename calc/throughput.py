"""Seconds of a training step from its kernels: a roofline for each, against the host that launches them.

A step's kernels run one after another on the GPU while the host goes on ahead to launch the next. So a phase ends when
the host has launched its last kernel and the GPU has run all: small steps take the host's time, large ones the GPU's.
Kernels come from the replay (`calc.replay`), recomputed ones included. All sizes are linear in the micro-batch, so a
step is gathered once (`Work`) and answers for any micro-batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil, fsum, gcd
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from calc.catalog.gpus import FORMATS_BY_PRECISION
from calc.replay.tape import Fused, Kernel, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.catalog.gpus import Gpu
    from calc.optimizer_step import OptimizerStep
    from calc.replay.profile import Profile

MATRIX_SHARE: Mapping[str, float] = MappingProxyType(
    {
        "Ampere": 271.2 / 312,
        "Hopper": 794.5 / 989,
        "Blackwell": 1745 / 2250,
        "CDNA 3": 668 / 1307,
        "Ada Lovelace": 155.9 / 165.2,
    }
)
"""Best rate of a large matrix product, of the data sheet's.

Stas Bekman, ml-engineering, "maximum achievable matmul FLOPS" (A100, H100, B200, MI300X); RTX 4090: pytorch issue
181718.
"""
OTHER_MATRIX_SHARE = 0.8
"""Where nobody measured it: about what the measured ones have."""

MEMORY_SHARE = 0.81
"""Bandwidth that a kernel over large tensors gets, of the data sheet's: 78 to 84 % on H100 (Nsight Compute;
mikamirai.com, "GPU memory bandwidth", 2026); the middle."""

MEMORY_LATENCY_SECONDS = 273e-9
"""From a load to its data: 478.8 cycles at 1.755 GHz on H100 (Luo et al. 2024, arXiv:2402.13499, table 3). By Little's
law a kernel needs bandwidth x latency bytes on their way at any time."""
KERNEL_SECONDS = 0.9e-6 + 2 * MEMORY_LATENCY_SECONDS
"""What a kernel takes on the GPU beside its work: 0.9 us from one to the next in a stream (NVIDIA developer blog,
"Getting started with CUDA graphs", 2019: 3.8 us apart for kernels of 2.9 us), its first load and its last store."""

FLASH_SHARE: Mapping[str, float] = MappingProxyType({"Hopper": 0.35})
"""FlashAttention-2's matrix rate of the data sheet's on Hopper, whose own matrix instructions it does not use (Shah et
al. 2024, arXiv:2407.08608, abstract)."""
OTHER_FLASH_SHARE = 0.55
"""The same on Ampere and later with Ampere's instructions: 50 to 73 % (Dao 2023, arXiv:2307.08691, section 4)."""
EFFICIENT_SHARE_16_BIT = 0.30
"""Memory-efficient attention: 94 of A100's 312 TFLOP/s (xformers pull request 480: B 256, M 4096, H 16, K 64 in
187 ms)."""
EFFICIENT_SHARE_32_BIT = 0.17
"""The same in fp32: 27 of A100's 156 TFLOP/s as TF32 (654 ms)."""
DROPOUT_SHARE = 0.5
"""What is left of a fused attention kernel's rate when it draws a dropout mask.

Measured, between 0.3 (BERT-base, 512 tokens against 128) and 0.7 (GPT-2, 1024 against 256): what longer sequences of
as many tokens add, in the runs that `OPERATION_SECONDS` names.
"""
LEGACY_SHARE: Mapping[str, float] = MappingProxyType({"Hopper": 0.629})
"""What Ampere's matrix instructions (mma) reach of the rate of a GPU's own (Luo et al. 2024, arXiv:2402.13499)."""
ALIGNMENT_BYTES = 16
"""Rows that start at multiples of this take the fast path (NVIDIA, Matrix multiplication background, section 3)."""
UNALIGNED_SHARE: Mapping[int, float] = MappingProxyType({2: 0.12, 4: 0.25, 8: 0.5})
"""Rate of a product on Hopper by the alignment of its rows in bytes, to an aligned one.

Such rows reach neither TMA nor Hopper's matrix instructions, and at 2 bytes no asynchronous copy. Measured: the heads
of GPT-2 and RoBERTa (50257 and 50265 columns), and of BERT (30522), in the same runs; 8 lies between.
"""
OTHER_UNALIGNED_SHARE = 0.7
"""The same elsewhere: 115.6 to 155.9 TFLOP/s on RTX 4090 (pytorch issue 181718)."""

TILES = ((256, 128), (128, 256), (128, 128))
"""Results that one thread block computes (NVIDIA, same, section 3.2); smaller where the matrix is narrower."""
SMALLEST_TILE = 32
SPLIT_INNER = 1024
"""A product with fewer tiles than multiprocessors is split along the contracted dimension, into parts of at least
this."""
ATTENTION_ROWS = 128
"""Queries that one thread block of a fused attention kernel takes (flash_fwd_launch_template.h)."""
ATTENTION_KEYS = 64
"""Keys that it takes at a time (same)."""

OPERATION_SECONDS = 28e-6
"""Host time of one eager operation, forward or backward: dispatcher, autograd, the Python around it, the launch.

This and the next three are measured: least absolute deviations over 136 runs on one H100 (torch 2.11, transformers
5.17; catalog/measured.json) in which the GPU waits for the host most of the time: their seconds over what
the step launches, holds and checkpoints. Leaving any one model out moves them by 15 % at most (the launch by 40 %); two
runs of one scenario differ by up to 1.43 times. A faster host scales all four.
"""
LAUNCH_SECONDS = 10e-6
"""The same for an operation outside autograd and modules, as in an optimizer's loop over tensors."""
PARAMETER_SECONDS = 65e-6
"""Host time of one trained tensor in a step: its module's call, its gradient's node, its place in the optimizer's
lists."""
CHECKPOINT_SECONDS = 2.4e-3
"""Host time of one checkpointed block beside the operations it runs again: random states saved and put back, hooks on
every saved tensor."""

_PHASES = (Phase.FORWARD, Phase.BACKWARD)


@dataclass(frozen=True)
class Host:
    """The computer that launches the kernels; the defaults are that of the measured runs."""

    operation_seconds: float = OPERATION_SECONDS
    launch_seconds: float = LAUNCH_SECONDS
    parameter_seconds: float = PARAMETER_SECONDS
    checkpoint_seconds: float = CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Machine:
    """A GPU and its host, as the time of a step needs them.

    ``peak_flops_per_second`` is the data sheet's rate by number format; the shares are of it, ``legacy_share`` of what
    the GPU's own matrix instructions reach. ``bandwidth_bytes_per_second`` is what large tensors get;
    ``resident_threads`` are those of all multiprocessors at once.
    """

    peak_flops_per_second: Mapping[str, float]
    matrix_share: float
    bandwidth_bytes_per_second: float
    multiprocessors: int
    resident_threads: int
    flash_share: float = OTHER_FLASH_SHARE
    legacy_share: float = 1.0
    host: Host = Host()

    @staticmethod
    def of(gpu: Gpu, host: Host | None = None) -> Machine:
        """Return a GPU of the catalog with its host."""
        return Machine(
            peak_flops_per_second=gpu.dense_flops_per_second,
            matrix_share=MATRIX_SHARE.get(gpu.architecture, OTHER_MATRIX_SHARE),
            bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second * MEMORY_SHARE,
            multiprocessors=gpu.multiprocessors or 1,
            resident_threads=(gpu.multiprocessors or 1) * gpu.resident_threads,
            flash_share=FLASH_SHARE.get(gpu.architecture, OTHER_FLASH_SHARE),
            legacy_share=LEGACY_SHARE.get(gpu.architecture, 1.0),
            host=host or Host(),
        )

    def bandwidth(self, threads: int, itemsize: int) -> float:
        """Return bytes a second for a kernel of so many threads (0: enough), each waiting for ``itemsize`` bytes."""
        if not threads:
            return self.bandwidth_bytes_per_second
        waiting = min(threads, self.resident_threads)
        return min(self.bandwidth_bytes_per_second, waiting * itemsize / MEMORY_LATENCY_SECONDS)

    def peak(self, itemsize: int, precision: str) -> float:
        """Return the data sheet's rate, FLOP/s, of products of operands of a size under a scenario's precision.

        fp32 operands are multiplied as TF32 where the GPU can: torch's default for convolutions, and for matrix
        products what ``torch.set_float32_matmul_precision("high")`` asks for.
        """
        rates = self.peak_flops_per_second
        if itemsize == 4:
            return rates.get("tf32", rates["fp32"])
        if itemsize == 1:
            return rates["fp8"]
        formats = (*FORMATS_BY_PRECISION[precision], "bf16", "fp16")
        return next((rates[f] for f in formats if f in rates and f in ("bf16", "fp16")), rates["fp32"])


class _Product(NamedTuple):
    kernel: Kernel
    phase: int
    times: int


class _Traffic(NamedTuple):
    """Memory traffic of a phase's kernels with as many ``threads`` (0: enough), each waiting for ``itemsize`` bytes."""

    phase: int
    threads: int
    itemsize: int
    per_sample: int
    fixed: int


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, and where they go: the parts add up.

    ``compute_seconds`` are those of products that the arithmetic bounds, ``memory_seconds`` of kernels that bandwidth
    bounds, ``optimizer_seconds`` the optimizer's on the GPU; in ``launch_seconds`` the GPU waits for a kernel to start.
    """

    compute_seconds: float
    memory_seconds: float
    optimizer_seconds: float
    launch_seconds: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.compute_seconds + self.memory_seconds + self.optimizer_seconds + self.launch_seconds


@dataclass(frozen=True)
class Work:
    """What a training step does, gathered from its log, with its optimizer."""

    products: tuple[_Product, ...]
    traffic: tuple[_Traffic, ...]
    kernels: tuple[int, int]
    operations: tuple[int, int]
    checkpointed_blocks: int
    optimizer: OptimizerStep

    @staticmethod
    def of(profile: Profile, optimizer: OptimizerStep) -> Work:
        """Gather equal kernels."""
        products: Counter[Kernel] = Counter()
        per_sample: Counter[tuple[int, int, int]] = Counter()
        fixed: Counter[tuple[int, int, int]] = Counter()
        kernels, operations = [0, 0], [0, 0]
        recomputes = False
        for kernel, times in profile.counted_kernels:
            phase = _PHASES.index(kernel.phase)
            kernels[phase] += times
            operations[phase] += 0 if kernel.same_call else times
            recomputes = recomputes or kernel.recomputed
            if kernel.columns:
                products[kernel._replace(repeats=1, recomputed=False)] += times
            else:
                key = (phase, kernel.threads, kernel.itemsize)
                per_sample[key] += kernel.bytes_per_sample * times
                fixed[key] += kernel.bytes_fixed * times
        blocks = {s.block: s.repeats for s in profile.segments if s.block >= 0}
        return Work(
            tuple(_Product(kernel, _PHASES.index(kernel.phase), times) for kernel, times in products.items()),
            tuple(_Traffic(*key, per_sample[key], fixed[key]) for key in per_sample),
            (kernels[0], kernels[1]),
            (operations[0], operations[1]),
            sum(blocks.values()) if recomputes else 0,
            optimizer,
        )

    def time(self, micro_batch: int, machine: Machine, precision: str, accumulation_steps: int = 1) -> StepTime:
        """Return the time of an optimizer step of ``accumulation_steps`` micro-batches under a scenario's precision."""
        compute, memory = [0.0, 0.0], [0.0, 0.0]
        for kernel, phase, times in self.products:
            arithmetic = product_seconds(kernel, micro_batch, machine, precision)
            moving = (kernel.bytes_per_sample * micro_batch + kernel.bytes_fixed) / machine.bandwidth_bytes_per_second
            if arithmetic > moving:
                compute[phase] += arithmetic * times
            else:
                memory[phase] += moving * times
        for phase, threads, itemsize, per_sample, fixed in self.traffic:
            memory[phase] += (per_sample * micro_batch + fixed) / machine.bandwidth(threads, itemsize)
        updating = self.optimizer.traffic_bytes / machine.bandwidth_bytes_per_second
        if self.optimizer.flops:
            peak = machine.peak(self.optimizer.product_itemsize, precision)
            updating += self.optimizer.flops / (peak * machine.matrix_share)
        device = tuple(c + m + n * KERNEL_SECONDS for c, m, n in zip(compute, memory, self.kernels, strict=True))
        seconds = self._elapsed(device, updating, machine.host, accumulation_steps)
        # fsum: Python 3.12 and later add floats more exactly than 3.11, and both must give the same number.
        parts = (accumulation_steps * fsum(compute), accumulation_steps * fsum(memory), updating)
        return StepTime(*parts, launch_seconds=seconds - fsum(parts))

    def _elapsed(self, device: tuple[float, ...], updating: float, host: Host, accumulation_steps: int) -> float:
        """Return when the GPU has run all, with the host going ahead of it.

        The optimizer's lists are made before its first kernel. With gradient scaling the host reads from the GPU
        whether the gradients are finite before it goes on (torch/amp/grad_scaler.py, _maybe_opt_step).
        """
        checkpointing = self.checkpointed_blocks * host.checkpoint_seconds
        launching = (
            self.operations[0] * host.operation_seconds,
            self.operations[1] * host.operation_seconds + checkpointing,
        )
        launched = finished = 0.0
        for on_host, on_device in zip(launching, device, strict=True):
            finished = max(max(finished, launched) + on_device, launched + on_host)
            launched += on_host
        # The GPU's lag behind the host after a pass grows by what a pass takes it longer, or stays: each further pass
        # takes as long as the slower of the two.
        further = accumulation_steps - 1
        finished += further * max(fsum(device), fsum(launching))
        launched += further * fsum(launching)
        if self.optimizer.waits:
            launched = finished
        launched += self.optimizer.tensors * host.parameter_seconds + self.optimizer.launches * host.launch_seconds
        return max(finished, launched) + updating


def product_seconds(kernel: Kernel, micro_batch: int, machine: Machine, precision: str) -> float:
    """Return the arithmetic time of a matrix product or a fused attention kernel, tiles and waves counted.

    A result is computed in tiles, one a multiprocessor at a time; a last wave that is not full costs as much as a full
    one (NVIDIA, Matrix multiplication background, section 3.3).
    """
    rows = kernel.rows_per_sample * micro_batch + kernel.rows_fixed
    matrices = kernel.matrices_per_sample * micro_batch + kernel.matrices_fixed
    if kernel.vector:
        flops = kernel.flops_per_sample * micro_batch + kernel.flops_fixed
        return flops / machine.peak_flops_per_second["fp32"]
    peak = machine.peak(kernel.itemsize, precision)
    if kernel.fused is not Fused.NONE:
        blocks, keys = ceil(rows / ATTENTION_ROWS), ceil(kernel.columns / ATTENTION_KEYS)
        whole = blocks * ATTENTION_ROWS * keys * ATTENTION_KEYS / (rows * kernel.columns)
        tiles = matrices * blocks
        waves = ceil(tiles / machine.multiprocessors)
        computed = (kernel.flops_per_sample * micro_batch + kernel.flops_fixed) * whole
        return computed * waves * machine.multiprocessors / tiles / (peak * _attention_share(kernel, machine))
    height, width, inner = (
        (kernel.columns, kernel.inner, rows) if kernel.contracts_rows else (rows, kernel.columns, kernel.inner)
    )
    rate = peak * machine.matrix_share * _layout_share(kernel, machine) / machine.multiprocessors
    return min(_busiest_flops(matrices, (height, width, inner), tile, machine.multiprocessors) for tile in TILES) / rate


def _busiest_flops(matrices: int, sizes: tuple[int, int, int], tile: tuple[int, int], multiprocessors: int) -> float:
    """Return the operations of the busiest multiprocessor, for products of height x inner times inner x width."""
    height, width, inner = sizes
    tall, wide = _fitting(tile[0], height), _fitting(tile[1], width)
    tiles = matrices * ceil(height / tall) * ceil(width / wide)
    parts = max(1, min(multiprocessors // tiles, inner // SPLIT_INNER)) if tiles < multiprocessors else 1
    return ceil(tiles * parts / multiprocessors) * tall * wide * 2 * inner / parts


def _fitting(side: int, length: int) -> int:
    """Return a tile's side, halved while the matrix is no longer than its half."""
    while side > SMALLEST_TILE and length <= side // 2:
        side //= 2
    return side


def _layout_share(kernel: Kernel, machine: Machine) -> float:
    """Return what a product's operands' layout leaves of the matrix rate.

    Hopper's own instructions take 32-bit operands only with the contracted dimension in one row (PTX ISA, wgmma: only
    16-bit types can be transposed), which a backward's products do not have.
    """
    if kernel.itemsize == 4 and "tf32" not in machine.peak_flops_per_second:
        return 1.0
    share = machine.legacy_share if kernel.itemsize == 4 and kernel.phase is Phase.BACKWARD else 1.0
    aligned = gcd(kernel.columns * kernel.itemsize, kernel.inner * kernel.itemsize, ALIGNMENT_BYTES)
    if kernel.convolution or aligned == ALIGNMENT_BYTES:
        return share
    return min(share, UNALIGNED_SHARE[max(2, aligned)]) if machine.legacy_share < 1 else OTHER_UNALIGNED_SHARE


def _attention_share(kernel: Kernel, machine: Machine) -> float:
    """Return a fused attention kernel's matrix rate, of the data sheet's."""
    if kernel.fused is Fused.FLASH:
        share = machine.flash_share
    else:
        share = EFFICIENT_SHARE_16_BIT if kernel.itemsize == 2 else EFFICIENT_SHARE_32_BIT
        share *= machine.flash_share / OTHER_FLASH_SHARE
    return share * (DROPOUT_SHARE if kernel.drops else 1.0)


def model_flops(profile: Profile) -> tuple[int, int]:
    """Return floating-point operations of one forward and backward's products: per sample, and fixed.

    What is computed again does not count: checkpointed blocks, and one of five products in fused attention's backward.
    Causal kernels count the half that they compute.
    """
    per_sample = fixed = 0
    for kernel, times in profile.counted_kernels:
        if kernel.recomputed:
            continue
        share = 4 if kernel.fused is not Fused.NONE and kernel.phase is Phase.BACKWARD else 5
        per_sample += kernel.flops_per_sample * times * share
        fixed += kernel.flops_fixed * times * share
    return per_sample // 5, fixed // 5


def mfu(flops: float, seconds: float, peak_flops_per_second: float) -> float:
    """Return model FLOPs utilization: a step's operations without recomputation, of the data sheet's rate.

    Chowdhery et al. 2022, arXiv:2204.02311, appendix B.

    >>> round(mfu(6 * 124e6 * 8192, 0.0546, 989.4e12), 3)
    0.113
    """
    return flops / seconds / peak_flops_per_second
