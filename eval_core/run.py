"""The chain: plan, work, reduce, verify, report; each step also a function of its own."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from eval_core.plan.build import build_plan
from eval_core.plan.files import save_plan
from eval_core.plan.types import Plan
from eval_core.spec_yaml import load_spec
from eval_core.storage import Store


def plan_spec(path: Path, uri: str | None) -> tuple[Plan, Store]:
    """Plan the spec at `path` and write the plan to `uri` (None: `runs/NAME-DIGEST`)."""
    started = time.monotonic()
    spec = load_spec(path)
    plan = build_plan(spec, path.resolve().parent)
    store = Store(uri or f"runs/{spec.name}-{plan.digest[:8]}")
    new = save_plan(plan, store)
    duplicates = plan.n_requested - len(plan.requests)
    say(
        f"plan {plan.digest[:16]} {'written to' if new else 'found at'} {store.uri} in {time.monotonic() - started:.1f} s: "
        f"{len(plan.examples)} examples, {len(plan.requests)} requests ({duplicates} duplicates removed), "
        f"{len(plan.micro_batches)} micro-batches in {plan.n_shards} shards"
    )
    return plan, store


def say(message: str) -> None:
    """A line for the user, on standard error."""
    print(message, file=sys.stderr, flush=True)
