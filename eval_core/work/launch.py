"""Start N ranks on this machine and watch them: what `torchrun --standalone` does, without its second import of torch.

Under a cluster's launcher (torchrun, the PyTorchJob operator) this module isn't used; the ranks can't tell the difference.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

from eval_core.errors import CalledOffError, UsageError, WorkerError

_GRACE = 10.0
_POLL = 0.05


def run_ranks(uri: str, nproc: int) -> None:
    """Run `nproc` ranks on the run at `uri`, until all are done.

    Raises:
        UsageError: this installation can't compute.
        WorkerError: a rank failed; the others were ended, and what they had committed is kept.
        KeyboardInterrupt: passed on, after the ranks have ended.
    """
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise UsageError("torch or transformers is not installed: pip install 'concord-eval[worker]'")
    port = _free_port()
    processes = [_start(uri, rank, nproc, port) for rank in range(nproc)]
    try:
        failed = _watch(processes)
    except KeyboardInterrupt:
        _end(processes)
        raise
    if failed is not None:
        _end(processes)
        raise _failure(failed, processes[failed].returncode)


def _start(uri: str, rank: int, nproc: int, port: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    for inherited in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        environment.pop(inherited, None)
    command = [sys.executable, "-m", "eval_core.cli", "work", "--run", uri]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _watch(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """The first rank that failed, or None when all are done."""
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code not in (None, 0, CalledOffError.exit_code):
                return rank
        if None not in codes:
            return next((rank for rank, code in enumerate(codes) if code != 0), None)
        time.sleep(_POLL)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _failure(rank: int, code: int) -> WorkerError:
    if code < 0:
        name = signal.Signals(-code).name
        hint = (
            "; out of memory? fewer processes, or a smaller batch.tokens, need less" if -code == signal.SIGKILL else ""
        )
        reason = f"rank {rank} was ended by {name}{hint}"
    else:
        reason = f"rank {rank} failed (exit code {code}; its reason stands above)"
    error = WorkerError(reason)
    error.exit_code = code if code > 0 else 1
    return error
