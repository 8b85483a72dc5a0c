"""What a job's objects say: pure functions from what the API server lists to states, troubles and failures.

A trouble may pass by itself, so it is final only when it lasts; the watching loop keeps the time. A failure is a container
or pod that has ended badly; which failures are final is decided from all that were seen.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from components.evaluate.job import CONTAINER
from eval_core.errors import UsageError

Json = dict[str, Any]
State = Literal["waiting", "queued", "running", "succeeded", "failed", "gone"]

OPERATOR_GRACE = 60.0
_ADMISSION_GRACE = 10.0
_LOST_GRACE = 30.0
_SIGNALED = 128
_TWICE = 2
_MASTER = "-master-0"

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"}
_CREATION = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError"}
_NOT_STARTED = {"StartError", "ContainerCannotRun"}


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Something that keeps the job from going on.

    Attributes:
        key: the same as long as the trouble lasts.
        reason: for the user.
        grace: seconds after which it is final.
        again: whether another attempt, under another name, can get around it.
    """

    key: str
    reason: str
    grace: float
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A container, or a whole pod, that ended badly.

    Attributes:
        key: one for each run of a container.
        pod, container: names; no container where the pod failed as a whole.
        exit_code: None where the pod failed as a whole.
        reason: Kubernetes' word for it, such as OOMKilled or Evicted.
        message: Kubernetes' sentence, often empty.
        restarted: whether the container has been started again, so that its log is the previous one.
        memory_limit: of the container, "" where there is none.
    """

    key: str
    pod: str
    container: str
    exit_code: int | None
    reason: str
    message: str
    restarted: bool
    memory_limit: str

    def describe(self) -> str:
        """A line for the user."""
        if self.reason == "OOMKilled":
            limit = f"its limit of {self.memory_limit}" if self.memory_limit else "the node's memory; it has no limit"
            return f"pod {self.pod} was OOMKilled at {limit}"
        if self.exit_code is None:
            return f"pod {self.pod} failed: {self.reason}{f' ({self.message})' if self.message else ''}"
        where = f"pod {self.pod}" if self.container == CONTAINER else f"pod {self.pod}, container {self.container},"
        if self.reason in _NOT_STARTED:
            return f"{where} couldn't start: {self.message or self.reason}"
        if name := _signal_name(self.exit_code):
            return f"{where} was ended by {name} (exit code {self.exit_code})"
        return f"{where} failed with exit code {self.exit_code}"


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """How a job stands.

    Attributes:
        state: of the job.
        message: what the operator says of a finished job.
        phases: phase -> number of pods.
        troubles: see there.
        failures: those that can still be seen in the pods.
        restarts: of containers, in the pods that are there.
    """

    state: State
    message: str
    phases: Mapping[str, int]
    troubles: tuple[Trouble, ...]
    failures: tuple[Failure, ...]
    restarts: int


@dataclass(frozen=True, kw_only=True)
class Final:
    """Why the job can't end well. `usage`: the input is wrong, so starting again is no use; `again`: see Trouble."""

    reason: str
    usage: bool = False
    again: bool = False
    failure: Failure | None = None


def assess(job: Json | None, pods: Sequence[Json], events: Sequence[Json], patience: float) -> Assessment:
    """How a job stands, from the job, its pods, and events about either."""
    state, message = job_state(job)
    troubles: list[Trouble] = []
    if job is not None and state in ("waiting", "running"):
        troubles += _job_troubles(job, pods, events, patience)
        for pod in pods:
            troubles += _pod_troubles(pod, events, patience)
    if state == "waiting" and any(_gated(pod) for pod in pods):
        state = "queued"
    return Assessment(
        state=state,
        message=message,
        phases=dict(sorted(Counter(_phase(pod) for pod in pods).items())),
        troubles=tuple(troubles),
        failures=tuple(failure for pod in pods for failure in _failures(pod)),
        restarts=sum(int(status.get("restartCount", 0)) for pod in pods for status in _statuses(pod)),
    )


def job_state(job: Json | None) -> tuple[State, str]:
    """(state, the operator's message) from a job's conditions."""
    if job is None or job["metadata"].get("deletionTimestamp"):
        return "gone", ""
    met = {c["type"]: c.get("message", "") for c in job.get("status", {}).get("conditions") or () if _is_true(c)}
    if "Succeeded" in met:
        return "succeeded", met["Succeeded"]
    if "Failed" in met:
        return "failed", met["Failed"]
    if "Suspended" in met:
        return "queued", met["Suspended"]
    return ("running", "") if "Running" in met else ("waiting", "")


def is_finished(job: Json) -> bool:
    """Whether the operator is done with a job."""
    return job_state(job)[0] in ("succeeded", "failed")


def is_being_deleted(job: Json) -> bool:
    """Whether a job is on its way out."""
    return bool(job["metadata"].get("deletionTimestamp"))


def lasting(
    troubles: Iterable[Trouble], since: Mapping[str, float], now: float
) -> tuple[dict[str, float], Final | None]:
    """(when each of `troubles` was seen first, the first that is final).

    `since` is what the last call returned; a trouble that went away begins anew when it comes back.
    """
    seen = {trouble.key: since.get(trouble.key, now) for trouble in troubles}
    for trouble in troubles:
        if now - seen[trouble.key] >= trouble.grace:
            return seen, Final(reason=trouble.reason, again=trouble.again)
    return seen, None


def final_failure(history: Iterable[Failure]) -> Final | None:
    """What makes starting again pointless, among all failures seen in the order in which they were.

    A signal, an eviction or a lost pod is the infrastructure's: the operator starts again, up to the backoff limit. Wrong input is
    final at once; what the same pod did twice is final, too.
    """
    times: Counter[tuple[str, str]] = Counter()
    for failure in history:
        kind = _kind(failure)
        times[failure.pod, kind] += 1
        if kind == "usage":
            return Final(reason=f"{failure.describe()}: its input is wrong", usage=True, failure=failure)
        if kind != "infrastructure" and times[failure.pod, kind] >= _TWICE:
            hint = (
                "; give the pods more memory (pod_template.resources), or less work at once (batch.tokens in the spec)"
            )
            return Final(
                reason=f"{failure.describe()}, for the second time{hint if kind == 'memory' else ''}", failure=failure
            )
    return None


def final_condition(assessment: Assessment, history: Sequence[Failure], timeout: int) -> Final:
    """Why the operator gave a job up."""
    if "deadline" in assessment.message:
        return deadline(timeout)
    last = history[-1] if history else None
    because = f"; the last failure: {last.describe()}" if last else ""
    if "backoff limit" in assessment.message:
        return Final(reason=f"the operator gave up after too many restarts{because}", failure=last)
    return Final(reason=f"the operator says: {assessment.message or 'Failed'}{because}", failure=last)


def deadline(timeout: int) -> Final:
    """The job has had all the time that it was given."""
    return Final(reason=f"the job ran into its deadline of {timeout} s; a larger timeout gives it more")


def _job_troubles(job: Json, pods: Sequence[Json], events: Sequence[Json], patience: float) -> list[Trouble]:
    name = job["metadata"]["name"]
    wanted = sum(int(replica["replicas"]) for replica in job["spec"]["pytorchReplicaSpecs"].values())
    about = [event for event in events if event["involvedObject"].get("name") == name and _is_refusal(event)]
    refusal = _last(about) if len(pods) < wanted else None
    if refusal is None:
        if not job.get("status", {}).get("conditions"):
            reason = (
                f"the training operator says nothing of the job for {OPERATOR_GRACE:.0f} s; see that it is running, and that it "
                "watches this namespace"
            )
            return [Trouble(key="operator", reason=reason, grace=OPERATOR_GRACE)]
        if len(pods) >= wanted:
            return []
        reason = f"the training operator has created {len(pods)} of {wanted} pods; see that it is running"
        return [Trouble(key="pods", reason=reason, grace=max(patience, OPERATOR_GRACE))]
    message = _sentence(refusal)
    if "exceeded quota" in message:
        return [Trouble(key="quota", reason=f"a quota of the namespace is used up: {message}", grace=patience)]
    if "failed calling webhook" in message:
        return [Trouble(key="webhook", reason=f"a webhook doesn't answer: {message}", grace=patience)]
    return [Trouble(key="admission", reason=f"the pods are refused: {message}", grace=_ADMISSION_GRACE)]


def _pod_troubles(pod: Json, events: Sequence[Json], patience: float) -> list[Trouble]:
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    if pod["metadata"].get("deletionTimestamp"):
        if not name.endswith(_MASTER):
            return []  # the other nodes go on without it, and the operator replaces it once it is gone
        grace = float(pod["spec"].get("terminationGracePeriodSeconds") or 0) + _LOST_GRACE
        node = pod["spec"].get("nodeName", "")
        reason = f"pod {name} is lost: it doesn't end on node {node}, which seems to be gone"
        return [Trouble(key=f"lost/{uid}", reason=reason, grace=grace, again=True)]
    if pod["status"].get("phase", "Pending") != "Pending" or _gated(pod):
        return []
    scheduled = _condition(pod, "PodScheduled")
    if scheduled is None or not _is_true(scheduled):
        why = (scheduled or {}).get("message") or "no scheduler has looked at it"
        return [Trouble(key=f"unscheduled/{uid}", reason=f"pod {name} can't be scheduled: {why}", grace=patience)]
    for status in _statuses(pod):
        waiting = status.get("state", {}).get("waiting") or {}
        word, message = waiting.get("reason", ""), waiting.get("message", "")
        image = f"the image {status.get('image')!r} of pod {name}, container {status['name']},"
        if word == "InvalidImageName":
            return [Trouble(key=f"image/{uid}", reason=f"{image} has no valid name", grace=0.0)]
        if word in _IMAGE:
            return [Trouble(key=f"image/{uid}", reason=f"{image} can't be pulled: {message or word}", grace=patience)]
        if word in _CREATION or (word == "CrashLoopBackOff" and status["name"] != CONTAINER):
            reason = f"pod {name}, container {status['name']}, can't start: {word}: {message}"
            return [Trouble(key=f"start/{uid}", reason=reason, grace=patience)]
    latest = _last([event for event in events if event["involvedObject"].get("name") == name])
    if latest is not None and latest.get("type") == "Warning" and str(latest.get("reason")).startswith("Failed"):
        reason = f"pod {name} can't start: {latest['reason']}: {_sentence(latest)}"
        return [Trouble(key=f"start/{uid}", reason=reason, grace=patience)]
    return []


def _failures(pod: Json) -> list[Failure]:
    name, uid, status = pod["metadata"]["name"], pod["metadata"]["uid"], pod["status"]
    limits = {c["name"]: c.get("resources", {}).get("limits", {}).get("memory", "") for c in pod["spec"]["containers"]}
    found = []
    for container in _statuses(pod):
        for state, restarted in (("lastState", True), ("state", False)):
            ended = (container.get(state) or {}).get("terminated")
            if ended and ended["exitCode"] != 0:
                found.append(
                    Failure(
                        key=f"{uid}/{container['name']}/{ended.get('containerID') or ended.get('finishedAt')}",
                        pod=name,
                        container=container["name"],
                        exit_code=ended["exitCode"],
                        reason=ended.get("reason", ""),
                        message=ended.get("message", ""),
                        restarted=restarted,
                        memory_limit=limits.get(container["name"], ""),
                    )
                )
    if status.get("phase") == "Failed" and status.get("reason"):
        found.append(
            Failure(
                key=uid,
                pod=name,
                container="",
                exit_code=None,
                reason=status["reason"],
                message=status.get("message", ""),
                restarted=False,
                memory_limit="",
            )
        )
    return found


def _kind(failure: Failure) -> Literal["usage", "memory", "own", "infrastructure"]:
    if failure.reason == "OOMKilled":
        return "memory"
    if failure.exit_code is None:
        return "infrastructure"
    if failure.exit_code == UsageError.exit_code and failure.container == CONTAINER:
        return "usage"
    if _signal_name(failure.exit_code) and failure.reason not in _NOT_STARTED:
        return "infrastructure"
    return "own"


def _phase(pod: Json) -> str:
    """The pod's phase, or what a person would rather call it."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    phase = str(pod["status"].get("phase", "Pending"))
    words = [(status.get("state", {}).get("waiting") or {}).get("reason") for status in _statuses(pod)]
    odd = [word for word in words if word and word not in ("ContainerCreating", "PodInitializing")]
    return str(odd[0]) if odd else phase


def _gated(pod: Json) -> bool:
    scheduled = _condition(pod, "PodScheduled")
    return scheduled is not None and scheduled.get("reason") == "SchedulingGated"


def _statuses(pod: Json) -> list[Json]:
    status = pod["status"]
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _condition(pod: Json, kind: str) -> Json | None:
    return next((c for c in pod["status"].get("conditions") or () if c["type"] == kind), None)


def _is_true(condition: Json) -> bool:
    return bool(condition["status"] == "True")


def _is_refusal(event: Json) -> bool:
    return event.get("type") == "Warning" and str(event.get("reason", "")).startswith("FailedCreate")


def _last(events: list[Json]) -> Json | None:
    return max(events, key=_event_time, default=None)


def _event_time(event: Json) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return next((str(time) for time in times if time), "")


def _sentence(event: Json) -> str:
    return " ".join(str(event.get("message", "")).split())


def _signal_name(exit_code: int) -> str:
    """The signal that an exit code stands for, as shells and container runtimes have it; "" for any other code."""
    try:
        return signal.Signals(exit_code - _SIGNALED).name
    except ValueError:
        return ""
