"""What an optimizer's step costs in time: traffic and products on the GPU, and the host's work for each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from calc.optimizers import GALORE_RANK_SHARE, LARGEST_PRECONDITIONED
from calc.scenario import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from calc.replay.tape import Parameter

NEWTON_SCHULZ_STEPS = 5
"""torch/optim/_muon.py, ns_steps."""


def _no_products(_: Parameter) -> int:
    return 0


def muon_flops(parameter: Parameter) -> int:
    """Return Newton-Schulz's on a hidden m x n matrix, m <= n: each time X Xt, its square, their product with X."""
    if len(parameter.shape) != 2 or parameter.embedding:
        return 0
    m, n = sorted(parameter.shape)
    return NEWTON_SCHULZ_STEPS * (2 * m * m * n + 2 * m**3 + 2 * m * m * n)


def preconditioned_flops(parameter: Parameter) -> int:
    """Return those of each side's statistic of an m x n gradient, and of its product with the gradient.

    Roots come every many steps.
    """
    if len(parameter.shape) < 2:
        return 0
    m, n = parameter.shape[0], parameter.numel // parameter.shape[0]
    return sum(2 * 2 * side * m * n for side in (m, n) if side <= LARGEST_PRECONDITIONED)


def soap_flops(parameter: Parameter) -> int:
    """Return those of each side's statistic, the gradient into its eigenbasis, and the update back."""
    return preconditioned_flops(parameter) * 3 // 2


def galore_flops(parameter: Parameter) -> int:
    """Return those of the gradient of an m x n matrix, m <= n, to rank r, and of the update back."""
    if len(parameter.shape) != 2 or parameter.embedding:
        return 0
    m, n = sorted(parameter.shape)
    return 2 * 2 * m * max(1, m // GALORE_RANK_SHARE) * n


class _Cost(NamedTuple):
    """Cost of a step by parameter.

    ``passes``: tensors of the parameter's size read or written; ``state_bytes``: bytes an element beside these;
    ``operations``: launches for each tensor, 0 where many tensors share one; ``waits``: the host reads from the GPU;
    ``flops``: products, of operands of ``product_itemsize``.
    """

    passes: int
    source: str
    operations: int = 0
    state_bytes: int = 0
    waits: bool = False
    flops: Callable[[Parameter], int] = _no_products
    product_itemsize: int = 4


COSTS: Mapping[Optimizer, _Cost] = MappingProxyType(
    {
        Optimizer.SGD: _Cost(3, "torch/optim/sgd.py, _multi_tensor_sgd: add"),
        Optimizer.SGD_MOMENTUM: _Cost(8, "same: mul, add, add"),
        Optimizer.ADAM: _Cost(
            18, "torch/optim/adam.py, _multi_tensor_adam: lerp, mul, addcmul, sqrt, div, add, addcdiv"
        ),
        Optimizer.ADAMW: _Cost(20, "same, after the decay's mul"),
        Optimizer.ADAMW_FUSED: _Cost(7, "torch/optim/adam.py, _fused_adam: reads p, g, m, v, writes p, m, v"),
        Optimizer.ADAMW_8BIT: _Cost(
            3, "bitsandbytes, kOptimizerStatic8bit2StateBlockwise: p, g, p; m, v and back", 1, 4
        ),
        Optimizer.ADAFACTOR: _Cost(
            17,
            "torch/optim/_adafactor.py: 4 norms, outer product, div, clamp, rsqrt, mul, add; two norms go to the host",
            operations=20,
            waits=True,
        ),
        Optimizer.ADAGRAD: _Cost(13, "torch/optim/adagrad.py, _multi_tensor_adagrad: addcmul, sqrt, add, mul, addcdiv"),
        Optimizer.RMSPROP: _Cost(13, "torch/optim/rmsprop.py, _multi_tensor_rmsprop: mul, addcmul, sqrt, add, addcdiv"),
        Optimizer.LION: _Cost(19, "lion-pytorch: mul, clone, mul, add, sign, add, mul, add", 8),
        Optimizer.LAMB: _Cost(25, "arXiv:1904.00962, algorithm 2: two moments, ratio, decay, two norms, add", 14),
        Optimizer.LARS: _Cost(15, "arXiv:1708.03888, algorithm 1: two norms, decay, scale, momentum, add", 8),
        Optimizer.MUON: _Cost(
            12, "torch/optim/_muon.py: lerp, lerp, cast, mul, add", 22, flops=muon_flops, product_itemsize=2
        ),
        Optimizer.SHAMPOO: _Cost(16, "arXiv:1802.09568, with momentum and grafting", 12, flops=preconditioned_flops),
        Optimizer.SOAP: _Cost(20, "arXiv:2409.11321, Adam in the eigenbasis", 16, flops=soap_flops),
        Optimizer.GALORE_ADAMW: _Cost(6, "arXiv:2403.03507; Adam's work is of the low rank", 14, flops=galore_flops),
    }
)
"""Multi-tensor ("foreach") kernels are torch's default on CUDA; each operation reads and writes every tensor once."""


@dataclass(frozen=True)
class OptimizerStep:
    """An optimizer's step over given parameters.

    ``traffic_bytes`` moved, and ``flops`` of products of operands of ``product_itemsize``, on the GPU; trained
    ``tensors``; ``launches`` for single tensors, beside those that many share; ``waits``: the host reads from the GPU
    before or during the step.
    """

    traffic_bytes: int
    flops: int
    tensors: int
    launches: int
    waits: bool
    product_itemsize: int = 4

    @staticmethod
    def of(optimizer: Optimizer, parameters: Iterable[Parameter], precision: Precision) -> OptimizerStep:
        """Return the step over the trained parameters.

        With fp32 master weights each gradient is cast up and each weight down; with gradient scaling each gradient is
        first read, checked and divided (torch/amp/grad_scaler.py, _unscale_grads_).
        """
        cost = COSTS[optimizer]
        traffic = flops = tensors = 0
        for p in parameters:
            if not p.learns:
                continue
            itemsize = p.dtype.itemsize
            each = cost.passes * itemsize + cost.state_bytes
            if precision is Precision.BF16_MASTER:
                each = cost.passes * 4 + cost.state_bytes + 2 * (4 + itemsize)
            if precision is Precision.AMP_FP16:
                each += 2 * itemsize
            traffic += each * p.numel * p.copies
            flops += cost.flops(p) * p.copies
            tensors += p.copies
        waits = cost.waits or precision is Precision.AMP_FP16
        return OptimizerStep(traffic, flops, tensors, tensors * cost.operations, waits, cost.product_itemsize)
