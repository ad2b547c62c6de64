"""Exports are parsed by their own language, run where torch is here, and checked by the libraries that are here."""

from __future__ import annotations

import ast
import csv
import dataclasses
import inspect
import io
import itertools
import json
import re
import shlex
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from calc import export, run_settings
from calc.adapters import target_modules
from calc.catalog import models
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.preconditions import LIGER_MODEL_TYPES
from calc.run_settings import RunSettings
from calc.transformers_limits import (
    WITHOUT_BLOCKS,
    WITHOUT_CHECKPOINTING,
    WITHOUT_FLASH_ATTENTION,
    WITHOUT_SDPA,
)
from page import sections_take
from page.format import escape

PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "fp16", "bf16", "bf16-master", "fp8")
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp")
RUN = RunSettings(micro_batch=8, accumulation_steps=4, gpus=8, data_parallel=8, model_name="gpt2", learning_rate=2e-4)
GRID = [
    dataclasses.replace(RUN, precision=precision, strategy=strategy, checkpointing=checkpointing, cpu_offload=offload)
    for precision, strategy, checkpointing, offload in itertools.product(
        PRECISIONS, STRATEGIES, ("none", "full"), ("none", "optimizer", "all")
    )
]


def call_arguments(text: str, name: str) -> dict[str, Any]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            return {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
    raise AssertionError(text)


@pytest.mark.parametrize("run", GRID, ids=str)
def test_every_export_of_every_setting_parses(run: RunSettings) -> None:
    for row in export.export_all(run):
        assert ("text" in row) != ("reason" in row)
        text = row.get("text", "")
        if row["file_name"].endswith(".py"):
            ast.parse(text)
        elif row["file_name"].endswith(".json"):
            json.loads(text)
        elif row["file_name"].endswith(".yaml"):
            assert yaml.safe_load(text)["num_processes"] == 8
        else:
            assert shlex.split(text, comments=True)[-1] == "train.py"


def test_training_arguments_say_the_plan() -> None:
    arguments = call_arguments(export.training_arguments(RUN), "TrainingArguments")
    assert arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"] * 8 == RUN.global_batch
    assert arguments["bf16"] is True
    assert arguments["optim"] == "adamw_torch"


def test_accelerate_by_strategy() -> None:
    kinds = {
        strategy: yaml.safe_load(export.accelerate_yaml(dataclasses.replace(RUN, strategy=strategy)))[
            "distributed_type"
        ]
        for strategy in STRATEGIES
    }
    assert kinds == {
        "ddp": "MULTI_GPU",
        "zero1": "DEEPSPEED",
        "zero2": "DEEPSPEED",
        "zero3": "DEEPSPEED",
        "fsdp": "FSDP",
    }


def test_deepspeed_batches_multiply() -> None:
    run = dataclasses.replace(RUN, strategy="zero3", cpu_offload="all")
    values = json.loads(export.deepspeed_json(run))
    assert values["train_batch_size"] == 8 * 4 * 8
    assert values["zero_optimization"]["stage"] == 3
    assert values["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert values["bf16"] == {"enabled": True}


def test_torchrun_on_one_and_on_many_nodes() -> None:
    assert export.torchrun_line(RunSettings(1, 1)).endswith("\npython train.py\n")
    assert "--nproc-per-node=8" in export.torchrun_line(RUN)
    many = shlex.split(export.torchrun_line(dataclasses.replace(RUN, gpus=32, nodes=4)))
    assert {"--nnodes=4", "--nproc-per-node=8"} <= set(many)


@pytest.mark.parametrize(
    ("run", "write", "field"),
    [
        (dataclasses.replace(RUN, optimizer="shampoo"), export.plain_loop, "optimizer"),
        (dataclasses.replace(RUN, optimizer="soap"), export.training_arguments, "optimizer"),
        (dataclasses.replace(RUN, strategy="zero3"), export.plain_loop, "parallelism.strategy"),
        (dataclasses.replace(RUN, tensor=8), export.deepspeed_json, "parallelism"),
    ],
)
def test_what_a_format_cannot_say_is_said(run: RunSettings, write: Any, field: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        write(run)
    assert caught.value.field == field


def test_settings_from_a_scenario() -> None:
    scenario = {
        "model": "llama-3.1-8b",
        "gpus": 16,
        "nodes": 2,
        "precision": "bf16",
        "optimizer": "adamw-8bit",
        "method": "lora",
        "lora_targets": ["q_proj", "v_proj"],
        "parallelism": {"strategy": "fsdp", "tensor": 1, "cpu_offload": "none"},
        "sequence_length": 4096,
    }
    run = run_settings.settings(scenario, {"micro_batch": 2, "accumulation_steps": 3, "data_parallel": 16}, 3e-4)
    assert run.global_batch == 96
    assert run.lora_targets == ("q_proj", "v_proj")
    text = export.training_arguments(run)
    assert "target_modules=['q_proj', 'v_proj']" in text
    assert 'dtype="bfloat16"' in text


def test_a_rate_has_six_digits_in_every_file() -> None:
    texts = {
        row["id"]: row.get("text", "") for row in export.export_all(dataclasses.replace(RUN, learning_rate=2e-4 / 3))
    }
    assert all("6.66667e-05" in texts[name] for name in ("training-arguments", "deepspeed", "loop"))
    assert not any("6.666666" in text for text in texts.values())


def test_one_token_is_one() -> None:
    loop = {row["id"]: row.get("text", "") for row in export.export_all(dataclasses.replace(RUN, sequence_length=1))}
    assert any("samples of up to 1 token" in text for text in loop.values())
    assert not any("1 tokens" in text for text in loop.values())


def test_presets_are_loaded_by_their_published_names() -> None:
    fitting = {"model": "llama-3.2-1b", "gpu": "h100-sxm-80gb"}
    exports = {row["id"]: row.get("text", "") for row in export.exports_of(evaluate(fitting))}
    assert 'AutoModelForCausalLM.from_pretrained("' in exports["training-arguments"]
    assert "llama-3.2-1b" not in exports["training-arguments"]
    given = {"model": "resnet50", "optimizer": "sgd", "global_batch": 64, "known_batch": 32}
    vision = {
        row["id"]: row.get("text", "") for row in export.exports_of(evaluate({**given, "known_learning_rate": 0.1}))
    }
    assert 'torchvision.models.get_model("resnet50")' in vision["training-arguments"]
    assert "learning_rate=0.2," in vision["training-arguments"]
    assert vision["csv"].startswith("id,label,bytes")
    assert "MICRO_BATCH = 64" in vision["loop"]


def test_tables_as_csv() -> None:
    memory = {"components": [{"id": "weights", "label": "Weights, all", "bytes": 5, "formula": "n x 4", "source": "s"}]}
    rows = list(csv.DictReader(io.StringIO(export.components_csv(memory))))
    assert rows == [{"id": "weights", "label": "Weights, all", "bytes": "5", "formula": "n x 4", "source": "s"}]
    assert export.table_csv([]) == ""
    with pytest.raises(ScenarioError, match="extra"):
        export.table_csv([{"a": 1}, {"a": 1, "extra": 2}])


def test_results_as_json_hold_no_nan() -> None:
    assert json.loads(export.result_json({"a": [1, 2.5]})) == {"a": [1, 2.5]}
    with pytest.raises(ValueError, match="Out of range"):
        export.result_json({"a": float("nan")})


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p != "fp8"])
@pytest.mark.parametrize("optimizer", ["sgd", "sgd-momentum", "adam", "adamw", "adafactor", "adagrad", "rmsprop"])
def test_the_loop_trains(precision: str, optimizer: str) -> None:
    torch = pytest.importorskip("torch")
    run = RunSettings(4, 2, precision=precision, optimizer=optimizer, learning_rate=0.05)
    names: dict[str, Any] = {}
    exec(compile(export.plain_loop(run), "train.py", "exec"), names)  # noqa: S102
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    inputs = torch.randn(4, 3)
    target = inputs.sum(1, keepdim=True)
    losses = []

    def loss_of(module: Any, batch: Any) -> Any:
        dtype = next(module.parameters()).dtype
        loss = torch.nn.functional.mse_loss(module(batch.to(dtype)).float(), target)
        losses.append(loss.item())
        return loss

    names["train"](model, [inputs] * 40, loss_of, device="cpu")
    assert losses[-1] < losses[0]


def test_hugging_face_knows_the_arguments() -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    fields = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    names = {member.value for member in transformers.training_args.OptimizerNames}
    for run in GRID:
        arguments = call_arguments(export.training_arguments(run), "TrainingArguments")
        assert set(arguments) <= fields
    assert set(export._HUGGING_FACE_OPTIMIZERS.values()) <= names
    plain = call_arguments(export.training_arguments(dataclasses.replace(RUN, precision="fp32")), "TrainingArguments")
    assert transformers.TrainingArguments(**plain, use_cpu=True).per_device_train_batch_size == 8


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_accelerate_reads_its_file(strategy: str, tmp_path: Any) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    path = tmp_path / "accelerate.yaml"
    path.write_text(export.accelerate_yaml(dataclasses.replace(RUN, strategy=strategy)))
    loaded = config_args.load_config_from_file(str(path))
    assert loaded.num_processes == 8


def test_lightning_takes_the_arguments() -> None:
    lightning = pytest.importorskip("lightning")
    run = dataclasses.replace(RUN, gpus=1, data_parallel=1)
    arguments = call_arguments(export.lightning_trainer(run), "Trainer")
    trainer = lightning.Trainer(**{**arguments, "accelerator": "cpu"}, logger=False)
    assert trainer.accumulate_grad_batches == 4


def test_peft_takes_the_adapter() -> None:
    peft = pytest.importorskip("peft")
    text = export.training_arguments(dataclasses.replace(RUN, method="qlora"))
    line = next(line for line in text.splitlines() if "LoraConfig(" in line and "import" not in line)
    arguments = call_arguments(line.removeprefix("# "), "LoraConfig")
    assert peft.LoraConfig(**arguments).r == 16


EXAMPLE = {"model": "gpt2", "gpu": "rtx-4090-24gb", "precision": "bf16"}
SAVING = {"loss": "fused", "checkpointing": "full", "attention": "flash-attention-2"}
RUNNABLE = {format_.id for format_ in export.FORMATS}


def said_by(scenario: dict[str, Any]) -> dict[str, str]:
    """All that is said in or beside each file to run."""
    rows = export.exports_of(evaluate(scenario))
    return {row["id"]: row.get("note", "") + row["text"] for row in rows if row["id"] in RUNNABLE and "text" in row}


def test_every_file_says_what_the_batch_hangs_on() -> None:
    assert evaluate({**EXAMPLE, **SAVING})["max_micro_batch"] > 10 * evaluate(EXAMPLE)["max_micro_batch"]
    said = said_by({**EXAMPLE, **SAVING})
    assert set(said) == RUNNABLE
    for name, text in said.items():
        # The words of the libraries: Liger Kernel, transformers' and torch's checkpointing, attn_implementation.
        assert "LigerFusedLinearCrossEntropyLoss" in text, name
        assert "gradient_checkpointing" in text, name
        assert "flash_attention_2" in text, name
        assert "1,024 tokens" in text, name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_file_says_precision_and_optimizer(precision: str) -> None:
    words = {
        "fp32": 'float32|no autocast|mixed_precision: "no"|32-true',
        "tf32": "set_float32_matmul_precision|tf32=True",
        "amp-fp16": r"\bfloat16|fp16|16-mixed",
        "amp-bf16": "bfloat16|bf16",
        "fp16": r"\bfloat16|fp16|16-true",
        "bf16": "bfloat16|bf16",
        "bf16-master": "bfloat16|bf16|deepspeed.json",
        "fp8": "fp8_autocast|fp8|transformer-engine",
    }[precision]
    said = said_by({"model": "gpt2", "gpu": "h100-sxm-80gb", "precision": precision})
    for name, text in said.items():
        if name == "torchrun":  # It starts the plain loop, which sets both.
            continue
        assert re.search(words, text), name
        assert re.search("adamw", text, re.IGNORECASE) or "deepspeed.json" in text, name


@pytest.mark.parametrize(("wanted", "made"), [(100, 99), (101, 102)])
def test_a_batch_that_no_split_makes_is_written_and_timed_as_the_closest(wanted: int, made: int) -> None:
    result = evaluate({"model": "gpt2", "gpu": "rtx-4090-24gb", "gpus": 3, "global_batch": wanted})
    text = next(row["text"] for row in export.exports_of(result) if row["id"] == "training-arguments")
    arguments = call_arguments(text, "TrainingArguments")
    written = arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"]
    assert written[0] * written[1] * 3 == made
    assert written == (result["time"]["micro_batch"], result["time"]["accumulation_steps"])


def test_samples_and_adapters_are_said() -> None:
    scenario = {"model": "t5-small", "method": "lora", "lora_targets": "attention", "target_length": 77}
    for name, text in said_by({**scenario, "sequence_length": 300}).items():
        assert "300 tokens, 77 target tokens" in text, name
        assert "target_modules=['q', 'k', 'v', 'o']" in text, name


@pytest.mark.parametrize(
    "scenario",
    [
        {"model": "llama-3.1-8b", "gpu": "rtx-4090-24gb"},
        {"model": "llama-3.1-8b", "gpu": "rtx-4090-24gb", "global_batch": 128},
        {"model": "gpt2", "gpu": "rtx-4090-24gb", "micro_batch": 1000, "global_batch": 128_000},
    ],
)
def test_what_does_not_fit_gives_no_file_to_run(scenario: dict[str, Any]) -> None:
    result = evaluate(scenario)
    rows = {row["id"]: row for row in export.exports_of(result)}
    for name in RUNNABLE:
        assert "text" not in rows[name]
        assert f"{result['memory']['peak_reserved_bytes'] / 2**30:.2f} GiB" in rows[name]["reason"]
    assert json.loads(rows["json"]["text"])["fits"] is False
    assert ("nothing fits" in rows["loop"]["reason"]) == (result["max_micro_batch"] == 0)


# Parameters that peft 0.21.2 trains at rank 8 on the models of transformers 5.17 with these target_modules.
ADAPTED = {
    "gpt2": (("c_attn", "attn.c_proj"), 442_368),
    "bert-base": (("query", "key", "value", "attention.output.dense"), 589_824),
    "albert-base": (("query", "key", "value", "attention.dense"), 49_152),
    "deberta-v3-small": (("query_proj", "key_proj", "value_proj", "attention.output.dense"), 294_912),
    "modernbert-base": (("Wqkv", "attn.Wo"), 811_008),
    "t5-small": (("q", "k", "v", "o"), 589_824),
    "pythia-70m": (("query_key_value", "dense"), 147_456),
    "phi-2": (("q_proj", "k_proj", "v_proj", "dense"), 5_242_880),
    "falcon-7b": (("query_key_value", "dense"), 4_685_824),
    "bart-base": (("q_proj", "k_proj", "v_proj", "out_proj"), 884_736),
}
ADAPTED_TYPES = {
    "gpt_bigcode": (("c_attn", "attn.c_proj"), 307_200),
    "siglip": (("q_proj", "k_proj", "v_proj", "self_attn.out_proj"), 589_824),
    "data2vec-vision": (("query", "key", "value", "attention.output.dense"), 589_824),
    "deberta": (("in_proj", "attention.output.dense"), 442_368),
    "rembert": (("query", "key", "value", "attention.output.dense"), 2_359_296),
    "camembert": (("query", "key", "value", "attention.output.dense"), 589_824),
    "mpt": (("Wqkv", "out_proj"), 2_359_296),
}


@pytest.mark.parametrize("model", [*ADAPTED, *ADAPTED_TYPES])
def test_attention_is_named_as_the_model_names_it(model: str) -> None:
    targets, trained = ADAPTED.get(model) or ADAPTED_TYPES[model]
    given = model if model in ADAPTED else {"model_type": model}
    scenario = {"model": given, "gpu": "h200-sxm-141gb", "method": "lora", "lora_targets": "attention", "lora_rank": 8}
    assert target_modules(scenario) == targets
    result = evaluate(scenario)
    assert result["trainable_parameters"] == trained
    rows = {row["id"]: row.get("text", "") for row in export.exports_of(result)}
    assert f"target_modules={list(targets)!r}" in rows["training-arguments"]


@pytest.mark.filterwarnings("ignore")  # The libraries' own, of Conv1D and of torch.jit.
@pytest.mark.parametrize("model", list(ADAPTED))
def test_peft_adapts_what_was_counted(model: str) -> None:
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    targets, trained = ADAPTED[model]
    preset = models.preset(model)
    classes = {"masked-lm": "AutoModelForMaskedLM", "seq2seq-lm": "AutoModelForSeq2SeqLM"}
    config = dict(preset.config)
    loader = getattr(transformers, classes.get(preset.task, "AutoModelForCausalLM"))
    with torch.device("meta"):
        made = loader.from_config(transformers.AutoConfig.for_model(config.pop("model_type"), **config))
    adapted = peft.get_peft_model(made, peft.LoraConfig(r=8, target_modules=list(targets)))
    assert sum(p.numel() for p in adapted.parameters() if p.requires_grad) == trained


def test_unknown_names_are_said() -> None:
    said = said_by({"model": "swin_t", "method": "lora", "lora_targets": "attention"})
    assert all("not known here" in text for text in said.values())
    assert not any("o_proj" in text for text in said.values())


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16", "bfloat16"), ("amp-bf16", "bfloat16"), ("amp-fp16", "float16"), ("fp16", "float16"), ("fp32", "float32")],
)
def test_four_bit_weights_compute_in_the_precision(precision: str, dtype: str) -> None:
    text = export.training_arguments(dataclasses.replace(RUN, method="qlora", precision=precision))
    line = next(line for line in text.splitlines() if "BitsAndBytesConfig(" in line)
    arguments = call_arguments(line.removeprefix("# "), "BitsAndBytesConfig")
    assert arguments["bnb_4bit_compute_dtype"] == dtype
    assert arguments["load_in_4bit"] is True


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_four_bit_weights_are_stored_as_a_type_that_shards(strategy: str) -> None:
    # bitsandbytes' FSDP-QLoRA guide: FSDP shards float types alone, and the storage is torch.uint8 by default.
    run = dataclasses.replace(RUN, method="qlora", precision="amp-bf16", strategy=strategy)
    rows = {row["id"]: row.get("note", "") + row.get("text", "") for row in export.export_all(run)}
    assert 'bnb_4bit_quant_storage="bfloat16"' in rows["fsdp"]  # It shards whatever the strategy.
    names = ("training-arguments", "accelerate", "deepspeed", "torchrun")
    for name in names if strategy == "fsdp" else (*names, "lightning"):
        assert ('bnb_4bit_quant_storage="bfloat16"' in rows[name]) == (strategy in {"zero3", "fsdp"}), name


def test_fsdp_units_are_blocks_or_named() -> None:
    # Lightning's auto_wrap_policy is None by default: the root alone would be wrapped, and gathered whole.
    run = dataclasses.replace(RUN, strategy="fsdp", cpu_offload="all")
    text = export.lightning_trainer(run)
    assert "strategy=FSDPStrategy(auto_wrap_policy=blocks, cpu_offload=True)," in text
    assert "from lightning.pytorch.strategies import FSDPStrategy" in text
    assert "offload" not in text.split("from lightning", maxsplit=1)[0]
    for library in ("torchvision", "diffusers"):
        other = dataclasses.replace(run, library=library, architecture="UNet2DConditionModel")
        for write in (
            export.lightning_trainer,
            export.accelerate_yaml,
            export.training_arguments,
            export.torchrun_line,
        ):
            assert "#   FSDP units of one block each" in write(other), write
        assert "blocks: list" in export.fsdp_script(other)


def test_the_trainer_finds_the_blocks() -> None:
    class Block:
        pass

    class Model:
        _no_split_modules = ("Block",)

        def modules(self) -> list[Any]:
            return [self, Block(), Block()]

    text = export.lightning_trainer(dataclasses.replace(RUN, strategy="fsdp"))
    made: dict[str, Any] = {"Trainer": dict, "FSDPStrategy": dict}
    written = "\n".join(line for line in text.splitlines() if not line.startswith("from "))
    exec(compile(written, "trainer.py", "exec"), made)  # noqa: S102
    assert made["trainer_of"](Model())["strategy"] == {"auto_wrap_policy": {Block}}


def test_fsdp_holds_fp32_weights_and_says_so() -> None:
    given = {"model": "llama-3.2-1b", "gpu": "h100-sxm-80gb", "gpus": 2, "parallelism": {"strategy": "fsdp"}}
    largest = {p: evaluate({**given, "precision": p})["max_micro_batch"] for p in ("amp-bf16", "bf16-master")}
    assert largest["bf16-master"] > largest["amp-bf16"]
    run = dataclasses.replace(RUN, strategy="fsdp", precision="bf16-master")
    for write in (export.training_arguments, export.accelerate_yaml, export.fsdp_script, export.lightning_trainer):
        text = write(run)
        assert "computes for that" in text
        assert "float32" in text
        assert 'dtype="bfloat16"' not in text
        assert "weights in bfloat16" not in text
    # Adapters are in fp32 beside 16-bit weights either way.
    assert 'dtype="bfloat16"' in export.training_arguments(dataclasses.replace(run, method="lora"))


@pytest.mark.parametrize("strategy", ["fsdp", "zero3"])
def test_lightning_shards_no_fp8(strategy: str) -> None:
    # Its FSDPPrecision and DeepSpeedPrecision raise a ValueError for "transformer-engine".
    with pytest.raises(ScenarioError) as caught:
        export.lightning_trainer(dataclasses.replace(RUN, precision="fp8", method="lora", strategy=strategy))
    assert caught.value.field == "precision"


def test_a_file_without_a_place_for_the_batch_says_it() -> None:
    for write in (export.accelerate_yaml, export.fsdp_script, export.torchrun_line):
        said = "# Micro-batch 8 per GPU, 4 accumulation steps: 256 samples per update on 8 GPUs."
        assert said in write(RUN).splitlines(), write
    split = dataclasses.replace(RUN, data_parallel=4, tensor=2, accumulation_steps=1)
    said = "# Micro-batch 8 per replica, 1 accumulation step: 32 samples per update on 8 GPUs."
    assert said in export.torchrun_line(split).splitlines()


def test_a_rate_is_the_suggested_one_or_a_placeholder_and_says_so() -> None:
    vision = {"model": "resnet50", "gpu": "a100-sxm-80gb", "gpus": 8, "global_batch": 4096}
    for optimizer in ("sgd-momentum", "lars"):  # 0.1 x 4096 / 256: Goyal et al. 2017.
        said = said_by({**vision, "optimizer": optimizer})
        assert all("lr=1.6" in said[name] for name in ("accelerate", "fsdp", "lightning", "loop"))
    rates = {
        optimizer: RunSettings(8, 1, optimizer=optimizer).rate
        for optimizer in ("sgd", "adamw", "lion", "adagrad", "galore-adamw")
    }
    assert rates == {"sgd": 0.00313, "adamw": 1e-4, "lion": 3e-5, "adagrad": 1e-2, "galore-adamw": 1e-4}
    known = {"known_batch": 256, "known_learning_rate": 1e-3}
    for given, placeholder in (({}, True), (known, False)):
        for name, text in said_by({"model": "bert-base", "gpu": "a100-sxm-80gb", "global_batch": 256, **given}).items():
            if name != "torchrun":  # Its rate stands in train.py.
                assert ("placeholder" in text) == placeholder, name
                assert re.search(r"0\.0001\b" if placeholder else r"0\.001\b", text), name


@pytest.mark.parametrize(("offload", "stage"), [("optimizer", 1), ("all", 3)])
def test_deepspeed_offloads_on_one_gpu(offload: str, stage: int) -> None:
    run = RunSettings(8, 1, cpu_offload=offload)
    assert json.loads(export.deepspeed_json(run))["zero_optimization"]["stage"] == stage
    assert "offload" not in export.deepspeed_note(run)


def test_what_deepspeed_does_instead_of_autocast_is_said() -> None:
    zero = dataclasses.replace(RUN, strategy="zero2")
    for write in (export.training_arguments, export.accelerate_yaml, export.lightning_trainer, export.deepspeed_note):
        assert "instead of autocast" in write(zero), write
        assert "instead of autocast" not in write(dataclasses.replace(zero, precision="bf16-master")), write


def test_fp8_is_left_to_accelerate() -> None:
    # bf16=True would set TrainingArguments.mixed_precision, which goes before accelerate.yaml's.
    plain = dataclasses.replace(RUN, precision="fp8")
    assert "bf16" not in call_arguments(export.training_arguments(plain), "TrainingArguments")
    assert "--config_file accelerate.yaml" in export.training_arguments(plain)
    assert yaml.safe_load(export.accelerate_yaml(plain))["mixed_precision"] == "fp8"
    sharded = dataclasses.replace(plain, strategy="fsdp")
    assert all("to fp32 under fp8" in write(sharded) for write in (export.training_arguments, export.accelerate_yaml))
    on_deepspeed = export.training_arguments(dataclasses.replace(plain, strategy="zero2"))
    assert "switched on" not in on_deepspeed
    assert "#   precision: linear layers of Transformer Engine" in on_deepspeed


def test_a_process_has_its_own_gpu() -> None:
    for text in (export.plain_loop(RUN), export.fsdp_script(RUN)):
        assert "torch.cuda.set_device" in text
    assert "set_device" not in export.plain_loop(RunSettings(8, 1))
    # Without a launcher, Trainer would wrap the model in torch.nn.DataParallel.
    assert "one process on each" in export.training_arguments(RUN)


def test_one_sample_is_not_many() -> None:
    one = RunSettings(1, 1)
    for text in (export.training_arguments(one), export.lightning_trainer(one), export.plain_loop(one)):
        assert "1 sample per update" in text
    assert "8 samples per update" in export.plain_loop(dataclasses.replace(one, micro_batch=8))


def test_liger_is_switched_on_only_where_it_fuses() -> None:
    fused = dataclasses.replace(RUN, loss="fused", architecture="llama")
    assert call_arguments(export.training_arguments(fused), "TrainingArguments")["use_liger_kernel"] is True
    assert "AutoLigerKernelForCausalLM" in export.lightning_trainer(fused)
    unknown = export.training_arguments(dataclasses.replace(fused, architecture="gpt2"))
    assert "use_liger_kernel" not in call_arguments(unknown, "TrainingArguments")
    assert "LigerFusedLinearCrossEntropyLoss" in unknown


def test_liger_patches_these() -> None:
    patches = pytest.importorskip("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN
    for model_type in LIGER_MODEL_TYPES:
        default = inspect.signature(patches[model_type]).parameters["fused_linear_cross_entropy"].default
        assert default is True, model_type


def test_deepspeed_holds_no_copies_that_were_not_counted() -> None:
    # deepspeed/runtime/config.py asserts stages 1 to 3 for bf16_master_weights_and_grads and bf16_optimizer_states.
    values = json.loads(export.deepspeed_json(RunSettings(8, 1, precision="bf16")))
    assert values["bf16"] == {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    assert values["zero_optimization"]["stage"] == 1
    assert json.loads(export.deepspeed_json(RunSettings(8, 1, precision="bf16-master")))["bf16"] == {"enabled": True}


def test_master_weights_are_left_to_deepspeed() -> None:
    # Autocast, which Trainer, Accelerate and Lightning would do instead, needs more: a batch that fits one way may not
    # fit the other.
    given = {"model": "gpt2", "gpu": "h100-sxm-80gb"}
    largest = {p: evaluate({**given, "precision": p})["max_micro_batch"] for p in ("amp-bf16", "bf16-master")}
    assert largest["bf16-master"] > largest["amp-bf16"]
    run = RunSettings(8, 1, precision="bf16-master")
    assert call_arguments(export.training_arguments(run), "TrainingArguments")["deepspeed"] == "deepspeed.json"
    assert yaml.safe_load(export.accelerate_yaml(run))["distributed_type"] == "DEEPSPEED"
    assert call_arguments(export.lightning_trainer(run), "Trainer")["strategy"] == "deepspeed_stage_1"


def test_whole_blocks_need_less_than_selective() -> None:
    # Why a file that cannot checkpoint selectively may checkpoint whole blocks.
    given = {"model": "llama-3.2-1b", "gpu": "h100-sxm-80gb"}
    largest = {c: evaluate({**given, "checkpointing": c})["max_micro_batch"] for c in ("selective", "full")}
    assert largest["full"] > largest["selective"]
    run = dataclasses.replace(RUN, checkpointing="selective")
    assert "less memory than selective" in export.training_arguments(run)


def test_expert_parallelism_is_refused() -> None:
    with pytest.raises(ScenarioError, match="expert"):
        export.plain_loop(dataclasses.replace(RUN, expert=4))


def test_gradients_that_stay_are_kept_by_the_loop() -> None:
    # torch.optim.Optimizer.zero_grad: set_to_none is True by default.
    assert "zero_grad(set_to_none=False)" in export.plain_loop(dataclasses.replace(RUN, zero_grad="keep"))


def test_a_note_stands_beside_its_file() -> None:
    rows = export.exports_of(evaluate({**EXAMPLE, **SAVING}))
    shown = sections_take.exports({"exports": rows})
    note = next(row["note"] for row in rows if row["id"] == "deepspeed")
    assert note.startswith("Before:")
    assert escape(note) in shown
    assert shown.index(escape(note)) < shown.index("file-deepspeed-text")


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
def test_fsdp_checkpoints_and_trainer_does_not(checkpointing: str) -> None:
    # transformers/trainer.py refuses its own checkpointing beside FSDP's.
    run = dataclasses.replace(RUN, strategy="fsdp", checkpointing=checkpointing)
    wanted = checkpointing != "none"
    arguments = call_arguments(export.training_arguments(run), "TrainingArguments")
    assert "gradient_checkpointing" not in arguments
    assert arguments["fsdp_config"].get("activation_checkpointing", False) == wanted
    written = export.accelerate_yaml(run)
    assert yaml.safe_load(written)["fsdp_config"]["fsdp_activation_checkpointing"] == wanted
    # Accelerate looks for the blocks in model._no_split_modules, which torchvision's models have not.
    vision = export.accelerate_yaml(dataclasses.replace(run, library="torchvision"))
    assert yaml.safe_load(vision)["fsdp_config"]["fsdp_activation_checkpointing"] is False
    assert ("#   activation checkpointing of every block" in vision) == (checkpointing == "full")


def test_one_gpu_is_not_sharded() -> None:
    run = RunSettings(8, 1, strategy="fsdp", cpu_offload="all")
    text = export.training_arguments(run)
    assert not {"fsdp", "fsdp_config"} & set(call_arguments(text, "TrainingArguments"))
    assert "#   offload to the CPU" in text
    # What FSDP would do to the fp32 copies it does not do either.
    master = export.training_arguments(dataclasses.replace(run, precision="bf16-master"))
    assert "FSDP" not in master
    assert call_arguments(master, "TrainingArguments")["deepspeed"] == "deepspeed.json"


@pytest.mark.parametrize(
    "changed",
    [{"precision": "bf16-master"}, {"strategy": "zero1"}, {"strategy": "zero3"}, {"strategy": "zero2"}],
)
def test_one_gpu_with_deepspeed_is_started_by_a_launcher(changed: dict[str, Any]) -> None:
    # Under plain python, deepspeed.comm.init_distributed imports mpi4py.
    run = dataclasses.replace(RunSettings(8, 1), **changed)
    assert "torchrun --standalone --nproc-per-node=1 train.py" in export.torchrun_line(run)
    for said in (export.training_arguments(run), export.deepspeed_note(run)):
        assert "start with torchrun" in said.lower()


def test_one_gpu_that_offloads_is_started_by_a_launcher() -> None:
    assert "torchrun" in export.torchrun_line(RunSettings(8, 1, cpu_offload="optimizer"))
    assert "torchrun" not in export.training_arguments(RunSettings(8, 1))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_accelerate_on_several_nodes(strategy: str) -> None:
    # With DeepSpeed's own launcher, Accelerate's default, each node would need a hostfile and pdsh.
    text = export.accelerate_yaml(dataclasses.replace(RUN, gpus=16, nodes=2, data_parallel=16, strategy=strategy))
    values = yaml.safe_load(text)
    assert "# Each node has a machine_rank of its own, from 0 on the first to 1: change it there." in text.splitlines()
    if strategy.startswith("zero"):
        assert values["deepspeed_config"]["deepspeed_multinode_launcher"] == "standard"
    one = export.accelerate_yaml(dataclasses.replace(RUN, strategy=strategy))
    assert "multinode" not in one
    assert "Each node" not in one


@pytest.mark.parametrize("strategy", STRATEGIES[:4])
def test_deepspeed_takes_lamb_and_muon(strategy: str) -> None:
    run = dataclasses.replace(RUN, strategy=strategy)
    lamb = json.loads(export.deepspeed_json(dataclasses.replace(run, optimizer="lamb")))
    assert lamb.get("zero_allow_untested_optimizer", False) == (strategy != "ddp")
    muon = json.loads(export.deepspeed_json(dataclasses.replace(run, optimizer="muon")))["zero_optimization"]
    assert muon.get("reduce_scatter", True) == (strategy != "zero3")
    assert "untested" not in export.deepspeed_json(run)


@pytest.mark.parametrize(
    ("strategy", "offload", "written"),
    [
        ("zero2", "optimizer", "'deepspeed_stage_2_offload'"),
        ("zero3", "optimizer", "DeepSpeedStrategy(stage=3, offload_optimizer=True)"),
        ("zero3", "all", "'deepspeed_stage_3_offload'"),
    ],
)
def test_lightning_offloads_no_more_than_was_asked_for(strategy: str, offload: str, written: str) -> None:
    # deepspeed_stage_3_offload is offload_optimizer and offload_parameters.
    run = dataclasses.replace(RUN, strategy=strategy, cpu_offload=offload)
    text = export.lightning_trainer(run)
    assert f"strategy={written}," in text
    assert ("import DeepSpeedStrategy" in text) == written.startswith("DeepSpeedStrategy")
    assert "#   offload to the CPU" not in text
    # DeepSpeed refuses torch's optimizers beside offload.
    assert "#   optimizer: deepspeed.ops.adam.DeepSpeedCPUAdam(parameters, lr=0.0002, weight_decay=0.0)" in text
    adam = export.lightning_trainer(dataclasses.replace(run, optimizer="adam"))
    assert "DeepSpeedCPUAdam(parameters, lr=0.0002, weight_decay=0.0, adamw_mode=False)" in adam
    with pytest.raises(ScenarioError, match="offload under Lightning"):
        export.lightning_trainer(dataclasses.replace(run, optimizer="adagrad"))


def test_lightning_knows_the_offload() -> None:
    strategies = pytest.importorskip("lightning.pytorch.strategies")
    pytest.importorskip("deepspeed")
    run = dataclasses.replace(RUN, strategy="zero3", cpu_offload="optimizer")
    made = strategies.DeepSpeedStrategy(**call_arguments(export.lightning_trainer(run), "DeepSpeedStrategy"))
    zero = made.config["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == "cpu"
    assert "offload_param" not in zero


def test_four_bit_weights_go_to_the_gpu_of_their_process() -> None:
    # Without device_map, bitsandbytes takes torch.cuda.current_device(): the first, until TrainingArguments are made.
    for library, architecture in (("transformers", "llama"), ("diffusers", "UNet2DConditionModel")):
        run = dataclasses.replace(RUN, method="qlora", library=library, architecture=architecture)
        text = export.training_arguments(run)
        assert 'device_map={"": int(os.environ["LOCAL_RANK"])}' in text
        assert "# import os" in text
        assert "device_map" not in export.training_arguments(dataclasses.replace(run, gpus=1, data_parallel=1))
    assert "device_map" not in export.training_arguments(dataclasses.replace(RUN, method="lora"))


def test_lightning_shards_no_mixed_types() -> None:
    # torch/distributed/fsdp/_flat_param.py: "Must flatten tensors with uniform dtype".
    fsdp = dataclasses.replace(RUN, strategy="fsdp")
    for mixed in (
        dataclasses.replace(fsdp, method="qlora"),
        dataclasses.replace(fsdp, method="lora", precision="bf16-master"),
    ):
        with pytest.raises(ScenarioError) as caught:
            export.lightning_trainer(mixed)
        assert caught.value.field == "method"
    for run in (
        dataclasses.replace(RUN, method="qlora"),
        dataclasses.replace(fsdp, method="qlora", gpus=1, data_parallel=1),
        dataclasses.replace(fsdp, method="lora"),
        dataclasses.replace(fsdp, precision="bf16-master"),
    ):
        assert "Trainer(" in export.lightning_trainer(run)


@pytest.mark.parametrize("model", ["googlenet", "inception_v3"])
def test_auxiliary_classifiers_are_left_out(model: str) -> None:
    text = said_by({"model": model, "optimizer": "sgd"})["training-arguments"]
    line = next(line for line in text.splitlines() if "get_model(" in line).removeprefix("# model = ")
    assert line == f'torchvision.models.get_model("{model}", aux_logits=False, init_weights=True)'
    torchvision = pytest.importorskip("torchvision")
    made = torchvision.models.get_model(model, aux_logits=False, init_weights=False)
    assert sum(parameter.numel() for parameter in made.parameters()) == models.preset(model).parameters


@pytest.mark.parametrize(
    ("task", "written"),
    [
        ("causal-lm", "CAUSAL_LM"),
        ("seq2seq-lm", "SEQ_2_SEQ_LM"),
        ("sequence-classification", "SEQ_CLS"),
        ("masked-lm", ""),
        ("speech-seq2seq", ""),
    ],
)
def test_adapters_know_their_task(task: str, written: str) -> None:
    # Without SEQ_CLS, peft freezes the classifier that from_pretrained has just initialized.
    run = dataclasses.replace(RUN, method="lora", task=task)
    for text in (export.training_arguments(run), export.plain_loop(run)):
        assert (f'task_type="{written}"' in text) == bool(written)
        assert ("task_type" in text) == bool(written)


@pytest.mark.filterwarnings("ignore")  # peft's own, of names that transformers renames.
def test_the_new_classifier_trains() -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=9, **sizes))
    run = dataclasses.replace(RUN, method="lora", task="sequence-classification", lora_targets=("query",))
    line = next(line for line in export.training_arguments(run).splitlines() if "LoraConfig(" in line)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**call_arguments(line.removeprefix("# "), "LoraConfig")))
    assert any("classifier" in name for name, part in adapted.named_parameters() if part.requires_grad)


def test_sharded_float16_scales_its_loss() -> None:
    # MixedPrecisionPolicy casts; without a scaler small gradients in float16 are zero.
    assert 'scaler = torch.amp.GradScaler("cuda")' in export.fsdp_script(dataclasses.replace(RUN, precision="amp-fp16"))
    for precision in PRECISIONS:
        text = export.fsdp_script(dataclasses.replace(RUN, precision=precision))
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        if precision != "amp-fp16":
            assert "GradScaler" not in text


def test_galore_finds_the_layers_of_every_block() -> None:
    run = dataclasses.replace(RUN, optimizer="galore-adamw", architecture="bert")
    pattern = call_arguments(export.training_arguments(run), "TrainingArguments")["optim_target_modules"]
    inside = (
        "model.layers.0.self_attn.q_proj",
        "model.layers.11.mlp.down_proj",
        "bert.encoder.layer.3.attention.self.query",
        "encoder.block.0.layer.0.SelfAttention.q",
        "gpt_neox.layers.5.attention.query_key_value",
    )
    assert all(re.fullmatch(pattern, name) for name in inside)
    assert not any(re.fullmatch(pattern, name) for name in ("lm_head", "embed_out", "cls.predictions.decoder", "fc"))
    vision = export.training_arguments(dataclasses.replace(run, library="torchvision"))
    assert "optim_target_modules='all-linear'" in vision
    # Its blocks are of Conv1D, and Trainer would stop: "No target modules found".
    with pytest.raises(ScenarioError, match=r"torch\.nn\.Linear"):
        export.training_arguments(dataclasses.replace(run, architecture="gpt2"))


@pytest.mark.parametrize(("model_type", "linear"), [("llama", 7), ("bert", 6), ("gpt2", 0), ("gpt_neox", 4)])
def test_trainer_finds_what_galore_names(model_type: str, linear: int) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model(model_type, **(sizes if linear else {"n_embd": 8, "n_layer": 1, "n_head": 2}))
    )
    pattern = export._galore_targets(dataclasses.replace(RUN, architecture="llama"))
    exists = transformers.trainer_utils.check_target_module_exists
    found = [n for n, part in model.named_modules() if isinstance(part, torch.nn.Linear) and exists(pattern, n)]
    assert len(found) == linear


def test_units_are_not_claimed_where_the_library_names_no_blocks() -> None:
    run = dataclasses.replace(RUN, strategy="fsdp", architecture="electra", task="masked-lm", checkpointing="full")
    said = "#   FSDP units of one block each: an auto-wrap policy with the classes of the model's blocks (transformers"
    for write in (export.training_arguments, export.accelerate_yaml, export.lightning_trainer, export.torchrun_line):
        assert said in write(run), write
        assert "FSDP units" not in export.training_arguments(dataclasses.replace(run, architecture="llama"))
    assert "auto_wrap_policy" not in export.lightning_trainer(run)
    # Accelerate checkpoints units; where it finds none, Trainer checkpoints.
    arguments = call_arguments(export.training_arguments(run), "TrainingArguments")
    assert arguments["gradient_checkpointing"] is True
    assert "activation_checkpointing" not in arguments["fsdp_config"]
    assert "fsdp_activation_checkpointing: false" in export.accelerate_yaml(run)


# One model of each kind that transformers makes without sizes.
LIMITED = (
    "albert",
    "bert",
    "bloom",
    "convnext",
    "deberta-v2",
    "electra",
    "gemma2",
    "gpt2",
    "gpt_neo",
    "llama",
    "mpnet",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", [*LIMITED, "beit", "distilbert", "mpt", "pegasus", "swin", "t5", "wav2vec2"])
def test_transformers_has_these_limits(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(model_type))
    assert (model_type in WITHOUT_SDPA) == (not model._supports_sdpa)
    assert (model_type in WITHOUT_FLASH_ATTENTION) == (not model._supports_flash_attn)
    assert (model_type in WITHOUT_CHECKPOINTING) == (not model.supports_gradient_checkpointing)
    assert (model_type in WITHOUT_BLOCKS) == (not model._no_split_modules)


@pytest.mark.parametrize(
    ("architecture", "attention", "taken"),
    [
        ("gemma2", "sdpa", "plain matrix products"),
        ("bloom", "sdpa", "plain matrix products"),
        ("bloom", "flash-attention-2", "plain matrix products"),
        ("swin", "flash-attention-2", "SDPA"),
        ("gemma2", "flash-attention-2", ""),
        ("swin", "sdpa", ""),
        ("bloom", "eager", ""),
    ],
)
def test_a_refused_kernel_is_not_asked_for(architecture: str, attention: str, taken: str) -> None:
    run = dataclasses.replace(RUN, architecture=architecture, attention=attention)
    text = export.training_arguments(run)
    assert ("attn_implementation" in text) == (not taken)
    refusal = f"which transformers refuses for {architecture}: it takes {taken}, with which"
    for said in (text, export.lightning_trainer(run), export.torchrun_line(run), export.deepspeed_note(run)):
        assert (refusal in said) == bool(taken)


def test_no_kernel_is_named_where_there_is_no_attention() -> None:
    for row in export.export_all(dataclasses.replace(RUN, architecture="convnext", task="image-classification")):
        said = row.get("text", "") + row.get("note", "")
        assert "attention" not in said, row["id"]
        assert "attn" not in said, row["id"]


@pytest.mark.parametrize("architecture", ["albert", "convnext"])
def test_checkpointing_that_transformers_refuses_is_left_to_the_reader(architecture: str) -> None:
    run = dataclasses.replace(RUN, checkpointing="full", architecture=architecture)
    text = export.training_arguments(run)
    assert "gradient_checkpointing" not in text
    for said in (text, export.lightning_trainer(run), export.deepspeed_note(run)):
        assert f"torch.utils.checkpoint around each, as transformers has none for {architecture}" in said
    # FSDP wraps the units that it finds, whatever the model says of checkpointing.
    sharded = export.training_arguments(dataclasses.replace(run, strategy="fsdp"))
    assert ("'activation_checkpointing': True" in sharded) == (architecture == "convnext")
    assert ("around each" in sharded) == (architecture == "albert")


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adamw-fused", "adagrad", "rmsprop"])
def test_epsilon_is_more_than_nothing_in_float16(optimizer: str) -> None:
    # numpy.float16(1e-8) == 0: torch's default divides 0 by 0.
    run = RunSettings(8, 1, precision="fp16", optimizer=optimizer)
    for write in (export.plain_loop, export.lightning_trainer, export.fsdp_script, export.accelerate_yaml):
        assert "eps=0.0001" in write(run), write
    arguments = call_arguments(export.training_arguments(run), "TrainingArguments")
    if optimizer in {"adagrad", "rmsprop"}:
        assert arguments["optim_args"] == "eps=0.0001"
    else:
        assert arguments["adam_epsilon"] == 1e-4
    for other in (dataclasses.replace(run, precision="bf16"), dataclasses.replace(run, method="lora")):
        assert "eps" not in export.plain_loop(other).replace("steps", "").replace("STEPS", "")
        assert "epsilon" not in export.training_arguments(other)


@pytest.mark.parametrize("optimizer", ["adamw", "adagrad", "lamb"])
def test_deepspeed_and_trainer_agree_on_epsilon(optimizer: str) -> None:
    # transformers/integrations/deepspeed.py: fill_match("optimizer.params.eps", args.adam_epsilon).
    run = dataclasses.replace(RUN, precision="fp16", optimizer=optimizer, strategy="zero2")
    assert json.loads(export.deepspeed_json(run))["optimizer"]["params"]["eps"] == 1e-4
    if optimizer != "lamb":
        assert call_arguments(export.training_arguments(run), "TrainingArguments")["adam_epsilon"] == 1e-4


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adagrad", "rmsprop"])
def test_float16_weights_without_gradient_stay_numbers(optimizer: str) -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {}
    text = export.plain_loop(RunSettings(4, 1, precision="fp16", optimizer=optimizer, learning_rate=1e-3))
    exec(compile(text, "train.py", "exec"), names)  # noqa: S102
    model = torch.nn.Linear(3, 1)
    # An input that is always 0 leaves its weight without gradient.
    batch = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float16)
    names["train"](model, [batch] * 5, lambda module, inputs: module(inputs).float().square().mean(), device="cpu")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-fused", "adamw-8bit", "lion", "adagrad"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_files_of_one_scenario_train_alike(strategy: str, optimizer: str) -> None:
    # TrainingArguments: weight_decay=0.0, max_grad_norm=1.0; torch.optim.AdamW: weight_decay=0.01, and no clipping.
    for row in export.export_all(dataclasses.replace(RUN, strategy=strategy, optimizer=optimizer)):
        said = row.get("text", "") + row.get("note", "")
        if "text" not in row or (row["id"] == "torchrun" and strategy == "ddp"):  # Both stand in train.py.
            continue
        if row["id"] == "accelerate" and "deepspeed.json" in said:  # Both stand there.
            continue
        assert re.search(r"weight_decay(=|\": )0\.0", said), row["id"]
        clipping = r"max_grad_norm=1\.0|\"gradient_clipping\": 1\.0|MAX_NORM = 1\.0|gradient_clip_val=1\.0|norm of 1\.0"
        assert len(re.findall(clipping, said)) == 1, row["id"]


def test_lightning_clips_where_it_can() -> None:
    plain = export.lightning_trainer(RUN)
    assert call_arguments(plain, "Trainer")["gradient_clip_val"] == 1.0
    # lightning/pytorch/plugins/precision/amp.py refuses fused optimizers, fsdp.py any clipping by norm.
    fused = dataclasses.replace(RUN, optimizer="adamw-fused", precision="amp-fp16")
    for run in (fused, dataclasses.replace(RUN, strategy="fsdp")):
        text = export.lightning_trainer(run)
        assert "gradient_clip_val" not in text
        assert "in configure_gradient_clipping" in text
    assert "scaler.unscale_(optimizer)" in export.lightning_trainer(fused)
    assert "unscale_" not in export.lightning_trainer(dataclasses.replace(fused, precision="amp-bf16"))
    assert "gradient_clip_val" in export.lightning_trainer(dataclasses.replace(fused, precision="fp32"))


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "bf16-master"])
def test_the_loop_clips(precision: str) -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {}
    text = export.plain_loop(RunSettings(1, 1, precision=precision, optimizer="sgd", learning_rate=1.0))
    exec(compile(text, "train.py", "exec"), names)  # noqa: S102
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    batch = torch.full((1, 2), 64.0)
    names["train"](
        model, [batch], lambda module, x: -module(x.to(next(module.parameters()).dtype)).float().sum(), device="cpu"
    )
    assert model.weight.detach().float().norm().item() == pytest.approx(1.0, abs=0.01)


def test_accelerate_clips_by_its_own_call() -> None:
    text = export.accelerate_yaml(dataclasses.replace(RUN, precision="amp-fp16"))
    assert "accelerator.clip_grad_norm_(model.parameters(), 1.0)" in text
    assert "unscale_" not in text
    assert "clip_grad_norm_" not in export.accelerate_yaml(dataclasses.replace(RUN, strategy="zero2"))


def test_trainer_hands_galore_no_epsilon() -> None:
    # transformers/trainer_optimizer.py, _get_galore_optimizer: neither adam_epsilon nor optim_args' eps.
    run = RunSettings(8, 1, precision="fp16", optimizer="galore-adamw", architecture="llama")
    assert not {"adam_epsilon", "optim_args"} & set(call_arguments(export.training_arguments(run), "TrainingArguments"))
