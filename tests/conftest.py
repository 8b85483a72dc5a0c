"""What all tests share: a tiny real model, and the command line as a user calls it."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def concord() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call the command line: `concord("run", spec, "--nproc", 2)`; output is captured, the exit code not judged."""

    def call(*arguments: object, timeout: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "eval_core.cli", *map(str, arguments)]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=os.environ | environment,
            cwd=ROOT,
            check=False,
        )

    return call


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with a tokenizer trained on Python's own help texts; loaded like any model."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    subprocess.run([sys.executable, str(ROOT / "tests" / "make_tiny_model.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of uneven length and questions with three answers, from Python's own help texts."""
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(7)
    texts = [topics[title] for title in sorted(topics)]
    documents = [{"text": text[: draw.randrange(40, 1500)]} for text in texts[:24]]
    questions = [
        {
            "input": text[: draw.randrange(30, 200)],
            "choices": draw.sample(sorted(topics), 3),
            "answer": draw.randrange(3),
        }
        for text in texts[24:64]
    ]
    for name, rows in (("documents", documents), ("questions", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


SPEC = """
name: tiny
model: {model}
tasks:
  - {{name: docs, type: perplexity, data: {data}/documents.jsonl, window: 64, stride: {stride}}}
  - {{name: quiz, type: multiple_choice, data: {data}/questions.jsonl, prompt: "Q: {{input}}\\nA:"}}
compute: {{dtype: {dtype}}}
batch: {{tokens: {tokens}, shard_cost: {shard_cost}}}
audit: {{micro_batches: 4}}
precision: {{tolerance: {tolerance}}}
work: {{sync_every: 2, progress_interval: 0.5, stall_timeout: 60}}
report: {{bootstrap: 50}}
"""


@pytest.fixture
def tiny_spec(tiny_model: Path, small_data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the spec of a run on the tiny model: `tiny_spec(dtype="bfloat16")`."""

    def write(
        dtype: str = "float32",
        tolerance: float = 0.001,
        shard_cost: int = 50_000_000,
        tokens: int = 256,
        stride: int = 48,
        model: Path | None = None,
    ) -> Path:
        path = tmp_path / f"{dtype}.yaml"
        values = {"dtype": dtype, "tolerance": tolerance, "shard_cost": shard_cost, "tokens": tokens, "stride": stride}
        text = SPEC.format(model=model or tiny_model, data=small_data, **values)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """The environment that leads to a local S3 server with the bucket `evaluations`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(ROOT / "tests" / "s3_server.py"), str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, region = f"http://127.0.0.1:{port}", "us-east-1"
    access = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    try:
        wait_for_port(port)
        client = boto3.client("s3", endpoint_url=url, region_name=region, **access)
        client.create_bucket(Bucket="evaluations")
        named = {name.upper(): value for name, value in access.items()}
        yield named | {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": region}
    finally:
        server.terminate()
        server.wait()


def wait_for_port(port: int) -> None:
    """Return as soon as somebody listens on 127.0.0.1:`port`."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on port {port}")
