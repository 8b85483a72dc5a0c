"""Start N ranks on this machine and wait for them: what `torchrun --standalone` does, with one import of torch for all.

Under a cluster's launcher (torchrun, the PyTorchJob operator) this module isn't used; the ranks can't tell the difference.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import IO

from eval_core.errors import UsageError, WorkerError

_OF_AN_AGENT = ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID")

GRACE = 10.0
"""Seconds that ranks have to end by themselves."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the ranks are to do.

    Attributes:
        arguments: of the `concord` command that each of them is.
        environments: by rank, what is different from this process's.
        fork: else each is a new interpreter: CUDA can't be counted on after a fork.
    """

    arguments: Sequence[str]
    environments: Sequence[Mapping[str, str]]
    fork: bool


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The rank that failed first, and its exit code; negative: the signal that ended it."""

    rank: int
    code: int


class Ranks:
    """Ranks that are made ready while something else goes on, and run when it's known what they are to do.

    Raises:
        UsageError: this installation can't compute.
    """

    def __init__(self) -> None:
        if find_spec("torch") is None or find_spec("transformers") is None:
            raise UsageError("torch or transformers is not installed: pip install 'concord-eval[worker]'")
        self._ordered = False
        self._result, theirs = os.pipe()
        try:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "eval_core.work.nursery", str(theirs)],
                stdin=subprocess.PIPE,
                bufsize=0,
                pass_fds=(theirs,),
                env={name: value for name, value in os.environ.items() if name not in _OF_AN_AGENT},
                start_new_session=True,
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is left of them; what they have committed is kept."""
        self._end()
        os.close(self._result)

    def run(self, uri: str, nproc: int, reuse: Sequence[str] = (), *, device: str) -> None:
        """Run `nproc` ranks on the run at `uri`, until all are done; what the runs `reuse` have is taken over.

        On `device` cpu they are the process made ready, forked; on another, new interpreters.

        Raises:
            WorkerError: a rank failed; the others were ended, and what they had committed is kept.
            KeyboardInterrupt: passed on, after the ranks have ended.
        """
        arguments = ["work", "--run", uri, *(part for other in reuse for part in ("--reuse", other))]
        order = Order(arguments=arguments, environments=_environments(nproc), fork=device == "cpu")
        self._ordered = True
        with suppress(BrokenPipeError):
            self._input.write(json.dumps(asdict(order)).encode() + b"\n")
        try:
            answer = b"".join(iter(lambda: os.read(self._result, 4096), b""))
        except KeyboardInterrupt:
            self._end()
            raise
        if not answer:
            raise WorkerError(f"the process that starts the ranks has ended (exit code {self._kill()})")
        failure = json.loads(answer)
        if failure is not None:
            raise _error(Failure(**failure))

    @property
    def _input(self) -> IO[bytes]:
        assert self._nursery.stdin is not None
        return self._nursery.stdin

    def _end(self) -> None:
        if not self._ordered:
            self._nursery.kill()
        self._input.close()
        try:
            self._nursery.wait(2 * GRACE)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> int:
        """End the nursery and its ranks at once; returns its exit code. Until it's waited for, its id is no other's."""
        with suppress(ProcessLookupError):
            os.killpg(self._nursery.pid, signal.SIGKILL)
        return self._nursery.wait()


def _environments(nproc: int) -> list[dict[str, str]]:
    port = _free_port()
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(nproc),
            "LOCAL_WORLD_SIZE": str(nproc),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        for rank in range(nproc)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _error(failure: Failure) -> WorkerError:
    rank, code = failure.rank, failure.code
    if code < 0:
        hint = (
            "; out of memory? fewer processes, or a smaller batch.tokens, need less" if -code == signal.SIGKILL else ""
        )
        reason = f"rank {rank} was ended by {signal.Signals(-code).name}{hint}"
    else:
        reason = f"rank {rank} failed (exit code {code}; its reason stands above)"
    error = WorkerError(reason)
    error.exit_code = code if code > 0 else 1
    return error
