"""What a table of measurements says of the machine, and its place in `benchmarks/README.md`."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

README = Path(__file__).resolve().parent / "README.md"


def describe_machine(*packages: str) -> str:
    """The day, the CPU and the versions of Python and `packages`."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{day}, {os.cpu_count()} cores of {cpu}, Python {platform.python_version()}, {versions}."


def write_block(name: str, text: str) -> None:
    """Put `text` between the markers of block `name`."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, _, rest = README.read_text(encoding="utf-8").partition(begin)
    README.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
