"""Fetch three multiple-choice tasks of BIG-bench (Apache-2.0) from the PyPI source package `bigbench`.

Writes disambiguation_qa.jsonl, hindu_knowledge.jsonl and novel_concepts.jsonl: the question, the answers in the order of `target_scores`, and
the first of those with the highest score as the right one. The package is 358 MB and is neither built nor kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "bigbench==1.0.0"
TASKS = ("disambiguation_qa", "hindu_knowledge", "novel_concepts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write, such as .data")
    folder: Path = parser.parse_args().folder
    if all((folder / f"{task}.jsonl").is_file() for task in TASKS):
        print(f"{folder} has all of them already")
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*command, "--dest", scratch, PACKAGE], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        unpack(archive, folder)


def unpack(archive: Path, folder: Path) -> None:
    """Read the tasks' JSON from the archive, without unpacking the rest."""
    wanted = {f"bigbench/benchmark_tasks/{task}/task.json": task for task in TASKS}
    with tarfile.open(archive) as opened:
        for member in opened:
            task = wanted.pop(member.name.partition("/")[2], None)
            stream = opened.extractfile(member) if task else None
            if stream is not None:
                rows = [question(example) for example in json.load(stream)["examples"]]
                text = "".join(json.dumps(row) + "\n" for row in rows)
                (folder / f"{task}.jsonl").write_text(text, encoding="utf-8")
                print(f"wrote {folder / f'{task}.jsonl'}: {len(rows)} questions")
            if not wanted:
                return


def question(example: dict[str, Any]) -> dict[str, Any]:
    """A BIG-bench example as one of ours."""
    scores = example["target_scores"]
    choices = list(scores)
    return {
        "input": example["input"],
        "choices": choices,
        "answer": choices.index(max(choices, key=scores.__getitem__)),
    }


if __name__ == "__main__":
    main()
