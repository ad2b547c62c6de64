"""Mixtures of experts (transformers/models/{mixtral,qwen2_moe,...}, integrations/moe.py).

The library keeps a layer's experts as two three-dimensional weights and runs them as grouped products over the pairs of
token and chosen expert, sorted by expert. Memory so depends on how many experts a token takes, not on which.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calc.architectures.activations import activation
from calc.architectures.decoder_parts import FusedGatedMLP, GatedMLP, NormKind, Rotary
from calc.architectures.generic_decoder import Decoder, Options, Order
from calc.architectures.latent_attention import LatentAttention
from calc.architectures.llama_like import cut, ernie_options, usual
from calc.catalog.config_keys import FIELD
from calc.errors import ScenarioError
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

    def __init__(
        self,
        build: Build,
        name: str,
        shape: tuple[int, ...],
        *,
        adapted: bool,
        parts: int = 1,
        dtype: Dtype | None = None,
    ) -> None:
        self.weight = build.parameter(name, shape, dtype=dtype)
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
    (sigmoid, chosen by group with a bias that does not train), ``minimax`` (the same without groups, from logits in
    the model's type), ``ernie`` (softmax in fp32, autocast switched off).
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
        wide = Dtype.FP32 if kind == "ernie" else None
        self.weight = ExpertWeight(build, "gate.weight", (experts, hidden), adapted=adapted, dtype=wide)
        if kind in ("deepseek-v3", "minimax"):
            build.buffer(experts * (build.dtype if kind == "minimax" else Dtype.FP32).itemsize)
        if kind == "ernie":
            build.parameter("gate.bias", (1, experts), dtype=Dtype.FP32, trainable=False)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and indices of the chosen experts, and the scores, which the block's code holds."""
        shape = (x.shape[0], self.chosen)
        if self.kind.startswith("deepseek"):
            return self._deepseek(x, shape)
        if self.kind == "ernie":
            return self._ernie(x, shape)
        logits = self._logits(x)
        if self.kind == "minimax":
            scores = ops.pointwise(ops.cast(logits, Dtype.FP32), keeps="output")
            index = x.tape.empty(shape, Dtype.INT64, batched=True)
            return _normalized(ops.gather(scores, index, shape)), index, logits
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

    def _ernie(self, x: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        tape, dtype = x.tape, x.dtype
        outer, tape.autocast = tape.autocast, None
        logits = ops.product(ops.cast(x, Dtype.FP32), self.weight(tape, self.weight.factors(tape)))
        scores = ops.softmax(logits, Dtype.FP32)
        index = tape.empty(shape, Dtype.INT64, batched=True)
        values = ops.gather(scores, index, shape)
        total = ops.clamp(ops.reduce_sum(values, (shape[0],)), bounds=1)
        values = ops.divide(values, total)
        tape.autocast = outer
        return ops.cast(values, dtype), index, logits

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
        shared: GatedMLP | FusedGatedMLP | None = None,
        shared_first: bool = False,
        shared_gated: bool = False,
    ) -> None:
        self.shared_first = shared_first
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
        if self.shared is not None and self.shared_first:
            shared = self.shared(x)
            weights, index, held = self.router(x)
            del held
            return ops.add(self.experts(x, weights, index), shared)
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


def granitemoeshared(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Granite's mixture and a feed-forward that all tokens take, gate and up in one product."""
    o = replace(_mixtral(config, "granite"), embedding_product=True, residual_scaled=True, logits_scaled=True)
    width = config["shared_intermediate_size"]
    if not width:
        return Decoder(build, o)

    def make(build: Build, _: int) -> Mixture:
        experts, chosen = config["num_local_experts"], config["num_experts_per_tok"]
        router = Router(build, o.hidden, experts, chosen, "granite", normalized=True)
        shared = FusedGatedMLP(build, o.hidden, width, o.act)
        return Mixture(build, router, Experts(build, experts, o.hidden, o.inner, o.act), shared=shared)

    return Decoder(build, replace(o, sparse=make))


def minimax_m2(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Sigmoid scores of the experts; queries and keys normalized whole."""
    o = replace(_mixtral(config, "minimax", adapted=True), query_norm="whole", rotary=cut(config).rotary)
    return Decoder(build, o)


def flex_olmo(build: Build, config: Mapping[str, Any]) -> Decoder:
    """OLMoE with OLMo 2's norms behind each branch."""
    return Decoder(
        build,
        replace(
            _olmoe(config),
            order=Order.POST,
            norm=NormKind.RMS_WEIGHT_FIRST,
            rotary=Rotary(usual(config).head_width, wide_tables=True),
        ),
    )


def ernie4_5_moe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """ERNIE 4.5 with a mixture in a stretch of its layers."""
    o = ernie_options(config)
    first, last, step = (config[f"moe_layer_{key}"] for key in ("start_index", "end_index", "interval"))

    def make(build: Build, _: int) -> Mixture:
        experts, inner = config["moe_num_experts"], config["moe_intermediate_size"]
        shared_width = inner * config["moe_num_shared_experts"]
        shared = GatedMLP(build, o.hidden, shared_width, o.act, bias=o.mlp_bias) if shared_width else None
        router = Router(build, o.hidden, experts, config["moe_k"], "ernie", normalized=True)
        routed = Experts(build, experts, o.hidden, inner, o.act)
        return Mixture(build, router, routed, shared=shared, shared_first=True)

    layers = tuple((i + 1) % step == 0 and first <= i <= last for i in range(o.layers))
    return Decoder(build, replace(o, sparse=make, sparse_layers=layers))


def glm4_moe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Partly rotated heads and DeepSeek V3's mixture."""
    o = replace(cut(config), out_bias=False, query_norm="head" if config["use_qk_norm"] else None)
    return Decoder(build, _deepseek_mixture(o, config, "deepseek-v3", normalized=config["norm_topk_prob"]))


def dots1(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Each head's queries and keys normalized, and DeepSeek V3's mixture."""
    o = replace(usual(config), query_norm="head")
    return Decoder(build, _deepseek_mixture(o, config, "deepseek-v3", normalized=config["norm_topk_prob"]))


def phimoe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Mixtral with LayerNorm; its router samples, which is counted as Mixtral's softmax."""
    o = replace(_mixtral(config, "mixtral"), norm=NormKind.LAYER, head_bias=config["lm_head_bias"])
    return Decoder(build, o)


def olmoe(build: Build, config: Mapping[str, Any]) -> Decoder:
    """OlmoeForCausalLM: queries and keys normalized whole."""
    return Decoder(build, _olmoe(config))


def _olmoe(config: Mapping[str, Any]) -> Options:
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
    return replace(o, sparse=sparse, query_norm="whole")


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

    def attention(build: Build, o: Options, index: int) -> LatentAttention:
        return LatentAttention(build, o, index, config)

    o = replace(
        o,
        query_bias=bias,
        out_bias=bias,
        rotary=Rotary(rotated, complex_table=kind == "deepseek-v2"),
        attention=attention,
    )
    return _deepseek_mixture(o, config, kind, normalized=normalized)


def _deepseek_mixture(o: Options, config: Mapping[str, Any], kind: str, *, normalized: bool) -> Options:
    """The options with DeepSeek's experts in all layers but the first few."""
    first = config["first_k_dense_replace"]
    for key in ("n_routed_experts", "num_experts_per_tok", "n_shared_experts"):
        if config[key] is None:
            raise ScenarioError(FIELD, f"{key} is missing, and {config['model_type']} has no default for it")

    def make(build: Build, _: int) -> Mixture:
        experts, chosen = config["n_routed_experts"], config["num_experts_per_tok"]
        inner = config["moe_intermediate_size"]
        router = Router(build, o.hidden, experts, chosen, kind, normalized=normalized, adapted=True)
        routed = Experts(build, experts, o.hidden, inner, o.act, adapted=True)
        width = inner * config["n_shared_experts"]
        shared = GatedMLP(build, o.hidden, width, o.act, by_name_only=True)
        return Mixture(build, router, routed, shared=shared)

    return replace(
        o,
        sparse=make,
        sparse_layers=tuple(i >= first for i in range(o.layers)),
        experts_take_adapters=True,
    )
