"""What a backend is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What to launch.

    Attributes:
        run: URI of the run's storage, which holds the plan.
        plan_digest: the plan's whole digest; another plan at `run` is refused.
        namespace: where the job is created.
        image: the worker's.
        workers: pods in all, the Master included.
        processes_per_worker: ranks in each pod.
        gpus_per_worker: `nvidia.com/gpu` of each pod.
        pod_template: JSON text, see `pod_template`.
        timeout: seconds after which Kubernetes ends the job.
        patience: seconds that a pod may wait for a node or an image, or the job for the operator.
    """

    run: str
    plan_digest: str
    namespace: str
    image: str
    workers: int
    processes_per_worker: int
    gpus_per_worker: int
    pod_template: str
    timeout: int
    patience: int


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How the work came to its end. All shards are committed, or the backend had raised.

    Attributes:
        job: name of the last job; empty where nothing was missing and no job was there.
        adopted: whether another launcher had created it.
        shards: of the plan, audit included.
        shards_before: of them, committed before this launcher looked first.
        restarts: of containers, as far as seen.
        seconds: by the wall.
    """

    job: str
    adopted: bool
    shards: int
    shards_before: int
    restarts: int
    seconds: float
