"""What an exported file has to say, in the scenario's words: the plan, and every setting that the memory hangs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.adapters import target_modules
from calc.catalog import models
from calc.scenario import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACEHOLDER_RATE = 1e-4
# Of another order than Adam's: the defaults of torch and bitsandbytes; T5's for Adafactor (Raffel et al. 2020,
# arXiv:1910.10683); for Lion a third of AdamW's (Chen et al. 2023, arXiv:2302.06675).
_PLACEHOLDER_RATES = {"adafactor": 1e-3, "adagrad": 1e-2, "lamb": 1e-3, "lion": 3e-5, "muon": 1e-3}
_LIKE_SGD = frozenset({"sgd", "sgd-momentum", "lars"})
_ZERO_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
_WEIGHTS_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "bf16-master": "bfloat16", "fp8": "bfloat16"}
_AUTOCAST_DTYPES = {"amp-fp16": "float16", "amp-bf16": "bfloat16"}
_SIZES = ("sequence_length", "target_length", "image_size", "audio_frames")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the files say, in the scenario's words; ``micro_batch`` in samples per pass and GPU.

    ``lora_targets`` are peft's ``target_modules``, empty where they are not known (`calc.adapters`).
    """

    micro_batch: int
    accumulation_steps: int
    model_name: str = ""
    library: str = "transformers"
    architecture: str = ""
    task: str = "causal-lm"
    gpus: int = 1
    nodes: int = 1
    data_parallel: int = 1
    precision: str = "amp-bf16"
    optimizer: str = "adamw"
    checkpointing: str = "none"
    attention: str = "sdpa"
    loss: str = "standard"
    method: str = "full"
    lora_rank: int = 16
    lora_targets: str | tuple[str, ...] = "all-linear"
    strategy: str = "ddp"
    cpu_offload: str = "none"
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    zero_grad: str = "free"
    sequence_length: int | None = None
    target_length: int | None = None
    image_size: int | None = None
    audio_frames: int | None = None
    learning_rate: float | None = None
    """The suggested rate, where there is one."""

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.micro_batch * self.accumulation_steps * self.data_parallel

    @property
    def rate(self) -> float:
        """The suggested learning rate to six digits, the same in every file, or a placeholder by optimizer.

        SGD's is 0.1 for 256 samples and grows with the batch up to 8,192 (Goyal et al. 2017, arXiv:1706.02677).
        """
        if self.learning_rate is not None:
            return float(f"{self.learning_rate:.6g}")
        if self.optimizer in _LIKE_SGD:
            return float(f"{0.1 * min(self.global_batch, 8192) / 256:.3g}")
        return _PLACEHOLDER_RATES.get(self.optimizer, _PLACEHOLDER_RATE)

    @property
    def zero_stage(self) -> int:
        """ZeRO stage of the strategy."""
        return _ZERO_STAGES[self.strategy]

    @property
    def autocast(self) -> bool:
        """Whether weights stay in 32 bit and operations are cast."""
        return self.precision in _AUTOCAST_DTYPES

    @property
    def weights_dtype(self) -> str:
        """The type that weights are stored in, as torch names it (`calc.memory.parameter_dtype`)."""
        return _WEIGHTS_DTYPES.get(self.precision, "float32")

    @property
    def compute_dtype(self) -> str:
        """The type of matrix products but fp8's, as torch names it."""
        return _AUTOCAST_DTYPES.get(self.precision, self.weights_dtype)

    @property
    def adapts(self) -> bool:
        """Whether LoRA adapters train, and the model's own weights do not."""
        return self.method in {"lora", "qlora"}

    @property
    def data_parallel_only(self) -> bool:
        """Whether no tensor, pipeline, context or expert parallelism is asked for."""
        return self.tensor == self.pipeline == self.context == self.expert == 1


def _published_name(model: object, architecture: str) -> tuple[str, str]:
    """Return the name that a preset's library loads it by, and the library; no name for a model of one's own."""
    if not isinstance(model, str):
        return "", "diffusers" if architecture[:1].isupper() else "transformers"
    preset = models.preset(model)
    if preset.library == "torchvision":
        return preset.id, preset.library
    return preset.source.removeprefix("Hugging Face: ").split(",")[0], preset.library


def settings(scenario: Mapping[str, Any], plan: Mapping[str, int], learning_rate: float | None = None) -> RunSettings:
    """Collect the settings from a filled-in scenario and one accumulation plan.

    Parameters
    ----------
    scenario : Mapping
        The result's ``scenario``.
    plan : Mapping
        ``micro_batch``, ``accumulation_steps`` and ``data_parallel``, as in the result's ``plan``.
    learning_rate : float, optional
        The suggested rate.
    """
    parallelism = scenario.get("parallelism") or {}
    architecture = parse(scenario).model.architecture
    name, library = _published_name(scenario.get("model"), architecture)
    names = ("gpus", "nodes", "precision", "optimizer", "checkpointing", "attention", "loss", "method", "lora_rank")
    known = {name: scenario[name] for name in (*names, "zero_grad", *_SIZES) if scenario.get(name) is not None}
    if known.get("method", "full") != "full":
        known["lora_targets"] = target_modules(scenario)
    degrees = {
        name: parallelism[name]
        for name in ("strategy", "cpu_offload", "tensor", "pipeline", "context", "expert")
        if parallelism.get(name)
    }
    return RunSettings(
        **known,
        **degrees,
        micro_batch=plan["micro_batch"],
        accumulation_steps=plan["accumulation_steps"],
        data_parallel=plan["data_parallel"],
        model_name=name,
        library=library,
        architecture=architecture,
        task=scenario.get("task", "causal-lm"),
        learning_rate=learning_rate,
    )
