"""What to change to fit more: each single change evaluated for real, and ranked by what it buys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc import explained_rows
from calc.errors import ScenarioError
from calc.scaling import Offload, Strategy
from calc.scaling.offload import offloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Evaluate = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Lever:
    """One change to a scenario: the fields it sets (of ``parallelism`` those keys alone), its risk, and who says so.

    ``short`` names it where several stand in a row.
    """

    id: str
    label: str
    short: str
    change: Mapping[str, Any]
    risk: str
    source: str


_ADAM = frozenset({"adam", "adamw", "adamw-fused"})
_SIXTEEN_BIT = frozenset({"fp16", "bf16", "bf16-master", "fp8"})
# What selective checkpointing is worth, and who says so, by how attention is computed.
_SELECTIVE = {
    "eager": (
        "Same result, a few percent more time: the attention core of each block is computed again.",
        "Korthikanti et al. 2022, arXiv:2205.05198",
    ),
    "fused": (
        "Same result, more time: attention and every second matrix product are kept, the rest is computed again.",
        "torchtitan, torchtitan/distributed/activation_checkpoint.py",
    ),
}


def _attention(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    if scenario.get("attention") == "eager":
        yield Lever(
            "sdpa",
            "Fused attention (sdpa)",
            "fused attention",
            {"attention": "sdpa"},
            "No known risk: same result within rounding. Attention weights cannot be read out.",
            "Dao et al. 2022, arXiv:2205.14135; torch.nn.functional.scaled_dot_product_attention",
        )


def _loss(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    if scenario.get("loss") == "standard" and scenario.get("sequence_length"):
        yield Lever(
            "fused-loss",
            "Fused cross-entropy, logits in chunks",
            "fused loss",
            {"loss": "fused"},
            "No known risk to training. Needs a kernel such as Liger's; logits are not returned.",
            "Hsu et al. 2024 (Liger Kernel), arXiv:2410.10989; Wijmans et al. 2024, arXiv:2411.09009",
        )


def _checkpointing(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    if scenario.get("checkpointing") in {"none", "selective"}:
        yield Lever(
            "checkpoint-full",
            "Activation checkpointing, every block",
            "checkpointing",
            {"checkpointing": "full"},
            "Same result, more time: one more forward pass, a third more operations.",
            "Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022, arXiv:2205.05198",
        )
    if scenario.get("checkpointing") == "none":
        yield Lever(
            "checkpoint-selective",
            "Selective checkpointing",
            "selective checkpointing",
            {"checkpointing": "selective"},
            *_SELECTIVE["eager" if scenario.get("attention") == "eager" else "fused"],
        )


def _optimizer(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    optimizer = scenario.get("optimizer")
    if optimizer in _ADAM:
        yield Lever(
            "optimizer-8bit",
            "8-bit AdamW",
            "8-bit AdamW",
            {"optimizer": "adamw-8bit"},
            "Matches 32-bit Adam in its authors' runs; embeddings are best kept in 32 bit.",
            "Dettmers et al. 2021, arXiv:2110.02861",
        )
        yield Lever(
            "optimizer-adafactor",
            "Adafactor",
            "Adafactor",
            {"optimizer": "adafactor"},
            "Another optimizer: tune the rate again; can be less stable than Adam.",
            "Shazeer & Stern 2018, arXiv:1804.04235",
        )
    if optimizer in {"adam", "adamw"}:
        yield Lever(
            "optimizer-fused",
            "Fused AdamW step",
            "fused AdamW",
            {"optimizer": "adamw-fused"},
            "No known risk: the same update without the step's temporary copies.",
            "torch.optim.AdamW, fused=True",
        )


def _precision(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    precision = scenario.get("precision")
    if precision in {"fp32", "tf32"}:
        for name, note in (
            ("amp-bf16", "Rarely needs any change; 8 bits of mantissa."),
            ("amp-fp16", "Needs loss scaling, which torch's GradScaler does; can overflow."),
        ):
            yield Lever(
                f"precision-{name}",
                f"Mixed precision ({name})",
                "mixed precision",
                {"precision": name},
                note,
                "Micikevicius et al. 2017, arXiv:1710.03740; torch.autocast",
            )
    if precision not in _SIXTEEN_BIT:
        yield Lever(
            "precision-bf16",
            "Everything in bf16",
            "bf16",
            {"precision": "bf16"},
            "Small updates are rounded away in 16-bit weights: long runs need stochastic rounding or a master copy.",
            "Zamirai et al. 2020, arXiv:2010.06192",
        )


def _method(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    method = scenario.get("method")
    frozen = " Linear layers alone get adapters: convolutions stay frozen." if scenario.get("image_size") else ""
    if method == "full":
        yield Lever(
            "lora",
            "LoRA adapters",
            "LoRA",
            {"method": "lora"},
            f"For fine-tuning only: learns less than training all weights, and forgets less.{frozen}",
            "Hu et al. 2021, arXiv:2106.09685; Biderman et al. 2024, arXiv:2405.09673",
        )
    if method in {"full", "lora"}:
        yield Lever(
            "qlora",
            "QLoRA: adapters on a 4-bit model",
            "QLoRA",
            {"method": "qlora"},
            f"For fine-tuning only: as LoRA, and slower, since weights are unpacked in every pass.{frozen}",
            "Dettmers et al. 2023, arXiv:2305.14314",
        )


def _sharding(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    parallelism = scenario.get("parallelism") or {}
    gpus = scenario.get("gpus", 1)
    strategy = parallelism.get("strategy", "ddp")
    if gpus > 1 and strategy in {"ddp", "zero1", "zero2"}:
        for name, label in (("zero1", "ZeRO 1: optimizer state divided"), ("fsdp", "FSDP: everything divided")):
            if name != strategy and not (name == "zero1" and strategy == "zero2"):
                yield Lever(
                    f"shard-{name}",
                    label,
                    label.partition(":")[0],
                    {"parallelism": {"strategy": name}},
                    "Same result; weights are gathered again for every pass, which slow links do not hide."
                    if name == "fsdp"
                    else "Same result at about the same speed.",
                    "Rajbhandari et al. 2019, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277",
                )
    if gpus == 1:
        yield Lever(
            "two-gpus",
            "A second GPU, everything divided (FSDP)",
            "FSDP on 2 GPUs",
            {"gpus": 2, "parallelism": {"strategy": "fsdp"}},
            "Costs a second card; weights pass over the link between the two in every pass.",
            "Zhao et al. 2023, arXiv:2304.11277",
        )
    if gpus < 8:
        yield Lever(
            "eight-gpus",
            "A server of eight GPUs, everything divided (FSDP)",
            "FSDP on 8 GPUs",
            {"gpus": 8, "parallelism": {"strategy": "fsdp"}},
            "Costs eight cards; weights pass over the links between them in every pass.",
            "Zhao et al. 2023, arXiv:2304.11277",
        )


def _offload(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    parallelism = scenario.get("parallelism") or {}
    alone = all(parallelism.get(degree, 1) == 1 for degree in ("tensor", "pipeline", "context"))
    allowed = offloads(Strategy(parallelism.get("strategy", "ddp")), scenario.get("gpus", 1), alone=alone)
    present = Offload(parallelism.get("cpu_offload", "none"))
    if Offload.OPTIMIZER in allowed and present is Offload.NONE:
        yield Lever(
            "offload-optimizer",
            "Optimizer state in the host's memory",
            "optimizer on the host",
            {"parallelism": {"cpu_offload": "optimizer"}},
            "Same result, slower: gradients and weights cross PCIe and the processor does the update.",
            "Ren et al. 2021, arXiv:2101.06840",
        )
    if Offload.ALL in allowed and present is not Offload.ALL:
        yield Lever(
            "offload-all",
            "Weights and optimizer state in the host's memory",
            "weights and optimizer on the host",
            {"parallelism": {"cpu_offload": "all"}},
            "Same result, slower still: weights cross PCIe in every pass too, and the host must hold all of it.",
            "Ren et al. 2021, arXiv:2101.06840; Rajbhandari et al. 2021, arXiv:2104.07857",
        )


def _inputs(scenario: Mapping[str, Any]) -> Iterator[Lever]:
    length = scenario.get("sequence_length")
    if length and length >= 128:
        yield Lever(
            "shorter-sequence",
            f"Sequences half as long ({length // 2})",
            "half the sequence",
            {"sequence_length": length // 2},
            "Another task: the model sees shorter contexts.",
            "arithmetic",
        )
    size = scenario.get("image_size")
    if isinstance(size, int) and size >= 128:
        smaller = size * 3 // 4 // 32 * 32
        yield Lever(
            "smaller-image",
            f"Smaller images ({smaller} px)",
            "smaller images",
            {"image_size": smaller},
            "Accuracy falls with resolution; train small and finish at full size to win most of it back.",
            "Touvron et al. 2019, arXiv:1906.06423",
        )
    if scenario.get("zero_grad") == "keep":
        yield Lever(
            "free-gradients",
            "Gradients freed after each step",
            "gradients freed",
            {"zero_grad": "free"},
            "No known risk: torch's default.",
            "torch.optim.Optimizer.zero_grad, set_to_none=True",
        )


def levers(scenario: Mapping[str, Any]) -> list[Lever]:
    """List the single changes that may be made to a filled-in scenario."""
    kinds = (_attention, _loss, _checkpointing, _optimizer, _precision, _method, _sharding, _offload, _inputs)
    return [lever for kind in kinds for lever in kind(scenario)]


def applied(scenario: Mapping[str, Any], changes: Sequence[Lever]) -> dict[str, Any]:
    """Return the scenario with levers pulled, one after another."""
    changed = dict(scenario)
    for lever in changes:
        parallelism = {**(changed.get("parallelism") or {}), **lever.change.get("parallelism", {})}
        changed |= lever.change
        if parallelism:
            changed["parallelism"] = parallelism
    return changed


def _difference(scenario: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that levers set, as a person would apply them."""
    return {key: value for key, value in changed.items() if scenario.get(key) != value}


def _peak(result: Mapping[str, Any]) -> int:
    return int(result["memory"]["peak_reserved_bytes"])


def advise(scenario: Mapping[str, Any], evaluate: Evaluate) -> list[dict[str, Any]]:
    """Evaluate each single change and rank them by what they buy.

    Parameters
    ----------
    scenario : Mapping
        Filled in, as the result repeats it.
    evaluate : Callable
        The evaluation, ``calc.evaluation.evaluate``.

    Returns
    -------
    list[dict]
        ``id``, ``label``, ``change``, ``risk``, ``source``; ``saved_bytes`` at the scenario's micro-batch;
        ``max_micro_batch`` and ``batch_gained``; ``speed_ratio``: samples per second at the change's largest batch over
        those at the scenario's own (None where either does not fit); ``explanations`` of these numbers. Most batch
        gained first, then the faster, then the more saved. A change that the model or card refuses is left out, and
        selective checkpointing where it comes to the same as every block's, as without attention or linear layers.
    """
    at_largest = {key: value for key, value in scenario.items() if key != "micro_batch"}
    base = evaluate(at_largest)
    micro_batch = max(1, scenario.get("micro_batch") or base["max_micro_batch"])
    base_same = evaluate({**at_largest, "micro_batch": micro_batch})
    rows = []
    every_block: dict[str, Any] | None = None
    for lever in levers(scenario):
        changed = applied(at_largest, [lever])
        try:
            largest = evaluate(changed)
            if lever.id == "checkpoint-selective" and every_block is not None and _same_step(largest, every_block):
                continue
            same = evaluate({**changed, "micro_batch": micro_batch})
        except ScenarioError:
            continue
        if lever.id == "checkpoint-full":
            every_block = largest
        rates = _rates(base, largest)
        rows.append(
            {
                "id": lever.id,
                "label": lever.label,
                "change": _difference(at_largest, changed),
                "risk": lever.risk,
                "source": lever.source,
                "saved_bytes": _peak(base_same) - _peak(same),
                "max_micro_batch": largest["max_micro_batch"],
                "batch_gained": largest["max_micro_batch"] - base["max_micro_batch"],
                "speed_ratio": rates[1] / rates[0] if rates else None,
                "explanations": explained_rows.lever(
                    largest=(base["max_micro_batch"], largest["max_micro_batch"]),
                    reserved_bytes=(_peak(base_same), _peak(same)),
                    micro_batch=micro_batch,
                    rates=rates,
                    rates_of="samples" if _length(base) == _length(largest) else "tokens",
                ),
            }
        )
    rows.sort(key=lambda row: (-row["batch_gained"], -(row["speed_ratio"] or 0), -row["saved_bytes"]))
    return rows


def _same_step(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two results are of the same batch, bytes and speed."""
    return all(one.get(key) == other.get(key) for key in ("max_micro_batch", "memory", "samples_per_second"))


def ways_to_fit(scenario: Mapping[str, Any], evaluate: Evaluate) -> list[dict[str, Any]]:
    """Find changes that together make one sample fit: a way that trains all weights, and one that trains adapters.

    Changes are added from the harmless to the costly until a sample fits, then those that are not needed are taken
    back, the costly first. GPUs at hand come before the host's memory, and that before more GPUs.

    Parameters
    ----------
    scenario : Mapping
        Filled in.
    evaluate : Callable
        The evaluation, ``calc.evaluation.evaluate``.

    Returns
    -------
    list[dict]
        Short ``labels`` and the merged ``change`` of each way with its ``max_micro_batch`` and the ``host_bytes`` that
        it moves into the host's memory, for all GPUs; empty where even all together do not help, or where a sample fits
        as it is.
    """
    at_largest = {key: value for key, value in scenario.items() if key != "micro_batch"}
    if evaluate(at_largest)["max_micro_batch"]:
        return []
    orders = [_FULL_TRAINING, _ADAPTERS] if scenario.get("method") == "full" else [_ADAPTERS]
    found: list[dict[str, Any]] = []
    for order in orders:
        adapters = order is _ADAPTERS
        taken = _until_fits(at_largest, order, evaluate, adapters=adapters)
        if taken is None:
            continue
        for lever in reversed(taken):
            fewer = [other for other in taken if other is not lever]
            if _fits(at_largest, fewer, evaluate, adapters=adapters):
                taken = fewer
        changed = applied(at_largest, taken)
        largest = evaluate(changed)["max_micro_batch"]
        change = _difference(at_largest, changed)
        if (scenario.get("micro_batch") or 0) > largest:
            # What was asked for would still not fit.
            change["micro_batch"] = None
        found.append(
            {
                "labels": [lever.short for lever in taken],
                "change": change,
                "max_micro_batch": largest,
                "host_bytes": _host_bytes(at_largest, taken, evaluate),
            }
        )
    return found


def _host_bytes(scenario: Mapping[str, Any], taken: list[Lever], evaluate: Evaluate) -> int:
    """Return the bytes of the model's state that levers move into the host's memory: what the cards would hold."""
    moved = max((_MOVED[lever.id] for lever in taken if lever.id in _MOVED), key=len, default=())
    if not moved:
        return 0
    # At one sample the peak is where all gradients are held.
    on_card = applied(scenario, [lever for lever in taken if lever.id not in _MOVED])
    held = evaluate({**on_card, "micro_batch": 1})["memory"]["components"]
    each = sum(part["bytes"] for part in held if part["id"].partition(".")[0] in moved)
    return int(on_card.get("gpus", 1) * each)


_MOVED: Mapping[str, tuple[str, ...]] = {
    "offload-optimizer": ("optimizer_state",),
    "offload-all": ("weights", "gradients", "optimizer_state"),
}
_HARMLESS = ("sdpa", "fused-loss", "free-gradients", "optimizer-fused", "checkpoint-full")
_FULL_TRAINING = (
    *_HARMLESS,
    "shard-fsdp",
    "optimizer-8bit",
    "precision-bf16",
    "offload-optimizer",
    "offload-all",
    "two-gpus",
    "eight-gpus",
)
_ADAPTERS = (*_HARMLESS, "lora", "precision-bf16", "qlora")


def _fits(scenario: Mapping[str, Any], taken: list[Lever], evaluate: Evaluate, *, adapters: bool) -> bool:
    """Whether a sample fits with levers pulled and, where it has to be ``adapters`` that train, whether they do."""
    changed = applied(scenario, taken)
    if adapters and changed.get("method") == "full":
        return False
    try:
        return bool(evaluate(changed)["max_micro_batch"])
    except ScenarioError:
        return False


def _until_fits(
    scenario: Mapping[str, Any], order: tuple[str, ...], evaluate: Evaluate, *, adapters: bool
) -> list[Lever] | None:
    """Take levers in order until one sample fits and adapters train where they have to; None where all do not help."""
    taken: list[Lever] = []
    for name in order:
        offered = {lever.id: lever for lever in levers(applied(scenario, taken))}
        if name not in offered:
            continue
        wider = [*taken, offered[name]]
        changed = applied(scenario, wider)
        try:
            result = evaluate(changed)
        except ScenarioError:
            continue
        taken = wider
        if result["max_micro_batch"] and not (adapters and changed.get("method") == "full"):
            return taken
    return None


def _length(result: Mapping[str, Any]) -> int:
    return int(result["scenario"].get("sequence_length") or 1)


def _rates(base: Mapping[str, Any], changed: Mapping[str, Any]) -> tuple[float, float] | None:
    """Samples per second without a change and with it, or tokens where the change is the length of a sample."""
    if not (changed["max_micro_batch"] and base["max_micro_batch"] and base.get("samples_per_second")):
        return None
    before, after = base["samples_per_second"], changed["samples_per_second"]
    if _length(base) == _length(changed):
        return before, after
    return before * _length(base), after * _length(changed)
