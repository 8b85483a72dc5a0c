"""Go on from the prompts of one micro-batch, as many at once as have rows; a text that has ended leaves its row to the next prompt.

Which texts are computed together at each step follows from the plan and from the texts themselves, so the bits do too. A prompt is
read by itself, so it has no padding.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from eval_core.metrics.score import Generated
from eval_core.plan.types import Plan
from eval_core.tasks.examples import Generation
from eval_core.tokenizer import Tokenizer
from eval_core.work.cache import Beginning, TextCache
from eval_core.work.forward import Scored
from eval_core.work.model import Model

_LOOK_BACK = 2
"""Tokens beyond a stop text's own in which it is looked for: it may have been written with other tokens."""


_WORTH_A_COPY = 16
"""Tokens in common from which prompts share what was computed of them; below, the mask that this takes costs about as much."""


@torch.inference_mode()
def generate_micro_batch(
    plan: Plan, batch: int, model: Model, tokenizer: Tokenizer, alive: Callable[[], None]
) -> Scored:
    """Compute micro-batch `batch`, whose requests are prompts; no token is scored. `alive` is called at each prompt."""
    way = plan.generation_of(batch)
    assert way is not None
    first, last = (int(i) for i in plan.micro_batches.first_request[batch : batch + 2])
    bounds = plan.requests.offsets[first : last + 1].tolist()
    prompts = [plan.requests.tokens[start:stop] for start, stop in itertools.pairwise(bounds)]
    draws = [_generator(plan.spec.seed, prompt, way.draw) for prompt in prompts] if way.temperature else []
    longest = max(map(len, prompts))
    rows = min(len(prompts), max(1, plan.spec.batch.generated_tokens // (longest + way.max_new)))
    cache = TextCache(rows, longest, way.max_new)
    shared = _common(prompts) if plan.spec.batch.share_prefixes else 0
    written = _write(model, prompts, shared, cache, way, draws, _Ending(way, tokenizer), alive)
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
    shared: int,
    cache: TextCache,
    way: Generation,
    draws: list[torch.Generator],
    ending: _Ending,
    alive: Callable[[], None],
) -> list[list[int]]:
    """The tokens that are written after each prompt. Prompts enter the cache in their order, as its rows become free; their first
    `shared` tokens are computed once."""
    beginning: Beginning = []
    written: list[list[int]] = [[] for _ in prompts]
    live: list[int] = []
    entered = 0
    while live or entered < len(prompts):
        if entered < len(prompts) and len(live) < cache.rows:
            hidden = _read(model, prompts[entered], cache, beginning)
            if shared and not beginning:
                beginning = cache.beginning(shared)
            live.append(entered)
            entered += 1
            alive()
        else:
            mask, position = (part.to(model.device) for part in cache.step())
            tokens = torch.tensor([written[text][-1:] for text in live], device=model.device)
            hidden = model.decode(tokens, mask, position, cache.store)
        logits = model.head(hidden, None)
        answered = live[-len(hidden) :]
        chosen = _draw(logits, way, [draws[text] for text in answered]) if draws else logits.argmax(dim=-1)
        for text, token in zip(answered, chosen.tolist(), strict=True):
            written[text].append(token)
        for row in reversed(range(len(live) - len(answered), len(live))):
            if ending.reached(written[live[row]]):
                cache.leave(row)
                live[row] = live[-1]
                live.pop()
    return written


def _read(model: Model, prompt: npt.NDArray[np.int32], cache: TextCache, beginning: Beginning) -> torch.Tensor:
    """The last hidden states of a prompt that enters the cache, [1, hidden]."""
    known = cache.enter(len(prompt), beginning)
    tokens = torch.from_numpy(prompt[known:].astype(np.int64))[None].to(model.device)
    mask = torch.ones(1, len(prompt), dtype=torch.int64, device=model.device)
    position = torch.arange(known, len(prompt), device=model.device)[None]
    return model.decode(tokens, mask, position, cache.store)


def _common(prompts: list[npt.NDArray[np.int32]]) -> int:
    """How many tokens all prompts begin with, as far as it is worth a copy; of each at least one is left to be read."""
    if len(prompts) < 2:
        return 0
    shortest = min(map(len, prompts)) - 1
    same = np.logical_and.reduce([prompt[:shortest] == prompts[0][:shortest] for prompt in prompts[1:]])
    common = int(np.argmin(np.append(same, False)))
    return common if common >= _WORTH_A_COPY else 0


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
