"""What the unit tests share: a tokenizer, a model folder of a few kilobytes, a spec and its plan, made-up results."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from safetensors.numpy import save_file
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from eval_core.metrics.score import Scores, score_items
from eval_core.plan.build import build_plan
from eval_core.plan.types import Plan, parse_shard_id
from eval_core.shard_file import Provenance, ShardResult
from eval_core.spec_yaml import parse_spec
from eval_core.tokenizer import Tokenizer

settings.register_profile("unit", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")

VOCABULARY = 320
MAX_LENGTH = 64

SPEC = """
name: tiny
model: model
tasks:
  - {name: docs, type: perplexity, data: docs.jsonl, window: 24, stride: 16}
  - {name: quiz, type: multiple_choice, data: quiz.jsonl, prompt: "Q: {question}\\nA:"}
batch: {tokens: 96, shard_cost: 20000}
audit: {micro_batches: 3}
report: {bootstrap: 20}
"""


@pytest.fixture(scope="session")
def fast_tokenizer() -> FastTokenizer:
    """A byte-level BPE with a few merges of English, BOS 0 and EOS 1."""
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(inspect.getdoc(textwrap.wrap).splitlines() * 3, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer(fast_tokenizer: FastTokenizer) -> Tokenizer:
    return Tokenizer(fast=fast_tokenizer, bos=0, eos=1, adds_bos=False)


@pytest.fixture(scope="session")
def write_inputs(fast_tokenizer: FastTokenizer) -> Callable[[Path], Path]:
    """Write a model, two data files and their spec into a folder: `write_inputs(folder)` gives it back."""

    def write(folder: Path) -> Path:
        model = folder / "model"
        model.mkdir(parents=True)
        config = {
            "hidden_size": 4,
            "num_hidden_layers": 1,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": MAX_LENGTH,
        }
        (model / "config.json").write_text(json.dumps(config))
        tensors = {
            "model.embed_tokens.weight": np.arange(VOCABULARY * 4, dtype=np.float32).reshape(VOCABULARY, 4),
            "model.layers.0.weight": np.ones((4, 4), dtype=np.float32),
        }
        save_file(tensors, model / "model.safetensors")
        fast_tokenizer.save(str(model / "tokenizer.json"))
        special = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
        (model / "tokenizer_config.json").write_text(json.dumps(special))
        texts = ["the words of a text " * n for n in (1, 3, 9)] + ["naïve 😀 text", "a  b\n\nc"]
        write_jsonl(folder / "docs.jsonl", [{"text": text} for text in texts])
        write_jsonl(
            folder / "quiz.jsonl",
            [
                {
                    "question": f"{'very ' * n}number {n}?",
                    "choices": ["one", "two words", "número"][: 2 + n % 2],
                    "answer": n % 2,
                }
                for n in range(8)
            ],
        )
        (folder / "spec.yaml").write_text(SPEC)
        return folder

    return write


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def inputs(write_inputs: Callable[[Path], Path], tmp_path: Path) -> Path:
    """A folder with `spec.yaml`, `model/`, `docs.jsonl` and `quiz.jsonl`, to be changed at will."""
    return write_inputs(tmp_path / "inputs")


@pytest.fixture(scope="session")
def plan_in() -> Callable[..., Plan]:
    """The plan of a folder's spec, with pieces of its text replaced: `plan_in(folder, ("tokens: 96", "tokens: 64"))`."""

    def plan(folder: Path, *changes: tuple[str, str]) -> Plan:
        text = (folder / "spec.yaml").read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return build_plan(parse_spec(text, "spec.yaml"), folder)

    return plan


@pytest.fixture(scope="session")
def plan(
    write_inputs: Callable[[Path], Path], plan_in: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory
) -> Plan:
    """The plan of the inputs as they are written; for reading only."""
    return plan_in(write_inputs(tmp_path_factory.mktemp("planned") / "inputs"))


@pytest.fixture(scope="session")
def made_up_nll() -> Callable[..., np.ndarray]:
    """Random negative log-likelihoods of all scored tokens of a plan, in the requests' order."""

    def draw(plan: Plan, seed: int = 0) -> np.ndarray:
        count = int(plan.requests.n_scored.sum())
        return np.random.default_rng(seed).exponential(2.0, count).astype(np.float32)

    return draw


@pytest.fixture(scope="session")
def shard_result() -> Callable[[Plan, str, np.ndarray], ShardResult]:
    """What a worker would commit for a shard, from the scored tokens of the whole plan."""

    def result(plan: Plan, shard: str, nll: np.ndarray) -> ShardResult:
        requests = plan.shard_requests(shard)
        starts = np.concatenate([[0], np.cumsum(plan.requests.n_scored)])
        part = nll[starts[requests.start] : starts[requests.stop]]
        kind, number = parse_shard_id(shard)
        scores = Scores.of(plan, requests, part)
        states = score_items(plan, plan.items_of(number), scores) if kind == "main" else {}
        return ShardResult(plan=plan.digest, shard=shard, nll=part, states=states)

    return result


@pytest.fixture(scope="session")
def provenance() -> Callable[..., Provenance]:
    """Who computed a shard; name what matters: `provenance(host="b")`."""

    def make(**changes: object) -> Provenance:
        values: dict[str, object] = {
            "attempt": "a1",
            "rank": 0,
            "world_size": 2,
            "host": "left",
            "node": 0,
            "device": "cpu",
            "started": 1.5,
            "finished": 2.25,
            "tokens": 100,
        }
        return Provenance(**(values | changes))  # type: ignore[arg-type]

    return make
