"""The launcher against an API server that fails, refuses, races and forgets: what a real one can't be asked to do."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes_fake import FakeKubernetes, Fault, status, until
from synthetic import make_loaded, make_plan

from components.evaluate import launcher, watch
from components.evaluate.cluster import (
    AccessError,
    Cluster,
    ClusterError,
    ConflictError,
    OperatorMissingError,
    RefusedError,
)
from components.evaluate.job import build_job
from components.evaluate.launcher import JobError, LaunchRequest, LaunchResult, launch
from components.evaluate.names import job_name
from eval_core.errors import RunMismatchError, UsageError
from eval_core.plan.files import save_plan
from eval_core.shard_file import encode_shard, shard_key
from eval_core.storage import Store

PLAN = make_plan()
SHARDS = {shard_key(s): encode_shard(f.result, f.provenance)[0] for s, f in make_loaded(PLAN).files.items()}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "launcher", "uid": "launcher-uid"}
OTHER = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "other-uid"}
JOBS = r"/pytorchjobs"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    """The server, with the launcher's clock turned fast."""
    server = FakeKubernetes()
    monkeypatch.setattr(watch, "POLL", 0.02)
    monkeypatch.setattr(watch, "COUNT_EVERY", 0.02)
    monkeypatch.setattr(launcher, "_PAUSE", 0.02)
    monkeypatch.setattr(launcher, "_DELETION_WAIT", 0.5)
    monkeypatch.setattr(launcher, "connect", lambda namespace, patience: server.cluster())
    monkeypatch.setattr(Cluster, "with_patience", lambda self, seconds: self)
    yield server
    server.stop()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A run that is planned, and of which nothing is computed."""
    planned = Store(str(tmp_path / "run"))
    save_plan(PLAN, planned)
    return planned


@pytest.fixture
def request_(store: Store) -> LaunchRequest:
    mount = f'[{{"name": "runs", "mountPath": "{store.local_path.parent}"}}]'  # type: ignore[union-attr]
    return LaunchRequest(
        run=store.uri,
        plan_digest=PLAN.digest,
        namespace="concord",
        image="concord/worker:0.1.0",
        workers=3,
        processes_per_worker=1,
        gpus_per_worker=0,
        pod_template=f'{{"volumes": [{{"name": "runs", "emptyDir": {{}}}}], "volumeMounts": {mount}}}',
        timeout=3600,
        patience=1,
    )


def commit(store: Store, *, leave: int = 0) -> None:
    """What the pods do, but for the last few shards."""
    for key, data in list(SHARDS.items())[: len(SHARDS) - leave]:
        store.put_new(key, data)


def starting(fake: FakeKubernetes) -> Callable[[dict[str, Any]], None]:
    """An operator that makes the pods of a new job run."""

    def start(job: dict[str, Any]) -> None:
        fake.add_pods(job)
        fake.set_condition(job["metadata"]["name"], "Running")

    return start


def working(fake: FakeKubernetes, store: Store, *, leave: int = 0, condition: str = "Succeeded") -> None:
    """Let the pods of each new job commit their shards, and end."""

    def work(job: dict[str, Any]) -> None:
        starting(fake)(job)
        commit(store, leave=leave)
        fake.set_condition(job["metadata"]["name"], condition)

    fake.created = work


def end_of(fake: FakeKubernetes, pod: str, code: int, reason: str = "Error", restarts: int = 1) -> None:
    """A container that has ended and was started again."""
    ended = {"exitCode": code, "reason": reason, "containerID": f"containerd://{restarts}"}
    fake.pods[pod]["status"]["containerStatuses"] = [
        {
            "name": "pytorch",
            "restartCount": restarts,
            "state": {"running": {}},
            "lastState": {"terminated": ended},
        }
    ]


def in_background(request: LaunchRequest) -> Any:
    """`launch` in a thread; its result is the future's."""
    return ThreadPoolExecutor(1).submit(launch, request)


def name_of(request: LaunchRequest, attempt: int = 1) -> str:
    return job_name(request.run, attempt)


def make_job(fake: FakeKubernetes, request: LaunchRequest, attempt: int = 1, **changes: Any) -> dict[str, Any]:
    """A job that is there before the launcher."""
    other = dataclasses.replace(request, **changes)
    job = build_job(other, launcher.parse_pod_template(other.pod_template), attempt, OTHER)
    created = fake.cluster().create_job(job)
    fake.calls.clear()
    return created


def test_a_job_does_what_is_missing(fake: FakeKubernetes, store: Store, request_: LaunchRequest) -> None:
    store.put_new(*next(iter(SHARDS.items())))
    working(fake, store)
    result = launch(request_)
    assert result == LaunchResult(
        job=name_of(request_),
        adopted=False,
        shards=len(SHARDS),
        shards_before=1,
        restarts=0,
        seconds=result.seconds,
    )
    assert fake.count("POST") == 1
    assert fake.count("DELETE") == 0


def test_nothing_is_asked_of_the_cluster_when_nothing_is_missing(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest
) -> None:
    commit(store)
    result = launch(request_)
    assert (result.job, result.shards_before) == ("", len(SHARDS))
    assert fake.calls == []


def test_another_plan_is_refused_before_anything_starts(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    with pytest.raises(RunMismatchError, match="another plan"):
        launch(dataclasses.replace(request_, plan_digest="0" * 64))
    assert fake.calls == []


def test_a_bad_template_is_refused_before_anything_starts(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    with pytest.raises(UsageError, match="unknown key 'nodeSelectr'"):
        launch(dataclasses.replace(request_, pod_template='{"nodeSelectr": {}}'))
    assert fake.calls == []


def test_success_is_not_what_the_condition_says(fake: FakeKubernetes, store: Store, request_: LaunchRequest) -> None:
    working(fake, store, leave=2)
    with pytest.raises(JobError, match=rf"says that it has succeeded, but shards are missing\. {len(SHARDS) - 2} of"):
        launch(request_)


def test_a_damaged_shard_is_missing(fake: FakeKubernetes, store: Store, request_: LaunchRequest) -> None:
    key = list(SHARDS)[3]
    store.put(key, SHARDS[key][:-20])
    working(fake, store)
    with pytest.raises(JobError, match=rf"1 of {len(SHARDS)} shards are missing or damaged, such as main/000003"):
        launch(request_)


def test_a_failed_condition_does_not_matter_when_all_is_committed(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest
) -> None:
    working(fake, store, condition="Failed")
    assert launch(request_).shards == len(SHARDS)


def test_a_job_that_lingers_after_its_work_is_deleted(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LINGER", 0.2)
    working(fake, store, condition="Running")
    assert launch(request_).shards == len(SHARDS)
    assert fake.jobs == {}


def test_api_errors_pass(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.faults += [
        Fault("GET .*/pods$", 500, status(500, "InternalError", "etcdserver: request timed out"), times=2),
        Fault(f"GET .*{JOBS}$", None, times=2),
        Fault(f"POST .*{JOBS}$", 429, status(429, "TooManyRequests", "try again"), times=1),
        Fault(f"POST .*{JOBS}$", None, times=1),
        Fault(f"GET .*{JOBS}/concord", 503, "upstream connect error", times=2),
    ]
    working(fake, store)
    assert launch(request_).shards == len(SHARDS)
    assert all(fault.times == 0 for fault in fake.faults), "a fault did not fire"
    assert len(fake.jobs) == 1


def test_a_creation_whose_answer_was_lost_is_adopted(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest
) -> None:
    """The server created the job, and then the connection broke."""

    def break_off(job: dict[str, Any]) -> None:
        starting(fake)(job)
        fake.created = lambda job: None
        raise ConnectionError

    fake.created = break_off
    future = in_background(request_)
    until(lambda: fake.count(f"GET .*{JOBS}/concord") > 2)
    commit(store)
    fake.set_condition(name_of(request_), "Succeeded")
    assert future.result(20).job == name_of(request_)
    assert len(fake.jobs) == 1


def test_an_api_server_that_stays_away_is_given_up(fake: FakeKubernetes) -> None:
    cluster = fake.cluster(patience=0.6)
    fake.faults.append(Fault("GET", 500, status(500, "InternalError", "no leader"), times=1000))
    with pytest.raises(ClusterError, match=r"list pods: the API server didn't answer for 1 s: no leader"):
        cluster.list_pods("a", "b")
    fake.stop()
    with pytest.raises(ClusterError, match=r"list pods: the API server didn't answer for 1 s: .*refused"):
        cluster.list_pods("a", "b")


@pytest.mark.parametrize(
    ("verb", "resource", "call"),
    [
        ("list", "pytorchjobs", f"GET .*{JOBS}$"),
        ("create", "pytorchjobs", f"POST .*{JOBS}$"),
        ("get", "pytorchjobs", f"GET .*{JOBS}/concord"),
        ("list", "pods", "GET .*/pods$"),
    ],
)
def test_a_verb_that_rbac_lacks_is_named(
    verb: str, resource: str, call: str, fake: FakeKubernetes, request_: LaunchRequest
) -> None:
    fake.refuse_access(verb, resource, call)
    with pytest.raises(AccessError, match=rf"lacks the verb '{verb}' on '{resource}' in namespace concord"):
        launch(request_)


def test_events_that_may_not_be_listed_are_named(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    fake.created = lambda job: fake.add_pods(job, phase="Pending", conditions=[])
    fake.refuse_access("list", "events", "GET .*/events$")
    with pytest.raises(AccessError, match="lacks the verb 'list' on 'events'"):
        launch(request_)


def test_a_log_that_may_not_be_read_does_not_hide_the_reason(
    fake: FakeKubernetes, request_: LaunchRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(job: dict[str, Any]) -> None:
        starting(fake)(job)
        end_of(fake, f"{name_of(request_)}-master-0", 2)

    fake.created = fail
    fake.refuse_access("get", "pods/log", "GET .*/log$")
    with pytest.raises(UsageError, match="failed with exit code 2: its input is wrong"):
        launch(request_)
    assert "can't be read: RBAC doesn't allow it: the service account lacks the verb 'get' on 'pods/log'" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Fault(JOBS, 404, "404 page not found\n", 9), OperatorMissingError, "install the Kubeflow training operator"),
        (
            Fault(JOBS, 404, status(404, "NotFound", "the server could not find the requested resource"), 9),
            OperatorMissingError,
            "its CRDs are missing",
        ),
        (
            Fault(
                "POST", 403, status(403, "Forbidden", 'pytorchjobs "c" is forbidden: exceeded quota: jobs', name="c"), 9
            ),
            RefusedError,
            "exceeded quota: jobs",
        ),
        (
            Fault("POST", 403, status(403, "Forbidden", 'admission webhook "v" denied the request: no'), 9),
            RefusedError,
            "denied the request: no",
        ),
        (
            Fault("POST", 422, status(422, "Invalid", "spec.x: Invalid value", name="c"), 9),
            RefusedError,
            "spec.x: Invalid value",
        ),
        (
            Fault("POST", 500, status(500, "InternalError", "failed calling webhook: no endpoints available"), 1000),
            OperatorMissingError,
            "webhook didn't answer for 1 s; is the operator running",
        ),
        (
            Fault("GET", 401, status(401, "Unauthorized", "Unauthorized"), 9),
            ClusterError,
            "doesn't accept the credentials",
        ),
        (
            Fault("POST", 404, status(404, "NotFound", 'namespaces "concord" not found', name="concord"), 9),
            ClusterError,
            'namespaces "concord" not found',
        ),
    ],
)
def test_what_cannot_pass_by_itself_is_said_at_once(
    fault: Fault, kind: type[ClusterError], message: str, fake: FakeKubernetes, request_: LaunchRequest
) -> None:
    fake.faults.append(fault)
    cluster = fake.cluster(patience=0.6)
    with pytest.raises(kind) as error:
        _create(cluster, request_)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def _create(cluster: Cluster, request: LaunchRequest) -> None:
    launcher.create_or_adopt(cluster, request, launcher.parse_pod_template(request.pod_template), None)


def test_a_live_job_of_the_same_work_is_adopted(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "own_reference", lambda namespace: OWNER)
    fake.created = starting(fake)
    make_job(fake, request_)
    future = in_background(request_)
    until(lambda: fake.count("PATCH") == 1)
    commit(store)
    fake.set_condition(name_of(request_), "Succeeded")
    result = future.result(20)
    assert (result.job, result.adopted) == (name_of(request_), True)
    assert fake.count("POST") == 0
    assert [owner["uid"] for owner in fake.jobs[result.job]["metadata"]["ownerReferences"]] == [
        "other-uid",
        "launcher-uid",
    ]


def test_adoption_survives_that_the_job_changes_meanwhile(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    job = make_job(fake, request_)
    fake.set_condition(name_of(request_), "Running")
    with pytest.raises(ConflictError):
        fake.cluster().set_owners(job, [OWNER])
    adopted = launcher.adopt(fake.cluster(), job, OWNER)
    assert adopted is not None
    assert [owner["uid"] for owner in adopted["metadata"]["ownerReferences"]] == ["other-uid", "launcher-uid"]
    assert launcher.adopt(fake.cluster(), adopted, OWNER) == adopted


def test_two_launchers_make_one_job(fake: FakeKubernetes, store: Store, request_: LaunchRequest) -> None:
    """Both look before either creates."""
    both = threading.Barrier(2, timeout=10)
    listed = Cluster.list_pods

    def together(self: Cluster, label: str, value: str) -> Any:
        found = listed(self, label, value)
        if label == "concord-eval/run":
            both.wait()
        return found

    Cluster.list_pods = together  # type: ignore[method-assign]
    try:
        fake.created = starting(fake)
        futures = [in_background(request_) for _ in range(2)]
        until(lambda: fake.count("POST") == 2)
        until(lambda: fake.count(f"GET .*{JOBS}/concord") > 4)
    finally:
        Cluster.list_pods = listed  # type: ignore[method-assign]
    commit(store)
    fake.set_condition(name_of(request_), "Succeeded")
    results = [future.result(20) for future in futures]
    assert sorted(result.adopted for result in results) == [False, True]
    assert {result.job for result in results} == {name_of(request_)} == set(fake.jobs)


def test_another_work_under_the_name_is_refused(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    fake.created = starting(fake)
    make_job(fake, request_, plan_digest="f" * 64)
    with pytest.raises(RunMismatchError) as error:
        launch(request_)
    assert "f" * 64 in str(error.value)
    assert PLAN.digest in str(error.value)
    assert len(fake.jobs) == 1


def test_a_job_that_is_being_deleted_is_waited_for(fake: FakeKubernetes, store: Store, request_: LaunchRequest) -> None:
    make_job(fake, request_)
    fake.linger = True
    fake.cluster().delete_job(name_of(request_))
    fake.linger = False
    working(fake, store)
    assert launch(request_).job == name_of(request_, 2)
    assert name_of(request_) in fake.jobs, "the time was over, and it was still there"


def test_a_deleted_job_that_goes_in_time(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends when the job has gone, not when its time is over."""
    monkeypatch.setattr(launcher, "_DELETION_WAIT", 600.0)
    make_job(fake, request_)
    fake.linger = True
    fake.cluster().delete_job(name_of(request_))
    working(fake, store)
    threading.Timer(0.2, lambda: fake.jobs.pop(name_of(request_))).start()
    started = time.monotonic()
    assert launch(request_).job == name_of(request_, 2)
    assert time.monotonic() - started < 300


@pytest.mark.parametrize("condition", ["Failed", "Succeeded"])
def test_a_job_of_an_earlier_run_leads_to_the_next_attempt(
    condition: str, fake: FakeKubernetes, store: Store, request_: LaunchRequest
) -> None:
    make_job(fake, request_, attempt=3)
    fake.set_condition(name_of(request_, 3), condition)
    working(fake, store)
    result = launch(request_)
    assert (result.job, result.adopted) == (name_of(request_, 4), False)


def test_a_name_whose_pods_are_still_there_is_not_used_again(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest
) -> None:
    """The pods of a job that was deleted may stay on a lost node for as long as it is lost."""
    fake.add_pods(make_job(fake, request_, attempt=2))
    fake.jobs.clear()
    working(fake, store)
    assert launch(request_).job == name_of(request_, 3)


def test_the_workers_own_words_are_the_reason(
    fake: FakeKubernetes, request_: LaunchRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = f"{name_of(request_)}-worker-1"

    def fail(job: dict[str, Any]) -> None:
        starting(fake)(job)
        fake.logs[pod] = "loading\nerror: /models/x: missing on node-2; every node needs the model at this path\n"
        end_of(fake, pod, 2)

    fake.created = fail
    with pytest.raises(UsageError) as error:
        launch(request_)
    assert error.value.exit_code == 2
    assert str(error.value) == (
        f"job {name_of(request_)}: pod {pod} failed with exit code 2: its input is wrong "
        "(error: /models/x: missing on node-2; every node needs the model at this path)"
    )
    said = capfd.readouterr().err
    assert f"    {pod}| loading\n    {pod}| error: /models/x" in said
    assert fake.jobs == {}, "the job would hold its pods for nothing"


def test_out_of_memory_twice(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    pod = f"{name_of(request_)}-worker-0"
    request_ = dataclasses.replace(
        request_,
        pod_template=request_.pod_template[:-1] + ', "resources": {"limits": {"memory": "64Mi"}}}',
    )

    def fail(job: dict[str, Any]) -> None:
        starting(fake)(job)
        end_of(fake, pod, 137, "OOMKilled")

    fake.created = fail
    future = in_background(request_)
    until(lambda: fake.count("/log$") == 1)
    time.sleep(0.2)
    assert not future.done(), "once is not twice"
    with fake.lock:
        end_of(fake, pod, 137, "OOMKilled", restarts=2)
    with pytest.raises(JobError, match=rf"pod {pod} was OOMKilled at its limit of 64Mi, for the second time"):
        future.result(20)
    assert fake.jobs == {}


def test_signals_are_left_to_the_operator(fake: FakeKubernetes, store: Store, request_: LaunchRequest) -> None:
    pod = f"{name_of(request_)}-worker-0"
    fake.created = starting(fake)
    future = in_background(request_)
    for number in range(1, 5):
        until(lambda: fake.count("/log$") == number - 1 and bool(fake.pods))  # noqa: B023
        with fake.lock:
            end_of(fake, pod, 137, restarts=number)
    until(lambda: fake.count("/log$") == 4)
    commit(store)
    fake.set_condition(name_of(request_), "Succeeded")
    assert future.result(20).restarts == 4


def test_a_deadline_that_the_operator_never_says_is_the_launchers(
    fake: FakeKubernetes, request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It doesn't where the pods never ran."""
    monkeypatch.setattr(watch, "_DEADLINE_GRACE", 0.5)

    def stick(job: dict[str, Any]) -> None:
        fake.add_pods(job, phase="Pending", containerStatuses=[])
        fake.set_condition(job["metadata"]["name"], "Created")

    fake.created = stick
    with pytest.raises(JobError, match="ran into its deadline of 1 s; a larger timeout gives it more"):
        launch(replace(request_, timeout=1, patience=600))
    assert fake.jobs == {}


def test_patience_ends_and_the_reason_is_said(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}

    def stick(job: dict[str, Any]) -> None:
        fake.add_pods(job, phase="Pending", conditions=[no], containerStatuses=[])
        fake.set_condition(job["metadata"]["name"], "Created")

    fake.created = stick
    started = time.monotonic()
    with pytest.raises(JobError, match="-master-0 can't be scheduled: 0/2 nodes are available"):
        launch(request_)
    assert 1.0 <= time.monotonic() - started < 60
    assert fake.jobs == {}


def test_a_queue_is_waited_in_beyond_all_patience(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.created = lambda job: fake.set_condition(job["metadata"]["name"], "Suspended", "suspended by Kueue")
    future = in_background(request_)
    time.sleep(1.5)
    assert not future.done()
    fake.add_pods(fake.jobs[name_of(request_)])
    commit(store)
    fake.set_condition(name_of(request_), "Succeeded")
    future.result(20)
    assert f"{name_of(request_)} queued: no pods; 0 of {len(SHARDS)} shards" in capfd.readouterr().err


def test_the_operators_reason_and_the_last_failure(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    name = name_of(request_)

    def fail(job: dict[str, Any]) -> None:
        starting(fake)(job)
        end_of(fake, f"{name}-worker-1", 139)
        fake.set_condition(name, "Failed", f"Job {name} has failed because it has reached the specified backoff limit")

    fake.created = fail
    with pytest.raises(JobError, match=r"too many restarts; the last failure: pod .*-worker-1 was ended by SIGSEGV"):
        launch(request_)
    assert name in fake.jobs, "a finished job stays until its TTL is over"


def test_a_deadline_is_named(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    message = "Job x has failed because it was active longer than specified deadline"
    fake.created = lambda job: fake.set_condition(job["metadata"]["name"], "Failed", message)
    with pytest.raises(JobError, match="ran into its deadline of 3600 s; a larger timeout gives it more"):
        launch(request_)


def test_a_job_that_someone_deletes(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    fake.created = starting(fake)
    future = in_background(request_)
    until(lambda: fake.count(f"GET .*{JOBS}/concord") > 2)
    fake.cluster().delete_job(name_of(request_))
    with pytest.raises(JobError, match="the job was deleted, by a user or because"):
        future.result(20)


def test_a_lost_master_leads_to_the_next_attempt(
    fake: FakeKubernetes, store: Store, request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.evaluate import reasons

    monkeypatch.setattr(reasons, "_LOST_GRACE", -29.8)

    def lose(job: dict[str, Any]) -> None:
        starting(fake)(job)
        fake.pods[f"{name_of(request_)}-master-0"]["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
        working(fake, store)

    fake.created = lose
    assert launch(request_).job == name_of(request_, 2)
    assert set(fake.jobs) == {name_of(request_, 2)}


def interrupt_when(condition: Callable[[], bool]) -> None:
    """What the step makes of SIGTERM. Not ignored, which a process in the background inherits."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        until(condition)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def test_an_interrupt_deletes_the_job(fake: FakeKubernetes, request_: LaunchRequest) -> None:
    fake.created = starting(fake)
    interrupt_when(lambda: fake.count(f"GET .*{JOBS}/concord") > 2)
    with pytest.raises(KeyboardInterrupt):
        launch(request_)
    assert fake.jobs == {}


def test_an_interrupt_leaves_the_job_to_its_other_owner(
    fake: FakeKubernetes, request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "own_reference", lambda namespace: OWNER)
    fake.created = starting(fake)
    make_job(fake, request_)
    interrupt_when(lambda: fake.count(f"GET .*{JOBS}/concord") > 2)
    with pytest.raises(KeyboardInterrupt):
        launch(request_)
    (job,) = fake.jobs.values()
    assert [owner["uid"] for owner in job["metadata"]["ownerReferences"]] == ["other-uid"]


@pytest.mark.parametrize(
    ("environ", "namespace", "expected"),
    [
        (
            {"KFP_POD_NAME": "p", "KFP_POD_UID": "u"},
            "concord",
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
        ),
        ({"POD_NAME": "p", "POD_UID": "u"}, "concord", {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}),
        ({"POD_NAME": "p"}, "concord", None),
        ({}, "concord", None),
        ({"POD_NAME": "p", "POD_UID": "u"}, "elsewhere", None),
    ],
)
def test_the_launchers_own_reference(
    environ: dict[str, str], namespace: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "own_namespace", lambda: "concord")
    assert launcher.own_reference(namespace, environ) == expected
