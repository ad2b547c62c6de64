"""The scenario: one training run as the contract describes it, checked and filled in.

Everything that a person may get wrong ends in a `ScenarioError` that names the field and says what is allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

from calc.architectures.limits import limits
from calc.architectures.model import Shape
from calc.architectures.registry import ARCHITECTURES
from calc.architectures.vision_transformers import TORCHVISION_IMAGE_SIZE
from calc.architectures.vision_transformers import VARIANTS as TORCHVISION_TRANSFORMERS
from calc.catalog import custom, gpus, models
from calc.catalog.config_keys import EXPERT_KEYS
from calc.catalog.configs import describe_completion
from calc.collectives import UNKNOWN_CARD_LINK, completed, read_fabric
from calc.errors import ScenarioError, only_known
from calc.numbers import number, shown, whole
from calc.readings import BytesReading, Trial, read_calibration
from calc.scaling.layout import DEGREES, MAX_GPUS, Layout, read_layout
from calc.scaling.offload import offloads
from calc.scaling.report import USUAL_GPUS_PER_NODE

GIB = 2**30


class Task(StrEnum):
    """What the model learns; it decides the inputs and the loss."""

    CAUSAL_LM = "causal-lm"
    MASKED_LM = "masked-lm"
    SEQUENCE_CLASSIFICATION = "sequence-classification"
    SEQ2SEQ_LM = "seq2seq-lm"
    SPEECH_SEQ2SEQ = "speech-seq2seq"
    SPEECH_CTC = "speech-ctc"
    IMAGE_CLASSIFICATION = "image-classification"
    IMAGE_TEXT_CONTRASTIVE = "image-text-contrastive"
    SEGMENTATION = "segmentation"
    DIFFUSION = "diffusion"


class Precision(StrEnum):
    """Number formats of weights and computation."""

    FP32 = "fp32"
    TF32 = "tf32"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"
    FP16 = "fp16"
    BF16 = "bf16"
    BF16_MASTER = "bf16-master"
    FP8 = "fp8"


class Optimizer(StrEnum):
    """Optimizers with a memory model."""

    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"
    ADAM = "adam"
    ADAMW = "adamw"
    ADAMW_FUSED = "adamw-fused"
    ADAMW_8BIT = "adamw-8bit"
    ADAFACTOR = "adafactor"
    ADAGRAD = "adagrad"
    RMSPROP = "rmsprop"
    LION = "lion"
    LAMB = "lamb"
    LARS = "lars"
    MUON = "muon"
    SHAMPOO = "shampoo"
    SOAP = "soap"
    GALORE_ADAMW = "galore-adamw"


class Checkpointing(StrEnum):
    """Activation checkpointing: none, every block, or selective.

    Selective computes again the attention core alone where attention is eager (Korthikanti et al. 2022,
    arXiv:2205.05198); where it is fused, which does that anyway, all but attention and every second matrix product of
    a block (torchtitan's default policy).
    """

    NONE = "none"
    FULL = "full"
    SELECTIVE = "selective"


class Attention(StrEnum):
    """Attention implementation."""

    EAGER = "eager"
    SDPA = "sdpa"
    FLASH_ATTENTION_2 = "flash-attention-2"


class Loss(StrEnum):
    """Whether the logits are held whole."""

    STANDARD = "standard"
    FUSED = "fused"


class Method(StrEnum):
    """What trains: all weights, adapters, or adapters on a 4-bit base."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class ZeroGrad(StrEnum):
    """Whether gradients are freed between steps."""

    FREE = "free"
    KEEP = "keep"


class Objective(StrEnum):
    """What the planner's best plan is best at."""

    TIME = "time"
    COST = "cost"
    HEADROOM = "headroom"


PLANNED: Mapping[str, type[StrEnum]] = MappingProxyType(
    {
        "checkpointing": Checkpointing,
        "precision": Precision,
        "optimizer": Optimizer,
        "attention": Attention,
        "loss": Loss,
    }
)
"""The settings that the planner may choose, as far as ``allow`` lists their values."""
TEXT_TASKS = frozenset({Task.CAUSAL_LM, Task.MASKED_LM, Task.SEQ2SEQ_LM})
"""Those with a token to predict at each place."""
MAX_SEQUENCE = 4_194_304
MAX_IMAGE = 8_192
MAX_BATCH = 100_000_000

LONGEST_NAME = 200
DEEPEST = 50
"""Levels of lists and objects in a field: more than any configuration has, less than Python calls in one another."""
NORM_KEYS = ("small_batch", "small_batch_norm", "large_batch", "large_batch_norm")
NORM_LIMITS = (1e-30, 1e30)
GPU_KEYS = ("id", "memory_gib", "overhead_gib")
INTERCONNECT_KEYS = ("node", "network", "adapters_per_node")

DEFAULT_SEQUENCE = 1024
DEFAULT_TARGET = 128
DEFAULT_IMAGE = 224
DEFAULT_AUDIO_FRAMES = 3000
DEFAULT_WAVEFORM_FRAMES = 160_000
"""Ten seconds at 16 kHz, for models that take the waveform itself."""
DEFAULT_LORA_RANK = 16

KEYS = (
    "model", "task", "sequence_length", "target_length", "image_size", "audio_frames", "precision", "optimizer",
    "checkpointing", "attention", "loss", "method", "lora_rank", "lora_targets", "zero_grad", "gpu", "gpus", "nodes",
    "interconnect", "parallelism", "global_batch", "micro_batch", "dataset", "epochs", "tokens", "calibration",
    "price_per_gpu_hour", "known_batch", "known_learning_rate", "gradient_norms", "dataset_samples",
    "deadline_hours", "budget_dollars", "objective", "allow",
)  # fmt: skip
"""The contract's keys, in the order of the permalink."""


@dataclass(frozen=True)
class ModelChoice:
    """The model: its architecture's key and completed configuration, and how to name it.

    ``key`` tells it from every other: models are equal where their keys are.
    """

    key: str
    id: str | None = field(compare=False)
    name: str = field(compare=False)
    architecture: str = field(compare=False)
    config: Mapping[str, Any] = field(compare=False)
    task: Task = field(compare=False)
    notes: tuple[str, ...] = field(compare=False)


@dataclass(frozen=True)
class GpuChoice:
    """The card: what it has, and what the allocator may use of it. ``catalog`` is None for one given by size."""

    id: str | None
    name: str
    memory_bytes: int
    overhead_bytes: int
    catalog: gpus.Gpu | None

    @property
    def limit_bytes(self) -> int:
        """What the allocator may reserve."""
        return max(0, self.memory_bytes - self.overhead_bytes)


@dataclass(frozen=True)
class Scenario:
    """A training run with every default filled in."""

    model: ModelChoice
    shape: Shape
    precision: Precision
    optimizer: Optimizer
    checkpointing: Checkpointing
    attention: Attention
    loss: Loss
    method: Method
    lora_rank: int
    lora_targets: str | tuple[str, ...]
    zero_grad: ZeroGrad
    gpu: GpuChoice
    gpus: int
    nodes: int
    interconnect: Any
    parallelism: Mapping[str, Any]
    layout: Layout
    global_batch: int | None
    micro_batch: int | None
    filled: Mapping[str, Any]
    """The scenario as JSON, defaults included."""
    calibration: tuple[BytesReading | Trial, ...] = ()
    activation_share: float = 1.0
    """What grows with the micro-batch as a multiple of the replay's: 1 but where readings say otherwise."""


Choice = TypeVar("Choice", bound=StrEnum)


def _choice(given: Mapping[str, Any], key: str, kind: type[Choice], default: Choice) -> Choice:
    value = given.get(key)
    if value is None:
        return default
    try:
        return kind(value)
    except ValueError:
        raise ScenarioError(key, f"{shown(value)} is not known: allowed are {', '.join(kind)}") from None


def _optional_whole(given: Mapping[str, Any], key: str, low: int, high: int) -> int | None:
    value = given.get(key)
    return None if value is None else whole(value, key, low, high)


def _model(value: object) -> ModelChoice:
    if isinstance(value, str):
        return _preset(value)
    if not isinstance(value, Mapping):
        raise ScenarioError("model", f"{shown(value)} is no model: give a preset's id or the content of a config.json")
    if custom.is_by_hand(value):
        config = custom.infer_config(value)
        completed = describe_completion(config, ARCHITECTURES)
        return _from_config(completed.config, None, "your model", completed.notes)
    completed = describe_completion(value, ARCHITECTURES)
    own_type, answered = value.get("model_type"), completed.config["model_type"]
    name = str(value.get("_name_or_path") or own_type or answered)
    if own_type not in (None, answered):
        name += f" (as {answered})"
    return _from_config(completed.config, None, name, completed.notes)


@lru_cache(maxsize=512)
def _preset(model_id: str) -> ModelChoice:
    preset = models.preset(model_id)
    if preset.library == "torchvision":
        task = Task(preset.task)
        _architecture_exists(preset.id)
        return ModelChoice(
            preset.id, preset.id, preset.name, preset.id, MappingProxyType({"name": preset.id}), task, ()
        )
    completed = describe_completion(preset.config)
    choice = _from_config(completed.config, preset.id, preset.name, completed.notes)
    try:
        task = Task(preset.task)
    except ValueError:
        task = choice.task
    return replace(choice, task=task)


def _architecture_exists(key: str) -> None:
    if key not in ARCHITECTURES:
        raise ScenarioError(
            "model",
            f"{shown(key)} has no memory model yet: choose another model or paste a config.json of one that has",
        )


def _from_config(config: Mapping[str, Any], model_id: str | None, name: str, notes: tuple[str, ...]) -> ModelChoice:
    key = str(config["model_type"])
    _architecture_exists(key)
    identity = model_id or json.dumps(config, sort_keys=True, default=str)
    return ModelChoice(identity, model_id, name, key, MappingProxyType(dict(config)), _default_task(key), notes)


_TASK_OF: Mapping[str, Task] = MappingProxyType(
    {
        model_type: task
        for task, types in {
            Task.MASKED_LM: (
                "bert roberta xlm-roberta camembert distilbert electra albert deberta deberta-v2 modernbert mpnet "
                "data2vec-text ernie"
            ),
            Task.SEQ2SEQ_LM: ("t5 mt5 umt5 bart mbart pegasus marian blenderbot blenderbot-small m2m_100 plbart"),
            Task.IMAGE_CLASSIFICATION: (
                "vit deit beit swin convnext convnextv2 siglip dinov2 vit_msn dinov2_with_registers data2vec-vision"
            ),
            Task.IMAGE_TEXT_CONTRASTIVE: "clip",
            Task.SPEECH_SEQ2SEQ: "whisper",
            Task.SPEECH_CTC: "wav2vec2 hubert unispeech unispeech-sat",
        }.items()
        for model_type in types.split()
    }
)


def _default_task(model_type: str) -> Task:
    """What a model type is for; diffusers' models are named by their class."""
    return _TASK_OF.get(model_type, Task.DIFFUSION if model_type[:1].isupper() else Task.CAUSAL_LM)


_CLASSIFIERS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "albert"})
"""Encoders that may also be trained to give the whole sequence a label."""
_CLASSIFIER_ENDINGS = ("ForSequenceClassification", "ForImageClassification")


def tasks_of(model: ModelChoice) -> list[Task]:
    """What a model may be trained for, its usual task first."""
    allowed = [model.task]
    if model.architecture in _CLASSIFIERS:
        allowed.append(Task.SEQUENCE_CLASSIFICATION)
    if model.task is Task.IMAGE_TEXT_CONTRASTIVE:
        allowed.append(Task.IMAGE_CLASSIFICATION)
    return allowed


def _for_task(given: Mapping[str, Any], model: ModelChoice) -> ModelChoice:
    """The model as it is trained: for the task given, else for the one that its configuration names."""
    allowed = tasks_of(model)
    classes = model.config.get("architectures")
    named = isinstance(classes, list) and any(str(c).endswith(_CLASSIFIER_ENDINGS) for c in classes)
    task = _choice(given, "task", Task, allowed[-1] if named else model.task)
    if task not in allowed:
        words = " or ".join(allowed)
        raise ScenarioError("task", f"{model.name} is trained for {words}; {task} is not modelled for it")
    return model if task is model.task else replace(model, task=task, key=f"{model.key} for {task}")


def _config_value(config: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _shape(given: Mapping[str, Any], model: ModelChoice, task: Task) -> tuple[Shape, dict[str, int]]:
    """Input sizes: the fields that the task has, with the preset's or the task's defaults."""
    preset = models.preset(model.id) if model.id else None
    config = model.config
    limited = limits(model.architecture, config)
    filled: dict[str, int] = {}

    def size(key: str, default: int | None, high: int) -> int:
        value, limit = given.get(key), limited.get(key)
        if value is None:
            usual = int(default or 1)
            filled[key] = usual if limit is None else limit.nearest(usual)
            return filled[key]
        filled[key] = whole(value, key, 1, high)
        refusal = limit.refusal(filled[key]) if limit is not None else None
        if refusal:
            raise ScenarioError(key, refusal)
        return filled[key]

    def from_preset(key: str) -> int | None:
        return getattr(preset, key, None) if preset else None

    if task in TEXT_TASKS or task is Task.SEQUENCE_CLASSIFICATION:
        longest = _config_value(config, "n_positions", "max_position_embeddings")
        default = from_preset("sequence_length") or min(DEFAULT_SEQUENCE, longest or DEFAULT_SEQUENCE)
        sequence = size("sequence_length", default, MAX_SEQUENCE)
        target = (
            size("target_length", from_preset("target_length") or sequence, MAX_SEQUENCE)
            if task is Task.SEQ2SEQ_LM
            else 0
        )
        return Shape(sequence_length=sequence, target_length=target), filled
    if task is Task.SPEECH_SEQ2SEQ:
        target = size("target_length", from_preset("target_length") or DEFAULT_TARGET, MAX_SEQUENCE)
        return Shape(
            target_length=target,
            audio_frames=size("audio_frames", from_preset("audio_frames") or DEFAULT_AUDIO_FRAMES, MAX_SEQUENCE),
        ), filled
    if task is Task.SPEECH_CTC:
        frames = size("audio_frames", from_preset("audio_frames") or DEFAULT_WAVEFORM_FRAMES, MAX_SEQUENCE)
        return Shape(audio_frames=frames), filled
    sized = config.get("vision_config", config)
    default_image = from_preset("image_size") or _config_value(sized, "image_size") or DEFAULT_IMAGE
    image = size("image_size", default_image, MAX_IMAGE)
    length = 0
    if task is Task.IMAGE_TEXT_CONTRASTIVE:
        longest = int(config["text_config"]["max_position_embeddings"])
        length = size("sequence_length", from_preset("sequence_length") or longest, MAX_SEQUENCE)
    elif task is Task.DIFFUSION and given.get("sequence_length") is not None:
        length = size("sequence_length", None, MAX_SEQUENCE)
    return Shape(image_size=image, sequence_length=length), filled


def _made_for(model: ModelChoice, shape: Shape) -> ModelChoice:
    """A vision transformer of torchvision with as many positions as the image has patches: it takes no other."""
    if model.architecture not in TORCHVISION_TRANSFORMERS or shape.image_size == TORCHVISION_IMAGE_SIZE:
        return model
    config = MappingProxyType({**model.config, "image_size": shape.image_size})
    return replace(model, config=config, key=f"{model.key} for {shape.image_size}")


def _gpu(value: object) -> tuple[GpuChoice, Any]:
    if value is None:
        value = "rtx-4090-24gb"
    if isinstance(value, str):
        card = gpus.gpu(value)
        return GpuChoice(card.id, card.name, card.visible_bytes, card.context_bytes, card), value
    if not isinstance(value, Mapping):
        raise ScenarioError("gpu", f'{shown(value)} is no GPU: give a preset\'s id or {{"memory_gib": 24}}')
    only_known(value, GPU_KEYS, "gpu")
    base = gpus.gpu(str(value["id"])) if value.get("id") else None
    if base is None and value.get("memory_gib") is None:
        raise ScenarioError("gpu", "memory_gib is missing: give the card's memory in GiB")
    memory = (
        base.visible_bytes
        if base is not None and value.get("memory_gib") is None
        else round(number(value["memory_gib"], "gpu.memory_gib", 0.01, 100_000) * GIB)
    )
    if value.get("overhead_gib") is None:
        overhead = base.context_bytes if base is not None else DEFAULT_CONTEXT_BYTES
    else:
        overhead = round(number(value["overhead_gib"], "gpu.overhead_gib", 0, 100_000) * GIB)
    if overhead >= memory:
        key, allowed = (
            ("memory_gib", f"give more than the {overhead / GIB:.4g} GiB that a process takes, or overhead_gib too")
            if value.get("overhead_gib") is None
            else ("overhead_gib", f"allowed is less than the card's {memory / GIB:.4g} GiB")
        )
        raise ScenarioError(f"gpu.{key}", f"{value[key]:g} GiB leave nothing for the training: {allowed}")
    name = base.name if base is not None else f"a GPU with {memory / GIB:.4g} GiB"
    return GpuChoice(base.id if base is not None else None, name, memory, overhead, base), dict(value)


DEFAULT_CONTEXT_BYTES = 400_000_000
"""What a CUDA context takes outside the allocator where the card is not known: the catalog's figure for CUDA cards."""


def _lora_targets(given: Mapping[str, Any]) -> str | tuple[str, ...]:
    value = given.get("lora_targets")
    if value is None or value == "all-linear":
        return "all-linear"
    if value == "attention":
        return "attention"
    if isinstance(value, list | tuple) and value and all(isinstance(v, str) and v for v in value):
        return tuple(value)
    raise ScenarioError(
        "lora_targets",
        f"{shown(value)} is not known: allowed are all-linear, attention, or a list of module names such as q_proj",
    )


def _precision(given: Mapping[str, Any], gpu: GpuChoice) -> Precision:
    """The precision asked for, where the card has it; else autocast in bf16, or in fp16 where the card has no bf16."""
    precision = _choice(given, "precision", Precision, Precision.AMP_BF16)
    refusal = gpus.precision_refusal(gpu.catalog, precision) if gpu.catalog is not None else None
    if refusal and given.get("precision") is not None:
        raise ScenarioError("precision", refusal)
    return Precision.AMP_FP16 if refusal else precision


def _attention(given: Mapping[str, Any], gpu: GpuChoice, precision: Precision) -> Attention:
    """The attention asked for, where the card and the precision have a kernel of it."""
    attention = _choice(given, "attention", Attention, Attention.SDPA)
    refusal = gpus.attention_refusal(gpu.catalog, attention, precision)
    if refusal:
        raise ScenarioError("attention", refusal)
    return attention


def _loss(given: Mapping[str, Any], task: Task, field_name: str = "loss") -> Loss:
    loss = _choice(given, "loss", Loss, Loss.STANDARD)
    if loss is Loss.FUSED and task not in TEXT_TASKS:
        raise ScenarioError(field_name, "fused is for language models' logits: this model has none, use standard")
    return loss


def _check_keys(given: Mapping[str, Any]) -> None:
    if not isinstance(given, Mapping):
        raise ScenarioError("scenario", "a scenario is a JSON object")
    only_known(given, KEYS)
    deep = next((key for key, value in given.items() if not _is_shallow(value, DEEPEST)), None)
    if deep is not None:
        raise ScenarioError(deep, f"lists and objects lie too deep in one another: allowed are {DEEPEST} levels")
    infinite = next((key for key, value in given.items() if not _finite(value)), None)
    if infinite is not None:
        raise ScenarioError(infinite, "NaN and Infinity are no numbers: give finite ones")
    if given.get("model") is None:
        raise ScenarioError("model", "missing: give a preset's id such as gpt2, or the content of a config.json")


def _is_shallow(value: object, levels: int) -> bool:
    """Whether no list or object of a JSON value lies in as many others as ``levels``."""
    if not isinstance(value, Mapping | list | tuple):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_is_shallow(part, levels - 1) for part in inner)


def _finite(value: object) -> bool:
    """Whether a JSON value holds neither NaN nor infinity."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_finite, value))


def _check_run(given: Mapping[str, Any]) -> None:
    """What only the time, cost and convergence of the whole run read."""
    for key, (low, high) in RUN_NUMBERS.items():
        if given.get(key) is not None:
            number(given[key], key, low, high)
    dataset = given.get("dataset")
    if dataset is not None and (not isinstance(dataset, str) or len(dataset) > LONGEST_NAME):
        raise ScenarioError("dataset", f"{shown(dataset)} is no data set's name")
    norms = given.get("gradient_norms")
    if norms is None:
        return
    if not isinstance(norms, Mapping):
        raise ScenarioError("gradient_norms", f"{shown(norms)} is no object with {', '.join(NORM_KEYS)}")
    only_known(norms, NORM_KEYS, "gradient_norms")
    for key in NORM_KEYS:
        number(norms.get(key), f"gradient_norms.{key}", *NORM_LIMITS)


def _allow(
    given: Mapping[str, Any], gpu: GpuChoice, task: Task, own: tuple[Precision, Attention]
) -> dict[str, list[str]]:
    """The values that the planner may choose from, by setting; one that is not named is the planner's to widen.

    ``own`` are the scenario's precision and attention, which stand where ``allow`` names no others.
    """
    value = given.get("allow")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ScenarioError("allow", f'{shown(value)} is no object such as {{"precision": ["bf16", "amp-bf16"]}}')
    allowed: dict[str, list[str]] = {}
    for name, words in value.items():
        if name not in PLANNED:
            raise ScenarioError("allow", f"{name!r} is not the planner's to choose: allowed are {', '.join(PLANNED)}")
        field_name = f"allow.{name}"
        if not isinstance(words, list | tuple) or not words:
            raise ScenarioError(field_name, f"{shown(words)} is no list of values: give at least one")
        known = tuple(PLANNED[name])
        wrong = [word for word in words if word not in known]
        if wrong:
            raise ScenarioError(field_name, f"{shown(wrong[0])} is not known: allowed are {', '.join(known)}")
        allowed[name] = list(words)
    for precision in allowed.get("precision", ()):
        refusal = gpus.precision_refusal(gpu.catalog, precision) if gpu.catalog is not None else None
        if refusal:
            raise ScenarioError("allow.precision", refusal)
    _allow_attention(allowed, gpu, own)
    for loss in allowed.get("loss", ()):
        _loss({"loss": loss}, task, "allow.loss")
    return allowed


def _allow_attention(allowed: Mapping[str, list[str]], gpu: GpuChoice, own: tuple[Precision, Attention]) -> None:
    """Refuse what may not stand together: the planner tries each attention with each precision."""
    precisions: Sequence[str] = allowed.get("precision") or [own[0]]
    for attention in allowed.get("attention") or [own[1]]:
        for precision in precisions:
            refusal = gpus.attention_refusal(gpu.catalog, attention, precision)
            if refusal:
                raise ScenarioError("allow.attention" if "attention" in allowed else "allow.precision", refusal)


def _interconnect(given: Mapping[str, Any]) -> Any:
    value = given.get("interconnect")
    if value is not None and not isinstance(value, str | Mapping):
        raise ScenarioError("interconnect", f'{shown(value)} is no link: give a name, or {{"node": .., "network": ..}}')
    if isinstance(value, Mapping):
        only_known(value, INTERCONNECT_KEYS, "interconnect")
    # One GPU is joined to none, but a link that is not known is wrong there too.
    if isinstance(value, Mapping):
        node = str(value.get("node") or UNKNOWN_CARD_LINK)
        read_fabric(completed(value, node))
    elif value is not None:
        read_fabric(value)
    return value


def _parallelism(given: Mapping[str, Any]) -> dict[str, Any]:
    parallelism = given.get("parallelism") or {}
    if not isinstance(parallelism, Mapping):
        raise ScenarioError("parallelism", f'{shown(parallelism)} is no object such as {{"strategy": "ddp"}}')
    return dict(parallelism)


def _misfits(layout: Layout, model: ModelChoice, shape: Shape) -> Iterator[tuple[str, str]]:
    """Keys of ``parallelism`` that the task or another key rules out, and what is allowed instead.

    Heads, layers and experts are the replay's to tell: `calc.model_dimensions.refuse_undividable`.
    """
    is_text = model.task in TEXT_TASKS or model.task is Task.SEQUENCE_CLASSIFICATION
    if layout.context > 1 and not is_text:
        yield "context", f"{model.name} is no language model, whose tokens could be divided: allowed is 1"
    if is_text and layout.context > shape.sequence_length:
        tokens = shape.sequence_length
        yield "context", f"{layout.context:,} parts of {tokens:,} tokens: allowed is 1 to {tokens:,}"
    offered = offloads(layout.strategy, layout.gpus, alone=layout.data == layout.gpus)
    if layout.cpu_offload not in offered:
        yield "cpu_offload", _offload_refusal(layout, offered)


def _offload_refusal(layout: Layout, offered: Sequence[str]) -> str:
    allowed = f"allowed here: {', '.join(offered)}"
    if layout.data != layout.gpus:
        return f"{layout.cpu_offload} goes with data parallelism alone, without tensor, pipeline and context: {allowed}"
    return (
        f"{layout.cpu_offload} does not go with {layout.strategy} on {layout.gpus:,} GPUs: {allowed}; optimizer needs "
        "its state divided (zero1, zero2, zero3 or fsdp), all the weights too (zero3 or fsdp)"
    )


EXPERTS_NOT_QUANTIZED = (
    "QLoRA leaves the experts' weights as they are: transformers 5 holds the experts of a layer in one parameter, and "
    "bitsandbytes makes 4 bit of linear layers alone (its issue 1849)."
)


def _noted(model: ModelChoice, method: Method) -> ModelChoice:
    """The model with what there is to say of it under the method."""
    if method is not Method.QLORA or _config_value(model.config, *EXPERT_KEYS) is None:
        return model
    return replace(model, notes=(*model.notes, EXPERTS_NOT_QUANTIZED))


def _usual_nodes(layout: Layout) -> int:
    """The fewest usual servers, all with as many GPUs, whose tensor-parallel groups stay inside one where they can."""
    sizes = [size for size in range(1, USUAL_GPUS_PER_NODE + 1) if layout.gpus % size == 0]
    whole_groups = [size for size in sizes if size % layout.tensor == 0]
    return layout.gpus // max(whole_groups or sizes)


def parse(given: Mapping[str, Any]) -> Scenario:
    """Check a scenario and fill in its defaults.

    Raises
    ------
    ScenarioError
        The first field that is wrong, what is wrong with it, and what is allowed.
    """
    _check_keys(given)
    model = _model(given["model"])
    model = _for_task(given, model)
    task = model.task
    shape, sizes = _shape(given, model, task)
    model = _made_for(model, shape)
    gpu, gpu_text = _gpu(given.get("gpu"))
    gpu_count = _optional_whole(given, "gpus", 1, MAX_GPUS) or 1
    parallelism = _parallelism(given)
    layout = read_layout(parallelism, gpu_count)
    parallelism |= {degree: getattr(layout, degree) for degree in DEGREES if degree in parallelism}
    misfit = next(_misfits(layout, model, shape), None)
    if misfit is not None:
        raise ScenarioError(f"parallelism.{misfit[0]}", misfit[1])
    _check_run(given)
    if given.get("objective") is not None:
        _choice(given, "objective", Objective, Objective.TIME)
    precision = _precision(given, gpu)
    attention = _attention(given, gpu, precision)
    _allow(given, gpu, task, (precision, attention))
    method = _choice(given, "method", Method, Method.FULL)
    scenario = Scenario(
        model=_noted(model, method),
        shape=shape,
        precision=precision,
        optimizer=_choice(given, "optimizer", Optimizer, Optimizer.ADAMW),
        checkpointing=_choice(given, "checkpointing", Checkpointing, Checkpointing.NONE),
        attention=attention,
        loss=_loss(given, task),
        method=method,
        lora_rank=_optional_whole(given, "lora_rank", 1, 65_536) or DEFAULT_LORA_RANK,
        lora_targets=_lora_targets(given),
        zero_grad=_choice(given, "zero_grad", ZeroGrad, ZeroGrad.FREE),
        gpu=gpu,
        gpus=gpu_count,
        nodes=_optional_whole(given, "nodes", 1, MAX_GPUS) or _usual_nodes(layout),
        interconnect=_interconnect(given),
        parallelism=parallelism,
        layout=layout,
        global_batch=_optional_whole(given, "global_batch", 1, MAX_BATCH),
        micro_batch=_optional_whole(given, "micro_batch", 1, MAX_BATCH),
        filled=MappingProxyType({}),
        calibration=read_calibration(given.get("calibration")),
    )
    return replace(scenario, filled=MappingProxyType(_filled(given, scenario, sizes, gpu_text)))


def _filled(given: Mapping[str, Any], scenario: Scenario, sizes: Mapping[str, int], gpu_text: object) -> dict[str, Any]:
    """The scenario as JSON, defaults included."""
    filled: dict[str, Any] = {
        "model": given["model"],
        "task": str(scenario.model.task),
        **sizes,
        "precision": str(scenario.precision),
        "optimizer": str(scenario.optimizer),
        "checkpointing": str(scenario.checkpointing),
        "attention": str(scenario.attention),
        "loss": str(scenario.loss),
        "method": str(scenario.method),
    }
    if scenario.method is not Method.FULL:
        targets = scenario.lora_targets
        filled["lora_rank"] = scenario.lora_rank
        filled["lora_targets"] = list(targets) if isinstance(targets, tuple) else targets
    filled |= {"zero_grad": str(scenario.zero_grad), "gpu": gpu_text, "gpus": scenario.gpus}
    if scenario.gpus > 1:
        filled["nodes"] = scenario.nodes
    if scenario.gpus > 1 or scenario.parallelism:
        filled["parallelism"] = dict(scenario.parallelism)
    batches = {"global_batch": scenario.global_batch, "micro_batch": scenario.micro_batch}
    filled |= {key: batch for key, batch in batches.items() if batch is not None}
    as_given = (
        "interconnect",
        "dataset",
        *RUN_NUMBERS,
        "gradient_norms",
        "calibration",
        "objective",
        "allow",
    )
    return filled | {key: given[key] for key in as_given if given.get(key) is not None}


RUN_NUMBERS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "epochs": (1e-6, 1e9),
        "tokens": (1, 1e18),
        "dataset_samples": (1, 1e15),
        "price_per_gpu_hour": (0, 1e6),
        "known_batch": (1, 1e12),
        "known_learning_rate": (1e-12, 1e3),
        "deadline_hours": (0.01, 1e7),
        "budget_dollars": (0.01, 1e12),
    }
)
"""Numbers that only the run's time, cost, convergence and plan read, with their limits."""
