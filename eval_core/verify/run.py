"""Verify a run: all checks, written beside the numbers."""

from __future__ import annotations

import json

from eval_core.plan.types import Plan, shard_id
from eval_core.reduce import Loaded, Reduction, gather_scores
from eval_core.storage import Store
from eval_core.verify.checks import (
    check_all_reduce,
    check_answers,
    check_coverage,
    check_determinism,
    check_digests,
    check_exactness,
    check_finite,
    check_log_likelihood,
    check_plan,
    check_replay,
    check_reuse,
    check_shard_states,
    read_records,
)
from eval_core.verify.precision import gather_audited, overall_error, task_precision
from eval_core.verify.types import VERIFICATION_KEY, Verification


def verify_run(store: Store, plan: Plan, loaded: Loaded, reduction: Reduction) -> Verification:
    """Run every check on what is committed, write `verification.json` and return it."""
    complete = not loaded.missing(shard_id("main", i) for i in range(plan.n_shards))
    scores = gather_scores(plan, loaded) if complete else None
    shard_totals, shard_states = check_shard_states(plan, loaded)
    audited = gather_audited(plan, loaded)
    overall = overall_error(plan, audited)
    precision = task_precision(plan, audited)
    all_reduces = [key for key in store.list("attempts") if key.endswith("/allreduce.json")]
    checks = [
        check_coverage(plan, loaded, reduction),
        check_digests(plan, loaded, reduction),
        check_plan(plan, reduction),
        check_exactness(plan, scores, reduction),
        shard_totals,
        check_all_reduce(plan, _read(store, all_reduces), shard_states),
        check_determinism(_read(store, store.list("violations"))),
        check_replay(plan, loaded),
        check_reuse(plan, loaded),
        check_finite(plan, scores),
        check_log_likelihood(plan, audited, overall),
        check_answers(plan, precision),
    ]
    verification = Verification(
        plan=plan.digest,
        reduction=reduction.digest,
        checks=tuple(check for check in checks if check is not None),
        dtype=plan.spec.compute.dtype,
        reference_dtype=plan.reference_dtype,
        overall=overall if len(audited.batches) else None,
        precision=precision,
    )
    store.put(VERIFICATION_KEY, json.dumps(verification.to_json(), indent=1).encode())
    return verification


def _read(store: Store, keys: list[str]) -> list[dict[str, object]]:
    return read_records({key: data for key in keys if (data := store.get(key)) is not None})
