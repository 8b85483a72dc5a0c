"""Score one micro-batch: the head runs on the scored positions only, in chunks, never on [B, L, vocab]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from eval_core.metrics.score import Bools, Float32, Float64, Generated
from eval_core.plan.types import Int32, Plan
from eval_core.work.model import Model, Tree

_COPIED_ROWS = 32

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What a micro-batch gave; requests in the plan's order, each with its tokens in theirs.

    Attributes:
        nll: negative log-likelihoods of the scored tokens, in nats. float32; float64 for a float64 model.
        greedy: bool[requests], whether each scored token has the highest logit (the first of equals counts); empty where
            the plan doesn't ask.
        generated: the texts, where the requests are prompts.
    """

    nll: Float32 | Float64
    greedy: Bools
    generated: tuple[Generated, ...] = ()


def score_micro_batch(plan: Plan, batch: int, model: Model) -> Scored:
    """Compute micro-batch `batch`."""
    return _score(plan, _requests_of(plan, batch), lay_out(plan, batch), model)


def score_alone(plan: Plan, requests: range, model: Model) -> Scored:
    """Compute `requests` one after the other, as mode `reference` does."""
    parts = []
    for request in requests:
        inputs = int(np.diff(plan.requests.offsets[request : request + 2])[0]) - 1
        unshared = np.zeros(1, dtype=np.int32)
        parts.append(_score(plan, range(request, request + 1), _place(plan, request, unshared, (1, inputs)), model))
    return Scored(
        nll=np.concatenate([part.nll for part in parts]), greedy=np.concatenate([part.greedy for part in parts])
    )


def _score(plan: Plan, requests: range, layout: Layout, model: Model) -> Scored:
    def there(values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(model.device)

    tree = None
    if layout.sees is not None:
        tree = Tree(position=there(layout.position), sees=there(layout.sees))
    hidden = model.body(there(layout.tokens), tree)
    scored = hidden[there(layout.scored_row), there(layout.scored_column)]
    del hidden
    wanted = there(layout.targets)
    chunk = plan.spec.compute.head_rows
    parts, hits = [], []
    logits = None
    for start in range(0, len(wanted), chunk):
        logits, targets = model.head(scored[start : start + chunk], logits), wanted[start : start + chunk]
        parts.append(token_nll(logits, targets))
        if plan.asks_greedy:
            hits.append(logits.argmax(dim=-1) == targets)
    nll: Float32 | Float64 = torch.cat(parts).cpu().numpy()
    greedy = np.empty(0, dtype=np.bool_)
    if hits:
        sizes = plan.requests.n_scored[requests.start : requests.stop]
        starts = np.cumsum(sizes, dtype=np.int64) - sizes
        greedy = np.logical_and.reduceat(torch.cat(hits).cpu().numpy(), starts)
    return Scored(nll=nll, greedy=greedy)


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log softmax(logits)[targets] for each row: [N, vocab], int64[N] -> [N], in the logits' dtype.

    A few rows at a time, because the kernel makes a copy of its input; each row is computed by itself in any case.
    """
    pieces = zip(torch.split(logits, _COPIED_ROWS), torch.split(targets, _COPIED_ROWS), strict=True)
    return torch.cat([torch.nn.functional.cross_entropy(*piece, reduction="none") for piece in pieces])


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A micro-batch as arrays.

    Attributes:
        tokens: int64[B, L], input tokens, padded on the right.
        position: int64[B, L], place of each token in its request.
        sees: bool[B, L, L] as in `model.Tree`, or None where no request shares a row with another.
        scored_row, scored_column, targets: int64[N], where each scored token's prediction is, and the token.
    """

    tokens: Int64Array
    position: Int64Array
    sees: npt.NDArray[np.bool_] | None
    scored_row: Int64Array
    scored_column: Int64Array
    targets: Int64Array


def lay_out(plan: Plan, batch: int) -> Layout:
    """Micro-batch `batch`, its requests placed in their rows."""
    requests = _requests_of(plan, batch)
    shape = (int(plan.micro_batches.rows[batch]), int(plan.micro_batches.length[batch]))
    return _place(plan, requests.start, plan.requests.shared[requests.start : requests.stop], shape)


def _requests_of(plan: Plan, batch: int) -> range:
    first, last = (int(i) for i in plan.micro_batches.first_request[batch : batch + 2])
    return range(first, last)


def _place(plan: Plan, first: int, shares: Int32, shape: tuple[int, int]) -> Layout:
    """Requests `first` and on, one for each of `shares` (as `RequestTable.shared`), in rows of `shape`."""
    table = plan.requests
    tokens, position = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    sees = None
    if shares.any():
        sees = np.broadcast_to(np.eye(shape[1], dtype=np.bool_), (*shape, shape[1])).copy()
    rows, columns, targets = [], [], []
    row, used, path = -1, 0, np.empty(0, dtype=np.int64)
    for request, shared in enumerate(shares.tolist(), start=first):
        sequence = table.tokens[table.offsets[request] : table.offsets[request + 1]]
        inputs, scored = len(sequence) - 1, int(table.n_scored[request])
        if shared == 0:
            row, used = row + 1, 0
        own = slice(used, used + inputs - shared)
        path = np.concatenate([path[:shared], np.arange(own.start, own.stop)])
        tokens[row, own] = sequence[shared:-1]
        position[row, own] = np.arange(shared, inputs)
        if sees is not None:
            sees[row, own, path[:shared]] = True
            sees[row, own, own] = np.tri(inputs - shared, dtype=np.bool_)
        rows.append(np.full(scored, row, dtype=np.int64))
        columns.append(path[inputs - scored :])
        targets.append(sequence[-scored:].astype(np.int64))
        used = own.stop
    return Layout(
        tokens=tokens,
        position=position,
        sees=sees,
        scored_row=np.concatenate(rows),
        scored_column=np.concatenate(columns),
        targets=np.concatenate(targets),
    )
