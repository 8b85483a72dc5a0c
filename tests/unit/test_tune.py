"""What is timed: parts of a plan that are the plan's own requests, one key changed at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eval_core.errors import UsageError
from eval_core.plan.types import Plan
from eval_core.tune import Setting, Timing, alternatives, draw_sample, sub_plan, together


def requests_of(plan: Plan) -> list[tuple[bytes, int]]:
    table = plan.requests
    return [
        (table.tokens[table.offsets[i] : table.offsets[i + 1]].tobytes(), int(table.n_scored[i]))
        for i in range(len(table))
    ]


def test_a_sample_has_the_wanted_tokens_and_whole_questions(plan: Plan) -> None:
    inputs = np.diff(plan.requests.offsets) - 1
    few, all_of_them = draw_sample(plan, 100), draw_sample(plan, 10**9)
    assert 100 <= inputs[few].sum() < inputs.sum()
    assert all_of_them.tolist() == list(range(len(plan.requests)))
    assert draw_sample(plan, 100).tolist() == few.tolist()


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_a_part_of_a_plan_holds_the_requests_of_the_sample(plan: Plan, mode: str) -> None:
    sample = draw_sample(plan, 200)
    changed = Setting(name="", changed={"batch": {"tokens": 64}, "compute": {"mode": mode}}, processes=1)
    part = sub_plan(plan, sample, changed.of(plan.spec), Path(plan.locations["model"]))
    everything = requests_of(plan)
    assert sorted(requests_of(part)) == sorted(everything[i] for i in sample.tolist())
    assert part.spec.batch.tokens == 64
    if mode == "reference":
        assert part.micro_batches.rows.tolist() == [1] * len(sample)


def test_alternatives_differ_in_one_key(plan: Plan) -> None:
    found = list(alternatives(plan.spec, 4))
    assert len({setting.name for setting in found}) == len(found)
    for setting in found:
        [(section, keys)] = setting.changed.items()
        [(key, value)] = keys.items()
        assert getattr(getattr(plan.spec, section), key) != value
        assert setting.name == f"{section}.{key}: {value}"
    threads = {
        setting.changed["compute"].get("threads"): setting.processes
        for setting in found
        if "compute" in setting.changed
    }
    assert threads[4] == 1
    names = {setting.name for setting in found}
    assert {"compute.cpu_products: native", "compute.attention: sdpa"} <= names
    on_gpus = replace(plan.spec, compute=replace(plan.spec.compute, device="cuda"))
    assert not any("cpu_products" in setting.name or "blocked" in setting.name for setting in alternatives(on_gpus, 4))


def timing(rate: float, **changed: dict[str, object]) -> Timing:
    return Timing(setting=Setting(name=str(changed), changed=changed, processes=len(changed) + 1), rate=rate)


def test_the_best_value_of_each_key_that_is_worth_it() -> None:
    timings = [
        timing(100),
        timing(120, batch={"tokens": 512}),
        timing(130, batch={"tokens": 1024}),
        timing(101, batch={"pad_to_multiple": 8}),
        timing(150, compute={"threads": 4}),
    ]
    found = together(timings)
    assert found is not None
    assert found.changed == {"batch": {"tokens": 1024}, "compute": {"threads": 4}}
    assert found.processes == timings[-1].setting.processes
    assert together(timings[:3]) is None
    assert together(timings[:1]) is None


def test_without_scored_tokens_there_is_nothing_to_time(plan: Plan) -> None:
    prompts = replace(plan, requests=replace(plan.requests, generation=np.zeros_like(plan.requests.generation)))
    with pytest.raises(UsageError, match="no task that scores tokens"):
        draw_sample(prompts, 10)


def test_the_plan_is_not_changed_by_it(plan_in: Callable[..., Plan], inputs: Path) -> None:
    plan = plan_in(inputs)
    before = plan.digest
    sub_plan(plan, draw_sample(plan, 50), plan.spec, inputs / "model")
    assert replace(plan).digest == before
