"""The figures: matplotlib drawings as SVG with real text and colours that the page's themes set.

Each figure is one function that fills an axes from the result and its curve, and says what it shows in words and as
a table. No pyplot, which keeps what was drawn; no clock, no random ids and no trace of an earlier drawing, so that the
same scenario gives the same text.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from calc.curves import memory_curve, throughput_curve, timeline
from calc.evaluation import evaluate
from calc.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

GIB: Final = 2**30
PIXELS_PER_INCH: Final = 96
POINTS_PER_INCH: Final = 72
MARGIN_POINTS: Final = 3
# Axes are measured here before they get their place: left, bottom, width and height as parts of the figure.
ANY_POSITION: Final = (0.125, 0.11, 0.775, 0.77)
NO_METADATA: Final = dict.fromkeys(("Date", "Creator", "Format", "Type"))
LEGEND_OF_THREE_INCHES: Final = 3.5

PHASE_LABELS: Final = {"forward": "Forward", "backward": "Backward", "step": "Optimizer step"}
PHASE_DASHES: Final = {"forward": (0, (4, 2)), "backward": "solid", "step": (0, (1, 1.5))}
PARTS: Final = (
    "weights",
    "gradients",
    "optimizer_state",
    "activations",
    "logits_and_loss",
    "casts",
    "temporaries",
    "workspace",
    "exchange",
    "allocator_rest",
)

# Colours are names of the page's CSS variables; matplotlib draws each as a colour of its own that nothing else has.
THEME: Final = {
    name: f"#{0xA10000 + 0x0107 * place:06x}"
    for place, name in enumerate(
        (
            *("ink", "muted", "grid", "card", "accent", "over", "phase-forward", "phase-backward", "phase-step"),
            *(f"part-{part.replace('_', '-')}" for part in PARTS),
        ),
        start=1,
    )
}

STYLE: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "batch-size-optimizer",
    "font.size": 9.75,
    "axes.edgecolor": THEME["muted"],
    "axes.labelcolor": THEME["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": THEME["grid"],
    "grid.linewidth": 0.7,
    "text.color": THEME["ink"],
    "xtick.color": THEME["muted"],
    "ytick.color": THEME["muted"],
    "xtick.labelcolor": THEME["ink"],
    "ytick.labelcolor": THEME["ink"],
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


@dataclass(frozen=True, slots=True)
class Words:
    """What a figure says: its title, one or two sentences, and the table behind it."""

    title: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def _gib(size_bytes: float) -> float:
    return size_bytes / GIB


def _gib_text(size_bytes: float) -> str:
    return f"{_gib(size_bytes):,.2f}"


def _limit_line(axes: Axes, limit_bytes: int, label: str | None = None) -> None:
    """Mark what the card leaves to the allocator."""
    axes.axhline(_gib(limit_bytes), color=THEME["over"], linewidth=1.4, dashes=(6, 3), label=label)


def draw_memory(axes: Axes, result: Mapping[str, Any], data: Mapping[str, Any]) -> Words:
    """Peak memory of each phase against micro-batch, with the card's limit and the band of what fits."""
    sizes, limit = data["micro_batch"], data["limit_bytes"]
    for phase in ("forward", "backward", "step"):
        axes.plot(
            sizes,
            [_gib(size) for size in data[f"{phase}_bytes"]],
            color=THEME[f"phase-{phase}"],
            linestyle=PHASE_DASHES[phase],
            label=PHASE_LABELS[phase],
        )
    _limit_line(axes, limit, label="Usable")
    safe, optimistic = result.get("max_micro_batch_safe"), result.get("max_micro_batch_optimistic")
    if safe is not None and optimistic is not None:
        axes.axvspan(safe, optimistic + 1e-9, color=THEME["accent"], alpha=0.15, linewidth=0)
    chosen, largest = result["micro_batch"], result["max_micro_batch"]
    axes.plot(
        [chosen],
        [_gib(result["memory"]["peak_allocated_bytes"])],
        "o",
        color=THEME["accent"],
        markersize=7,
        label="Chosen",
        zorder=5,
    )
    axes.set_xlabel("Micro-batch (samples)")
    axes.set_ylabel("Peak memory (GiB)")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend = axes.figure.legend
    columns = 3 if axes.figure.bbox.width / axes.figure.dpi >= LEGEND_OF_THREE_INCHES else 2
    legend(loc="upper center", ncols=columns, handlelength=2.4, columnspacing=1.4)
    return Words(
        title="Memory against micro-batch",
        text=(
            f"Peak of each phase as the micro-batch grows. {_gib_text(limit)} GiB can be used; "
            f"{counted(largest, 'sample')} {'fits' if largest == 1 else 'fit'}."
        ),
        columns=("Micro-batch", "Forward (GiB)", "Backward (GiB)", "Optimizer step (GiB)"),
        rows=[
            (size, *map(_gib_text, peaks))
            for size, *peaks in zip(
                sizes, data["forward_bytes"], data["backward_bytes"], data["step_bytes"], strict=True
            )
        ],
    )


def draw_parts(axes: Axes, result: Mapping[str, Any], data: Mapping[str, Any]) -> Words:
    """Draw what memory holds at the peak of the chosen micro-batch, part by part."""
    del data
    parts = [part for part in result["memory"]["components"] if part["bytes"]]
    for place, part in enumerate(parts):
        family = part["id"].split(".")[0]
        axes.barh(
            place,
            _gib(part["bytes"]),
            height=0.68,
            color=THEME[f"part-{family.replace('_', '-')}"],
            edgecolor=THEME["ink"],
            linewidth=0.6,
        )
        axes.annotate(
            _gib_text(part["bytes"]), (_gib(part["bytes"]), place), (4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(parts)), [part["label"] for part in parts])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.14)
    axes.set_xlabel("GiB at the peak")
    largest = max(parts, key=lambda part: int(part["bytes"]))
    total = result["memory"]["peak_allocated_bytes"]
    return Words(
        title=f"Memory at micro-batch {result['micro_batch']}, part by part",
        text=f"Most is {largest['label']}: {largest['bytes'] / total:.0%} of the {_gib_text(total)} GiB at the peak.",
        columns=("Part", "GiB", "Share"),
        rows=[(part["label"], _gib_text(part["bytes"]), f"{part['bytes'] / total:.1%}") for part in parts],
    )


def plain(value: float) -> str:
    """Write a number to three digits, from a hundred on to its units."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw_throughput(axes: Axes, result: Mapping[str, Any], data: Mapping[str, Any]) -> Words:
    """Draw samples a second against micro-batch."""
    sizes, rates = data["micro_batch"], data["samples_per_second"]
    axes.plot(sizes, rates, color=THEME["accent"], marker="o", markersize=3.5)
    chosen = result["micro_batch"]
    axes.axvline(chosen, color=THEME["muted"], linewidth=1, dashes=(2, 2))
    axes.set_xlabel("Micro-batch (samples)")
    several = (result["scenario"].get("gpus") or 1) > 1
    axes.set_ylabel("Samples a second, one GPU" if several else "Samples a second")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    return Words(
        title="Throughput of one GPU against micro-batch" if several else "Throughput against micro-batch",
        text=(
            f"From {plain(rates[0])} samples a second at micro-batch {sizes[0]:,} to {plain(rates[-1])} at "
            f"{sizes[-1]:,}: "
            "a small batch leaves the card idle between kernels, and few samples share its update."
        ),
        columns=("Micro-batch", "Samples a second", "Seconds a step"),
        rows=[
            (size, f"{rate:,.4g}", f"{seconds:,.4g}")
            for size, rate, seconds in zip(sizes, rates, data["step_seconds"], strict=True)
        ],
    )


def draw_timeline(axes: Axes, result: Mapping[str, Any], data: Mapping[str, Any]) -> Words:
    """Memory alive through one step, the peak instant marked."""
    alive = data["allocated_bytes"]
    phases = data["phase"]
    instants = range(len(alive))
    for phase in ("forward", "backward", "step"):
        inside = [index for index in instants if phases[index] == phase]
        if not inside:
            continue
        start, end = inside[0], inside[-1] + 1
        axes.fill_between(
            range(start, min(end, len(alive) - 1) + 1),
            [_gib(alive[index]) for index in range(start, min(end, len(alive) - 1) + 1)],
            step="post",
            color=THEME[f"phase-{phase}"],
            alpha=0.3,
            linewidth=0,
        )
        axes.text(
            min((start + end) / 2, len(alive) - 1),
            0.02,
            "Step" if phase == "step" else PHASE_LABELS[phase],  # often short, at the edge
            ha="right" if end > 0.9 * len(alive) > 0.8 * len(alive) < start else "center",
            va="bottom",
            transform=axes.get_xaxis_transform(),
        )
    axes.step(instants, [_gib(size) for size in alive], where="post", color=THEME["ink"], linewidth=1.2)
    peak = data["peak_index"]
    _limit_line(axes, result["memory"]["limit_bytes"])
    axes.plot([peak], [_gib(alive[peak])], "o", color=THEME["accent"], markersize=7, zorder=5)
    left = peak < len(alive) / 2
    axes.annotate(
        f"{_gib_text(alive[peak])} GiB\n{data['label'][peak]}",
        (peak, _gib(alive[peak])),
        (8 if left else -8, 6),
        textcoords="offset points",
        ha="left" if left else "right",
        va="bottom",
        bbox={"facecolor": THEME["card"], "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
        zorder=6,
    )
    axes.set_xlim(0, max(len(alive) - 1, 1))
    axes.set_ylim(0, max(_gib(max(alive)), _gib(result["memory"]["limit_bytes"])) * 1.18)
    axes.set_xticks([])
    axes.set_xlabel("Operations of a step, in order")
    axes.set_ylabel("Memory alive (GiB)")
    return Words(
        title=f"One training step at micro-batch {result['micro_batch']}",
        text=f"Memory alive through the step. The peak, {_gib_text(alive[peak])} GiB: {data['label'][peak]}.",
        columns=("Instant", "Phase", "Alive (GiB)"),
        rows=[
            (label, PHASE_LABELS.get(phase, phase), _gib_text(size))
            for label, phase, size in zip(data["label"], phases, alive, strict=True)
        ],
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """A figure: what fills its axes from a result and a curve, and its height in pixels.

    There is no such figure where the part of the result that it ``needs``, or its curve, is not there.
    """

    fill: Callable[[Axes, Mapping[str, Any], Mapping[str, Any]], Words]
    height: int
    needs: str | None = None
    curve: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] | None = None
    answer: Callable[[Mapping[str, Any]], Mapping[str, Any]] = evaluate


FIGURES: Final = {
    "timeline": Kind(draw_timeline, 320, curve=timeline),
    "parts": Kind(draw_parts, 320),
    "memory": Kind(draw_memory, 320, curve=memory_curve),
    "throughput": Kind(draw_throughput, 300, curve=throughput_curve),
}
"""The figures of one step by name; `calc.plan_plots` has those of the plan."""


def _kind(name: str) -> Kind:
    from calc.accuracy_plots import ACCURACY_FIGURES  # noqa: PLC0415 - both draw with this module's words and colours
    from calc.plan_plots import PLAN_FIGURES  # noqa: PLC0415

    return {**FIGURES, **PLAN_FIGURES, **ACCURACY_FIGURES}[name]


_renderer = RendererSVG(0, 0, io.StringIO(), metadata=NO_METADATA)  # type: ignore[no-untyped-call]


@cache
def _blank_figure() -> Figure:
    """Make the figure that all are drawn on: most of what axes take goes into ticks, which serve every drawing."""
    figure = Figure(dpi=POINTS_PER_INCH)
    axes = figure.add_axes(ANY_POSITION)
    for background in (figure.patch, axes.patch):
        background.set_visible(False)
    # The grid says where a label belongs; only between its lines, on scales by logarithm, are there marks.
    axes.tick_params(which="major", bottom=False, left=False)
    return figure


def _wipe(figure: Figure, axes: Axes) -> None:
    """Make the figure blank again."""
    legends = filter(None, (*figure.legends, axes.get_legend()))
    for artist in (*axes.lines, *axes.patches, *axes.collections, *axes.texts, *legends):
        artist.remove()
    axes.containers.clear()
    axes.grid(visible=True)
    axes.margins(mpl.rcParams["axes.xmargin"], mpl.rcParams["axes.ymargin"])
    # A scale brings its locators and formatters along.
    axes.set(xscale="linear", yscale="linear", xlim=(0, 1), ylim=(0, 1), xlabel="", ylabel="", position=ANY_POSITION)
    axes.relim()
    axes.set_autoscale_on(True)


def _svg(figure: Figure, axes: Axes) -> str:
    """Write the figure as SVG, its axes as large as labels and legends leave room for."""
    page = io.StringIO()
    width, height = figure.bbox.size
    # The canvas would make a renderer for each step. matplotlib keeps what it measured by renderer: with one for all
    # figures no text is measured twice, and nothing is kept for renderers that are gone.
    renderer = _renderer
    renderer.__init__(width, height, page, metadata=NO_METADATA)  # type: ignore[misc]
    _place(axes, renderer)
    figure.draw(renderer)
    renderer.finalize()  # type: ignore[no-untyped-call]
    return page.getvalue()


def _place(axes: Axes, renderer: RendererSVG) -> None:
    """Give the axes all the room of their figure that labels and legends leave.

    matplotlib's constrained layout does the same for any figure, by laying everything out several times, which takes
    longer than the drawing.
    """
    figure, inside = axes.figure, axes.bbox
    ticks, names = [], []
    for axis in (axes.xaxis, axes.yaxis):
        # From here on the name has a place of its own; matplotlib would look for one at each drawing.
        axis.set_label_coords(0.5, 0.5, axis.label.get_transform())
        names.append(axis.label.get_window_extent(renderer))
        axis.label.set_visible(False)
        ticks.append(axis.get_tightbbox(renderer) or inside)
        axis.label.set_visible(True)
    (below, beside), (name_below, name_beside) = ticks, names
    axes.xaxis.label.set_y(MARGIN_POINTS + name_below.height)
    axes.yaxis.label.set_x(MARGIN_POINTS + name_beside.width)
    left = MARGIN_POINTS + name_beside.width + axes.yaxis.labelpad + inside.x0 - beside.x0
    bottom = MARGIN_POINTS + name_below.height + axes.xaxis.labelpad + inside.y0 - below.y0
    # The last label of an axis may reach over its end.
    right = MARGIN_POINTS + max(0, below.x1 - inside.x1)
    top = MARGIN_POINTS + max(0, beside.y1 - inside.y1)
    for legend in figure.legends:
        top += MARGIN_POINTS + legend.get_window_extent(renderer).height
    width, height = figure.bbox.size

    def place(right: float) -> None:
        axes.set_position((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))
        # A name wider than its axis ends where the figure does.
        farthest = width - MARGIN_POINTS - name_below.width / 2
        axes.xaxis.label.set_x(min(0.5, (farthest - left) / (width - left - right)))

    place(right)
    # What is written beside the data can be measured only where it will stand.
    ends = [text.get_window_extent(renderer).x1 for text in axes.texts]
    if (end := max(ends, default=0) + MARGIN_POINTS) > width:
        place(right + end - width)


def _themed(svg: str, prefix: str, words: Words) -> str:
    """Make matplotlib's document one piece of a page: own ids, the page's colours, a title, a description."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # This style would be the whole page's; static/page.css says the same for figures alone.
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", svg)
    for variable, colour in THEME.items():
        svg = svg.replace(colour, f"var(--{variable})")
    # The page sets the family; the sizes are the figure's.
    svg = re.sub(r"font-family: [^;\"]*; ?", "", svg)
    head = f'<svg role="img" aria-labelledby="{prefix}title {prefix}description" '
    title, description = _escaped(words.title), _escaped(words.text)
    labels = f'<title id="{prefix}title">{title}</title><desc id="{prefix}description">{description}</desc>'
    svg = svg.replace("<svg ", head, 1)
    return re.sub(r"(<svg [^>]*>)", lambda match: match.group(1) + labels, svg, count=1).strip()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def draw(name: str, scenario: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Draw a figure of a scenario.

    Parameters
    ----------
    name : str
        One of `FIGURES`, `calc.plan_plots.PLAN_FIGURES` or `calc.accuracy_plots.ACCURACY_FIGURES`.
    scenario : Mapping
        The contract's scenario.
    width : int
        Width in CSS pixels; text keeps its size.

    Returns
    -------
    dict
        ``svg``, ``title``, ``text`` and ``table`` with its ``columns`` and ``rows``; empty where the scenario has no
        such curves.

    Raises
    ------
    ScenarioError
        Where the scenario is wrong.
    """
    kind = _kind(name)
    result = kind.answer(scenario)
    data = kind.curve(scenario) if kind.curve else {}
    if data is None or (kind.needs and not result.get(kind.needs)):
        return {}
    with mpl.rc_context(STYLE):
        figure = _blank_figure()
        figure.set_size_inches(width / PIXELS_PER_INCH, kind.height / PIXELS_PER_INCH)
        (axes,) = figure.axes
        try:
            words = kind.fill(axes, result, data)
            svg = _svg(figure, axes)
        finally:
            _wipe(figure, axes)
    return {
        "svg": _themed(svg, f"{name}-{width}-", words),
        "title": words.title,
        "text": words.text,
        "table": {"columns": list(words.columns), "rows": [list(row) for row in words.rows]},
    }
