"""Mixtures of experts (transformers/models/{mixtral,qwen2_moe,...}, integrations/moe.py).

The library keeps a layer's experts as two three-dimensional weights and runs them as grouped products over the pairs of
token and chosen expert, sorted by expert. Memory so depends on how many experts a token takes, not on which.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.decoder_parts import GatedMLP, NormKind, Rotary
from calc.architectures.generic_decoder import Decoder, Options
from calc.architectures.latent_attention import LatentAttention
from calc.architectures.llama_like import usual
from calc.replay import ops
from calc.replay.tape import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from calc.replay.layers import Build
    from calc.replay.tape import Parameter, Tape, Tensor


class ExpertWeight:
    """A weight of all experts, (experts, outputs, inputs), or a router's (experts, inputs).

    Of the model types that peft converts (``adapted``), ``all-linear`` adapters reach these parameters, too: their
    product is added to the whole weight in every forward, and the sum is what autograd keeps
    (peft/tuners/lora/layer.py, ParamWrapper). ``parts`` is how many projections the weight holds side by side: the
    adapter's rank is so many times the wanted one, and once for each expert.
    """

    def __init__(self, build: Build, name: str, shape: tuple[int, ...], *, adapted: bool, parts: int = 1) -> None:
        self.weight = build.parameter(name, shape)
        self.adapters: tuple[Parameter, Parameter] | None = None
        if adapted and build.lora_rank > 0 and build.lora_targets == "all-linear":
            *experts, outputs, inputs = shape
            rank = parts * build.lora_rank * (experts[0] if experts else 1)
            down = build.parameter(f"{name}.lora_A", (rank, inputs), dtype=build.adapter_dtype, trainable=True)
            up = build.parameter(f"{name}.lora_B", (outputs, rank), dtype=build.adapter_dtype, trainable=True)
            self.adapters = down, up

    def factors(self, tape: Tape) -> list[Tensor]:
        """The adapter's two matrices in the weight's type; empty without one."""
        return [ops.cast(tape.parameter(p), self.weight.dtype) for p in self.adapters or ()]

    def __call__(self, tape: Tape, factors: list[Tensor]) -> Tensor:
        weight = tape.parameter(self.weight)
        return ops.add_product(weight, *factors) if factors else weight


class Experts:
    """All experts of a layer (MixtralExperts run by grouped_mm_experts_forward)."""

    def __init__(self, build: Build, experts: int, hidden: int, inner: int, act: str, *, adapted: bool = False) -> None:
        self.act = act
        self.hidden = hidden
        self.inner = inner
        self.biases: tuple[Parameter, Parameter] | None = None
        self.gate_up = ExpertWeight(
            build, "experts.gate_up_proj", (experts, 2 * inner, hidden), adapted=adapted, parts=2
        )
        self.down = ExpertWeight(build, "experts.down_proj", (experts, hidden, inner), adapted=adapted)

    def __call__(self, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        tape, dtype = x.tape, x.dtype
        tokens, pairs = x.shape[0], index.numel
        # peft holds an adapted weight and its factors until the experts have run (torch's parametrize.cached).
        factors_down, factors_up = self.down.factors(tape), self.gate_up.factors(tape)
        expert_of_pair, order = (tape.empty((pairs,), Dtype.INT64, batched=True) for _ in range(2))
        rows = ops.take(x, tape.empty((pairs,), Dtype.INT64, batched=True), (pairs, self.hidden))
        weights = ops.take(weights.view(pairs), order, (pairs,))
        counted = tape.empty((pairs,), Dtype.INT32, batched=True)
        absent = tape.empty((pairs,), Dtype.BOOL, batched=True)
        rows = ops.fill_inplace(rows, absent)
        up = self.gate_up(tape, factors_up)
        bias = self._bias(tape, 0, expert_of_pair)
        out = _plus(ops.grouped_product(rows, up, 2 * self.inner), bias)
        out = ops.where(absent, out)
        out = self._gated(out)
        down = self.down(tape, factors_down)
        bias = self._bias(tape, 1, expert_of_pair)
        out = _plus(ops.grouped_product(out, down, self.hidden), bias)
        out = ops.where(absent, out)
        out_weighted = ops.mul(out, weights)
        inverse = tape.empty((pairs,), Dtype.INT64, batched=True)
        out_weighted = ops.take(out_weighted, inverse, (pairs, self.hidden))
        total = ops.reduce_sum(out_weighted, (tokens, self.hidden))
        result = ops.cast(total, dtype)
        del expert_of_pair, counted, total, out_weighted, out, rows, up, down, bias, factors_up, factors_down
        return result

    def _bias(self, tape: Tape, product: int, expert_of_pair: Tensor) -> Tensor | None:
        """Each row's bias for one of the two products, which the library's code holds until the next one."""
        if self.biases is None:
            return None
        return ops.embedding(tape, expert_of_pair.numel, self.biases[product], indices=expert_of_pair)

    def _gated(self, both: Tensor) -> Tensor:
        half = (both.shape[0], self.inner)
        gate, up = ops.split(both, [half, half])
        return ops.mul(activation(self.act, gate), up)


def _plus(out: Tensor, bias: Tensor | None) -> Tensor:
    return out if bias is None else ops.add_inplace(out, bias)


class Router:
    """Scores of the experts for each token, and the few it takes.

    ``kind`` says what the scores are and how they become weights: ``mixtral`` and ``qwen`` (softmax over all, the
    first in fp32 to the end), ``granite`` (softmax over the chosen), ``deepseek-v2`` (all in fp32), ``deepseek-v3``
    (sigmoid, chosen by group with a bias that does not train).
    """

    def __init__(
        self,
        build: Build,
        hidden: int,
        experts: int,
        chosen: int,
        kind: str,
        *,
        normalized: bool,
        adapted: bool = False,
    ) -> None:
        self.kind = kind
        self.chosen = chosen
        self.experts = experts
        self.normalized = normalized
        self.weight = ExpertWeight(build, "gate.weight", (experts, hidden), adapted=adapted)
        if kind == "deepseek-v3":
            build.buffer(experts * Dtype.FP32.itemsize)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and indices of the chosen experts, and the scores, which the block's code holds."""
        shape = (x.shape[0], self.chosen)
        if self.kind.startswith("deepseek"):
            return self._deepseek(x, shape)
        logits = self._logits(x)
        if self.kind == "granite":
            wide = ops.cast(logits, Dtype.FP32)
            values, index = ops.top_k(wide, shape)
            return ops.cast(ops.softmax(values), x.dtype), index, wide
        values, index = ops.top_k(ops.softmax(ops.cast(logits, Dtype.FP32)), shape)
        if self.normalized:
            values = _normalized(values)
        return (values if self.kind == "mixtral" else ops.cast(values, logits.dtype)), index, logits

    def _logits(self, x: Tensor) -> Tensor:
        tape = x.tape
        if self.weight.adapters is None:
            return ops.linear(x, self.weight.weight)
        low = x.dtype if tape.autocast is None else tape.autocast.dtype
        return ops.product(ops.cast(x, low), ops.cast(self.weight(tape, self.weight.factors(tape)), low))

    def _deepseek(self, x: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        tape = x.tape
        wide = ops.cast(x, Dtype.FP32)
        weight = ops.cast(self.weight(tape, self.weight.factors(tape)), Dtype.FP32)
        if tape.autocast is not None:
            wide, weight = ops.cast(wide, tape.autocast.dtype), ops.cast(weight, tape.autocast.dtype)
        logits = ops.product(wide, weight)
        if self.kind == "deepseek-v2":
            values, index = ops.top_k(ops.softmax(logits, Dtype.FP32), shape)
            return ops.scale(values), index, logits
        scores = ops.pointwise(logits, keeps="output")
        # Groups and experts are chosen by biased scores whose temporaries are freed before the weights are taken.
        index = tape.empty(shape, Dtype.INT64, batched=True)
        values = ops.gather(scores, index, shape)
        if self.normalized:
            values = _normalized(values)
        return ops.scale(values), index, logits


def _normalized(values: Tensor) -> Tensor:
    total = ops.reduce_sum(values, (values.shape[0],))
    return ops.mul(values, ops.pointwise(total))


class Mixture:
    """Router and experts, with a feed-forward that all tokens take where the configuration has one."""

    def __init__(
        self,
        build: Build,
        router: Router,
        experts: Experts,
        *,
        shared: GatedMLP | None = None,
        shared_gated: bool = False,
    ) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_gate = build.linear("shared_expert_gate", experts.hidden, 1, bias=False) if shared_gated else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.shared is not None and self.shared_gate is not None:
            shared = self.shared(x)
            weights, index, held = self.router(x)
            routed = self.experts(x, weights, index)
            shared = ops.mul(ops.pointwise(self.shared_gate(x), keeps="output"), shared)
            del held
            return ops.add(routed, shared)
        weights, index, held = self.router(x)
        routed = self.experts(x, weights, index)
        del held
        return routed if self.shared is None else ops.add(routed, self.shared(x))


def _mixture(
    o: Options, *, experts: int, chosen: int, inner: int, kind: str, normalized: bool, adapted: bool = False
) -> Callable[[Build, int], Mixture]:
    """Builds a layer's mixture without a shared feed-forward."""

    def make(build: Build, _: int) -> Mixture:
        router = Router(build, o.hidden, experts, chosen, kind, normalized=normalized, adapted=adapted)
        return Mixture(build, router, Experts(build, experts, o.hidden, inner, o.act, adapted=adapted))

    return make


def mixtral(build: Build, config: Mapping[str, Any]) -> Decoder:
    """MixtralForCausalLM."""
    return Decoder(build, _mixtral(config, "mixtral", adapted=True))


def _mixtral(config: Mapping[str, Any], kind: str, *, adapted: bool = False) -> Options:
    o = usual(config)
    sparse = _mixture(
        o,
        experts=config["num_local_experts"],
        chosen=config["num_experts_per_tok"],
        inner=o.inner,
        kind=kind,
        normalized=True,
        adapted=adapted,
    )
    return replace(o, sparse=sparse)


def granitemoe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Granite's multipliers around a mixture."""
    o = replace(_mixtral(config, "granite"), embedding_product=True, residual_scaled=True, logits_scaled=True)
    return Decoder(build, o)


def phimoe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Mixtral with LayerNorm; its router samples, which is counted as Mixtral's softmax."""
    o = replace(_mixtral(config, "mixtral"), norm=NormKind.LAYER, head_bias=config["lm_head_bias"])
    return Decoder(build, o)


def olmoe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """OlmoeForCausalLM: queries and keys normalized whole."""
    o = usual(config)
    sparse = _mixture(
        o,
        experts=config["num_experts"],
        chosen=config["num_experts_per_tok"],
        inner=o.inner,
        kind="qwen",
        normalized=config["norm_topk_prob"],
        adapted=True,
    )
    return Decoder(build, replace(o, sparse=sparse, query_norm="whole"))


def _sparse_layers(config: Mapping[str, Any]) -> tuple[bool, ...]:
    step, dense = config["decoder_sparse_step"], config["mlp_only_layers"]
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(config["num_hidden_layers"]))


def qwen2_moe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Qwen2MoeForCausalLM: a shared feed-forward behind a gate."""
    o = usual(config)
    o = replace(o, query_bias=config["qkv_bias"], out_bias=False, sparse_layers=_sparse_layers(config))

    def make(build: Build, _: int) -> Mixture:
        experts, chosen = config["num_experts"], config["num_experts_per_tok"]
        router = Router(build, o.hidden, experts, chosen, "qwen", normalized=config["norm_topk_prob"])
        routed = Experts(build, experts, o.hidden, config["moe_intermediate_size"], o.act)
        shared = GatedMLP(build, o.hidden, config["shared_expert_intermediate_size"], o.act)
        return Mixture(build, router, routed, shared=shared, shared_gated=True)

    return Decoder(build, replace(o, sparse=make))


def qwen3_moe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Qwen3MoeForCausalLM: normalized queries and keys, no shared feed-forward."""
    o = replace(usual(config), query_norm="head", sparse_layers=_sparse_layers(config))
    sparse = _mixture(
        o,
        experts=config["num_experts"],
        chosen=config["num_experts_per_tok"],
        inner=config["moe_intermediate_size"],
        kind="qwen",
        normalized=config["norm_topk_prob"],
        adapted=True,
    )
    return Decoder(build, replace(o, sparse=sparse, experts_take_adapters=True))


def deepseek_v2(build: Build, config: Mapping[str, Any]) -> Decoder:
    """DeepseekV2ForCausalLM."""
    return Decoder(build, _deepseek(config, "deepseek-v2", normalized=False))


def deepseek_v3(build: Build, config: Mapping[str, Any]) -> Decoder:
    """DeepseekV3ForCausalLM."""
    return Decoder(build, _deepseek(config, "deepseek-v3", normalized=config["norm_topk_prob"]))


def _deepseek(config: Mapping[str, Any], kind: str, *, normalized: bool) -> Options:
    o = usual(config)
    bias, rotated = bool(config["attention_bias"]), config["qk_rope_head_dim"]
    first = config["first_k_dense_replace"]

    def make(build: Build, _: int) -> Mixture:
        experts, chosen = config["n_routed_experts"], config["num_experts_per_tok"]
        inner = config["moe_intermediate_size"]
        router = Router(build, o.hidden, experts, chosen, kind, normalized=normalized, adapted=True)
        routed = Experts(build, experts, o.hidden, inner, o.act, adapted=True)
        width = inner * config["n_shared_experts"]
        shared = GatedMLP(build, o.hidden, width, o.act, by_name_only=True)
        return Mixture(build, router, routed, shared=shared)

    def attention(build: Build, o: Options, index: int) -> LatentAttention:
        return LatentAttention(build, o, index, config)

    return replace(
        o,
        query_bias=bias,
        out_bias=bias,
        rotary=Rotary(rotated, complex_table=kind == "deepseek-v2"),
        attention=attention,
        sparse=make,
        sparse_layers=tuple(i >= first for i in range(o.layers)),
        experts_take_adapters=True,
    )
