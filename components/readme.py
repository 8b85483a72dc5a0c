"""The tables of inputs and outputs in the steps' READMEs: `python -m components.readme [--check]`.

They are made from the definitions, so they say what the pipeline's UI says.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from components.images import STEPS

_BEGIN = "<!-- made by `python -m components.readme` -->"
_END = "<!-- end -->"
_FOLDER = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables, or with --check only look. Returns 1 where a table isn't what the definition says."""
    parser = argparse.ArgumentParser(prog="python -m components.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a table is out of date")
    check = parser.parse_args(arguments).check
    stale = [path for step in STEPS if (path := _FOLDER / step / "README.md").read_text("utf-8") != renewed(step)]
    for path in stale:
        if check:
            print(f"{path}: out of date; run: python -m components.readme", file=sys.stderr)
        else:
            path.write_text(renewed(path.parent.name), encoding="utf-8")
    return 1 if check and stale else 0


def renewed(step: str) -> str:
    """The README of a step, with the tables that its definition gives.

    Raises:
        ValueError: it lacks the two marks between which the tables stand.
    """
    text = (_FOLDER / step / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"components/{step}/README.md: no {_BEGIN} ... {_END}")
    return f"{before}{_BEGIN}\n{_tables(step)}{_END}{after}"


def _tables(step: str) -> str:
    spec: Any = getattr(import_module(f"components.{step}.component"), step).component_spec
    lines = ["", "| input | type | default | meaning |", "| :-- | :-- | :-- | :-- |"]
    for name, given in spec.inputs.items():
        lines.append(f"| `{name}` | {_type(given.type)} | {_default(given)} | {given.description} |")
    lines += ["", "| output | type | meaning |", "| :-- | :-- | :-- |"]
    for name, made in spec.outputs.items():
        lines.append(f"| `{name}` | {_type(made.type)} | {made.description} |")
    return "\n".join([*lines, "", ""])


def _type(name: str) -> str:
    """`system.Metrics@0.0.1` is called Metrics."""
    return name.removeprefix("system.").partition("@")[0]


def _default(given: Any) -> str:
    if given.default is None:
        return "filled in" if given.optional else "must be given"
    return f"`{json.dumps(given.default)}`"


if __name__ == "__main__":
    sys.exit(main())
