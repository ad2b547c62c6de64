"""Count the parameters of every model preset on the libraries' own models, and compare or write them.

Run it in an environment with torch, torchvision, transformers and diffusers (no weights are read; models are built
on torch's meta device where they can be):

    python tools/check_models.py            # compare; the exit status is 1 where a count differs
    python tools/check_models.py --write    # write the counts into calc/catalog/models.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import diffusers
import torch
import torchvision
import transformers

MODELS_FILE = Path(__file__).resolve().parent.parent / "calc" / "catalog" / "models.json"
AUTO_CLASSES = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "seq2seq-lm": transformers.AutoModelForSeq2SeqLM,
    "speech-seq2seq": transformers.AutoModelForSpeechSeq2Seq,
    "speech-ctc": transformers.AutoModelForCTC,
    "image-classification": transformers.AutoModelForImageClassification,
    "image-text-contrastive": transformers.AutoModel,
}
# As they are trained here: without the auxiliary heads, and without a slow initialization.
TORCHVISION_OPTIONS: dict[str, dict[str, Any]] = {
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "googlenet": {"aux_logits": False, "init_weights": False},
}


def build(entry: dict[str, Any]) -> Any:
    """Build the library's model of one preset on the meta device."""
    if entry["library"] == "torchvision":
        options = dict(TORCHVISION_OPTIONS.get(entry["id"], {}))
        if entry["task"] == "segmentation":
            options["weights_backbone"] = None
        # RegNet computes its widths with tensors, which needs a device that holds data.
        with torch.device("cpu" if entry["id"].startswith("regnet") else "meta"):
            return torchvision.models.get_model(entry["id"], weights=None, **options)
    config = dict(entry["config"])
    if entry["library"] == "diffusers":
        model_class = getattr(diffusers, config.pop("_class_name"))
        with torch.device("meta"):
            return model_class(**config)
    filled = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        return AUTO_CLASSES[entry["task"]].from_config(filled)


def count(entry: dict[str, Any]) -> int:
    """Return the number of parameters of one preset's model, shared ones once."""
    return sum(parameter.numel() for parameter in build(entry).parameters())


def main() -> int:
    """Compare all counts, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the counts instead of comparing them")
    parser.add_argument("ids", nargs="*", help="only these presets")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    data = json.loads(MODELS_FILE.read_text(encoding="utf-8"))
    wrong = 0
    for entry in data["models"]:
        if arguments.ids and entry["id"] not in arguments.ids:
            continue
        counted = count(entry)
        if counted != entry["parameters"]:
            wrong += 1
            print(f"{entry['id']}: {counted:,} parameters; the catalog says {entry['parameters']}")
        entry["parameters"] = counted
    if arguments.write:
        data["counted_with"] = (
            f"transformers {transformers.__version__}, torchvision {torchvision.__version__.split('+')[0]}, "
            f"diffusers {diffusers.__version__}"
        )
        write(data)
        return 0
    return 1 if wrong else 0


def write(data: dict[str, Any]) -> None:
    """Write the catalog with one model a line, which keeps differences readable."""
    lines = ",\n".join("  " + json.dumps(entry) for entry in data["models"])
    head = "".join(f" {json.dumps(key)}: {json.dumps(data[key])},\n" for key in data if key != "models")
    MODELS_FILE.write_text("{\n" + head + ' "models": [\n' + lines + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
