"""The figure of every measured step: predicted against measured peak memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from calc import accuracy
from calc.plots import GIB, THEME, Kind, Words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

MARGIN: Final = 1.3


def draw_accuracy(axes: Axes, _result: Mapping[str, Any], _data: Mapping[str, Any]) -> Words:
    """Draw every measured step; each run's points are a group of their own, which the page can highlight."""
    runs = accuracy.compared_runs()
    sizes: list[float] = []
    for place, steps in enumerate(runs):
        measured, predicted = (
            [getattr(step.peak_allocated_bytes, side) / GIB for step in steps] for side in ("measured", "predicted")
        )
        sizes += [*measured, *predicted]
        axes.plot(
            measured,
            predicted,
            "o",
            color=THEME["muted"],
            alpha=0.5,
            markersize=6.5,
            markeredgewidth=0,
            gid=f"run-{place}",
        )
    ends = (min(sizes) / MARGIN, max(sizes) * MARGIN)
    axes.plot(ends, ends, color=THEME["ink"], linewidth=1, zorder=1)
    for axis, scale, limits in (
        (axes.xaxis, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, axes.set_yscale, axes.set_ylim),
    ):
        scale("log")
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.set_minor_formatter(NullFormatter())
        limits(ends)
    axes.set_xlabel("Measured peak (GiB)")
    axes.set_ylabel("Predicted peak (GiB)")
    every = [step for steps in runs for step in steps]
    spread = accuracy.spreads(every)["peak_allocated_bytes"]
    return Words(
        title="Predicted against measured peak memory",
        text=(
            f"{len(every)} measured steps of {len(runs)} runs; on the line, prediction and measurement agree. Half are "
            f"within {spread['median']:.2%}, nine in ten within {spread['high']:.1%}, the worst is off by "
            f"{spread['largest']:.1%}. These runs were known when the calculation was written: others can be further "
            "off. The runs most like your scenario stand out."
        ),
        columns=("Run", "Batch", "Measured (GiB)", "Predicted (GiB)", "Off", "Measured (s)", "Predicted (s)"),
        rows=[
            (
                f"{step.run.model}: {accuracy.conditions(step.run.scenario)}",
                step.step.micro_batch,
                f"{step.peak_allocated_bytes.measured / GIB:.2f}",
                f"{step.peak_allocated_bytes.predicted / GIB:.2f}",
                f"{step.peak_allocated_bytes.error:+.2%}",
                f"{step.step_seconds.measured:.3g}",
                f"{step.step_seconds.predicted:.3g}",
            )
            for step in every
        ],
    )


ACCURACY_FIGURES: Final = {"accuracy": Kind(draw_accuracy, 400)}
"""By name; it is the same for every scenario."""
