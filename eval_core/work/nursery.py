"""Where the ranks of one machine come from: one process imports what they need, while the plan is still made, and forks them.

    python -m eval_core.work.nursery RESULT

It waits for an order on its standard input, one line of JSON (`launch.Ranks` writes it), and ends without one where the input
ends. How the ranks ended is written to the file descriptor RESULT. Where the input ends while they work, nobody waits for them any
more, and they are ended too.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict

from eval_core.errors import CalledOffError
from eval_core.work.launch import GRACE, Failure, Order

_POLL = 0.05
_STDIN = 0


def main() -> None:
    """Entry point."""
    result = int(sys.argv[1])
    _import_what_ranks_need()
    with open(_STDIN, "rb", buffering=0, closefd=False) as orders:
        line = orders.readline()
    if line:
        _raise_ranks(Order(**json.loads(line)), result)


def _import_what_ranks_need() -> None:
    import transformers

    import eval_core.work.worker  # noqa: F401

    _ = transformers.AutoModelForCausalLM, transformers.PreTrainedModel


def _raise_ranks(order: Order, result: int) -> None:
    """Fork them, watch them, write how they ended. Returns in each of them too, after its work."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    gc.collect()
    gc.freeze()
    running: dict[int, int] = {}
    try:
        for rank, environment in enumerate(order.environments):
            pid = _fork()
            if pid == 0:
                running.clear()
                os.close(result)
                _be_a_rank(order, environment)
                return
            running[pid] = rank
        failure = _watch(running)
    finally:
        _end(running)
    os.write(result, json.dumps(asdict(failure) if failure else None).encode())


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns where there are threads. Those here are numpy's and pyarrow's, whose libraries see to forks themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _be_a_rank(order: Order, environment: Mapping[str, str]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.close(nothing)
    os.environ.update(environment)
    if not order.fork:
        os.execv(sys.executable, [sys.executable, "-m", "eval_core.cli", *order.arguments])
    sys.argv = ["concord", *order.arguments]
    runpy.run_module("eval_core.cli", run_name="__main__")


def _watch(running: dict[int, int]) -> Failure | None:
    """The first rank that failed, or None when all are done, or nobody waits any more. `running`: process id -> rank."""
    called_off = None
    while running:
        for pid, rank in list(running.items()):
            if (code := _code(pid, running)) not in (None, 0):
                failure = Failure(rank=rank, code=code)
                if code != CalledOffError.exit_code:
                    return failure
                called_off = called_off or failure
        if select.select([_STDIN], [], [], _POLL)[0] and not os.read(_STDIN, 1):
            return None
    return called_off


def _code(pid: int, running: dict[int, int]) -> int | None:
    """How a rank ended, or None where it runs; one that has ended is taken out of `running`."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        return None
    del running[pid]
    return os.waitstatus_to_exitcode(status)


def _end(running: dict[int, int]) -> None:
    if not running:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for pid in running:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while running and time.monotonic() < deadline:
        for pid in list(running):
            _code(pid, running)
        time.sleep(_POLL)
    for pid in list(running):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
