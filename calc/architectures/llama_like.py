"""Decoder families as options of the generic one, each after its ``transformers/models/*/modeling_*.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calc.architectures.decoder_parts import NormKind, Rotary
from calc.architectures.generic_decoder import Decoder, Options, Order
from calc.catalog.config_keys import FIELD
from calc.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.replay.layers import Build


def usual(config: Mapping[str, Any]) -> Options:
    """Sizes and options by the keys that most configurations have: Llama's, with what a key switches on."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    bias = bool(config.get("attention_bias"))
    types = config.get("layer_types")
    window = config.get("sliding_window")
    return Options(
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        head_width=width,
        inner=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        act=config.get("hidden_act") or config.get("hidden_activation") or "silu",
        tied=config["tie_word_embeddings"],
        rotary=Rotary(rotary_width(config, width)),
        window=window or None,
        windowed_layers=tuple(t == "sliding_attention" for t in types) if types else (),
        query_bias=bias,
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")),
        attention_dropout=config.get("attention_dropout", 0.0),
    )


def rotary_width(config: Mapping[str, Any], head_width: int) -> int:
    """The part of a head that rotary positions turn: at least one pair of its elements.

    Raises
    ------
    ScenarioError
        If the configuration's share of the head holds no pair.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    width = head_width if share is None else int(head_width * share)
    if width < 2 <= head_width:
        what = f"partial_rotary_factor {share!r} turns no pair of a head {head_width} wide"
        raise ScenarioError(FIELD, f"{what}: allowed is from {2 / head_width:.4g} to 1")
    return width


def cut(config: Mapping[str, Any], *, tables_per_layer: bool = False, holds_parts: bool = False) -> Options:
    """`usual` where only a part of each head turns."""
    options = usual(config)
    width = rotary_width(config, options.head_width)
    rotary = Rotary(width, cut=True, tables_per_layer=tables_per_layer, holds_parts=holds_parts)
    return replace(options, rotary=rotary)


def llama(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Llama; also Mistral, whose window is a key."""
    return Decoder(build, usual(config))


def qwen2(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Queries, keys and values have a bias, the output has none."""
    return Decoder(build, replace(usual(config), query_bias=True, out_bias=False))


def qwen3(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Each head's queries and keys are normalized."""
    return Decoder(build, replace(usual(config), query_norm="head"))


def gemma(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Scaled embeddings and one plus the weight in its norms."""
    return Decoder(build, _gemma(config))


def _gemma(config: Mapping[str, Any]) -> Options:
    return replace(usual(config), norm=NormKind.RMS_PLUS_ONE, embedding_scaled=True)


def gemma2(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Norms before and after each branch; windowed layers; soft-capped scores (eager) and logits."""
    options = replace(
        _gemma(config),
        order=Order.SANDWICH,
        score_softcap=config["attn_logit_softcapping"] is not None,
        logits_softcap=config["final_logit_softcapping"] is not None,
    )
    return Decoder(build, options)


def gemma3(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Gemma 2 with normalized queries and keys, and tables of its own for each layer type."""
    options = replace(
        _gemma(config),
        order=Order.SANDWICH,
        query_norm="head",
        rotary_kinds=len(set(config["layer_types"])),
        score_softcap=config["attn_logit_softcapping"] is not None,
        logits_softcap=config["final_logit_softcapping"] is not None,
    )
    return Decoder(build, options)


def vaultgemma(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Gemma 2 without the norms behind each branch."""
    options = replace(
        _gemma(config),
        score_softcap=config["attn_logit_softcapping"] is not None,
        logits_softcap=config["final_logit_softcapping"] is not None,
    )
    return Decoder(build, options)


def exaone4(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Norms behind each branch and of each head's queries and keys; only windowed layers have positions."""
    options = replace(usual(config), order=Order.POST, query_norm="head")
    return Decoder(build, replace(options, rotary_layers=options.windowed_layers if options.window else ()))


def hunyuan(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Each head's queries and keys are normalized after their rotation."""
    return Decoder(build, replace(usual(config), query_norm="head", query_norm_last=True))


def ministral3(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Mistral whose turned queries are multiplied by a number for each position."""
    return Decoder(build, replace(usual(config), queries_scaled_by_position=True))


def gpt_neox(build: Build, config: Mapping[str, Any]) -> Decoder:
    """One product for queries, keys and values; attention and feed-forward side by side."""
    bias = config["attention_bias"]
    options = replace(
        cut(config),
        order=Order.PARALLEL_TWO_NORMS if config["use_parallel_residual"] else Order.PRE,
        norm=NormKind.LAYER,
        fused_projection="query_key_value",
        fused_cut="heads",
        query_bias=bias,
        out_bias=bias,
        out_name="dense",
        mlp="plain",
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        mlp_bias=True,
        residual_first=False,
        branch_dropout=config["hidden_dropout"],
        mlp_dropout=config["hidden_dropout"],
        embedding_dropout=config["hidden_dropout"],
    )
    return Decoder(build, options)


def opt(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Learned positions, scaled queries; the 350M model normalizes after each branch and has a narrower table."""
    before = config["do_layer_norm_before"]
    affine = config["layer_norm_elementwise_affine"]
    options = replace(
        usual({**config, "intermediate_size": config["ffn_dim"], "hidden_act": config["activation_function"]}),
        order=Order.PRE if before else Order.POST_SUM,
        norm=NormKind.LAYER if affine else NormKind.LAYER_BARE,
        rotary=None,
        position_rows=config["max_position_embeddings"] + 2,
        positions_per_sample=True,
        query_bias=config["enable_bias"],
        out_bias=config["enable_bias"],
        out_name="out_proj",
        query_scaled=True,
        mlp="plain",
        mlp_names=("fc1", "fc2"),
        mlp_bias=config["enable_bias"],
        branch_dropout=config["dropout"],
        mlp_dropout=config["dropout"],
        embedding_width=config["word_embed_proj_dim"],
        final_norm=before and not config["_remove_final_layer_norm"],
    )
    return Decoder(build, options)


def phi(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Partly rotated heads; attention and feed-forward share a LayerNorm; everything has a bias."""
    options = replace(
        cut(config, holds_parts=True),
        order=Order.PARALLEL,
        norm=NormKind.LAYER,
        query_bias=True,
        out_bias=True,
        head_bias=True,
        out_name="dense",
        query_norm="head" if config["qk_layernorm"] else None,
        mlp="plain",
        mlp_names=("fc1", "fc2"),
        mlp_bias=True,
        residual_first=False,
        branch_dropout=config["resid_pdrop"],
        mlp_dropout=config["resid_pdrop"],
        embedding_dropout=config["embd_pdrop"],
    )
    return Decoder(build, options)


def phi3(build: Build, config: Mapping[str, Any]) -> Decoder:
    """One product for queries, keys and values, and one for gate and up."""
    options = replace(
        cut(config),
        fused_projection="qkv_proj",
        query_bias=False,
        out_bias=False,
        mlp="fused-gated",
        branch_dropout=config["resid_pdrop"],
        mlp_dropout=config["resid_pdrop"],
    )
    return Decoder(build, options)


def olmo(build: Build, config: Mapping[str, Any]) -> Decoder:
    """LayerNorm without parameters; rotary tables in fp32."""
    return Decoder(build, replace(_wide_tables(config), norm=NormKind.LAYER_BARE))


def _wide_tables(config: Mapping[str, Any]) -> Options:
    options = usual(config)
    return replace(options, rotary=Rotary(options.head_width, wide_tables=True))


def olmo2(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Norms after each branch, and over all queries and all keys; OLMo 3 adds windowed layers."""
    options = replace(_wide_tables(config), order=Order.POST, norm=NormKind.RMS_WEIGHT_FIRST, query_norm="whole")
    return Decoder(build, options)


def olmo3(build: Build, config: Mapping[str, Any]) -> Decoder:
    """OLMo 2 with windowed layers, and rotary tables for each layer type."""
    options = replace(
        _wide_tables(config),
        order=Order.POST,
        norm=NormKind.RMS_WEIGHT_FIRST,
        query_norm="whole",
        rotary_kinds=len(set(config["layer_types"])),
    )
    return Decoder(build, options)


def cohere(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Attention and feed-forward share a composed LayerNorm; rotation in fp32; scaled logits."""
    return Decoder(build, replace(_cohere(config), query_norm="head" if config["use_qk_norm"] else None))


def _cohere(config: Mapping[str, Any]) -> Options:
    options = usual(config)
    return replace(
        options,
        order=Order.PARALLEL,
        norm=NormKind.LAYER_COMPOSED,
        rotary=Rotary(options.head_width, wide_inputs=True),
        query_norm_per_head=True,
        logits_scaled=True,
    )


def cohere2(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Cohere with windowed layers, the only ones with positions."""
    options = _cohere(config)
    return Decoder(build, replace(options, rotary_layers=options.windowed_layers))


def granite(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Llama with embeddings, branches and logits multiplied by numbers."""
    options = replace(usual(config), embedding_product=True, residual_scaled=True, logits_scaled=True)
    return Decoder(build, options)


def helium(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Interleaved rotation, norms that multiply by the weight in fp32."""
    options = usual(config)
    rotary = Rotary(options.head_width, tables_per_layer=True)
    return Decoder(build, replace(options, norm=NormKind.RMS_WEIGHT_FIRST, rotary=rotary, out_bias=False))


def glm(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Partly and interleaved rotation; gate and up in one product."""
    return Decoder(build, replace(cut(config, tables_per_layer=True), out_bias=False, mlp="fused-gated"))


def glm4(build: Build, config: Mapping[str, Any]) -> Decoder:
    """GLM with norms after each branch, too."""
    options = replace(cut(config, tables_per_layer=True), out_bias=False, mlp="fused-gated", order=Order.SANDWICH)
    return Decoder(build, options)


def ernie(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Interleaved rotation by fp32 tables, one switch for all biases."""
    return Decoder(build, ernie_options(config))


def ernie_options(config: Mapping[str, Any]) -> Options:
    """What ERNIE's dense and sparse models share."""
    bias = config["use_bias"]
    options = usual(config)
    rotary = Rotary(options.head_width, wide_tables=True, tables_per_layer=True)
    return replace(options, rotary=rotary, query_bias=bias, out_bias=bias, mlp_bias=bias, attention_dropout=0.0)


def seed_oss(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Llama with dropout behind each branch."""
    dropout = config["residual_dropout"]
    options = replace(usual(config), out_bias=config["attention_out_bias"], branch_dropout=dropout, mlp_dropout=dropout)
    return Decoder(build, options)


def arcee(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Llama with an ungated feed-forward."""
    return Decoder(build, replace(usual(config), mlp="plain"))


def nemotron(build: Build, config: Mapping[str, Any]) -> Decoder:
    """LayerNorm with one plus its weight, partly rotated heads, squared ReLU without a gate."""
    return Decoder(build, replace(cut(config), norm=NormKind.LAYER_PLUS_ONE, mlp="plain"))


def smollm3(build: Build, config: Mapping[str, Any]) -> Decoder:
    """Llama with layers that have no positions."""
    windowed = config["use_sliding_window"]
    options = usual(config)
    layers = tuple(bool(rope) for rope in config["no_rope_layers"])
    return Decoder(build, replace(options, rotary_layers=layers, window=options.window if windowed else None))


def stablelm(build: Build, config: Mapping[str, Any]) -> Decoder:
    """LayerNorm, partly rotated heads, side by side where the configuration says so."""
    options = replace(
        cut(config, holds_parts=True),
        order=Order.PARALLEL if config["use_parallel_residual"] else Order.PRE,
        norm=NormKind.LAYER,
        query_bias=config["use_qkv_bias"],
        out_bias=False,
        query_norm="each-head" if config["qk_layernorm"] else None,
        mlp_dropout=config["hidden_dropout"],
        attention_held=True,
        input_held=True,
    )
    return Decoder(build, options)


def starcoder2(build: Build, config: Mapping[str, Any]) -> Decoder:
    """LayerNorm and an ungated feed-forward, one switch for all biases, windowed attention."""
    bias, dropout = config["use_bias"], config["residual_dropout"]
    options = replace(
        usual(config),
        norm=NormKind.LAYER,
        query_bias=bias,
        out_bias=bias,
        mlp="plain",
        mlp_names=("c_fc", "c_proj"),
        mlp_bias=bias,
        branch_dropout=dropout,
        mlp_dropout=dropout,
        embedding_dropout=config["embedding_dropout"],
    )
    return Decoder(build, options)


def biogpt(build: Build, config: Mapping[str, Any]) -> Decoder:
    """OPT's layout with scaled embeddings; its eager softmax stays in the scores' type."""
    heads, dropout = config["num_attention_heads"], config["hidden_dropout_prob"]
    options = Options(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        key_heads=heads,
        head_width=config["hidden_size"] // heads,
        inner=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        act=config["hidden_act"],
        tied=config["tie_word_embeddings"],
        norm=NormKind.LAYER,
        embedding_product=True,
        position_rows=config["max_position_embeddings"] + 2,
        positions_per_sample=True,
        query_bias=True,
        out_bias=True,
        out_name="out_proj",
        mlp="plain",
        mlp_names=("fc1", "fc2"),
        mlp_bias=True,
        fp32_softmax=False,
        attention_dropout=config["attention_probs_dropout_prob"],
        branch_dropout=dropout,
        mlp_dropout=dropout,
        embedding_dropout=dropout,
    )
    return Decoder(build, options)
