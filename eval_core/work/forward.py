"""Score one micro-batch: the head runs on the scored positions only, in chunks, never on [B, L, vocab]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from eval_core.metrics.score import Float32, Float64
from eval_core.plan.types import Plan
from eval_core.work.model import Model, Tree

Int64Array = npt.NDArray[np.int64]


def score_micro_batch(plan: Plan, batch: int, model: Model) -> Float32 | Float64:
    """Negative log-likelihoods of the scored tokens of micro-batch `batch`, in nats.

    Requests stand in the plan's order, each with its tokens in theirs. float32; float64 for a float64 model.
    """
    layout = lay_out(plan, batch)

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
    parts = [token_nll(model.head(scored[i : i + chunk]), wanted[i : i + chunk]) for i in range(0, len(wanted), chunk)]
    nll: Float32 | Float64 = torch.cat(parts).cpu().numpy()
    return nll


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log softmax(logits)[targets] for each row: [N, vocab], int64[N] -> [N], in the logits' dtype."""
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


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
    table = plan.requests
    first, last = (int(i) for i in plan.micro_batches.first_request[batch : batch + 2])
    shape = (int(plan.micro_batches.rows[batch]), int(plan.micro_batches.length[batch]))
    tokens, position = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    sees = None
    if table.shared[first:last].any():
        sees = np.broadcast_to(np.eye(shape[1], dtype=np.bool_), (*shape, shape[1])).copy()
    rows, columns, targets = [], [], []
    row, used, path = -1, 0, np.empty(0, dtype=np.int64)
    for request in range(first, last):
        sequence = table.tokens[table.offsets[request] : table.offsets[request + 1]]
        inputs, scored, shared = len(sequence) - 1, int(table.n_scored[request]), int(table.shared[request])
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
