"""The live metric: rank 0 merges what the ranks publish, keeps it in `progress/` and shows it. For display only."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from eval_core.metrics.states import State, merge_states, states_from_json, states_to_json
from eval_core.storage import Store

PROGRESS = "progress"
HEADLINE = {"perplexity": "token_ppl", "multiple_choice": "acc", "lm_eval": "loss"}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far an attempt is.

    Attributes:
        cost_done, cost_total: FLOPs, audit included, earlier attempts too.
        cost_before: FLOPs that earlier attempts had done.
        shards_done, shards_total: all kinds.
        tokens: input tokens computed in this attempt.
        values: task -> running value of its headline metric.
    """

    cost_done: int
    cost_total: int
    cost_before: int
    shards_done: int
    shards_total: int
    tokens: int
    values: Mapping[str, float]


class Display(Protocol):
    """Shows a standing, or a message."""

    def show(self, standing: Standing) -> None: ...
    def say(self, message: str) -> None: ...
    def close(self) -> None: ...


class LineDisplay:
    """One plain line an interval, for pods and logs."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.started = time.monotonic()
        self.last = 0.0

    def show(self, standing: Standing) -> None:
        now = time.monotonic()
        if now - self.last >= self.interval:
            self.last = now
            done = standing.cost_done / max(standing.cost_total, 1)
            self.say(f"{done:6.1%}  {describe(standing, now - self.started)}")

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class BarDisplay:
    """A live bar on a terminal."""

    def __init__(self) -> None:
        columns = [
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:5.1f}%"),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        ]
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self.bar = self.progress.add_task("", total=1.0)
        self.started = time.monotonic()
        self.progress.start()

    def show(self, standing: Standing) -> None:
        self.progress.update(
            self.bar,
            total=max(standing.cost_total, 1),
            completed=standing.cost_done,
            description=describe(standing, time.monotonic() - self.started),
        )

    def say(self, message: str) -> None:
        self.progress.console.print(message, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.progress.stop()


def describe(standing: Standing, elapsed: float) -> str:
    """Shards, rate, times and running metrics, `elapsed` seconds into the attempt."""
    done = standing.cost_done - standing.cost_before
    eta = elapsed * (standing.cost_total - standing.cost_done) / done if done else math.nan
    metrics = "  ".join(f"{task} {value:.4f}" for task, value in standing.values.items() if not math.isnan(value))
    return (
        f"{standing.shards_done}/{standing.shards_total} shards  {standing.tokens / max(elapsed, 1e-9):,.0f} tok/s  "
        f"{_clock(elapsed)}  eta {_clock(eta)}  {metrics}"
    )


def choose_display(interval: float) -> Display:
    """A bar where a person looks on, lines elsewhere."""
    return BarDisplay() if sys.stderr.isatty() else LineDisplay(interval)


def merge_published(before: Mapping[str, State], published: list[dict[str, Any]]) -> dict[str, State]:
    """The running states of an attempt: what was committed `before` it, and what each rank has added."""
    states = dict(before)
    for one in published:
        states = merge_states(states, states_from_json(one["states"]))
    return states


def append_progress(store: Store, attempt: str, number: int, standing: Standing, states: Mapping[str, State]) -> None:
    """Add a record to `progress/`; one object each, because object stores can't append."""
    record = {
        "attempt": attempt,
        "time": time.time(),
        "cost_done": standing.cost_done,
        "cost_total": standing.cost_total,
        "shards_done": standing.shards_done,
        "tokens": standing.tokens,
        "values": {task: None if math.isnan(value) else value for task, value in standing.values.items()},
        "states": states_to_json(states),
    }
    store.put_new(f"{PROGRESS}/{attempt}-{number:06d}.json", json.dumps(record).encode())


def _clock(seconds: float) -> str:
    if math.isnan(seconds):
        return "--:--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
