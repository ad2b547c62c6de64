"""The model of many GPUs against published scaling: the same functions, fed with each study's own base run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc import collectives
from calc.catalog import published
from calc.scaling.layout import Layout, Strategy
from calc.scaling.offload import host_bytes_per_second
from calc.scaling.step_time import Workload, bubble_share, forward_share, step_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPENIMAGES_PER_EPOCH = 1_170_301  # RetinaNet's throughput is given in epochs


@dataclass(frozen=True, slots=True)
class _Run:
    """One end of a published comparison."""

    strategy: Strategy
    gpus: int
    micro_batch: float
    accumulation_steps: int


def _update_seconds(inputs: Mapping[str, Any], run: _Run, pass_seconds: float) -> float:
    parameters = inputs["parameters"]
    recomputes = inputs.get("recomputes", False)
    forward = pass_seconds * forward_share(recomputes=recomputes)
    gathered = inputs.get("gathered_bytes_each", inputs["gradient_bytes_each"])
    work = Workload(
        forward_seconds=forward,
        backward_seconds=pass_seconds - forward,
        optimizer_seconds=inputs["optimizer_bytes_each"] * parameters / inputs["memory_bytes_per_second"],
        accumulation_steps=run.accumulation_steps,
        gradient_bytes=inputs["gradient_bytes_each"] * parameters,
        gathered_bytes=gathered * parameters,
        layers=inputs["layers"],
        recomputes=recomputes,
    )
    nodes = -(-run.gpus // inputs["gpus_per_node"])
    fabric = collectives.read_fabric(inputs["fabric"])
    layout = Layout(strategy=run.strategy, data=run.gpus)
    return step_parts(work, layout, fabric, nodes, host_bytes_per_second=host_bytes_per_second(None)).seconds


def _measured_base_seconds(row: Mapping[str, Any], run: _Run) -> float:
    """Seconds of one update on the few GPUs, from the measured throughput."""
    if "base_update_seconds" in row["inputs"]:
        return float(row["inputs"]["base_update_seconds"])
    throughput = float(row["throughput_base"])
    if row["unit"] == "samples/min":
        throughput *= (_OPENIMAGES_PER_EPOCH if row["workload"] == "RetinaNet" else 1) / 60
    per_gpu = throughput if row["unit"].endswith("/GPU") else throughput / run.gpus
    return run.micro_batch * run.accumulation_steps / per_gpu


def _pass_seconds(inputs: Mapping[str, Any], base: _Run, base_seconds: float) -> float:
    """Solve for the compute of one pass that makes the model give the measured base."""
    low, high = 0.0, base_seconds / base.accumulation_steps
    for _ in range(60):
        middle = (low + high) / 2
        if _update_seconds(inputs, base, middle) > base_seconds:
            high = middle
        else:
            low = middle
    return high


def _tensor_parallel_efficiency(inputs: Mapping[str, Any], gpus: int) -> float:
    """Compute over compute and all-reduces, six a layer with recomputation; the model grows with the GPUs.

    Operations of one update: ``96 T L h^2 (1 + s / 6h + V / 16 L h)``, Narayanan et al. 2021, arXiv:2104.04473, eq. 3.
    """
    hidden, layers, tokens = inputs["hidden"], inputs["layers"], inputs["batch_tokens"]
    extra = inputs["sequence_length"] / (6 * hidden) + inputs["vocabulary"] / (16 * layers * hidden)
    operations = 96 * tokens * layers * hidden**2 * (1 + extra)
    compute = operations / gpus / inputs["operations_per_second"]
    fabric = collectives.read_fabric(inputs["fabric"])
    reduce = collectives.all_reduce_seconds(fabric, gpus, 1, tokens * hidden * 2)
    return float(compute / (compute + 6 * layers * reduce))


def predict_efficiency(row: Mapping[str, Any]) -> float | None:
    """Predict a published row's efficiency; None where its layout is not published (``skipped`` says why).

    The base run's measured throughput gives the compute; everything between the base and the many GPUs is predicted.
    """
    if "inputs" not in row:
        return None
    inputs = row["inputs"]
    if "pipeline_stages" in inputs:
        few, many = (1 + bubble_share(inputs["pipeline_stages"], count) for count in inputs["micro_batches"])
        return few / many
    if "operations_per_second" in inputs:
        return _tensor_parallel_efficiency(inputs, row["gpus"])
    strategy = inputs["strategy"]
    strategies = (inputs.get("strategy_base", strategy), strategy)
    base, many_gpus = (
        _Run(Strategy(name), gpus, micro_batch, steps)
        for name, gpus, micro_batch, steps in zip(
            strategies,
            (row["gpus_base"], row["gpus"]),
            inputs["micro_batch"],
            inputs.get("accumulation_steps", (1, 1)),
            strict=True,
        )
    )
    base_seconds = _measured_base_seconds(row, base)
    passed = _pass_seconds(inputs, base, base_seconds) * many_gpus.micro_batch / base.micro_batch
    seconds = _update_seconds(inputs, many_gpus, passed)
    samples_base = base.micro_batch * base.accumulation_steps
    samples = many_gpus.micro_batch * many_gpus.accumulation_steps
    return (samples / seconds) / (samples_base / base_seconds)


def comparison() -> list[dict[str, Any]]:
    """List every published row with its prediction and the error in points, for the page's table and figure."""
    rows = []
    for row in published.scaling_efficiency():
        predicted = predict_efficiency(row)
        error = None if predicted is None else 100 * (predicted - row["efficiency"])
        rows.append({key: value for key, value in row.items() if key != "inputs"})
        rows[-1] |= {"predicted": predicted, "error_points": error}
    return rows
