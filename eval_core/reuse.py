"""What makes a shard of one run good for another: a key over everything that can change a bit of what it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from eval_core.canonical import digest_array, digest_json
from eval_core.plan.types import PLAN_FORMAT, Plan, plain_generation
from eval_core.shard_file import SHARD_FORMAT, Origin, ShardResult
from eval_core.spec import identity


def reuse_key(plan: Plan, shard: str) -> str:
    """SHA-256 over all that the rows of main shard `shard` depend on: equal keys, the same computation.

    The requests, their order, their rows and micro-batches; how texts are generated, how many at once, and the seed where they are drawn; the
    files of weights and config, the tokenizer, and `compute` of the spec. Neither names and paths nor what metrics are made of the rows.
    """
    asked, batches = plan.requests, plan.shard_batches(shard)
    requests = plan.shard_requests(shard)
    own, edges = slice(requests.start, requests.stop), slice(requests.start, requests.stop + 1)
    ways = [plan.generation_of(batch) for batch in batches]
    columns = {
        "tokens": asked.tokens[asked.offsets[requests.start] : asked.offsets[requests.stop]],
        "lengths": np.diff(asked.offsets[edges]),
        "n_scored": asked.n_scored[own],
        "shared": asked.shared[own],
        "sizes": np.diff(plan.micro_batches.first_request[batches.start : batches.stop + 1]),
        "rows": plan.micro_batches.rows[batches.start : batches.stop],
        "length": plan.micro_batches.length[batches.start : batches.stop],
    }
    content: dict[str, Any] = {
        "formats": [PLAN_FORMAT, SHARD_FORMAT],
        "columns": {name: digest_array(values) for name, values in columns.items()},
        "generations": [way and plain_generation(way) for way in ways],
        "together": [plan.spec.batch.generated_tokens, plan.spec.batch.share_prefixes] if any(ways) else None,
        "seed": plan.spec.seed if any(way and way.temperature for way in ways) else None,
        "asks_greedy": plan.asks_greedy,
        "compute": identity(plan.spec.compute),
        "files": plan.model["files"],
        "tokenizer": plan.tokenizer,
    }
    return digest_json(content)


def came_from(result: ShardResult, origin: Origin) -> bool:
    """Whether the rows of `result` are those that `origin` names: with the totals there they give the digest there."""
    there = replace(result, plan=origin.plan, shard=origin.shard).to_json() | {"states": origin.states}
    return digest_json(there) == origin.digest


def describe_machine(environment: Any) -> str:
    """What can move the last bits of a forward pass, in a line, from what a rank recorded of itself; "" where it says less."""
    try:
        hardware = f"{environment['gpu' if 'gpu' in environment else 'cpu']} ({environment['cpu_capability']})"
        versions = {name: environment["packages"][name] for name in ("torch", "transformers")}
        versions["concord"] = environment["concord"]
        return ", ".join([hardware, *(f"{name} {version}" for name, version in versions.items())])
    except (KeyError, TypeError):
        return ""
