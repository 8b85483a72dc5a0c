"""From the committed shards, and nothing else, to the numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce as fold
from pathlib import Path
from typing import Any

import numpy as np

from eval_core.canonical import digest_json
from eval_core.errors import CorruptFileError, IncompleteRunError
from eval_core.metrics.harness import HarnessResults, score_harness
from eval_core.metrics.score import Float32, Scores, score_items
from eval_core.metrics.states import (
    HIGHER_IS_BETTER,
    ChoiceState,
    LikelihoodState,
    Metric,
    State,
    merge_states,
    states_from_json,
    states_to_json,
)
from eval_core.metrics.uncertainty import mean_stderr, perplexity_stderr
from eval_core.plan.types import Plan, shard_id
from eval_core.shard_file import ShardFile, decode_planned, shard_key
from eval_core.storage import Store
from eval_core.tasks.harness.registry import load_harness

REDUCTION_KEY = "reduction.json"
REDUCTION_FORMAT = 2
_READERS = 8


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """The result of a run.

    Attributes:
        plan: digest of the plan.
        shards: id -> result digest of the main shards.
        states: task -> exact state over all examples.
        spanning: the part of it from items whose requests lie in several shards.
        hosts: host -> task -> subtotal of the shards computed there (not part of the digest).
        metrics: task -> metric -> number; of the harness's tasks and groups by "metric,filter".
        harness: tables that the harness's readers want beside its numbers (not part of the digest: they hold paths).
    """

    plan: str
    shards: Mapping[str, str]
    states: Mapping[str, State]
    spanning: Mapping[str, State]
    hosts: Mapping[str, Mapping[str, State]]
    metrics: Mapping[str, Mapping[str, Metric]]
    harness: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Over plan, shards, states and numbers: equal for two runs exactly when every bit is."""
        return digest_json(self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "shards": dict(self.shards),
            "states": states_to_json(self.states),
            "spanning": states_to_json(self.spanning),
            "metrics": {
                task: {name: [m.value.hex(), m.stderr.hex(), m.n, m.higher_is_better] for name, m in metrics.items()}
                for task, metrics in self.metrics.items()
            },
        }

    def to_json(self) -> dict[str, Any]:
        hosts = {host: states_to_json(states) for host, states in self.hosts.items()}
        return {
            "format": REDUCTION_FORMAT,
            "digest": self.digest,
            **self._content(),
            "hosts": hosts,
            "harness": self.harness,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reduction:
        """Reverse of `to_json`.

        Raises:
            CorruptFileError: the digest doesn't fit the content.
        """
        reduction = cls(
            plan=data["plan"],
            shards=data["shards"],
            states=states_from_json(data["states"]),
            spanning=states_from_json(data["spanning"]),
            hosts={host: states_from_json(states) for host, states in data["hosts"].items()},
            metrics={
                task: {
                    name: Metric(value=float.fromhex(value), stderr=float.fromhex(error), n=n, higher_is_better=higher)
                    for name, (value, error, n, higher) in metrics.items()
                }
                for task, metrics in data["metrics"].items()
            },
            harness=data["harness"],
        )
        if reduction.digest != data["digest"]:
            raise CorruptFileError(
                f"{REDUCTION_KEY}: the content doesn't fit its digest; reduce again: concord reduce --run URI"
            )
        return reduction


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The shards of a run as they lie on storage.

    Attributes:
        files: id -> file, of those that are whole and belong to the plan.
        damaged: id -> what is wrong with the file there.
    """

    files: Mapping[str, ShardFile]
    damaged: Mapping[str, str]

    def missing(self, shards: Iterable[str]) -> list[str]:
        """Those of `shards` without a whole file."""
        return [shard for shard in shards if shard not in self.files]


def load_shards(store: Store, plan: Plan) -> Loaded:
    """Read every shard of the plan that is there."""
    files, damaged = {}, {}
    shards = plan.shard_ids()
    with ThreadPoolExecutor(_READERS) as pool:
        for shard, data in zip(shards, pool.map(store.get, map(shard_key, shards)), strict=True):
            if data is None:
                continue
            try:
                files[shard] = decode_planned(data, plan, shard)
            except CorruptFileError as error:
                damaged[shard] = str(error)
    return Loaded(files=files, damaged=damaged)


def gather_scores(plan: Plan, loaded: Loaded) -> Scores:
    """The scored tokens of all requests, from the main shards (all must be there)."""
    results = [loaded.files[shard_id("main", i)].result for i in range(plan.n_shards)]
    nll: Float32 = np.concatenate([result.nll for result in results])
    greedy = np.concatenate([result.greedy for result in results])
    generated = [text for result in results for text in result.generated]
    return Scores.of(plan, range(len(plan.requests)), nll, greedy, generated)


def reduce_run(store: Store, plan: Plan, loaded: Loaded) -> Reduction:
    """Reduce the committed shards, write `reduction.json` and return it.

    Raises:
        IncompleteRunError: main shards are missing or damaged.
    """
    main = [shard_id("main", i) for i in range(plan.n_shards)]
    if missing := loaded.missing(main):
        damaged = sum(shard in loaded.damaged for shard in missing)
        raise IncompleteRunError(
            f"{store.uri}: {len(missing)} of {len(main)} shards are missing ({damaged} of them damaged), so there is no number yet; "
            f"resume with: concord resume --run {store.uri}"
        )
    scores = gather_scores(plan, loaded)
    spanning = score_items(plan, plan.items_of(-1), scores)
    hosts: dict[str, dict[str, State]] = {}
    for shard in main:
        file = loaded.files[shard]
        host = file.provenance.host
        hosts[host] = merge_states(hosts.get(host, {}), file.result.states)
    states = fold(merge_states, hosts.values(), spanning)
    harness = _score_harness(store, plan, scores)
    reduction = Reduction(
        plan=plan.digest,
        shards={shard: loaded.files[shard].digest for shard in main},
        states=states,
        spanning=spanning,
        hosts=hosts,
        metrics=_metrics(plan, states, scores) | dict(harness.metrics),
        harness=harness.block,
    )
    store.put(REDUCTION_KEY, json.dumps(reduction.to_json(), indent=1).encode())
    return reduction


def _score_harness(store: Store, plan: Plan, scores: Scores) -> HarnessResults:
    """What the harness's code makes of the answers; its samples are written here, where its code is at hand."""
    _, harness = load_harness(plan.spec, Path(plan.locations["base"]))
    results = score_harness(plan, harness, scores)
    for task, lines in results.samples.items():
        store.put(sample_key(task), lines)
    return results


def sample_key(task: str) -> str:
    """Where the samples of a task are written."""
    return f"samples/{task}.jsonl"


def load_reduction(store: Store) -> Reduction:
    """The reduction of a run.

    Raises:
        StorageError: there is none yet.
        CorruptFileError: it was altered.
    """
    data = store.require(REDUCTION_KEY, f"reduce first: concord reduce --run {store.uri}")
    try:
        return Reduction.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            f"{REDUCTION_KEY}: not a whole file; reduce again: concord reduce --run {store.uri}"
        ) from error


def _metrics(plan: Plan, states: Mapping[str, State], scores: Scores) -> dict[str, dict[str, Metric]]:
    metrics: dict[str, dict[str, Metric]] = {}
    for number, task in enumerate(plan.spec.tasks):
        state = states[task.name]
        values = state.value()
        if isinstance(state, ChoiceState):
            n = state.examples
            hits = (state.correct, state.correct_norm, state.correct_bytes)
            errors = {name: mean_stderr(h, n) for name, h in zip(values, hits, strict=True)}
        elif isinstance(state, LikelihoodState):
            continue
        else:
            n = state.documents
            errors = _document_stderr(plan, number, scores)
        metrics[task.name] = {
            name: Metric(value=value, stderr=errors[name], n=n, higher_is_better=HIGHER_IS_BETTER[name])
            for name, value in values.items()
        }
    return metrics


def _document_stderr(plan: Plan, task: int, scores: Scores) -> dict[str, float]:
    items = np.flatnonzero(plan.examples.task[plan.items.example] == task)
    examples, row = np.unique(plan.items.example[items], return_inverse=True)
    requests = plan.items.link_request[plan.items.link_offsets[items]]
    nll = -scores.log_likelihoods(requests)
    totals = np.bincount(row, weights=nll, minlength=len(examples)).astype(np.float64)
    tokens = np.bincount(row, weights=plan.requests.n_scored[requests], minlength=len(examples)).astype(np.float64)
    return perplexity_stderr(
        totals,
        tokens,
        plan.examples.words[examples].astype(np.float64),
        plan.examples.bytes[examples].astype(np.float64),
        resamples=plan.spec.report.bootstrap,
        seed=plan.spec.seed,
    )
