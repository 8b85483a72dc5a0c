"""Commands and waiting: the edge to the machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class TestbedError(RuntimeError):
    """The cluster cannot be built, started or used; the message is one clear line, and output that explains it."""

    __test__ = False


def run(
    *command: object,
    input: str | bytes | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> str:
    """Run a command to its end and give back its standard output.

    Raises:
        TestbedError: it is not installed, it took longer than `timeout`, or, with `check`, it failed; with its output.
    """
    words = [str(word) for word in command]
    data = input.encode() if isinstance(input, str) else input
    try:
        done = subprocess.run(words, input=data, cwd=cwd, env=env, timeout=timeout, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise TestbedError(f"{words[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"`{' '.join(words)}` took longer than {timeout:g} s") from error
    output = done.stdout.decode(errors="replace")
    if check and done.returncode != 0:
        errors = done.stderr.decode(errors="replace")
        raise TestbedError(f"`{' '.join(words)}` failed with code {done.returncode}:\n{(output + errors)[-4000:]}")
    return output


def succeeds(*command: object, timeout: float = 60) -> bool:
    """Whether a command ends with code 0; its output is dropped."""
    words: Sequence[str] = [str(word) for word in command]
    try:
        return subprocess.run(words, capture_output=True, timeout=timeout, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


def wait_until(condition: Callable[[], object], what: str, timeout: float, interval: float = 0.2) -> None:
    """Call `condition` until it gives something true.

    Raises:
        TestbedError: not within `timeout` seconds; the message names `what`.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TestbedError(f"{what}: not within {timeout:g} s")
        time.sleep(interval)


def unmount(*folders: Path) -> None:
    """Undo every mount on or below the folders, the innermost first; a shim that ends may be quicker with its own."""
    for point in reversed(_mounts()):
        ours = any(folder == point or folder in point.parents for folder in folders)
        if ours and not succeeds("umount", "--lazy", point) and point in _mounts():
            raise TestbedError(f"{point} can't be unmounted")


def _mounts() -> list[Path]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [Path(line.split()[1].replace("\\040", " ")) for line in lines]
