"""Memory that CUDA kernels take for their own run: buffers of reductions, copies that cuDNN makes for convolutions."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

REDUCTION_THREADS = 512
"""MAX_REDUCE_THREADS, the threads of a block (aten/src/ATen/native/cuda/Reduce.cuh, mnt_wrapper)."""
REDUCTION_VECTOR = 4
"""Columns a thread sums at once where they are a multiple of it (Reduce.cuh, get_output_vec_size)."""
VALUES_PER_WARP_SPLIT = 16
MIN_VALUES_PER_THREAD = 16
MAX_VALUES_PER_THREAD = 256
"""From as many values a thread on, a sum is split over blocks that meet in memory (Reduce.cuh, setReduceConfig)."""
WARP = 32
ACCUMULATOR_BYTES = 4


class Multiprocessors(NamedTuple):
    """How many a GPU has, and how many threads each holds."""

    number: int
    threads: int


H100 = Multiprocessors(132, 2048)


def _power_of_two_up_to(n: int) -> int:
    return 1 << (n.bit_length() - 1)


@lru_cache(maxsize=4096)
def reduction_buffer_bytes(rows: int, columns: int, multiprocessors: Multiprocessors = H100) -> int:
    """Bytes of the buffer in which blocks put their partial sums over the rows of a matrix; 0 where one block sums all.

    A bias's gradient is such a sum, a norm weight's another. Each thread's sum is kept apart (Reduce.cuh,
    ReduceConfig.global_memory_size): tens of megabytes beside a result of kilobytes.

    >>> reduction_buffer_bytes(16 * 197, 3072)  # ViT-B's first MLP bias at 16 images: 75 MiB
    78643200
    """
    vector = REDUCTION_VECTOR
    while columns % vector:
        vector //= 2
    groups = columns // vector
    threads = REDUCTION_THREADS // vector
    wide = threads if groups >= threads else _power_of_two_up_to(groups)
    high = threads if rows >= threads else _power_of_two_up_to(max(rows, 1))
    width = min(wide, WARP)
    height = min(high, threads // width)
    width = min(wide, threads // height)
    if rows < min(height * VALUES_PER_WARP_SPLIT, MAX_VALUES_PER_THREAD):
        return 0
    values = -(-rows // height)
    grid = -(-groups // width)
    target = multiprocessors.number * (multiprocessors.threads // (width * height))
    if values < MAX_VALUES_PER_THREAD or grid > target:
        return 0
    parts = max(
        min(-(-target // grid), -(-values // MIN_VALUES_PER_THREAD)),
        -(-values // MAX_VALUES_PER_THREAD),
    )
    return ACCUMULATOR_BYTES * columns * parts * width * vector if parts > 1 else 0


class Reduction(NamedTuple):
    """A sum over the rows of a matrix: rows of one sample, rows beside, columns."""

    rows_per_sample: int
    rows_fixed: int
    columns: int

    def buffer_bytes(self, micro_batch: float, multiprocessors: Multiprocessors) -> int:
        """Bytes of its buffer."""
        rows = int(self.rows_per_sample * micro_batch) + self.rows_fixed
        return reduction_buffer_bytes(rows, self.columns, multiprocessors)


class ConvolutionSizes(NamedTuple):
    """What a convolution's workspaces depend on: channels, positions of one sample, the kernel's window, types."""

    inputs: int
    outputs: int
    positions_in: int
    positions_out: int
    window: int
    groups: int
    strided: bool
    itemsize: int

    @staticmethod
    def of(
        input_shape: tuple[int, ...], output_shape: tuple[int, ...], window: tuple[int, ...], groups: int, itemsize: int
    ) -> ConvolutionSizes:
        """From shapes (channels, *positions). One position in and out for each is what no stride leaves."""
        positions_in, positions_out = prod(input_shape[1:]), prod(output_shape[1:])
        strided = prod(window) == 1 and positions_out < positions_in
        sizes = input_shape[0], output_shape[0], positions_in, positions_out
        return ConvolutionSizes(*sizes, prod(window), groups, strided, itemsize)

    @property
    def depthwise(self) -> bool:
        """Whether each channel has its own filters: torch's own kernels, which take nothing."""
        return self.groups == self.inputs > 1

    @property
    def pointwise(self) -> bool:
        """Whether it is a plain matrix product of each position's channels."""
        return self.window == 1 and not self.strided

    @property
    def narrowing_small_map(self) -> bool:
        """Few positions that lose channels, in 16 bit."""
        return self.itemsize == HALF and self.positions_out <= SMALL_MAP and self.outputs < self.inputs

    @property
    def products_bytes(self) -> int:
        """The fp32 product of one sample's output gradient and input, where each sample has its own."""
        return self.outputs * self.inputs // self.groups * ACCUMULATOR_BYTES

    @property
    def copied_for_weight(self) -> bool:
        """Whether a pointwise one's weight gradient is taken from copies rather than from a product a sample."""
        wide = min(self.inputs, self.outputs) >= WIDE and (self.itemsize == HALF or self.positions_out <= SMALL_MAP)
        return self.narrowing_small_map or (wide and self.products_bytes > self.copies[0])

    @property
    def copies(self) -> tuple[int, int]:
        """NHWC copies of input, output and (where it has a window) weight; bytes per sample and fixed."""
        aligned = CHANNEL_ALIGNMENT_BYTES // self.itemsize
        inputs, outputs = (-(-channels // aligned) * aligned for channels in (self.inputs, self.outputs))
        maps = (inputs * self.positions_in + outputs * self.positions_out) * self.itemsize
        weight = outputs * inputs // self.groups * self.window * self.itemsize if self.window > 1 else 0
        return maps, weight


CHANNEL_ALIGNMENT_BYTES = 16
"""cuDNN pads channels to this for its tensor-core kernels: three colours become eight channels in 16 bit."""
HALF = 2
SMALL_MAP = 64
"""Positions of the maps on which cuDNN treats pointwise convolutions that lose channels as it does others."""
WIDE = 512
"""Channels from which on it weighs copies against a product a sample."""
NOTHING = (0, 0)


def convolution_forward(sizes: ConvolutionSizes) -> tuple[int, int]:
    """Workspace of a convolution in NCHW, bytes per sample and fixed.

    cuDNN's tensor-core kernels take NHWC, so it copies NCHW operands. It does not do so for a pointwise convolution,
    which is a matrix product either way. These rules, and `copied_for_weight`'s, are what cuDNN 9.19 did on an H100 in
    about nine of ten of 2,346 different convolutions of torchvision's and transformers' models, allocation by
    allocation; its heuristics decide, and partial sums of split contractions, a few weights' sizes, come on top.
    """
    return NOTHING if sizes.depthwise or sizes.pointwise else sizes.copies


def convolution_of_input(sizes: ConvolutionSizes) -> tuple[int, int]:
    """Workspace of the gradient of a convolution's input; see `convolution_forward`."""
    if sizes.pointwise and sizes.narrowing_small_map:
        return sizes.copies
    return convolution_forward(sizes)


def convolution_of_weight(sizes: ConvolutionSizes) -> tuple[int, int]:
    """Workspace of the gradient of a convolution's weight; see `convolution_forward`.

    A pointwise one is a batch of products, one a sample, whose fp32 results are summed afterwards.
    """
    if sizes.depthwise:
        return NOTHING
    if sizes.pointwise and not sizes.copied_for_weight:
        return sizes.products_bytes, 0
    return sizes.copies
