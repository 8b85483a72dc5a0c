"""The plan on storage: Parquet for the columns, JSON for the rest. The digest covers neither file's bytes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eval_core.errors import CorruptFileError, RunMismatchError
from eval_core.model_files import resolve_model
from eval_core.plan.texts import Texts, write_texts
from eval_core.plan.types import (
    PLAN_FORMAT,
    ExampleTable,
    ItemTable,
    MicroBatchTable,
    Plan,
    RequestTable,
    columns,
    generation_from_plain,
)
from eval_core.spec import EvalSpec, from_plain, to_plain
from eval_core.storage import Store

HEAD_KEY = "plan/plan.json"
_TABLES: dict[str, type] = {
    "requests": RequestTable,
    "micro_batches": MicroBatchTable,
    "items": ItemTable,
    "examples": ExampleTable,
}


def save_plan(plan: Plan, store: Store) -> bool:
    """Write `plan` to the run's storage; False where the same plan is there already.

    The head is written last and created, not overwritten, so a run has one plan for ever.

    Raises:
        RunMismatchError: the run holds another plan.
    """
    existing = store.get(HEAD_KEY)
    if existing is None:
        for name in _TABLES:
            for column, values in columns(getattr(plan, name)).items():
                store.put(_column_key(plan, name, column), _to_parquet(values))
        head = {
            "format": PLAN_FORMAT,
            "digest": plan.digest,
            "identity": plan.identity,
            "spec": to_plain(plan.spec),
            "n_requested": plan.n_requested,
            "locations": dict(plan.locations),
        }
        if store.put_new(HEAD_KEY, json.dumps(head, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")):
            return True
        existing = store.require(HEAD_KEY, "it was there a moment ago; is something clearing this run?")
    found = _head(existing, store)["digest"]
    if found != plan.digest:
        raise RunMismatchError(
            f"{store.uri} holds another plan: digest {found[:16]} there, {plan.digest[:16]} from this spec; "
            "give another --run, or the spec, data and model that the run was started with"
        )
    return False


def load_plan(store: Store) -> Plan:
    """The plan of a run, its digest checked against its content.

    Raises:
        StorageError: the run has no plan.
        CorruptFileError: a file of the plan is damaged.
    """
    head = _head(store.require(HEAD_KEY, "make the plan first: concord plan SPEC --run URI"), store)
    try:
        plan = Plan(
            spec=from_plain(EvalSpec, head["spec"]),
            model=head["identity"]["model"],
            tokenizer=head["identity"]["tokenizer"],
            audited=np.array(head["identity"]["audited"], dtype=np.int64),
            generations=tuple(map(generation_from_plain, head["identity"]["generations"])),
            n_requested=head["n_requested"],
            locations=head["locations"],
            **{name: _load_table(store, head["digest"], name, cls) for name, cls in _TABLES.items()},
        )
        digest = plan.digest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{store.uri}/{HEAD_KEY}: altered; restore it, or start a new run") from error
    if digest != head["digest"]:
        raise CorruptFileError(
            f"{store.uri}: the plan's content has digest {plan.digest[:16]}, its head says {head['digest'][:16]}; "
            "a file below plan/ was altered: restore it, or start a new run"
        )
    return plan


def model_folder(plan: Plan) -> Path:
    """The model on this machine: where it was when the plan was made, else found or fetched by its name.

    Raises:
        ModelError: it is in neither place.
    """
    planned = Path(plan.locations["model"])
    if os.path.isdir(planned):  # where a folder above it may not be read, Path.is_dir raises
        return planned
    return resolve_model(plan.spec.model, plan.spec.revision, Path(plan.locations["base"]))


def _head(data: bytes, store: Store) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads(data)
        wanted = head["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{store.uri}/{HEAD_KEY}: not the head of a plan; start a new run") from error
    if wanted != PLAN_FORMAT:
        raise RunMismatchError(
            f"{store.uri}: the plan has format {wanted}, this version reads {PLAN_FORMAT}; use the version that wrote it"
        )
    return head


def _column_key(plan: Plan, table: str, column: str) -> str:
    return f"plan/{plan.digest[:16]}/{table}.{column}.parquet"


def _load_table(store: Store, digest: str, name: str, cls: type) -> Any:
    hints = get_type_hints(cls)
    values = {}
    for f in fields(cls):
        key = f"plan/{digest[:16]}/{name}.{f.name}.parquet"
        data = store.require(key, "the plan is not whole; start a new run")
        if hints[f.name] == Sequence[str]:
            values[f.name] = Texts(data, f"{store.uri}/{key}")
            continue
        try:
            values[f.name] = _column_of(data).to_numpy()
        except Exception as error:  # what Arrow raises on a damaged file is of many kinds
            raise CorruptFileError(f"{store.uri}/{key}: damaged ({error}); restore it, or start a new run") from error
    return cls(**values)


def _column_of(data: bytes) -> Any:
    """The column in a Parquet file.

    Arrow's threads are left out: a process that ends soon after they were started (a step that refuses its plan) was
    aborted by their pool's destructor in 10 to 30 of 100 cases on a busy machine, with pyarrow 26.0.1.
    """
    return pq.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)["value"]


def _to_parquet(values: Any) -> bytes:
    if not isinstance(values, np.ndarray):
        return write_texts(values)
    sink = io.BytesIO()
    pq.write_table(pa.table({"value": pa.array(values)}), sink, compression="zstd")
    return sink.getvalue()
