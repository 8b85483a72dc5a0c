"""The backend `local`: the ranks run in the step's own container, from the worker image."""

from __future__ import annotations

import time
from importlib.util import find_spec

from components.evaluate.request import LaunchRequest, LaunchResult
from components.images import image
from components.planned import open_planned
from eval_core.errors import IncompleteRunError, UsageError
from eval_core.reduce import load_shards
from eval_core.work.launch import Ranks


def evaluate_here(request: LaunchRequest) -> LaunchResult:
    """Do what is missing in the run with `processes_per_worker` ranks; of a request, `run` and `plan_digest` count besides.

    Raises:
        UsageError: the request or the plan can't be used, or this image can't compute.
        WorkerError: a rank failed; what was committed is kept.
        IncompleteRunError: all ranks ended well, and yet shards are missing.
        StorageError: the run's storage is out of reach.
    """
    if find_spec("torch") is None:
        raise UsageError(
            f"backend 'local' computes in this step's own container, whose image must be {image('worker')} then"
        )
    started = time.monotonic()
    store, plan = open_planned(request.run, request.plan_digest)
    shards = plan.shard_ids()
    missing = load_shards(store, plan).missing(shards)
    if missing:
        with Ranks() as ranks:
            ranks.run(request.run, request.processes_per_worker, device=plan.spec.compute.device)
        if left := load_shards(store, plan).missing(shards):
            raise IncompleteRunError(
                f"{request.run}: {len(left)} of {len(shards)} shards are still missing; run this step again"
            )
    return LaunchResult(
        job="",
        adopted=False,
        shards=len(shards),
        shards_before=len(shards) - len(missing),
        restarts=0,
        seconds=time.monotonic() - started,
    )
