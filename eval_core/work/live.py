"""One rank's part in the live metric: publish every few micro-batches; rank 0 merges and shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from eval_core.metrics.score import initial_states
from eval_core.metrics.states import State, merge_states, states_to_json
from eval_core.plan.types import Plan, parse_shard_id
from eval_core.storage import Store
from eval_core.work.agenda import Agenda
from eval_core.work.board import Board
from eval_core.work.commit import Committed
from eval_core.work.metrics_port import with_metrics_port
from eval_core.work.progress import (
    HEADLINE,
    Display,
    Standing,
    append_progress,
    choose_display,
    merge_published,
)

_LOOK_EVERY = 1.0


class Live:
    """Counts what this rank does and publishes it; on rank 0, also merges and shows what all do."""

    def __init__(self, store: Store, plan: Plan, board: Board) -> None:
        self.store = store
        self.plan = plan
        self.board = board
        self.tokens_of_batch = plan.micro_batches.tokens
        self.cost = self.shards = self.tokens = self.since_publication = self.records = 0
        self.states: Mapping[str, State] = initial_states(plan)
        self.before: Mapping[str, State] = initial_states(plan)
        self.cost_before = self.shards_before = 0
        self.cost_total = plan.total_cost
        self.looked = 0.0
        self.kept = 0.0
        self.kept_tokens = 0
        self.display: Display | None = None
        if board.place.rank == 0:
            board.lay_out("state", self._publication(self.states))

    def begin(self, committed: Committed, agenda: Agenda) -> None:
        """On rank 0: what earlier attempts left, and what is missing."""
        self.display = with_metrics_port(choose_display(self.plan.spec.work.progress_interval))
        for shard, file in committed.files.items():
            self.cost_before += self.plan.shard_cost(shard)
            self.shards_before += 1
            if parse_shard_id(shard)[0] == "main":
                self.before = merge_states(self.before, file.result.states)
        missing = len(agenda.main) + len(agenda.replay) + len(agenda.alone) + len(agenda.reference)
        self.say(
            f"attempt {self.board.attempt}: {self.board.place.world_size} ranks, {missing} of {self.plan.n_all_shards} shards "
            f"missing ({len(agenda.main)} main, {len(agenda.replay)} replay, {len(agenda.alone)} alone, {len(agenda.reference)} reference)"
        )
        if committed.set_aside:
            self.say(f"set aside as torn or altered, to be computed again: {', '.join(committed.set_aside)}")
        per_rank = self.plan.n_shards / self.board.place.world_size
        if per_rank < 16 and self.board.place.world_size > 1:
            self.say(
                f"warning: {per_rank:.1f} shards per rank; 16 or more keep the ranks equally busy (a smaller batch.shard_cost gives more)"
            )

    def after_micro_batch(self, batch: int, states: Callable[[], Mapping[str, State]]) -> None:
        """Publish every `sync_every` micro-batches; `states` is asked only then."""
        self.tokens += int(self.tokens_of_batch[batch])
        self.since_publication += 1
        if self.since_publication >= self.plan.spec.work.sync_every:
            self._publish(states())
        self.look_round()

    def finish(self) -> None:
        """Publish what this rank has done in all."""
        self._publish(self.states)

    def after_shard(self, cost: int, states: Mapping[str, State]) -> None:
        """Count a shard; `states` are those of all main shards that this rank committed."""
        self.cost += cost
        self.shards += 1
        self.states = states
        self.look_round()

    def look_round(self) -> None:
        """On rank 0, at most every second: merge what is published and show it; keep it every progress interval."""
        if time.monotonic() - self.looked >= _LOOK_EVERY:
            self._look(keep=time.monotonic() - self.kept >= self.plan.spec.work.progress_interval)

    def conclude(self) -> None:
        """On rank 0, when all ranks have published what they did in all: keep and show the last standing."""
        self._look(keep=True)

    def _look(self, *, keep: bool) -> None:
        if self.display is None:
            return
        self.looked = time.monotonic()
        published = self.board.read_all("state")
        published[0] = self._publication(self.states)
        standing, states = self._standing(published)
        self.display.show(standing)
        if keep and standing.tokens > self.kept_tokens:
            self.kept, self.kept_tokens = time.monotonic(), standing.tokens
            append_progress(self.store, self.board.attempt, self.records, standing, states)
            self.records += 1

    def say(self, message: str) -> None:
        """Show a line, on rank 0; elsewhere print it."""
        if self.display is not None:
            self.display.say(message)
        else:
            print(f"rank {self.board.place.rank}: {message}", flush=True)

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self.display is not None:
            self.display.close()

    def _publish(self, states: Mapping[str, State]) -> None:
        self.since_publication = 0
        self.board.publish(f"state/{self.board.place.rank}", self._publication(states))

    def _publication(self, states: Mapping[str, State]) -> dict[str, object]:
        return {
            "cost": self.cost,
            "shards": self.shards,
            "tokens": self.tokens,
            "states": states_to_json(states),
        }

    def _standing(self, published: list[dict[str, object]]) -> tuple[Standing, dict[str, State]]:
        states = merge_published(self.before, published)
        values = {task.name: states[task.name].value()[HEADLINE[task.type]] for task in self.plan.spec.tasks}
        standing = Standing(
            cost_done=self.cost_before + sum(int(str(p["cost"])) for p in published),
            cost_total=self.cost_total,
            cost_before=self.cost_before,
            shards_done=self.shards_before + sum(int(str(p["shards"])) for p in published),
            shards_total=self.plan.n_all_shards,
            tokens=sum(int(str(p["tokens"])) for p in published),
            values=values,
        )
        return standing, states
