"""A model as those see it who divide it among GPUs: its heads, blocks and experts, and what a block hands on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from calc.accumulation import divisors
from calc.architectures import swin, vision_transformers
from calc.catalog.config_keys import EXPERT_KEYS, HEAD_KEYS, KEY_VALUE_HEAD_KEYS
from calc.errors import ScenarioError
from calc.memory import replay
from calc.replay.tape import Dtype, Phase
from calc.scenario import Attention, Checkpointing, Loss, Method, Precision, parse
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from calc.replay.profile import Profile
    from calc.scenario import Scenario

_HEADS_KEYS = (*HEAD_KEYS, "decoder_attention_heads")
_EXPERTS_EACH_KEYS = ("num_experts_per_tok", "num_selected_experts", "moe_topk")
_TOWERS = ("vision_config", "text_config")
_TORCHVISION: dict[str, vision_transformers.Variant | swin.Variant] = {**vision_transformers.VARIANTS, **swin.VARIANTS}


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """What tensor, pipeline, context and expert parallelism divide, and what their GPUs pass on.

    ``heads`` and ``key_value_heads`` are the largest numbers that divide every block's, 0 where the model is no stack
    of transformer blocks. ``layers`` are its transformer blocks, or whatever blocks it repeats where it has none.
    ``layer_elements`` is what a block hands to the next, tokens x hidden size of one sample, as the mean of all blocks.
    ``experts`` are those of one mixture, 1 where there is none, ``experts_each`` those that a token is sent to.
    """

    heads: int
    key_value_heads: int
    layers: int
    layer_elements: int
    experts: int
    experts_each: int

    @staticmethod
    def of(scenario: Scenario) -> ModelDimensions:
        """Read the scenario's model: heads and experts from its configuration, blocks from its replay."""
        config = scenario.model.config
        blocks = list(_blocks(_plain(scenario)))
        attending = [block for block in blocks if block.attends]
        heads = math.gcd(*_heads(scenario.model.architecture, config)) if attending else 0
        blocks = attending or blocks
        layers = sum(block.repeats for block in blocks)
        elements = sum(block.repeats * block.elements for block in blocks)
        return ModelDimensions(
            heads=heads,
            key_value_heads=math.gcd(heads, *_numbers(config, KEY_VALUE_HEAD_KEYS)),
            layers=layers,
            layer_elements=-(-elements // max(layers, 1)),
            experts=next(iter(_numbers(config, EXPERT_KEYS)), 1),
            experts_each=next(iter(_numbers(config, _EXPERTS_EACH_KEYS)), 0),
        )


def refuse_undividable(scenario: Scenario) -> None:
    """Refuse to divide what the model has not.

    Raises
    ------
    ScenarioError
        The first degree of ``parallelism`` that does not go with the model's heads, blocks or experts, with those that
        are allowed.
    """
    misfit = next(_misfits(scenario), None)
    if misfit is not None:
        raise ScenarioError(f"parallelism.{misfit[0]}", misfit[1])


def parse_dividable(given: Mapping[str, Any]) -> Scenario:
    """`calc.scenario.parse`, and `refuse_undividable`: the scenario that can be answered, or the refusal."""
    scenario = parse(given)
    refuse_undividable(scenario)
    return scenario


def _misfits(scenario: Scenario) -> Iterator[tuple[str, str]]:
    layout, name = scenario.layout, scenario.model.name
    divided = [way for way in ("tensor", "pipeline", "context") if getattr(layout, way) > 1]
    if not divided and layout.expert == 1:
        return
    model = ModelDimensions.of(scenario)
    if divided and model.heads == 0:
        alone = (
            "which alone are divided so (Megatron-LM): use 1, and a strategy that divides weights or optimizer state"
        )
        yield divided[0], f"{name} is no stack of transformer blocks, {alone}"
    if model.heads % layout.tensor:
        heads = counted(model.heads, "attention head")
        yield "tensor", f"{layout.tensor:,} does not divide the {heads}: {_allowed_divisors(model.heads)}"
    if layout.pipeline > 1 and layout.pipeline > model.layers:
        layers = counted(model.layers, "layer")
        yield "pipeline", f"{layout.pipeline:,} stages for {layers}: allowed is 1 to {model.layers:,}"
    if layout.expert > 1 and model.experts == 1:
        yield "expert", f"{name} has no experts to divide: allowed is 1"
    if model.experts % layout.expert:
        experts = counted(model.experts, "expert")
        yield "expert", f"{layout.expert:,} does not divide the {experts}: {_allowed_divisors(model.experts)}"


def _allowed_divisors(number: int) -> str:
    return f"allowed are {', '.join(map(str, divisors(number)))}"


class _Block(NamedTuple):
    """A replayed block: how many of the model's it stands for, what it hands on, whether it has attention."""

    repeats: int
    elements: int
    attends: bool


def _plain(scenario: Scenario) -> Profile:
    """Replay a model in one number format, and so that of a block nothing but its output outlives its forward."""
    return replay(
        replace(
            scenario,
            precision=Precision.FP32,
            checkpointing=Checkpointing.FULL,
            attention=Attention.SDPA,
            loss=Loss.STANDARD,
            method=Method.FULL,
        )
    ).profile


def _blocks(profile: Profile) -> Iterator[_Block]:
    """List the repeated blocks of forward, in order.

    A block's output is what is made in it and alive at its end. Scores that a model returns beside it are not handed
    on: they are made in another part of the block than the one that it ends in.
    """
    for start, end, segment in profile.stretches:
        if segment.phase is not Phase.FORWARD:
            break
        if segment.block < 0:
            continue
        made = [event for event in profile.events[start:end] if event > 0]
        freed = {-event for event in profile.events[start:end] if event < 0}
        alive = [storage for storage in made if storage not in freed and profile.per_sample[storage]]
        ends_in = profile.labels[alive[-1]] if alive else ""
        nbytes = sum(profile.per_sample[storage] for storage in alive if profile.labels[storage] == ends_in)
        attends = any(profile.labels[storage] == "attention" for storage in made)
        yield _Block(segment.repeats, nbytes // Dtype.FP32.itemsize, attends)


def _heads(architecture: str, config: Mapping[str, Any]) -> list[int]:
    """Attention heads of every part that names some."""
    if architecture in _TORCHVISION:
        heads = _TORCHVISION[architecture].heads
        return [heads] if isinstance(heads, int) else list(heads)
    own = _numbers(config, _HEADS_KEYS)
    return own or [heads for tower in _TOWERS for heads in _numbers(config.get(tower, {}), _HEADS_KEYS)]


def _numbers(config: Mapping[str, Any], keys: tuple[str, ...]) -> list[int]:
    """Whole numbers above 0 that a configuration has under some keys, those of lists too."""
    found: list[int] = []
    for key in keys:
        value = config.get(key)
        values = value if isinstance(value, list | tuple) else [value]
        found += [number for number in values if isinstance(number, int) and number > 0]
    return found
