"""Decoders of the Llama and GPT-2 kind (transformers/models/{llama,gpt2,...}/modeling_*.py)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from calc.architectures.attention import attend
from calc.replay import ops
from calc.replay.layers import Blocks, Embedding, LayerNorm, RMSNorm
from calc.replay.ops import Heads
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.architectures.model import Shape
    from calc.replay.layers import Build
    from calc.replay.tape import Tape, Tensor


def activation(name: str, x: Tensor) -> Tensor:
    """An activation by its name in Hugging Face's ACT2FN: one kernel, or composed and keeping each stage."""
    if name in ("gelu_new", "gelu_pytorch_tanh_composed"):
        return gelu_new(x)
    if name in ("relu", "tanh", "sigmoid"):
        return ops.pointwise(x, keeps="output")
    return ops.pointwise(x)


def gelu_new(x: Tensor) -> Tensor:
    """``0.5 * x * (1 + tanh(c * (x + 0.044715 * x^3)))``, each step a tensor (activations.py, NewGELUActivation)."""
    half = ops.scale(x)
    inner = ops.add(x, ops.scale(ops.power(x)))
    inner = ops.pointwise(ops.scale(inner), keeps="output")
    return ops.mul(half, ops.shift(inner))


def causal_lm_loss(tape: Tape, hidden: Tensor, head: Any, *, fused: bool, tokens: int) -> Tensor:
    """Logits, their fp32 copy, shifted labels and cross-entropy (transformers/loss/loss_utils.py, ForCausalLMLoss)."""
    with tape.within("logits"):
        if fused:
            return ops.fused_cross_entropy(hidden, head.weight)
        logits = head(hidden)
        wide = ops.cast(logits, Dtype.FP32)
        labels = tape.empty((tokens + 1,), Dtype.INT64, batched=True)
        labels = tape.empty((tokens,), Dtype.INT64, batched=True)
        loss = ops.cross_entropy(wide)
        del labels
        return loss


class RotaryTables:
    """Cosine and sine of each position, made once a forward in fp32 and cast to the model's type."""

    def __init__(self, tape: Tape, tokens: int, width: int, dtype: Dtype) -> None:
        angles = tape.empty((tokens, width), Dtype.FP32, batched=False)
        self.cos = ops.cast(tape.like(angles), dtype)
        self.sin = ops.cast(tape.like(angles), dtype)


class LlamaAttention:
    """Grouped-query attention with rotary positions."""

    def __init__(self, build: Build, config: Mapping[str, Any], name: str) -> None:
        self.kind = build.attention
        self.dropout = config.get("attention_dropout", 0.0)
        hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.key_heads = config.get("num_key_value_heads") or self.heads
        self.width = config.get("head_dim") or hidden // self.heads
        bias = config.get("attention_bias", False)
        self.q = build.linear("q_proj", hidden, self.heads * self.width, bias=bias, attention=True)
        self.k = build.linear("k_proj", hidden, self.key_heads * self.width, bias=bias, attention=True)
        self.v = build.linear("v_proj", hidden, self.key_heads * self.width, bias=bias, attention=True)
        self.o = build.linear("o_proj", self.heads * self.width, hidden, bias=bias, attention=True)

    def __call__(self, x: Tensor, rotary: RotaryTables) -> Tensor:
        tokens = x.shape[0]
        q = ops.transposed(self.q(x)).view(tokens, self.heads, self.width)
        k = ops.transposed(self.k(x)).view(tokens, self.key_heads, self.width)
        v = self.v(x)
        q, k = ops.rotary(q, rotary.cos, rotary.sin), ops.rotary(k, rotary.cos, rotary.sin)
        heads = Heads(self.heads, self.key_heads, self.width, self.width, tokens, tokens, causal=True)
        return self.o(attend(self.kind, q, k, v, heads, dropout=self.dropout))


class GatedMLP:
    """``down(act(gate(x)) * up(x))``."""

    def __init__(self, build: Build, hidden: int, inner: int, act: str, *, bias: bool = False) -> None:
        self.act = act
        self.gate = build.linear("gate_proj", hidden, inner, bias=bias)
        self.up = build.linear("up_proj", hidden, inner, bias=bias)
        self.down = build.linear("down_proj", inner, hidden, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(ops.mul(activation(self.act, self.gate(x)), self.up(x)))


class LlamaBlock:
    """Pre-norm attention and gated MLP."""

    def __init__(self, build: Build, config: Mapping[str, Any], index: int) -> None:
        hidden, eps = config["hidden_size"], index
        del eps
        self.attention = LlamaAttention(build, config, str(index))
        self.mlp = GatedMLP(build, hidden, config["intermediate_size"], config["hidden_act"], bias=config.get("mlp_bias", False))
        self.input_norm = RMSNorm(build, "input_layernorm", hidden)
        self.post_norm = RMSNorm(build, "post_attention_layernorm", hidden)

    def __call__(self, x: Tensor, *, rotary: RotaryTables) -> Tensor:
        tape = x.tape
        with tape.within("attention"):
            x = ops.add(x, self.attention(self.input_norm(x), rotary))
        with tape.within("mlp"):
            return ops.add(x, self.mlp(self.post_norm(x)))


class Llama:
    """LlamaForCausalLM and its kin."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        self.config = config
        self.fused_loss = build.fused_loss
        self.embedding = Embedding(build, "embed_tokens", config["vocab_size"], config["hidden_size"])
        self.blocks = Blocks(build, ["layer"] * config["num_hidden_layers"], lambda i: LlamaBlock(build, config, i))
        self.norm = RMSNorm(build, "norm", config["hidden_size"])
        with build.without_adapters():
            self.head = build.linear("lm_head", config["hidden_size"], config["vocab_size"], bias=False, tied=self.embedding.weight if config["tie_word_embeddings"] else None)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        tokens = shape.sequence_length
        with tape.within("embeddings"):
            x = self.embedding(tape, tokens)
            width = self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]
            rotary = RotaryTables(tape, tokens, width, x.dtype)
        x = self.blocks(tape, x, rotary=rotary)
        with tape.within("final norm"):
            x = self.norm(x)
        return causal_lm_loss(tape, x, self.head, fused=self.fused_loss, tokens=tokens)


class GPT2Block:
    """LayerNorm, one product for queries, keys and values, composed GELU, dropout on each branch."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        hidden = config["n_embd"]
        self.kind = build.attention
        self.config = config
        self.heads = config["n_head"]
        self.norm_1 = LayerNorm(build, "ln_1", hidden)
        self.qkv = build.linear("c_attn", hidden, 3 * hidden, attention=True)
        self.projection = build.linear("c_proj", hidden, hidden, attention=True)
        self.norm_2 = LayerNorm(build, "ln_2", hidden)
        inner = config.get("n_inner") or 4 * hidden
        self.up = build.linear("c_fc", hidden, inner)
        self.down = build.linear("c_proj", inner, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        config, tape = self.config, x.tape
        tokens, hidden = x.shape
        with tape.within("attention"):
            q, k, v = ops.split(self.qkv(self.norm_1(x)), [(tokens, hidden)] * 3)
            q, k, v = ops.transposed(q), ops.transposed(k), ops.transposed(v)
            heads = Heads(self.heads, self.heads, hidden // self.heads, hidden // self.heads, tokens, tokens, causal=True)
            out = attend(self.kind, q, k, v, heads, dropout=config["attn_pdrop"], fp32_softmax=False)
            del q, k, v
            x = ops.add(ops.dropout(self.projection(out), config["resid_pdrop"]), x)
            del out
        with tape.within("mlp"):
            return ops.add(x, ops.dropout(self.down(activation(config["activation_function"], self.up(self.norm_2(x)))), config["resid_pdrop"]))


class GPT2:
    """GPT2LMHeadModel."""

    def __init__(self, build: Build, config: Mapping[str, Any]) -> None:
        self.config = config
        self.fused_loss = build.fused_loss
        hidden = config["n_embd"]
        self.tokens = Embedding(build, "wte", config["vocab_size"], hidden)
        self.positions = Embedding(build, "wpe", config["n_positions"], hidden, of_tokens=False)
        self.blocks = Blocks(build, ["layer"] * config["n_layer"], lambda _: GPT2Block(build, config))
        self.norm = LayerNorm(build, "ln_f", hidden)
        with build.without_adapters():
            self.head = build.linear("lm_head", hidden, config["vocab_size"], bias=False, tied=self.tokens.weight if config["tie_word_embeddings"] else None)

    def loss(self, tape: Tape, shape: Shape) -> Tensor:
        tokens = shape.sequence_length
        with tape.within("embeddings"):
            x = ops.add(self.tokens(tape, tokens), self.positions(tape, tokens, batched=False))
            x = ops.dropout(x, self.config["embd_pdrop"])
        x = self.blocks(tape, x)
        with tape.within("final norm"):
            x = self.norm(x)
        return causal_lm_loss(tape, x, self.head, fused=self.fused_loss, tokens=tokens)
