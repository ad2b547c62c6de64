"""The learning rate at a new batch, from one that is known to work."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable


def linear(learning_rate: float, batch_ratio: float) -> float:
    """Scale with the batch: ``k eta``, for SGD well below the noise scale, with a gradual warm-up.

    Source: Goyal et al. 2017, arXiv:1706.02677, section 2.1. Range: ImageNet ResNet-50 up to a batch of 8192.
    """
    return learning_rate * batch_ratio


def square_root(learning_rate: float, batch_ratio: float) -> float:
    """Scale with the root of the batch: ``sqrt(k) eta``, for Adam-type optimizers well below the noise scale.

    With layer-wise rates (LAMB) it was used beyond, up to a batch of 32,768, with a warm-up of the same steps.

    Source: Malladi et al. 2022, arXiv:2205.10287; LAMB: You et al. 2019, arXiv:1904.00962 (for SGD an early proposal,
    Krizhevsky 2014, arXiv:1404.5997).
    """
    return learning_rate * math.sqrt(batch_ratio)


def saturating(batch: float, noise_scale: float, largest_rate: float = 1.0) -> float:
    """SGD's best rate at a batch: ``eta_max / (1 + B_noise / B)``: linear far below the noise scale, flat far above.

    Source: McCandlish et al. 2018, arXiv:1812.06162, equation 2.6.
    """
    return largest_rate / (1 + noise_scale / batch)


def surge(batch: float, noise_scale: float, largest_rate: float = 1.0) -> float:
    """Best rate of a sign-type optimizer: ``2 eta_max / (sqrt(B_noise / B) + sqrt(B / B_noise))``.

    Rises with the root of the batch, peaks at the noise scale and *falls* beyond it. The noise scale moves right
    during training.

    Source: Li et al. 2024, arXiv:2405.14578, whose optimizers are Adam, Adagrad, RMSProp, Adafactor and Lion.
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


_SAME_SAMPLES = "Keep the warm-up as long in tokens or samples: in steps it shrinks as the batch grows."


@dataclass(frozen=True, slots=True)
class _Family:
    """How the best rate of a group of optimizers follows the batch.

    Below the noise scale ``scaled`` holds, which people know as ``rule``. Above it ``curve`` goes on, where one is
    published, and runs as ``beyond`` says. ``above`` ends the sentence that a batch lies near or above the noise scale.
    """

    rule: str
    scaled: Callable[[float, float], float]
    source: str
    curve: Callable[[float, float], float] | None = None
    beyond: str = ""
    above: str = ""
    holds_above: bool = False
    warmup: str = _SAME_SAMPLES
    notes: tuple[str, ...] = ()


_LI = "Li et al. 2024, arXiv:2405.14578"
_MALLADI = "Malladi et al. 2022, arXiv:2205.10287"
_YOU = "You et al. 2019, arXiv:1904.00962"
_CONVENIENCE = (
    "Layer-wise rates are a convenience, not a need: tuned Nesterov momentum and Adam match them at a batch of "
    "32,768 (Nado et al. 2021, arXiv:2102.06356), and they do not raise the critical batch."
)

_LINEAR = _Family(
    "linear",
    linear,
    "Goyal et al. 2017, arXiv:1706.02677; McCandlish et al. 2018, arXiv:1812.06162, equation 2.6",
    curve=saturating,
    beyond="flat",
    above=", where the best rate no longer follows the batch.",
)
_SIGN = _Family(
    "square root",
    square_root,
    _LI,
    curve=surge,
    beyond="falling",
    above=", where the best rate falls as the batch grows.",
)
_ADAM = replace(_SIGN, source=f"{_MALLADI}; {_LI}")
_LAYERWISE = _Family(
    "square root",
    square_root,
    _YOU,
    above=". BERT was trained with LAMB by this rule beyond it, up to a batch of 32,768.",
    holds_above=True,
    warmup="Keep the steps of the warm-up: in samples it becomes longer as the batch grows.",
    notes=(_CONVENIENCE,),
)
_LARS = replace(
    _LAYERWISE,
    source=f"{_YOU}; LARS: You et al. 2017, arXiv:1708.03888",
    notes=("The rule is LAMB's, carried over to LARS, whose steps are as long layer by layer.", _CONVENIENCE),
)
_MATRIX = _Family(
    "square root",
    square_root,
    f"carried over from Adam, {_MALLADI}",
    above=", beyond which nothing is published for this optimizer: the square root may reach too far.",
    notes=("No rule is published for this optimizer; the square root is only a place to start.",),
)
_FAMILIES = {
    "sgd": _LINEAR,
    "sgd-momentum": _LINEAR,
    "adam": _ADAM,
    "adamw": _ADAM,
    "adamw-fused": _ADAM,
    "adamw-8bit": _ADAM,
    "galore-adamw": _ADAM,
    "rmsprop": _ADAM,
    "adagrad": _SIGN,
    "adafactor": _SIGN,
    "lion": _SIGN,
    "lamb": _LAYERWISE,
    "lars": _LARS,
    "muon": _MATRIX,
    "shampoo": _MATRIX,
    "soap": _MATRIX,
}
# Those with Adam's two moments and epsilon, which the rule on them is for.
_TWO_MOMENTS = frozenset({"adam", "adamw", "adamw-fused", "adamw-8bit", "galore-adamw"})

_ALWAYS = (
    "A start, not an answer: tune the rate again at the new batch. No rule works across all workloads "
    "(Shallue et al. 2019, arXiv:1811.03600)."
)


def _where(one: str, both: str, *, known: bool, new: bool) -> str:
    """Begin a sentence on the batch that works, the new one, or both."""
    if known and new:
        return f"Both batches {both}"
    return f"The new batch {one}" if new else f"The batch that works {one}"


def _reason(family: _Family, known_batch: float, new_batch: float, band: tuple[float, float]) -> str:
    """Say where both batches lie beside the noise scale, and what that does to the rule."""
    low, high = band
    known, new = known_batch > high, new_batch > high
    if known or new:
        said = _where("lies", "lie", known=known, new=new) + f" above the noise scale{family.above}"
        if family.curve and known != new:
            said += f" The rule alone would come out too {'high' if new else 'low'}."
        return said
    known, new = known_batch > low / 2, new_batch > low / 2
    if known or new:
        bends = ", where the best rate bends away from the rule." if family.curve else family.above
        return _where("is", "are", known=known, new=new) + f" near the noise scale{bends}"
    return "Both batches lie below the noise scale."


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
        ``rule``, ``learning_rate`` with ``low`` and ``high``, ``applies`` (whether the rule was published for batches
        like both) and ``reason``, ``adam`` settings for Adam-type optimizers where it does, ``warmup``, ``notes`` and
        ``source``. Where the rule does not apply and a curve is published, the curve gives the rate.

    Raises
    ------
    ScenarioError
        If a batch or the rate is not positive.
    """
    for field, value in (("known_batch", known_batch), ("known_learning_rate", known_learning_rate)):
        if not (value > 0 and math.isfinite(value)):
            raise ScenarioError(field, f"{value} is not a positive number")
    ratio = new_batch / known_batch
    family = _FAMILIES[optimizer]
    rule, scaled = family.rule, family.scaled(known_learning_rate, ratio)
    applies, rates = True, [scaled]
    reason = "The noise scale is not known here, so the rule may reach too far."
    if noise_scale_band:
        reason = _reason(family, known_batch, new_batch, noise_scale_band)
        applies = family.holds_above or max(known_batch, new_batch) <= noise_scale_band[1]
        if family.curve:
            curve = family.curve
            bent = [known_learning_rate * curve(new_batch, b) / curve(known_batch, b) for b in noise_scale_band]
            rates = [scaled, *bent] if applies else bent
            rule = rule if applies else f"{rule} below the noise scale, {family.beyond} above it"
    result: dict[str, Any] = {
        "rule": rule,
        "batch_ratio": ratio,
        "learning_rate": scaled if rule == family.rule else max(rates),
        "low": min(rates),
        "high": max(rates),
        "applies": applies,
        "reason": reason,
        "warmup": (
            "Raise the rate gradually from the known one over the first 5 epochs."
            if family is _LINEAR and ratio > 1
            else family.warmup
        ),
        "notes": [_ALWAYS, *family.notes],
        "source": family.source,
    }
    if optimizer in _TWO_MOMENTS and applies:
        scaling = adam_sde(AdamSettings(known_learning_rate), ratio)
        result["adam"] = asdict(scaling.settings) | {"kept": list(scaling.kept)}
    return result
