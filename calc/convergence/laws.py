"""Published laws for the batch of language-model pre-training, each with what it answers and where it was fitted.

They answer different questions, so they are shown as a band with definitions and never averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Definition(StrEnum):
    """What a law calls "the" batch."""

    CRITICAL_2X = "critical, 2x"
    CRITICAL_20_PERCENT = "critical, 20 %"
    LOWEST_LOSS = "lowest loss"


DEFINITION_TEXTS = {
    Definition.CRITICAL_2X: "twice the fewest steps and twice the fewest examples",
    Definition.CRITICAL_20_PERCENT: "20 % more steps than perfect scaling from 256 sequences of 512 tokens",
    Definition.LOWEST_LOSS: "the batch that ends with the lowest loss on a fixed number of tokens",
}

SEQUENCE_ZHANG = 512
SEQUENCE_POWER_LINES = 2048


def kaplan_loss(parameters: float) -> float:
    """Loss of a converged language model, nats per WebText2 token: ``(8.8e13 / N)^0.076``, N non-embedding parameters.

    Source: Kaplan et al. 2020, arXiv:2001.08361, equation 1.1. Range: 768 to 1.5e9 parameters.
    """
    return float((8.8e13 / parameters) ** 0.076)


def kaplan_critical_batch(loss: float) -> float:
    """Critical batch in tokens at a loss in nats per token: ``2e8 / L^(1 / 0.21)``.

    Source: Kaplan et al. 2020, arXiv:2001.08361, equation 1.4.
    """
    return float(2e8 / loss ** (1 / 0.21))


def zhang_critical_sequences_of_data(tokens: float) -> float:
    """Critical batch (20 % definition) in sequences of 512 tokens: ``22.91 (D / 1e6)^0.47``.

    Source: Zhang et al. 2024, arXiv:2410.21676, authors' notebook. D in millions of tokens reproduces their points.

    >>> round(zhang_critical_sequences_of_data(1.74e9), 1)
    764.0
    """
    return float(22.91 * (tokens / 1e6) ** 0.47)


def zhang_refit_critical_batch(tokens: float) -> float:
    """Critical batch (2x definition) in tokens, refitted here to Zhang's steps to target: ``2.24 D^0.619``.

    Source: five fits of S = S_min (1 + B_crit / B) to the measurements of arXiv:2410.21676. Range: 1.7e9 to 1e11.
    """
    return float(2.24 * tokens**0.619)


def power_lines_critical_sequences(tokens: float) -> float:
    """Critical batch (2x definition) in sequences of 2048 tokens: ``0.0471 D^0.462``.

    Source: Bergsma et al. 2025, arXiv:2505.13738 (exponent checked; the coefficient only by consistency).
    """
    return float(0.0471 * tokens**0.462)


def power_lines_optimal_sequences(tokens: float) -> float:
    """Batch of the lowest loss in sequences of 2048 tokens: ``0.0306 D^0.383``.

    Source: Bergsma et al. 2025, arXiv:2505.13738 (exponent checked; the coefficient only by consistency).
    """
    return float(0.0306 * tokens**0.383)


def training_operations(parameters: float, tokens: float) -> float:
    """Floating-point operations of a training run, ``C = 6 N D``. Source: Kaplan et al. 2020, section 2.1."""
    return 6 * parameters * tokens


def deepseek_optimal_batch(operations: float) -> float:
    """Batch of the lowest loss in tokens, from the run's operations: ``0.2920 C^0.3271``.

    Source: DeepSeek-AI 2024, arXiv:2401.02954, section 3.1. Range: 1e17 to 2e19 operations.
    """
    return float(0.2920 * operations**0.3271)


def deepseek_optimal_learning_rate(operations: float) -> float:
    """AdamW's best peak learning rate, from the run's operations: ``0.3118 C^-0.1250``. Source as for the batch."""
    return float(0.3118 * operations**-0.1250)


def step_law_optimal_batch(tokens: float) -> float:
    """Batch of the lowest loss in tokens: ``0.58 D^0.571``. Source: Li et al. 2025, arXiv:2503.04715."""
    return float(0.58 * tokens**0.571)


def step_law_optimal_learning_rate(parameters: float, tokens: float) -> float:
    """AdamW's best peak learning rate: ``1.79 N^-0.713 D^0.307``, N non-embedding. Source as for the batch."""
    return float(1.79 * parameters**-0.713 * tokens**0.307)


@dataclass(frozen=True, slots=True)
class Law:
    """One published law: batch in tokens as a function of parameters and training tokens.

    ``range_of`` names the quantity that the law was fitted over, from ``range_low`` to ``range_high``.
    """

    id: str
    name: str
    definition: Definition
    batch_tokens: Callable[[float, float], float]
    range_of: str
    range_low: float
    range_high: float
    source: str
    doubt: str = ""

    def is_extrapolated(self, parameters: float, tokens: float) -> bool:
        """Whether the run lies outside what the law was fitted on."""
        value = {
            "parameters": parameters,
            "tokens": tokens,
            "operations": training_operations(parameters, tokens),
        }[self.range_of]
        return not self.range_low <= value <= self.range_high


# Where a source does not state the span of its own fit, 1e9 to 1e12 tokens is what the pre-training studies cover.
LAWS = (
    Law(
        "kaplan-2020",
        "Kaplan 2020",
        Definition.CRITICAL_2X,
        lambda n, _: kaplan_critical_batch(kaplan_loss(n)),
        "parameters",
        768,
        1.5e9,
        "Kaplan et al. 2020, arXiv:2001.08361, equations 1.1 and 1.4",
        "Depends on the loss alone, here the converged loss for this size, with WebText2's tokenizer. Later "
        "studies find that tokens, not size, drive it.",
    ),
    Law(
        "zhang-2024-refit",
        "Zhang 2024, refitted",
        Definition.CRITICAL_2X,
        lambda _, d: zhang_refit_critical_batch(d),
        "tokens",
        1.7e9,
        1e11,
        "steps to target of Zhang et al. 2024, arXiv:2410.21676, fitted here",
        "A power law through five points.",
    ),
    Law(
        "power-lines-critical",
        "Power Lines 2025, critical",
        Definition.CRITICAL_2X,
        lambda _, d: power_lines_critical_sequences(d) * SEQUENCE_POWER_LINES,
        "tokens",
        1e9,
        1e12,
        "Bergsma et al. 2025, arXiv:2505.13738",
        "The coefficient was checked by its agreement with Zhang's data only.",
    ),
    Law(
        "zhang-2024",
        "Zhang 2024",
        Definition.CRITICAL_20_PERCENT,
        lambda _, d: zhang_critical_sequences_of_data(d) * SEQUENCE_ZHANG,
        "tokens",
        1.7e9,
        2.5e10,
        "Zhang et al. 2024, arXiv:2410.21676",
    ),
    Law(
        "deepseek-2024",
        "DeepSeek 2024",
        Definition.LOWEST_LOSS,
        lambda n, d: deepseek_optimal_batch(training_operations(n, d)),
        "operations",
        1e17,
        2e19,
        "DeepSeek-AI 2024, arXiv:2401.02954, section 3.1",
        "A broad valley: the authors call a band of batches near-optimal.",
    ),
    Law(
        "step-law-2025",
        "Step Law 2025",
        Definition.LOWEST_LOSS,
        lambda _, d: step_law_optimal_batch(d),
        "tokens",
        1e9,
        1e12,
        "Li et al. 2025, arXiv:2503.04715",
        "A shallow valley: four times too large a batch costs 0.014 to 0.057 nats on the authors' grid.",
    ),
    Law(
        "power-lines-optimal",
        "Power Lines 2025, lowest loss",
        Definition.LOWEST_LOSS,
        lambda _, d: power_lines_optimal_sequences(d) * SEQUENCE_POWER_LINES,
        "tokens",
        1e9,
        1e12,
        "Bergsma et al. 2025, arXiv:2505.13738",
        "The coefficient was checked by its agreement with Zhang's data only.",
    ),
)


def evaluate(parameters: float, tokens: float, tokens_per_sample: int) -> list[dict[str, Any]]:
    """Evaluate every law for one pre-training run.

    Parameters
    ----------
    parameters : float
        Parameters of the model, without embeddings where known.
    tokens : float
        Tokens of the whole run.
    tokens_per_sample : int
        To express each batch in samples as well.
    """
    return [
        {
            "id": law.id,
            "name": law.name,
            "definition": law.definition.value,
            "definition_text": DEFINITION_TEXTS[law.definition],
            "batch_tokens": (batch := law.batch_tokens(parameters, tokens)),
            "batch_samples": batch / tokens_per_sample,
            "range_of": law.range_of,
            "range": [law.range_low, law.range_high],
            "extrapolated": law.is_extrapolated(parameters, tokens),
            "doubt": law.doubt,
            "source": law.source,
        }
        for law in LAWS
    ]
