"""Everything known about one run's batch, put together."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calc import cost
from calc.catalog import published
from calc.convergence import generalization, laws, learning_rate, noise_scale, tradeoff
from calc.errors import ScenarioError
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The scenario's tasks in the words of the published tables.
_FAMILIES = {
    "causal-lm": "causal-lm",
    "masked-lm": "masked-lm",
    "sequence-classification": "encoder-fine-tuning",
    "seq2seq-lm": "causal-lm",
    "speech-seq2seq": "speech",
    "speech-ctc": "speech",
    "image-classification": "image-classification",
    "image-text-contrastive": "image-text-contrastive",
    "segmentation": "detection",
    "diffusion": "diffusion",
}
# What a masked language model's run is where it is too short for pre-training, in the same words.
_SHORT_MASKED = _FAMILIES["sequence-classification"]
_NOTHING_CLOSE = "No measured critical batch is close to this run: paste two gradient norms to find your own."
_NOTHING_CLOSE_OF = {
    _SHORT_MASKED: (
        "No measured critical batch is close to this run: it is fine-tuning, and those of such models are of "
        "pre-training. Recipes for fine-tuning BERT take 16 or 32 samples (Devlin et al. 2018, arXiv:1810.04805, "
        "appendix A.3). Paste two gradient norms to find your own."
    )
}
# What the published laws of batch sizes were fitted on, and adapters' one measured run.
_LANGUAGE_MODELS = frozenset({"causal-lm", "seq2seq-lm"})
# Tokens from which on a text run is pre-training rather than fine-tuning: the smallest run the laws were fitted on.
_PRETRAINING_TOKENS = 1e9
# Laws that lie no further apart agree.
_AGREEMENT = 2
# Compute-optimal training length where the user names none: Hoffmann et al. 2022, arXiv:2203.15556.
_TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True, slots=True)
class CriticalBand:
    """A critical batch ("2x" definition) as a band, in one unit, with where its ends come from."""

    low: float
    high: float
    unit: str
    sources: tuple[str, ...]
    doubt: str


def family_of(task: str, method: str) -> str:
    """Name the kind of run in the published tables' words; adapters on a frozen model are their own kind.

    Those on a model of another kind than language are in no table.
    """
    if method in {"lora", "qlora"}:
        return "lora" if task in _LANGUAGE_MODELS else "adapters"
    return _FAMILIES[task]


def band_from_noise_scale(value: float) -> CriticalBand:
    """Take one's own noise scale, in samples, for the critical batch."""
    doubt = (
        "Your own noise scale at one moment of training: it grows as the loss falls, and stands in for the critical "
        "batch only roughly."
    )
    return CriticalBand(value, value, "samples", (noise_scale.SOURCE,), doubt)


def band_from_laws(evaluated: Sequence[Mapping[str, Any]], assumed_tokens: float | None = None) -> CriticalBand:
    """Span the laws of the 2x definition; those outside their range only where fewer than two are inside."""
    critical = [law for law in evaluated if law["definition"] == laws.Definition.CRITICAL_2X.value]
    inside = [law for law in critical if not law["extrapolated"]]
    used = inside if len(inside) > 1 else critical
    batches = [law["batch_tokens"] for law in used]
    apart = max(batches) / min(batches)
    said = "agree within" if apart <= _AGREEMENT else "disagree by"
    by = f"{100 * (apart - 1):.0f} %" if apart < 1.1 else f"a factor of {apart:.1f}"
    doubt = f"{len(used)} laws {said} {by}"
    if outside := sum(law["extrapolated"] for law in used):
        doubt += f", {outside} of them outside what they were fitted on"
    if assumed_tokens:
        doubt += f". No length of the run is given: {_TOKENS_PER_PARAMETER} tokens a parameter are assumed"
    return CriticalBand(min(batches), max(batches), "tokens", tuple(law["name"] for law in used), doubt + ".")


def closest_task(family: str, dataset: str | None) -> dict[str, Any] | None:
    """Find the measured task closest to the run: the named data set, else the largest of the same kind."""
    rows = [row for row in published.critical_batches() if row["family"] == family]
    if dataset:
        wanted = generalization.plain_name(dataset)
        named = [row for row in rows if generalization.plain_name(row["dataset"]) in wanted]
        rows = named or rows
    return max(rows, key=lambda row: float(row["critical_batch"][0]), default=None)


def band_from_task(row: Mapping[str, Any], tokens_per_sample: int | None) -> CriticalBand:
    """Turn a measured task into a band in samples: from the start of training to the average over the run.

    Where samples there had another length than here, whether samples or tokens count is not known: both are spanned.
    """
    low, high = row["critical_batch"]
    start = row.get("critical_batch_start", [None])[0]
    doubt = f"Measured on {row['task']}, not on your run"
    if start:
        doubt += "; it grows during training, from the low end to the high end"
    readings = [1.0]
    if tokens_per_sample and row["unit"] == "tokens":
        readings = [1 / tokens_per_sample]
    elif tokens_per_sample and row.get("tokens_per_unit", tokens_per_sample) != tokens_per_sample:
        readings.append(row["tokens_per_unit"] / tokens_per_sample)
        doubt += "; the span counts samples as samples and by their tokens"
    return CriticalBand(
        min(readings) * (start or low),
        max(readings) * (high or low),
        "samples",
        (f"{row['task']} ({row['source']})",),
        doubt + ".",
    )


def _number(value: float) -> str:
    """Write a number the way a sentence needs it: exact where short, else two digits and the millions named."""
    for size, name in ((1e9, " billion"), (1e6, " million")):
        if value >= size:
            return f"{float(f'{value / size:.2g}'):g}{name}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _percent_span(first: float, second: float) -> str:
    low, high = sorted((round(100 * first), round(100 * second)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def verdict(batch: float, band: CriticalBand) -> str:
    """Say in one sentence whether a larger batch still pays, with the doubt.

    Parameters
    ----------
    batch : float
        Batch per optimizer step, in the band's unit.
    band : CriticalBand
        Estimates of the critical batch.
    """
    steps = _percent_span(*(tradeoff.steps_saved_by_doubling(batch, b) for b in (band.low, band.high)))
    examples = _percent_span(*(tradeoff.examples_added_by_doubling(batch, b) for b in (band.low, band.high)))
    if 2 * batch <= band.low:
        opening = "Yes, a larger batch is still worth it"
    elif batch >= band.high:
        opening = "No, the batch is already past the critical one"
    else:
        opening = "Perhaps: the batch is near the critical one"
    span = (
        f"about {counted(band.low, band.unit[:-1], said=_number(band.low))}"
        if band.high < 1.05 * band.low
        else f"between {_number(band.low)} and {_number(band.high)} {band.unit}"
    )
    twice = f"twice {counted(batch, band.unit[:-1], said=_number(batch))}"
    return (
        f"{opening}: {twice} would save {steps} of the steps for {examples} more data, if the critical batch lies "
        f"{span} as estimated. {band.doubt}"
    )


def _lowest_loss(batch_tokens: float, evaluated: Sequence[Mapping[str, Any]]) -> str:
    """A sentence for a batch far beyond what ends, by some laws, with the lowest loss on as many tokens."""
    lowest = [law["batch_tokens"] for law in evaluated if law["definition"] == laws.Definition.LOWEST_LOSS]
    smaller = [tokens for tokens in lowest if 2 * tokens <= batch_tokens]
    if not smaller:
        return ""
    said = " to ".join(dict.fromkeys(_number(round(tokens, -3)) for tokens in (min(smaller), max(smaller))))
    return (
        f" On a fixed number of tokens, by {len(smaller)} of {counted(len(lowest), 'law')} the loss is lowest at half "
        f"this batch or less: {said} tokens."
    )


def tradeoff_curve(assessment: Mapping[str, Any], points: int = 41) -> dict[str, Any] | None:
    """Sample steps and examples against batch for both ends of an assessment's band, for the figure.

    A decade beyond the band and the batch on either side; None where no critical batch is known.
    """
    band = assessment["critical_batch"]
    if band is None:
        return None
    low = math.log10(min(band["low"], band["batch"])) - 1
    high = math.log10(max(band["high"], band["batch"])) + 1
    batches = [10 ** (low + (high - low) * i / (points - 1)) for i in range(points)]
    return {
        "unit": band["unit"],
        "batch": batches,
        "steps_factor_low": [tradeoff.steps_factor(b, band["low"]) for b in batches],
        "steps_factor_high": [tradeoff.steps_factor(b, band["high"]) for b in batches],
        "examples_factor_low": [tradeoff.examples_factor(b, band["high"]) for b in batches],
        "examples_factor_high": [tradeoff.examples_factor(b, band["low"]) for b in batches],
    }


def _own_noise_scale(norms: Mapping[str, float]) -> dict[str, Any]:
    keys = ("small_batch", "small_batch_norm", "large_batch", "large_batch_norm")
    missing = [key for key in keys if key not in norms]
    if missing:
        raise ScenarioError("gradient_norms", f"give {', '.join(keys)}; {missing[0]} is missing")
    found = noise_scale.from_gradient_norms(*(float(norms[key]) for key in keys))
    return asdict(found) | {"unit": "samples", "source": noise_scale.SOURCE}


def _laws_of_run(
    task: str, family: str, parameters: int, tokens_per_sample: int | None, samples: float | None
) -> tuple[str, list[dict[str, Any]], float | None]:
    """Return the kind of run, the laws where it is pre-training, and the tokens assumed where no length is given."""
    length = None if samples is None or not tokens_per_sample else samples * tokens_per_sample
    if family == "masked-lm" and length is not None and length < _PRETRAINING_TOKENS:
        return _SHORT_MASKED, [], None
    if task not in _LANGUAGE_MODELS or family == "lora" or not tokens_per_sample:
        return family, [], None
    assumed_tokens = _TOKENS_PER_PARAMETER * parameters if length is None else None
    tokens = assumed_tokens or length or 0
    if tokens < _PRETRAINING_TOKENS:
        # The only fine-tuning run among the measured ones is one of adapters.
        return "lora", [], assumed_tokens
    return family, laws.evaluate(parameters, tokens, tokens_per_sample), assumed_tokens


def assess(
    *,
    task: str,
    global_batch: int,
    parameters: int,
    optimizer: str,
    method: str = "full",
    tokens_per_sample: int | None = None,
    samples: float | None = None,
    dataset: str | None = None,
    known_batch: float | None = None,
    known_learning_rate: float | None = None,
    gradient_norms: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Assess a run's batch: critical batch as a band, verdict, learning rate, updates, published points.

    Parameters
    ----------
    task, method, optimizer : str
        As in the scenario.
    global_batch : int
        Samples per optimizer step.
    parameters : int
        Parameters of the model.
    tokens_per_sample : int, optional
        Tokens of one sample, for text.
    samples : float, optional
        Samples of the whole run (epochs x data set, or tokens / tokens per sample).
    dataset : str, optional
        Data set's name, to find the closest published task.
    known_batch, known_learning_rate : float, optional
        A batch in samples and the rate that works at it.
    gradient_norms : Mapping[str, float], optional
        ``small_batch``, ``small_batch_norm``, ``large_batch``, ``large_batch_norm``, batches in samples.

    Raises
    ------
    ScenarioError
        Where the norms, the batch or the rate make no sense.
    """
    if global_batch < 1:
        raise ScenarioError("global_batch", f"{global_batch} is not a batch: give a whole number of at least 1")
    family, evaluated, assumed_tokens = _laws_of_run(
        task, family_of(task, method), parameters, tokens_per_sample, samples
    )
    own = _own_noise_scale(gradient_norms) if gradient_norms else None
    row = None if own or evaluated else closest_task(family, dataset)
    band = None
    if own:
        band = band_from_noise_scale(own["noise_scale"])
    elif evaluated:
        band = band_from_laws(evaluated, assumed_tokens)
    elif row:
        band = band_from_task(row, tokens_per_sample)

    result: dict[str, Any] = {
        "family": family,
        "laws": evaluated,
        "assumed_tokens": assumed_tokens,
        "own_noise_scale": own,
        "critical_batch": None,
        "tradeoff": None,
        "verdict": _NOTHING_CLOSE_OF.get(family, _NOTHING_CLOSE),
        "closest_task": row,
        "updates": cost.update_count(samples, global_batch) if samples else None,
        "generalization": [series["id"] for series in generalization.nearest_series(family, dataset)],
        "learning_rate": None,
    }
    noise_band = None
    if band:
        scale = tokens_per_sample if band.unit == "tokens" and tokens_per_sample else 1
        batch = float(global_batch * scale)
        noise_band = (band.low / scale, band.high / scale)
        result |= {
            "critical_batch": asdict(band)
            | {"definition": laws.DEFINITION_TEXTS[laws.Definition.CRITICAL_2X], "batch": batch},
            "tradeoff": {
                "steps_factor": sorted(tradeoff.steps_factor(batch, b) for b in (band.low, band.high)),
                "examples_factor": sorted(tradeoff.examples_factor(batch, b) for b in (band.low, band.high)),
                "source": tradeoff.SOURCE,
            },
            "verdict": verdict(batch, band) + _lowest_loss(batch, evaluated),
        }
    if known_batch is not None and known_learning_rate is not None:
        result["learning_rate"] = learning_rate.suggest(
            optimizer, known_batch, known_learning_rate, global_batch, noise_band
        )
    return result
