"""How each number of the result comes about: its formula, the formula with this scenario's values, its source.

The parts of the peak carry theirs (`calc.breakdown`); here are the others, by their place in the result. What stands
after the equals sign of a formula with its values is the number itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calc import batch, cost
from calc.convergence import noise_scale, tradeoff
from calc.goal import SECONDS_PER_HOUR
from calc.timing import useful_operations
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from calc.memory import StepMemory
    from calc.scenario import Scenario

GIB = 1 << 30
TIMES = " \u00d7 "
ALLOCATOR = "torch, c10/cuda/CUDACachingAllocator.cpp, followed request by request"
REPLAY = "one training step replayed, operation by operation (torch, tools/autograd/derivatives.yaml)"
ROOFLINE = "a roofline for each kernel (Williams et al. 2009) against the host that launches them; constants measured"
DEFINITION = "by definition"
STEP_PARTS = (
    ("compute_seconds", "products"),
    ("memory_seconds", "memory traffic"),
    ("optimizer_seconds", "optimizer"),
    ("launch_seconds", "waiting for launches"),
)
SHARED_STEP_PARTS = (
    ("compute_seconds", "passes"),
    ("optimizer_seconds", "optimizer"),
    ("exposed_communication_seconds", "exchange not hidden"),
    ("bubble_seconds", "pipeline bubble"),
    ("offload_seconds", "host"),
    ("unmodelled_seconds", "stragglers, input, clocks"),
)


@dataclass(frozen=True)
class Explanation:
    """One number's formula in words, the same with values filled in, and where it is from."""

    formula: str
    values: str
    source: str


def explanations(scenario: Scenario, memory: StepMemory, result: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Explain the result's numbers, by their dotted place in it; those that the scenario does not have are left out."""
    found: dict[str, Explanation] = {}
    for explain in (_memory, _batch, _speed, _accumulation, _critical_batch, _learning_rate, _many_gpus, _run):
        found.update(explain(scenario, memory, result))
    return {place: asdict(explanation) for place, explanation in found.items()}


def number_text(value: float) -> str:
    """Four digits that mean something, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def gib_text(nbytes: int) -> str:
    """Bytes in GiB, the unit left to the sentence."""
    return f"{nbytes / GIB:.2f}"


def _sum_gib(nbytes: list[int], total: int) -> str:
    return f"{' + '.join(gib_text(n) for n in nbytes)} = {gib_text(total)} GiB"


def sum_seconds_text(parts: Mapping[str, float], names: tuple[tuple[str, str], ...], total: float) -> tuple[str, str]:
    """The names of the parts that there are, and their seconds with the total."""
    there = [(words, parts[name]) for name, words in names if parts[name]]
    unit, name = (1, "s") if total >= 1 else (1000, "ms")
    values = " + ".join(number_text(seconds * unit) for _, seconds in there)
    return " + ".join(words for words, _ in there), f"{values} = {number_text(total * unit)} {name}"


def _memory(scenario: Scenario, memory: StepMemory, result: Mapping[str, Any]) -> Iterator[tuple[str, Explanation]]:
    shown, gpu = result["memory"], result["gpu"]
    allocated, reserved, process = (shown[f"{n}_bytes"] for n in ("peak_allocated", "peak_reserved", "process"))
    parts = [part for part in shown["components"] if part["bytes"]]
    yield (
        "memory.peak_allocated_bytes",
        Explanation(
            " + ".join(part["label"][:1].lower() + part["label"][1:] for part in parts) + ", when they are most",
            _sum_gib([part["bytes"] for part in parts], allocated),
            f"{REPLAY}; comparable to torch.cuda.max_memory_allocated()",
        ),
    )
    for phase, peak in shown["phases"].items():
        yield (
            f"memory.phases.{phase}",
            Explanation(
                "weights, optimizer state and workspaces + the most that comes and goes in this phase",
                _sum_gib([memory.constant_bytes, peak - memory.constant_bytes], peak),
                REPLAY,
            ),
        )
    yield (
        "memory.peak_reserved_bytes",
        Explanation(
            "tensors at the peak + gaps between blocks and rests of segments",
            _sum_gib([allocated, reserved - allocated], reserved),
            f"{ALLOCATOR}; comparable to torch.cuda.max_memory_reserved()",
        ),
    )
    card = scenario.gpu.catalog
    if scenario.calibration:
        overhead_source = "fitted to your readings"
    elif card is not None and gpu["overhead_bytes"] == card.context_bytes:
        overhead_source = card.sources["context"]
    else:
        overhead_source = "as the scenario gives it"
    yield (
        "memory.process_bytes",
        Explanation(
            "reserved + CUDA context and whatever else the allocator cannot use",
            _sum_gib([reserved, gpu["overhead_bytes"]], process),
            f"{overhead_source}; comparable to nvidia-smi",
        ),
    )
    yield (
        "memory.limit_bytes",
        Explanation(
            "memory that torch sees on the card \u2212 what the allocator cannot use",
            f"{gib_text(gpu['memory_bytes'])} \u2212 {gib_text(gpu['overhead_bytes'])} = "
            f"{gib_text(shown['limit_bytes'])} GiB",
            overhead_source,
        ),
    )
    yield (
        "gpu.memory_bytes",
        Explanation(
            "bytes that torch sees on the card \u00f7 2^30; a GB on the box is 10^9 bytes",
            f"{gpu['memory_bytes']:,} \u00f7 2^30 = {gib_text(gpu['memory_bytes'])} GiB",
            card.sources["visible"] if card is not None else "as the scenario gives it",
        ),
    )
    yield (
        "parameters",
        Explanation(
            "sizes of all weight tensors, added up; a tensor that is used twice counts once",
            f"{result['parameters']:,}",
            "the model's configuration; the count equals the library's own (transformers, torchvision, diffusers)",
        ),
    )
    if result["trainable_parameters"] != result["parameters"]:
        yield (
            "trainable_parameters",
            Explanation(
                "sizes of the weight tensors that have a gradient, added up",
                f"{result['trainable_parameters']:,}",
                "peft: adapters train, the model below them is frozen",
            ),
        )


def _batch(_scenario: Scenario, memory: StepMemory, result: Mapping[str, Any]) -> Iterator[tuple[str, Explanation]]:
    largest, limit = result["max_micro_batch"], result["memory"]["limit_bytes"]
    safe, optimistic = result["max_micro_batch_safe"], result["max_micro_batch_optimistic"]
    needs = gib_text(result["next_needs_bytes"])
    yield (
        "max_micro_batch",
        Explanation(
            "the largest micro-batch for which the allocator finds room for every request of a step; where it runs "
            "short it gives cached memory back first, as torch does",
            f"{largest:,} within {gib_text(limit)} GiB; {largest + 1:,} lacks {needs} GiB",
            ALLOCATOR,
        ),
    )
    yield (
        "max_micro_batch_safe",
        Explanation(
            "the largest micro-batch whose reserved memory fits without giving any back, which would cost time and "
            "can fail when requests come in another order",
            f"{safe:,}" + (f", found to within a {batch.SAFE_TOLERANCE}th below" if safe < largest else ""),
            ALLOCATOR,
        ),
    )
    yield (
        "max_micro_batch_optimistic",
        Explanation(
            "the largest micro-batch whose tensors alone fit, as if memory were never fragmented",
            f"{gib_text(memory.requested_peak(optimistic))} of {gib_text(limit)} GiB at {optimistic:,}"
            if optimistic
            else f"one sample needs {gib_text(memory.requested_peak(1))} of {gib_text(limit)} GiB",
            REPLAY,
        ),
    )
    yield (
        "next_needs_bytes",
        Explanation(
            "how much larger the card would have to be for one sample more: what its tensors lack or, where only "
            "the allocator's order stands in the way, a size at which it finds room",
            f"micro-batch {largest + 1:,} lacks {needs} GiB beyond {gib_text(limit)} GiB",
            ALLOCATOR,
        ),
    )


def _speed(scenario: Scenario, memory: StepMemory, result: Mapping[str, Any]) -> Iterator[tuple[str, Explanation]]:
    time, seconds = result["time"], result["step_seconds"]
    if time is None:
        return
    scaling = result["scaling"]
    parts, names = (scaling["parts"], SHARED_STEP_PARTS) if scaling else (time, STEP_PARTS)
    formula, values = sum_seconds_text(parts, names, seconds)
    yield "step_seconds", Explanation(formula, values, ROOFLINE)
    passes, replicas, rate = time["accumulation_steps"], scenario.layout.data, result["samples_per_second"]
    factors = [("micro-batch", time["micro_batch"])]
    factors += [("accumulation steps", passes)] if passes > 1 else []
    factors += [("replicas", replicas)] if scaling else []
    yield (
        "samples_per_second",
        Explanation(
            TIMES.join(words for words, _ in factors) + " \u00f7 seconds of a step",
            TIMES.join(f"{value:,}" for _, value in factors) + f" \u00f7 {number_text(seconds)} = {number_text(rate)}",
            DEFINITION,
        ),
    )
    length = scenario.shape.sequence_length
    if length:
        yield (
            "tokens_per_second",
            Explanation(
                "samples a second \u00d7 sequence length",
                f"{number_text(rate)} \u00d7 {length:,} = {number_text(rate * length)}",
                DEFINITION,
            ),
        )
    work = useful_operations(scenario, memory.step, time["micro_batch"] * passes, passes)
    if work is not None:
        operations, peak = work
        alone = sum(time[name] for name, _ in STEP_PARTS)
        yield (
            "time.model_flops_utilization",
            Explanation(
                "operations of a step, recomputed ones not counted \u00f7 seconds of a step on one GPU \u00f7 the data "
                "sheet's dense rate",
                f"{operations:.4g} \u00f7 {number_text(alone)} s \u00f7 {peak:.4g}/s = "
                f"{number_text(100 * time['model_flops_utilization'])} %",
                "Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B",
            ),
        )


def _accumulation(
    _scenario: Scenario, _memory: StepMemory, result: Mapping[str, Any]
) -> Iterator[tuple[str, Explanation]]:
    found = result["accumulation"]
    if not found or found["update_seconds"] is None:
        return
    update, micro_batch, steps = found["update_seconds"], found["micro_batch"], found["accumulation_steps"]
    yield (
        "accumulation.update_seconds",
        Explanation(
            "forward and backward of every pass + one optimizer step, on one GPU",
            f"{counted(steps, 'pass', 'passes')} of {counted(micro_batch, 'sample')}: {number_text(update)} s",
            ROOFLINE,
        ),
    )
    yield (
        "accumulation.sample_seconds",
        Explanation(
            "one update \u00f7 its samples on this GPU",
            f"{number_text(1000 * update)} ms \u00f7 ({micro_batch:,} \u00d7 {steps:,}) = "
            f"{number_text(1000 * found['sample_seconds'])} ms",
            DEFINITION,
        ),
    )
    single = found["sample_seconds_single"]
    yield (
        "accumulation.sample_seconds_single",
        Explanation(
            "an update after every pass \u00f7 the samples of a pass: here the optimizer runs each time",
            f"{number_text(1000 * single * micro_batch)} ms \u00f7 {micro_batch:,} = {number_text(1000 * single)} ms",
            ROOFLINE,
        ),
    )


def _critical_batch(
    scenario: Scenario, _memory: StepMemory, result: Mapping[str, Any]
) -> Iterator[tuple[str, Explanation]]:
    found = result["convergence"]
    band, own, updates = found["critical_batch"], found["own_noise_scale"], found["updates"]
    if band:
        ends = [("low", band["low"]), ("high", band["high"])]
        for end, value in ends:
            yield (
                f"convergence.critical_batch.{end}",
                Explanation(
                    f"{band['definition']}. Of what is known for such a run, the {end} end",
                    f"{number_text(value)} {band['unit']}. {band['doubt']}",
                    "; ".join(band["sources"]),
                ),
            )
        samples = scenario.global_batch or result["micro_batch"] * scenario.layout.data
        yield (
            "convergence.critical_batch.batch",
            Explanation(
                "samples of an optimizer step" + (" \u00d7 tokens of each" if band["unit"] == "tokens" else ""),
                f"{samples:,} \u00d7 {round(band['batch'] / samples):,} = {number_text(band['batch'])}"
                if band["unit"] == "tokens"
                else f"{samples:,}",
                DEFINITION,
            ),
        )
        batches = (band["low"], band["high"])
        for name, formula, lines in (
            (
                "steps_factor",
                "1 + critical batch \u00f7 batch",
                [f"1 + {number_text(b)} \u00f7 {number_text(band['batch'])}" for b in batches],
            ),
            (
                "examples_factor",
                "1 + batch \u00f7 critical batch",
                [f"1 + {number_text(band['batch'])} \u00f7 {number_text(b)}" for b in reversed(batches)],
            ),
        ):
            for place, (line, value) in enumerate(zip(lines, found["tradeoff"][name], strict=True)):
                yield (
                    f"convergence.tradeoff.{name}.{place}",
                    Explanation(formula, f"{line} = {number_text(value)}", f"{tradeoff.SOURCE}, equation 2.11"),
                )
    if own:
        yield (
            "convergence.own_noise_scale.noise_scale",
            Explanation(
                "variance of one sample's gradient, summed over weights \u00f7 square of the mean gradient's norm",
                f"{number_text(own['noise_trace'])} \u00f7 {number_text(own['gradient_norm_squared'])} = "
                f"{counted(own['noise_scale'], 'sample', said=number_text(own['noise_scale']))}",
                noise_scale.SOURCE,
            ),
        )
    if updates is not None:
        yield (
            "convergence.updates",
            Explanation(
                "samples of the run \u00f7 samples of a step, upwards",
                counted(updates, "update"),
                DEFINITION,
            ),
        )


def _learning_rate(
    scenario: Scenario, _memory: StepMemory, result: Mapping[str, Any]
) -> Iterator[tuple[str, Explanation]]:
    found = result["convergence"]["learning_rate"]
    if not found:
        return
    known_batch, known = scenario.filled["known_batch"], scenario.filled["known_learning_rate"]
    ratio, rate = found["batch_ratio"], found["learning_rate"]
    yield (
        "convergence.learning_rate.batch_ratio",
        Explanation(
            "new batch \u00f7 the batch that works",
            f"{number_text(ratio * known_batch)} \u00f7 {number_text(known_batch)} = {number_text(ratio)}",
            DEFINITION,
        ),
    )
    if found["rule"] == "linear":
        formula = "rate that works \u00d7 growth of the batch"
        values = f"{number_text(known)} \u00d7 {number_text(ratio)} = {number_text(rate)}"
    elif found["rule"] == "square root":
        formula = "rate that works \u00d7 square root of the growth of the batch"
        values = f"{number_text(known)} \u00d7 {number_text(ratio**0.5)} = {number_text(rate)}"
    else:
        formula, values = found["reason"], f"{number_text(rate)}, the highest that the noise scale's band allows"
    yield "convergence.learning_rate.learning_rate", Explanation(formula, values, found["source"])


def _many_gpus(
    _scenario: Scenario, _memory: StepMemory, result: Mapping[str, Any]
) -> Iterator[tuple[str, Explanation]]:
    found = result["scaling"]
    if not found:
        return
    formula, values = sum_seconds_text(found["parts"], SHARED_STEP_PARTS, found["step_seconds"])
    links = "; ".join(found["fabric"]["sources"])
    yield "scaling.step_seconds", Explanation(formula, values, f"{ROOFLINE}; {links}")
    speed_up, efficiency, gpus = found["speed_up"], found["efficiency"], found["gpus"]
    yield (
        "scaling.speed_up",
        Explanation(
            "samples a second of all GPUs \u00f7 those of one that does the same work alone",
            f"{number_text(speed_up)} with {counted(gpus, 'GPU')}",
            links,
        ),
    )
    yield (
        "scaling.efficiency",
        Explanation(
            "speed-up \u00f7 GPUs",
            f"{number_text(speed_up)} \u00f7 {gpus:,} = {number_text(100 * efficiency)} %",
            DEFINITION,
        ),
    )


def _run(scenario: Scenario, _memory: StepMemory, result: Mapping[str, Any]) -> Iterator[tuple[str, Explanation]]:
    found = result["run"]
    if not found:
        return
    updates, seconds, hours = found["updates"], found["seconds"], found["gpu_hours"]
    yield (
        "run.updates",
        Explanation("samples of the run \u00f7 samples of a step, rounded up", f"{updates:,}", DEFINITION),
    )
    yield (
        "run.seconds",
        Explanation(
            "updates \u00d7 seconds of an update",
            f"{updates:,} \u00d7 {number_text(seconds / updates)} s = {number_text(seconds)} s",
            ROOFLINE,
        ),
    )
    yield (
        "run.gpu_hours",
        Explanation(
            "hours \u00d7 GPUs",
            f"{number_text(seconds / SECONDS_PER_HOUR)} \u00d7 {scenario.gpus:,} = {number_text(hours)}",
            DEFINITION,
        ),
    )
    low, high, card = found["energy_kwh_low"], found["energy_kwh_high"], scenario.gpu.catalog
    if low is not None and card is not None and card.tdp_watts:
        yield (
            "run.energy_kwh_low",
            Explanation(
                "GPU-hours \u00d7 a board's power limit",
                f"{number_text(hours)} h \u00d7 {number_text(card.tdp_watts / 1000)} kW = {number_text(low)} kWh",
                card.sources["specification"],
            ),
        )
        yield (
            "run.energy_kwh_high",
            Explanation(
                "the boards' energy \u00d7 what a full server draws over its boards",
                f"{number_text(low)} \u00d7 {number_text(cost.SERVER_POWER_FACTOR)} = {number_text(high)} kWh",
                "NVIDIA, DGX H100: 10.2 kW for 8 boards of 700 W",
            ),
        )
    price, dollars = found["dollars_per_gpu_hour"], found["dollars"]
    if price is not None:
        yield (
            "run.dollars",
            Explanation(
                "GPU-hours \u00d7 dollars a GPU-hour",
                f"{number_text(hours)} \u00d7 {number_text(price)} = {number_text(dollars)} dollars",
                "price as you entered it" if found["price_source"] == "entered" else found["price_source"],
            ),
        )
