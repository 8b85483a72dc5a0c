"""Go on from the prompts of one micro-batch, all at once, with a key-value cache; a text that has ended leaves it.

Which texts are computed together at each step follows from the plan and from the texts themselves, so the bits do too.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import numpy.typing as npt
import torch

from eval_core.metrics.score import Generated
from eval_core.plan.types import Plan
from eval_core.tasks.examples import Generation
from eval_core.tokenizer import Tokenizer
from eval_core.work.forward import Scored
from eval_core.work.model import Model

_LOOK_BACK = 2
"""Tokens beyond a stop text's own in which it is looked for: it may have been written with other tokens."""


def generate_micro_batch(plan: Plan, batch: int, model: Model, tokenizer: Tokenizer) -> Scored:
    """Compute micro-batch `batch`, whose requests are prompts; no token is scored."""
    way = plan.generation_of(batch)
    assert way is not None
    first, last = (int(i) for i in plan.micro_batches.first_request[batch : batch + 2])
    bounds = plan.requests.offsets[first : last + 1].tolist()
    prompts = [plan.requests.tokens[start:stop] for start, stop in itertools.pairwise(bounds)]
    draws = [_generator(plan.spec.seed, prompt, way.draw) for prompt in prompts] if way.temperature else []
    written = _write(model, prompts, int(plan.micro_batches.length[batch]), way, draws, _Ending(way, tokenizer))
    texts = [Generated(tokens=tuple(tokens), text=cut(tokenizer.decode(tokens), way.until)) for tokens in written]
    nothing = np.empty(0, dtype=np.float32)
    return Scored(nll=nothing, greedy=np.zeros(len(texts), dtype=np.bool_), generated=tuple(texts))


def cut(text: str, until: tuple[str, ...]) -> str:
    """`text` up to the first of its stop texts."""
    for stop in until:
        if stop:
            text = text.split(stop)[0]
    return text


def _write(
    model: Model,
    prompts: list[npt.NDArray[np.int32]],
    length: int,
    way: Generation,
    draws: list[torch.Generator],
    ending: _Ending,
) -> list[list[int]]:
    tokens = np.zeros((len(prompts), length), dtype=np.int64)
    seen = np.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, length - len(prompt) :] = prompt
        seen[row, length - len(prompt) :] = 1
    mask = torch.from_numpy(seen).to(model.device)
    position = (mask.cumsum(dim=-1) - 1).clamp(min=0)
    hidden, cache = model.decode(torch.from_numpy(tokens).to(model.device), mask, position, None)
    position = position[:, -1:]
    written: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    while True:
        logits = model.head(hidden)
        chosen = _draw(logits, way, [draws[row] for row in live]) if draws else logits.argmax(dim=-1)
        for row, token in zip(live, chosen.tolist(), strict=True):
            written[row].append(token)
        stay = [place for place, row in enumerate(live) if not ending.reached(written[row])]
        if not stay:
            return written
        if len(stay) < len(live):
            kept = torch.tensor(stay, device=model.device)
            cache.batch_select_indices(kept)
            chosen, mask, position = chosen[kept], mask[kept], position[kept]
            live = [live[place] for place in stay]
        mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=-1)
        position = position + 1
        hidden, cache = model.decode(chosen[:, None], mask, position, cache)


class _Ending:
    """Knows when a text has ended, as the lm-evaluation-harness does: by the last tokens' text."""

    def __init__(self, way: Generation, tokenizer: Tokenizer) -> None:
        self.way = way
        self.tokenizer = tokenizer
        encoded = tokenizer.encode_batch(list(way.until)) if way.until else []
        self.window = max(map(len, encoded), default=0) + _LOOK_BACK

    def reached(self, tokens: list[int]) -> bool:
        """Whether nothing is to be added to `tokens`."""
        if tokens[-1] in self.way.eos or len(tokens) >= self.way.max_new:
            return True
        tail = self.tokenizer.decode(tokens[-self.window :], special=True)
        return any(stop and stop in tail for stop in self.way.until)


def _generator(seed: int, prompt: npt.NDArray[np.int32], draw: int) -> torch.Generator:
    """Seeded by the run, the prompt and the number of the draw; on the CPU, whose generator is the same everywhere."""
    content = f"{seed}\0{draw}\0".encode() + prompt.astype("<i4").tobytes()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(content).digest()[:8], "little") >> 1)


def _draw(logits: torch.Tensor, way: Generation, draws: list[torch.Generator]) -> torch.Tensor:
    """One token for each row of `logits`, float32[rows, vocab]: temperature, then top-k, then top-p."""
    scaled, order = (logits.float().cpu() / way.temperature).sort(dim=-1, descending=True, stable=True)
    if way.top_k:
        scaled = scaled[:, : way.top_k]
    probability = scaled.softmax(dim=-1)
    if way.top_p is not None:
        before = probability.cumsum(dim=-1) - probability
        probability = probability.masked_fill(before >= way.top_p, 0.0)
    places = [torch.multinomial(row, 1, generator=draw) for row, draw in zip(probability, draws, strict=True)]
    return order.gather(1, torch.stack(places))[:, 0].to(logits.device)
