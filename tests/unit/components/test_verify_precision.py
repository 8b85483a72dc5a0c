"""The step verify_precision, called as a pipeline calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval_core.reduce import load_reduction
from eval_core.storage import Store


def test_outputs(step: Callable[..., Any], chain: Any, own_run: Path) -> None:
    done = step("verify_precision", {"run": str(own_run), "plan_digest": chain.plan_digest})
    assert done.code == 0, done.stderr
    assert done.text("verdict") == "passed"
    reduction = load_reduction(Store(str(own_run)))
    metrics = done.metadata("metrics")
    assert metrics["verdict"] == "passed"
    assert metrics["quiz acc"] == reduction.metrics["quiz"]["acc"].value
    assert metrics["docs token_ppl stderr"] == reduction.metrics["docs"]["token_ppl"].stderr
    assert abs(metrics["relative error"]) < 1e-5
    assert json.loads(done.text("metrics")) == metrics
    checks = done.text("checks")
    assert checks.startswith("**Verified:**")
    for name in ("coverage", "exactness", "replay", "precision/log-likelihood"):
        assert f"| **{name}** " in checks


def test_a_failed_check_fails_the_step_after_its_outputs(step: Callable[..., Any], chain: Any, own_run: Path) -> None:
    one, other = ({"digest": digest, "by": f"{digest}:0", "host": "h"} for digest in "ab")
    violation = {"shard": "main/000000", "committed": one, "computed": other, "differing_tokens": 1}
    (own_run / "violations").mkdir()
    (own_run / "violations" / "main-000000-a-0.json").write_text(json.dumps(violation))
    done = step("verify_precision", {"run": str(own_run), "plan_digest": chain.plan_digest})
    assert done.code == 1
    assert "failed  determinism" in done.stderr
    assert done.text("verdict") == "failed"
    assert done.metadata("metrics")["verdict"] == "failed"
    assert "| **determinism** Did a shard that was computed twice ever give other bits? | failed |" in done.text(
        "checks"
    )


def test_missing_shards(step: Callable[..., Any], chain: Any, own_run: Path) -> None:
    (own_run / "shards" / "main" / "000000.json").unlink()
    done = step("verify_precision", {"run": str(own_run), "plan_digest": chain.plan_digest})
    assert done.code == 1
    assert "1 of" in done.error
    assert "shards are missing" in done.error
    assert not (done.folder / "executor_output.json").exists()


def test_another_plan_is_refused(step: Callable[..., Any], chain: Any) -> None:
    done = step("verify_precision", {"run": str(chain.run), "plan_digest": "f" * 64})
    assert done.code == 2
    assert "holds another plan" in done.error
