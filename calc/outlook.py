"""What a run comes to beyond one step: its GPUs, its critical batch and learning rate, its time, energy and money."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from calc import accumulation, convergence, cost, multi_gpu
from calc.convergence.generalization import plain_name
from calc.errors import ScenarioError
from calc.goal import Goal
from calc.scaling import Offload
from calc.scaling.step_time import forward_share
from calc.scenario import TEXT_TASKS, Checkpointing, Task
from calc.timing import step_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calc.memory import ReplayedStep
    from calc.scenario import Scenario
    from calc.throughput import StepTime

DATASET_SAMPLES: Mapping[str, int] = MappingProxyType(
    {
        "imagenet": 1_281_167,
        "cifar10": 50_000,
        "cifar100": 50_000,
        "mnist": 60_000,
        "svhn": 73_257,
        "coco": 118_287,
        "squad": 87_599,
        "alpaca": 52_002,
    }
)
"""Training samples of well-known data sets, as their authors publish them (ILSVRC 2012, COCO train2017, SQuAD 1.1)."""


WOULD_BE = "The step does not fit: this is what the run would come to if it did."


def tokens_per_sample(scenario: Scenario) -> int | None:
    """Tokens of one sample; None where samples are no text."""
    return scenario.shape.sequence_length + scenario.shape.target_length if scenario.shape.sequence_length else None


def run_samples(scenario: Scenario) -> float | None:
    """Count the samples of the whole run, from its tokens or its epochs; None where neither is given.

    Raises
    ------
    ScenarioError
        If epochs are given for a data set whose size is not known.
    """
    filled = scenario.filled
    each = tokens_per_sample(scenario)
    if filled.get("tokens") is not None and each:
        return float(filled["tokens"]) / each
    if filled.get("epochs") is None:
        return None
    size = filled.get("dataset_samples") or DATASET_SAMPLES.get(plain_name(str(filled.get("dataset", ""))))
    if size is None:
        known = ", ".join(DATASET_SAMPLES)
        raise ScenarioError("dataset_samples", f"give the data set's samples, or one of {known} as dataset")
    return float(filled["epochs"]) * float(size)


_BATCH_NORMALIZED = (
    "resnet resnext wide_resnet densenet mobilenet efficientnet regnet inception googlenet shufflenet mnasnet "
    "deeplabv3 fcn lraspp maxvit"
).split()


def has_batch_norm(architecture: str) -> bool:
    """Whether a model takes statistics over the batch: torchvision's convolutional networks, by name."""
    return architecture.startswith(tuple(_BATCH_NORMALIZED)) or architecture.endswith("_bn")


def accumulation_of(
    scenario: Scenario, step: ReplayedStep, micro_batch: int, accumulation_steps: int, time: StepTime | None
) -> dict[str, Any] | None:
    """Say what accumulation costs and where it differs from a real batch; None where one pass is the whole batch.

    Parameters
    ----------
    scenario : Scenario
        What is trained.
    step : ReplayedStep
        Its replayed step.
    micro_batch, accumulation_steps : int
        Per replica.
    time : StepTime
        One GPU's update of that many passes; None where its speed is not known.

    Returns
    -------
    dict
        ``micro_batch`` and ``accumulation_steps``; on one GPU ``update_seconds``, ``sample_seconds`` and
        ``sample_seconds_single``, with an update after every pass (each None where ``time`` is); ``caveats``.
    """
    if accumulation_steps == 1:
        return None
    single = step_time(scenario, step, micro_batch, 1)
    return {
        "micro_batch": micro_batch,
        "accumulation_steps": accumulation_steps,
        "update_seconds": time.seconds if time else None,
        "sample_seconds": time.seconds / (micro_batch * accumulation_steps) if time else None,
        "sample_seconds_single": single.seconds / micro_batch if single else None,
        "caveats": accumulation.caveats(
            accumulation_steps=accumulation_steps,
            batch_norm=has_batch_norm(scenario.model.architecture),
            token_mean_loss=scenario.filled["task"] in TEXT_TASKS,
            contrastive_loss=scenario.model.task is Task.IMAGE_TEXT_CONTRASTIVE,
            gradient_bytes_each=min(p.dtype.itemsize for p in step.parameters if p.learns),
        ),
    }


def passes_split(scenario: Scenario, time: StepTime, accumulation_steps: int) -> tuple[float, float]:
    """Split one pass into seconds of forward and of backward."""
    one = (time.seconds - time.optimizer_seconds) / accumulation_steps
    share = forward_share(recomputes=scenario.checkpointing is Checkpointing.FULL)
    return share * one, (1 - share) * one


def scaling_of(
    scenario: Scenario, step: ReplayedStep, micro_batch: int, accumulation_steps: int, time: StepTime | None
) -> dict[str, Any] | None:
    """Report on the scenario's GPUs; None on one that offloads nothing, or where the card's speed is not known.

    Parameters
    ----------
    scenario : Scenario
        With its GPUs.
    step : ReplayedStep
        The whole model's step.
    micro_batch, accumulation_steps : int
        Per replica.
    time : StepTime
        One GPU's update of that many passes.
    """
    alone = scenario.gpus == 1 and scenario.layout.cpu_offload is Offload.NONE
    if alone or time is None:
        return None
    forward, backward = passes_split(scenario, time, accumulation_steps)
    work = multi_gpu.workload_of(
        scenario,
        step,
        micro_batch,
        accumulation_steps,
        forward_seconds=forward,
        backward_seconds=backward,
        optimizer_seconds=time.optimizer_seconds,
    )
    return multi_gpu.report(scenario, work, micro_batch, scenario.gpu.limit_bytes)


def convergence_of(scenario: Scenario, parameters: int, global_batch: int) -> dict[str, Any]:
    """Assess the scenario's batch."""
    filled = scenario.filled
    dataset = filled.get("dataset")
    return convergence.assess(
        task=filled["task"],
        global_batch=global_batch,
        parameters=parameters,
        optimizer=str(scenario.optimizer),
        method=str(scenario.method),
        tokens_per_sample=tokens_per_sample(scenario),
        samples=run_samples(scenario),
        dataset=dataset if isinstance(dataset, str) else None,
        known_batch=filled.get("known_batch"),
        known_learning_rate=filled.get("known_learning_rate"),
        gradient_norms=filled.get("gradient_norms"),
    )


def run_of(scenario: Scenario, global_batch: int, update_seconds: float | None, *, fits: bool) -> dict[str, Any] | None:
    """Sum up the whole run; None where its length or the card's speed is not known.

    Where the step does not fit it is what the run would come to if it did, and keeps to no goal.
    """
    samples = run_samples(scenario)
    if samples is None or update_seconds is None:
        return None
    card = scenario.gpu.catalog
    found = cost.run(
        samples=samples,
        global_batch=global_batch,
        update_seconds=update_seconds,
        gpus=scenario.gpus,
        board_watts=card.tdp_watts if card is not None else None,
        dollars_per_gpu_hour=scenario.filled.get("price_per_gpu_hour"),
        gpu_id=scenario.gpu.id or "",
        goal=Goal.of(scenario.filled),
    )
    if fits:
        return found
    judged = {"goal_met": False, "goal": "As it is set, the step does not fit."} if found["goal"] else {}
    return found | judged | {"notes": [WOULD_BE, *found["notes"]]}
