"""A run whose plan is the one that this pipeline made."""

from __future__ import annotations

from eval_core.errors import RunMismatchError
from eval_core.plan.files import load_plan
from eval_core.plan.types import Plan
from eval_core.storage import Store


def open_planned(run: str, plan_digest: str) -> tuple[Store, Plan]:
    """The storage and the plan of `run`.

    Raises:
        RunMismatchError: the run holds another plan than `plan_digest`.
        StorageError: there is no plan, or the storage is out of reach.
        CorruptFileError: a file of the plan is damaged.
    """
    store = Store(run)
    plan = load_plan(store)
    if plan.digest != plan_digest:
        raise RunMismatchError(
            f"{run} holds another plan: digest {plan.digest[:16]} there, {plan_digest[:16]} from this pipeline; give another run"
        )
    return store, plan
