"""Long-running processes: started with a log and a record on disk, so that a later run can stop what this one left.

A record holds the process's id, start time and command line; a process that no longer matches its record is someone else's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import settings
from .shell import TestbedError


@dataclass(frozen=True, kw_only=True)
class Record:
    """A started process, as it stands in `/run/concord-cluster/processes/<number>-<name>.json`."""

    name: str
    pid: int
    started: int
    command: list[str]


def start(
    name: str,
    command: Sequence[object],
    *,
    namespace: str | None = None,
    niceness: int = 0,
) -> None:
    """Start a process in its own session, in a network namespace if one is named; its output is appended to its log."""
    words = [str(word) for word in command]
    prefix = ["nice", "-n", str(niceness)]
    if namespace:
        # Not `ip netns exec`: that mounts a new /sys, without the control groups.
        prefix += ["nsenter", f"--net=/run/netns/{namespace}", "--"]
    with log_file(name).open("ab") as log:
        process = subprocess.Popen(
            [*prefix, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    record = Record(name=name, pid=process.pid, started=start_time(process.pid), command=words)
    _folder().mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name.split("-")[0]) for path in _folder().iterdir()]
    path = _folder() / f"{max(numbers, default=0) + 1:03}-{name}.json"
    path.write_text(json.dumps(asdict(record)), encoding="utf-8")


def log_file(name: str) -> Path:
    settings.logs().mkdir(parents=True, exist_ok=True)
    return settings.logs() / f"{name}.log"


def records() -> list[Record]:
    """All records, in the order of their starts; the process may have ended."""
    if not _folder().is_dir():
        return []
    return [Record(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(_folder().iterdir())]


def alive(record: Record) -> bool:
    """Whether the process of a record runs: same start time, same command line, not a zombie."""
    try:
        stat = _stat(record.pid)
        words = Path(f"/proc/{record.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A process that has just been started has no command line yet, or still that of the prefix, with its own at the end.
    same = not words or words[-len(record.command) :] == record.command
    return stat[0] != "Z" and int(stat[19]) == record.started and same


def is_running(name: str) -> bool:
    return any(record.name == name and alive(record) for record in records())


def check_running(name: str) -> None:
    """Raises TestbedError, with the end of its log, when a process has ended."""
    if not is_running(name):
        tail = log_file(name).read_text(encoding="utf-8", errors="replace")[-1500:]
        raise TestbedError(f"{name} has ended; the end of {log_file(name)}:\n{tail}")


def stop(name: str, *, grace: float = 10) -> None:
    """End a process by SIGTERM, after `grace` seconds by SIGKILL, and drop its record; with grace 0 by SIGKILL at once."""
    for path in sorted(_folder().glob(f"*-{name}.json")):
        record = Record(**json.loads(path.read_text(encoding="utf-8")))
        if record.name != name:
            continue
        if grace and alive(record):
            os.kill(record.pid, signal.SIGTERM)
            _wait(record, grace)
        if alive(record):
            os.kill(record.pid, signal.SIGKILL)
            _wait(record, 10)
        path.unlink()


def kill_all(pids: Sequence[int]) -> None:
    """SIGKILL to every process given that still exists, and wait until they are gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 10
    while any(_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)


def find(part: str) -> list[int]:
    """The ids of the processes with `part` as one word of their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if part in words:
            found.append(int(folder.name))
    return found


def _folder() -> Path:
    return settings.RUN / "processes"


def _wait(record: Record, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while alive(record) and time.monotonic() < deadline:
        _reap(record.pid)
        time.sleep(0.05)
    _reap(record.pid)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _exists(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_time(pid: int) -> int:
    """With its id it names a process, also after the id is used again."""
    return int(_stat(pid)[19])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the command name before it may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
