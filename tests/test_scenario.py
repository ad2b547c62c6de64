"""A scenario's defaults, its tasks and what is refused, beside what the properties check."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.model_dimensions import parse_dividable
from calc.scenario import EXPERTS_NOT_QUANTIZED, KEYS, Precision, Task, ZeroGrad, parse


class TestDefaults:
    def test_a_model_alone_is_enough(self) -> None:
        scenario = parse({"model": "gpt2"})
        assert scenario.model.task is Task.CAUSAL_LM
        assert scenario.precision is Precision.AMP_BF16
        assert scenario.zero_grad is ZeroGrad.FREE
        assert (scenario.gpus, scenario.micro_batch, scenario.global_batch) == (1, None, None)

    def test_a_card_without_bf16_gets_fp16(self) -> None:
        assert parse({"model": "gpt2", "gpu": "t4-16gb"}).precision is Precision.AMP_FP16
        with pytest.raises(ScenarioError, match="precision"):
            parse({"model": "gpt2", "gpu": "t4-16gb", "precision": "bf16"})

    def test_a_null_is_as_if_it_were_not_there(self) -> None:
        bare = {"model": "gpt2"}
        nulls = dict.fromkeys(KEYS) | bare
        assert evaluate(nulls) == evaluate(bare)

    def test_whole_numbers_may_be_written_with_a_point(self) -> None:
        whole = {"sequence_length": 128, "gpus": 2, "nodes": 1, "micro_batch": 2, "global_batch": 16}
        written = {key: float(value) for key, value in whole.items()}
        model = {"model": "gpt2", "gpu": "a100-sxm-80gb"}
        with_point = evaluate({**model, **written, "parallelism": {"tensor": 2.0}})
        # As text, where 2.0 would not be 2.
        assert json.dumps(with_point) == json.dumps(evaluate({**model, **whole, "parallelism": {"tensor": 2}}))

    def test_half_a_way_is_none(self) -> None:
        with pytest.raises(ScenarioError, match="allowed is a whole number from 1 to 1,000,000") as error:
            evaluate({"model": "gpt2", "gpus": 3, "parallelism": {"tensor": 1.5}})
        assert error.value.field == "parallelism.tensor"


class TestNodes:
    @pytest.mark.parametrize(
        ("gpus", "nodes"), [(1, 1), (7, 1), (8, 1), (9, 3), (11, 11), (12, 2), (16, 2), (20, 4), (22, 11), (100, 20)]
    )
    def test_are_the_fewest_usual_servers_that_hold_as_many_gpus_each(self, gpus: int, nodes: int) -> None:
        assert parse({"model": "gpt2", "gpus": gpus}).nodes == nodes

    @pytest.mark.parametrize(
        ("gpus", "tensor", "nodes"), [(20, 2, 5), (12, 4, 3), (24, 6, 4), (16, 4, 2), (6, 2, 1), (24, 12, 3)]
    )
    def test_hold_whole_tensor_groups_where_they_can(self, gpus: int, tensor: int, nodes: int) -> None:
        assert parse({"model": "gpt2", "gpus": gpus, "parallelism": {"tensor": tensor}}).nodes == nodes

    def test_no_number_of_gpus_is_refused_for_nodes_that_were_not_given(self) -> None:
        for gpus in (*range(1, 41), 97, 100, 1000):
            found = evaluate({"model": "gpt2", "gpu": "a100-sxm-80gb", "gpus": gpus, "micro_batch": 1})
            assert gpus % found["scenario"].get("nodes", 1) == 0

    def test_that_are_given_stay(self) -> None:
        assert parse({"model": "gpt2", "gpus": 20, "nodes": 10}).nodes == 10


class TestParallelism:
    @pytest.mark.parametrize(
        ("given", "field", "allowed"),
        [
            ({"model": "gpt2", "gpus": 64, "parallelism": {"tensor": 64}}, "tensor", "1, 2, 3, 4, 6, 12"),
            ({"model": "llama-3.1-8b", "gpus": 3, "parallelism": {"tensor": 3}}, "tensor", "1, 2, 4, 8, 16, 32"),
            ({"model": "whisper-tiny", "gpus": 4, "parallelism": {"tensor": 4}}, "tensor", "1, 2, 3, 6"),
            ({"model": "gpt2", "gpus": 64, "parallelism": {"pipeline": 64}}, "pipeline", "1 to 12"),
            ({"model": "t5-small", "gpus": 13, "parallelism": {"pipeline": 13}}, "pipeline", "1 to 12"),
            # Their heads and blocks are in no key of a configuration's first level.
            ({"model": "vit_b_16", "gpus": 5, "parallelism": {"tensor": 5}}, "tensor", "1, 2, 3, 4, 6, 12"),
            ({"model": "vit_b_16", "gpus": 64, "parallelism": {"pipeline": 64}}, "pipeline", "1 to 12"),
            ({"model": "swin_t", "gpus": 5, "parallelism": {"tensor": 5}}, "tensor", "1, 3"),
            ({"model": "swin-tiny", "gpus": 15, "parallelism": {"tensor": 5, "pipeline": 3}}, "tensor", "1, 3"),
            ({"model": "clip-vit-base-patch32", "gpus": 5, "parallelism": {"tensor": 5}}, "tensor", "1, 2, 4"),
            ({"model": "clip-vit-base-patch32", "gpus": 64, "parallelism": {"pipeline": 64}}, "pipeline", "1 to 24"),
            ({"model": "resnet50", "gpus": 8, "parallelism": {"context": 8}}, "context", "1"),
            ({"model": "clip-vit-base-patch32", "gpus": 2, "parallelism": {"context": 2}}, "context", "1"),
            (
                {"model": "gpt2", "sequence_length": 4, "gpus": 8, "parallelism": {"context": 8}},
                "context",
                "1 to 4",
            ),
            ({"model": "gpt2", "gpus": 8, "parallelism": {"expert": 8}}, "expert", "1"),
            ({"model": "resnet50", "gpus": 8, "parallelism": {"expert": 8}}, "expert", "1"),
            ({"model": "mixtral-8x7b", "gpus": 16, "parallelism": {"expert": 16}}, "expert", "1, 2, 4, 8"),
            ({"model": "gpt2", "gpus": 8, "parallelism": {"cpu_offload": "optimizer"}}, "cpu_offload", "none"),
            (
                {"model": "gpt2", "gpus": 8, "parallelism": {"strategy": "zero2", "cpu_offload": "all"}},
                "cpu_offload",
                "none, optimizer",
            ),
            (
                {"model": "gpt2", "gpus": 8, "parallelism": {"strategy": "fsdp", "tensor": 2, "cpu_offload": "all"}},
                "cpu_offload",
                "none",
            ),
        ],
    )
    def test_of_what_the_model_has_not_is_refused(self, given: dict[str, Any], field: str, allowed: str) -> None:
        with pytest.raises(ScenarioError, match=rf"allowed (is|are|here:) {allowed}(;|$)") as error:
            evaluate(given)
        assert error.value.field == f"parallelism.{field}"

    def test_one_gpu_and_one_replica_are_one(self) -> None:
        with pytest.raises(ScenarioError, match="is 2, which does not divide 1 GPU: "):
            parse({"model": "gpt2", "parallelism": {"tensor": 2}})
        with pytest.raises(ScenarioError, match=r"2 does not divide the 1 data-parallel replica$"):
            parse({"model": "mixtral-8x7b", "parallelism": {"expert": 2}})

    @pytest.mark.parametrize(
        ("model", "gpus", "parallelism"),
        [
            ("gpt2", 48, {"tensor": 4, "pipeline": 12}),
            ("t5-small", 8, {"tensor": 8}),
            ("t5-small", 12, {"pipeline": 12}),
            ("flux.1-dev", 57, {"pipeline": 57}),
            ("mixtral-8x7b", 8, {"expert": 8}),
            ("llama-3.1-8b", 8, {"context": 8}),
            ("gpt2", 1, {"cpu_offload": "all"}),
            ("gpt2", 8, {"strategy": "zero1", "cpu_offload": "optimizer"}),
            ("gpt2", 8, {"strategy": "fsdp", "cpu_offload": "all"}),
        ],
    )
    def test_that_the_model_can_be_divided_by_is_taken(
        self, model: str, gpus: int, parallelism: dict[str, Any]
    ) -> None:
        layout = parse_dividable({"model": model, "gpus": gpus, "parallelism": parallelism}).layout
        assert all(str(getattr(layout, key)) == str(value) for key, value in parallelism.items())


class TestExperts:
    @pytest.mark.parametrize(
        ("model", "method", "noted"),
        [
            ("mixtral-8x7b", "qlora", True),
            ("deepseek-v2-lite", "qlora", True),
            ("mixtral-8x7b", "lora", False),
            ("mixtral-8x7b", "full", False),
            ("llama-3.1-8b", "qlora", False),
        ],
    )
    def test_that_qlora_does_not_quantize_are_noted(self, model: str, method: str, *, noted: bool) -> None:
        notes = evaluate({"model": model, "method": method, "precision": "bf16"})["model"]["notes"]
        assert (EXPERTS_NOT_QUANTIZED in notes) is noted

    def test_stay_in_the_models_type_under_qlora(self) -> None:
        given = {"model": "mixtral-8x7b", "method": "qlora", "precision": "bf16", "micro_batch": 1}
        parts = {part["id"]: part["bytes"] for part in evaluate(given)["memory"]["components"]}
        # 32 layers of 8 experts with three matrices of 4096 x 14336.
        assert parts["weights"] > 2 * 32 * 8 * 3 * 4096 * 14336


class TestTask:
    # Counted on transformers 5.17's ...ForSequenceClassification with two labels.
    @pytest.mark.parametrize(
        ("model_type", "parameters"),
        [
            ("bert", 109_483_778),
            ("roberta", 124_646_402),
            ("distilbert", 66_955_010),
            ("albert", 222_603_778),
            ("electra", 13_549_314),
        ],
    )
    def test_an_encoder_may_classify_sequences(self, model_type: str, parameters: int) -> None:
        scenario = {"model": {"model_type": model_type}, "sequence_length": 64, "task": "sequence-classification"}
        assert evaluate(scenario)["parameters"] == parameters

    def test_a_configuration_may_name_its_class(self) -> None:
        config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 3}
        usual = {"model": config, "sequence_length": 64, "micro_batch": 8}
        result = evaluate(usual)
        assert result["scenario"]["task"] == "sequence-classification"
        assert result["parameters"] == 109_483_778 + 768 + 1
        as_masked = evaluate({**usual, "task": "masked-lm"})
        assert as_masked["memory"]["peak_allocated_bytes"] > result["memory"]["peak_allocated_bytes"]

    def test_clip_learns_from_pairs_or_classifies_images(self) -> None:
        pairs = evaluate({"model": "clip-vit-base-patch32", "micro_batch": 8})
        assert pairs["scenario"]["task"] == "image-text-contrastive"
        assert (pairs["scenario"]["image_size"], pairs["scenario"]["sequence_length"]) == (224, 77)
        labels = evaluate({"model": "clip-vit-base-patch32", "micro_batch": 8, "task": "image-classification"})
        # CLIPForImageClassification of transformers 5.17.0 with its two labels.
        assert labels["parameters"] == 87_457_538

    def test_clip_has_no_place_for_a_longer_text(self) -> None:
        with pytest.raises(ScenarioError, match="77") as error:
            evaluate({"model": "clip-vit-base-patch32", "sequence_length": 78})
        assert error.value.field == "sequence_length"

    def test_windows_of_maxvit_fill_its_image(self) -> None:
        with pytest.raises(ScenarioError, match="224") as error:
            evaluate({"model": "maxvit_t", "image_size": 256})
        assert error.value.field == "image_size"

    def test_a_label_a_sequence_has_no_logits_to_fuse(self) -> None:
        with pytest.raises(ScenarioError, match="loss"):
            evaluate({"model": "bert-base", "task": "sequence-classification", "loss": "fused"})

    @pytest.mark.parametrize(("model", "task"), [("gpt2", "masked-lm"), ("resnet50", "causal-lm"), ("gpt2", "chess")])
    def test_another_task_is_refused(self, model: str, task: str) -> None:
        with pytest.raises(ScenarioError) as error:
            parse({"model": model, "task": task})
        assert error.value.field == "task"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"modle": "gpt2"}, "modle"),
        ({"model": None}, "model"),
        ({"sequence_length": 1.5}, "sequence_length"),
        ({"sequence_length": "512"}, "sequence_length"),
        ({"sequence_length": True}, "sequence_length"),
        ({"micro_batch": 0}, "micro_batch"),
        ({"global_batch": 10**12}, "global_batch"),
        ({"gpu": {"memory_gib": -1}}, "gpu.memory_gib"),
        ({"gpu": {}}, "gpu"),
        ({"gpu": "no-such-card"}, "gpu"),
        ({"gpus": 3, "gpu": "h100-sxm-80gb", "parallelism": {"tensor": 2}}, "parallelism"),
        ({"parallelism": {"strategy": "magic"}}, "parallelism.strategy"),
        ({"parallelism": {"sequence_parallel": "yes"}}, "parallelism.sequence_parallel"),
        ({"method": "lora", "lora_targets": []}, "lora_targets"),
        ({"method": "lora", "lora_targets": ["no_such_proj"]}, "lora_targets"),
        ({"parallelism": {"strategey": "fsdp"}}, "parallelism.strategey"),
        ({"gpu": {"memory_gib": 24, "foo": 1}}, "gpu.foo"),
        ({"gpu": {"id": "a100-sxm-80gb", "overhead": 1}}, "gpu.overhead"),
        ({"interconnect": {"nod": "nvlink-4"}, "gpus": 2}, "interconnect.nod"),
        ({"gradient_norms": {"small": 8}}, "gradient_norms.small"),
        ({"interconnect": 3}, "interconnect"),
        ({"interconnect": "token-ring"}, "interconnect"),
        ({"interconnect": "nvlink-4+token-ring"}, "interconnect"),
        ({"interconnect": "nvlink-4+infiniband-ndr-x" + "9" * 5000}, "interconnect"),
        ({"interconnect": {"network": "token-ring"}}, "interconnect"),
        ({"interconnect": {"adapters_per_node": 0}}, "interconnect"),
        ({"gpu": {"memory_gib": 16, "overhead_gib": 16}}, "gpu.overhead_gib"),
        ({"gpu": {"id": "t4-16gb", "overhead_gib": 20}}, "gpu.overhead_gib"),
        ({"gpu": {"memory_gib": 0.1}}, "gpu.memory_gib"),
        ({"dataset": ["imagenet"]}, "dataset"),
        ({"gradient_norms": {"small_batch": 8}}, "gradient_norms.small_batch_norm"),
        ({"tokens": float("inf")}, "tokens"),
        ({"tokens": 10**400}, "tokens"),
        ({"sequence_length": 10**400}, "sequence_length"),
        ({"gpu": {"memory_gib": 10**400}}, "gpu.memory_gib"),
        ({"gpus": 10**400}, "gpus"),
        ({"parallelism": {"tensor": 10**400}}, "parallelism.tensor"),
        ({"calibration": [{"batch": 10**400, "reading": "card", "gib": 8}]}, "calibration"),
        ({"calibration": [{"batch": 8, "reading": "card", "gib": 10**400}]}, "calibration"),
        ({"model": {"parameters": 10**400}}, "model"),
        ({"model": {"model_type": "gpt2", "n_embd": 10**400}}, "model"),
        ({"model": {"model_type": "gpt2", "resid_pdrop": 10**400}}, "model"),
        ({"epochs": float("nan")}, "epochs"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ScenarioError) as error:
        evaluate({"model": "gpt2", **changes})
    assert error.value.field == field
    assert len(error.value.message.split()) > 2


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "phi", "partial_rotary_factor": 0}, r"partial_rotary_factor 0 .*allowed is from 0\.03125 to 1"),
        ({"model_type": "phi", "partial_rotary_factor": 0.01}, "partial_rotary_factor 0.01 .*allowed is from"),
        ({"model_type": "qwen2_moe", "shared_expert_intermediate_size": 0}, "from 1 to 1,000,000, not 0"),
        ({"model_type": "convnext", "depths": [3, 3]}, "hidden_sizes must have as many entries as depths, 2, not 4"),
        ({"model_type": "convnext", "hidden_sizes": [8]}, "hidden_sizes must have as many entries as depths, 4, not 1"),
        ({"model_type": "swin", "num_heads": [3]}, "num_heads must have as many entries as depths, 4, not 1"),
        ({"_class_name": "UNet2DConditionModel", "attention_head_dim": [1]}, "as block_out_channels, 4, not 1"),
        ({"_class_name": "UNet2DConditionModel", "block_out_channels": [320, 640]}, "as block_out_channels, 2, not 4"),
        ({"model_type": "deberta-v2", "pos_att_type": 7, "relative_attention": True}, r"'c2p\|p2c', .*not 7"),
        ({"model_type": "deberta", "pos_att_type": [7], "relative_attention": True}, r"'c2p\|p2c', .*not \[7\]"),
    ],
)
def test_a_configuration_that_no_model_can_have_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ScenarioError, match=why) as error:
        evaluate({"model": config})
    assert error.value.field == "model"


def test_a_text_names_what_debertas_attention_compares() -> None:
    deberta = {"model_type": "deberta", "relative_attention": True}
    as_text, as_list = (
        evaluate({"model": {**deberta, "pos_att_type": kinds}})["parameters"] for kinds in ("c2p|p2c", ["c2p", "p2c"])
    )
    assert as_text == as_list > evaluate({"model": deberta})["parameters"]


@pytest.mark.parametrize(("field", "kind"), [("gpu", "GPU"), ("model", "preset")])
def test_an_id_like_no_other_ends_its_sentence(field: str, kind: str) -> None:
    with pytest.raises(ScenarioError, match=rf"there is no {kind} 'zzzzzz'\. Give a "):
        parse({"model": "gpt2", field: "zzzzzz"})


@pytest.mark.parametrize("gpus", [1, 16])
def test_a_network_in_an_object_may_count_its_adapters(gpus: int) -> None:
    network = {"network": "infiniband-hdr-x8"}
    assert parse({"model": "gpt2", "gpus": gpus, "interconnect": network}).interconnect == network


@pytest.mark.parametrize("field", ["model", "interconnect"])
def test_what_lies_too_deep_is_refused(field: str) -> None:
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"node": deep}
    with pytest.raises(ScenarioError, match="allowed are 50 levels") as error:
        evaluate({"model": "gpt2", field: deep})
    assert error.value.field == field


def test_an_unknown_key_comes_with_those_that_are_allowed() -> None:
    with pytest.raises(ScenarioError, match=r"allowed are strategy, tensor, .*, cpu_offload"):
        parse({"model": "gpt2", "parallelism": {"strategey": "fsdp"}})
    with pytest.raises(ScenarioError, match="allowed are id, memory_gib, overhead_gib"):
        parse({"model": "gpt2", "gpu": {"memory_gib": 24, "foo": 1}})


FLASH = {"model": "gpt2", "attention": "flash-attention-2"}


class TestFlashAttention:
    """What the package's flash_api.cpp raises: "FlashAttention only supports Ampere GPUs or newer.", "FlashAttention
    only support fp16 and bf16 data type".
    """

    @pytest.mark.parametrize("gpu", ["v100-sxm-16gb", "t4-16gb", "gtx-1080-ti-11gb", "rtx-2080-ti-11gb"])
    @pytest.mark.parametrize("precision", [None, "amp-fp16"])
    def test_has_no_kernel_for_cards_before_ampere(self, gpu: str, precision: str | None) -> None:
        with pytest.raises(ScenarioError, match="Ampere") as error:
            parse({**FLASH, "gpu": gpu, "precision": precision})
        assert error.value.field == "attention"

    @pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "rtx-3090-24gb", "l4-24gb", "h100-sxm-80gb", "b200-180gb"])
    def test_runs_on_ampere_and_what_came_after(self, gpu: str) -> None:
        for precision in ("amp-fp16", "amp-bf16", "fp16", "bf16", "bf16-master"):
            assert parse({**FLASH, "gpu": gpu, "precision": precision}).attention == "flash-attention-2"

    @pytest.mark.parametrize("precision", ["fp32", "tf32"])
    def test_takes_two_bytes_a_number(self, precision: str) -> None:
        for gpu in ("h100-sxm-80gb", {"memory_gib": 24}):
            with pytest.raises(ScenarioError, match="fp16 and bf16") as error:
                parse({**FLASH, "gpu": gpu, "precision": precision})
            assert error.value.field == "attention"

    @pytest.mark.parametrize("gpu", ["m3-max-64gb", "arc-b580-12gb", {"id": "max-1550-64gb", "memory_gib": 32}])
    def test_has_no_kernel_for_apple_and_intel(self, gpu: Any) -> None:
        with pytest.raises(ScenarioError, match=r"NVIDIA's .* and AMD's GPUs, not .*: choose sdpa") as error:
            parse({**FLASH, "gpu": gpu})
        assert error.value.field == "attention"

    @pytest.mark.parametrize("gpu", ["mi300x-192gb", {"memory_gib": 24}])
    def test_nothing_is_known_against_other_cards(self, gpu: Any) -> None:
        assert parse({**FLASH, "gpu": gpu}).attention == "flash-attention-2"

    @pytest.mark.parametrize(
        ("changes", "allow", "field"),
        [
            ({"gpu": "t4-16gb"}, {"attention": ["sdpa", "flash-attention-2"]}, "allow.attention"),
            ({}, {"attention": ["flash-attention-2"], "precision": ["fp32", "bf16"]}, "allow.attention"),
            ({"attention": "flash-attention-2"}, {"precision": ["fp32", "bf16"]}, "allow.precision"),
        ],
    )
    def test_the_planner_is_not_let_into_it(self, changes: dict[str, Any], allow: dict[str, Any], field: str) -> None:
        with pytest.raises(ScenarioError, match="flash-attention-2") as error:
            parse({"model": "gpt2", "gpu": "h100-sxm-80gb", **changes, "allow": allow})
        assert error.value.field == field
