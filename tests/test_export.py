"""Exports are parsed by their own language, run where torch is here, and checked by the libraries that are here."""

from __future__ import annotations

import ast
import csv
import dataclasses
import io
import itertools
import json
import shlex
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from calc import export, run_settings
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.run_settings import RunSettings

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
            assert shlex.split(text)[-1] == "train.py"


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
    assert export.torchrun_line(RunSettings(1, 1)) == "python train.py\n"
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


def test_presets_are_loaded_by_their_published_names() -> None:
    exports = {row["id"]: row.get("text", "") for row in export.exports_of(evaluate({"model": "llama-3.2-1b"}))}
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
