"""Time and memory beside the lm-evaluation-harness, in one run on one machine: `make bench`.

Same model, data, dtype, one process of as many threads as the machine has cores; whole processes, start-up included.
The harness runs at the best of a few batch sizes, tuned first on a part of each task (not counted). Concord runs with its defaults
but for `compute.threads`, without the audit (the harness has none) and, for the
shorter work in a row of its own, with it; there, and for the rolling task, one process of one thread is timed too, which says what the
second process gains, and beside it what a second process that only copies memory gains.

Under the rolling task stands what its linear layers alone would take at the rate that this machine reaches at their shapes, measured in
the same run: no implementation that computes them so can be faster.

Peak memory is counted above a process that has imported the same libraries and loaded the same weights, measured in the same run.
The table goes to `benchmarks/README.md` with `--write`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from machine import describe_machine, write_block

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / ".data"
MODEL = DATA / "smollm2-135m-instruct"

Kind = Literal["choices", "rolling", "shots", "written"]


@dataclass(frozen=True)
class Workload:
    """One thing that both sides do.

    Attributes:
        name: for the table.
        kind: what is asked.
        max_length: tokens the model sees.
        tasks: names of the JSONL files in `.data`.
        batch_sizes: that the harness is tuned over, on the first `tune_limit` examples.
        time_target, memory_target: largest ratio to the harness that was promised, or None.
        limit: examples of each task; None: all.
    """

    name: str
    kind: Kind
    max_length: int
    tasks: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    tune_limit: int
    time_target: float
    memory_target: float | None
    limit: int | None = None


WORKLOADS = (
    Workload(
        name="three BIG-bench multiple choices",
        kind="choices",
        max_length=2048,
        tasks=("disambiguation_qa", "hindu_knowledge", "novel_concepts"),
        batch_sizes=(4, 8, 16),
        tune_limit=40,
        time_target=1 / 3,
        memory_target=0.50,
    ),
    Workload(
        name="rolling pydoc topics",
        kind="rolling",
        max_length=1024,
        tasks=("pydoc",),
        batch_sizes=(1, 2),
        tune_limit=6,
        time_target=0.75,
        memory_target=0.15,
    ),
    Workload(
        name="multiple choice after 1,000 shared tokens, 5 of its examples solved",
        kind="shots",
        max_length=2048,
        tasks=("topics",),
        batch_sizes=(1, 4),
        tune_limit=4,
        time_target=1 / 6,
        memory_target=None,
        limit=20,
    ),
    Workload(
        name="greedy generation, HumanEval, 128 new tokens",
        kind="written",
        max_length=2048,
        tasks=("humaneval",),
        batch_sizes=(8, 16, 32),
        tune_limit=32,
        time_target=1 / 3,
        memory_target=None,
    ),
)


@dataclass(frozen=True)
class Usage:
    """Of a whole process and what it waited for: wall and CPU seconds, peak bytes of its largest process."""

    wall: float
    cpu: float
    peak: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=get_args(Kind), help="one of the workloads")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of both sides")
    parser.add_argument("--limit", type=int, help="the first so many examples of each task, for a quick look")
    parser.add_argument("--batch-size", type=int, help="of the harness, where it has been tuned already")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    options = parser.parse_args()
    threads = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = []
        for workload in WORKLOADS:
            if options.only in (None, workload.kind):
                limited = replace(workload, limit=options.limit or workload.limit)
                rows += measure(limited, folder, threads, options.batch_size, options.dtype)
        rows.append(help_row(folder))
    table = "\n".join([f"{describe_with_torch()}; {options.dtype}.", "", *HEADER, *rows])
    print(table)
    if options.write:
        write_block("measured" if options.dtype == "float32" else f"measured-{options.dtype}", table)


ONE_CORE = "concord, 1 process of 1 thread"
HEADER = (
    "| work | side | wall s | CPU s | ratio of wall | to reach | peak MB | above imports and weights | ratio | to reach |",
    "| :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: |",
)


def measure(workload: Workload, folder: Path, threads: int, batch_size: int | None, dtype: str) -> list[str]:
    """The rows of one workload."""
    if workload.limit:
        workload = replace(workload, name=f"{workload.name}, first {workload.limit} of each")
    harness_tasks(workload, folder)
    best = batch_size or tune(workload, folder, threads, dtype)
    theirs = run(harness(workload, folder, best, dtype), threads)
    their_floor = run(
        python("from lm_eval.models.huggingface import HFLM", f"HFLM({str(MODEL)!r}, dtype={dtype!r}, device='cpu')"),
        threads,
    )
    our_floor = run(python(*FLOOR, load_line(dtype)), threads)
    rows = [row(workload, f"lm-eval {metadata.version('lm-eval')}, batch size {best}", theirs, their_floor, None, None)]
    many = f"concord, {threads} processes"
    sides = [("concord", 0, 1), (many, 0, threads)]
    if workload.kind == "choices":
        sides.append(("concord, audit as by default", None, 1))
    if workload.kind in ("choices", "rolling"):
        sides.append((ONE_CORE, 0, 1))
    if workload.kind == "rolling":
        rows.append(bound_row(workload, folder, threads, dtype, theirs))
    walls = {}
    for name, audit, nproc in sides:
        cores = 1 if name == ONE_CORE else threads
        ours = run(concord(workload, folder, audit, nproc, cores, dtype), cores)
        walls[name] = ours.wall
        judged = (theirs, their_floor)
        rows.append(row(workload, name, ours, our_floor, judged, workload if name == "concord" else None))
    if ONE_CORE in walls:
        rows.append(second_process_row(workload, walls[ONE_CORE] / walls[many], threads, dtype))
    if workload.kind == "choices":
        rows.append(first_batch_row(workload, folder, threads, dtype, our_floor))
    return rows


FLOOR = (
    "import os, torch, transformers, eval_core.work.worker",
    "transformers.AutoModelForCausalLM",
    "if pid := os.fork(): os.waitpid(pid, 0), os._exit(0)",
)
"""What a rank of ours is before it works: forked from a process that has imported, its weights loaded."""


def first_batch_row(workload: Workload, folder: Path, threads: int, dtype: str, floor: Usage) -> str:
    """From the command to its first micro-batch, beyond what importing and loading take in a process of their own."""
    command = concord(workload, folder, 0, 1, threads, dtype)
    target = Path(command[command.index("--run") + 1])
    began = time.time()
    run(command, threads)
    shards = [json.loads(path.read_bytes()) for path in target.glob("shards/main/*.json")]
    first = min(shard["provenance"]["started"] for shard in shards) - began
    line = (
        f"| start to first micro-batch, beyond {floor.wall:.1f} s of imports and weights | concord | {first - floor.wall:.1f} | | | 1 s "
        "| | | | |"
    )
    return said(line)


def second_process_row(workload: Workload, gain: float, threads: int, dtype: str) -> str:
    """What processes of one thread gain over one, and what they could by this machine's memory alone."""
    goal = "1.90" if dtype == "float32" else "1.75"
    alone, together = copied(1), copied(threads)
    line = (
        f"| {workload.name} | concord, {threads} processes of 1 thread against 1; copying memory they do {together:.1f} GB/s against "
        f"{alone:.1f} | | | {gain:.2f} times | {goal} times | | | | |"
    )
    return said(line)


def copied(processes: int) -> float:
    """GB/s that so many processes copy at once, read and written counted once."""
    running = [
        subprocess.Popen([sys.executable, "-c", COPY], stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    return sum(float(process.communicate()[0]) for process in running)


COPY = """
import time
import numpy as np
source, target = np.ones(1 << 26, dtype=np.float32), np.zeros(1 << 26, dtype=np.float32)
began = time.perf_counter()
for _ in range(20):
    np.copyto(target, source)
print(20 * source.nbytes / (time.perf_counter() - began) / 1e9)
"""


def bound_row(workload: Workload, folder: Path, threads: int, dtype: str, theirs: Usage) -> str:
    """The linear layers of the rolling task at this machine's own rate."""
    target = folder / "bound"
    command = concord(workload, folder, 0, 1, threads, dtype)
    spec = command[command.index("run") + 1]
    run([*command[:3], "plan", spec, "--run", str(target)], threads)
    wall = float(output_of(python(GEMM.format(model=str(MODEL), plan=str(target))), threads))
    goal = max(0.5, wall / 0.75 / theirs.wall)
    line = f"| {workload.name} | its linear layers alone, float32 | {wall:.1f} | | {wall / theirs.wall:.2f} | {goal:.2f} for all | | | | |"
    return said(line)


GEMM = """
import json, time, torch
from eval_core.plan.files import load_plan
from eval_core.storage import Store
from eval_core.work.products import onednn_product
config = json.load(open({model!r} + "/config.json"))
hidden, wide, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
keys = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
plan = load_plan(Store({plan!r}))
tokens = int(plan.micro_batches.tokens.sum())
scored = int(plan.requests.n_scored.sum())
shapes = [(layers * n, k, m, 1024) for n, k, m in ((2, hidden, hidden), (2, hidden, keys), (2, hidden, wide), (1, wide, hidden))]
total = 0.0
for count, inputs, outputs, rows in [*shapes, (config["vocab_size"] / 4096, hidden, 4096, 192)]:
    x, w = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    onednn_product(x, w)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        onednn_product(x, w)
        times.append(time.perf_counter() - began)
    total += count * sorted(times)[len(times) // 2] * (tokens if rows == 1024 else scored) / rows
print(total)
"""


def tune(workload: Workload, folder: Path, threads: int, dtype: str) -> int:
    """The harness's fastest batch size on the first examples."""
    few = replace(workload, limit=workload.tune_limit)
    tuned = {size: run(harness(few, folder, size, dtype), threads).wall for size in workload.batch_sizes}
    log(f"{workload.name}: seconds of the harness by batch size, on {workload.tune_limit} examples a task: {tuned}")
    return min(tuned, key=tuned.__getitem__)


def row(
    workload: Workload,
    side: str,
    usage: Usage,
    floor: Usage,
    other: tuple[Usage, Usage] | None,
    target: Workload | None,
) -> str:
    above = max(usage.peak - floor.peak, 0)
    time_ratio = memory_ratio = time_goal = memory_goal = ""
    if other is not None:
        time_ratio = f"{usage.wall / other[0].wall:.2f}"
        memory_ratio = f"{above / max(other[0].peak - other[1].peak, 1):.2f}"
    if target is not None:
        time_goal = f"{target.time_target:.2f}"
        memory_goal = f"{target.memory_target:.2f}" if target.memory_target else ""
    line = (
        f"| {workload.name} | {side} | {usage.wall:.1f} | {usage.cpu:.1f} | {time_ratio} | {time_goal} "
        f"| {usage.peak / 1e6:.0f} | {above / 1e6:.0f} MB | {memory_ratio} | {memory_goal} |"
    )
    return said(line)


def help_row(folder: Path) -> str:
    """`concord --help`, the median of five."""
    times = sorted(run([sys.executable, "-m", "eval_core.cli", "--help"], 1).wall for _ in range(5))
    return f"| `concord --help` | concord | {times[2]:.2f} | | | 0.20 s | | | | |"


def run(command: list[str], threads: int) -> Usage:
    """Run a whole process; its output is kept from the terminal.

    Raises:
        SystemExit: it failed; its last words are printed.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
        if status != 0:
            output.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{output.read().decode(errors='replace')[-3000:]}")
    return Usage(wall=wall, cpu=used.ru_utime + used.ru_stime, peak=used.ru_maxrss * 1024)


def output_of(command: list[str], threads: int) -> str:
    """What a process prints."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def harness_tasks(workload: Workload, folder: Path) -> None:
    """The workload as task files of the harness."""
    for task in workload.tasks:
        common = {
            "task": task,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(DATA / f"{task}.jsonl")}},
            "test_split": "test",
        }
        metrics, kind = TASK_FILES[workload.kind]
        if workload.kind == "shots":
            preamble = json.loads((DATA / "pydoc.jsonl").read_text(encoding="utf-8").splitlines()[0])["text"]
            kind = kind | {"description": preamble[:2600] + "\n\n"}
        text = json.dumps(common | kind | {"metric_list": [{"metric": metric} for metric in metrics]})
        (folder / f"{task}.yaml").write_text(text, encoding="utf-8")


TASK_FILES: dict[Kind, tuple[tuple[str, ...], dict[str, Any]]] = {
    "choices": (
        ("acc", "acc_norm", "acc_bytes"),
        {
            "output_type": "multiple_choice",
            "doc_to_text": "Q: {{input}}\nA:",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
        },
    ),
    "rolling": (
        ("word_perplexity", "byte_perplexity", "bits_per_byte"),
        {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"},
    ),
    "shots": (
        ("acc", "acc_norm"),
        {
            "output_type": "multiple_choice",
            "num_fewshot": 5,
            "fewshot_split": "test",
            "fewshot_config": {"sampler": "first_n"},
            "doc_to_text": "{{text}}\nTitle:",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
        },
    ),
    "written": (
        ("exact_match",),
        {
            "output_type": "generate_until",
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "{{canonical_solution}}",
            "generation_kwargs": {
                "until": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"],
                "max_gen_toks": 128,
                "do_sample": False,
            },
        },
    ),
}
"""Metrics and task files of the harness."""


def harness(workload: Workload, folder: Path, batch_size: int, dtype: str) -> list[str]:
    """The harness's command line."""
    arguments = f"pretrained={MODEL},dtype={dtype},max_length={workload.max_length}"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", arguments]
    command += ["--tasks", ",".join(workload.tasks), "--include_path", str(folder), "--device", "cpu"]
    command += ["--batch_size", str(batch_size)]
    return command + (["--limit", str(workload.limit)] if workload.limit else [])


def concord(workload: Workload, folder: Path, audit: int | None, nproc: int, threads: int, dtype: str) -> list[str]:
    """Our command line, on a new run."""
    own = {
        "choices": 'name: {task}, data: {data}/{task}.jsonl, type: multiple_choice, prompt: "Q: {{input}}\\nA:"',
        "rolling": "name: {task}, data: {data}/{task}.jsonl, type: perplexity",
    }
    entry = own.get(workload.kind, "lm_eval: {task}, include_path: {folder}")
    cut = f", limit: {workload.limit}" if workload.limit else ""
    lines = [f"  - {{{entry.format(task=task, data=DATA, folder=folder)}{cut}}}" for task in workload.tasks]
    head = [f"name: bench\nmodel: {MODEL}\nmax_length: {workload.max_length}\ntasks:"]
    tail = [f"compute: {{threads: {threads // nproc}, dtype: {dtype}}}\naudit: {{micro_batches: {json.dumps(audit)}}}"]
    spec = folder / f"bench-{audit}-{nproc}.yaml"
    spec.write_text("\n".join(head + lines + tail), encoding="utf-8")
    target = folder / f"run-{time.monotonic_ns()}"
    return [sys.executable, "-m", "eval_core.cli", "run", str(spec), "--run", str(target), "--nproc", str(nproc)]


def python(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def load_line(dtype: str) -> str:
    return (
        "from eval_core.work.model import load_model; from eval_core.spec import Compute; from pathlib import Path;"
        f"load_model(Path({str(MODEL)!r}), Compute(), {dtype!r}, torch.device('cpu'), allow_pickle=False, trees=False)"
    )


def describe_with_torch() -> str:
    """As `describe_machine`, with the vector instructions that torch uses."""
    import torch

    machine = describe_machine("torch", "transformers", "lm-eval").removesuffix(".")
    return f"{machine}, torch's kernels for {torch.backends.cpu.get_cpu_capability()}"


def said(line: str) -> str:
    """`line`, which the terminal has now too."""
    log(line)
    return line


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
