"""Parts that convolutional networks are made of (torchvision/ops/misc.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calc.replay import ops
from calc.replay.layers import BatchNorm, Conv

if TYPE_CHECKING:
    from calc.replay.layers import Build
    from calc.replay.tape import Tensor


def divisible_by_8(value: float) -> int:
    """The nearest multiple of 8, never below nine tenths of the value (models/_utils.py, _make_divisible)."""
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


def activate_inplace(name: str | None, x: Tensor) -> Tensor:
    """An activation with ``inplace=True``.

    ReLU overwrites its input and keeps the result. ReLU6 (hardtanh), Hardswish and SiLU need their input for backward,
    so autograd clones it first: no less memory than out of place.
    """
    if name is None:
        return x
    if name == "relu":
        return ops.activation_inplace(x)
    return ops.pointwise(x)


def square_conv(
    build: Build,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    bias: bool = False,
    padding: int | None = None,
) -> Conv:
    """A convolution padded so that stride 1 keeps the image's size."""
    pad = (kernel - 1) // 2 * dilation if padding is None else padding
    return Conv(
        build,
        "conv",
        inputs,
        outputs,
        (kernel, kernel),
        stride=stride,
        padding=pad,
        dilation=dilation,
        groups=groups,
        bias=bias,
    )


class ConvNorm:
    """Conv2dNormActivation: convolution without bias, batch normalization, an activation in place."""

    def __init__(
        self,
        build: Build,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        act: str | None = "relu",
    ) -> None:
        self.conv = square_conv(build, inputs, outputs, kernel, stride=stride, groups=groups, dilation=dilation)
        self.norm = BatchNorm(build, "norm", outputs)
        self.act = act

    def __call__(self, x: Tensor) -> Tensor:
        return activate_inplace(self.act, self.norm(self.conv(x)))


class SqueezeExcitation:
    """Each channel scaled by a gate computed from the channels' means. ``act`` and ``gate`` are activations by name."""

    def __init__(self, build: Build, channels: int, squeezed: int, *, act: str, gate: str) -> None:
        self.channels = channels
        self.act_keeps = "output" if act == "relu" else "input"
        self.gate_keeps = "output" if gate == "sigmoid" else "input"
        self.down = square_conv(build, channels, squeezed, 1, bias=True)
        self.up = square_conv(build, squeezed, channels, 1, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        scale = ops.average_pool(x, (self.channels, 1, 1), keeps_input=False)
        scale = self.down(scale)
        scale = ops.pointwise(scale, keeps=self.act_keeps)
        scale = self.up(scale)
        scale = ops.pointwise(scale, keeps=self.gate_keeps)
        return ops.mul(scale, x)


@dataclass(frozen=True)
class Pool:
    """A maximum over square windows."""

    kernel: int
    stride: int
    padding: int = 0
    ceil_mode: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        shape = ops.pooled(x.shape, self.kernel, stride=self.stride, padding=self.padding, ceil_mode=self.ceil_mode)
        return ops.max_pool(x, shape)


def global_average(x: Tensor) -> Tensor:
    """Mean over all positions: one value a channel."""
    return ops.average_pool(x, (x.shape[0], 1, 1), keeps_input=False).view(x.shape[0])


def join_channels(parts: list[Tensor]) -> Tensor:
    """``torch.cat`` of images along their channels."""
    channels = sum(part.shape[0] for part in parts)
    return ops.cat(parts, axis_last=False).view(channels, *parts[0].shape[1:])
