"""What the tests do to processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def until(condition: Callable[[], bool], seconds: float = 180) -> None:
    """Wait for `condition`, at most so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Process ids of what `pid` has started and not waited for."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """Hold processes, so that they aren't done before a fault is noticed; they go on when each was told to end, or has ended."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
        until(lambda: all(map(_is_told_to_end, pids)), 60)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _is_told_to_end(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return True
    (pending,) = (int(line.split()[1], 16) for line in status if line.startswith("ShdPnd"))
    return bool(pending & 1 << signal.SIGTERM - 1)
