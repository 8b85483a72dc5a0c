"""Commits: once, compared with what is there, never over it; and what an attempt finds of earlier ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eval_core.errors import StorageError
from eval_core.plan.types import Plan, shard_id
from eval_core.shard_file import Provenance, ShardResult, decode_shard, encode_shard, n_scored_tokens, shard_key
from eval_core.storage import Store
from eval_core.work.agenda import Agenda, draw_up
from eval_core.work.commit import Committed, commit_shard, scan_committed

Origin = Callable[..., Provenance]
SHARD = "main/000001"
KEY = shard_key(SHARD)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "run"))


def result(*nll: float, shard: str = SHARD) -> ShardResult:
    return ShardResult(plan="d1", shard=shard, nll=np.array(nll, dtype=np.float32), states={})


def contents(store: Store) -> dict[str, bytes | None]:
    return {key: store.get(key) for folder in ("shards", "bad", "violations") for key in store.list(folder)}


# --- commit


def test_the_first_commit_is_kept(store: Store, provenance: Origin) -> None:
    assert commit_shard(store, result(1, 2), provenance()) == "committed"
    file = decode_shard(store.require(KEY, ""), KEY)
    assert file.result.nll.tolist() == [1, 2]
    assert file.provenance == provenance()


def test_the_same_result_again_is_a_duplicate_and_changes_nothing(store: Store, provenance: Origin) -> None:
    commit_shard(store, result(1, 2), provenance(host="left"))
    before = contents(store)
    assert commit_shard(store, result(1, 2), provenance(host="right", rank=1, attempt="a2")) == "duplicate"
    assert contents(store) == before


def violation(store: Store) -> dict[str, object]:
    (key,) = store.list("violations")
    return json.loads(store.require(key, ""))


def test_another_result_is_a_violation_and_both_sides_are_named(store: Store, provenance: Origin) -> None:
    commit_shard(store, result(1, 2, 3), provenance(host="left"))
    kept = store.get(KEY)
    other = result(1, 2.5, 3.5)
    assert commit_shard(store, other, provenance(host="right", rank=1)) == "violation"
    assert store.get(KEY) == kept
    assert violation(store) == {
        "shard": SHARD,
        "committed": {"digest": decode_shard(kept, KEY).digest, "by": "a1:0", "host": "left"},
        "computed": {"digest": encode_shard(other, provenance())[1], "by": "a1:1", "host": "right"},
        "differing_tokens": 2,
        "first_differing_token": 1,
    }


@pytest.mark.parametrize(
    ("committed", "computed", "differing", "first"),
    [
        ((1, 2), (1, 2, 3), 0, None),  # of another length: no token can be compared
        ((np.nan, 1, 2), (np.nan, 1, 3), 1, 2),  # the same NaN is no difference
        ((1, 0.0), (1, -0.0), 1, 1),  # another bit is one
        ((1, np.inf), (1, np.nan), 1, 1),
    ],
    ids=["length", "nan", "zero", "inf"],
)
def test_tokens_differ_by_their_bits(
    committed: tuple[float, ...],
    computed: tuple[float, ...],
    differing: int,
    first: int | None,
    store: Store,
    provenance: Origin,
) -> None:
    commit_shard(store, result(*committed), provenance())
    assert commit_shard(store, result(*computed), provenance(rank=1)) == "violation"
    record = violation(store)
    assert (record["differing_tokens"], record["first_differing_token"]) == (differing, first)


def test_every_violation_is_recorded(store: Store, provenance: Origin) -> None:
    commit_shard(store, result(1), provenance())
    for rank in (1, 2):
        assert commit_shard(store, result(1 + rank), provenance(rank=rank)) == "violation"
    assert commit_shard(store, result(5), provenance(rank=1, attempt="a2")) == "violation"
    assert len(store.list("violations")) == 3


@pytest.mark.parametrize("torn", [b"", b'{"format"', b"x" * 100])
def test_a_torn_file_is_set_aside_and_replaced(torn: bytes, store: Store, provenance: Origin) -> None:
    store.put(KEY, torn)
    assert commit_shard(store, result(1), provenance()) == "committed"
    assert decode_shard(store.require(KEY, ""), KEY).result.nll.tolist() == [1]
    (aside,) = store.list("bad")
    assert store.get(aside) == torn
    assert store.list("violations") == []


def test_two_torn_files_of_one_shard_are_both_kept(store: Store, provenance: Origin) -> None:
    for torn in (b"one", b"other"):
        store.delete(KEY)
        store.put(KEY, torn)
        commit_shard(store, result(1), provenance())
    assert sorted(store.get(key) for key in store.list("bad")) == [b"one", b"other"]


class Vanishing(Store):
    """Another process takes the file away between the two looks at it."""

    times = 1

    def get(self, key: str) -> bytes | None:
        if self.times:
            self.times -= 1
            self.delete(key)
        return super().get(key)


def test_a_file_that_vanishes_is_committed_again(tmp_path: Path, provenance: Origin) -> None:
    store = Vanishing(str(tmp_path))
    store.put(KEY, b"in the way")
    assert commit_shard(store, result(1), provenance()) == "committed"


class Haunted(Store):
    """Never lets a key be created, and never shows it."""

    def put_new(self, key: str, data: bytes) -> bool:
        return False

    def get(self, key: str) -> bytes | None:
        return None


def test_a_key_that_comes_and_goes_ends_in_an_error(tmp_path: Path, provenance: Origin) -> None:
    with pytest.raises(StorageError, match=r"shards/main/000001\.json comes and goes"):
        commit_shard(Haunted(str(tmp_path)), result(1), provenance())


# --- what earlier attempts left


@pytest.fixture
def committed_run(plan: Plan, store: Store, provenance: Origin, made_up_nll: Callable, shard_result: Callable) -> Store:
    """All shards of the plan, by two workers in turn."""
    nll = made_up_nll(plan)
    for number, shard in enumerate(plan.shard_ids()):
        commit_shard(store, shard_result(plan, shard, nll), provenance(rank=number % 2))
    return store


def test_all_whole_shards_are_found(plan: Plan, committed_run: Store) -> None:
    found = scan_committed(committed_run, plan, "a2")
    assert sorted(found.files) == sorted(plan.shard_ids())
    assert found.set_aside == []
    for shard, file in found.files.items():
        assert file.result.shard == shard
        assert len(file.result.nll) == n_scored_tokens(plan, shard)


def test_nothing_is_found_in_an_empty_run(plan: Plan, store: Store) -> None:
    assert scan_committed(store, plan, "a1") == Committed()


def recommit(store: Store, key: str, origin: Provenance, **changes: object) -> None:
    """Write the shard at `key` again, with other content and digests that fit it."""
    old = decode_shard(store.require(key, ""), key).result
    store.put(key, encode_shard(replace(old, **changes), origin)[0])


@pytest.mark.parametrize("damage", ["torn", "another plan", "another shard", "too short", "foreign", "not ours"])
def test_what_does_not_belong_is_set_aside(damage: str, plan: Plan, committed_run: Store, provenance: Origin) -> None:
    store, key = committed_run, shard_key("main/000000")
    if damage == "torn":
        store.put(key, store.require(key, "")[:-1])
    elif damage == "another plan":
        recommit(store, key, provenance(), plan="other")
    elif damage == "another shard":
        recommit(store, key, provenance(), shard="main/000001")
    elif damage == "too short":
        recommit(store, key, provenance(), nll=np.ones(1, dtype=np.float32))
    elif damage == "foreign":
        store.move(key, key := shard_key("main/999999"))
    else:
        store.move(key, key := "shards/notes.txt")
    content = store.get(key)
    found = scan_committed(store, plan, "a2")
    assert found.set_aside == [key]
    assert store.get(key) is None
    assert [store.get(k) for k in store.list("bad/a2")] == [content]
    assert "main/000000" not in found.files
    assert len(found.files) == len(plan.shard_ids()) - 1


# --- the agenda


def costs(plan: Plan, kind: str, numbers: list[int]) -> list[int]:
    return [plan.shard_cost(shard_id(kind, n)) for n in numbers]


def test_a_new_run_has_everything_to_do(plan: Plan) -> None:
    agenda = draw_up(plan, Committed())
    assert sorted(agenda.main) == list(range(plan.n_shards))
    assert sorted(agenda.replay) == sorted(agenda.alone) == sorted(agenda.reference) == plan.audited.tolist()
    assert agenda.authors == {}


def test_the_dearest_come_first_and_equals_in_their_order(plan: Plan) -> None:
    agenda = draw_up(plan, Committed())
    for kind in ("main", "replay", "alone", "reference"):
        numbers = getattr(agenda, kind)
        keyed = [(-cost, n) for cost, n in zip(costs(plan, kind, numbers), numbers, strict=True)]
        assert keyed == sorted(keyed)


def test_what_is_committed_is_not_done_again(plan: Plan, committed_run: Store) -> None:
    audited = int(plan.audited[0])
    for shard in ("main/000000", "main/000002", shard_id("replay", audited)):
        committed_run.delete(shard_key(shard))
    agenda = draw_up(plan, scan_committed(committed_run, plan, "a2"))
    assert sorted(agenda.main) == [0, 2]
    assert (agenda.replay, agenda.alone, agenda.reference) == ([audited], [], [])


def test_authors_are_those_of_the_shards_to_be_replayed(plan: Plan, committed_run: Store) -> None:
    replayed = {shard_id("main", int(plan.main_shard_of_batch[b])) for b in plan.audited}
    lost = min(replayed)
    committed_run.delete(shard_key(lost))
    agenda = draw_up(plan, scan_committed(committed_run, plan, "a2"))
    order = plan.shard_ids()
    assert agenda.authors == {shard: f"a1:{order.index(shard) % 2}" for shard in replayed - {lost}}


def test_an_agenda_survives_json(plan: Plan, committed_run: Store) -> None:
    agenda = draw_up(plan, scan_committed(committed_run, plan, "a2"))
    assert Agenda(**json.loads(json.dumps(agenda.to_json()))) == agenda


def test_counts_and_costs_are_those_of_all_shards(plan: Plan) -> None:
    shards = plan.shard_ids()
    assert len(plan.audited) > 0
    assert plan.n_all_shards == len(shards)
    assert plan.total_cost == sum(plan.shard_cost(shard) for shard in shards)
    assert plan.main_costs.tolist() == [plan.shard_cost(shard_id("main", n)) for n in range(plan.n_shards)]
