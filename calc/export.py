"""The plan as files that run: Hugging Face, Accelerate, DeepSpeed, FSDP, Lightning, torchrun, a loop, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.catalog import models
from calc.errors import ScenarioError
from calc.scaling.layout import read_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEADER = "Made by Batch Size Optimizer: check the learning rate and the data, then run."
DEFAULT_LEARNING_RATE = 1e-4

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
_TORCH_OPTIMIZERS = {
    "sgd": ("torch", "torch.optim.SGD(parameters, lr={lr})"),
    "sgd-momentum": ("torch", "torch.optim.SGD(parameters, lr={lr}, momentum=0.9)"),
    "adam": ("torch", "torch.optim.Adam(parameters, lr={lr})"),
    "adamw": ("torch", "torch.optim.AdamW(parameters, lr={lr})"),
    "adamw-fused": ("torch", "torch.optim.AdamW(parameters, lr={lr}, fused=True)"),
    "adafactor": ("torch", "torch.optim.Adafactor(parameters, lr={lr})"),
    "adagrad": ("torch", "torch.optim.Adagrad(parameters, lr={lr})"),
    "rmsprop": ("torch", "torch.optim.RMSprop(parameters, lr={lr})"),
    "adamw-8bit": ("bitsandbytes", "bitsandbytes.optim.AdamW8bit(parameters, lr={lr})"),
    "lion": ("bitsandbytes", "bitsandbytes.optim.Lion(parameters, lr={lr})"),
    "lamb": ("bitsandbytes", "bitsandbytes.optim.LAMB(parameters, lr={lr})"),
    "lars": ("bitsandbytes", "bitsandbytes.optim.LARS(parameters, lr={lr}, momentum=0.9)"),
}
_DEEPSPEED_OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "adamw-fused": "AdamW",
    "lamb": "Lamb",
    "lion": "Lion",
    "adagrad": "Adagrad",
    "muon": "Muon",
}
_MODEL_CLASSES = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "speech-ctc": "AutoModelForCTC",
    "image-classification": "AutoModelForImageClassification",
}
_DTYPES = {"fp16": "float16", "amp-fp16": "float16", "bf16": "bfloat16", "amp-bf16": "bfloat16"}
_ZERO_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the files say, in the scenario's words; ``micro_batch`` in samples per pass and GPU."""

    micro_batch: int
    accumulation_steps: int
    model_name: str = ""
    library: str = "transformers"
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
    sequence_length: int | None = None
    learning_rate: float = DEFAULT_LEARNING_RATE

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.micro_batch * self.accumulation_steps * self.data_parallel

    @property
    def zero_stage(self) -> int:
        """ZeRO stage of the strategy."""
        return _ZERO_STAGES[self.strategy]

    @property
    def autocast(self) -> bool:
        """Whether weights stay in 32 bit and operations are cast."""
        return self.precision.startswith("amp-")

    @property
    def data_parallel_only(self) -> bool:
        """Whether no tensor, pipeline or context parallelism is asked for."""
        return self.tensor == self.pipeline == self.context == 1


def _published_name(model: object) -> tuple[str, str]:
    """Return the name that a preset's library loads it by, and the library; no name for a model of one's own."""
    if not isinstance(model, str):
        return "", "transformers"
    preset = models.preset(model)
    if preset.library == "torchvision":
        return preset.id, preset.library
    return preset.source.removeprefix("Hugging Face: ").split(",")[0], "transformers"


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
    name, library = _published_name(scenario.get("model"))
    targets = scenario.get("lora_targets", "all-linear")
    names = ("gpus", "nodes", "precision", "optimizer", "checkpointing", "attention", "loss", "method", "lora_rank")
    known = {name: scenario[name] for name in names if scenario.get(name) is not None}
    degrees = {
        name: parallelism[name]
        for name in ("strategy", "cpu_offload", "tensor", "pipeline", "context")
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
        task=scenario.get("task", "causal-lm"),
        lora_targets=targets if isinstance(targets, str) else tuple(targets),
        sequence_length=scenario.get("sequence_length"),
        learning_rate=DEFAULT_LEARNING_RATE if learning_rate is None else learning_rate,
    )


def _require_data_parallel(run: RunSettings, what: str) -> None:
    if not run.data_parallel_only:
        raise ScenarioError(
            "parallelism",
            f"{what} divides data only: tensor, pipeline and context parallelism need Megatron-LM, NeMo or torchtitan",
        )


def _lookup(table: Mapping[str, Any], run: RunSettings, what: str) -> Any:
    if run.optimizer not in table:
        raise ScenarioError("optimizer", f"{what} has no {run.optimizer}: use one of {', '.join(table)}")
    return table[run.optimizer]


def _number(value: float) -> str:
    return f"{value:.6g}"


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    lines = [f"    {key}={value!r}," for key, value in arguments.items()]
    return "\n".join([f"{name}(", *lines, ")"])


def _model_lines(run: RunSettings) -> list[str]:
    """Lines that load a Hugging Face model with the scenario's attention, dtype and adapters."""
    name = run.model_name or "the-model"
    if run.library == "torchvision":
        return ["import torchvision", f'model = torchvision.models.get_model("{name}")']
    loader = _MODEL_CLASSES.get(run.task, "AutoModel")
    keywords = [f'attn_implementation="{run.attention.replace("-", "_")}"']
    if run.precision in {"fp16", "bf16"}:
        keywords.append(f'dtype="{_DTYPES[run.precision]}"')
    lines = [f"from transformers import {loader}"]
    if run.method == "qlora":
        lines += [
            "from transformers import BitsAndBytesConfig",
            "four_bit = BitsAndBytesConfig(",
            '    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True',
            ")",
        ]
        keywords.append("quantization_config=four_bit")
    lines.append(f'model = {loader}.from_pretrained("{name}", {", ".join(keywords)})')
    if run.method in {"lora", "qlora"}:
        lines += [
            "from peft import LoraConfig, get_peft_model",
            f"model = get_peft_model(model, LoraConfig({_lora_arguments(run)}))",
        ]
    return lines


def _lora_arguments(run: RunSettings) -> str:
    targets = run.lora_targets if isinstance(run.lora_targets, str) else list(run.lora_targets)
    if targets == "attention":
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return f"r={run.lora_rank}, lora_alpha={2 * run.lora_rank}, target_modules={targets!r}"


def training_arguments(run: RunSettings) -> str:
    """Write Hugging Face ``TrainingArguments``, with the lines that load the model as a comment."""
    _require_data_parallel(run, "TrainingArguments")
    arguments: dict[str, Any] = {
        "output_dir": "out",
        "per_device_train_batch_size": run.micro_batch,
        "gradient_accumulation_steps": run.accumulation_steps,
        "learning_rate": run.learning_rate,
        "optim": _lookup(_HUGGING_FACE_OPTIMIZERS, run, "TrainingArguments"),
    }
    if run.precision == "tf32":
        arguments["tf32"] = True
    if run.precision in {"amp-bf16", "bf16-master", "fp8"}:
        arguments["bf16"] = True
    if run.precision == "amp-fp16":
        arguments["fp16"] = True
    if run.checkpointing != "none":
        arguments["gradient_checkpointing"] = True
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if run.loss == "fused":
        arguments["use_liger_kernel"] = True
    if run.strategy == "fsdp":
        arguments["fsdp"] = "full_shard auto_wrap" + (" offload" if run.cpu_offload == "all" else "")
        arguments["fsdp_config"] = {"fsdp_version": 2}
    elif run.zero_stage:
        arguments["deepspeed"] = "deepspeed.json"
    if run.optimizer == "galore-adamw":
        arguments["optim_target_modules"] = ["attn", "mlp"]
    lines = [f"# {HEADER}", "# " + f"{run.global_batch} samples per update on {run.gpus} GPU(s)."]
    if run.precision == "fp8":
        lines.append("# fp8 is switched on by Accelerate: see accelerate.yaml.")
    lines += ["#", *(f"# {line}" for line in _model_lines(run))]
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


def accelerate_yaml(run: RunSettings) -> str:
    """Write an Accelerate configuration file, for ``accelerate launch --config_file``."""
    _require_data_parallel(run, "Accelerate")
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
    if run.strategy == "fsdp" and run.gpus > 1:
        values["distributed_type"] = "FSDP"
        values["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_offload_params": run.cpu_offload == "all",
            "fsdp_activation_checkpointing": run.checkpointing != "none",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    elif run.zero_stage:
        values["distributed_type"] = "DEEPSPEED"
        # Accelerate refuses these beside a DeepSpeed file that already says them.
        del values["mixed_precision"]
        values["deepspeed_config"] = {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": run.zero_stage == 3}
    return f"# {HEADER}\n" + _yaml(values)


def deepspeed_json(run: RunSettings) -> str:
    """Write a DeepSpeed configuration; ZeRO stage 0 where the strategy is plain data parallelism."""
    _require_data_parallel(run, "DeepSpeed's JSON")
    values: dict[str, Any] = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.accumulation_steps,
        "optimizer": {
            "type": _lookup(_DEEPSPEED_OPTIMIZERS, run, "DeepSpeed"),
            "params": {"lr": run.learning_rate},
        },
        "zero_optimization": {"stage": run.zero_stage},
        "gradient_clipping": 1.0,
    }
    if run.precision in {"amp-bf16", "bf16", "bf16-master", "fp8"}:
        values["bf16"] = {"enabled": True}
    if run.precision in {"amp-fp16", "fp16"}:
        values["fp16"] = {"enabled": True}
    zero = values["zero_optimization"]
    if run.zero_stage:
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    if run.cpu_offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if run.cpu_offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return json.dumps(values, indent=2) + "\n"


def fsdp_script(run: RunSettings) -> str:
    """Write the lines that shard a model with torch's ``fully_shard``."""
    _require_data_parallel(run, "fully_shard")
    policy = ""
    if run.precision in {"amp-bf16", "bf16-master", "fp8"}:
        policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    elif run.precision == "amp-fp16":
        policy = "MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)"
    offload = "CPUOffloadPolicy()" if run.cpu_offload == "all" else "OffloadPolicy()"
    return f'''# {HEADER}
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard


def shard(model: nn.Module, blocks: list[nn.Module]) -> nn.Module:
    """Shard each block, then what is left. Call it after init_process_group, before making the optimizer."""
    policy = {policy or "MixedPrecisionPolicy()"}
    offload = {offload}
    for block in blocks:
        fully_shard(block, mp_policy=policy, offload_policy=offload)
    return fully_shard(model, mp_policy=policy, offload_policy=offload)
'''


def lightning_trainer(run: RunSettings) -> str:
    """Write a Lightning ``Trainer``; the micro-batch goes into the data loader."""
    _require_data_parallel(run, "Lightning's Trainer")
    precision = {
        "fp32": "32-true",
        "tf32": "32-true",
        "amp-bf16": "bf16-mixed",
        "amp-fp16": "16-mixed",
        "bf16": "bf16-true",
        "fp16": "16-true",
        "bf16-master": "bf16-mixed",
        "fp8": "transformer-engine",
    }[run.precision]
    strategy = "auto"
    if run.gpus > 1:
        strategy = {
            "ddp": "ddp",
            "fsdp": "fsdp",
            "zero1": "deepspeed_stage_1",
            "zero2": "deepspeed_stage_2",
            "zero3": "deepspeed_stage_3",
        }[run.strategy]
        if run.cpu_offload != "none" and strategy.endswith(("_2", "_3")):
            strategy += "_offload"
    arguments = {
        "accelerator": "gpu",
        "devices": run.gpus // run.nodes,
        "num_nodes": run.nodes,
        "precision": precision,
        "strategy": strategy,
        "accumulate_grad_batches": run.accumulation_steps,
    }
    lines = [f"# {HEADER}", "import torch", "from lightning import Trainer", ""]
    if run.precision == "tf32":
        lines += ['torch.set_float32_matmul_precision("high")', ""]
    lines += [
        f"BATCH_SIZE = {run.micro_batch}  # the data loader's, per GPU; {run.global_batch} samples per update",
        "trainer = " + _call("Trainer", arguments),
    ]
    return "\n".join(lines) + "\n"


def torchrun_line(run: RunSettings) -> str:
    """Write the command that starts one process per GPU; on several nodes to be run on each."""
    if run.gpus == 1:
        return "python train.py\n"
    per_node = run.gpus // run.nodes
    if run.nodes == 1:
        return f"torchrun --standalone --nproc-per-node={per_node} train.py\n"
    return (
        f"torchrun --nnodes={run.nodes} --nproc-per-node={per_node} --rdzv-backend=c10d "
        '--rdzv-endpoint="$FIRST_NODE:29500" --rdzv-id=batch train.py\n'
    )


def _loop_step(run: RunSettings) -> list[str]:
    """Lines of the optimizer step, by precision."""
    if run.precision == "amp-fp16":
        return ["scaler.step(optimizer)", "scaler.update()"]
    if run.precision == "bf16-master":
        return [
            "for copy, parameter in zip(parameters, trainable):",
            "    copy.grad = parameter.grad.float()",
            "    parameter.grad = None",
            "optimizer.step()",
            "with torch.no_grad():",
            "    for copy, parameter in zip(parameters, trainable):",
            "        parameter.copy_(copy)",
        ]
    return ["optimizer.step()"]


def plain_loop(run: RunSettings) -> str:
    """Write a training loop with accumulation in plain PyTorch, with DDP where there are several GPUs."""
    _require_data_parallel(run, "This loop")
    if run.zero_stage:
        raise ScenarioError("parallelism.strategy", "this loop is for ddp: use the FSDP or DeepSpeed export to shard")
    package, optimizer = _lookup(_TORCH_OPTIMIZERS, run, "this loop")
    distributed = run.gpus > 1
    imports = ["import contextlib", "", "import torch"]
    if package != "torch":
        imports.insert(2, f"import {package}")
    setup: list[str] = []
    if run.precision == "tf32":
        setup.append('torch.set_float32_matmul_precision("high")')
    dtype = {"bf16": "bfloat16", "bf16-master": "bfloat16", "fp16": "float16"}.get(run.precision)
    move = "model.to(device)" if dtype is None else f"model.to(device, torch.{dtype})"
    setup.append(f"model = {move}.train()")
    setup.append("trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]")
    if run.precision == "bf16-master":
        setup.append("parameters = [parameter.detach().clone().float() for parameter in trainable]")
    else:
        setup.append("parameters = trainable")
    if distributed:
        setup.append("model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)")
    setup.append("optimizer = " + optimizer.format(lr=_number(run.learning_rate)))
    scaler = run.precision == "amp-fp16"
    if scaler:
        setup.append("scaler = torch.amp.GradScaler(device)")
    autocast = f"torch.autocast(device, torch.{_DTYPES[run.precision]})" if run.autocast else "contextlib.nullcontext()"
    if run.precision == "fp8":
        imports.append("import transformer_engine.pytorch as te")
        autocast = "te.fp8_autocast()"
    hold = "contextlib.nullcontext() if last else model.no_sync()" if distributed else "contextlib.nullcontext()"
    backward = "scaler.scale(loss).backward()" if scaler else "loss.backward()"
    body = [
        *imports,
        "",
        f"MICRO_BATCH = {run.micro_batch}  # the data loader's batch size, per GPU",
        f"ACCUMULATION_STEPS = {run.accumulation_steps}  # {run.global_batch} samples per update",
        "",
        "",
        "def train(model, batches, loss_of, device='cuda'):",
        '    """Train over ``batches``; ``loss_of(model, batch)`` gives a mean loss over the micro-batch."""',
        *(f"    {line}" for line in setup),
        "    for index, batch in enumerate(batches):",
        "        last = (index + 1) % ACCUMULATION_STEPS == 0",
        f"        with {hold}:",
        f"            with {autocast}:",
        "                loss = loss_of(model, batch) / ACCUMULATION_STEPS",
        f"            {backward}",
        "        if last:",
        *(f"            {line}" for line in _loop_step(run)),
        "            optimizer.zero_grad()",
    ]
    lines = [f"# {HEADER}"]
    if run.checkpointing != "none":
        lines.append("# Before: model.gradient_checkpointing_enable(), or torch.utils.checkpoint around each block.")
    return "\n".join([*lines, *body]) + "\n"


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


FORMATS = (
    Format("training-arguments", "Hugging Face TrainingArguments", "arguments.py", training_arguments),
    Format("accelerate", "Accelerate", "accelerate.yaml", accelerate_yaml),
    Format("deepspeed", "DeepSpeed", "deepspeed.json", deepspeed_json),
    Format("fsdp", "FSDP", "shard.py", fsdp_script),
    Format("lightning", "Lightning", "trainer.py", lightning_trainer),
    Format("torchrun", "torchrun", "run.sh", torchrun_line),
    Format("loop", "Plain PyTorch loop", "train.py", plain_loop),
)


def export_all(run: RunSettings) -> list[dict[str, str]]:
    """Write every format: ``id``, ``label``, ``file_name`` and ``text``, or ``reason`` where it cannot say this run."""
    rows = []
    for format_ in FORMATS:
        row = {"id": format_.id, "label": format_.label, "file_name": format_.file_name}
        try:
            row["text"] = format_.write(run)
        except ScenarioError as error:
            row["reason"] = error.message
        rows.append(row)
    return rows


def exports_of(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Write every format for an evaluated scenario: its exact plan, or one pass where none is asked for."""
    plan = result["plan"] and (result["plan"]["exact"] or result["plan"]["nearest"][-1])
    scenario = result["scenario"]
    replicas = read_layout(scenario.get("parallelism") or {}, scenario["gpus"]).data
    single = {"micro_batch": result["micro_batch"], "accumulation_steps": 1, "data_parallel": replicas}
    learning_rate = result["convergence"]["learning_rate"]
    run = settings(scenario, plan or single, learning_rate["learning_rate"] if learning_rate else None)
    parts = {
        "id": "csv",
        "label": "CSV of the memory's parts",
        "file_name": "memory.csv",
        "text": components_csv(result["memory"]),
    }
    whole = {"id": "json", "label": "JSON of the whole result", "file_name": "result.json", "text": result_json(result)}
    return [*export_all(run), parts, whole]
