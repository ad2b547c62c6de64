"""What has to be on for an exported batch to fit, and that a file does not set itself.

The batch was computed for the scenario's settings, so a file that leaves one out names it: at its head, or beside it
where its format has no comments.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from calc.transformers_limits import (
    WITHOUT_ATTENTION,
    WITHOUT_BLOCKS,
    WITHOUT_CHECKPOINTING,
    WITHOUT_FLASH_ATTENTION,
    WITHOUT_SDPA,
)
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from calc.run_settings import RunSettings

LIGER_MODEL_TYPES = frozenset(
    "deepseek_v2 deepseek_v3 exaone4 falcon_h1 gemma gemma2 gemma3 gemma3_text glm4 gpt_oss hunyuan_v1_dense "
    "hunyuan_v1_moe llama llama4 llama4_text ministral mistral mixtral nemotron olmo2 olmo3 phi3 qwen2 qwen3 qwen3_moe "
    "qwen3_next smollm3".split()
)
"""Whose loss ``use_liger_kernel`` fuses; for others it changes nothing, and Trainer does not stop for that.

liger_kernel/transformers/monkey_patch.py of 0.8.5: MODEL_TYPE_TO_APPLY_LIGER_FN, where fused_linear_cross_entropy is
True by default.
"""


class Setting(StrEnum):
    """What a file may set, or leave to its reader; the order is the one in which they are named."""

    SIZES = "sizes"
    WEIGHTS = "weights"
    ATTENTION = "attention"
    ADAPTERS = "adapters"
    LOSS = "loss"
    CHECKPOINTING = "checkpointing"
    PRECISION = "precision"
    OPTIMIZER = "optimizer"
    CLIPPING = "clipping"
    PARALLELISM = "parallelism"
    UNITS = "units"
    OFFLOAD = "offload"


MODEL = frozenset({Setting.WEIGHTS, Setting.ATTENTION, Setting.ADAPTERS})
"""What is settled where the model is loaded."""

MAX_NORM = 1.0
"""To which every file clips the norm of the gradients: ``max_grad_norm`` of TrainingArguments is 1.0 by default.

So is its ``weight_decay`` 0.0, where AdamW of torch and bitsandbytes would take 0.01 (transformers/training_args.py,
torch/optim/adamw.py, bitsandbytes/optim/adamw.py): the files of one scenario train alike.
"""

TORCH_OPTIMIZERS = {
    "sgd": ("torch", "torch.optim.SGD(parameters, lr={lr}, weight_decay=0.0)"),
    "sgd-momentum": ("torch", "torch.optim.SGD(parameters, lr={lr}, weight_decay=0.0, momentum=0.9)"),
    "adam": ("torch", "torch.optim.Adam(parameters, lr={lr}, weight_decay=0.0{eps})"),
    "adamw": ("torch", "torch.optim.AdamW(parameters, lr={lr}, weight_decay=0.0{eps})"),
    "adamw-fused": ("torch", "torch.optim.AdamW(parameters, lr={lr}, weight_decay=0.0, fused=True{eps})"),
    "adafactor": ("torch", "torch.optim.Adafactor(parameters, lr={lr}, weight_decay=0.0)"),
    "adagrad": ("torch", "torch.optim.Adagrad(parameters, lr={lr}, weight_decay=0.0{eps})"),
    "rmsprop": ("torch", "torch.optim.RMSprop(parameters, lr={lr}, weight_decay=0.0{eps})"),
    "adamw-8bit": ("bitsandbytes", "bitsandbytes.optim.AdamW8bit(parameters, lr={lr}, weight_decay=0.0)"),
    "lion": ("bitsandbytes", "bitsandbytes.optim.Lion(parameters, lr={lr}, weight_decay=0.0)"),
    "lamb": ("bitsandbytes", "bitsandbytes.optim.LAMB(parameters, lr={lr}, weight_decay=0.0)"),
    "lars": ("bitsandbytes", "bitsandbytes.optim.LARS(parameters, lr={lr}, weight_decay=0.0, momentum=0.9)"),
}
"""Optimizer id: the package and the call, for a loop of one's own."""

# Under SEQ_CLS the new classifier trains, too; without it, it would stay as it was initialized (peft/peft_model.py,
# PeftModelForSequenceClassification). Other tasks have no model class there, or one that asks for tokens.
_PEFT_TASKS = {"causal-lm": "CAUSAL_LM", "seq2seq-lm": "SEQ_2_SEQ_LM", "sequence-classification": "SEQ_CLS"}

_WITH_EPSILON = frozenset({"adam", "adamw", "adamw-fused", "adagrad", "lamb", "rmsprop"})
"""Lamb as DeepSpeed makes it; GaLore's own 1e-6 is not 0 in float16, and Trainer hands it no other."""

_KERNELS = {"eager": "plain matrix products", "sdpa": "SDPA", "flash-attention-2": "FlashAttention-2"}
_OFFLOADED = {"optimizer": "the optimizer state", "all": "the optimizer state and the weights"}


def number(value: float) -> str:
    """Write a rate as Python reads it."""
    return f"{value:.6g}"


def lora_arguments(run: RunSettings) -> str:
    """Write the arguments of peft's ``LoraConfig``."""
    targets = run.lora_targets if isinstance(run.lora_targets, str) else list(run.lora_targets)
    shown = repr(targets) if targets else "[...]"
    arguments = f"r={run.lora_rank}, lora_alpha={2 * run.lora_rank}, target_modules={shown}"
    task = _PEFT_TASKS.get(run.task, "") if run.library == "transformers" else ""
    return f'{arguments}, task_type="{task}"' if task else arguments


def quantization_arguments(run: RunSettings) -> str:
    """Write the arguments of ``BitsAndBytesConfig``: NF4, double quantization, products in the scenario's type.

    Without ``bnb_4bit_compute_dtype`` the products are computed in torch.float32
    (transformers/utils/quantization_config.py).

    Where weights are sharded their bits are packed in a float type instead of uint8, which FSDP does not shard
    (bitsandbytes, docs/source/fsdp_qlora.md): in the type of the products, since mixed precision gathers weights in
    that type and a cast would spoil the bits.
    """
    arguments = (
        'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
        f'bnb_4bit_compute_dtype="{run.compute_dtype}"'
    )
    return f'{arguments}, bnb_4bit_quant_storage="{run.compute_dtype}"' if run.zero_stage == 3 else arguments


def attention_refused(run: RunSettings) -> bool:
    """Whether transformers raises where this kernel is asked for."""
    without = {"sdpa": WITHOUT_SDPA, "flash-attention-2": WITHOUT_FLASH_ATTENTION}.get(run.attention, frozenset())
    return run.library == "transformers" and run.architecture in without


def attention_argument(run: RunSettings) -> str:
    """Write the keyword of ``from_pretrained`` that chooses the attention kernel."""
    return f'attn_implementation="{run.attention.replace("-", "_")}"'


def _sizes(run: RunSettings) -> str:
    sizes = {"token": run.sequence_length, "target token": run.target_length, "audio frame": run.audio_frames}
    said = [counted(size, noun) for noun, size in sizes.items() if size]
    if run.image_size:
        said.append(f"{run.image_size:,} x {run.image_size:,} pixels")
    return f"samples of up to {', '.join(said)}" if said else ""


def _weights(run: RunSettings) -> str:
    if run.library == "torchvision" and run.weights_dtype == "float32":  # As it makes them.
        return ""
    loaded_by = {"transformers": "dtype", "diffusers": "torch_dtype"}.get(run.library)
    how = f" ({loaded_by} of from_pretrained)" if loaded_by else ""
    return f"weights in {run.weights_dtype}{how}"


def _attention(run: RunSettings) -> str:
    if run.library == "torchvision":  # Its models choose the kernel themselves.
        return ""
    if run.library == "transformers" and run.architecture in WITHOUT_ATTENTION:
        return ""
    if attention_refused(run):
        taken = _KERNELS["eager" if run.architecture in WITHOUT_SDPA else "sdpa"]
        said = f"attention kernel: {_KERNELS[run.attention]}, which transformers refuses for {run.architecture}"
        return f"{said}: it takes {taken}, with which this batch may not fit"
    how = f", {attention_argument(run)}" if run.library == "transformers" else ""
    return f"attention kernel: {_KERNELS[run.attention]}{how}"


def _adapters(run: RunSettings) -> str:
    if not run.adapts:
        return ""
    quantized = f"QLoRA: BitsAndBytesConfig({quantization_arguments(run)}) and " if run.method == "qlora" else "LoRA: "
    unknown = "" if run.lora_targets else "; the names of the adapted layers are not known here"
    return f"{quantized}peft.LoraConfig({lora_arguments(run)}){unknown}"


def _loss(run: RunSettings) -> str:
    if run.loss != "fused":
        return ""
    if run.architecture in LIGER_MODEL_TYPES:
        return "fused loss: liger_kernel.transformers.AutoLigerKernelForCausalLM in place of AutoModelForCausalLM"
    model = f" {run.architecture}" if run.architecture else " your model"
    return (
        "fused loss, which never holds all logits: liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss on the "
        f"last hidden states and the weight of the output layer (Liger Kernel does not patch{model} by itself)"
    )


def checkpoints_itself(run: RunSettings) -> bool:
    """Whether the model has what Trainer calls for checkpointing: the library's own models, but for a few."""
    return run.library == "transformers" and run.architecture not in WITHOUT_CHECKPOINTING


def _checkpointing(run: RunSettings) -> str:
    if run.checkpointing == "none":
        return ""
    if run.checkpointing == "selective":
        if run.attention == "eager":
            return "selective activation checkpointing: torch.utils.checkpoint around the attention core of each block"
        return (
            "selective activation checkpointing: torch.utils.checkpoint.create_selective_checkpoint_contexts around "
            "each block, keeping every second matrix product and the attention"
        )
    if run.library == "transformers" and not checkpoints_itself(run):
        around = f"torch.utils.checkpoint around each, as transformers has none for {run.architecture}"
        return f"activation checkpointing of every block: {around}"
    # Reentrant, the default before transformers 5, it gives adapters over a frozen embedding no gradients.
    how = {
        "transformers": 'model.gradient_checkpointing_enable({"use_reentrant": False})',
        "diffusers": "model.enable_gradient_checkpointing()",
    }.get(run.library, "torch.utils.checkpoint around each")
    return f"activation checkpointing of every block: {how}"


def _precision(run: RunSettings) -> str:
    return {
        "fp32": "precision: no autocast, no TF32",
        "tf32": 'precision: torch.set_float32_matmul_precision("high"), no autocast',
        "bf16-master": "precision: no autocast; the optimizer updates an fp32 copy of the bfloat16 weights",
        "fp8": "precision: linear layers of Transformer Engine under te.fp8_autocast(), no fp32 copy of the weights",
    }.get(
        run.precision,
        f"precision: torch.autocast in {run.compute_dtype}"
        if run.autocast
        else f"precision: {run.compute_dtype} throughout, no autocast",
    )


def epsilon(run: RunSettings) -> float | None:
    """Return what a file has to set as the optimizer's epsilon, where the library's would be 0.

    torch and DeepSpeed keep the state in the type of the weights, and their 1e-8 is below the least that
    float16 holds, 6e-8: an element without gradient becomes 0 / 0. 1e-4 is above its least normal number, 6.1e-5
    (torch.finfo(torch.float16)). bitsandbytes computes in float32.
    """
    return 1e-4 if run.precision == "fp16" and not run.adapts and run.optimizer in _WITH_EPSILON else None


def optimizer_call(call: str, run: RunSettings) -> str:
    """Write the call that makes the optimizer."""
    eps = epsilon(run)
    return call.format(lr=number(run.rate), eps="" if eps is None else f", eps={eps}")


def optimizer_words(call: str, run: RunSettings) -> str:
    """Name the optimizer by the call that makes it."""
    return f"optimizer: {optimizer_call(call, run)}"


def _optimizer(run: RunSettings) -> str:
    _, call = TORCH_OPTIMIZERS.get(run.optimizer, ("", run.optimizer))
    return optimizer_words(call, run)


def _clipping(run: RunSettings) -> str:
    unscaled = " after scaler.unscale_(optimizer)" if run.precision == "amp-fp16" else ""
    return clipping_words(f"torch.nn.utils.clip_grad_norm_(parameters, {MAX_NORM}){unscaled}")


def clipping_words(how: str) -> str:
    """Say how the gradients are clipped, and where the norm comes from."""
    return f"gradients clipped to a norm of {MAX_NORM}, as TrainingArguments do by default: {how}"


def _parallelism(run: RunSettings) -> str:
    degrees = {"tensor": run.tensor, "pipeline": run.pipeline, "context": run.context, "expert": run.expert}
    ways = [f"{way} {degree}" for way, degree in degrees.items() if degree > 1]
    if run.gpus > 1 and run.strategy != "ddp":
        ways.insert(0, {"fsdp": "FSDP"}.get(run.strategy, f"ZeRO stage {run.zero_stage}"))
    return f"parallelism: {', '.join(ways)}" if ways else ""


def names_blocks(run: RunSettings) -> bool:
    """Whether the model's ``_no_split_modules`` name its blocks, from which FSDP's units are taken."""
    return run.library == "transformers" and run.architecture not in WITHOUT_BLOCKS


def _units(run: RunSettings) -> str:
    if run.strategy != "fsdp" or run.gpus == 1:
        return ""
    named = "model._no_split_modules" if names_blocks(run) else "the classes of the model's blocks"
    unnamed = f" (transformers names none for {run.architecture})" if run.architecture in WITHOUT_BLOCKS else ""
    return (
        f"FSDP units of one block each: an auto-wrap policy with {named}{unnamed}, or all weights are gathered at once"
    )


def _offload(run: RunSettings) -> str:
    return "" if run.cpu_offload == "none" else f"offload to the CPU: {_OFFLOADED[run.cpu_offload]}"


_WORDS = {
    Setting.SIZES: _sizes,
    Setting.WEIGHTS: _weights,
    Setting.ATTENTION: _attention,
    Setting.ADAPTERS: _adapters,
    Setting.LOSS: _loss,
    Setting.CHECKPOINTING: _checkpointing,
    Setting.PRECISION: _precision,
    Setting.OPTIMIZER: _optimizer,
    Setting.CLIPPING: _clipping,
    Setting.PARALLELISM: _parallelism,
    Setting.UNITS: _units,
    Setting.OFFLOAD: _offload,
}


_LEAD = "Before: the batch fits with these settings, which this file does not make:"


def left_out(run: RunSettings, sets: Collection[Setting], own: Mapping[Setting, str] | None = None) -> list[str]:
    """Name each of the scenario's settings that a file which ``sets`` some leaves to its reader, in ``own`` words."""
    words = {setting: say(run) for setting, say in _WORDS.items()}
    words.update(own or {})
    return [said for setting, said in words.items() if setting not in sets and said]


def before(run: RunSettings, sets: Collection[Setting], own: Mapping[Setting, str] | None = None) -> list[str]:
    """Write the head of a file that ``sets`` some of the settings: comment lines, none where it leaves nothing out.

    ``own`` are the file's words for what is said otherwise there than elsewhere.
    """
    missing = left_out(run, sets, own)
    return [f"# {_LEAD}", *(f"#   {words}" for words in missing)] if missing else []


def note(run: RunSettings, sets: Collection[Setting]) -> str:
    """Say the same in a sentence, for a format without comments; empty where nothing is left out."""
    missing = left_out(run, sets)
    return f"{_LEAD} {'; '.join(missing)}." if missing else ""
