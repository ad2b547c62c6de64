"""The scenario as the text of a link: ``model=gpt2&gpu=h100-sxm-80gb&parallelism.strategy=zero2``.

Keys are the contract's, nested ones dotted; only what differs from the page's defaults is written. The text follows
``#``, which a browser never sends to a server. Links without ``v`` are of version 1.
"""

import json
from typing import Any

VERSION = 1
KEYS = (
    "model",
    "task",
    "sequence_length",
    "target_length",
    "image_size",
    "audio_frames",
    "precision",
    "optimizer",
    "checkpointing",
    "attention",
    "loss",
    "method",
    "lora_rank",
    "lora_targets",
    "zero_grad",
    "gpu",
    "gpus",
    "nodes",
    "interconnect",
    "parallelism",
    "global_batch",
    "micro_batch",
    "dataset",
    "epochs",
    "tokens",
    "calibration",
    "price_per_gpu_hour",
    "known_batch",
    "known_learning_rate",
    "gradient_norms",
    "dataset_samples",
    "deadline_hours",
    "budget_dollars",
    "objective",
    "allow",
)
"""The contract's keys (calc.scenario.KEYS, which the page's main thread cannot import)."""

SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
LITERALS = {"true": True, "false": False, "null": None}


def quote(text: str) -> str:
    """Percent-encode what a link cannot hold as it is."""
    return "".join(chr(byte) if chr(byte) in SAFE else f"%{byte:02X}" for byte in text.encode())


def unquote(text: str) -> str:
    """Undo `quote`; what is no valid encoding is kept as it stands."""
    out = bytearray()
    position = 0
    raw = text.replace("+", " ").encode()
    while position < len(raw):
        if raw[position] == ord("%"):
            try:
                out.append(int(raw[position + 1 : position + 3].decode(), 16))
            except ValueError:
                out.append(raw[position])
            else:
                position += 2
        else:
            out.append(raw[position])
        position += 1
    try:
        return bytes(out).decode()
    except UnicodeError:
        return text


LARGEST = 1e300


def _finite(value: Any) -> bool:
    """Whether JSON can say it: no number in it is beyond what a computer counts to."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return all(_finite(entry) for entry in value)
    return not isinstance(value, float) or abs(value) < LARGEST


def _is_number(text: str) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    return text[0] in "-0123456789." and _finite(number)


def _value(text: str) -> Any:
    if text in LITERALS:
        return LITERALS[text]
    if text[:1] in ("[", "{", '"'):
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return value if _finite(value) else text
    if text and _is_number(text):
        return int(text) if text.lstrip("-").isdigit() else float(text)
    return text


def _text(value: Any) -> str:
    # A text that would be read as something else, such as a data set called 101, stands in quotation marks.
    return value if isinstance(value, str) and _value(value) == value else json.dumps(value)


def write(flat: dict[str, Any]) -> str:
    """The link text of dotted keys and their values, sorted by key: MicroPython's dicts keep no order."""
    return "&".join(f"{quote(key)}={quote(_text(flat[key]))}" for key in sorted(flat))


def read(text: str) -> dict[str, Any]:
    """The dotted keys and values of a link text."""
    flat = {}
    for pair in text.lstrip("#").split("&"):
        key, equals, value = pair.partition("=")
        if key and equals:
            flat[unquote(key)] = _value(unquote(value))
    return flat


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as the contract's nested objects; what is set inside an object replaces its preset."""
    scenario: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = scenario
        for part in path:
            if not isinstance(place.get(part), dict):
                place[part] = {}
            place = place[part]
        place[last] = value
    return scenario


def flattened(scenario: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The contract's nested objects as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in scenario.items():
        if isinstance(value, dict):
            flat.update(flattened(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
