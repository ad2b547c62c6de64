"""Optimizer state and the step's temporaries: bytes per parameter, measured with torch or from the papers.

"Measured": torch 2.13 on a CPU, one parameter of 1024 x 4096, bytes of the state after one step.
"""

from __future__ import annotations

import pytest

from calc.memory import step_memory
from calc.optimizers import RULES, optimizer_memory
from calc.replay.tape import Dtype, Parameter
from calc.scenario import Optimizer, parse

ROWS, COLUMNS = 1024, 4096
ELEMENTS = ROWS * COLUMNS


def matrix(dtype: Dtype = Dtype.FP32, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Parameter:
    elements = 1
    for size in shape:
        elements *= size
    return Parameter("weight", shape, dtype, True, 1, elements * dtype.itemsize)  # noqa: FBT003


def state_bytes(optimizer: Optimizer, parameter: Parameter, *, master_weights: bool = False) -> int:
    return sum(optimizer_memory(optimizer, [parameter], master_weights=master_weights).state_requests)


@pytest.mark.parametrize(
    ("optimizer", "fp32", "bf16"),
    [
        (Optimizer.SGD, 0, 0),  # measured, as the next five
        (Optimizer.SGD_MOMENTUM, 4, 2),
        (Optimizer.ADAM, 8, 4),
        (Optimizer.ADAMW, 8, 4),
        (Optimizer.RMSPROP, 4, 2),
        (Optimizer.ADAGRAD, 4, 2),
        (Optimizer.ADAFACTOR, 4 * (ROWS + COLUMNS) / ELEMENTS, 2 * (ROWS + COLUMNS) / ELEMENTS),  # measured
        (Optimizer.MUON, 4, 2),  # measured
        (Optimizer.LION, 4, 2),  # Chen et al. 2023: one momentum
        (Optimizer.LAMB, 8, 4),  # You et al. 2019: Adam's moments
        (Optimizer.LARS, 4, 2),  # You et al. 2017: one momentum
        (Optimizer.ADAMW_8BIT, 2.03125, 2.03125),  # bitsandbytes: 2 x (1 + 4 / 256)
    ],
)
def test_state_of_a_matrix(optimizer: Optimizer, fp32: float, bf16: float) -> None:
    assert state_bytes(optimizer, matrix()) / ELEMENTS == pytest.approx(fp32)
    assert state_bytes(optimizer, matrix(Dtype.BF16)) / ELEMENTS == pytest.approx(bf16)


def test_fused_adamw_counts_its_steps_on_the_gpu() -> None:
    assert state_bytes(Optimizer.ADAMW_FUSED, matrix()) == 8 * ELEMENTS + 4


@pytest.mark.parametrize("optimizer", [Optimizer.SHAMPOO, Optimizer.SOAP])
def test_preconditioners_of_a_square(optimizer: Optimizer) -> None:
    # Two moments, and two statistics with a root or basis each: 4 (2 + 2 + 2) bytes.
    assert state_bytes(optimizer, matrix(shape=(2048, 2048))) == 24 * 2048**2


@pytest.mark.parametrize("optimizer", [Optimizer.SHAMPOO, Optimizer.SOAP])
def test_a_side_above_10_000_has_no_preconditioner(optimizer: Optimizer) -> None:
    assert state_bytes(optimizer, matrix(shape=(1000, 32000))) == 4 * (2 * 1000 * 32000 + 2 * 1000**2)


def test_galore_keeps_a_projector_and_two_narrow_moments() -> None:
    # Zhao et al. 2024: m r + 2 n r for m <= n, here with r = 1024 / 4.
    assert state_bytes(Optimizer.GALORE_ADAMW, matrix()) == 4 * 256 * (ROWS + 2 * COLUMNS)


@pytest.mark.parametrize(
    ("optimizer", "each"), [(Optimizer.ADAFACTOR, 4), (Optimizer.MUON, 8), (Optimizer.ADAMW_8BIT, 8)]
)
def test_vectors_keep_full_states(optimizer: Optimizer, each: int) -> None:
    assert state_bytes(optimizer, matrix(shape=(1024,))) == each * 1024


@pytest.mark.parametrize(("elements", "each"), [(4095, 8), (4096, 2.03125)])
def test_8_bit_states_start_at_4096_elements(elements: int, each: float) -> None:
    assert state_bytes(Optimizer.ADAMW_8BIT, matrix(shape=(elements,))) == pytest.approx(each * elements)


def test_adafactor_holds_the_update_before_while_it_makes_the_next() -> None:
    # Measured: torch 2.11 on a CPU, temporaries alive in torch.optim.Adafactor's second step, by a TorchDispatchMode.
    shapes: list[tuple[int, ...]] = [(320, 40), (40, 40), (40,), (100, 100), (110, 90), (320, 20)]
    memory = optimizer_memory(Optimizer.ADAFACTOR, [matrix(shape=shape) for shape in shapes], master_weights=False)
    assert sum(memory.step_requests) == pytest.approx(80_564, rel=0.02)


def test_muon_leaves_embeddings_and_heads_to_adamw() -> None:
    memory = step_memory(
        parse({"model": "llama-2-7b", "optimizer": "muon", "precision": "bf16", "gpu": "h100-sxm-80gb"})
    )
    tables = 2 * 32000 * 4096
    hidden = memory.step.parameter_count - tables
    # Momentum in 16 bit for hidden matrices, two moments for the tables; norms' vectors are few.
    assert memory.state_bytes == pytest.approx(2 * hidden + 4 * tables, rel=1e-3)


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_master_weights_are_fp32_with_fp32_states(optimizer: Optimizer) -> None:
    with_master = state_bytes(optimizer, matrix(Dtype.BF16), master_weights=True)
    assert with_master == 4 * ELEMENTS + state_bytes(optimizer, matrix(Dtype.FP32))


def temporaries(optimizer: Optimizer) -> int:
    """Bytes of the step's temporaries for four matrices."""
    return sum(optimizer_memory(optimizer, [matrix()] * 4, master_weights=False).step_requests)


@pytest.mark.parametrize("optimizer", [Optimizer.ADAM, Optimizer.ADAMW])
def test_foreach_adam_takes_the_weights_size_once_more(optimizer: Optimizer) -> None:
    assert temporaries(optimizer) == 4 * 4 * ELEMENTS  # measured: 4.000 bytes a parameter


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW_FUSED, Optimizer.SGD, Optimizer.SGD_MOMENTUM])
def test_fused_and_in_place_steps_take_nothing(optimizer: Optimizer) -> None:
    assert temporaries(optimizer) == 0


def test_frozen_parameters_have_no_state() -> None:
    frozen = Parameter("weight", (ROWS, COLUMNS), Dtype.FP32, False, 1, 4 * ELEMENTS)  # noqa: FBT003
    assert state_bytes(Optimizer.ADAMW, frozen) == 0


def test_every_optimizer_names_its_source() -> None:
    assert set(RULES) == set(Optimizer)
    assert all(rule.source for rule in RULES.values())


@pytest.mark.parametrize(
    ("model_type", "state"),
    [
        # torch 2.13 autograd and AdamW on fake CUDA tensors, transformers 5.17.0: bytes left after zero_grad above
        # weights and inputs.
        ("siglip", 686_390_272),  # without the pooling head, which the classifier does not read
        ("clip", 699_649_024),  # without the norm of the pooled token
    ],
)
def test_what_backward_does_not_reach_has_no_state(model_type: str, state: int) -> None:
    scenario = {"model": {"model_type": model_type}, "task": "image-classification", "optimizer": "adamw"}
    memory = step_memory(parse(scenario))
    assert sum(memory.optimizer.state_requests) == pytest.approx(state, rel=1e-4)
    assert memory.step.gradient_bytes == pytest.approx(state / 2, rel=1e-3)
