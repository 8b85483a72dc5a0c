"""Score one micro-batch: the head runs on the scored positions only, in chunks, never on [B, L, vocab]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from eval_core.metrics.score import Float32, Float64
from eval_core.plan.types import Plan
from eval_core.work.model import Model

Int64Array = npt.NDArray[np.int64]


def score_micro_batch(plan: Plan, batch: int, model: Model) -> Float32 | Float64:
    """Negative log-likelihoods of the scored tokens of micro-batch `batch`, in nats.

    Requests stand in the plan's order, each with its tokens in theirs. float32; float64 for a float64 model.
    """
    tokens, rows, positions, targets = lay_out(plan, batch)
    ids = torch.from_numpy(tokens).to(model.device)
    hidden = model.body(ids)
    scored = hidden[torch.from_numpy(rows).to(model.device), torch.from_numpy(positions).to(model.device)]
    del hidden
    wanted = torch.from_numpy(targets).to(model.device)
    chunk = plan.spec.compute.head_rows
    parts = [token_nll(model.head(scored[i : i + chunk]), wanted[i : i + chunk]) for i in range(0, len(wanted), chunk)]
    nll: Float32 | Float64 = torch.cat(parts).cpu().numpy()
    return nll


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log softmax(logits)[targets] for each row: [N, vocab], int64[N] -> [N], in the logits' dtype."""
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def lay_out(plan: Plan, batch: int) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """(int64[B, L] input tokens padded on the right, then row, position and target of each scored token)."""
    table = plan.requests
    first, last = (int(i) for i in plan.micro_batches.first_request[batch : batch + 2])
    tokens = np.zeros((last - first, int(plan.micro_batches.length[batch])), dtype=np.int64)
    rows, positions, targets = [], [], []
    for row, request in enumerate(range(first, last)):
        sequence = table.tokens[table.offsets[request] : table.offsets[request + 1]]
        inputs, scored = len(sequence) - 1, int(table.n_scored[request])
        tokens[row, :inputs] = sequence[:-1]
        rows.append(np.full(scored, row, dtype=np.int64))
        positions.append(np.arange(inputs - scored, inputs, dtype=np.int64))
        targets.append(sequence[-scored:].astype(np.int64))
    return tokens, np.concatenate(rows), np.concatenate(positions), np.concatenate(targets)
