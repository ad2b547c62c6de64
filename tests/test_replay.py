"""What single operations keep for backward, and the rules of autograd, its engine and checkpointing.

Bytes kept are those that torch itself keeps: sums over what ``saved_tensors_hooks`` showed on a CPU (torch 2.14, inputs
of 2 x 8 x 64 or 2 x 3 x 8 x 8, each storage once, parameters and buffers left out), for one sample. Dropout's mask is
that of the CUDA kernel, one byte an element; the CPU keeps noise of the input's type.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from calc.replay import ops
from calc.replay.layers import BatchNorm, Build, Conv, LayerNorm, Linear
from calc.replay.tape import Autocast, Dtype, Node, Phase, Tape

if TYPE_CHECKING:
    from collections.abc import Callable

    from calc.replay.tape import Tensor

TOKENS, WIDTH = 8, 64


def alive_bytes(tape: Tape) -> int:
    """Bytes of one sample that are alive now."""
    gc.collect()
    alive: set[int] = set()
    for event in tape.events:
        alive.symmetric_difference_update({abs(event)})
    return sum(tape.per_sample[storage] for storage in alive)


def activation(tape: Tape, dtype: Dtype, shape: tuple[int, ...]) -> Tensor:
    return tape.leaf(tape.empty(shape, dtype, batched=True))


def kept_bytes(operation: Callable[[Build, Tensor], Tensor], dtype: Dtype, shape: tuple[int, ...]) -> int:
    """Bytes of one sample that live on after an operation, its input and output dropped by their makers."""
    tape, build = Tape(), Build(dtype)
    x = activation(tape, dtype, shape)
    x = ops.shift(x)  # what came before keeps nothing of it
    out = operation(build, x)
    graph = out.node
    del x, out
    kept = alive_bytes(tape)
    del graph
    # The input's leaf holds the first tensor, as a training loop would.
    return kept - shape_bytes(dtype, shape)


def shape_bytes(dtype: Dtype, shape: tuple[int, ...]) -> int:
    elements = dtype.itemsize
    for size in shape:
        elements *= size
    return elements


SEQUENCE = (TOKENS, WIDTH)
IMAGE = (3, 8, 8)


@pytest.mark.parametrize(
    ("name", "operation", "shape", "fp32", "bf16"),
    [
        ("linear", lambda build, x: Linear(build, "l", WIDTH, 4 * WIDTH)(x), SEQUENCE, 2048, 1024),
        ("gelu", lambda _, x: ops.pointwise(x), SEQUENCE, 2048, 1024),
        ("relu", lambda _, x: ops.pointwise(x, keeps="output"), SEQUENCE, 2048, 1024),
        ("square", lambda _, x: ops.power(x), SEQUENCE, 2048, 1024),
        ("scale", lambda _, x: ops.scale(x), SEQUENCE, 0, 0),
        ("add", lambda _, x: ops.add(x, x), SEQUENCE, 0, 0),
        ("product of two", lambda _, x: ops.mul(x, ops.shift(x)), SEQUENCE, 4096, 2048),
        ("softmax", lambda _, x: ops.softmax(x), SEQUENCE, 2048, 1024),
        ("softmax in fp32", lambda _, x: ops.softmax(x, Dtype.FP32), SEQUENCE, 2048, 2048),
        ("mean", lambda _, x: ops.mean_last(x, TOKENS), SEQUENCE, 0, 0),
        ("cast", lambda _, x: ops.cast(x, Dtype.FP32), SEQUENCE, 0, 0),
        ("dropout", lambda _, x: ops.dropout(x, 0.1), SEQUENCE, 512, 512),
        ("convolution", lambda build, x: Conv(build, "c", 3, 16, (3, 3), padding=1, bias=False)(x), IMAGE, 768, 384),
        ("batch norm", lambda build, x: BatchNorm(build, "b", 3)(x), IMAGE, 768, 384),
        ("max pool", lambda _, x: ops.max_pool(x, (3, 4, 4)), IMAGE, 1152, 768),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kept_for_backward(
    name: str, operation: Callable[[Build, Tensor], Tensor], shape: tuple[int, ...], fp32: int, bf16: int
) -> None:
    del name
    assert kept_bytes(operation, Dtype.FP32, shape) == fp32
    assert kept_bytes(operation, Dtype.BF16, shape) == bf16


def test_layer_norm_keeps_its_input_and_two_numbers_a_token() -> None:
    # The GPU's statistics are fp32 whatever the input; the CPU's 2112 bytes are the same for fp32.
    assert kept_bytes(lambda build, x: LayerNorm(build, "n", WIDTH)(x), Dtype.FP32, SEQUENCE) == 2112
    assert kept_bytes(lambda build, x: LayerNorm(build, "n", WIDTH)(x), Dtype.BF16, SEQUENCE) == 1024 + 64


def test_what_needs_no_gradient_keeps_nothing() -> None:
    tape, build = Tape(), Build(Dtype.FP32, full=False)
    x = tape.empty(SEQUENCE, Dtype.FP32, batched=True)
    out = ops.pointwise(Linear(build, "l", WIDTH, WIDTH)(x))
    assert out.node is None
    del x, out
    assert alive_bytes(tape) == 0


def test_a_frozen_layer_does_not_keep_its_input() -> None:
    def two_layers(build: Build, x: Tensor) -> Tensor:
        build.full = False
        return Linear(build, "frozen", WIDTH, WIDTH, bias=False)(x)

    assert kept_bytes(two_layers, Dtype.BF16, SEQUENCE) == 0


def backward_of(make: Callable[[Build, Tensor], Tensor], *, checkpointing: bool) -> tuple[Tape, int]:
    """A step over one block; the bytes of a sample alive between forward and backward."""
    tape, build = Tape(), Build(Dtype.FP32)
    x = activation(tape, Dtype.FP32, SEQUENCE)
    layers = make
    out = tape.checkpoint(lambda t: layers(build, t), x) if checkpointing else layers(build, x)
    loss = ops.reduce_sum(out, (1,))
    del out, x
    kept = alive_bytes(tape)
    tape.backward(loss)
    del loss
    return tape, kept


def test_freeing_a_step_goes_no_deeper_than_one_node() -> None:
    tape = Tape()
    loss = activation(tape, Dtype.FP32, SEQUENCE)
    build = Build(Dtype.FP32)
    for layer in range(100):
        loss = Linear(build, f"layers.{layer}", WIDTH, WIDTH)(loss)
    loss = ops.reduce_sum(loss, (1,))
    last = loss.node
    assert isinstance(last, Node)
    assert last.edges
    tape.backward(loss)
    # Whoever holds the last node does not hold the others, each of which would be freed inside the one behind it.
    assert not last.edges


def perceptron() -> Callable[[Build, Tensor], Tensor]:
    made: list[Linear] = []

    def run(build: Build, x: Tensor) -> Tensor:
        if not made:
            made.extend(
                [Linear(build, "up", WIDTH, 4 * WIDTH, bias=False), Linear(build, "down", 4 * WIDTH, WIDTH, bias=False)]
            )
        return made[1](ops.pointwise(made[0](x)))

    return run


def test_backward_frees_what_forward_kept_and_leaves_gradients() -> None:
    tape, kept = backward_of(perceptron(), checkpointing=False)
    # Input, gelu's input and its output: 1 + 4 + 4 times the width; and the loss.
    assert kept == 9 * TOKENS * WIDTH * 4 + 4
    assert alive_bytes(tape) == 0
    gradients = sorted(tape.fixed[storage] for storage in tape.gradient_storages)
    assert gradients == [4 * WIDTH * 4 * WIDTH] * 2


def test_a_checkpoint_keeps_its_input_and_computes_the_rest_again() -> None:
    tape, kept = backward_of(perceptron(), checkpointing=True)
    assert kept == TOKENS * WIDTH * 4 + 4
    assert alive_bytes(tape) == 0
    assert len(tape.gradient_storages) == 2
    again = [kernel for kernel in tape.kernels if kernel.recomputed]
    # Early stop: the last product's result is not needed, its inputs are; it is not run again.
    assert len(again) == 2
    assert all(kernel.phase is Phase.BACKWARD for kernel in again)


def test_autocast_casts_a_weight_once_and_drops_the_copy_with_its_last_user() -> None:
    tape, build = Tape(Autocast(Dtype.BF16)), Build(Dtype.FP32)
    layer = Linear(build, "shared", WIDTH, WIDTH, bias=False)
    x = activation(tape, Dtype.FP32, SEQUENCE)
    out = layer(ops.pointwise(layer(x)))
    casts = [size for size, label in zip(tape.fixed, tape.labels, strict=True) if label == "casts"]
    assert casts == [2 * WIDTH * WIDTH]
    assert out.dtype is Dtype.BF16


def test_a_gradient_has_its_parameters_type_and_uses_add_up_in_place() -> None:
    tape, build = Tape(Autocast(Dtype.BF16)), Build(Dtype.FP32)
    layer = Linear(build, "shared", WIDTH, WIDTH, bias=False)
    x = activation(tape, Dtype.FP32, SEQUENCE)
    loss = ops.reduce_sum(layer(layer(x)), (1,))
    del x
    tape.end_autocast()
    tape.backward(loss)
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is Dtype.FP32
    assert len(tape.gradient_storages) == 1
