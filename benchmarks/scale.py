"""Planning, reducing, verifying and reporting a million requests, without a model: `make bench-scale`.

The texts are made up of common words, the log-likelihoods drawn by a seed and committed as a worker would. Two runs, with
SmolLM2's tokenizer and the default sizes of batch and shard:

- *requests*: questions of four answers; as many requests as were asked for, of at most 64 tokens.
- *examples*: as many examples as were asked for, a quarter of them such questions, the rest documents of a perplexity task.

Each step is a process of its own, start-up included. The table goes to `benchmarks/README.md` with `--write`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench import MODEL, Usage, log, run
from machine import describe_machine, write_block

from eval_core.errors import ConcordError
from eval_core.metrics.score import Scores, score_items
from eval_core.plan.files import load_plan
from eval_core.plan.types import Plan, offsets_of
from eval_core.shard_file import Provenance, ShardResult, encode_shard, shard_key
from eval_core.storage import Store

MARK = "scale"
HEADER = (
    "| run | step | wall s | CPU s | peak MB | to reach |",
    "| :-- | :-- | --: | --: | --: | :-- |",
)
COMMON = (
    "the of and to in is was for on that with as it by at from his which an be this are or had not but have one their "
    "were all has when who will more no if out so what up said its about than into them can only other time new some "
    "could these two may first then do any like my now over such our man me even most made after also did many off "
    "before must well back through years where much your way down should because long each just those people how too "
    "little state good very make world still see own men work here get both between life being under never day same "
    "another know year while last might great old against go came right used take three house water small number"
)
WORDS = COMMON.split()
THREADS = os.cpu_count() or 1
MAX_TOKENS = 64
ANSWERS = 4
STEPS = ("reduce", "verify", "report")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1_000_000, help="requests of the one run, examples of the other")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--commit", metavar="URI", help="only commit made-up shards of the planned run there")
    options = parser.parse_args()
    if options.commit:
        commit(options.commit)
        return
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(Path(scratch), options.size)
    table = "\n".join([describe_machine("numpy", "pyarrow", "tokenizers"), "", *HEADER, *rows])
    print(table)
    if options.write:
        write_block(MARK, table)


def measure(folder: Path, size: int) -> list[str]:
    """The rows of both runs."""
    requests = write_inputs(folder / "requests", questions=size // ANSWERS, documents=0)
    examples = write_inputs(folder / "examples", questions=size // 4, documents=size - size // 4)
    rows = [row(f"{size:,} requests", "plan", step("plan", requests), "60 s, 2 GB")]
    name = f"{size:,} examples"
    rows.append(row(name, "plan", step("plan", examples), ""))
    run([sys.executable, __file__, "--commit", str(examples / "run")], THREADS)
    used = [step(verb, examples) for verb in STEPS]
    rows += [row(name, verb, usage, "") for verb, usage in zip(STEPS, used, strict=True)]
    total = Usage(wall=sum(u.wall for u in used), cpu=sum(u.cpu for u in used), peak=max(u.peak for u in used))
    return [*rows, row(name, "these three", total, "60 s, 2 GB")]


def row(run: str, step: str, usage: Usage, target: str) -> str:
    line = f"| {run} | {step} | {usage.wall:.1f} | {usage.cpu:.1f} | {usage.peak / 1e6:.0f} | {target} |"
    log(line)
    return line


def step(verb: str, folder: Path) -> Usage:
    """One step of the run in `folder`, as a whole process."""
    spec = [str(folder / "spec.yaml")] if verb == "plan" else []
    return run([sys.executable, "-m", "eval_core.cli", verb, *spec, "--run", str(folder / "run")], THREADS)


def write_inputs(folder: Path, *, questions: int, documents: int) -> Path:
    """Write the data and `spec.yaml` of a run into `folder`, and give it back."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    tasks = []
    if questions:
        write_jsonl(folder / "quiz.jsonl", (question(draw) for _ in range(questions)))
        tasks.append('{name: quiz, type: multiple_choice, data: quiz.jsonl, prompt: "Q: {question}\\nA:"}')
    if documents:
        write_jsonl(folder / "docs.jsonl", ({"text": words(draw, 20, 50)} for _ in range(documents)))
        tasks.append("{name: docs, type: perplexity, data: docs.jsonl}")
    head = f"name: scale\nmodel: {MODEL}\nmax_length: {MAX_TOKENS}\ntasks:"
    (folder / "spec.yaml").write_text("\n".join([head, *(f"  - {task}" for task in tasks)]), encoding="utf-8")
    return folder


def question(draw: random.Random) -> dict[str, Any]:
    return {
        "question": words(draw, 20, 45),
        "choices": [words(draw, 1, 8) for _ in range(ANSWERS)],
        "answer": draw.randrange(ANSWERS),
    }


def words(draw: random.Random, low: int, high: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(low, high)))


def write_jsonl(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def commit(uri: str) -> None:
    """Commit every shard of the run at `uri`, with log-likelihoods that are drawn and not computed."""
    store = Store(uri)
    plan = load_plan(store)
    counts = plan.requests.n_scored
    offsets = offsets_of(counts)
    everything = np.random.default_rng(0).exponential(3.0, int(offsets[-1])).astype(np.float32)
    for turn, shard in enumerate(plan.shard_ids()):
        requests = plan.shard_requests(shard)
        nll = everything[offsets[requests.start] : offsets[requests.stop]]
        result, provenance = made_up(plan, shard, nll), of_turn(turn, len(nll))
        if not store.put_new(shard_key(shard), encode_shard(result, provenance)[0]):
            raise ConcordError(f"{uri}: {shard} is there already")


def made_up(plan: Plan, shard: str, nll: np.ndarray) -> ShardResult:
    if shard.startswith("reference/"):
        return ShardResult(plan=plan.digest, shard=shard, nll=nll.astype(np.float64), states={})
    states = {}
    if shard.startswith("main/"):
        scores = Scores.of(plan, plan.shard_requests(shard), nll)
        states = score_items(plan, plan.items_of(int(shard.removeprefix("main/"))), scores)
    return ShardResult(plan=plan.digest, shard=shard, nll=nll, states=states)


def of_turn(turn: int, tokens: int) -> Provenance:
    """Eight ranks on two hosts, taking turns; a shard takes a second."""
    rank, started = turn % 8, 1767323045.0 + turn // 8
    return Provenance(
        attempt="20260102T030405-aaaaaaaa",
        rank=rank,
        world_size=8,
        host=f"node-{rank // 4}",
        node=rank // 4,
        device="cpu",
        started=started,
        finished=started + 1,
        tokens=tokens,
    )


if __name__ == "__main__":
    main()
