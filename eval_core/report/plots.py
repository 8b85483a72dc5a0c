"""The report's two plots as inline SVG: the same bytes for the same data, no display needed."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from eval_core.metrics.states import HIGHER_IS_BETTER
from eval_core.plan.types import Plan, ShardKind, parse_shard_id
from eval_core.reduce import Loaded, Reduction
from eval_core.report.headline import direction
from eval_core.report.records import COUNTED, ProgressPoint
from eval_core.report.text import number, plural
from eval_core.shard_file import Provenance
from eval_core.spec import Task
from eval_core.work.progress import HEADLINE

_WIDTH = 9.6
_SHOWN_TASKS = 12
_SHOWN_RANKS = 64
_SHOWN_ATTEMPTS = 4
_SHOWN_BARS = 3000

_INK = "#1f2933"
_MUTED = "#5b6773"
_GRID = "#e3e7eb"
_LINE = "#2b6cb0"
_KINDS: Mapping[ShardKind, tuple[str, str, float]] = {
    "main": ("main shards", "#2b6cb0", 0.78),
    "replay": ("replayed for the audit", "#dd8a0f", 0.56),
    "alone": ("request by request for the audit", "#2f855a", 0.45),
    "reference": ("reference for the audit", "#7a4fa3", 0.34),
}
"""Kind -> (name in the legend, colour, height of the bar), so that colour is not all that tells them apart."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelcolor": _MUTED,
    "axes.edgecolor": "#b8c0c8",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture.

    Attributes:
        svg: one <svg> element, to stand in HTML as it is.
        label: what it shows, in words (also in the element's aria-label).
        notes: what it leaves out.
    """

    svg: str
    label: str
    notes: str = ""


def plot_running_metric(plan: Plan, reduction: Reduction, points: Sequence[ProgressPoint]) -> Plot | None:
    """The headline metric of each task over what it had counted; None where no moment is on record."""
    curves = [curve for task in plan.spec.tasks if (curve := _curve(task, reduction, points)) is not None]
    if not curves:
        return None
    shown = curves[:_SHOWN_TASKS]
    columns = min(len(shown), 3)
    rows = -(-len(shown) // columns)
    with _style():
        figure = Figure(figsize=(_WIDTH, 2.4 * rows))
        for i, curve in enumerate(shown):
            axes = figure.add_subplot(rows, columns, i + 1)
            axes.axhline(curve.final, color=_MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.plot(curve.counted, curve.values, color=_LINE, linewidth=1.5, marker="o", markersize=2.4)
            axes.plot([100], [curve.final], color=_INK, marker="D", markersize=4.5, clip_on=False)
            axes.set_title(
                f"{curve.task} · {curve.metric} {direction(HIGHER_IS_BETTER[curve.metric])} {number(curve.final)}",
                loc="left",
            )
            axes.set_xlim(0, 100)
            axes.set_ylim(*_view(curve))
            axes.set_xlabel(f"{curve.unit} counted, %")
        words = "; ".join(f"{curve.task} {curve.metric} ends at {number(curve.final)}" for curve in shown)
        label = f"Running metric over what was counted: {words}."
        svg = _to_svg(figure, "running", label)
    left_out = len(curves) - len(shown)
    return Plot(svg=svg, label=label, notes=f"{plural(left_out, 'more task')} not drawn." if left_out else "")


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """A task's running metric: `values` over `counted` (percent of its tokens or questions)."""

    task: str
    metric: str
    unit: str
    counted: list[float]
    values: list[float]
    final: float


def _curve(task: Task, reduction: Reduction, points: Sequence[ProgressPoint]) -> _Curve | None:
    metric = HEADLINE[task.type]
    total = getattr(reduction.states[task.name], COUNTED[task.type])
    final = reduction.states[task.name].value()[metric]
    seen = [
        (100 * p.counted.get(task.name, 0) / total, p.values[task.name])
        for p in points
        if total and math.isfinite(p.values.get(task.name, math.nan))
    ]
    seen = [seen[i] for i in range(len(seen)) if i == 0 or seen[i] != seen[i - 1]]
    if not seen or not math.isfinite(final):
        return None
    unit = "questions" if task.type == "multiple_choice" else "tokens"
    counted, values = [share for share, _ in seen], [value for _, value in seen]
    if counted[-1] < 100:
        counted, values = [*counted, 100.0], [*values, final]
    return _Curve(task=task.name, metric=metric, unit=unit, counted=counted, values=values, final=final)


def plot_timeline(loaded: Loaded) -> Plot | None:
    """When each rank computed which shards for this run; None without such."""
    by_attempt: dict[str, list[tuple[ShardKind, Provenance]]] = {}
    for shard, file in loaded.files.items():
        if file.provenance.origin is not None:
            continue
        by_attempt.setdefault(file.provenance.attempt, []).append((parse_shard_id(shard)[0], file.provenance))
    if not by_attempt:
        return None
    names = sorted(by_attempt)[-_SHOWN_ATTEMPTS:]
    panels = [_panel(by_attempt[name]) for name in names]
    notes = []
    if len(by_attempt) > len(names):
        notes.append(f"Only the last {len(names)} of {len(by_attempt)} attempts are drawn.")
    if any(len(panel.ranks) < panel.all_ranks for panel in panels):
        notes.append(f"Of an attempt with more ranks, the {_SHOWN_RANKS} that finished last are drawn.")
    if any(panel.merged for panel in panels):
        notes.append("Neighbouring shards are drawn as one bar.")
    with _style():
        heights = [
            0.55 + max(0.24 * len(panel.ranks), 0.3) if len(panel.ranks) <= 16 else 0.55 + 0.11 * len(panel.ranks)
            for panel in panels
        ]
        figure = Figure(figsize=(_WIDTH, sum(heights) + 0.3))
        grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
        for i, (name, panel) in enumerate(zip(names, panels, strict=True)):
            axes = figure.add_subplot(grid[i])
            _draw_panel(axes, panel)
            if len(panels) > 1:
                axes.set_title(f"attempt {name}", loc="left")
            if i == len(panels) - 1:
                axes.set_xlabel("seconds since the attempt's first shard")
        kinds = [kind for kind in _KINDS if any(kind in panel.kinds for panel in panels)]
        figure.legend(
            handles=[Patch(color=_KINDS[kind][1], label=_KINDS[kind][0]) for kind in kinds],
            loc="outside upper left",
            ncols=len(kinds),
            frameon=False,
            handlelength=1.2,
        )
        label = "Timeline of shards by rank: " + "; ".join(
            f"attempt {name}, {plural(panel.all_ranks, 'rank')}, {panel.seconds:.1f} seconds"
            for name, panel in zip(names, panels, strict=True)
        )
        svg = _to_svg(figure, "timeline", label + ".")
    return Plot(svg=svg, label=label + ".", notes=" ".join(notes))


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One attempt: rank -> kind -> bars as (start, length) in seconds since the first start."""

    ranks: Mapping[int, Mapping[ShardKind, list[tuple[float, float]]]]
    all_ranks: int
    seconds: float
    merged: bool

    @property
    def kinds(self) -> set[ShardKind]:
        return {kind for bars in self.ranks.values() for kind in bars}


def _panel(shards: Sequence[tuple[ShardKind, Provenance]]) -> _Panel:
    origin = min(p.started for _, p in shards)
    seconds = max(p.finished for _, p in shards) - origin
    bars: dict[int, dict[ShardKind, list[tuple[float, float]]]] = {}
    for kind, p in sorted(shards, key=lambda shard: (shard[1].rank, shard[1].started, shard[1].finished)):
        bars.setdefault(p.rank, {}).setdefault(kind, []).append((p.started - origin, max(p.finished - p.started, 0.0)))
    ends = {
        rank: max(start + length for row in kinds.values() for start, length in row) for rank, kinds in bars.items()
    }
    last = sorted(sorted(bars, key=lambda rank: (-ends[rank], rank))[:_SHOWN_RANKS])
    merged = sum(len(row) for rank in last for row in bars[rank].values()) > _SHOWN_BARS
    gap = seconds * len(last) / _SHOWN_BARS if merged else -1.0
    return _Panel(
        ranks={rank: {kind: _merge(row, gap) for kind, row in bars[rank].items()} for rank in last},
        all_ranks=len(bars),
        seconds=seconds,
        merged=merged,
    )


def _merge(bars: list[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Join bars that are less than `gap` seconds apart (negative: none)."""
    joined: list[tuple[float, float]] = []
    for start, length in bars:
        if joined and gap >= 0 and start - sum(joined[-1]) < gap:
            joined[-1] = (joined[-1][0], start + length - joined[-1][0])
        else:
            joined.append((start, length))
    return joined


def _draw_panel(axes: Any, panel: _Panel) -> None:
    for row, kinds in enumerate(panel.ranks.values()):
        for kind, bars in kinds.items():
            _, colour, height = _KINDS[kind]
            axes.broken_barh(bars, (row - height / 2, height), facecolors=colour, edgecolors="white", linewidths=0.5)
    step = -(-len(panel.ranks) // 16)
    labels = [f"rank {rank}" for rank in panel.ranks]
    axes.set_yticks(range(0, len(labels), step), labels[::step])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, panel.seconds or 1.0)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _view(curve: _Curve) -> tuple[float, float]:
    """Limits with a margin that show the curve, except for the swings of the first tenth."""
    pairs = zip(curve.counted, curve.values, strict=True)
    shown = [value for share, value in pairs if share >= 10 or len(curve.values) < 4] + [curve.final]
    low, high = min(shown), max(shown)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, high + margin


@contextmanager
def _style() -> Iterator[None]:
    """The defaults and `_STYLE`, whatever the user's own matplotlib settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def _to_svg(figure: Figure, name: str, label: str) -> str:
    """`figure` as one <svg> element for HTML: no prolog, no metadata, no name that a second plot could have too."""
    sink = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(sink, format="svg", metadata=nothing, transparent=True)
    svg = sink.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    used = set(re.findall(r"""(?:url\(#|href="#)([^)"]+)""", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{_attribute(label)}"', 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
