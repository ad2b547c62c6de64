"""The plan as files that run: Hugging Face, Accelerate, DeepSpeed, FSDP, Lightning, torchrun, a loop, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from calc.accumulation import way_of
from calc.errors import ScenarioError
from calc.preconditions import (
    LIGER_MODEL_TYPES,
    MAX_NORM,
    MODEL,
    TORCH_OPTIMIZERS,
    Setting,
    attention_argument,
    attention_refused,
    before,
    checkpoints_itself,
    clipping_words,
    epsilon,
    lora_arguments,
    names_blocks,
    note,
    optimizer_call,
    optimizer_words,
    quantization_arguments,
)
from calc.run_settings import RunSettings, settings
from calc.scaling.layout import read_layout
from calc.summary import gib
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEADER = "Made by Batch Size Optimizer: check the learning rate and the data, then run."
_PLACEHOLDER = "The learning rate is a placeholder to tune: no rate that is known to work was given."

# optimizer id: Hugging Face's ``optim``, and the class for a loop of one's own.
_HUGGING_FACE_OPTIMIZERS = {
    "sgd": "sgd",
    "adam": "adamw_torch",
    "adamw": "adamw_torch",
    "adamw-fused": "adamw_torch_fused",
    "adamw-8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop",
    "lion": "lion_32bit",
    "galore-adamw": "galore_adamw",
}
_START = "torch.distributed.init_process_group and torch.cuda.set_device with LOCAL_RANK of the environment"
# Without torchrun's environment DeepSpeed looks for MPI's (deepspeed/comm/comm.py, mpi_discovery).
_ONE_PROCESS = "start with torchrun, as run.sh does, or deepspeed: under plain python DeepSpeed asks for mpi4py"
_WHOLE_BLOCKS = "computes whole blocks again, which takes less memory than selective checkpointing and more time."
_DEEPSPEED_OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "adamw-fused": "AdamW",
    "lamb": "Lamb",
    "lion": "Lion",
    "adagrad": "Adagrad",
    "muon": "Muon",
}
_OFFLOAD_STAGES = {"none": 0, "optimizer": 1, "all": 3}
"""The ZeRO stage from which DeepSpeed offloads: the optimizer's state, the weights too."""
_MODEL_CLASSES = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "speech-ctc": "AutoModelForCTC",
    "image-classification": "AutoModelForImageClassification",
}
# The batch was computed without the auxiliary classifiers, which train by default; torchvision warns unless told how to
# initialize the weights (torchvision/models/googlenet.py, inception.py).
_TORCHVISION_KEYWORDS = dict.fromkeys(("googlenet", "inception_v3"), ", aux_logits=False, init_weights=True")


def _require_data_parallel(run: RunSettings, what: str) -> None:
    if not run.data_parallel_only:
        raise ScenarioError(
            "parallelism",
            f"{what} divides data only: tensor, pipeline, context and expert parallelism need Megatron-LM, NeMo or "
            "torchtitan",
        )


def _lookup(table: Mapping[str, Any], run: RunSettings, what: str) -> Any:
    if run.optimizer not in table:
        raise ScenarioError("optimizer", f"{what} has no {run.optimizer}: use one of {', '.join(table)}")
    return table[run.optimizer]


@dataclass(frozen=True, slots=True)
class _Code:
    """An expression for `_call` to write as it is."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    lines = [f"    {key}={value!r}," for key, value in arguments.items()]
    return "\n".join([f"{name}(", *lines, ")"])


def _update(run: RunSettings) -> str:
    return f"{counted(run.global_batch, 'sample', said=str(run.global_batch))} per update"


def _placeholder(run: RunSettings) -> list[str]:
    return [_PLACEHOLDER] if run.learning_rate is None else []


def _plan(run: RunSettings) -> str:
    """Say the answer, for a file that has no place for it."""
    holder = "GPU" if run.data_parallel_only else "replica"
    steps = counted(run.accumulation_steps, "accumulation step")
    return f"Micro-batch {run.micro_batch} per {holder}, {steps}: {_update(run)} on {counted(run.gpus, 'GPU')}."


def _comments(*said: str) -> list[str]:
    return [f"# {words}" for words in said]


def _on_fsdp(run: RunSettings) -> bool:
    """Whether a launcher hands this run to FSDP: on one GPU there is nothing to shard, and no process group."""
    return run.strategy == "fsdp" and run.gpus > 1


def _on_deepspeed(run: RunSettings) -> bool:
    """Whether a launcher hands this run to DeepSpeed: to divide it, or for its fp32 copies of 16-bit weights."""
    if run.strategy in {"zero1", "zero2", "zero3"}:
        return True
    return run.precision == "bf16-master" and not _on_fsdp(run)


def _sixteen_bit_throughout(run: RunSettings) -> bool:
    """Whether weights train in 16 bit and nothing holds fp32 copies of them; adapters are in fp32 anyway."""
    return run.precision in {"bf16", "fp16", "fp8"} and not run.adapts


def _as_deepspeed_trains(run: RunSettings) -> list[str]:
    """Say what DeepSpeed does otherwise than the batch was computed for.

    Its bf16_optimizer_states has no counterpart for fp16 (deepspeed/runtime/precision_config.py).
    """
    if run.autocast:
        said = f"DeepSpeed trains {run.compute_dtype} weights beside fp32 copies instead of autocast"
        computed = "\u201cbf16 with fp32 master weights\u201d computes the batch for that"
        return [f"{said}; the precision {computed}."]
    if run.precision == "fp16" and _sixteen_bit_throughout(run):
        said = "DeepSpeed may hold the optimizer state of fp16 weights in fp32, which this batch leaves no room for"
        return [f"{said}; bf16 has no such copies."]
    return []


def _as_fsdp_trains(run: RunSettings) -> tuple[RunSettings, list[str]]:
    """Return the run as its launcher makes it, and what FSDP changes where it is on."""
    return _sharded(run) if _on_fsdp(run) else (run, [])


def _sharded(run: RunSettings) -> tuple[RunSettings, list[str]]:
    """Return the run as FSDP makes it, and what that changes: where it has fp32 weights, the shards are these.

    Adapters are in fp32 anyway, beside 16-bit weights.
    """
    if run.precision != "bf16-master" or run.adapts:
        return run, []
    said = "FSDP shards fp32 weights and gathers them in bfloat16, instead of fp32 copies beside bfloat16 weights"
    return replace(run, precision="amp-bf16"), [f"{said}; the precision \u201cbf16 autocast\u201d computes for that."]


def _fp8_from_accelerate(run: RunSettings) -> bool:
    """Whether accelerate.yaml says fp8: beside DeepSpeed's file it can say no precision."""
    return run.precision == "fp8" and not _on_deepspeed(run)


def _fp8_upcast(run: RunSettings) -> list[str]:
    """Say what Accelerate does with any mixed precision (accelerate/utils/fsdp_utils.py, fsdp2_prepare_model)."""
    if run.precision != "fp8" or not _on_fsdp(run) or run.adapts:
        return []
    return ["Accelerate's FSDP turns trained weights to fp32 under fp8, which this batch leaves no room for."]


def _deepspeed_stage(run: RunSettings) -> int:
    """Choose ZeRO's stage: on one GPU, where it divides nothing, the one that offload and 16-bit states take.

    Without fp32 copies DeepSpeed takes stages 1 to 3 alone (deepspeed/runtime/config.py, _do_error_check).
    """
    least = 1 if _sixteen_bit_throughout(run) else 0
    if run.gpus == 1:
        least = max(least, _OFFLOAD_STAGES[run.cpu_offload])
    return max(least, run.zero_stage)


def _offloads_on_deepspeed(run: RunSettings) -> bool:
    """Whether DeepSpeed offloads all that is asked for."""
    return _deepspeed_stage(run) >= _OFFLOAD_STAGES[run.cpu_offload]


def _model_lines(run: RunSettings) -> list[str]:
    """Lines that load a model with the scenario's attention, dtype and adapters, as far as its library has them."""
    name = run.model_name or "the-model"
    if run.library == "torchvision":
        return [
            "import torchvision",
            f'model = torchvision.models.get_model("{name}"{_TORCHVISION_KEYWORDS.get(name, "")})',
        ]
    loader = _MODEL_CLASSES.get(run.task, "AutoModel")
    keywords = [f'dtype="{run.weights_dtype}"']
    if run.library == "diffusers":
        loader = run.architecture
        folder = "unet" if loader.startswith("UNet") else "transformer"
        lines = ["import torch", f"from diffusers import {loader}"]
        keywords = [f'subfolder="{folder}"', f"torch_dtype=torch.{run.weights_dtype}"]
    else:
        lines = [f"from transformers import {loader}"]
        if not attention_refused(run):
            keywords.insert(0, attention_argument(run))
    if run.method == "qlora":
        lines += [
            f"from {run.library} import BitsAndBytesConfig",
            f"four_bit = BitsAndBytesConfig({quantization_arguments(run)})",
        ]
        keywords.append("quantization_config=four_bit")
        if run.gpus > 1:
            # TrainingArguments, which choose the process's GPU, come later: until then it is the first for all
            # (transformers/quantizers/quantizer_bnb_4bit.py, update_device_map).
            lines.insert(0, "import os")
            keywords.append('device_map={"": int(os.environ["LOCAL_RANK"])}')
    lines.append(f'model = {loader}.from_pretrained("{name}", {", ".join(keywords)})')
    if run.adapts and run.lora_targets:
        lines += [
            "from peft import LoraConfig, get_peft_model",
            f"model = get_peft_model(model, LoraConfig({lora_arguments(run)}))",
        ]
    return lines


def _set_by_model_lines(run: RunSettings) -> frozenset[Setting]:
    """What `_model_lines` settles."""
    missing: set[Setting] = set()
    if run.library == "torchvision":
        missing |= MODEL
    if run.library == "diffusers" or attention_refused(run):
        missing.add(Setting.ATTENTION)
    if run.adapts and not run.lora_targets:
        missing.add(Setting.ADAPTERS)
    return MODEL - missing


def _set_by_trainer(run: RunSettings) -> set[Setting]:
    """What ``TrainingArguments`` settle, with the lines that load the model."""
    sets = {Setting.OPTIMIZER, Setting.CLIPPING, Setting.PARALLELISM, *_set_by_model_lines(run)}
    if run.precision != "fp8" or _fp8_from_accelerate(run):
        sets.add(Setting.PRECISION)
    if checkpoints_itself(run) or _fsdp_checkpoints(run):
        sets.add(Setting.CHECKPOINTING)
    if names_blocks(run):
        sets.add(Setting.UNITS)  # Accelerate takes them from model._no_split_modules.
    if run.architecture in LIGER_MODEL_TYPES:
        sets.add(Setting.LOSS)
    if run.cpu_offload == "all" if _on_fsdp(run) else _on_deepspeed(run) and _offloads_on_deepspeed(run):
        sets.add(Setting.OFFLOAD)
    return sets


def _fsdp_checkpoints(run: RunSettings) -> bool:
    """Whether Accelerate's FSDP does the checkpointing, for the units that it finds.

    Trainer refuses its own beside FSDP's, so all files of one run leave it to the same (transformers/trainer.py,
    create_accelerator_and_postprocess: "can't both be set to True").
    """
    return _on_fsdp(run) and run.checkpointing != "none" and names_blocks(run)


def _trainer_sharding(run: RunSettings) -> dict[str, Any]:
    if _on_fsdp(run):
        offload = " offload" if run.cpu_offload == "all" else ""
        config = {"fsdp_version": 2} | ({"activation_checkpointing": True} if _fsdp_checkpoints(run) else {})
        return {"fsdp": "full_shard auto_wrap" + offload, "fsdp_config": config}
    if not _on_deepspeed(run):
        return {}
    _lookup(_DEEPSPEED_OPTIMIZERS, run, "DeepSpeed")
    # Trainer refuses a DeepSpeed file that says another type than it.
    types = {"bfloat16": {"bf16": True}, "float16": {"fp16": True}}
    return {"deepspeed": "deepspeed.json", **types.get(run.weights_dtype, {})}


def _trainer_settings(run: RunSettings) -> dict[str, Any]:
    """Return what the scenario asks ``TrainingArguments`` for, beside the plan and the optimizer."""
    arguments: dict[str, Any] = {}
    if run.precision == "tf32":
        arguments["tf32"] = True
    # With fp8 it would overrule Accelerate's mixed_precision (TrainingArguments.__post_init__).
    if run.precision in {"amp-bf16", "bf16-master"}:
        arguments["bf16"] = True
    if run.precision == "amp-fp16":
        arguments["fp16"] = True
    if run.checkpointing != "none" and checkpoints_itself(run) and not _fsdp_checkpoints(run):
        arguments["gradient_checkpointing"] = True
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if run.loss == "fused" and run.architecture in LIGER_MODEL_TYPES:
        arguments["use_liger_kernel"] = True
    return arguments | _trainer_sharding(run)


def _trainer_start(run: RunSettings) -> str:
    """Say how to start it, where ``python`` is not enough."""
    if run.gpus > 1:
        return ": start one process on each, as run.sh does"
    return f": {_ONE_PROCESS}" if _on_deepspeed(run) else ""


def _trainer_head(run: RunSettings) -> list[str]:
    """Say what ``TrainingArguments`` has no place for."""
    said = [HEADER, f"{_update(run)} on {counted(run.gpus, 'GPU')}{_trainer_start(run)}.", *_placeholder(run)]
    if _fp8_from_accelerate(run):
        said.append("fp8 is switched on by Accelerate: start with accelerate launch --config_file accelerate.yaml.")
    if run.checkpointing == "selective" and (checkpoints_itself(run) or _fsdp_checkpoints(run)):
        named = "activation_checkpointing" if _fsdp_checkpoints(run) else "gradient_checkpointing"
        said.append(f"{named} {_WHOLE_BLOCKS}")
    if _on_deepspeed(run):
        said += _as_deepspeed_trains(run)
    return said


def _trainer_epsilon(run: RunSettings) -> dict[str, Any]:
    """Write the optimizer's epsilon where Trainer reads it (transformers/trainer_optimizer.py).

    With DeepSpeed it compares adam_epsilon with the file's eps, whatever the optimizer.
    """
    eps = epsilon(run)
    if eps is None:
        return {}
    if run.optimizer in {"adagrad", "rmsprop"} and not _on_deepspeed(run):
        return {"optim_args": f"eps={eps}"}
    return {"adam_epsilon": eps}


def _galore_targets(run: RunSettings) -> str:
    """Name the layers whose gradients GaLore projects: the linear ones of every block, whatever they are called.

    A string is matched with the whole name (transformers/trainer_utils.py, check_target_module_exists); blocks are
    numbered, embeddings and the output layer are not.
    """
    if run.architecture == "gpt2":  # Of transformers' own Conv1D (transformers/models/gpt2/modeling_gpt2.py).
        raise ScenarioError(
            "optimizer",
            "GaLore in Trainer projects torch.nn.Linear alone, and the blocks of gpt2 have none: use "
            "adafactor or adamw-8bit, or another model",
        )
    return r".*\.\d+\..+" if run.library == "transformers" else "all-linear"


def training_arguments(run: RunSettings) -> str:
    """Write Hugging Face ``TrainingArguments``, with the lines that load the model as a comment."""
    _require_data_parallel(run, "TrainingArguments")
    run, changes = _as_fsdp_trains(run)
    arguments: dict[str, Any] = {
        "output_dir": "out",
        "per_device_train_batch_size": run.micro_batch,
        "gradient_accumulation_steps": run.accumulation_steps,
        "learning_rate": run.rate,
        "optim": _lookup(_HUGGING_FACE_OPTIMIZERS, run, "TrainingArguments"),
        "weight_decay": 0.0,
        "max_grad_norm": MAX_NORM,
        **_trainer_settings(run),
    }
    arguments |= _trainer_epsilon(run)
    if run.optimizer == "galore-adamw":
        arguments["optim_target_modules"] = _galore_targets(run)
    lines = _comments(*_trainer_head(run), *changes, *_fp8_upcast(run))
    lines += before(run, _set_by_trainer(run))
    lines += ["#", "# Before: load the model.", *_comments(*_model_lines(run))]
    lines += ["from transformers import TrainingArguments", "", "arguments = " + _call("TrainingArguments", arguments)]
    return "\n".join(lines) + "\n"


def _yaml(values: Mapping[str, Any], indent: str = "") -> str:
    lines = []
    for key, value in values.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", _yaml(value, indent + "  ").rstrip("\n")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _accelerate_head(run: RunSettings, changes: list[str]) -> list[str]:
    """Say what Accelerate's file has no place for."""
    said = [HEADER, _plan(run), *_placeholder(run), *changes, *_fp8_upcast(run)]
    if run.nodes > 1:
        said.append(
            f"Each node has a machine_rank of its own, from 0 on the first to {run.nodes - 1}: change it there."
        )
    if _on_deepspeed(run):
        said += _as_deepspeed_trains(run)
    if run.checkpointing == "selective" and _fsdp_checkpoints(run):
        said.append(f"fsdp_activation_checkpointing {_WHOLE_BLOCKS}")
    return said


def _accelerate_fsdp(run: RunSettings) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": True,
        "fsdp_offload_params": run.cpu_offload == "all",
        "fsdp_activation_checkpointing": _fsdp_checkpoints(run),
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _accelerate_deepspeed(run: RunSettings) -> dict[str, Any]:
    values = {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": run.zero_stage == 3}
    if run.nodes > 1:
        # Otherwise it starts with pdsh and a hostfile (accelerate/utils/launch.py, prepare_deepspeed_cmd_env).
        values["deepspeed_multinode_launcher"] = "standard"
    return values


def _set_by_accelerate(run: RunSettings) -> set[Setting]:
    """What Accelerate's file settles."""
    sets = {Setting.PARALLELISM}
    if run.precision in {"fp32", "amp-bf16", "amp-fp16"}:
        sets.add(Setting.PRECISION)
    if _on_fsdp(run):
        if names_blocks(run):
            # TRANSFORMER_BASED_WRAP takes them from model._no_split_modules, and checkpoints each.
            sets |= {Setting.UNITS, Setting.CHECKPOINTING}
        if run.cpu_offload == "all":
            sets.add(Setting.OFFLOAD)
    return sets | _set_by_deepspeed(run) if _on_deepspeed(run) else sets


def accelerate_yaml(run: RunSettings) -> str:
    """Write an Accelerate configuration file, for ``accelerate launch --config_file``."""
    _require_data_parallel(run, "Accelerate")
    run, changes = _as_fsdp_trains(run)
    precision = {"amp-bf16": "bf16", "bf16-master": "bf16", "amp-fp16": "fp16", "fp8": "fp8"}.get(run.precision, "no")
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO" if run.gpus == 1 else "MULTI_GPU",
        "mixed_precision": precision,
        "num_machines": run.nodes,
        "num_processes": run.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
    }
    if run.nodes > 1:
        values |= {"main_process_ip": "the-first-node", "main_process_port": 29500, "rdzv_backend": "static"}
    if _on_fsdp(run):
        values |= {"distributed_type": "FSDP", "fsdp_config": _accelerate_fsdp(run)}
    elif _on_deepspeed(run):
        # Accelerate refuses a precision beside a DeepSpeed file that already says it.
        del values["mixed_precision"]
        values |= {"distributed_type": "DEEPSPEED", "deepspeed_config": _accelerate_deepspeed(run)}
    # It unscales float16's gradients first, and knows how each way of sharding clips.
    own = {Setting.CLIPPING: clipping_words(f"accelerator.clip_grad_norm_(model.parameters(), {MAX_NORM})")}
    head = [*_comments(*_accelerate_head(run, changes)), *before(run, _set_by_accelerate(run), own)]
    return "\n".join(head) + "\n" + _yaml(values)


def _set_by_deepspeed(run: RunSettings) -> set[Setting]:
    """What DeepSpeed's file settles, for a launcher that hands it on, too."""
    _lookup(_DEEPSPEED_OPTIMIZERS, run, "DeepSpeed")
    sets = {Setting.OPTIMIZER, Setting.CLIPPING, Setting.PARALLELISM, Setting.UNITS}
    if run.precision not in {"tf32", "fp8"}:
        sets.add(Setting.PRECISION)
    if run.compute_dtype != "float32":
        sets.add(Setting.WEIGHTS)
    if _offloads_on_deepspeed(run):
        sets.add(Setting.OFFLOAD)
    return sets


def deepspeed_json(run: RunSettings) -> str:
    """Write a DeepSpeed configuration; for plain data parallelism ZeRO stage 0, if nothing asks for more."""
    _require_data_parallel(run, "DeepSpeed's JSON")
    without_copies = _sixteen_bit_throughout(run)
    stage = _deepspeed_stage(run)
    values: dict[str, Any] = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.accumulation_steps,
        "optimizer": {
            "type": _lookup(_DEEPSPEED_OPTIMIZERS, run, "DeepSpeed"),
            "params": {"lr": run.rate, "weight_decay": 0.0} | ({} if epsilon(run) is None else {"eps": epsilon(run)}),
        },
        "zero_optimization": {"stage": stage},
        "gradient_clipping": MAX_NORM,
    }
    if run.precision in {"amp-bf16", "bf16", "bf16-master", "fp8"}:
        values["bf16"] = {"enabled": True}
        if without_copies:
            values["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    if run.precision in {"amp-fp16", "fp16"}:
        values["fp16"] = {"enabled": True}
        if without_copies:
            values["fp16"] |= {"fp16_master_weights_and_grads": True}
    zero = values["zero_optimization"]
    if stage:
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    if stage and run.optimizer == "lamb":
        # Not among ZERO_SUPPORTED_OPTIMIZERS (deepspeed/runtime/zero/utils.py).
        values["zero_allow_untested_optimizer"] = True
    if stage == 3 and run.optimizer == "muon":
        # "Muon and reduce scatter cannot be used together" (deepspeed/runtime/zero/stage3.py).
        zero["reduce_scatter"] = False
    if run.cpu_offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if run.cpu_offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return json.dumps(values, indent=2) + "\n"


def deepspeed_note(run: RunSettings) -> str:
    """Say beside DeepSpeed's JSON, which has no comments, what it leaves out and what it does otherwise."""
    said = [note(run, _set_by_deepspeed(run)), *_placeholder(run), *_as_deepspeed_trains(run)]
    if run.gpus == 1:
        said.append(f"{_ONE_PROCESS[0].upper()}{_ONE_PROCESS[1:]}.")
    return " ".join(filter(None, said))


# As Accelerate makes it for fully_shard (accelerate/utils/fsdp_utils.py, get_fsdp2_grad_scaler).
_SHARD_SCALER = """

# Gradients in float16 vanish unless the loss is scaled: scaler.scale(loss).backward(), then scaler.unscale_(optimizer)
# before clipping, scaler.step(optimizer) and scaler.update().
scaler = torch.amp.GradScaler("cuda")
"""


def fsdp_script(run: RunSettings) -> str:
    """Write the lines that shard a model with torch's ``fully_shard``."""
    _require_data_parallel(run, "fully_shard")
    # Whatever was asked for, this shards the weights.
    run, changes = _sharded(replace(run, strategy="fsdp"))
    sets = {Setting.PARALLELISM, Setting.UNITS}
    if run.precision in {"fp32", "amp-bf16", "amp-fp16", "bf16-master"}:
        sets.add(Setting.PRECISION)
    if run.cpu_offload != "optimizer":
        sets.add(Setting.OFFLOAD)
    head = "\n".join([*_comments(HEADER, _plan(run), *_placeholder(run), *changes), *before(run, sets)])
    policy = ""
    if run.precision in {"amp-bf16", "bf16-master", "fp8"}:
        policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    elif run.precision == "amp-fp16":
        policy = "MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)"
    offload = "CPUOffloadPolicy()" if run.cpu_offload == "all" else "OffloadPolicy()"
    scaled = _SHARD_SCALER if run.precision == "amp-fp16" else ""
    return f'''{head}
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard


def shard(model: nn.Module, blocks: list[nn.Module]) -> nn.Module:
    """Shard each block, then what is left, before making the optimizer.

    Call it after {_START}.
    """
    policy = {policy or "MixedPrecisionPolicy()"}
    offload = {offload}
    for block in blocks:
        fully_shard(block, mp_policy=policy, offload_policy=offload)
    return fully_shard(model, mp_policy=policy, offload_policy=offload)
{scaled}'''


_LIGHTNING_PRECISIONS = {
    "fp32": "32-true",
    "tf32": "32-true",
    "amp-bf16": "bf16-mixed",
    "amp-fp16": "16-mixed",
    "bf16": "bf16-true",
    "fp16": "16-true",
    "bf16-master": "bf16-mixed",
    "fp8": "transformer-engine",
}
_LIGHTNING_STRATEGIES = {
    "ddp": "ddp",
    "fsdp": "fsdp",
    "zero1": "deepspeed_stage_1",
    "zero2": "deepspeed_stage_2",
    "zero3": "deepspeed_stage_3",
}


# With offload DeepSpeed takes no other optimizers that it did not make itself (deepspeed/runtime/engine.py,
# _configure_optimizer).
_DEEPSPEED_CPU_OPTIMIZERS = {
    "adam": "deepspeed.ops.adam.DeepSpeedCPUAdam(parameters, lr={lr}, weight_decay=0.0, adamw_mode=False)",
    "adamw": "deepspeed.ops.adam.DeepSpeedCPUAdam(parameters, lr={lr}, weight_decay=0.0)",
    "adamw-fused": "deepspeed.ops.adam.DeepSpeedCPUAdam(parameters, lr={lr}, weight_decay=0.0)",
    "lion": "deepspeed.ops.lion.DeepSpeedCPULion(parameters, lr={lr}, weight_decay=0.0)",
}
_STAGE_3_OPTIMIZER = "DeepSpeedStrategy(stage=3, offload_optimizer=True)"
"""deepspeed_stage_3_offload would offload the weights, too (lightning/pytorch/strategies/deepspeed.py)."""


def _lightning_strategy(run: RunSettings) -> str:
    """Name the strategy, or write the call that makes it; for FSDP it is the one without arguments."""
    strategy = _LIGHTNING_STRATEGIES[run.strategy] if run.gpus > 1 else "auto"
    if run.cpu_offload == "optimizer" and strategy.endswith("_3"):
        return _STAGE_3_OPTIMIZER
    if run.cpu_offload != "none" and strategy.endswith(("_2", "_3")):
        return f"{strategy}_offload"
    if run.precision == "bf16-master" and _on_deepspeed(run) and strategy in {"auto", "ddp"}:
        return "deepspeed_stage_1"  # Only DeepSpeed holds the fp32 copies; stage 1 divides no more than those.
    return strategy


def _require_lightning_precision(run: RunSettings, strategy: str) -> None:
    if _on_deepspeed(run) and _sixteen_bit_throughout(run):
        raise ScenarioError(
            "precision",
            "Lightning\u2019s DeepSpeed strategies hold fp32 copies of 16-bit weights, which this batch leaves no "
            "room for: use the FSDP strategy, or bf16 with fp32 master weights as precision",
        )
    if run.precision == "fp8" and strategy not in {"auto", "ddp"}:
        raise ScenarioError(
            "precision", "Lightning\u2019s strategies that shard have no fp8: use Accelerate, or bf16 as precision"
        )


def _require_lightning_adapters(run: RunSettings, strategy: str) -> None:
    """Refuse adapters in fp32 beside weights of another type in one unit.

    Lightning's strategy is FSDP1, which flattens a unit's tensors into one: "Must flatten tensors with uniform dtype"
    (torch/distributed/fsdp/_flat_param.py). The precisions that are "true" turn all but 4-bit weights to one type.
    """
    mixed = run.method == "qlora" or (run.adapts and run.precision == "bf16-master")
    if strategy == "fsdp" and mixed:
        raise ScenarioError(
            "method",
            "Lightning\u2019s FSDP strategy flattens tensors of one type alone; adapters are in fp32 beside weights "
            "of another: use Accelerate\u2019s FSDP, or ddp as strategy",
        )


def _set_by_lightning(run: RunSettings, strategy: str) -> set[Setting]:
    """What the ``Trainer`` settles."""
    sets = {Setting.PRECISION, Setting.PARALLELISM}
    if _lightning_clips(run, strategy):
        sets.add(Setting.CLIPPING)
    if run.weights_dtype != "float32" and not run.adapts:
        sets.add(Setting.WEIGHTS)  # These precisions turn the model to their type.
    if strategy == "fsdp":
        if names_blocks(run):
            sets.add(Setting.UNITS)
        if run.cpu_offload == "all":
            sets.add(Setting.OFFLOAD)
    elif _offloads_in_lightning(strategy) and _offloads_on_deepspeed(run):
        sets.add(Setting.OFFLOAD)
    return sets


def _offloads_in_lightning(strategy: str) -> bool:
    """Whether DeepSpeed holds the optimizer's state on the CPU."""
    return strategy == _STAGE_3_OPTIMIZER or strategy.endswith("_offload")


def _lightning_words(run: RunSettings, strategy: str) -> dict[Setting, str]:
    """What is named otherwise than in other files."""
    own = {}
    if _offloads_in_lightning(strategy):
        call = _lookup(_DEEPSPEED_CPU_OPTIMIZERS, run, "DeepSpeed\u2019s offload under Lightning")
        own[Setting.OPTIMIZER] = optimizer_words(call, run)
    if not _lightning_clips(run, strategy):
        how = f"self.trainer.strategy.model.clip_grad_norm_({MAX_NORM})"
        if strategy != "fsdp":
            how = f"torch.nn.utils.clip_grad_norm_(self.parameters(), {MAX_NORM})"
            if run.precision == "amp-fp16":
                how += " after self.trainer.precision_plugin.scaler.unscale_(optimizer)"
        own[Setting.CLIPPING] = clipping_words(f"{how} in configure_gradient_clipping")
    return own


def _lightning_clips(run: RunSettings, strategy: str) -> bool:
    """Whether the ``Trainer`` takes ``gradient_clip_val``.

    FSDP's plugin has no clipping by norm (lightning/pytorch/plugins/precision/fsdp.py), and that of autocast refuses
    fused optimizers (precision/amp.py, clip_gradients); DeepSpeed clips by itself.
    """
    if strategy == "fsdp":
        return False
    return not (run.autocast and run.optimizer == "adamw-fused" and strategy in {"auto", "ddp"})


def _lightning_call(run: RunSettings, arguments: dict[str, Any]) -> list[str]:
    """Write what makes the ``Trainer``: a function of the model where FSDP's units are read from it."""
    if arguments["strategy"] != "fsdp":
        return ["trainer = " + _call("Trainer", arguments)]
    units = {"auto_wrap_policy": "blocks"} if names_blocks(run) else {}
    offload = {"cpu_offload": "True"} if run.cpu_offload == "all" else {}
    given = ", ".join(f"{name}={value}" for name, value in (units | offload).items())
    call = _call("Trainer", arguments | {"strategy": _Code(f"FSDPStrategy({given})")})
    if not units:
        return [f"trainer = {call}"]
    return [
        "",
        "",
        "def trainer_of(model):",
        '    """Make the trainer for a transformers model (not the module around it): each of its blocks is a unit."""',
        "    blocks = {type(part) for part in model.modules() if type(part).__name__ in model._no_split_modules}",
        *(f"    {line}" for line in f"return {call}".splitlines()),
    ]


def lightning_trainer(run: RunSettings) -> str:
    """Write a Lightning ``Trainer``; the micro-batch goes into the data loader."""
    _require_data_parallel(run, "Lightning's Trainer")
    run, changes = _as_fsdp_trains(run)
    strategy = _lightning_strategy(run)
    _require_lightning_precision(run, strategy)
    _require_lightning_adapters(run, strategy)
    if _on_deepspeed(run):
        changes = _as_deepspeed_trains(run)
    # With fp32 copies in DeepSpeed the model itself is in bfloat16.
    copies = _on_deepspeed(run) and run.precision == "bf16-master"
    arguments = {
        "accelerator": "gpu",
        "devices": run.gpus // run.nodes,
        "num_nodes": run.nodes,
        "precision": "bf16-true" if copies else _LIGHTNING_PRECISIONS[run.precision],
        "strategy": _Code(strategy) if strategy == _STAGE_3_OPTIMIZER else strategy,
        "accumulate_grad_batches": run.accumulation_steps,
    }
    if _lightning_clips(run, strategy):
        arguments["gradient_clip_val"] = MAX_NORM
    lines = [*_comments(HEADER, *_placeholder(run), *changes)]
    lines += before(run, _set_by_lightning(run, strategy), _lightning_words(run, strategy))
    if run.precision == "tf32":
        lines.append("import torch")
    lines.append("from lightning import Trainer")
    if strategy in {"fsdp", _STAGE_3_OPTIMIZER}:
        lines.append(
            f"from lightning.pytorch.strategies import {'FSDP' if strategy == 'fsdp' else 'DeepSpeed'}Strategy"
        )
    lines.append("")
    if run.precision == "tf32":
        lines += ['torch.set_float32_matmul_precision("high")', ""]
    lines.append(f"BATCH_SIZE = {run.micro_batch}  # the data loader's, per GPU; {_update(run)}")
    return "\n".join([*lines, *_lightning_call(run, arguments)]) + "\n"


def _set_by_train(run: RunSettings) -> set[Setting]:
    """What the plain loop settles, which is the train.py beside this command; PyTorch takes SDPA by itself."""
    try:
        plain_loop(run)
    except ScenarioError:
        return set()
    by_itself = run.attention == "sdpa" and not attention_refused(run)
    return _set_by_loop(run) | ({Setting.ATTENTION} if by_itself else set())


def torchrun_line(run: RunSettings) -> str:
    """Write the command that starts one process per GPU; on several nodes to be run on each.

    What would shard or offload wants a process group on one GPU, too.
    """
    head = "".join(f"{line}\n" for line in [*_comments(_plan(run)), *before(run, _set_by_train(run))])
    if run.gpus == 1 and run.strategy == "ddp" and run.cpu_offload == "none" and not _on_deepspeed(run):
        return head + "python train.py\n"
    per_node = run.gpus // run.nodes
    if run.nodes == 1:
        return f"{head}torchrun --standalone --nproc-per-node={per_node} train.py\n"
    return (
        f"{head}torchrun --nnodes={run.nodes} --nproc-per-node={per_node} --rdzv-backend=c10d "
        '--rdzv-endpoint="$FIRST_NODE:29500" --rdzv-id=batch train.py\n'
    )


def _loop_step(run: RunSettings) -> list[str]:
    """Lines of the optimizer step, by precision."""
    clip = "torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)"
    if run.precision == "amp-fp16":
        return ["scaler.unscale_(optimizer)", clip, "scaler.step(optimizer)", "scaler.update()"]
    if run.precision == "bf16-master":
        return [
            "for copy, parameter in zip(parameters, trainable):",
            "    copy.grad = parameter.grad.float()",
            "    parameter.grad = None",
            clip,
            "optimizer.step()",
            "with torch.no_grad():",
            "    for copy, parameter in zip(parameters, trainable):",
            "        parameter.copy_(copy)",
        ]
    return [clip, "optimizer.step()"]


def _set_by_loop(run: RunSettings) -> set[Setting]:
    """What the plain loop settles."""
    sets = {Setting.OPTIMIZER, Setting.CLIPPING, Setting.PARALLELISM}
    if run.precision != "fp8":
        sets.add(Setting.PRECISION)
    if not run.adapts:
        sets.add(Setting.WEIGHTS)
    return sets


def plain_loop(run: RunSettings) -> str:
    """Write a training loop with accumulation in plain PyTorch, with DDP where there are several GPUs."""
    _require_data_parallel(run, "This loop")
    if run.zero_stage:
        raise ScenarioError("parallelism.strategy", "this loop is for ddp: use the FSDP or DeepSpeed export to shard")
    package, optimizer = _lookup(TORCH_OPTIMIZERS, run, "this loop")
    distributed = run.gpus > 1
    imports = ["import contextlib", "", "import torch"]
    if package != "torch":
        imports.insert(2, f"import {package}")
    setup: list[str] = []
    if run.precision == "tf32":
        setup.append('torch.set_float32_matmul_precision("high")')
    # Adapters keep a type of their own, and 4-bit weights theirs.
    move = "model.to(device)" if run.adapts else f"model.to(device, torch.{run.weights_dtype})"
    setup.append(f"model = {move}.train()")
    setup.append("trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]")
    if run.precision == "bf16-master":
        setup.append("parameters = [parameter.detach().clone().float() for parameter in trainable]")
    else:
        setup.append("parameters = trainable")
    if distributed:
        setup.append("model = torch.nn.parallel.DistributedDataParallel(model)")
    setup.append(f"optimizer = {optimizer_call(optimizer, run)}")
    scaler = run.precision == "amp-fp16"
    if scaler:
        setup.append("scaler = torch.amp.GradScaler(device)")
    autocast = f"torch.autocast(device, torch.{run.compute_dtype})" if run.autocast else "contextlib.nullcontext()"
    if run.precision == "fp8":
        imports.append("import transformer_engine.pytorch as te")
        autocast = "te.fp8_autocast()"
    hold = "contextlib.nullcontext() if last else model.no_sync()" if distributed else "contextlib.nullcontext()"
    backward = "scaler.scale(loss).backward()" if scaler else "loss.backward()"
    body = [
        *imports,
        "",
        f"MICRO_BATCH = {run.micro_batch}  # the data loader's batch size, per GPU",
        f"ACCUMULATION_STEPS = {run.accumulation_steps}  # {_update(run)}",
        f"MAX_NORM = {MAX_NORM}  # of the gradients, clipped as TrainingArguments do by default (max_grad_norm)",
        "",
        "",
        "def train(model, batches, loss_of, device='cuda'):",
        '    """Train over ``batches``; ``loss_of(model, batch)`` gives a mean loss over the micro-batch.',
        *(["", f"    Call it after {_START}."] if distributed else []),
        '    """',
        *(f"    {line}" for line in setup),
        "    for index, batch in enumerate(batches):",
        "        last = (index + 1) % ACCUMULATION_STEPS == 0",
        f"        with {hold}:",
        f"            with {autocast}:",
        "                loss = loss_of(model, batch) / ACCUMULATION_STEPS",
        f"            {backward}",
        "        if last:",
        *(f"            {line}" for line in _loop_step(run)),
        f"            optimizer.zero_grad({'set_to_none=False' if run.zero_grad == 'keep' else ''})",
    ]
    return "\n".join([*_comments(HEADER, *_placeholder(run)), *before(run, _set_by_loop(run)), *body]) + "\n"


def result_json(result: Mapping[str, Any]) -> str:
    """Write the whole result as JSON text."""
    return json.dumps(result, indent=2, allow_nan=False) + "\n"


def table_csv(rows: list[Mapping[str, Any]]) -> str:
    """Write rows of one table as CSV text, columns in the first row's order; empty text for no rows.

    Raises
    ------
    ScenarioError
        If a row has a column that the first has not.
    """
    if not rows:
        return ""
    columns = list(rows[0])
    unknown = {key for row in rows for key in row} - set(columns)
    if unknown:
        raise ScenarioError("rows", f"the first row has no {', '.join(sorted(unknown))}")
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def components_csv(memory: Mapping[str, Any]) -> str:
    """Write the result's memory breakdown as CSV text, one component a row."""
    return table_csv(
        [
            {key: part.get(key, "") for key in ("id", "label", "bytes", "formula", "source")}
            for part in memory["components"]
        ]
    )


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file."""

    id: str
    label: str
    file_name: str
    write: Callable[[RunSettings], str]
    note: Callable[[RunSettings], str] | None = None
    """What stands beside a file that has no comments."""


FORMATS = (
    Format("training-arguments", "Hugging Face TrainingArguments", "arguments.py", training_arguments),
    Format("accelerate", "Accelerate", "accelerate.yaml", accelerate_yaml),
    Format("deepspeed", "DeepSpeed", "deepspeed.json", deepspeed_json, deepspeed_note),
    Format("fsdp", "FSDP", "shard.py", fsdp_script),
    Format("lightning", "Lightning", "trainer.py", lightning_trainer),
    Format("torchrun", "torchrun", "run.sh", torchrun_line),
    Format("loop", "Plain PyTorch loop", "train.py", plain_loop),
)


def export_all(run: RunSettings) -> list[dict[str, str]]:
    """Write every format: ``id``, ``label``, ``file_name`` and ``text``, or ``reason`` where it cannot say this run.

    ``note`` is what stands beside a file that has no comments.
    """
    rows = []
    for format_ in FORMATS:
        row = {"id": format_.id, "label": format_.label, "file_name": format_.file_name}
        try:
            row["text"] = format_.write(run)
            if format_.note is not None:
                row["note"] = format_.note(run)
        except ScenarioError as error:
            row["reason"] = error.message
        rows.append(row)
    return rows


def _does_not_fit(result: Mapping[str, Any]) -> str:
    """Say why there is no file to run."""
    micro_batch, largest, memory = result["micro_batch"], result["max_micro_batch"], result["memory"]
    samples = "one sample needs" if micro_batch == 1 else f"a micro-batch of {micro_batch:,} needs"
    most = f"at most {largest:,} fit" + ("s" if largest == 1 else "") if largest else "nothing fits"
    return (
        f"it would run out of memory: {samples} {gib(memory['peak_reserved_bytes'])} of the "
        f"{gib(memory['limit_bytes'])} that PyTorch may use, and {most}"
    )


def _numbers(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Write what is read and not run: the memory's parts, and the whole result."""
    parts = {
        "id": "csv",
        "label": "CSV of the memory's parts",
        "file_name": "memory.csv",
        "text": components_csv(result["memory"]),
    }
    whole = {"id": "json", "label": "JSON of the whole result", "file_name": "result.json", "text": result_json(result)}
    return [parts, whole]


def exports_of(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Write every format for an evaluated scenario: the way its plan stands for, or one pass where none is asked for.

    Where the scenario does not fit there is no file to run, only the reason.
    """
    if not result["fits"]:
        files = [
            {"id": format_.id, "label": format_.label, "file_name": format_.file_name, "reason": _does_not_fit(result)}
            for format_ in FORMATS
        ]
        return [*files, *_numbers(result)]
    scenario = result["scenario"]
    replicas = read_layout(scenario.get("parallelism") or {}, scenario["gpus"]).data
    single = {"micro_batch": result["micro_batch"], "accumulation_steps": 1, "data_parallel": replicas}
    way = way_of(result["plan"]) if result["plan"] else single
    learning_rate = result["convergence"]["learning_rate"]
    run = settings(scenario, way, learning_rate["learning_rate"] if learning_rate else None)
    return [*export_all(run), *_numbers(result)]
