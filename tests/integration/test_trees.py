"""Every architecture that may share rows computes a request in a shared row as it computes it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from eval_core.errors import ModelError
from eval_core.model_files import TREE_TYPES, ModelShape, read_shape, weight_files
from eval_core.plan.build import lay_out, one_by_one
from eval_core.plan.types import RequestTable
from eval_core.spec import Batch, Compute
from eval_core.work.forward import Scored, score_alone, score_micro_batch
from eval_core.work.model import Model, load_model

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
OWN_NAMES = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"n_layer": 2, "n_head": 4},
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0},
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LARGE_WEIGHTS = {"initializer_range": 0.4, "init_std": 0.4}
"""So that every token that is seen counts."""


def make(folder: Path, model_type: str, **more: int) -> Path:
    """A random model of two small layers."""
    sizes = {**SIZES, **OWN_NAMES.get(model_type, {}), **LARGE_WEIGHTS, **more}
    if "moe" in model_type or model_type == "mixtral":
        sizes |= EXPERTS
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(model_type, **sizes, **tokens)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def load(folder: Path, attention: str = "eager", dtype: str = "float32") -> Model:
    compute = Compute(attention=attention)
    return load_model(folder, compute, dtype, torch.device("cpu"), allow_pickle=False, trees=True)


def scores(model: Model, shape: ModelShape, *, share: bool) -> tuple[np.ndarray, int]:
    """(log-likelihoods of three questions with four answers each, in their order, tokens that the model read)."""
    return computed(model, shape, Batch(share_prefixes=share), score_micro_batch)


def computed(model: Model, shape: ModelShape, batch: Batch, score: Callable[..., Scored]) -> tuple[np.ndarray, int]:
    draw = np.random.default_rng(0)
    prompts = [draw.integers(3, 99, size).tolist() for size in (20, 9, 14)]
    rows = [(p + draw.integers(3, 99, n).tolist(), n) for p in prompts for n in (1, 2, 4, 3)]
    table = RequestTable(
        tokens=np.concatenate([tokens for tokens, _ in rows]).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum([len(tokens) for tokens, _ in rows])]).astype(np.int64),
        n_scored=np.array([n for _, n in rows], dtype=np.int32),
        generation=np.full(len(rows), -1, dtype=np.int32),
        shared=np.zeros(len(rows), dtype=np.int32),
    )
    groups = np.repeat(np.arange(3), 4).astype(np.int64)
    moved, order, micro_batches = lay_out(table, groups, np.zeros_like(table.n_scored), (), batch, shape, 64)
    plan = SimpleNamespace(
        requests=moved, micro_batches=micro_batches, spec=SimpleNamespace(compute=Compute()), asks_greedy=False
    )
    nll = np.concatenate([score(plan, batch, model).nll for batch in range(len(micro_batches))])
    parts = np.split(nll, np.cumsum(moved.n_scored)[:-1])
    back = [parts[place] for place in np.argsort(order)]
    return np.concatenate(back), int(micro_batches.tokens.sum())


@pytest.mark.parametrize("model_type", sorted(TREE_TYPES))
def test_a_shared_row_gives_what_rows_of_their_own_give(model_type: str, tmp_path: Path) -> None:
    folder = make(tmp_path, model_type)
    shape = read_shape(folder, weight_files(folder, allow_pickle=False))
    model = load(folder)
    packed, few = scores(model, shape, share=True)
    alone, many = scores(model, shape, share=False)
    assert few < many / 2
    assert alone.std() > 0.5
    np.testing.assert_allclose(packed, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("attention", "dtype"), [("sdpa", "float32"), ("sdpa", "float64"), ("sdpa", "bfloat16")])
def test_in_every_dtype(attention: str, dtype: str, tmp_path: Path) -> None:
    folder = make(tmp_path, "llama")
    shape = read_shape(folder, weight_files(folder, allow_pickle=False))
    model = load(folder, attention, dtype)
    packed, alone = (scores(model, shape, share=share)[0] for share in (True, False))
    exactness = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 0.3}[dtype]
    assert alone.dtype == (np.float64 if dtype == "float64" else np.float32)
    np.testing.assert_allclose(packed, alone, rtol=exactness, atol=exactness)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_taken_apart_is_what_mode_reference_computes(dtype: str, tmp_path: Path) -> None:
    folder = make(tmp_path, "llama")
    shape = read_shape(folder, weight_files(folder, allow_pickle=False))
    model = load(folder, "sdpa", dtype)

    def apart_score(plan: Any, batch: int, model: Model) -> Scored:
        return score_alone(plan, range(*plan.micro_batches.first_request[batch : batch + 2].tolist()), model)

    apart, _ = computed(model, shape, Batch(), apart_score)
    reference, _ = computed(model, shape, one_by_one(Batch()), score_micro_batch)
    together, _ = computed(model, shape, Batch(), score_micro_batch)
    assert apart.tobytes() == reference.tobytes()
    assert together.tobytes() != reference.tobytes()


@pytest.mark.parametrize("model_type", sorted(TREE_TYPES))
def test_a_cache_gives_what_whole_prompts_give(model_type: str, tmp_path: Path) -> None:
    folder = make(tmp_path, model_type)
    load_model(folder, Compute(attention="eager"), "float32", torch.device("cpu"), allow_pickle=False, generates=True)


def test_an_architecture_without_such_a_cache_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, "mamba")  # whose state is no cache of keys and values
    with pytest.raises(ModelError, match="tasks that generate text are not supported"):
        load_model(
            folder, Compute(attention="eager"), "float32", torch.device("cpu"), allow_pickle=False, generates=True
        )


def test_an_architecture_that_would_not_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, "bloom")
    assert not read_shape(folder, weight_files(folder, allow_pickle=False)).takes_trees(64)
    with pytest.raises(ModelError, match="share_prefixes: false"):
        load(folder)
