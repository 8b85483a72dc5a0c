"""Watch a job by the wall clock until its work is done or can't be done, with a line for every change."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from components.evaluate.cluster import JOB_NAME_LABEL, Cluster, ClusterError
from components.evaluate.reasons import (
    Assessment,
    Failure,
    Final,
    assess,
    deadline,
    final_condition,
    final_failure,
    job_state,
    lasting,
)
from eval_core.errors import StorageError
from eval_core.plan.types import Plan
from eval_core.say import say as say_line
from eval_core.shard_file import SHARDS, shard_key
from eval_core.storage import Store

Json = dict[str, Any]

POLL = 2.0
COUNT_EVERY = 10.0
_LINGER = 60.0
_DEADLINE_GRACE = 30.0
"""Seconds for the operator to say that the deadline is over; it doesn't where the pods never ran."""
_TAIL_LINES = 20
_LOG_PATIENCE = 5.0
_ASKED_PODS = 5


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How watching ended.

    Attributes:
        final: why the work can't be done; None where all shards are there.
        said: the line in which the failed container said why; "" where there is none.
        restarts: of containers.
    """

    final: Final | None
    said: str
    restarts: int


class ShardCount:
    """How many shards of a plan are committed, by their names; asks the storage now and then only."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store = store
        self._wanted = {shard_key(shard) for shard in plan.shard_ids()}
        self._asked = float("-inf")
        self.total = len(self._wanted)
        self.committed = 0

    def refresh(self, *, now: bool = False) -> None:
        """Ask the storage, at most every few seconds unless it must be `now`; else, out of reach, the last count stands.

        Raises:
            StorageError: it must be now, and the storage is out of reach.
        """
        if not now and time.monotonic() - self._asked < COUNT_EVERY:
            return
        self._asked = time.monotonic()
        try:
            self.committed = len(self._wanted.intersection(self._store.list(SHARDS)))
        except StorageError as error:
            if now:
                raise
            say(f"{error}; going on")

    @property
    def complete(self) -> bool:
        return self.committed == self.total


@dataclass
class _Memory:
    """What one watch has seen.

    Attributes:
        failures: by their keys, in the order in which they were seen.
        said: key of a failure -> the line in which its container said why.
        troubles: key -> when it was seen first.
        restarts: the most that was seen.
        line: the last one said.
        complete_since: when all shards were seen to be committed.
    """

    failures: dict[str, Failure] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    line: str = ""
    complete_since: float | None = None


def watch(cluster: Cluster, name: str, shards: ShardCount, *, patience: float, timeout: int) -> Ending:
    """Watch the job `name` until all shards are committed and it has ended, or until it can't end well.

    Raises:
        ClusterError: the API server doesn't answer for long, or doesn't allow a call.
    """
    memory = _Memory()
    started = time.monotonic()
    while True:
        job = cluster.get_job(name)
        pods = cluster.list_pods(JOB_NAME_LABEL, name) if job else []
        assessment = assess(job, pods, _events(cluster, job, pods), patience)
        finished = assessment.state in ("succeeded", "failed", "gone")
        memory.restarts = max(memory.restarts, assessment.restarts)
        for failure in assessment.failures:
            if failure.key not in memory.failures:
                memory.failures[failure.key] = failure
                memory.said[failure.key] = _tell_failure(cluster, failure)
        shards.refresh(now=finished)
        _tell(memory, name, assessment, shards)
        if shards.complete:
            memory.complete_since = memory.complete_since or time.monotonic()
            if finished or time.monotonic() - memory.complete_since > _LINGER:
                return Ending(final=None, said="", restarts=memory.restarts)
        elif final := _final(memory, assessment, timeout):
            said = memory.said[final.failure.key] if final.failure else ""
            return Ending(final=final, said=said, restarts=memory.restarts)
        elif time.monotonic() - started > timeout + _DEADLINE_GRACE:
            return Ending(final=deadline(timeout), said="", restarts=memory.restarts)
        time.sleep(POLL)


def last_error(lines: list[str]) -> str:
    """The last line in which Concord says what is wrong; "" where there is none."""
    return next((line.strip() for line in reversed(lines) if line.startswith("error: ")), "")


def say(message: str) -> None:
    """A line for the user, on standard error, with the time."""
    say_line(f"{time.strftime('%H:%M:%S')} {message}")


def _events(cluster: Cluster, job: Json | None, pods: list[Json]) -> list[Json]:
    """Events about what isn't there yet: of the job where pods are missing, of some pods that are pending."""
    if job is None or job_state(job)[0] not in ("waiting", "running"):
        return []
    wanted = sum(int(replica["replicas"]) for replica in job["spec"]["pytorchReplicaSpecs"].values())
    pending = [p["metadata"]["name"] for p in pods if p["status"].get("phase", "Pending") == "Pending"]
    names = [job["metadata"]["name"]] if len(pods) < wanted else []
    return [event for name in names + pending[:_ASKED_PODS] for event in cluster.list_events(name)]


def _final(memory: _Memory, assessment: Assessment, timeout: int) -> Final | None:
    history = list(memory.failures.values())
    if (final := final_failure(history)) is not None:
        return final
    if assessment.state == "gone":
        return Final(reason="the job was deleted, by a user or because all pods that owned it are gone")
    if assessment.state == "failed":
        return final_condition(assessment, history, timeout)
    if assessment.state == "succeeded":
        return Final(reason="the job says that it has succeeded, but shards are missing")
    memory.troubles, final = lasting(assessment.troubles, memory.troubles, time.monotonic())
    return final


def _tell(memory: _Memory, name: str, assessment: Assessment, shards: ShardCount) -> None:
    pods = ", ".join(f"{number} {phase}" for phase, number in assessment.phases.items()) or "no pods"
    line = f"{name} {assessment.state}: {pods}; {shards.committed} of {shards.total} shards"
    for trouble in assessment.troubles[:1]:
        line += f" ({trouble.reason})"
    if line != memory.line:
        memory.line = line
        say(line)


def _tell_failure(cluster: Cluster, failure: Failure) -> str:
    """Say that a container or pod has failed, with the end of its log; returns the line in which it says why itself."""
    say(failure.describe())
    if not failure.container:
        return ""
    try:
        tail = cluster.with_patience(_LOG_PATIENCE).log_tail(
            failure.pod, failure.container, _TAIL_LINES, previous=failure.restarted
        )
    except ClusterError as error:
        say(f"the log of pod {failure.pod} can't be read: {error}")
        return ""
    lines = tail.rstrip("\n").split("\n")
    for line in lines:
        say_line(f"    {failure.pod}| {line}")
    return last_error(lines)
