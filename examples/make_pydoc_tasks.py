"""Make the demonstration's data from the help topics that every Python carries (`pydoc_data.topics`, PSF licence).

Writes `pydoc.jsonl` (one document a topic, for perplexity) and `topics.jsonl` (which of four titles belongs to this
text?, for multiple choice) to the given folder. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

EXCERPT = 300
CHOICES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write, such as .data")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    from pydoc_data.topics import topics

    write(folder / "pydoc.jsonl", [{"title": title, "text": topics[title]} for title in sorted(topics)])
    write(folder / "topics.jsonl", questions(topics))
    print(f"wrote {folder / 'pydoc.jsonl'} and {folder / 'topics.jsonl'}: {len(topics)} topics")


def questions(topics: dict[str, str]) -> list[dict[str, Any]]:
    """One question a topic: an excerpt without its heading, the right title and three others."""
    made = []
    for title in sorted(topics):
        draw = random.Random(title)
        others = draw.sample([other for other in sorted(topics) if other != title], CHOICES - 1)
        choices = draw.sample([title, *others], CHOICES)
        body = topics[title].split("\n\n", 1)[-1].strip()[:EXCERPT]
        made.append({"text": body, "choices": choices, "answer": choices.index(title)})
    return made


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
