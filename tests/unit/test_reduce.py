"""From committed shards to the numbers, checked against the same numbers computed by plain loops."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_core.errors import CorruptFileError, IncompleteRunError, SpecError, StorageError
from eval_core.exact import ExactSum
from eval_core.metrics.states import ChoiceState, merge_states
from eval_core.plan.types import Plan
from eval_core.reduce import REDUCTION_KEY, Reduction, load_reduction, load_shards, reduce_run
from eval_core.shard_file import Provenance, encode_shard, shard_key
from eval_core.storage import Store

Run = Callable[..., Store]


@pytest.fixture
def run(tmp_path: Path, provenance: Callable[..., Provenance], made_up_nll: Callable, shard_result: Callable) -> Run:
    """Commit shards of a plan, each by some host: `run(plan, nll=..., hosts=["a", "b"])`."""
    count = iter(range(1000))

    def commit(
        plan: Plan, nll: np.ndarray | None = None, hosts: tuple[str, ...] = ("left",), shards: list[str] | None = None
    ) -> Store:
        store = Store(str(tmp_path / f"run{next(count)}"))
        scores = made_up_nll(plan) if nll is None else nll
        for number, shard in enumerate(plan.shard_ids() if shards is None else shards):
            origin = provenance(host=hosts[number % len(hosts)], rank=number, finished=float(number))
            store.put_new(shard_key(shard), encode_shard(shard_result(plan, shard, scores), origin)[0])
        return store

    return commit


def reduced(store: Store, plan: Plan) -> Reduction:
    return reduce_run(store, plan, load_shards(store, plan))


@pytest.fixture
def scattered(inputs: Path, plan_in: Callable[..., Plan]) -> Plan:
    """A plan with many shards, in which the answers of some questions lie in several."""
    plan = plan_in(inputs, ("tokens: 96, shard_cost: 20000", "tokens: 40, shard_cost: 1"))
    assert len(plan.items_of(-1)) > 1
    assert plan.n_shards > 10
    return plan


# --- without the harness


def test_tasks_of_ones_own_need_no_harness(run: Run, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    reduction = reduced(run(plan), plan)
    assert set(reduction.metrics) == {task.name for task in plan.spec.tasks}
    assert reduction.harness == {}


def test_tasks_of_the_harness_name_the_extra_that_is_missing(
    inputs: Path, plan_in: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "lm_eval" or name.startswith("lm_eval.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SpecError, match=r"pip install 'concord-eval\[lm-eval\]'"):
        plan_in(inputs, ("tasks:", "tasks:\n  - {lm_eval: arc_easy}"))


# --- the numbers


def by_plain_loops(plan: Plan, nll: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the two tasks sum up to, from the plan's tables and nothing of the metrics' code."""
    starts = np.concatenate([[0], np.cumsum(plan.requests.n_scored)]).tolist()
    tokens: list[float] = []
    hits: Counter[str] = Counter()
    for item, example in enumerate(plan.items.example.tolist()):
        links = range(int(plan.items.link_offsets[item]), int(plan.items.link_offsets[item + 1]))
        parts = [nll[starts[r] : starts[r + 1]].tolist() for r in (int(plan.items.link_request[k]) for k in links)]
        if plan.examples.task[example] == 0:
            tokens += parts[0]
            continue
        hits["examples"] += 1
        scores = [-math.fsum(part) for part in parts]
        answers = json.loads(plan.examples.targets[example])
        if not all(map(math.isfinite, scores)):
            hits["nonfinite"] += 1
            continue
        per = {
            "correct": [1] * len(answers),
            "correct_norm": [len(a) for a in answers],
            "correct_bytes": [len(a.encode()) for a in answers],
        }
        for name, lengths in per.items():
            each = [score / length for score, length in zip(scores, lengths, strict=True)]
            hits[name] += each.index(max(each)) == plan.examples.gold[example]
    texts = [json.loads(d)["text"] for d, t in zip(plan.examples.documents, plan.examples.task, strict=True) if t == 0]
    docs = {
        "nll": tokens,
        "documents": len(texts),
        "words": sum(len(text.split()) + text[0].isspace() + text[-1].isspace() for text in texts),
        "bytes": sum(len(text.encode()) for text in texts),
    }
    return docs, hits


@pytest.mark.parametrize("seed", range(3))
def test_states_are_those_of_plain_loops(seed: int, scattered: Plan, run: Run, made_up_nll: Callable) -> None:
    nll = made_up_nll(scattered, seed)
    docs, hits = by_plain_loops(scattered, nll)
    states = reduced(run(scattered, nll), scattered).states
    assert states["quiz"] == ChoiceState(**hits)
    assert 0 < hits["correct"] < hits["examples"]
    assert states["docs"].nll == ExactSum.of(docs["nll"])
    assert (states["docs"].tokens, states["docs"].documents) == (len(docs["nll"]), docs["documents"])
    assert (states["docs"].words, states["docs"].bytes) == (docs["words"], docs["bytes"])


def test_metrics_are_the_values_of_the_states(plan: Plan, run: Run) -> None:
    reduction = reduced(run(plan), plan)
    for task, state in reduction.states.items():
        assert {name: metric.value for name, metric in reduction.metrics[task].items()} == state.value()
    quiz, docs = reduction.metrics["quiz"]["acc"], reduction.metrics["docs"]["loss"]
    assert (quiz.n, docs.n) == (8, 5)
    assert quiz.stderr == pytest.approx(math.sqrt(quiz.value * (1 - quiz.value) / 7), rel=1e-12)
    assert docs.stderr > 0


def test_every_token_of_the_documents_is_counted(plan: Plan, run: Run) -> None:
    ones = np.ones(int(plan.requests.n_scored.sum()), dtype=np.float32)
    metrics = reduced(run(plan, ones), plan).metrics["docs"]
    assert metrics["loss"].value == 1.0
    assert metrics["loss"].stderr == pytest.approx(0, abs=1e-12)


def test_a_duplicate_counts_for_each_of_its_examples(inputs: Path, plan_in: Callable[..., Plan], run: Run) -> None:
    line = (inputs / "quiz.jsonl").read_text().splitlines()[0]
    (inputs / "quiz.jsonl").write_text(f"{line}\n" * 5)
    plan = plan_in(inputs)
    state = reduced(run(plan), plan).states["quiz"]
    assert state.examples == 5
    assert {state.correct, state.correct_norm, state.correct_bytes} <= {0, 5}


@pytest.mark.parametrize(
    ("nll", "chosen"),
    [
        ((8.0, 9.0), {"acc": 0, "acc_norm": 1, "acc_bytes": 1}),  # 2.0 and 1.5 a character, 2.0 and 0.75 a byte
        ((5.0, 9.0), {"acc": 0, "acc_norm": 0, "acc_bytes": 1}),  # 1.25 and 1.5, 1.25 and 0.75
        ((5.0, 18.0), {"acc": 0, "acc_norm": 0, "acc_bytes": 0}),  # 1.25 and 3.0, 1.25 and 1.5
        ((18.0, 9.0), {"acc": 1, "acc_norm": 1, "acc_bytes": 1}),
        ((6.0, 6.0), {"acc": 0, "acc_norm": 1, "acc_bytes": 1}),  # of equals the first
    ],
)
def test_answers_are_chosen_as_a_whole_by_character_and_by_byte(
    nll: tuple[float, float],
    chosen: dict[str, int],
    inputs: Path,
    plan_in: Callable[..., Plan],
    run: Run,
) -> None:
    row = {"question": "?", "choices": ["four", "éèêëàâ"], "answer": 0}
    (inputs / "quiz.jsonl").write_text(json.dumps(row) + "\n")
    plan = plan_in(inputs)
    scores = np.zeros(int(plan.requests.n_scored.sum()), dtype=np.float32)
    (item,) = np.flatnonzero(plan.examples.task[plan.items.example] == 1)
    for link, value in zip(range(*plan.items.link_offsets[item : item + 2]), nll, strict=True):
        scores[plan.requests.n_scored[: plan.items.link_request[link]].sum()] = value
    right = {name: metric.value for name, metric in reduced(run(plan, scores), plan).metrics["quiz"].items()}
    assert right == {name: float(answer == 0) for name, answer in chosen.items()}


# --- grouping and origin


def test_the_digest_does_not_depend_on_who_computed_what(plan: Plan, run: Run) -> None:
    alone = reduced(run(plan), plan)
    together = reduced(run(plan, hosts=("a", "b", "c")), plan)
    assert together.digest == alone.digest
    assert (set(alone.hosts), set(together.hosts)) == ({"left"}, {"a", "b", "c"})


def test_the_digest_does_not_depend_on_the_audit(plan: Plan, run: Run) -> None:
    main = [shard for shard in plan.shard_ids() if shard.startswith("main/")]
    assert reduced(run(plan, shards=main), plan).digest == reduced(run(plan), plan).digest


def test_the_numbers_do_not_depend_on_how_the_work_is_cut(
    inputs: Path, plan_in: Callable[..., Plan], scattered: Plan, run: Run, made_up_nll: Callable
) -> None:
    """The same token of the same request has the same value in both plans, which order their requests differently."""
    whole = plan_in(inputs, ("tokens: 96, shard_cost: 20000", "tokens: 5000, shard_cost: 1e15"))
    assert whole.n_shards == 1
    assert whole.items_of(-1).size == 0
    metrics = []
    for plan in (whole, scattered):
        bounds = plan.requests.offsets.tolist()
        parts = [
            np.random.default_rng(plan.requests.tokens[a:b]).exponential(2.0, n).astype(np.float32)
            for a, b, n in zip(bounds[:-1], bounds[1:], plan.requests.n_scored.tolist(), strict=True)
        ]
        metrics.append(reduced(run(plan, np.concatenate(parts)), plan).metrics)
    assert metrics[0] == metrics[1]


def test_hosts_and_spanning_items_add_up_to_the_states(scattered: Plan, run: Run) -> None:
    reduction = reduced(run(scattered, hosts=("a", "b")), scattered)
    assert reduction.spanning["quiz"].examples > 0
    total = dict(reduction.spanning)
    for states in reduction.hosts.values():
        total = merge_states(total, states)
    assert total == reduction.states
    assert total["quiz"].examples == 8


def test_one_bit_of_one_token_changes_the_digest(plan: Plan, run: Run, made_up_nll: Callable) -> None:
    nll = made_up_nll(plan)
    other = nll.copy()
    other[3] = np.nextafter(other[3], np.float32(100))
    assert reduced(run(plan, other), plan).digest != reduced(run(plan, nll), plan).digest


# --- what is not finite


def token_of(plan: Plan, task: str) -> int:
    """The first scored token of the first item of `task`."""
    number = [t.name for t in plan.spec.tasks].index(task)
    item = int(np.flatnonzero(plan.examples.task[plan.items.example] == number)[0])
    request = int(plan.items.link_request[plan.items.link_offsets[item]])
    return int(plan.requests.n_scored[:request].sum())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_token_that_is_not_finite_makes_its_question_wrong(
    value: float, scattered: Plan, run: Run, made_up_nll: Callable
) -> None:
    nll = made_up_nll(scattered)
    nll[token_of(scattered, "quiz")] = value
    _, hits = by_plain_loops(scattered, nll)
    reduction = reduced(run(scattered, nll), scattered)
    assert hits["nonfinite"] == 1
    assert reduction.states["quiz"] == ChoiceState(**hits)
    assert math.isfinite(reduction.metrics["quiz"]["acc"].value)


def test_a_question_with_both_infinities_is_wrong_too(scattered: Plan, run: Run, made_up_nll: Callable) -> None:
    nll = made_up_nll(scattered)
    first = token_of(scattered, "quiz")
    nll[first : first + 2] = math.inf, -math.inf
    assert reduced(run(scattered, nll), scattered).states["quiz"].nonfinite == 1


def test_a_nan_in_a_document_shows_in_every_value_and_in_json(plan: Plan, run: Run, made_up_nll: Callable) -> None:
    nll = made_up_nll(plan)
    nll[token_of(plan, "docs")] = math.nan
    store = run(plan, nll)
    reduction = reduced(store, plan)
    assert reduction.states["docs"].nll.nan == 1
    assert all(math.isnan(m.value) and math.isnan(m.stderr) for m in reduction.metrics["docs"].values())
    assert load_reduction(store).digest == reduction.digest


# --- storage


def test_a_reduction_comes_back_as_it_was(plan: Plan, run: Run) -> None:
    store = run(plan, hosts=("a", "b"))
    reduction = reduced(store, plan)
    assert load_reduction(store) == reduction
    assert json.loads(store.require(REDUCTION_KEY, ""))["digest"] == reduction.digest


def test_reducing_again_writes_the_same_bytes(plan: Plan, run: Run) -> None:
    store = run(plan)
    reduced(store, plan)
    before = store.get(REDUCTION_KEY)
    reduced(store, plan)
    assert store.get(REDUCTION_KEY) == before


def test_a_run_that_is_not_reduced(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="reduce first: concord reduce --run"):
        load_reduction(Store(str(tmp_path)))


def test_missing_and_damaged_shards_leave_no_number(plan: Plan, run: Run) -> None:
    store = run(plan)
    store.delete(shard_key("main/000000"))
    store.put(shard_key("main/000001"), b"torn")
    with pytest.raises(IncompleteRunError) as caught:
        reduced(store, plan)
    assert f"2 of {plan.n_shards} shards are missing (1 of them damaged)" in str(caught.value)
    assert f"concord resume --run {store.uri}" in str(caught.value)
    assert store.get(REDUCTION_KEY) is None


def test_shards_of_another_plan_are_damaged(plan: Plan, run: Run) -> None:
    other = replace(plan, tokenizer="another")
    assert other.digest != plan.digest
    loaded = load_shards(run(other), plan)
    assert loaded.files == {}
    assert set(loaded.damaged) == set(plan.shard_ids())
    assert "belongs to another plan" in loaded.damaged["main/000000"]


def altered(data: dict[str, Any], how: str) -> None:
    if how == "value":
        data["metrics"]["quiz"]["acc"][0] = (0.123).hex()
    elif how == "stderr":
        data["metrics"]["docs"]["loss"][1] = (0.0).hex()
    elif how == "n":
        data["metrics"]["quiz"]["acc"][2] += 1
    elif how == "state":
        data["states"]["docs"]["tokens"] += 1
    elif how == "spanning":
        data["spanning"]["quiz"]["correct"] += 1
    elif how == "shard":
        data["shards"]["main/000000"] = "0" * 64
    elif how == "plan":
        data["plan"] = "0" * 64
    else:
        del data[how]


@pytest.mark.parametrize(
    "how", ["value", "stderr", "n", "state", "spanning", "shard", "plan", "metrics", "digest", "hosts"]
)
def test_an_altered_reduction_is_detected(how: str, plan: Plan, run: Run) -> None:
    store = run(plan)
    reduced(store, plan)
    data = json.loads(store.require(REDUCTION_KEY, ""))
    altered(data, how)
    store.put(REDUCTION_KEY, json.dumps(data).encode())
    with pytest.raises(CorruptFileError, match=r"reduction\.json: .*; reduce again: concord reduce"):
        load_reduction(store)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"plan": 1}', b'"text"', b"\xff"])
def test_what_is_no_reduction(content: bytes, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.put(REDUCTION_KEY, content)
    with pytest.raises(CorruptFileError, match=r"reduction\.json: not a whole file"):
        load_reduction(store)


@pytest.fixture(scope="module")
def reduction(
    plan: Plan,
    made_up_nll: Callable,
    shard_result: Callable,
    provenance: Callable[..., Provenance],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Store, str]:
    """A run that is reduced, and the reduction's digest."""
    store = Store(str(tmp_path_factory.mktemp("reduced")))
    for shard in plan.shard_ids():
        store.put(shard_key(shard), encode_shard(shard_result(plan, shard, made_up_nll(plan)), provenance())[0])
    return store, reduced(store, plan).digest


@settings(max_examples=100)
@given(data=st.data())
def test_a_flipped_byte_of_a_reduction_is_detected_or_harmless(
    data: st.DataObject, reduction: tuple[Store, str]
) -> None:
    store, digest = reduction
    intact = store.require(REDUCTION_KEY, "")
    flipped = bytearray(intact)
    flipped[data.draw(st.integers(0, len(intact) - 1), "at")] ^= data.draw(st.integers(1, 255), "mask")
    store.put(REDUCTION_KEY, bytes(flipped))
    try:
        assert load_reduction(store).digest == digest
    except CorruptFileError:
        pass
    finally:
        store.put(REDUCTION_KEY, intact)


# --- seeds


@pytest.mark.parametrize("seed", [0, 1 << 70, -1])
def test_any_seed_that_a_spec_may_have_can_be_reduced(
    seed: int, inputs: Path, plan_in: Callable[..., Plan], run: Run
) -> None:
    plan = plan_in(inputs, ("name: tiny", f"name: tiny\nseed: {seed}"))
    assert reduced(run(plan), plan).metrics["docs"]["loss"].stderr > 0
