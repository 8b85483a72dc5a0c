"""What the container of `shard_data` does."""

from __future__ import annotations

import time
from dataclasses import replace

from components.outputs import Outputs
from components.shard_data.source import plan_source, read_source
from eval_core.errors import UsageError
from eval_core.plan.files import save_plan
from eval_core.plan.types import Plan
from eval_core.report.text import encode_json
from eval_core.run import describe_plan
from eval_core.say import say
from eval_core.spec import EvalSpec
from eval_core.storage import Store


def shard_data(*, spec: str, run: str, tolerance: float) -> Outputs:
    """Turn a spec into a plan, in the run's storage.

    Raises:
        UsageError: spec, data or model can't be used, or the run holds another plan.
        StorageError: the run's storage is out of reach.
    """
    started = time.monotonic()
    source = read_source(spec)
    source = replace(source, spec=_with_tolerance(source.spec, tolerance))
    plan = plan_source(source)
    store = Store(run)
    new = save_plan(plan, store)
    say(describe_plan(plan, store, new=new, seconds=time.monotonic() - started))
    sizes = _sizes(plan)
    dataset = {"run": run, "digest": plan.digest, "name": plan.spec.name, "model": plan.spec.model, **sizes}
    return Outputs(
        parameters={"plan_digest": plan.digest},
        metrics={"metrics": sizes},
        files={"plan": encode_json(dataset, indent=1)},
    )


def _with_tolerance(spec: EvalSpec, tolerance: float) -> EvalSpec:
    if tolerance < 0:
        raise UsageError(f"input 'tolerance' must be above 0, or 0 for what the spec says, not {tolerance}")
    return replace(spec, precision=replace(spec.precision, tolerance=tolerance)) if tolerance else spec


def _sizes(plan: Plan) -> dict[str, int]:
    return {
        "examples": len(plan.examples),
        "requests": len(plan.requests),
        "duplicates removed": plan.n_requested - len(plan.requests),
        "micro-batches": len(plan.micro_batches),
        "shards": plan.n_shards,
        "audited micro-batches": len(plan.audited),
    }
