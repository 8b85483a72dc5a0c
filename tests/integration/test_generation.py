"""Texts that enter and leave the rows of a micro-batch are those that each prompt gives alone, without a cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_trees import make
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models

from eval_core.spec import Batch, Compute
from eval_core.tasks.examples import Generation
from eval_core.tokenizer import Tokenizer
from eval_core.work.cache import TextCache
from eval_core.work.generate import cut, generate_micro_batch
from eval_core.work.model import Model, load_model, set_up_compute

VOCABULARY = 99
GREEDY = Generation(
    max_new=14, until=("7 1", "5 6"), eos=tuple(range(3, 9)), temperature=0.0, top_k=None, top_p=None, draw=0
)
COLUMNS = 20 + GREEDY.max_new


@pytest.fixture
def numbers() -> Tokenizer:
    """A tokenizer whose tokens are written as their numbers."""
    vocabulary = {str(number): number for number in range(VOCABULARY)}
    return Tokenizer(
        fast=FastTokenizer(models.WordLevel(vocabulary, unk_token="0")), bos=None, eos=None, adds_bos=False
    )


def prompts_of(shared: int) -> list[list[int]]:
    """Twelve prompts of 3 to 20 tokens that have their first `shared` in common, not sorted by length but for the first."""
    draw = np.random.default_rng(0)
    common = draw.integers(9, VOCABULARY, shared).tolist()
    lengths = [20, 3, 11, 19, 4, 8, 5, 17, 6, 7, 9, 18]
    return [(common + draw.integers(9, VOCABULARY, max(n - shared, 1)).tolist())[: max(n, shared + 1)] for n in lengths]


def load(folder: Path, attention: str = "sdpa") -> Model:
    compute = Compute(attention=attention)  # type: ignore[arg-type]
    return load_model(folder, compute, "float32", set_up_compute(compute, 0), allow_pickle=False, generates=True)


def texts(
    model: Model, tokenizer: Tokenizer, prompts: list[list[int]], rows: int, way: Generation
) -> list[tuple[tuple[int, ...], str]]:
    """(tokens, text) after each prompt, with `rows` texts at once."""
    plan: Any = SimpleNamespace(
        generation_of=lambda batch: way,
        requests=SimpleNamespace(
            tokens=np.concatenate(prompts).astype(np.int32), offsets=np.cumsum([0, *map(len, prompts)])
        ),
        micro_batches=SimpleNamespace(first_request=np.array([0, len(prompts)])),
        spec=SimpleNamespace(seed=1, batch=Batch(generated_tokens=rows * COLUMNS)),
    )
    entered: list[None] = []
    scored = generate_micro_batch(plan, 0, model, tokenizer, lambda: entered.append(None))
    assert len(entered) == len(prompts)
    return [(text.tokens, text.text) for text in scored.generated]


def alone(model: Model, tokenizer: Tokenizer, prompt: list[int], way: Generation) -> tuple[tuple[int, ...], str]:
    """The same of one prompt, computed whole at each token."""
    written: list[int] = []
    while len(written) < way.max_new:
        hidden = model.body(torch.tensor([prompt + written]), None)[:, -1]
        written.append(int(model.head(hidden, None).argmax()))
        said = tokenizer.decode(written)
        if written[-1] in way.eos or any(stop in said for stop in way.until):
            break
    return tuple(written), cut(tokenizer.decode(written), way.until)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "opt", "qwen2", "qwen3_moe"])
@pytest.mark.parametrize("shared", [0, 17])
def test_rows_are_given_to_the_next_prompt(model_type: str, shared: int, numbers: Tokenizer, tmp_path: Path) -> None:
    model = load(make(tmp_path, model_type), attention="eager")
    prompts = prompts_of(shared)
    expected = [alone(model, numbers, prompt, GREEDY) for prompt in prompts]
    assert len({len(tokens) for tokens, _ in expected}) > 1, "they end at different times"
    for rows in (1, 3, len(prompts)):
        assert texts(model, numbers, prompts, rows, GREEDY) == expected


def test_texts_are_moved_when_the_columns_run_out(
    numbers: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(make(tmp_path, "llama"))
    prompts = prompts_of(0)
    moved = []
    move = TextCache._move_left
    monkeypatch.setattr(TextCache, "_move_left", lambda cache, columns: (moved.append(columns), move(cache, columns)))
    endless = replace(GREEDY, until=(), eos=())
    assert texts(model, numbers, prompts, 3, endless) == [alone(model, numbers, p, endless) for p in prompts]
    assert len(moved) > 1
    assert min(moved) > 0


def test_a_sliding_window_slides_along_each_text(numbers: Tokenizer, tmp_path: Path) -> None:
    model = load(make(tmp_path, "mistral", sliding_window=5))
    whole = load(make(tmp_path / "whole", "mistral"))
    for shared in (0, 17):
        prompts = prompts_of(shared)
        expected = [alone(model, numbers, prompt, GREEDY) for prompt in prompts]
        assert expected != [alone(whole, numbers, prompt, GREEDY) for prompt in prompts], "the window counts"
        assert texts(model, numbers, prompts, 3, GREEDY) == expected


def test_a_drawn_text_does_not_depend_on_who_is_written_beside_it(numbers: Tokenizer, tmp_path: Path) -> None:
    model = load(make(tmp_path, "llama"))
    drawn = replace(GREEDY, temperature=3.0, top_p=0.95)
    prompts = prompts_of(17)
    one, other = (texts(model, numbers, prompts, 4, replace(drawn, draw=draw)) for draw in (0, 1))
    assert one != other
    assert one == texts(model, numbers, prompts, 1, drawn)
    assert one[3:] == texts(model, numbers, prompts[3:], 2, drawn)
