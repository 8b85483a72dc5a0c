"""What the container of `evaluate` does: ask the chosen backend for what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from components.evaluate.request import LaunchRequest, LaunchResult
from components.namespace import own_namespace
from components.outputs import Outputs
from eval_core.errors import UsageError
from eval_core.say import say

Backend = Callable[[LaunchRequest], LaunchResult]


def evaluate(
    *,
    run: str,
    plan_digest: str,
    backend: str,
    image: str,
    workers: int,
    processes_per_worker: int,
    gpus_per_worker: int,
    pod_template: str,
    timeout: int,
    patience: int,
) -> Outputs:
    """Compute the shards that are missing.

    Raises:
        UsageError: an input or the plan can't be used.
        ConcordError: the work ended before all shards were committed; says why.
    """
    for name, value, least in (
        ("workers", workers, 1),
        ("processes_per_worker", processes_per_worker, 1),
        ("gpus_per_worker", gpus_per_worker, 0),
        ("timeout", timeout, 1),
        ("patience", patience, 1),
    ):
        if value < least:
            raise UsageError(f"input '{name}' must be {least} or more, not {value}")
    if backend not in BACKENDS:
        raise UsageError(f"input 'backend' must be one of {', '.join(BACKENDS)}, not {backend!r}")
    result = BACKENDS[backend](
        LaunchRequest(
            run=run,
            plan_digest=plan_digest,
            namespace=own_namespace() or "",
            image=image,
            workers=workers,
            processes_per_worker=processes_per_worker,
            gpus_per_worker=gpus_per_worker,
            pod_template=pod_template,
            timeout=timeout,
            patience=patience,
        )
    )
    say(
        f"all {result.shards} shards are committed, {result.shards - result.shards_before} of them by this step, "
        f"in {result.seconds:.1f} s"
    )
    return Outputs(
        parameters={"job": result.job},
        metrics={
            "metrics": {
                "shards": result.shards,
                "committed before": result.shards_before,
                "restarts": result.restarts,
                "seconds": round(result.seconds, 1),
            }
        },
    )


def _pytorchjob(request: LaunchRequest) -> LaunchResult:
    if not request.namespace:
        raise UsageError("backend 'pytorchjob' works inside a cluster only, and this is no pod; use backend 'local'")
    from components.evaluate.launcher import launch  # the worker image holds no Kubernetes client

    return launch(request)


def _local(request: LaunchRequest) -> LaunchResult:
    from components.evaluate.local import evaluate_here

    return evaluate_here(request)


BACKENDS: Mapping[str, Backend] = {"pytorchjob": _pytorchjob, "local": _local}
