"""The learning rate at a new batch, from one that is known to work."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from calc.errors import ScenarioError


def linear(learning_rate: float, batch_ratio: float) -> float:
    """Scale with the batch: ``k eta``, for SGD well below the noise scale, with a gradual warm-up.

    Source: Goyal et al. 2017, arXiv:1706.02677, section 2.1. Range: ImageNet ResNet-50 up to a batch of 8192.
    """
    return learning_rate * batch_ratio


def square_root(learning_rate: float, batch_ratio: float) -> float:
    """Scale with the root of the batch: ``sqrt(k) eta``, for Adam-type optimizers well below the noise scale.

    Source: Malladi et al. 2022, arXiv:2205.10287 (for SGD an early proposal, Krizhevsky 2014, arXiv:1404.5997).
    """
    return learning_rate * math.sqrt(batch_ratio)


def saturating(batch: float, noise_scale: float, largest_rate: float = 1.0) -> float:
    """SGD's best rate at a batch: ``eta_max / (1 + B_noise / B)``: linear far below the noise scale, flat far above.

    Source: McCandlish et al. 2018, arXiv:1812.06162, equation 2.6.
    """
    return largest_rate / (1 + noise_scale / batch)


def surge(batch: float, noise_scale: float, largest_rate: float = 1.0) -> float:
    """Best rate of a sign-type optimizer (Adam, Lion): ``2 eta_max / (sqrt(B_noise / B) + sqrt(B / B_noise))``.

    Rises with the root of the batch, peaks at the noise scale and *falls* beyond it. The noise scale moves right
    during training.

    Source: Li et al. 2024, arXiv:2405.14578.
    """
    root = math.sqrt(batch / noise_scale)
    return 2 * largest_rate / (1 / root + root)


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """Adam's settings at one batch."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True, slots=True)
class AdamScaling:
    """Adam's settings moved to another batch; a beta that the rule cannot reach stays as it was and is named."""

    settings: AdamSettings
    kept: tuple[str, ...]


def adam_sde(known: AdamSettings, batch_ratio: float) -> AdamScaling:
    """Move Adam's settings so that its random fluctuations stay the same.

    ``eta -> sqrt(k) eta``, ``1 - beta -> k (1 - beta)`` for both betas, ``eps -> eps / sqrt(k)``. Needs
    ``k (1 - beta) < 1``: a beta that would fall to zero or below is kept, as is usual practice with beta1.

    Source: Malladi et al. 2022, arXiv:2205.10287. Range: gradient noise dominates (batch well below the noise scale).
    """

    def moved(beta: float) -> float:
        return 1 - batch_ratio * (1 - beta)

    kept = tuple(name for name in ("beta1", "beta2") if moved(getattr(known, name)) <= 0)
    return AdamScaling(
        AdamSettings(
            learning_rate=square_root(known.learning_rate, batch_ratio),
            beta1=known.beta1 if "beta1" in kept else moved(known.beta1),
            beta2=known.beta2 if "beta2" in kept else moved(known.beta2),
            epsilon=known.epsilon / math.sqrt(batch_ratio),
        ),
        kept,
    )


_SGD = frozenset({"sgd", "sgd-momentum"})
# Those with Adam's two moments and epsilon, which the rule on them is for.
_ADAM = frozenset({"adam", "adamw", "adamw-fused", "adamw-8bit", "galore-adamw", "lamb"})
_LAYERWISE = frozenset({"lars", "lamb"})
_MATRIX = frozenset({"muon", "shampoo", "soap"})

_ALWAYS = (
    "A start, not an answer: tune the rate again at the new batch. No rule works across all workloads "
    "(Shallue et al. 2019, arXiv:1811.03600)."
)


def suggest(
    optimizer: str,
    known_batch: float,
    known_learning_rate: float,
    new_batch: float,
    noise_scale_band: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Suggest a learning rate at a new batch, with the rule used, its bounds and when it does not apply.

    Parameters
    ----------
    optimizer : str
        The scenario's optimizer id.
    known_batch, new_batch : float
        Batches in one unit.
    known_learning_rate : float
        The rate that works at ``known_batch``.
    noise_scale_band : tuple[float, float], optional
        Low and high estimate of the noise scale or critical batch, in the same unit.

    Returns
    -------
    dict[str, Any]
        ``rule``, ``learning_rate`` with ``low`` and ``high``, ``applies`` and ``reason``, ``adam`` settings for
        Adam-type optimizers, ``warmup``, ``notes`` and ``source``.

    Raises
    ------
    ScenarioError
        If a batch or the rate is not positive.
    """
    for field, value in (("known_batch", known_batch), ("known_learning_rate", known_learning_rate)):
        if not (value > 0 and math.isfinite(value)):
            raise ScenarioError(field, f"{value} is not a positive number")
    ratio = new_batch / known_batch
    notes = [_ALWAYS]
    if optimizer in _SGD:
        rule, scaled, curve = "linear", linear(known_learning_rate, ratio), saturating
        source = "Goyal et al. 2017, arXiv:1706.02677; McCandlish et al. 2018, arXiv:1812.06162, equation 2.6"
    else:
        rule, scaled, curve = "square root", square_root(known_learning_rate, ratio), surge
        source = "Malladi et al. 2022, arXiv:2205.10287; Li et al. 2024, arXiv:2405.14578"
    if optimizer in _MATRIX:
        notes.append("No rule is published for this optimizer; the square root is only a place to start.")
    if optimizer in _LAYERWISE:
        notes.append(
            "Layer-wise rates are a convenience, not a need: tuned Nesterov momentum and Adam match them at a batch of "
            "32,768 (Nado et al. 2021, arXiv:2102.06356), and they do not raise the critical batch."
        )

    rates = [scaled]
    applies, reason = True, "The new batch lies below the noise scale."
    if noise_scale_band:
        low, high = noise_scale_band
        rates = [known_learning_rate * curve(new_batch, b) / curve(known_batch, b) for b in (low, high)]
        if new_batch > high:
            applies = False
            reason = "The new batch lies above the noise scale, where scaling the rate up no longer helps: " + (
                "SGD's best rate is flat there." if curve is saturating else "Adam's best rate falls again there."
            )
        elif new_batch > low / 2:
            reason = "The new batch is near the noise scale, where the best rate bends away from the rule."
    else:
        reason = "The noise scale is not known here, so the rule may reach too far."
    result: dict[str, Any] = {
        "rule": rule,
        "batch_ratio": ratio,
        "learning_rate": scaled if applies else max(rates),
        "low": min(*rates, scaled) if applies else min(rates),
        "high": max(*rates, scaled) if applies else max(rates),
        "applies": applies,
        "reason": reason,
        "warmup": (
            "Raise the rate gradually from the known one over the first 5 epochs."
            if rule == "linear" and ratio > 1
            else "Keep the warm-up as long in tokens or samples: in steps it shrinks as the batch grows."
        ),
        "notes": notes,
        "source": source,
    }
    if optimizer in _ADAM:
        scaling = adam_sde(AdamSettings(known_learning_rate), ratio)
        result["adam"] = asdict(scaling.settings) | {"kept": list(scaling.kept)}
    return result
