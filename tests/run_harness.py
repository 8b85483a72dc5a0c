"""Run the lm-evaluation-harness itself and write what it says: `python tests/run_harness.py SETTINGS.json OUT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable


def main(settings: Path, out: Path) -> None:
    given = json.loads(settings.read_text(encoding="utf-8"))
    manager = TaskManager(include_path=given.pop("include_path"), include_defaults=False)
    model_args = {"pretrained": given.pop("model"), "dtype": given.pop("dtype", "float32")}
    results = simple_evaluate(
        model="hf", model_args=model_args, device="cpu", task_manager=manager, log_samples=True, **given
    )
    assert results is not None
    out.write_text(json.dumps(results, default=handle_non_serializable), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
