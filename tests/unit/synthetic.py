"""A small finished run without a model: two tasks, made-up log-likelihoods, fixed times and hosts.

All log-likelihoods are multiples of 1/64, so sums are exact on every machine; what a machine could round in another
way (standard errors, intervals) is given as a literal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce as fold
from pathlib import Path
from typing import Any

import numpy as np

from eval_core.canonical import canonical_json
from eval_core.metrics.score import Scores, score_items
from eval_core.metrics.states import HIGHER_IS_BETTER, Metric, merge_states, states_to_json
from eval_core.model_files import ModelShape
from eval_core.plan.types import ExampleTable, ItemTable, MicroBatchTable, Plan, RequestTable, shard_id
from eval_core.reduce import Loaded, Reduction
from eval_core.shard_file import Provenance, ShardFile, ShardResult, decode_shard, encode_shard, shard_key
from eval_core.spec import Audit, Compute, EvalSpec, MultipleChoiceTask, PerplexityTask
from eval_core.storage import Store
from eval_core.verify.types import Check, Flip, Interval, TaskPrecision, Verification

URI = "s3://bucket/runs/synthetic"
ATTEMPT = "20260102T030405-aaaaaaaa"
SHAPE = ModelShape(
    bfloat16=False,
    body_parameters=10,
    hidden_size=2,
    num_layers=3,
    vocab_size=7,
    max_positions=None,
    total_parameters=24,
    model_type="llama",
    sliding_window=None,
)
START = 1767323045.0  # 2026-01-02 03:04:05 UTC
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "To be, or not to be.",
    "A third document, the longest of all three.",
)
QUESTIONS = (
    ("What is two and two?", ("four", "five", "a number"), 0),
    ("Which is a colour?", ("loud", "blue", "heavy"), 1),
    ("What barks?", ("a cat", "a tree", "a dog"), 2),
    ("What comes after Monday?", ("Tuesday", "June", "noon"), 0),
)
_WINDOWS = (2, 1, 3)
_TOKENS_OF_WINDOW = 5


def make_plan(
    texts: Sequence[str] = TEXTS, questions: Sequence[tuple[str, Sequence[str], int]] = QUESTIONS, **changes: Any
) -> Plan:
    """A plan of two tasks: `docs` (three documents of 2, 1 and 3 windows) and `quiz` (one request per answer).

    Two requests are a micro-batch, two micro-batches a shard; the last but one answer is no request of its own, but
    that of the answer before it. `changes` are keys of the spec.
    """
    given: dict[str, Any] = {
        "name": "synthetic",
        "model": "models/made-up",
        "tasks": (
            PerplexityTask(type="perplexity", name="docs", data="docs.jsonl"),
            MultipleChoiceTask(
                type="multiple_choice", name="quiz", data="quiz.jsonl", prompt="{question}\n", num_fewshot=2
            ),
        ),
        "compute": Compute(dtype="float32"),
        "audit": Audit(micro_batches=2),
    }
    spec = EvalSpec(**(given | changes))
    items = [[k] for k in range(sum(_WINDOWS))]
    n_requests = len(items)
    for _, answers, _ in questions:
        items.append(list(range(n_requests, n_requests + len(answers))))
        n_requests += len(answers)
    items[-1][-2:] = [n_requests - 2, n_requests - 2]
    n_requests -= 1
    n_scored = np.full(n_requests, 2, dtype=np.int32)
    n_scored[: sum(_WINDOWS)] = _TOKENS_OF_WINDOW
    example_of = np.repeat(np.arange(len(texts)), _WINDOWS).tolist() + [len(texts) + i for i in range(len(questions))]
    sizes = [len(answer) for _, answers, _ in questions for answer in answers]
    links = [0] * sum(_WINDOWS) + sizes
    batches = -(-n_requests // 2)
    n = len(texts) + len(questions)
    return Plan(
        spec=spec,
        model={
            "files": {"model.safetensors": {"size": 123456, "sha256": "ab" * 32}},
            "vocab_size": 100,
            "total_parameters": 61728,
            "max_length": 64,
        },
        tokenizer="cd" * 32,
        requests=RequestTable(
            tokens=np.arange(8 * n_requests, dtype=np.int32) % 100,
            offsets=np.arange(n_requests + 1, dtype=np.int64) * 8,
            n_scored=n_scored,
            generation=np.full(n_requests, -1, dtype=np.int32),
            shared=np.zeros(n_requests, dtype=np.int32),
        ),
        micro_batches=MicroBatchTable(
            first_request=np.minimum(np.arange(batches + 1, dtype=np.int64) * 2, n_requests),
            rows=np.minimum(n_requests - 2 * np.arange(batches, dtype=np.int32), 2).astype(np.int32),
            length=np.full(batches, 8, dtype=np.int32),
            cost=np.full(batches, 1000, dtype=np.int64),
            first_of_shard=np.minimum(np.arange(-(-batches // 2) + 1, dtype=np.int64) * 2, batches),
        ),
        items=ItemTable(
            example=np.array(example_of, dtype=np.int64),
            first=np.array([i == 0 or example_of[i] != example_of[i - 1] for i in range(len(items))], dtype=np.int32),
            link_offsets=np.concatenate([[0], np.cumsum([len(item) for item in items])]).astype(np.int64),
            link_request=np.array([request for item in items for request in item], dtype=np.int64),
            link_characters=np.array(links, dtype=np.int32),
            link_bytes=np.array(links, dtype=np.int32),
        ),
        examples=ExampleTable(
            task=np.array([0] * len(texts) + [1] * len(questions), dtype=np.int32),
            gold=np.array([-1] * len(texts) + [gold for _, _, gold in questions], dtype=np.int32),
            truncated=np.array([0] * (n - 1) + [7], dtype=np.int32),
            rejoined=np.array([0] * (n - 2) + [1, 0], dtype=np.int32),
            words=np.array([len(text.split()) for text in texts] + [0] * len(questions), dtype=np.int32),
            bytes=np.array(
                [len(text.encode("utf-8", "surrogatepass")) for text in texts] + [0] * len(questions), dtype=np.int64
            ),
            seed=np.arange(n, dtype=np.int64) + 1000,
            documents=[_json({"text": text}) for text in texts]
            + [_json({"question": q, "choices": list(answers), "answer": gold}) for q, answers, gold in questions],
            prompts=[""] * len(texts) + [f"{question}\n" for question, _, _ in questions],
            targets=[_json([text]) for text in texts] + [_json(list(answers)) for _, answers, _ in questions],
        ),
        audited=np.array([1, 5], dtype=np.int64),
        generations=(),
        n_requested=n_requests + 1,
        locations={"model": "/models/made-up", "base": "/specs"},
    )


def make_loaded(
    plan: Plan,
    *,
    ranks: int = 2,
    hosts: Sequence[str] = ("node-a", "node-b"),
    attempt: str = ATTEMPT,
    start: float = START,
) -> Loaded:
    """Every shard of the plan, computed in turn by `ranks` ranks: equal results for any number of them."""
    everything = _made_up(int(plan.requests.n_scored.sum()))
    offsets = np.concatenate([[0], np.cumsum(plan.requests.n_scored, dtype=np.int64)])
    files = {}
    for turn, shard in enumerate(plan.shard_ids()):
        requests = plan.shard_requests(shard)
        nll = everything[offsets[requests.start] : offsets[requests.stop]]
        states = {}
        if shard.startswith("main/"):
            scores = Scores.of(plan, requests, nll)
            states = score_items(plan, plan.items_of(int(shard.removeprefix("main/"))), scores)
        if shard.startswith("reference/"):
            nll = nll.astype(np.float64)
        rank, round_ = turn % ranks, turn // ranks
        provenance = Provenance(
            attempt=attempt,
            rank=rank,
            world_size=ranks,
            host=hosts[rank % len(hosts)],
            node=rank % len(hosts),
            device="cpu",
            started=start + 2.0 * round_ + 0.25 * rank,
            finished=start + 2.0 * round_ + 0.25 * rank + 1.5,
            tokens=8 * len(requests),
        )
        data, _ = encode_shard(ShardResult(plan=plan.digest, shard=shard, nll=nll, states=states), provenance)
        files[shard] = decode_shard(data, shard_key(shard))
    return Loaded(files=files, damaged={})


def make_reduction(plan: Plan, loaded: Loaded) -> Reduction:
    """The exact totals of `loaded`, with standard errors that are given and not computed."""
    main = [shard_id("main", i) for i in range(plan.n_shards)]
    parts = [loaded.files[shard].result.nll for shard in main]
    scores = Scores.of(plan, range(len(plan.requests)), np.concatenate(parts))
    spanning = score_items(plan, plan.items_of(-1), scores)
    hosts: dict[str, Any] = {}
    for shard in main:
        file = loaded.files[shard]
        hosts[file.provenance.host] = merge_states(hosts.get(file.provenance.host, {}), file.result.states)
    states = fold(merge_states, hosts.values(), spanning)
    counts = {task.name: int(np.count_nonzero(plan.examples.task == i)) for i, task in enumerate(plan.spec.tasks)}
    return Reduction(
        plan=plan.digest,
        shards={shard: loaded.files[shard].digest for shard in main},
        states=states,
        spanning=spanning,
        hosts=hosts,
        metrics={
            task: {
                name: Metric(value=value, stderr=0.0625, n=counts[task], higher_is_better=HIGHER_IS_BETTER[name])
                for name, value in state.value().items()
            }
            for task, state in states.items()
        },
        harness={},
    )


def make_verification(
    plan: Plan, reduction: Reduction, *, failed: bool = False, undecided: bool = False
) -> Verification:
    """Three checks, of which one can fail and one be undecided, and a measured precision."""
    error = Interval(estimate=-6.4e-06, low=-2.1e-05, high=8.2e-06, confidence=0.95)
    checks = (
        Check(
            name="coverage",
            question="Is every example counted exactly once?",
            status="failed" if failed else "passed",
            expected=f"{len(plan.examples)} examples, each once",
            found=f"{len(plan.examples) - failed} examples in the totals",
            details=("docs example 1 is not whole",) if failed else (),
        ),
        Check(
            name="replay",
            question="Do micro-batches that were computed a second time have the same bits?",
            status="undecided" if undecided else "passed",
            expected="2 replayed micro-batches, equal to the bit",
            found="0 equal, 0 differ, 2 missing" if undecided else "2 equal, 0 differ, 0 missing",
        ),
        Check(
            name="precision/answers",
            question="Which answers would float64 change?",
            status="passed",
            expected="reported, not judged",
            found="quiz acc: 1 of 2",
        ),
    )
    return Verification(
        plan=plan.digest,
        reduction=reduction.digest,
        checks=checks,
        dtype="float32",
        reference_dtype="float64",
        overall=error,
        precision={
            "docs": TaskPrecision(
                tokens=10,
                examples=0,
                relative_error=replace(error, low=float("-inf"), high=float("inf")),
                largest_token_error=3.5e-05,
                largest_mode_difference=6.0e-06,
                flip_rate={},
                flipped=(),
            ),
            "quiz": TaskPrecision(
                tokens=4,
                examples=2,
                relative_error=error,
                largest_token_error=1.25e-05,
                largest_mode_difference=None,
                flip_rate={"acc": Interval(estimate=0.5, low=0.0125, high=0.9875, confidence=0.95)},
                flipped=(Flip(example=1, metric="acc", run=0, reference=1, margin=1e-06),),
            ),
        },
    )


def put_records(store: Store, plan: Plan, loaded: Loaded, *, environments: Sequence[Mapping[str, Any]] = ({},)) -> None:
    """What the ranks of `loaded` would have left below attempts/ and progress/; rank i in environment i modulo."""
    by_rank: dict[int, list[ShardFile]] = {}
    for file in loaded.files.values():
        by_rank.setdefault(file.provenance.rank, []).append(file)
    usual = {"python": "3.11.7", "cpu": "Made-Up 9000", "threads": 1, "packages": {"torch": "2.13.0"}, "variables": {}}
    for rank, files in by_rank.items():
        origin = files[0].provenance
        record = {
            "rank": rank,
            "world_size": origin.world_size,
            "host": origin.host,
            "node": origin.node,
            "outcomes": {"committed": len(files), "duplicate": 0, "violation": 0},
            "busy_seconds": 1.5 * len(files),
            "environment": usual | dict(environments[rank % len(environments)]),
        }
        store.put(f"attempts/{origin.attempt}/rank-{rank:05d}.json", json.dumps(record).encode())
    reduced = {
        "attempt": origin.attempt,
        "plan": plan.digest,
        "world_size": origin.world_size,
        "nodes": 2,
        "backend_node": "gloo",
        "backend_leaders": "gloo",
        "seconds": 0.125,
        "states": {},
        "shards": list(range(plan.n_shards)),
        "times_counted": [1],
    }
    store.put(f"attempts/{origin.attempt}/allreduce.json", json.dumps(reduced).encode())
    states: dict[str, Any] = {}
    for i in range(plan.n_shards):
        states = merge_states(states, loaded.files[shard_id("main", i)].result.states)
        values = {"docs": states["docs"].value()["token_ppl"], "quiz": states["quiz"].value()["acc"]}
        record = {
            "attempt": origin.attempt,
            "time": START + i,
            "cost_done": 1000 * (i + 1),
            "cost_total": 1000 * plan.n_shards,
            "shards_done": i + 1,
            "tokens": 16 * (i + 1),
            "values": {task: value if value == value else None for task, value in values.items()},
            "states": states_to_json(states),
        }
        store.put(f"progress/{origin.attempt}-{i:06d}.json", json.dumps(record).encode())


def make_store(folder: Path) -> Store:
    """A store in `folder` that calls itself `URI`."""
    store = Store(str(folder))
    store.uri = URI
    return store


def _made_up(n: int) -> np.ndarray:
    """float32[n], multiples of 1/64 between 1/64 and 4, by a linear congruential generator."""
    state, values = 12345, []
    for _ in range(n):
        state = (1103515245 * state + 12345) % 2**31
        values.append((1 + (state >> 16) % 256) / 64)
    return np.array(values, dtype=np.float32)


def _json(value: Any) -> str:
    return canonical_json(value).decode("utf-8", "surrogatepass")
