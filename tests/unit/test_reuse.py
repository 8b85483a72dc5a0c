"""Reuse: what the key of a shard covers, and what is taken over from another run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from synthetic import ATTEMPT, make_loaded, make_plan, make_reduction, make_store, make_verification, put_records

from eval_core.errors import UsageError
from eval_core.plan.files import HEAD_KEY, save_plan
from eval_core.plan.types import Plan, shard_id
from eval_core.reduce import Loaded, load_shards
from eval_core.report.write import write_report
from eval_core.reuse import came_from, describe_machine, reuse_key
from eval_core.shard_file import Origin, Provenance, ShardFile, ShardResult, decode_shard, encode_shard, shard_key
from eval_core.spec import Compute, LmEvalTask
from eval_core.storage import Store
from eval_core.tasks.examples import Generation
from eval_core.verify.checks import check_replay, check_reuse, check_shard_states
from eval_core.work.commit import commit_shard
from eval_core.work.takeover import open_run, take_over

PlanIn = Callable[..., Plan]
MADE_UP = make_plan()
THIRD = ("batch:", '  - {name: more, type: perplexity, data: quiz.jsonl, text: question, bos: "always"}\nbatch:')


def main_shards(plan: Plan) -> list[str]:
    return [shard_id("main", number) for number in range(plan.n_shards)]


def keys(plan: Plan) -> list[str]:
    return [reuse_key(plan, shard) for shard in main_shards(plan)]


# --- the key


@pytest.mark.parametrize(
    "change",
    [
        ("name: tiny", "name: other"),
        ("name: quiz", "name: questions"),
        ("model: model", "model: ./model"),
        ("name: tiny", "name: tiny\nseed: 5"),
        ("micro_batches: 3", "micro_batches: 1"),
        ("audit:", "precision: {reference: float32}\naudit:"),
        ("bootstrap: 20", "bootstrap: 30"),
        ("audit:", "work: {sync_every: 3}\naudit:"),
    ],
)
def test_the_key_leaves_out_what_changes_no_bit(
    change: tuple[str, str], plan: Plan, write_inputs: Callable, plan_in: PlanIn, tmp_path: Path
) -> None:
    assert keys(plan_in(write_inputs(tmp_path / "elsewhere"), change)) == keys(plan)


@pytest.mark.parametrize("name", [f.name for f in fields(Compute)])
def test_the_key_covers_how_the_model_is_computed(name: str) -> None:
    compute = replace(MADE_UP.spec.compute, **{name: "another"})
    assert set(keys(replace(MADE_UP, spec=replace(MADE_UP.spec, compute=compute)))).isdisjoint(keys(MADE_UP))


def test_the_key_covers_weights_config_and_tokenizer(plan: Plan, inputs: Path, plan_in: PlanIn) -> None:
    model = inputs / "model"
    seen = {*keys(plan)}
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.0.weight"][0, 0] = 2
    save_file(tensors, model / "model.safetensors")
    for path, text in (("config.json", '"rope_theta": 5, '), ("tokenizer_config.json", '"added": 1, ')):
        now = set(keys(plan_in(inputs)))
        assert seen.isdisjoint(now)
        seen |= now
        (model / path).write_text("{" + text + (model / path).read_text()[1:])
    assert seen.isdisjoint(keys(plan_in(inputs)))


@given(st.data())
def test_any_other_number_in_a_column_is_another_key(data: st.DataObject) -> None:
    shard = data.draw(st.sampled_from(main_shards(MADE_UP)))
    requests, batches = MADE_UP.shard_requests(shard), MADE_UP.shard_batches(shard)
    table, name, place = data.draw(
        st.one_of(
            st.tuples(st.just("requests"), st.just("tokens"), st.integers(8 * requests.start, 8 * requests.stop - 1)),
            st.tuples(st.just("requests"), st.sampled_from(["n_scored", "shared"]), st.sampled_from(requests)),
            st.tuples(st.just("micro_batches"), st.sampled_from(["rows", "length"]), st.sampled_from(batches)),
        )
    )
    columns = getattr(MADE_UP, table)
    column = getattr(columns, name).copy()
    column[place] += data.draw(st.integers(1, 1000))
    other = replace(MADE_UP, **{table: replace(columns, **{name: column})})
    different = [s for s in main_shards(MADE_UP) if reuse_key(other, s) != reuse_key(MADE_UP, s)]
    assert different == [shard]


def test_requests_that_are_cut_elsewhere_are_another_key() -> None:
    offsets = MADE_UP.requests.offsets.copy()
    offsets[1] -= 1
    other = replace(MADE_UP, requests=replace(MADE_UP.requests, offsets=offsets))
    assert [a == b for a, b in zip(keys(other), keys(MADE_UP), strict=True)] == [False] + [True] * (
        MADE_UP.n_shards - 1
    )
    first = MADE_UP.micro_batches.first_request.copy()
    first[1] -= 1
    other = replace(MADE_UP, micro_batches=replace(MADE_UP.micro_batches, first_request=first))
    assert keys(other)[0] != keys(MADE_UP)[0]


def generating(way: Generation, seed: int = 1, **batch: int | bool) -> str:
    """The key of a shard whose texts are written so."""
    table = replace(MADE_UP.requests, generation=np.zeros_like(MADE_UP.requests.generation))
    spec = replace(MADE_UP.spec, seed=seed, batch=replace(MADE_UP.spec.batch, **batch))
    return reuse_key(replace(MADE_UP, requests=table, generations=(way,), spec=spec), "main/000000")


GREEDY = Generation(max_new=8, until=("\n",), eos=(1,), temperature=0.0, top_k=None, top_p=None, draw=0)


def test_the_key_covers_how_texts_are_generated() -> None:
    others = [
        replace(GREEDY, max_new=9),
        replace(GREEDY, until=("\n\n",)),
        replace(GREEDY, eos=(2,)),
        replace(GREEDY, temperature=0.5),
        replace(GREEDY, top_k=3),
        replace(GREEDY, top_p=0.5),
        replace(GREEDY, draw=1),
    ]
    assert len({generating(way) for way in (GREEDY, *others)} | {keys(MADE_UP)[0]}) == len(others) + 2


def test_the_key_covers_how_many_texts_are_generated_at_once() -> None:
    assert (
        len({generating(GREEDY), generating(GREEDY, generated_tokens=9), generating(GREEDY, share_prefixes=False)}) == 3
    )


def test_the_seed_is_in_the_key_where_it_is_drawn_from() -> None:
    drawn = replace(GREEDY, temperature=0.5)
    assert generating(GREEDY, seed=1) == generating(GREEDY, seed=2)
    assert generating(drawn, seed=1) != generating(drawn, seed=2)


def test_the_key_covers_whether_greedy_decoding_is_asked_for() -> None:
    spec = replace(MADE_UP.spec, tasks=(*MADE_UP.spec.tasks, LmEvalTask(lm_eval="made_up", name="made_up")))
    assert set(keys(replace(MADE_UP, spec=spec))).isdisjoint(keys(MADE_UP))


def tasks_of(plan: Plan, shard: str) -> set[str]:
    """Tasks that ask something of a shard."""
    requests = plan.shard_requests(shard)
    links = np.repeat(np.arange(len(plan.items)), np.diff(plan.items.link_offsets))
    items = links[(plan.items.link_request >= requests.start) & (plan.items.link_request < requests.stop)]
    return {plan.spec.tasks[task].name for task in plan.examples.task[plan.items.example[items]].tolist()}


def test_a_large_task_keeps_its_shards_whatever_else_is_asked(inputs: Path, plan_in: PlanIn) -> None:
    texts = [f"{'word ' * (n % 17)} text {n}" for n in range(60)]
    (inputs / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    short = ("tokens: 96", "tokens: 24")
    plan = plan_in(inputs, short)
    docs = {reuse_key(plan, shard) for shard in main_shards(plan) if "docs" in tasks_of(plan, shard)}
    assert len(docs) > 10
    first = ("tasks:\n", f"tasks:\n{THIRD[1].removesuffix('batch:')}")
    for changes in ([THIRD], [first], [("name: quiz", "limit: 3, name: quiz")]):
        other = plan_in(inputs, short, *changes)
        assert keys(other) != keys(plan)
        assert {reuse_key(other, shard) for shard in main_shards(other) if "docs" in tasks_of(other, shard)} == docs
        assert all(names == {"docs"} for s in main_shards(other) if "docs" in (names := tasks_of(other, s)))


def test_small_tasks_are_mixed(inputs: Path, plan_in: PlanIn) -> None:
    plan = plan_in(inputs, ("tokens: 96", "tokens: 24"), ("shard_cost: 20000", "shard_cost: 1e12"))
    assert [tasks_of(plan, shard) for shard in main_shards(plan)] == [{"docs", "quiz"}]


# --- taking over


@pytest.fixture
def old(
    plan: Plan, made_up_nll: Callable, shard_result: Callable, provenance: Callable[..., Provenance], tmp_path: Path
) -> Store:
    """A run of `plan` with all its main shards, computed by a rank that left a record."""
    store = Store(str(tmp_path / "old"))
    save_plan(plan, store)
    nll = made_up_nll(plan)
    for shard in main_shards(plan):
        commit_shard(store, shard_result(plan, shard, nll), provenance())
    packages = {"torch": "2", "transformers": "5"}
    environment = {"cpu": "Made-Up 9000", "cpu_capability": "AVX2", "packages": packages, "concord": "0.1"}
    store.put("attempts/a1/rank-00000.json", json.dumps({"rank": 0, "environment": environment}).encode())
    store.put("attempts/a1/rank-00001.json", b"torn")
    return store


@pytest.fixture
def new(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "new"))


def written(files: Mapping[str, ShardFile]) -> dict[str, bytes]:
    return {shard: encode_shard(file.result, file.provenance)[0] for shard, file in files.items()}


def loaded_of(store: Store, plan: Plan) -> Loaded:
    return load_shards(store, plan)


def test_shards_are_taken_over_with_their_origin(
    plan: Plan, old: Store, new: Store, inputs: Path, plan_in: PlanIn
) -> None:
    more = plan_in(inputs, THIRD)
    taken = take_over(new, more, main_shards(more), [old.uri])
    assert set(taken) == {shard for shard in main_shards(more) if reuse_key(more, shard) in keys(plan)}
    assert 0 < len(taken) < more.n_shards
    loaded = loaded_of(new, more)
    assert written(loaded.files) == written(taken)
    before = {file.digest: file for file in loaded_of(old, plan).files.values()}
    for shard, file in taken.items():
        origin = file.provenance.origin
        assert origin is not None
        there = before[origin.digest]
        assert (origin.run, origin.plan, origin.shard) == (old.uri, plan.digest, there.result.shard)
        assert origin.machine == "Made-Up 9000 (AVX2), torch 2, transformers 5, concord 0.1"
        assert replace(file.provenance, origin=None) == there.provenance
        assert file.result.nll.tobytes() == there.result.nll.tobytes()
        assert file.result.plan == more.digest
        assert list(file.result.states) == [task.name for task in more.spec.tasks], shard
    totals, _ = check_shard_states(more, loaded)
    assert totals.status == "passed"
    check = check_reuse(more, loaded)
    assert check is not None
    assert check.status == "undecided", "nothing has been replayed yet"


def test_nothing_fits_another_dtype(old: Store, new: Store, inputs: Path, plan_in: PlanIn) -> None:
    other = plan_in(inputs, ("batch:", "compute: {dtype: bfloat16}\nbatch:"))
    assert take_over(new, other, main_shards(other), [old.uri]) == {}
    assert new.list("shards") == []


def damage(store: Store, shard: str) -> None:
    data = bytearray(store.require(shard_key(shard), ""))
    data[data.index(b'"nll":"') + 9] ^= 1
    store.put(shard_key(shard), bytes(data))


def rewrite(store: Store, shard: str, change: Callable[[ShardResult], ShardResult]) -> None:
    file = decode_shard(store.require(shard_key(shard), ""), shard)
    store.put(shard_key(shard), encode_shard(change(file.result), file.provenance)[0])


SPOILED: dict[str, Callable[[Store, str], None]] = {
    "altered": damage,
    "torn": lambda store, shard: store.put(shard_key(shard), store.require(shard_key(shard), "")[:-9]),
    "gone": lambda store, shard: store.delete(shard_key(shard)),
    "foreign": lambda store, shard: rewrite(store, shard, lambda result: replace(result, plan="of another plan")),
    "computed twice with other bits": lambda store, shard: store.put(
        f"violations/{shard.replace('/', '-')}-a1-0.json", b"{}"
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_shard_is_left(how: str, plan: Plan, old: Store, new: Store) -> None:
    SPOILED[how](old, "main/000001")
    taken = take_over(new, plan, main_shards(plan), [old.uri])
    assert set(main_shards(plan)) - set(taken) == {"main/000001"}
    assert new.get(shard_key("main/000001")) is None


def test_the_next_run_gives_what_the_first_has_not(plan: Plan, old: Store, new: Store, tmp_path: Path) -> None:
    other = Store(str(tmp_path / "other"))
    take_over(other, replace(plan, spec=replace(plan.spec, seed=9)), main_shards(plan), [old.uri])
    save_plan(replace(plan, spec=replace(plan.spec, seed=9)), other)
    damage(old, "main/000001")
    taken = take_over(new, plan, main_shards(plan), [old.uri, other.uri])
    assert set(taken) == set(main_shards(plan))


def test_the_origin_is_the_run_that_computed(plan: Plan, old: Store, new: Store, tmp_path: Path) -> None:
    between = Store(str(tmp_path / "between"))
    save_plan(plan, between)
    first = take_over(between, plan, main_shards(plan), [old.uri])
    again = take_over(new, plan, main_shards(plan), [between.uri])
    assert written(again) == written(first)
    assert all(file.provenance.origin and file.provenance.origin.run == old.uri for file in again.values())


def test_only_what_is_missing_is_taken(plan: Plan, old: Store, new: Store) -> None:
    assert set(take_over(new, plan, ["main/000002"], [old.uri])) == {"main/000002"}
    assert new.list("shards") == [shard_key("main/000002")]


@pytest.mark.parametrize("content", [None, b"{}"])
def test_what_is_no_run(content: bytes | None, plan: Plan, new: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--reuse .*nowhere: there is no run"):
        open_run(str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    other = Store(str(tmp_path / "other"))
    if content is not None:
        other.put(HEAD_KEY, content)
    with pytest.raises(UsageError, match=f"--reuse {other.uri}: "):
        take_over(new, plan, main_shards(plan), [other.uri])


# --- verification


def with_origins(plan: Plan, old: Store, new: Store, changes: Mapping[str, str]) -> Loaded:
    """All main shards reused, `changes` made to the first one's origin; all replays as they should be."""
    take_over(new, plan, main_shards(plan), [old.uri])
    files = dict(loaded_of(new, plan).files)
    file = files["main/000000"]
    assert file.provenance.origin is not None
    origin = replace(file.provenance.origin, **changes)  # type: ignore[arg-type]
    files["main/000000"] = replace(file, provenance=replace(file.provenance, origin=origin))
    for batch in plan.audited.tolist():
        main = files[shard_id("main", int(plan.main_shard_of_batch[batch]))]
        start = plan.shard_requests(main.result.shard).start
        own = plan.shard_requests(shard_id("replay", batch))
        offsets = np.concatenate([[0], np.cumsum(plan.requests.n_scored[start : own.stop], dtype=np.int64)])
        nll = main.result.nll[offsets[own.start - start] : offsets[own.stop - start]]
        replay = replace(main.result, shard=shard_id("replay", batch), nll=nll)
        files[replay.shard] = replace(
            main, result=replay, provenance=replace(main.provenance, attempt="a2", origin=None)
        )
    return Loaded(files=files, damaged={})


def test_verification_knows_the_origin(plan: Plan, old: Store, new: Store) -> None:
    check = check_reuse(plan, with_origins(plan, old, new, {}))
    assert check is not None
    assert (check.status, check.found) == (
        "passed",
        f"{plan.n_shards} with key and rows, {len(plan.audited)} micro-batches replayed",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": "of other work"}, "main/000000: main/000000 of .*old is other work"),
        ({"digest": "of other rows"}, "main/000000: its rows are not those of main/000000 of .*old"),
        ({"plan": "another"}, "main/000000: its rows are not those"),
    ],
)
def test_a_wrong_origin_fails(change: dict[str, str], said: str, plan: Plan, old: Store, new: Store) -> None:
    check = check_reuse(plan, with_origins(plan, old, new, change))
    assert check is not None
    assert check.status == "failed"
    (line,) = check.details
    assert re.match(said, line)


def test_a_replay_that_differs_names_the_run(plan: Plan, old: Store, new: Store) -> None:
    loaded = with_origins(plan, old, new, {})
    shard = shard_id("replay", int(plan.audited[0]))
    file = loaded.files[shard]
    other = replace(file, result=replace(file.result, nll=np.nextafter(file.result.nll, np.float32(9))))
    check = check_replay(plan, replace(loaded, files={**loaded.files, shard: other}))
    assert check.status == "failed"
    assert f"on left (reused from {old.uri})" in check.details[0]


def test_without_reuse_there_is_no_check() -> None:
    assert check_reuse(MADE_UP, make_loaded(MADE_UP)) is None


# --- the parts


def test_a_file_without_an_origin_is_written_as_before(provenance: Callable[..., Provenance]) -> None:
    assert "origin" not in provenance().to_json()
    assert Provenance.from_json(provenance().to_json()) == provenance()


def test_rows_and_totals_give_the_digest_again(plan: Plan, old: Store, new: Store) -> None:
    file = take_over(new, plan, ["main/000000"], [old.uri])["main/000000"]
    origin = file.provenance.origin
    assert origin is not None
    assert came_from(file.result, origin)
    assert not came_from(replace(file.result, nll=file.result.nll * 2), origin)
    assert not came_from(file.result, replace(origin, states={}))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {
                "cpu": "C",
                "gpu": "G",
                "cpu_capability": "A",
                "packages": {"torch": "1", "transformers": "2"},
                "concord": "3",
            },
            "G (A), torch 1, transformers 2, concord 3",
        ),
        ({"cpu": "C"}, ""),
        ("text", ""),
    ],
)
def test_a_machine_in_a_line(environment: object, said: str) -> None:
    assert describe_machine(environment) == said


# --- the reports


def some_reused(loaded: Loaded, machine: str) -> Loaded:
    """`loaded` with its first two main shards from another run."""
    files = dict(loaded.files)
    for shard in ("main/000000", "main/000001"):
        origin = Origin(
            run="runs/<old>",
            plan="ef" * 32,
            shard=shard,
            digest="",
            states={},
            key=reuse_key(MADE_UP, shard),
            machine=machine,
        )
        provenance = replace(files[shard].provenance, attempt="20250101T000000-old", origin=origin)
        files[shard] = replace(files[shard], provenance=provenance)
    return Loaded(files=files, damaged={})


@pytest.mark.parametrize(
    ("machine", "warned"), [("Made-Up 9000 (AVX2), torch 2.13.0, transformers 5, concord 0.1", False), ("", True)]
)
def test_the_reports_say_what_was_reused(machine: str, warned: bool, tmp_path: Path) -> None:
    loaded = some_reused(make_loaded(MADE_UP), machine)
    reduction = make_reduction(MADE_UP, loaded)
    store = make_store(tmp_path / "run")
    packages = {"torch": "2.13.0", "transformers": "5"}
    put_records(
        store,
        MADE_UP,
        make_loaded(MADE_UP),
        environments=[{"cpu_capability": "AVX2", "packages": packages, "concord": "0.1"}],
    )
    write_report(store, MADE_UP, loaded, reduction, make_verification(MADE_UP, reduction))
    requests = len(MADE_UP.shard_requests("main/000000")) + len(MADE_UP.shard_requests("main/000001"))
    cost = 4 / len(MADE_UP.micro_batches)
    results = json.loads(store.require("results.json", ""))
    assert results["concord"]["reuse"] == [
        {"run": "runs/<old>", "plan": "ef" * 32, "shards": 2, "requests": requests, "cost": cost}
    ]
    sentence = (
        f"2 of {MADE_UP.n_shards} shards ({requests} requests, {100 * cost:.1f} % of the cost) were not computed here"
    )
    place = f"computed on node-a, node-b: {machine or 'a machine that left no record'}."
    for key in ("report.md", "report.html"):
        text = store.require(key, "").decode()
        assert sentence in text
        assert f"{sentence} but taken over from runs/&lt;old&gt;, {place}" in text
    page = store.require("report.html", "").decode()
    assert ("Reused shards were computed on another machine" in page) is warned
    assert "20250101T000000-old" not in page, "an attempt of the other run is no attempt of this one"
    said = json.loads(store.require("provenance.json", ""))
    assert said["reused"][0]["machines"] == [machine]
    assert [attempt["attempt"] for attempt in said["attempts"]] == [ATTEMPT]
