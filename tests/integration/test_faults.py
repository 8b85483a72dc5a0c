"""Faults are injected for real, and counted: killed ranks, torn and altered files, NaN weights, a stalled rank."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes import children, frozen, until

from eval_core.plan.files import load_plan
from eval_core.reduce import load_reduction, load_shards
from eval_core.shard_file import ShardResult, decode_shard, encode_shard, shard_key
from eval_core.storage import Store
from eval_core.verify.types import load_verification


def ranks_of(launcher: int) -> list[int]:
    """Process ids of the ranks that a `concord` process has started."""
    return [rank for nursery in children(launcher) for rank in children(nursery)]


def start(*arguments: object) -> subprocess.Popen[bytes]:
    """Start a `concord` process as a terminal would: with SIGINT not ignored, which a job in the background inherits."""
    command = [sys.executable, "-m", "eval_core.cli", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_shards(run: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while len(list(run.glob("shards/*/*.json"))) < count and process.poll() is None:
        assert time.monotonic() < deadline, "no shard was committed in two minutes"
        time.sleep(0.01)


def test_killed_ranks_and_restarts_on_other_world_sizes(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    spec = tiny_spec(shard_cost=1, tokens=64, stride=16)  # hundreds of shards are committed while a death is noticed
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert concord("run", spec, "--run", whole).returncode == 0
    draw = random.Random(3)
    killed, seen = 0, {}
    assert concord("plan", spec, "--run", broken).returncode == 0
    for world_size in (3, 2, 4):
        before = len(list(broken.glob("shards/*/*.json")))
        process = start("resume", "--run", broken, "--nproc", world_size)
        wait_for_shards(broken, before + draw.randrange(5, 40), process)
        if ranks := ranks_of(process.pid):
            victim = draw.choice(ranks)
            with frozen([rank for rank in ranks if rank != victim]):
                os.kill(victim, signal.SIGKILL)
            killed += 1
        _, stderr = process.communicate(timeout=120)
        if process.returncode != 0:
            assert b"SIGKILL" in stderr
            assert b"resume with: concord resume" in stderr
        for path in broken.glob("shards/*/*.json"):
            state = (path.stat().st_mtime_ns, path.stat().st_ino)
            assert seen.setdefault(path, state) == state, "a committed shard was written again"
    assert killed == 3, "the faults did not fire"
    done = concord("resume", "--run", broken, "--nproc", 2)
    assert done.returncode == 0, done.stderr
    for path, state in seen.items():
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == state, "a committed shard was written again"
    assert (whole / "results.json").read_bytes() == (broken / "results.json").read_bytes()
    assert load_reduction(Store(str(whole))).digest == load_reduction(Store(str(broken))).digest
    store = Store(str(broken))
    attempts = {file.provenance.attempt for file in load_shards(store, load_plan(store)).files.values()}
    assert len(attempts) >= 2


def test_torn_and_altered_shards_are_set_aside_and_computed_again(
    concord: Callable, tiny_spec: Callable, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert concord("run", tiny_spec(), "--run", run).returncode == 0
    before = (run / "results.json").read_bytes()
    torn, altered = run / "shards/main/000000.json", run / "shards/main/000001.json"
    torn.write_bytes(torn.read_bytes()[:100])
    data = bytearray(altered.read_bytes())
    data[data.index(b'"nll":"') + 20] ^= 1
    altered.write_bytes(bytes(data))

    verified = concord("verify", "--run", run)
    assert verified.returncode == 1
    assert "failed  digests" in verified.stderr
    assert "failed  coverage" in verified.stderr

    done = concord("resume", "--run", run)
    assert done.returncode == 0, done.stderr
    assert "set aside" in done.stderr
    assert len(list(run.glob("bad/*/*.json"))) == 2
    assert (run / "results.json").read_bytes() == before


def forge(run: Path, shard: str, token: int) -> None:
    """Put another value into a shard, with digests that fit: what a machine that computes wrongly would commit."""
    path = run / shard_key(shard)
    file = decode_shard(path.read_bytes(), shard)
    nll = file.result.nll.copy()
    nll[token] = np.nextafter(nll[token], np.float32(0))
    forged = ShardResult(plan=file.result.plan, shard=shard, nll=nll, states=file.result.states)
    path.write_bytes(encode_shard(forged, file.provenance)[0])


def test_one_wrong_bit_in_an_original_is_found_by_its_replay(
    concord: Callable, tiny_spec: Callable, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert concord("run", tiny_spec(), "--run", run).returncode == 0
    plan = load_plan(Store(str(run)))
    items = plan.items
    windows = set(
        items.link_request[plan.examples.task[np.repeat(items.example, np.diff(items.link_offsets))] == 0].tolist()
    )
    batch = next(b for b in plan.audited.tolist() if int(plan.micro_batches.first_request[b]) in windows)
    shard = f"main/{int(plan.main_shard_of_batch[batch]):06d}"
    first, start = plan.shard_requests(shard).start, int(plan.micro_batches.first_request[batch])
    forge(run, shard, int(plan.requests.n_scored[first:start].sum()))
    assert concord("reduce", "--run", run).returncode == 0
    verified = concord("verify", "--run", run)
    assert verified.returncode == 1
    statuses = {check.name: check.status for check in load_verification(Store(str(run))).checks}
    assert {name for name, status in statuses.items() if status == "failed"} == {
        "exactness",
        "shard totals",
        "all-reduce",
        "replay",
    }
    assert concord("report", "--run", run).returncode == 0
    assert "failed" in (run / "report.md").read_text().lower()


def test_nan_logits_name_the_example_and_keep_the_rest(
    concord: Callable, tiny_spec: Callable, tiny_model: Path, small_data: Path, tmp_path: Path
) -> None:
    """One token's embedding is NaN: only examples with that token are lost, and they are named."""
    model = tmp_path / "nan-model"
    script = (
        "import sys, torch; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T;"
        "m = M.from_pretrained(sys.argv[1]); t = T.from_pretrained(sys.argv[1]);"
        "m.get_input_embeddings().weight.data[t.convert_tokens_to_ids('Z')] = float('nan');"
        "m.save_pretrained(sys.argv[2]); t.save_pretrained(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", script, str(tiny_model), str(model)], check=True)
    texts = [json.loads(line)["text"] for line in (small_data / "documents.jsonl").read_text().splitlines()]
    hit = [i for i, text in enumerate(texts) if "Z" in text]
    spec = tiny_spec(model=model)
    text = spec.read_text()
    extra = tmp_path / "z.jsonl"
    extra.write_text('{"text": "plain words only"}\n{"text": "here is a Z in it"}\n{"text": "and plain again"}\n')
    spec.write_text(text.replace("tasks:", f"tasks:\n  - {{name: zed, type: perplexity, data: {extra}}}"))
    done = concord("run", spec, "--run", tmp_path / "run", "--nproc", 2)
    assert done.returncode == 1
    assert "zed example 1 has a log-likelihood that is not finite" in done.stderr
    finite = next(c for c in load_verification(Store(str(tmp_path / "run"))).checks if c.name == "finite")
    assert finite.status == "failed"
    assert f"in {1 + len(hit) + quiz_hits(small_data)} examples" in finite.found
    samples = [json.loads(line) for line in (tmp_path / "run/samples/zed.jsonl").read_text().splitlines()]
    assert isinstance(samples[0]["log_likelihood"], float)
    assert isinstance(samples[2]["log_likelihood"], float)


def quiz_hits(small_data: Path) -> int:
    rows = [json.loads(line) for line in (small_data / "questions.jsonl").read_text().splitlines()]
    return sum("Z" in row["input"] or any("Z" in c for c in row["choices"]) for row in rows)


def test_a_stalled_rank_is_named(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    spec = tiny_spec(shard_cost=20_000_000)
    spec.write_text(spec.read_text().replace("stall_timeout: 60", "stall_timeout: 15"))
    run = tmp_path / "run"
    assert concord("plan", spec, "--run", run).returncode == 0
    process = start("resume", "--run", run, "--nproc", 2)
    wait_for_shards(run, 4, process)
    stopped = ranks_of(process.pid)[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        _, stderr = process.communicate(timeout=120)
    finally:
        if Path(f"/proc/{stopped}").exists():
            os.kill(stopped, signal.SIGCONT)
    assert process.returncode == 1
    assert b"no sign of life from rank 1 for 15 s" in stderr
    assert concord("resume", "--run", run, "--nproc", 3).returncode == 0


def test_interrupt_prints_the_command_that_resumes(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    spec = tiny_spec(shard_cost=1, tokens=64)
    run = tmp_path / "run"
    process = start("run", spec, "--run", run, "--nproc", 2)
    wait_for_shards(run, 2, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"concord resume --run {run} --nproc 2".encode() in stderr
    assert b"Traceback" not in stderr
    assert concord("resume", "--run", run, "--nproc", 2).returncode == 0


def test_ranks_dont_outlive_the_process_that_waits_for_them(tiny_spec: Callable, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start("run", tiny_spec(shard_cost=1, tokens=64), "--run", run, "--nproc", 2)
    wait_for_shards(run, 2, process)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    process.kill()
    until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), 15)
    assert not (run / "results.json").exists()


def test_other_weights_on_a_node_are_refused(
    concord: Callable, tiny_spec: Callable, tiny_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    subprocess.run(["cp", "-r", str(tiny_model), str(model)], check=True)
    run = tmp_path / "run"
    assert concord("plan", tiny_spec(model=model), "--run", run).returncode == 0
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(bytes(data))
    done = concord("resume", "--run", run, "--nproc", 2)
    assert done.returncode == 2
    assert "not the file that was planned" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(run.glob("shards/*/*.json"))


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_full_disk_keeps_what_was_committed(
    nproc: int, concord: Callable, tiny_spec: Callable, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        spec = tiny_spec(shard_cost=20_000_000)
        assert concord("plan", spec, "--run", disk / "run").returncode == 0
        full = concord("resume", "--run", disk / "run", "--nproc", nproc)
        assert full.returncode == 1
        assert "the disk is full" in full.stderr
        assert "Traceback" not in full.stderr
        kept = sorted((disk / "run").glob("shards/*/*.json"))
        assert kept
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        done = concord("resume", "--run", disk / "run", "--nproc", nproc)
        assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)
