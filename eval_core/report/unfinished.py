"""What can be told of a run that has no numbers yet: how far it came, and how it goes on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from eval_core import __version__
from eval_core.plan.types import SHARD_KINDS, Plan, ShardKind
from eval_core.reduce import Loaded
from eval_core.report.html import templates
from eval_core.report.markdown import escape
from eval_core.report.text import plural, visible

TEMPLATE = "unfinished.html.j2"

_MEANINGS: dict[ShardKind, str] = {
    "main": "every example, once",
    "replay": "audited again in the run's dtype, by another process",
    "alone": "audited again with each request alone, as mode reference computes",
    "reference": "audited again in the reference dtype",
}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run that has a plan, and the shards that it has so far."""

    plan: Plan
    loaded: Loaded

    @property
    def committed(self) -> int:
        """Main shards that are whole."""
        return self._count("main")[0]

    def progress(self) -> list[tuple[str, str, int, int]]:
        """(kind, what it means, committed, planned) of each kind of shard."""
        return [(kind, _MEANINGS[kind], *self._count(kind)) for kind in SHARD_KINDS]

    def _count(self, kind: ShardKind) -> tuple[int, int]:
        shards = [shard for shard in self.plan.shard_ids() if shard.startswith(f"{kind}/")]
        return len(shards) - len(self.loaded.missing(shards)), len(shards)


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """How far a run came.

    Attributes:
        uri: the run's storage.
        planned: what it has; None where nothing is planned, or `problem` stands in the way.
        problem: why the run can't be read, or nothing.
        notes: what else its reader should know.
    """

    uri: str
    planned: Planned | None = None
    problem: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def word(self) -> str:
        """The state in a word."""
        if self.problem:
            return "Unreadable"
        return "Incomplete" if self.planned else "Nothing planned"

    @property
    def sentence(self) -> str:
        """The state in a sentence."""
        if self.problem:
            return f"What the run holds can't be read: {self.problem}."
        if self.planned is None:
            return f"There is no plan at {self.uri}, so nothing was evaluated."
        total = plural(self.planned.plan.n_shards, "shard")
        return f"{self.planned.committed:,} of {total} are committed, so there is no number yet."

    @property
    def commands(self) -> list[tuple[str, str]]:
        """(when, command) of the ways on."""
        run = shlex.quote(self.uri)
        if self.planned is None:
            return [] if self.problem else [("Plan it, compute it and report it", f"concord run SPEC.yaml --run {run}")]
        return [("Do what is missing, on any number of processes", f"concord resume --run {run} --nproc N")]


def render_unfinished(unfinished: Unfinished) -> bytes:
    """The page: one file that asks no network for anything. UTF-8."""
    page = {"unfinished": unfinished, "planned": unfinished.planned, "version": __version__}
    return templates().get_template(TEMPLATE).render(page).encode()


def summarize_unfinished(unfinished: Unfinished) -> bytes:
    """The same in a few lines of Markdown. UTF-8."""
    blocks = [[f"**{unfinished.word}:** {escape(unfinished.sentence)}"]]
    if unfinished.planned:
        rows = [f"| {kind} | {done} | {total} |" for kind, _, done, total in unfinished.planned.progress()]
        blocks.append(["| shards | committed | planned |", "| :-- | --: | --: |", *rows])
        blocks.append([f"- damaged: {escape(text)}" for text in unfinished.planned.loaded.damaged.values()])
    for when, command in unfinished.commands:
        blocks += [[f"{when}:"], [f"    {visible(command)}"]]
    blocks.append([f"- {escape(note)}" for note in unfinished.notes])
    return ("\n\n".join("\n".join(block) for block in blocks if block) + "\n").encode()
