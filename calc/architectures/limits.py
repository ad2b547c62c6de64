"""The largest inputs that a model's code takes: where it has learned a row for each position, there is none beyond.

What is not named here takes any length: rotary positions, relative biases and ALiBi are computed for it (Llama, T5,
BLOOM), M2M100 makes its table of sinusoids longer, DeBERTa without absolute positions cuts its distances off. Hugging
Face's vision transformers interpolate their positions (``interpolate_pos_encoding``), torchvision's are made for a
size. Each limit is what transformers 5.17 refuses beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

WHISPER_STRIDES = 2
"""Feature frames a position of Whisper's encoder: its second convolution's stride."""
DEFAULT_PADDING = 1
"""RoBERTa's padding token: its positions are counted from behind it (create_position_ids_from_input_ids)."""

_ROWS_BY_TYPE = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj", "codegen"), "n_positions"),
    **dict.fromkeys(("gpt_neo", "opt", "biogpt"), "max_position_embeddings"),
    "mpt": "max_seq_len",
    **dict.fromkeys(("bert", "electra", "ernie", "albert", "distilbert", "clip"), "max_position_embeddings"),
}
_ROWS_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet")
_ROWS_OF_BOTH_SIDES = ("bart", "mbart", "plbart", "pegasus", "marian", "blenderbot", "blenderbot-small")
_ROWS_IF_ABSOLUTE = ("deberta", "deberta-v2")


@dataclass(frozen=True)
class Limit:
    """The largest value of an input, or the one value that it may have; ``why`` is for the person who asks for more."""

    largest: int
    why: str
    alone: bool = False

    def nearest(self, size: int) -> int:
        """The allowed size that is nearest to this one."""
        return self.largest if self.alone else min(size, self.largest)

    def refusal(self, size: int) -> str | None:
        """Return why a size is refused and what is allowed, None where it is taken."""
        if self.nearest(size) == size:
            return None
        allowed = f"{self.largest:,} alone" if self.alone else f"a whole number from 1 to {self.largest:,}"
        return f"{size:,} is out of range: allowed is {allowed}, {self.why}"


def limits(architecture: str, config: Mapping[str, Any]) -> dict[str, Limit]:
    """Return the limits of an architecture's inputs, by the scenario's field."""
    if architecture == "whisper":
        return _of_whisper(config)
    return _of_positions(architecture, config.get("text_config", config) if architecture == "clip" else config)


def _of_positions(architecture: str, config: Mapping[str, Any]) -> dict[str, Limit]:
    key = _ROWS_BY_TYPE.get(architecture, "max_position_embeddings")
    if architecture in _ROWS_OF_BOTH_SIDES:
        return _of_rows("sequence_length", config, key) | _of_rows("target_length", config, key)
    if architecture in _ROWS_BEHIND_PADDING:
        return _of_rows("sequence_length", config, key, before=_padding(architecture, config) + 1)
    if architecture in _ROWS_BY_TYPE or (architecture in _ROWS_IF_ABSOLUTE and config["position_biased_input"]):
        return _of_rows("sequence_length", config, key)
    return {}


def _padding(architecture: str, config: Mapping[str, Any]) -> int:
    token = config.get("pad_token_id")
    if architecture == "mpnet" or not isinstance(token, int) or isinstance(token, bool) or token < 0:
        return DEFAULT_PADDING
    return token


def _of_rows(field: str, config: Mapping[str, Any], key: str, *, before: int = 0) -> dict[str, Limit]:
    """The limit that a table's rows set, less the rows ``before`` the first token's; none where they are no number."""
    rows = config.get(key)
    if not isinstance(rows, int) or isinstance(rows, bool) or rows <= before:
        return {}
    less = f" less the {before} that padding takes" if before else ""
    return {field: Limit(rows - before, f"the positions that the model has ({key} in its config.json{less})")}


def _of_whisper(config: Mapping[str, Any]) -> dict[str, Limit]:
    """Audio is padded or cut to one length before the encoder, which refuses any other."""
    found = _of_rows("target_length", config, "max_target_positions")
    positions = config.get("max_source_positions")
    if isinstance(positions, int) and not isinstance(positions, bool) and positions > 0:
        why = "to which Whisper's feature extractor pads or cuts all audio"
        found["audio_frames"] = Limit(WHISPER_STRIDES * positions, why, alone=True)
    return found
