"""Build the plan of a spec: the one place where text becomes tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from eval_core.canonical import canonical_text
from eval_core.errors import ModelError, SpecError
from eval_core.model_files import (
    ModelShape,
    manifest,
    read_shape,
    resolve_model,
    tokenizer_digest,
    weight_files,
)
from eval_core.plan.cut import (
    choose_audited,
    cut_evenly,
    cut_micro_batches,
    cut_shards,
    join_micro_batches,
    order_by_length,
    remove_duplicates,
)
from eval_core.plan.share import arrange_groups, join_groups, shared_prefixes
from eval_core.plan.types import (
    ExampleTable,
    Int32,
    Int64,
    ItemTable,
    MicroBatchTable,
    Plan,
    RequestTable,
    offsets_of,
    ranges,
    take_ranges,
)
from eval_core.spec import Batch, EvalSpec, LmEvalTask, MultipleChoiceTask, PerplexityTask
from eval_core.tasks.documents import Document, read_documents, stream_documents
from eval_core.tasks.examples import Example, Generation, RequestBuffer
from eval_core.tasks.harness.build import build_harness_task
from eval_core.tasks.harness.registry import load_harness
from eval_core.tasks.multiple_choice import build_multiple_choice
from eval_core.tasks.perplexity import build_perplexity
from eval_core.tokenizer import Tokenizer, load_tokenizer

_LARGE = 32
"""Micro-batches from which on a task is large: apart, such tasks take some 2 % more FLOPs than mixed; of 5 micro-batches, 10 %."""


def build_plan(spec: EvalSpec, base: Path) -> Plan:
    """The plan of `spec`, whose relative paths start at `base`.

    Raises:
        UsageError: data, model or spec can't be used; each message names what and the way out.
    """
    folder = resolve_model(spec.model, spec.revision, base)
    weights = weight_files(folder, allow_pickle=spec.allow_pickle)
    shape = read_shape(folder, weights)
    tokenizer = load_tokenizer(folder)
    max_length = _max_length(spec, shape)

    if spec.compute.dtype == "auto":
        spec = replace(spec, compute=replace(spec.compute, dtype="bfloat16" if shape.bfloat16 else "float32"))
    spec, harness = load_harness(spec, base)
    gathered = _Gathered()
    for number, task in enumerate(spec.tasks):
        if isinstance(task, LmEvalTask):
            examples = build_harness_task(task, harness.tasks[task.name], tokenizer, folder, max_length, spec.seed)
        else:
            examples = _task_examples(task, base, tokenizer, max_length, spec.seed)
        for example in examples:
            gathered.add(number, example)
    return gathered.plan(
        spec=spec,
        shape=shape,
        model={
            "files": manifest(folder, weights),
            "vocab_size": shape.vocab_size,
            "total_parameters": shape.total_parameters,
            "max_length": max_length,
        },
        tokenizer=tokenizer_digest(folder),
        locations={"model": str(folder), "base": str(base.resolve())},
    )


def _max_length(spec: EvalSpec, shape: ModelShape) -> int:
    max_length = spec.max_length or shape.max_positions
    if max_length is None:
        raise SpecError("the model's config doesn't say how many positions it has; give `max_length` in the spec")
    if shape.max_positions is not None and max_length > shape.max_positions:
        raise SpecError(f"max_length {max_length} is more than the model's {shape.max_positions} positions")
    for task in spec.tasks:
        if isinstance(task, PerplexityTask) and (task.window or 0) > max_length:
            raise SpecError(f"task '{task.name}': window {task.window} is more than max_length {max_length}")
        if isinstance(task, PerplexityTask) and (task.stride or 0) > (task.window or max_length):
            raise SpecError(f"task '{task.name}': stride {task.stride} is more than the window, {max_length}")
    return max_length


def _task_examples(
    task: PerplexityTask | MultipleChoiceTask, base: Path, tokenizer: Tokenizer, max_length: int, seed: int
) -> Iterator[Example]:
    if isinstance(task, PerplexityTask):
        return build_perplexity(task, stream_documents(base / task.data, task.limit), tokenizer, max_length, seed)
    documents: Iterable[Document] = stream_documents(base / task.data, None if task.num_fewshot else task.limit)
    pool: list[Document] = []
    if task.fewshot_data:
        pool = read_documents(base / task.fewshot_data, None)
    elif task.num_fewshot:
        pool = list(documents)
        documents = pool
    return build_multiple_choice(task, islice(documents, task.limit), pool, tokenizer, max_length, seed)


class _Gathered:
    """Collects examples in flat columns, then cuts them into a plan."""

    def __init__(self) -> None:
        self.requests = RequestBuffer()
        self.item_example = array("q")
        self.item_first = array("i")
        self.item_links = array("q")
        self.characters = array("i")
        self.bytes = array("i")
        self.numbers: dict[str, array[int]] = {
            name: array("q") for name in ("task", "gold", "truncated", "rejoined", "words", "bytes", "seed")
        }
        self.texts: dict[str, list[str]] = {"documents": [], "prompts": [], "targets": []}

    def add(self, task: int, example: Example) -> None:
        row = len(self.texts["documents"])
        for name, column in self.numbers.items():
            column.append(task if name == "task" else getattr(example, name))
        self.texts["documents"].append(canonical_text(example.fields))
        self.texts["prompts"].append(example.prompt)
        self.texts["targets"].append(canonical_text(example.targets))
        for position, item in enumerate(example.items):
            self.item_example.append(row)
            self.item_first.append(position == 0)
            self.item_links.append(len(item))
            for request in item:
                self.requests.append(request)
                self.characters.append(request.characters)
                self.bytes.append(request.bytes)

    def plan(
        self,
        *,
        spec: EvalSpec,
        shape: ModelShape,
        model: dict[str, Any],
        tokenizer: str,
        locations: dict[str, Any],
    ) -> Plan:
        tokens = np.frombuffer(self.requests.tokens, dtype=np.int32)
        lengths = np.array(self.requests.lengths, dtype=np.int64)
        n_scored = np.array(self.requests.scored, dtype=np.int32)
        offsets = offsets_of(lengths)
        if tokens.max() >= shape.vocab_size:
            raise ModelError(
                f"the tokenizer gives token id {tokens.max()}, the weights have {shape.vocab_size} embeddings; "
                "take the tokenizer that belongs to these weights"
            )
        generation = np.array(self.requests.generation, dtype=np.int32)
        asked = RequestTable(
            tokens=tokens, offsets=offsets, n_scored=n_scored, generation=generation, shared=np.zeros_like(n_scored)
        )
        unique = remove_duplicates(tokens, offsets, n_scored, generation)
        item_of_request = np.repeat(np.arange(len(self.item_links)), self.item_links)
        task_of_item = np.array(self.numbers["task"], dtype=np.int32)[np.array(self.item_example)]
        generations = tuple(self.requests.generations)
        requests, order, micro_batches = lay_out(
            take(asked, unique.kept),
            item_of_request[unique.kept],
            task_of_item[item_of_request[unique.kept]],
            generations,
            batch_of(spec),
            shape,
            model["max_length"],
        )
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        return Plan(
            spec=spec,
            model=model,
            tokenizer=tokenizer,
            requests=requests,
            micro_batches=micro_batches,
            items=ItemTable(
                example=np.array(self.item_example, dtype=np.int64),
                first=np.array(self.item_first, dtype=np.int32),
                link_offsets=offsets_of(self.item_links),
                link_request=place[unique.index],
                link_characters=np.array(self.characters, dtype=np.int32),
                link_bytes=np.array(self.bytes, dtype=np.int32),
            ),
            examples=self.example_table(),
            audited=choose_audited(len(micro_batches), spec.audit.micro_batches, spec.seed),
            generations=generations,
            n_requested=len(lengths),
            locations=locations,
        )

    def example_table(self) -> ExampleTable:
        wide = {"bytes", "seed"}
        numbers: dict[str, Any] = {
            name: np.array(column, dtype=np.int64 if name in wide else np.int32)
            for name, column in self.numbers.items()
        }
        return ExampleTable(**numbers, **self.texts)  # type: ignore[arg-type]


def batch_of(spec: EvalSpec) -> Batch:
    """How the requests of `spec` are laid out in its mode."""
    return spec.batch if spec.compute.mode == "fast" else one_by_one(spec.batch)


def one_by_one(batch: Batch) -> Batch:
    """`batch` so that each request is a micro-batch of its own."""
    return replace(batch, tokens=1, generated_tokens=1, generated_rounds=1, share_prefixes=False, pad_to_multiple=1)


def lay_out(
    requests: RequestTable,
    groups: Int64,
    tasks: Int32,
    generations: tuple[Generation, ...],
    batch: Batch,
    shape: ModelShape,
    max_length: int,
) -> tuple[RequestTable, Int64, MicroBatchTable]:
    """Put `requests`, each a row of its own as they come in, into rows, micro-batches and shards.

    `groups` is the item of each request, ascending, `tasks` its task. First come those whose tokens are scored, then the
    prompts, those that are gone on from in the same way together. A large task has micro-batches and shards of its own, so that
    they are the same whatever else is asked; small ones are mixed, which needs less padding.

    Returns:
        (the requests in their new order, int64[n] that order, the micro-batches).
    """
    share = batch.share_prefixes and shape.takes_trees(max_length)
    orders, shared, tables = [], [], []
    for way in np.unique(requests.generation).tolist():
        new = 0 if way < 0 else generations[way].max_new
        budget = batch.tokens if way < 0 else batch.generated_tokens * batch.generated_rounds

        def alike(members: Int64, new: int = new, budget: int = budget) -> _Part:
            return _lay_out_alike(take(requests, members), groups[members], new, budget, batch, share, max_length)

        for members, part in _by_task(np.flatnonzero(requests.generation == way), tasks, alike):
            order = members[part.order]
            scored = np.add.reduceat(requests.n_scored[order].astype(np.int64), part.first_request[:-1])
            max_new = np.full(len(part.rows), new, dtype=np.int32)
            orders.append(order)
            shared.append(part.shared)
            tables.append(
                cut_shards(part.first_request, part.rows, part.length, max_new, scored, shape, batch.shard_cost)
            )
    order = np.concatenate(orders)
    return replace(take(requests, order), shared=np.concatenate(shared)), order, join_micro_batches(tables)


def _by_task(requests: Int64, tasks: Int32, alike: Callable[[Int64], _Part]) -> Iterator[tuple[Int64, _Part]]:
    """(the requests of a large task, how they are laid out) of each; last, those of all small tasks together."""
    small = []
    for task in np.unique(tasks[requests]):
        members = requests[tasks[requests] == task]
        part = alike(members)
        if len(part.rows) >= _LARGE:
            yield members, part
        else:
            small.append(members)
    if small:
        mixed = np.sort(np.concatenate(small))
        yield mixed, alike(mixed)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Micro-batches of requests that are computed alike; `order` is of these requests alone."""

    order: Int64
    shared: Int32
    first_request: Int64
    rows: Int32
    length: Int32


def _lay_out_alike(
    requests: RequestTable, groups: Int64, max_new: int, budget: int, batch: Batch, share: bool, max_length: int
) -> _Part:
    tokens, offsets = requests.tokens, requests.offsets
    prompts = bool(requests.is_prompt[0])
    order = np.arange(len(requests), dtype=np.int64)
    shared = np.zeros(len(requests), dtype=np.int32)
    if share and not prompts:
        groups = join_groups(tokens, offsets, groups)
        order = arrange_groups(tokens, offsets, groups)
        shared = shared_prefixes(tokens, offsets, groups, order, budget)
    added = np.diff(offsets)[order] - (0 if prompts else 1) - shared
    starts = np.flatnonzero(shared == 0)
    row_length = np.add.reduceat(added, starts) + max_new
    row_group = groups[order[starts]]
    row_size = np.diff(np.append(starts, len(order)))

    row_order = order_by_length(row_length, row_group)
    ordered = row_length[row_order]
    if prompts:
        first_row = cut_evenly(ordered, tokens=budget)
        length = -(-np.add.reduceat(ordered, first_row[:-1]) // np.diff(first_row))
    else:
        first_row, padded = cut_micro_batches(
            ordered, row_group[row_order], tokens=budget, multiple=batch.pad_to_multiple
        )
        length = np.minimum(padded, np.maximum(np.maximum.reduceat(ordered, first_row[:-1]), max_length))
    place = ranges(starts[row_order], row_size[row_order])
    return _Part(
        order=order[place],
        shared=shared[place],
        first_request=offsets_of(row_size[row_order])[first_row],
        rows=np.diff(first_row).astype(np.int32),
        length=length.astype(np.int32) - np.int32(max_new),
    )


def take(table: RequestTable, rows: Int64) -> RequestTable:
    """The requests at `rows`, in that order, each in a row of its own."""
    if len(rows) == len(table) and not np.diff(rows, prepend=-1, append=len(rows)).max() > 1:
        return replace(table, shared=np.zeros_like(table.shared))
    lengths = np.diff(table.offsets)[rows]
    return RequestTable(
        tokens=take_ranges(table.tokens, table.offsets[rows], lengths),
        offsets=offsets_of(lengths),
        n_scored=table.n_scored[rows],
        generation=table.generation[rows],
        shared=np.zeros(len(rows), dtype=np.int32),
    )
