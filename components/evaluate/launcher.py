"""Create the PyTorchJob of a run, or adopt it, and watch it until the run's shards are all committed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from components.evaluate.cluster import JOB_NAME_LABEL, Cluster, ClusterError, ConflictError, connect
from components.evaluate.job import PLAN_ANNOTATION, build_job
from components.evaluate.names import RUN_LABEL, attempt_of, job_name, run_key
from components.evaluate.pod_template import PodTemplate, parse_pod_template
from components.evaluate.reasons import Final, is_being_deleted, is_finished
from components.evaluate.request import LaunchRequest, LaunchResult
from components.evaluate.watch import ShardCount, say, watch
from components.namespace import own_namespace
from components.planned import open_planned
from eval_core.errors import ConcordError, RunMismatchError, UsageError
from eval_core.plan.types import Plan
from eval_core.reduce import load_shards
from eval_core.storage import Store

__all__ = ["JobError", "LaunchRequest", "LaunchResult", "launch"]

Json = dict[str, Any]

_ATTEMPTS = 3
_CREATION_PATIENCE = 60.0
_WATCHING_PATIENCE = 600.0
_DELETION_WAIT = 30.0
_PAUSE = 1.0


class JobError(ConcordError):
    """The job can't end well; what is committed is kept."""


class JobUsageError(UsageError):
    """The job's pods say that their input is wrong."""


def launch(request: LaunchRequest) -> LaunchResult:
    """Do what is missing in the run with a PyTorchJob.

    An interrupt (SIGTERM, where the caller turns it into one) deletes the job, or leaves it to the other launchers that own it.

    Raises:
        UsageError: the request, the pod template or the plan can't be used.
        JobError: the job can't end well; says why, and what to do.
        ClusterError: the API server is out of reach, refuses the job or lacks permissions; says which.
        StorageError: the run's storage is out of reach.
    """
    started = time.monotonic()
    template = parse_pod_template(request.pod_template)
    owner = own_reference(request.namespace)
    build_job(request, template, 1, owner)
    store, plan = open_planned(request.run, request.plan_digest)
    shards = ShardCount(store, plan)
    before = shards.total - len(_missing(store, plan))
    launched = _Launched()
    if before < shards.total:
        cluster = connect(request.namespace, _CREATION_PATIENCE)
        try:
            _work(cluster, request, template, owner, shards, launched)
        except KeyboardInterrupt:
            _withdraw(cluster.with_patience(_CREATION_PATIENCE), request.run, owner, launched)
            raise
        if missing := _missing(store, plan):
            raise JobError(
                f"job {launched.job} has ended, but {len(missing)} of {shards.total} shards are missing or damaged, such as "
                f"{missing[0]}; run this step again to compute them"
            )
    return LaunchResult(
        job=launched.job,
        adopted=launched.adopted,
        shards=shards.total,
        shards_before=before,
        restarts=launched.restarts,
        seconds=time.monotonic() - started,
    )


def own_reference(namespace: str, environ: Mapping[str, str] = os.environ) -> Json | None:
    """An ownerReference to this pod, so that the job goes when it goes; None where this is no pod of `namespace`.

    An owner in another namespace counts as gone, and the job would be collected at once.
    """
    name = environ.get("KFP_POD_NAME") or environ.get("POD_NAME")
    uid = environ.get("KFP_POD_UID") or environ.get("POD_UID")
    if not name or not uid or own_namespace() != namespace:
        return None
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}


class _Launched:
    """What this launcher has done so far."""

    job = ""
    adopted = False
    restarts = 0


def _missing(store: Store, plan: Plan) -> list[str]:
    """The shards that aren't there, or aren't whole: the only proof of success."""
    return load_shards(store, plan).missing(plan.shard_ids())


def _work(
    cluster: Cluster,
    request: LaunchRequest,
    template: PodTemplate,
    owner: Json | None,
    shards: ShardCount,
    launched: _Launched,
) -> None:
    for _ in range(_ATTEMPTS):
        job, launched.adopted = create_or_adopt(cluster, request, template, owner)
        launched.job = job["metadata"]["name"]
        say(f"{launched.job} {'adopted' if launched.adopted else 'created'} in namespace {request.namespace}")
        ending = watch(
            cluster.with_patience(_WATCHING_PATIENCE),
            launched.job,
            shards,
            patience=request.patience,
            timeout=request.timeout,
        )
        launched.restarts += ending.restarts
        if ending.final is None:
            _delete_unless_finished(cluster, launched.job)
            return
        error = _error(launched.job, ending.final, ending.said, shards)
        _delete_unless_finished(cluster, launched.job)
        if not ending.final.again:
            raise error
        say(f"{ending.final.reason}; the next attempt goes on with what is missing")
    raise error


def create_or_adopt(
    cluster: Cluster, request: LaunchRequest, template: PodTemplate, owner: Json | None
) -> tuple[Json, bool]:
    """(the live job of this work, whether it was there already).

    Raises:
        RunMismatchError: another work has the name.
        RefusedError: admission or a quota refuses the job.
    """
    key = run_key(request.run)
    while True:
        jobs = cluster.list_jobs(key)
        live = [job for job in jobs if not is_finished(job) and not is_being_deleted(job)]
        if live:
            latest = max(live, key=lambda job: attempt_of(job["metadata"]["name"]))
            _check_same_work(latest, request)
            if (adopted := adopt(cluster, latest, owner)) is not None:
                return adopted, True
            continue
        for job in jobs:
            if is_being_deleted(job):
                _wait_until_gone(cluster, job["metadata"]["name"])
        attempt = 1 + max((attempt_of(name) for name in _names(jobs, cluster.list_pods(RUN_LABEL, key))), default=0)
        try:
            return cluster.create_job(build_job(request, template, attempt, owner)), False
        except ConflictError:
            if (taken := cluster.get_job(job_name(request.run, attempt))) is not None:
                _check_same_work(taken, request)
            time.sleep(_PAUSE)


def adopt(cluster: Cluster, job: Json, owner: Json | None) -> Json | None:
    """Become one of the job's owners, so that it lives as long as this pod; None where it has gone meanwhile."""
    if owner is None:
        return job
    name = job["metadata"]["name"]
    current: Json | None = job
    while current is not None and not is_being_deleted(current):
        owners = current["metadata"].get("ownerReferences") or []
        if any(other["uid"] == owner["uid"] for other in owners):
            return current
        try:
            return cluster.set_owners(current, [*owners, owner])
        except ConflictError:
            current = cluster.get_job(name)
    return None


def _names(jobs: list[Json], pods: list[Json]) -> list[str]:
    """Names of jobs that are taken: also those whose pods are still there, perhaps on a node that is lost."""
    return [job["metadata"]["name"] for job in jobs] + [pod["metadata"]["labels"][JOB_NAME_LABEL] for pod in pods]


def _check_same_work(job: Json, request: LaunchRequest) -> None:
    digest = (job["metadata"].get("annotations") or {}).get(PLAN_ANNOTATION, "none")
    if digest != request.plan_digest:
        raise RunMismatchError(
            f"the job {job['metadata']['name']} in namespace {request.namespace} does another work: its plan has the digest "
            f"{digest}, this one {request.plan_digest}; delete that job, or use another run"
        )


def _wait_until_gone(cluster: Cluster, name: str) -> None:
    say(f"{name} is being deleted; waiting for up to {_DELETION_WAIT:.0f} s")
    deadline = time.monotonic() + _DELETION_WAIT
    while cluster.get_job(name) is not None and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _delete_unless_finished(cluster: Cluster, name: str) -> None:
    """End what still runs. A finished job stays until its TTL is over, with its pods' logs."""
    job = cluster.get_job(name)
    if job is not None and not is_finished(job):
        cluster.delete_job(name)


def _withdraw(cluster: Cluster, run: str, owner: Json | None, launched: _Launched) -> None:
    """Delete the job that this launcher owns; where others own it too, only leave them."""
    try:
        for job in cluster.list_jobs(run_key(run)):
            name = job["metadata"]["name"]
            owners = job["metadata"].get("ownerReferences") or []
            others = [other for other in owners if owner is None or other["uid"] != owner["uid"]]
            ours = len(others) < len(owners) or (name == launched.job and not launched.adopted)
            if not ours or is_finished(job):
                continue
            if others:
                cluster.set_owners(job, others)
                say(f"{name} is left to its other owners")
            else:
                cluster.delete_job(name)
                say(f"{name} deleted")
    except ClusterError as error:
        say(f"the job couldn't be deleted ({error}); it ends at its deadline, or delete it by hand")


def _error(name: str, final: Final, said: str, shards: ShardCount) -> ConcordError:
    reason = f"job {name}: {final.reason}{f' ({said})' if said else ''}"
    if final.usage:
        return JobUsageError(reason)
    return JobError(
        f"{reason}. {shards.committed} of {shards.total} shards are committed; run this step again to go on from there"
    )
