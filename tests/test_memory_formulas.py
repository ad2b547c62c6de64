"""The replay against formulas and counts that others published, by tensors that autograd keeps for backward.

Figures "measured on a CPU" are sums over the tensors that torch's ``saved_tensors_hooks`` showed (torch 2.13,
transformers 5.24, each storage once, parameters left out); they are independent of the replay.
"""

from __future__ import annotations

from typing import Any

import pytest

from calc.breakdown import moving_bytes
from calc.memory import StepMemory, step_memory
from calc.replay.layers import nf4_bytes
from calc.replay.tape import Phase
from calc.scenario import parse

H100 = "h100-sxm-80gb"
GPT = {"model_type": "gpt2", "n_embd": 1024, "n_head": 16, "n_positions": 2048, "activation_function": "gelu"}
BERT = {"model_type": "bert", "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}
LLAMA_3_8B = LLAMA_2_7B | {"num_key_value_heads": 8, "intermediate_size": 14336}


def memory_of(model: object, **scenario: Any) -> StepMemory:
    return step_memory(parse({"model": model, "gpu": H100, **scenario}))


def kept_bytes(model: object, **scenario: Any) -> int:
    """Bytes of one sample that forward leaves for backward."""
    profile = memory_of(model, **scenario).step.profile
    return sum(profile.per_sample[storage] * profile.copies[storage] for storage in profile.kept_for_backward)


def layer_bytes(config: dict[str, Any], **scenario: Any) -> int:
    """What one layer more leaves for backward."""
    key = "n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers"
    return kept_bytes(config | {key: 9}, **scenario) - kept_bytes(config | {key: 8}, **scenario)


def layer_units(config: dict[str, Any], hidden: int, heads: int, **scenario: Any) -> tuple[float, float]:
    """One layer's bytes as multiples of s h and of a s^2, from two lengths."""
    short, long = (layer_bytes(config, sequence_length=s, **scenario) / (s * hidden) for s in (1024, 2048))
    quadratic = (long - short) * hidden / (1024 * heads)
    return short - quadratic * heads * 1024 / hidden, quadratic


def dropout(probability: float) -> dict[str, float]:
    return dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), probability)


class TestGptBlock:
    """Korthikanti et al. 2022, arXiv:2205.05198, equation 1: s b h (34 + 5 a s / h), and its variants."""

    @pytest.mark.parametrize(
        ("precision", "attention", "probability", "linear", "quadratic"),
        [
            ("bf16", "eager", 0.1, 34, 5),  # the equation itself
            ("bf16", "eager", 0.0, 32, 2),
            ("bf16", "sdpa", 0.1, 34, 0),
            ("bf16", "sdpa", 0.0, 32, 0),
            ("fp32", "eager", 0.1, 66, 9),
            ("fp32", "sdpa", 0.0, 64, 0),
            ("amp-bf16", "eager", 0.1, 38, 7),
            ("amp-bf16", "eager", 0.0, 36, 6),
            ("amp-bf16", "sdpa", 0.0, 36, 0),
        ],
    )
    def test_units_of_a_layer(
        self, precision: str, attention: str, probability: float, linear: float, quadratic: float
    ) -> None:
        config = GPT | dropout(probability)
        found = layer_units(config, 1024, 16, precision=precision, attention=attention)
        # Norms' statistics (and a fused kernel's log-sum-exp) are small next to the rest and not in the equation.
        assert found[0] == pytest.approx(linear, abs=0.1)
        assert found[1] == pytest.approx(quadratic, abs=0.01)

    def test_gpt_3s_block(self) -> None:
        gpt_3 = GPT | dropout(0.1) | {"n_embd": 12288, "n_head": 96}
        found = layer_bytes(gpt_3, precision="bf16", attention="eager", sequence_length=2048)
        assert found == pytest.approx(2.868904e9, rel=1e-3)

    def test_hugging_faces_composed_gelu_costs_24_more(self) -> None:
        config = GPT | dropout(0.0) | {"activation_function": "gelu_new"}
        assert layer_units(config, 1024, 16, precision="bf16")[0] == pytest.approx(56, abs=0.1)

    @pytest.mark.parametrize(("precision", "linear"), [("bf16", 32), ("fp32", 64)])
    def test_berts_layer_measured_on_a_cpu(self, precision: str, linear: float) -> None:
        config = BERT | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        found = layer_bytes(config, precision=precision, sequence_length=512) / (512 * 1024)
        assert found == pytest.approx(linear, abs=0.1)

    def test_full_checkpointing_keeps_a_layers_input(self) -> None:
        config = GPT | dropout(0.1)
        found = layer_bytes(config, precision="bf16", sequence_length=1024, checkpointing="full")
        assert found == 2 * 1024 * 1024

    def test_selective_checkpointing_drops_the_quadratic_term(self) -> None:
        config = GPT | dropout(0.1)
        linear, quadratic = layer_units(
            config, 1024, 16, precision="bf16", attention="eager", checkpointing="selective"
        )
        assert linear == pytest.approx(34, abs=4.1)
        assert quadratic == pytest.approx(0, abs=0.01)


class TestLlamaBlock:
    """Measured on a CPU: Hugging Face's Llama block in units of s h, with its composed RMSNorm."""

    @pytest.mark.parametrize(
        ("config", "precision", "units"),
        [(LLAMA_2_7B, "bf16", 45.58), (LLAMA_3_8B, "bf16", 49.08), (LLAMA_3_8B, "amp-bf16", 59.3)],
        ids=["llama-2-7b", "llama-3-8b", "llama-3-8b-amp"],
    )
    def test_fused_attention(self, config: dict[str, Any], precision: str, units: float) -> None:
        assert layer_units(config, 4096, 32, precision=precision)[0] == pytest.approx(units, rel=0.01)

    def test_fp32_without_grouped_keys(self) -> None:
        assert layer_units(LLAMA_2_7B, 4096, 32, precision="fp32")[0] == pytest.approx(83.08, rel=0.01)

    def test_repeated_keys(self) -> None:
        # Eager attention repeats grouped keys (52.3 measured), and keeps an fp32 softmax and its 16-bit copy.
        linear, quadratic = layer_units(LLAMA_3_8B, 4096, 32, precision="bf16", attention="eager")
        assert linear == pytest.approx(52.3, rel=0.01)
        assert quadratic == pytest.approx(6, abs=0.01)


class TestLogits:
    """Measured on a CPU, in units of b s V: Hugging Face's 16-bit logits, their fp32 copy, cross-entropy."""

    MODEL = LLAMA_2_7B | {"num_hidden_layers": 2}
    TOKENS = 4096

    def logits_bytes(self, phase: Phase, **scenario: Any) -> float:
        memory = memory_of(self.MODEL, precision="bf16", sequence_length=self.TOKENS, **scenario)
        return moving_bytes(memory, 1, phase)["logits"][0] / (self.TOKENS * 32000)

    def test_peak_of_backward(self) -> None:
        assert self.logits_bytes(Phase.BACKWARD) == pytest.approx(12, rel=0.01)

    def test_peak_of_forward(self) -> None:
        assert self.logits_bytes(Phase.FORWARD) == pytest.approx(10, rel=0.01)

    def test_fused_loss_holds_next_to_none(self) -> None:
        assert self.logits_bytes(Phase.BACKWARD, loss="fused") < 1


class TestImages:
    """Measured on a CPU: megabytes that one image of 224 pixels leaves for backward, the image included."""

    @pytest.mark.parametrize(
        ("model", "fp32", "bf16"),
        [
            ("resnet18", 22.2, 11.9),
            ("resnet34", 32.25, 16.93),
            ("resnet50", 86.02, 43.81),
            ("resnet101", 127.06, 64.33),
            ("resnet152", 177.73, 89.67),
        ],
    )
    def test_resnets(self, model: str, fp32: float, bf16: float) -> None:
        assert kept_bytes(model, precision="fp32") / 1e6 == pytest.approx(fp32, rel=0.005)
        assert kept_bytes(model, precision="bf16") / 1e6 == pytest.approx(bf16, rel=0.005)

    @pytest.mark.parametrize(("attention", "fp32", "bf16"), [("sdpa", 118.16, 59.14), ("eager", 140.4, 92.56)])
    def test_vision_transformer(self, attention: str, fp32: float, bf16: float) -> None:
        vit = {"model_type": "vit", "num_labels": 1000}
        assert kept_bytes(vit, precision="fp32", attention=attention) / 1e6 == pytest.approx(fp32, rel=0.005)
        assert kept_bytes(vit, precision="bf16", attention=attention) / 1e6 == pytest.approx(bf16, rel=0.005)

    def test_stages_grow_with_the_area(self) -> None:
        small, large = (kept_bytes("resnet50", precision="fp32", image_size=size) for size in (224, 448))
        assert large / small == pytest.approx(4, rel=0.001)


class TestFixedBytes:
    """Bytes per parameter of weights, gradients and optimizer state together."""

    @pytest.mark.parametrize(
        ("precision", "optimizer", "each"),
        [
            ("fp32", "adamw", 16),
            ("fp32", "sgd-momentum", 12),
            ("bf16", "adamw", 8),
            ("bf16", "adamw-8bit", 6.03125),
            ("amp-bf16", "adamw-8bit", 10.03125),
            ("bf16-master", "adamw", 16),  # ZeRO, arXiv:1910.02054, section 3.1
            ("bf16", "lion", 6),
        ],
    )
    def test_recipes(self, precision: str, optimizer: str, each: float) -> None:
        memory = memory_of("gpt2", precision=precision, optimizer=optimizer)
        found = (memory.weights_bytes + memory.gradient_bytes + memory.state_bytes) / memory.step.parameter_count
        # Vectors keep full states, and every tensor is rounded to 512 bytes.
        assert found == pytest.approx(each, rel=0.002)

    def test_autocast_adds_two_bytes_for_each_weight_of_a_product(self) -> None:
        memory = memory_of("gpt2", precision="amp-bf16", optimizer="adamw")
        profile = memory.step.profile
        casts = sum(
            nbytes * copies
            for nbytes, copies, label in zip(profile.fixed, profile.copies, profile.labels, strict=True)
            if label == "casts"
        )
        tables = 1024 * 768  # positions are looked up, never multiplied; the tied table of words is
        assert casts == pytest.approx(2 * (memory.step.parameter_count - tables), rel=0.001)

    @pytest.mark.parametrize(
        ("strategy", "weights", "gradients", "state"),
        [
            ("ddp", 2, 2, 12),
            ("zero1", 2, 2, 12 / 64),
            ("zero2", 2, 2 / 64, 12 / 64),
            ("zero3", 2 / 64, 2 / 64, 12 / 64),
        ],
    )
    def test_zeros_table_on_64_gpus(self, strategy: str, weights: float, gradients: float, state: float) -> None:
        # ZeRO, figure 1: 16-bit weights and gradients, 12 bytes of Adam's state with fp32 master weights.
        memory = memory_of(
            LLAMA_2_7B | {"num_hidden_layers": 32},
            precision="bf16-master",
            optimizer="adamw",
            gpus=64,
            parallelism={"strategy": strategy},
            sequence_length=128,
        )
        each = memory.step.parameter_count
        assert memory.weights_bytes / each == pytest.approx(weights, rel=0.005)
        assert memory.gradient_bytes / each == pytest.approx(gradients, rel=0.005)
        assert memory.state_bytes / each == pytest.approx(state, rel=0.005)


class TestQuantized:
    """NF4: 4 bits, an 8-bit scale per 64 weights, an fp32 scale per 256 scales (Dettmers et al. 2023, section 3)."""

    def test_bytes_of_a_weight(self) -> None:
        assert nf4_bytes(4096 * 4096) / 4096**2 == pytest.approx(0.515869, abs=1e-6)

    def test_6_74_billion_weights(self) -> None:
        assert nf4_bytes(6_740_000_000) == pytest.approx(3.477e9, rel=1e-4)

    def test_a_model_keeps_its_tables_and_norms_in_16_bit(self) -> None:
        memory = memory_of("llama-2-7b", precision="bf16", method="qlora", sequence_length=128)
        linear = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
        tables = 2 * 32000 * 4096
        adapters = memory.step.trainable_count
        expected = 0.515869 * linear + 2 * tables + 4 * adapters
        assert memory.weights_bytes == pytest.approx(expected, rel=0.002)

    def test_adapters_of_rank_r_have_r_times_in_plus_out_weights(self) -> None:
        memory = memory_of("llama-2-7b", precision="bf16", method="lora", lora_rank=8, lora_targets="attention")
        assert memory.step.trainable_count == 32 * 4 * 8 * (4096 + 4096)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "gpt2-xl"},
        # Attention's second result is given once more where it is computed again, and nobody takes it.
        {"model": "gpt2-xl", "attention": "eager", "checkpointing": "selective"},
        {"model": "llama-3.2-1b", "checkpointing": "full"},
        # Two kinds of layers take turns.
        {"model": "gemma-2-9b", "precision": "bf16"},
        {"model": "smollm3-3b", "precision": "bf16", "attention": "eager"},
        {"model": "flux.1-dev", "precision": "bf16", "method": "lora"},
        {"model": "t5-small"},
        {"model": "swin-small"},
        {"model": "resnet50"},
    ],
    ids=lambda changes: "-".join(changes.values()),
)
def test_after_backward_gradients_alone_are_left(changes: dict[str, Any]) -> None:
    step = step_memory(parse({"gpu": {"memory_gib": 2000}, "micro_batch": 1, **changes})).step
    taken = [event for events in step.unrolled.passes.values() for event in events if event > 0]
    left = {taken[-place - 1] for place in step.unrolled.gradients}
    assert left
    assert {step.profile.labels[storage] for storage in left - step.profile.gradients} <= {"inputs"}
