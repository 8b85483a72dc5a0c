"""Take over from other runs what this one would compute again: whole shards whose keys are equal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from eval_core.errors import ConcordError, CorruptFileError, UsageError
from eval_core.metrics.score import Scores, score_items
from eval_core.metrics.states import states_to_json
from eval_core.plan.files import HEAD_KEY, load_plan
from eval_core.plan.types import Plan, parse_shard_id, shard_id
from eval_core.reuse import came_from, describe_machine, reuse_key
from eval_core.shard_file import Origin, ShardFile, ShardResult, decode_planned, encode_shard, shard_key
from eval_core.storage import Store
from eval_core.work.commit import VIOLATIONS, commit_shard

_READERS = 8


@dataclass(frozen=True, kw_only=True)
class _Other:
    """Another run: its storage, its plan, and ATTEMPT:RANK -> what that process ran on, of those that left a record."""

    store: Store
    plan: Plan
    machines: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Match:
    """Shard `here` of this run's plan and shard `there` of another run's, whose keys are equal."""

    here: str
    there: str
    key: str


def open_run(uri: str) -> Store:
    """The storage of a run that has a plan; nothing is created.

    Raises:
        UsageError: there is no run at `uri`.
    """
    if "://" in uri or Path(uri).is_dir():
        store = Store(uri)
        if store.get(HEAD_KEY) is not None:
            return store
    raise UsageError(
        f"--reuse {uri}: there is no run, for it has no {HEAD_KEY}; give the folder or URI of one, or leave it out"
    )


def take_over(store: Store, plan: Plan, missing: Iterable[str], uris: Sequence[str]) -> dict[str, ShardFile]:
    """Commit those of the `missing` main shards that a run of `uris` has; the first run that has one gives it.

    A shard that is torn, altered, or was once computed with other bits is left where it is.

    Returns:
        shard -> its new file.

    Raises:
        UsageError: one of `uris` is no run, or of another version.
        StorageError: a storage is out of reach.
    """
    wanted = {reuse_key(plan, shard): shard for shard in missing}
    taken: dict[str, ShardFile] = {}
    for uri in uris:
        other = _open(uri)
        matches = [match for match in _matches(other, wanted) if match.here not in taken]
        with ThreadPoolExecutor(_READERS) as pool:
            files = pool.map(partial(_take, store, plan, other), matches)
        taken |= {match.here: file for match, file in zip(matches, files, strict=True) if file is not None}
    return taken


def _open(uri: str) -> _Other:
    store = open_run(uri)
    try:
        return _Other(store=store, plan=load_plan(store), machines=_machines(store))
    except ConcordError as error:
        raise UsageError(f"--reuse {uri}: the run can't be read: {error}") from error


def _machines(store: Store) -> dict[str, str]:
    machines = {}
    for key in store.list("attempts"):
        if "/rank-" not in key or (data := store.get(key)) is None:
            continue
        try:
            record = json.loads(data)
            machines[f"{key.split('/')[1]}:{record['rank']}"] = describe_machine(record["environment"])
        except (ValueError, KeyError, TypeError):
            continue
    return machines


def _matches(other: _Other, wanted: Mapping[str, str]) -> list[_Match]:
    doubtful = {"/".join(key.removeprefix(f"{VIOLATIONS}/").split("-")[:2]) for key in other.store.list(VIOLATIONS)}
    shards = [shard_id("main", number) for number in range(other.plan.n_shards)]
    keys = {shard: reuse_key(other.plan, shard) for shard in shards if shard not in doubtful}
    return [_Match(here=wanted[key], there=shard, key=key) for shard, key in keys.items() if key in wanted]


def _take(store: Store, plan: Plan, other: _Other, match: _Match) -> ShardFile | None:
    """The new file of a shard that the other run has; None where it hasn't, or can't be trusted."""
    data = other.store.get(shard_key(match.there))
    if data is None:
        return None
    try:
        found = decode_planned(data, other.plan, match.there)
    except CorruptFileError:
        return None
    origin = found.provenance.origin or Origin(
        run=other.store.uri,
        plan=other.plan.digest,
        shard=match.there,
        digest=found.digest,
        states=states_to_json(found.result.states),
        key=match.key,
        machine=other.machines.get(found.provenance.worker, ""),
    )
    if origin.key != match.key or not came_from(found.result, origin):
        return None
    result = _restate(plan, match.here, found.result)
    provenance = replace(found.provenance, origin=origin)
    if commit_shard(store, result, provenance) != "committed":
        return None
    return ShardFile(result=result, digest=encode_shard(result, provenance)[1], provenance=provenance)


def _restate(plan: Plan, shard: str, rows: ShardResult) -> ShardResult:
    """`rows` as a shard of `plan`, with the totals that its tasks make of them."""
    scores = Scores.of(plan, plan.shard_requests(shard), rows.nll, rows.greedy, rows.generated)
    _, number = parse_shard_id(shard)
    states = score_items(plan, plan.items_of(number), scores)
    return replace(rows, plan=plan.digest, shard=shard, states=states)
