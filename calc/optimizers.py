"""What each optimizer holds for a parameter, and what its step takes for a moment.

States are made at the first step and stay. ``whole_copies`` are tensors as large as all trained parameters that a
multi-tensor ("foreach") step holds at once; ``largest_copies`` are tensors as large as the largest one, which a loop
over parameters makes and drops.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from calc.replay.tape import Dtype, Parameter
from calc.scenario import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BLOCK_8BIT = 256
"""Elements that share one fp32 scale in bitsandbytes' 8-bit states (bitsandbytes/optim/optimizer.py, blockwise)."""
SMALLEST_8BIT = 4096
"""Tensors with fewer elements keep fp32 states (same, min_8bit_size)."""
LARGEST_PRECONDITIONED = 10_000
"""Dimensions above this are left without a preconditioner (SOAP's max_precond_dim, arXiv:2409.11321)."""
GALORE_RANK_SHARE = 4
"""GaLore's rank: a quarter of the smaller dimension, as its 7B run (1024 of 4096; arXiv:2403.03507, table 3)."""


@dataclass(frozen=True)
class OptimizerRule:
    """Bytes of the state tensors of one parameter, and the step's temporaries."""

    states: Callable[[Parameter], tuple[int, ...]]
    whole_copies: int
    largest_copies: int
    source: str
    holds_last: bool = False
    """Whether the loop still holds one parameter's copy when it makes the next one's."""


def _copies(count: int) -> Callable[[Parameter], tuple[int, ...]]:
    def states(parameter: Parameter) -> tuple[int, ...]:
        return (parameter.numel * parameter.dtype.itemsize,) * count

    return states


def _matrix_sides(parameter: Parameter) -> tuple[int, int] | None:
    """Rows and columns of a hidden matrix (convolutions flattened); None for vectors."""
    if len(parameter.shape) < 2:
        return None
    return parameter.shape[0], prod(parameter.shape[1:])


def adafactor_states(parameter: Parameter) -> tuple[int, ...]:
    """Row and column variances for matrices, a full variance for vectors (torch/optim/_adafactor.py)."""
    if len(parameter.shape) < 2:
        return (parameter.numel * parameter.dtype.itemsize,)
    rows = prod(parameter.shape[:-1])
    columns = parameter.numel // parameter.shape[-2]
    return rows * parameter.dtype.itemsize, columns * parameter.dtype.itemsize


def adam_8bit_states(parameter: Parameter) -> tuple[int, ...]:
    """Two moments of one byte with an fp32 scale per 256; fp32 for small tensors (bitsandbytes/optim/optimizer.py)."""
    n = parameter.numel
    if n < SMALLEST_8BIT:
        return (4 * n, 4 * n)
    scales = 4 * -(-n // BLOCK_8BIT)
    return (n, scales, n, scales)


def muon_states(parameter: Parameter) -> tuple[int, ...]:
    """One momentum for hidden matrices; AdamW's two for embeddings, heads and vectors (torch/optim/_muon.py)."""
    hidden = len(parameter.shape) == 2 and not parameter.embedding
    return _copies(1 if hidden else 2)(parameter)


def shampoo_states(parameter: Parameter) -> tuple[int, ...]:
    """Momentum and grafting moment, and for each side up to 10,000 a statistic and its root in fp32.

    Gupta et al. 2018, arXiv:1802.09568; Anil et al. 2020, arXiv:2002.09018 for roots kept between updates.
    """
    moments = _copies(2)(parameter)
    sides = _matrix_sides(parameter)
    if sides is None:
        return moments
    return moments + tuple(4 * side * side for side in sides if side <= LARGEST_PRECONDITIONED for _ in range(2))


def soap_states(parameter: Parameter) -> tuple[int, ...]:
    """Adam's two moments, and for each side up to 10,000 a statistic and its eigenbasis.

    Vyas et al. 2024, arXiv:2409.11321.
    """
    return shampoo_states(parameter)


def galore_states(parameter: Parameter) -> tuple[int, ...]:
    """For hidden matrices m x n, m <= n: a projector m x r and two moments r x n.

    Zhao et al. 2024, arXiv:2403.03507, algorithm 2.
    """
    if len(parameter.shape) != 2 or parameter.embedding:
        return _copies(2)(parameter)
    small, large = sorted(parameter.shape)
    rank = max(1, small // GALORE_RANK_SHARE)
    size = parameter.dtype.itemsize
    return small * rank * size, rank * large * size, rank * large * size


RULES: Mapping[Optimizer, OptimizerRule] = MappingProxyType(
    {
        Optimizer.SGD: OptimizerRule(_copies(0), 0, 0, "torch/optim/sgd.py"),
        Optimizer.SGD_MOMENTUM: OptimizerRule(_copies(1), 0, 0, "torch/optim/sgd.py"),
        Optimizer.ADAM: OptimizerRule(_copies(2), 1, 0, "torch/optim/adam.py, _multi_tensor_adam: exp_avg_sq_sqrt"),
        Optimizer.ADAMW: OptimizerRule(_copies(2), 1, 0, "torch/optim/adam.py, _multi_tensor_adam: exp_avg_sq_sqrt"),
        Optimizer.ADAMW_FUSED: OptimizerRule(lambda p: (*_copies(2)(p), 4), 0, 0, "torch/optim/adam.py, _fused_adam"),
        Optimizer.ADAMW_8BIT: OptimizerRule(adam_8bit_states, 0, 0, "bitsandbytes/optim/adamw.py"),
        Optimizer.ADAFACTOR: OptimizerRule(
            adafactor_states,
            0,
            1,
            "torch/optim/_adafactor.py, _single_tensor_adafactor: var_estimate, update",
            holds_last=True,
        ),
        Optimizer.ADAGRAD: OptimizerRule(
            _copies(1), 2, 0, "torch/optim/adagrad.py, _multi_tensor_adagrad: std, numerator"
        ),
        Optimizer.RMSPROP: OptimizerRule(_copies(1), 1, 0, "torch/optim/rmsprop.py, _multi_tensor_rmsprop: avg"),
        Optimizer.LION: OptimizerRule(_copies(1), 0, 1, "Chen et al. 2023, arXiv:2302.06675, algorithm 2: the update"),
        Optimizer.LAMB: OptimizerRule(
            _copies(2), 0, 2, "You et al. 2019, arXiv:1904.00962, algorithm 2: moments' ratio, update"
        ),
        Optimizer.LARS: OptimizerRule(
            _copies(1), 0, 1, "You et al. 2017, arXiv:1708.03888, algorithm 1: scaled gradient"
        ),
        Optimizer.MUON: OptimizerRule(
            muon_states, 0, 3, "torch/optim/_muon.py: Newton-Schulz iterate, its square, its product"
        ),
        Optimizer.SHAMPOO: OptimizerRule(
            shampoo_states, 0, 2, "arXiv:1802.09568: preconditioned gradient, one side at a time"
        ),
        Optimizer.SOAP: OptimizerRule(soap_states, 0, 2, "arXiv:2409.11321: projected gradient and update"),
        Optimizer.GALORE_ADAMW: OptimizerRule(galore_states, 0, 1, "arXiv:2403.03507: the update projected back"),
    }
)


@dataclass(frozen=True)
class OptimizerMemory:
    """Bytes of an optimizer for given parameters: states in order, master weights, and the step's temporaries."""

    state_requests: tuple[int, ...]
    step_requests: tuple[int, ...]
    """Alive together at the step's worst instant."""


def optimizer_memory(optimizer: Optimizer, parameters: list[Parameter], *, master_weights: bool) -> OptimizerMemory:
    """State and temporaries of a step over the trained parameters, each listed as often as it stands in the model.

    With fp32 master weights the states are fp32 and the step first copies the gradients to fp32
    (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1; DeepSpeed's and Megatron's 16-bit optimizers).
    """
    rule = RULES[optimizer]
    trained = [p for p in parameters if p.learns]
    if master_weights:
        trained = [
            Parameter(p.name, p.shape, Dtype.FP32, p.trainable, p.copies, 0, embedding=p.embedding) for p in trained
        ]
    states: list[int] = []
    for parameter in trained:
        if master_weights:
            states.append(4 * parameter.numel)
        states += [n for n in rule.states(parameter) if n]
    sizes = [p.numel * p.dtype.itemsize for p in trained]
    step = sizes * (rule.whole_copies + (1 if master_weights else 0))
    if rule.holds_last and len(sizes) > 1:
        step += max(pairwise(sizes), key=sum)
    elif sizes:
        step += [max(sizes)] * rule.largest_copies
    return OptimizerMemory(tuple(states), tuple(step))
