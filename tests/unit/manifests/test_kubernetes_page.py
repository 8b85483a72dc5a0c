"""docs/kubernetes.md says what the code says: every message that it explains can be given, every path in it is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
FROM_KUBERNETES = {"SIGTERM", "queued", "of", "pods"}


def _explained() -> list[str]:
    table = PAGE.partition("## What failures mean")[2]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if text not in FROM_KUBERNETES]


def _texts() -> str:
    """All text that the code can say: values in it are left out."""
    texts = []
    for package in ("components", "eval_core"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    texts.append("".join(v.value if isinstance(v, ast.Constant) else "\0" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


def test_the_messages_that_are_explained_can_be_given() -> None:
    explained, texts = _explained(), _texts()
    assert len(explained) > 25
    values = {"pytorchjobs.kubeflow.org": "\0", "exit code 1": "exit code \0", "by SIGKILL": "by \0"}
    for message in explained:
        pattern = message
        for value, hole in values.items():
            pattern = pattern.replace(value, hole)
        assert pattern in texts, f"nothing says {message!r}"


@pytest.mark.parametrize("page", ["docs/kubernetes.md", "manifests/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert not path or (ROOT / page).parent.joinpath(path).exists(), target
        assert path or anchor in anchors, target
    for path in re.findall(r"`((?:manifests|components|examples)/[\w./-]+)`", text):
        assert (ROOT / path).exists() or (ROOT / "manifests" / path).exists(), path
