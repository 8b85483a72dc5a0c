"""Numbers of others: what the lm-evaluation-harness gives for the same model, data and settings.

The reference values were measured with lm-eval 0.4.13 (its `hf` model, float32) on SmolLM2-135M-Instruct. The help texts differ
between patch releases of Python; where the measured values don't apply, the harness itself runs on 20 documents.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch

DATA = Path(__file__).resolve().parents[2] / ".data"
MODEL = DATA / "smollm2-135m-instruct"

pytestmark = pytest.mark.skipif(not MODEL.is_dir(), reason="the model is fetched by `make data`")

TEXT = "\0".join(topics[title] for title in sorted(topics))
MEASURED_TEXT = "d816f8d22e0cf35d139a6b91ddbf71926779433fc91cdc3a126e599d8445e57e"
"""sha256 of `TEXT` with Python 3.11.7: 79 documents, 464,970 characters."""

MEASURED_PYDOC = {
    "AVX512": {"bits_per_byte": "0.8556", "byte_ppl": "1.8095", "word_ppl": "67.7009"},
    "AVX2": {"bits_per_byte": "0.8556", "byte_ppl": "1.8095", "word_ppl": "67.6998"},
}
"""On those documents, max_length 1024, by the instruction set that torch uses, on which the last digit depends
(docs/decisions/0004-log-softmax-of-the-harness.md). AVX512: measured with the harness. AVX2: our own value; there the
harness itself runs on 20 documents."""

CAPABILITY = torch.backends.cpu.get_cpu_capability()
MEASURED_HERE = hashlib.sha256(TEXT.encode()).hexdigest() == MEASURED_TEXT and CAPABILITY in MEASURED_PYDOC

MEASURED_CHOICES = {
    "disambiguation_qa": {"acc": "0.3256", "acc_norm": "0.4884"},
    "hindu_knowledge": {"acc": "0.3086", "acc_norm": "0.2743"},
}
"""BIG-bench, zero-shot, max_length 2048."""

SPEC = """
name: reference
model: {model}
max_length: {max_length}
tasks:
{tasks}
audit: {{micro_batches: 1}}
"""


def evaluate(concord: Callable, folder: Path, max_length: int, tasks: list[str]) -> dict[str, dict[str, float]]:
    """Task -> metric -> value, from a run on two processes."""
    spec = folder / "spec.yaml"
    lines = "\n".join(f"  - {{{task}}}" for task in tasks)
    spec.write_text(SPEC.format(model=MODEL, max_length=max_length, tasks=lines), encoding="utf-8")
    done = concord("run", spec, "--run", folder / "run", "--nproc", 2, timeout=3000)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "run/results.json").read_text())["results"]
    return {
        task: {name.partition(",")[0]: value for name, value in metrics.items() if isinstance(value, float)}
        for task, metrics in results.items()
    }


def printed(values: dict[str, float], names: dict[str, str]) -> dict[str, str]:
    """`values` as the harness prints them, with four digits after the point."""
    return {name: f"{values[name]:.4f}" for name in names}


def test_multiple_choice_matches_to_the_last_printed_digit(concord: Callable, tmp_path: Path) -> None:
    tasks = [
        f'name: {name}, type: multiple_choice, data: {DATA}/{name}.jsonl, prompt: "Q: {{input}}\\nA:"'
        for name in MEASURED_CHOICES
    ]
    values = evaluate(concord, tmp_path, 2048, tasks)
    for name, measured in MEASURED_CHOICES.items():
        assert printed(values[name], measured) == measured


@pytest.mark.skipif(not MEASURED_HERE, reason="another text or instruction set than was measured")
def test_rolling_matches_to_the_last_printed_digit(concord: Callable, tmp_path: Path) -> None:
    values = evaluate(concord, tmp_path, 1024, [f"name: pydoc, type: perplexity, data: {DATA}/pydoc.jsonl"])
    measured = MEASURED_PYDOC[CAPABILITY]
    assert printed(values["pydoc"], measured) == measured


@pytest.mark.skipif(MEASURED_HERE and CAPABILITY == "AVX512", reason="the harness's values are at hand")
def test_rolling_matches_the_harness_itself(concord: Callable, tmp_path: Path) -> None:
    documents = [topics[title] for title in sorted(topics)[:20]]
    task = f"name: pydoc, type: perplexity, data: {DATA}/pydoc.jsonl, limit: 20"
    values = evaluate(concord, tmp_path, 1024, [task])
    theirs = harness_rolling(documents)
    assert printed(values["pydoc"], theirs) == {name: f"{value:.4f}" for name, value in theirs.items()}


def harness_rolling(documents: list[str]) -> dict[str, float]:
    """The metrics that lm-eval's own model and aggregation give for `documents`."""
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=str(MODEL), dtype="float32", device="cpu", max_length=1024, batch_size=1)
    requests = [
        Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=i)
        for i, text in enumerate(documents)
    ]
    sums = model.loglikelihood_rolling(requests, disable_tqdm=True)
    assert not any(map(math.isnan, sums))
    by_byte = [(s, len(text.encode())) for s, text in zip(sums, documents, strict=True)]
    by_word = [(s, len(re.split(r"\s+", text))) for s, text in zip(sums, documents, strict=True)]
    return {
        "bits_per_byte": bits_per_byte(by_byte),
        "byte_ppl": weighted_perplexity(by_byte),
        "word_ppl": weighted_perplexity(by_word),
    }
