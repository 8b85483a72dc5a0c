"""Run the lm-evaluation-harness itself on each of several cases and write what it says: `python tests/run_harness.py CASES.json OUT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable


def main(settings: Path, out: Path) -> None:
    cases = json.loads(settings.read_text(encoding="utf-8"))
    said = {name: run(given) for name, given in cases.items()}
    out.write_text(json.dumps(said, default=handle_non_serializable), encoding="utf-8")


def run(given: dict[str, Any]) -> Any:
    manager = TaskManager(include_path=given.pop("include_path"), include_defaults=False)
    model_args = {"pretrained": given.pop("model"), "dtype": "float32"}
    return simple_evaluate(
        model="hf", model_args=model_args, device="cpu", task_manager=manager, log_samples=True, **given
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
