"""Seconds of a training step from its kernels: a roofline for each, against the host that launches them.

A step's kernels run one after another on the GPU while the host goes on ahead to launch the next. So a phase ends when
the host has launched its last kernel and the GPU has run all: small steps take the host's time, large ones the GPU's.
Kernels come from the replay (`calc.replay`), recomputed ones included. All sizes are linear in the micro-batch, so a
step is gathered once (`Work`) and answers for any micro-batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil, gcd
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from calc.catalog.gpus import FORMATS_BY_PRECISION
from calc.optimizer_step import OptimizerStep
from calc.replay.tape import Fused, Kernel, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from calc.catalog.gpus import Gpu
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
THREADS_PER_MULTIPROCESSOR = 2048
"""Resident threads (CUDA programming guide, compute capabilities 7.0, 8.0 and 9.0; 1024 to 1536 on others)."""

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
EFFICIENT_BACKWARD_SHARE = 0.5
"""Backward's rate to forward's of the memory-efficient kernel."""
DROPOUT_SHARE = 0.5
"""What is left of a fused attention kernel's rate when it draws a dropout mask."""
LEGACY_SHARE: Mapping[str, float] = MappingProxyType({"Hopper": 0.629})
"""What Ampere's matrix instructions (mma) reach of the rate of a GPU's own (Luo et al. 2024, arXiv:2402.13499)."""
ALIGNMENT_BYTES = 16
"""Rows that start at multiples of this take the fast path (NVIDIA, Matrix multiplication background, section 3)."""
UNALIGNED_SHARE: Mapping[int, float] = MappingProxyType({2: 0.12, 4: 0.25, 8: 0.5})
"""Rate of a product on Hopper by the alignment of its rows in bytes, to an aligned one: such rows reach neither TMA nor
Hopper's matrix instructions, and at 2 bytes no asynchronous copy. Measured: the heads of GPT-2 and RoBERTa (50257 and
50265 columns), and of BERT (30522), in the runs below; 8 lies between."""
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

OPERATION_SECONDS = 27e-6
"""Host time of one eager operation, forward or backward.

Measured: H100 runs of this project at micro-batches where the GPU waits (tests/data/step_seconds.json), seconds over
operations. It holds torch's dispatcher, autograd, the Python around it, and the kernel's launch (itself 5 to 10 us).
"""
LAUNCH_SECONDS = 10e-6
"""Host time of an operation outside autograd and modules, as in an optimizer's loop over tensors: dispatcher and launch;
Adafactor's step in the same runs."""
PARAMETER_SECONDS = 74e-6
"""Host time of one trained tensor in a step: its module's call, its gradient's node, its place in the optimizer's lists;
same source."""
CHECKPOINT_SECONDS = 2.8e-3
"""Host time of one checkpointed block beside the operations it runs again: random states saved and put back, hooks on
every saved tensor; same source."""

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

    ``matrix_flops_per_second`` is the best rate of a large product by number format; ``flash_share`` and the like are of
    the data sheet's rate ``peak_flops_per_second``.
    """

    peak_flops_per_second: Mapping[str, float]
    matrix_share: float
    bandwidth_bytes_per_second: float
    multiprocessors: int
    flash_share: float = OTHER_FLASH_SHARE
    legacy_share: float = 1.0
    host: Host = Host()

    @staticmethod
    def of(gpu: Gpu, host: Host | None = None) -> Machine:
        """The GPU of the catalog."""
        return Machine(
            peak_flops_per_second=gpu.dense_flops_per_second,
            matrix_share=MATRIX_SHARE.get(gpu.architecture, OTHER_MATRIX_SHARE),
            bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second * MEMORY_SHARE,
            multiprocessors=gpu.multiprocessors or 1,
            flash_share=FLASH_SHARE.get(gpu.architecture, OTHER_FLASH_SHARE),
            legacy_share=LEGACY_SHARE.get(gpu.architecture, 1.0),
            host=host or Host(),
        )

    def bandwidth(self, threads: int, itemsize: int) -> float:
        """Bytes a second for a kernel of so many threads (0: enough), each waiting for ``itemsize`` bytes at a time."""
        if not threads:
            return self.bandwidth_bytes_per_second
        resident = min(threads, self.multiprocessors * THREADS_PER_MULTIPROCESSOR)
        return min(self.bandwidth_bytes_per_second, resident * itemsize / MEMORY_LATENCY_SECONDS)

    def peak(self, itemsize: int, precision: str) -> float:
        """Data sheet's rate of products of operands of a size under a scenario's precision, FLOP/s.

        fp32 operands are multiplied as TF32 where the GPU can: torch's default for convolutions, and for matrix
        products what ``torch.set_float32_matmul_precision("high")`` asks for.
        """
        rates = self.peak_flops_per_second
        if itemsize == 4:
            return rates.get("tf32", rates["fp32"])
        wanted = FORMATS_BY_PRECISION[precision]
        return next((rates[f] for f in (*wanted, "bf16", "fp16") if f in rates and f not in ("fp32", "tf32")), rates["fp32"])


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
    bounds, ``optimizer_seconds`` the optimizer's on the GPU; in ``launch_seconds`` the GPU waits for the host.
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
    operations: tuple[int, int]
    checkpointed_blocks: int
    optimizer: OptimizerStep

    @staticmethod
    def of(profile: Profile, optimizer: OptimizerStep) -> Work:
        """Gathers equal kernels."""
        products: Counter[Kernel] = Counter()
        per_sample: Counter[tuple[int, int, int]] = Counter()
        fixed: Counter[tuple[int, int, int]] = Counter()
        operations = [0, 0]
        recomputes = False
        for kernel in profile.kernels:
            phase = _PHASES.index(kernel.phase)
            operations[phase] += 0 if kernel.same_call else kernel.repeats
            recomputes = recomputes or kernel.recomputed
            if kernel.columns:
                products[kernel._replace(repeats=1, recomputed=False)] += kernel.repeats
            else:
                key = (phase, kernel.threads, kernel.itemsize)
                per_sample[key] += kernel.bytes_per_sample * kernel.repeats
                fixed[key] += kernel.bytes_fixed * kernel.repeats
        blocks = {s.block: s.repeats for s in profile.segments if s.block >= 0}
        return Work(
            tuple(_Product(kernel, _PHASES.index(kernel.phase), times) for kernel, times in products.items()),
            tuple(_Traffic(*key, per_sample[key], fixed[key]) for key in per_sample),
            (operations[0], operations[1]),
            sum(blocks.values()) if recomputes else 0,
            optimizer,
        )

    def time(self, micro_batch: int, machine: Machine, precision: str, accumulation_steps: int = 1) -> StepTime:
        """Seconds of an optimizer step of ``accumulation_steps`` micro-batches under a scenario's precision."""
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
            updating += self.optimizer.flops / (machine.peak(4, precision) * machine.matrix_share)
        device = (compute[0] + memory[0], compute[1] + memory[1])
        seconds = self._elapsed(device, updating, machine.host, accumulation_steps)
        busy = accumulation_steps * sum(device) + updating
        return StepTime(
            accumulation_steps * sum(compute), accumulation_steps * sum(memory), updating, max(0.0, seconds - busy)
        )

    def _elapsed(self, device: tuple[float, float], updating: float, host: Host, accumulation_steps: int) -> float:
        """When the GPU has run all, with the host going ahead of it.

        The optimizer's lists are made before its first kernel. With gradient scaling the host reads from the GPU whether
        the gradients are finite before it goes on (torch/amp/grad_scaler.py, _maybe_opt_step).
        """
        checkpointing = self.checkpointed_blocks * host.checkpoint_seconds
        launching = (
            self.operations[0] * host.operation_seconds,
            self.operations[1] * host.operation_seconds + checkpointing,
        )
        launched = finished = 0.0
        for _ in range(accumulation_steps):
            for on_host, on_device in zip(launching, device, strict=True):
                finished = max(max(finished, launched) + on_device, launched + on_host)
                launched += on_host
        if self.optimizer.waits:
            launched = finished
        launched += self.optimizer.tensors * host.parameter_seconds + self.optimizer.launches * host.launch_seconds
        return max(finished, launched) + updating


def product_seconds(kernel: Kernel, micro_batch: int, machine: Machine, precision: str) -> float:
    """Arithmetic time of a matrix product or a fused attention kernel, tiles and waves counted.

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
        flops = (kernel.flops_per_sample * micro_batch + kernel.flops_fixed) * whole
        return flops * waves * machine.multiprocessors / tiles / (peak * _attention_share(kernel, machine))
    height, width, inner = (
        (kernel.columns, kernel.inner, rows) if kernel.contracts_rows else (rows, kernel.columns, kernel.inner)
    )
    rate = peak * machine.matrix_share * _layout_share(kernel, machine) / machine.multiprocessors
    return min(_tiled_flops(height, width, inner, matrices, tile, machine.multiprocessors) for tile in TILES) / rate


def _tiled_flops(height: int, width: int, inner: int, matrices: int, tile: tuple[int, int], multiprocessors: int) -> float:
    """Floating-point operations of the busiest multiprocessor."""
    tall, wide = (_fitting(side, length) for side, length in zip(tile, (height, width), strict=True))
    tiles = matrices * ceil(height / tall) * ceil(width / wide)
    parts = max(1, min(multiprocessors // tiles, inner // SPLIT_INNER)) if tiles < multiprocessors else 1
    return ceil(tiles * parts / multiprocessors) * tall * wide * 2 * inner / parts


def _fitting(side: int, length: int) -> int:
    """A tile's side, halved while the matrix is no longer than its half."""
    while side > SMALLEST_TILE and length <= side // 2:
        side //= 2
    return side


def _layout_share(kernel: Kernel, machine: Machine) -> float:
    """What a product's operands' layout leaves of the matrix rate.

    Hopper's own instructions take 32-bit operands only with the contracted dimension in one row (PTX ISA, wgmma: only
    16-bit types can be transposed), which a backward's products do not have.
    """
    share = 1.0
    if kernel.itemsize == 4 and kernel.phase is Phase.BACKWARD:
        share = machine.legacy_share
    aligned = gcd(kernel.columns * kernel.itemsize, kernel.inner * kernel.itemsize, ALIGNMENT_BYTES)
    if kernel.convolution or aligned == ALIGNMENT_BYTES:
        return share
    return min(share, UNALIGNED_SHARE[aligned]) if machine.legacy_share < 1 else OTHER_UNALIGNED_SHARE


def _attention_share(kernel: Kernel, machine: Machine) -> float:
    if kernel.fused is Fused.FLASH:
        share = machine.flash_share
    else:
        share = EFFICIENT_SHARE_16_BIT if kernel.itemsize == 2 else EFFICIENT_SHARE_32_BIT
        share *= machine.flash_share / OTHER_FLASH_SHARE
    return share * (DROPOUT_SHARE if kernel.drops else 1.0)


def step_seconds(
    profile: Profile, micro_batch: int, machine: Machine, precision: str, optimizer: OptimizerStep, accumulation_steps: int = 1
) -> float:
    """Seconds of one optimizer step; for many micro-batches gather a `Work` once."""
    return Work.of(profile, optimizer).time(micro_batch, machine, precision, accumulation_steps).seconds


def curve(work: Work, micro_batches: Iterable[int], machine: Machine, precision: str) -> list[StepTime]:
    """The step's time at each micro-batch."""
    return [work.time(micro_batch, machine, precision) for micro_batch in micro_batches]


def model_flops(profile: Profile) -> tuple[int, int]:
    """Floating-point operations of the products of one forward and backward: per sample, fixed. Recomputation is not counted.

    Of fused attention's backward, which computes the scores again, four of five products count.
    """
    per_sample = fixed = 0
    for kernel in profile.kernels:
        if kernel.recomputed:
            continue
        again = kernel.fused is not Fused.NONE and kernel.phase is Phase.BACKWARD
        share = 4 if again else 5
        per_sample += kernel.flops_per_sample * kernel.repeats * share
        fixed += kernel.flops_fixed * kernel.repeats * share
    return per_sample // 5, fixed // 5


def mfu(flops: float, seconds: float, peak_flops_per_second: float) -> float:
    """Model FLOPs utilization: what a step needs without recomputation, of the data sheet's rate (Chowdhery et al. 2022).

    >>> round(mfu(6 * 124e6 * 8192, 0.0546, 989.4e12), 3)
    0.113
    """
    return flops / seconds / peak_flops_per_second
