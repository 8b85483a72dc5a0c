"""The plan as values: flat columns for what is many, JSON for what is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from eval_core.canonical import digest_columns, digest_json
from eval_core.errors import ConcordError
from eval_core.spec import EvalSpec, identity
from eval_core.tasks.examples import Generation

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

PLAN_FORMAT = 6
_BLOCK = 1 << 14

ShardKind = Literal["main", "replay", "alone", "reference"]
SHARD_KINDS: tuple[ShardKind, ...] = ("main", "replay", "alone", "reference")


@dataclass(frozen=True, kw_only=True)
class RequestTable:
    """Unique requests, in the order of the micro-batches that hold them.

    Attributes:
        tokens: int32, the tokens of all requests one after the other.
        offsets: int64[n + 1], where each request's tokens begin.
        n_scored: int32[n], how many tokens at a request's end are scored; 0 of a prompt to go on from.
        generation: int32[n], the plan's way to go on from a prompt; -1: its tokens are scored.
        shared: int32[n], input tokens at a request's beginning that are those of the request before it, in whose row it
            stands; 0: it starts a row. See `plan.share`.
    """

    tokens: Int32
    offsets: Int64
    n_scored: Int32
    generation: Int32
    shared: Int32

    def __len__(self) -> int:
        return len(self.n_scored)

    @cached_property
    def is_prompt(self) -> npt.NDArray[np.bool_]:
        """bool[n]: whether a text is written on from each."""
        prompts: npt.NDArray[np.bool_] = self.generation >= 0
        return prompts


@dataclass(frozen=True, kw_only=True)
class MicroBatchTable:
    """Micro-batches: consecutive requests, computed together.

    Attributes:
        first_request: int64[n + 1], where each one's requests begin.
        rows: int32[n], how many rows each has; a row holds one request or several that begin alike. Prompts count as one each.
        length: int32[n], input tokens of a row, padding included; of prompts, which are read one by one, the mean.
        cost: int64[n], FLOPs.
        first_of_shard: int64[number of shards + 1], where each shard's micro-batches begin.
    """

    first_request: Int64
    rows: Int32
    length: Int32
    cost: Int64
    first_of_shard: Int64

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def tokens(self) -> Int64:
        """int64[n]: input tokens that the model reads, padding included."""
        return self.rows.astype(np.int64) * self.length


@dataclass(frozen=True, kw_only=True)
class ItemTable:
    """What metrics count: a window of a document, or the answers of one question.

    Attributes:
        example: int64[n], row in the example table.
        first: bool as int32[n], 1 for the first item of its example.
        link_offsets: int64[n + 1], where each item's links begin.
        link_request: int64, the request behind each link.
        link_characters, link_bytes: int32, size of the text that the link scores.
    """

    example: Int64
    first: Int32
    link_offsets: Int64
    link_request: Int64
    link_characters: Int32
    link_bytes: Int32

    def __len__(self) -> int:
        return len(self.example)


@dataclass(frozen=True, kw_only=True)
class ExampleTable:
    """The examples of all tasks, task after task, in document order.

    Attributes:
        task: int32[n], index in the spec's tasks.
        gold, truncated, rejoined, words: int32[n]; bytes, seed: int64[n]; see `tasks.examples.Example`.
        documents: canonical JSON of each document.
        prompts, targets: what was given, and canonical JSON of the list of scored texts.
    """

    task: Int32
    gold: Int32
    truncated: Int32
    rejoined: Int32
    words: Int32
    bytes: Int64
    seed: Int64
    documents: Sequence[str]
    prompts: Sequence[str]
    targets: Sequence[str]

    def __len__(self) -> int:
        return len(self.task)


def columns(table: Any) -> dict[str, Any]:
    """The named columns of a table."""
    return {f.name: getattr(table, f.name) for f in fields(table)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All the work of one run.

    Attributes:
        spec: what was asked for.
        model: {"files": {name: {size, sha256}}, "vocab_size", "total_parameters", "max_length"}.
        tokenizer: digest of the tokenizer's files.
        audited: int64, micro-batches that are replayed and, where they score tokens, computed in the reference dtype and, in
            mode `fast`, in part once more with each request alone, as mode `reference` does.
        generations: the ways in which texts are generated.
        n_requested: requests before duplicates were removed.
        locations: where model and data were found; not part of the digest.
    """

    spec: EvalSpec
    model: Mapping[str, Any]
    tokenizer: str
    requests: RequestTable
    micro_batches: MicroBatchTable
    items: ItemTable
    examples: ExampleTable
    audited: Int64
    generations: tuple[Generation, ...]
    n_requested: int
    locations: Mapping[str, Any]

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the digest covers, columns by their own digests."""
        tables = {
            "requests": self.requests,
            "micro_batches": self.micro_batches,
            "items": self.items,
            "examples": self.examples,
        }
        return {
            "format": PLAN_FORMAT,
            "spec": identity(self.spec),
            "model": dict(self.model),
            "tokenizer": self.tokenizer,
            "audited": [int(i) for i in self.audited],
            "generations": [plain_generation(way) for way in self.generations],
            "columns": {name: digest_columns(columns(table)) for name, table in tables.items()},
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the identity: same input, same digest, on every machine."""
        return digest_json(self.identity)

    @property
    def reference_dtype(self) -> str:
        """Of the audit: float64 where such a copy of the model fits, by the spec's measure."""
        precision = self.spec.precision
        if precision.reference != "auto":
            return precision.reference
        fits = 8 * int(self.model["total_parameters"]) <= precision.reference_memory
        return "float64" if fits else "float32"

    @property
    def asks_greedy(self) -> bool:
        """Whether it matters if a request is what greedy decoding gives: to the harness's tasks it may."""
        return any(task.type == "lm_eval" for task in self.spec.tasks)

    @property
    def n_shards(self) -> int:
        """Main shards."""
        return len(self.micro_batches.first_of_shard) - 1

    @property
    def n_all_shards(self) -> int:
        """Shards, audit included."""
        return self.n_shards + len(self.audited) + len(self.taken_apart) + len(self.referenced)

    def shard_ids(self) -> list[str]:
        """Every shard, audit included: `main/000000`, `replay/000012` (by micro-batch) and so on."""
        replays = [shard_id("replay", int(b)) for b in self.audited]
        alone = [shard_id("alone", int(b)) for b in self.taken_apart]
        references = [shard_id("reference", int(b)) for b in self.referenced]
        return [shard_id("main", i) for i in range(self.n_shards)] + replays + alone + references

    @cached_property
    def referenced(self) -> Int64:
        """int64: the audited micro-batches that score tokens."""
        scored = [b for b in self.audited.tolist() if self.generation_of(b) is None]
        return np.array(scored, dtype=np.int64)

    @property
    def taken_apart(self) -> Int64:
        """int64: the audited micro-batches whose requests are computed one by one too; in mode `reference` all are already."""
        return self.referenced if self.spec.compute.mode == "fast" else self.referenced[:0]

    @cached_property
    def n_scored_batches(self) -> int:
        """Micro-batches that score tokens; the others generate texts."""
        return int(np.count_nonzero(~self.requests.is_prompt[self.micro_batches.first_request[:-1]]))

    def generation_of(self, batch: int) -> Generation | None:
        """How micro-batch `batch` generates texts; None: it scores tokens."""
        way = int(self.requests.generation[self.micro_batches.first_request[batch]])
        return None if way < 0 else self.generations[way]

    def shard_batches(self, shard: str) -> range:
        """The micro-batches of a shard."""
        kind, number = parse_shard_id(shard)
        if kind != "main":
            return range(number, number + 1)
        first = self.micro_batches.first_of_shard
        return range(int(first[number]), int(first[number + 1]))

    def shard_requests(self, shard: str) -> range:
        """The requests of a shard; of an `alone` one the first of its micro-batch, which alone take no more tokens than all together."""
        batches = self.shard_batches(shard)
        first, stop = (int(self.micro_batches.first_request[b]) for b in (batches.start, batches.stop))
        if parse_shard_id(shard)[0] != "alone":
            return range(first, stop)
        inputs = np.cumsum(np.diff(self.requests.offsets[first : stop + 1]) - 1)
        fitting = int(np.searchsorted(inputs, self.micro_batches.tokens[batches.start], side="right"))
        return range(first, first + max(1, fitting))

    def shard_cost(self, shard: str) -> int:
        """FLOPs of a shard (in the run's dtype)."""
        batches = self.shard_batches(shard)
        return int(self.micro_batches.cost[batches.start : batches.stop].sum())

    @cached_property
    def main_costs(self) -> Int64:
        """int64[n shards]: FLOPs of the main shards."""
        return np.add.reduceat(self.micro_batches.cost, self.micro_batches.first_of_shard[:-1])

    @cached_property
    def total_cost(self) -> int:
        """FLOPs of all shards, audit included (in the run's dtype); may be more than an int64 holds."""
        audits = np.concatenate([self.audited, self.taken_apart, self.referenced])
        costs: list[int] = [*self.micro_batches.cost.tolist(), *self.micro_batches.cost[audits].tolist()]
        return sum(costs)

    @cached_property
    def main_shard_of_batch(self) -> Int64:
        """int64[n]: the main shard that holds each micro-batch."""
        counts = np.diff(self.micro_batches.first_of_shard)
        return np.repeat(np.arange(self.n_shards, dtype=np.int64), counts)

    @cached_property
    def home_shard(self) -> Int64:
        """int64[n items]: the main shard that holds all requests of an item, or -1 where they lie in several."""
        first_of_shard = self.micro_batches.first_request[self.micro_batches.first_of_shard]
        shard = np.searchsorted(first_of_shard, self.items.link_request, side="right") - 1
        starts = self.items.link_offsets[:-1]
        low = np.minimum.reduceat(shard, starts)
        high = np.maximum.reduceat(shard, starts)
        return np.where(low == high, low, -1).astype(np.int64)

    @cached_property
    def last_request(self) -> Int64:
        """int64[n items]: the last of each item's requests, in the micro-batches' order."""
        return np.maximum.reduceat(self.items.link_request, self.items.link_offsets[:-1])

    @cached_property
    def items_by_home(self) -> tuple[Int64, Int64]:
        """(items sorted by home shard, int64[n shards + 2] where those of shard -1, 0, 1, ... begin)."""
        order = np.argsort(self.home_shard, kind="stable").astype(np.int64)
        starts = np.searchsorted(self.home_shard[order], np.arange(-1, self.n_shards + 1))
        return order, starts.astype(np.int64)

    def items_of(self, shard: int) -> Int64:
        """Items whose requests all lie in main shard `shard`; -1: those that lie in several."""
        order, starts = self.items_by_home
        return order[starts[shard + 1] : starts[shard + 2]]


def offsets_of(sizes: npt.ArrayLike) -> Int64:
    """int64[n + 1]: where each of `sizes` parts begins, one after the other from 0, and where the last ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])


def ranges(starts: Int64, sizes: Int64) -> Int64:
    """int64: start, start + 1, ... of each range, one range after the other."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))


def take_ranges(values: npt.NDArray[Any], starts: Int64, sizes: Int64) -> npt.NDArray[Any]:
    """The `values` of each range, one range after the other; in blocks, so that the indices stay small."""
    taken = np.empty(int(sizes.sum()), dtype=values.dtype)
    done = 0
    for first in range(0, len(starts), _BLOCK):
        indices = ranges(starts[first : first + _BLOCK], sizes[first : first + _BLOCK])
        values.take(indices, out=taken[done : done + len(indices)], mode="clip")
        done += len(indices)
    return taken


def plain_generation(way: Generation) -> dict[str, Any]:
    """`way` as JSON, its numbers as text so that none is rounded."""
    plain = asdict(way)
    return {name: repr(value) if isinstance(value, float) else value for name, value in plain.items()}


def generation_from_plain(data: Mapping[str, Any]) -> Generation:
    """Reverse of `plain_generation`."""
    numbers = {name: float(data[name]) for name in ("temperature", "top_p") if data[name] is not None}
    lists = {name: tuple(data[name]) for name in ("until", "eos")}
    return Generation(**{**data, **lists, **numbers})


def shard_id(kind: ShardKind, number: int) -> str:
    """`main/000012`."""
    return f"{kind}/{number:06d}"


def parse_shard_id(shard: str) -> tuple[ShardKind, int]:
    """Kind and number of a shard id."""
    kind, _, number = shard.partition("/")
    if kind not in SHARD_KINDS or not number.isdigit():
        raise ConcordError(f"{shard!r} is no shard id")
    return kind, int(number)
