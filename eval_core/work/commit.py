"""Commit a shard once, and look at what is there already. Nothing here is ever written over."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from eval_core.errors import CorruptFileError, StorageError
from eval_core.metrics.score import Float32, Float64
from eval_core.plan.types import Plan
from eval_core.shard_file import (
    BAD,
    SHARDS,
    Provenance,
    ShardFile,
    ShardResult,
    decode_planned,
    decode_shard,
    encode_shard,
    shard_key,
    shard_of_key,
)
from eval_core.storage import Store

VIOLATIONS = "violations"

Outcome = Literal["committed", "duplicate", "violation"]


def commit_shard(store: Store, result: ShardResult, provenance: Provenance) -> Outcome:
    """Put `result` where nothing is. Where a shard is already, compare, and record a difference.

    Raises:
        StorageError: the storage is full or out of reach.
    """
    data, digest = encode_shard(result, provenance)
    key = shard_key(result.shard)
    for _ in range(3):
        if store.put_new(key, data):
            return "committed"
        existing = store.get(key)
        if existing is None:
            continue
        try:
            found = decode_shard(existing, key)
        except CorruptFileError:
            set_aside(store, key, provenance.attempt)
            continue
        if found.digest == digest:
            return "duplicate"
        _record_violation(store, found, result, digest, provenance)
        return "violation"
    raise StorageError(f"{store.uri}: {key} comes and goes; is something else writing to this run?")


def set_aside(store: Store, key: str, attempt: str) -> None:
    """Move a torn or altered file out of the way, for whoever wants to look at it."""
    name = key.replace("/", "_").removesuffix(".json")
    store.move(key, f"{BAD}/{attempt}/{name}-{uuid.uuid4().hex[:8]}.json")


def _record_violation(store: Store, found: ShardFile, result: ShardResult, digest: str, provenance: Provenance) -> None:
    ours, theirs = result.nll, found.result.nll
    comparable = (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    where = np.flatnonzero(_bits(ours) != _bits(theirs)).tolist() if comparable else []
    record = {
        "shard": result.shard,
        "committed": {"digest": found.digest, "by": found.provenance.worker, "host": found.provenance.host},
        "computed": {"digest": digest, "by": provenance.worker, "host": provenance.host},
        "differing_tokens": len(where),
        "first_differing_token": where[0] if where else None,
    }
    name = f"{result.shard.replace('/', '-')}-{provenance.attempt}-{provenance.rank}"
    store.put_new(f"{VIOLATIONS}/{name}.json", json.dumps(record, indent=1).encode())


def _bits(nll: Float32 | Float64) -> npt.NDArray[np.signedinteger[Any]]:
    return nll.view(f"i{nll.dtype.itemsize}")


@dataclass
class Committed:
    """What an earlier attempt left.

    Attributes:
        files: shard id -> its file.
        set_aside: keys that were torn or altered and have been moved to `bad/`.
    """

    files: dict[str, ShardFile] = field(default_factory=dict)
    set_aside: list[str] = field(default_factory=list)


def scan_committed(store: Store, plan: Plan, attempt: str) -> Committed:
    """List the committed shards once; torn, altered and foreign files are moved to `bad/`."""
    committed = Committed()
    wanted = set(plan.shard_ids())
    for key in store.list(SHARDS):
        shard = shard_of_key(key)
        data = store.get(key)
        if data is None:
            continue
        try:
            if shard not in wanted:
                raise CorruptFileError(f"{key}: belongs to another plan")
            file = decode_planned(data, plan, shard)
        except CorruptFileError:
            set_aside(store, key, attempt)
            committed.set_aside.append(key)
            continue
        committed.files[shard] = file
    return committed
