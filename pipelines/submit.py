"""Make a run, once for each idempotency key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval_core.errors import UsageError
from eval_core.say import say
from pipelines.api import Api, Predicate
from pipelines.parameters import Values
from pipelines.retry import persist
from pipelines.state import Run, read_run

_MARK = "concord-key="


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What to run.

    Attributes:
        name: of the run, for people.
        key: names this submission: a second one with the same key is the same run.
        namespace: of a multi-user installation; None in another.
        experiment: the group of runs; None for the default one of a single-user installation.
        pipeline: a run's `pipeline_spec`.
        parameters: the pipeline's inputs.
    """

    name: str
    key: str
    namespace: str | None
    experiment: str | None
    pipeline: Mapping[str, Any]
    parameters: Values


def submit(api: Api, submission: Submission, patience: float) -> tuple[Run, bool]:
    """Make the run, or find the one that was made with this key. Returns it, and whether it is new.

    The key's digest stands in the run's description, where a filter finds it. Each try looks there first, so that a run
    whose creation was done but not confirmed isn't made again.

    Raises:
        UsageError: the API finds fault with the submission, or the key belongs to a run with other parameters.
        ApiError: the API is out of reach, or refuses.
    """
    created = False

    def find_or_create() -> Run:
        nonlocal created
        if found := _find(api, submission):
            return found
        created = True
        return read_run(api.post("/runs", _body(api, submission)))

    run = persist(find_or_create, patience)
    # Nothing in the API makes "look, then create" one step: of two that were made at the same time all follow the first.
    first = persist(lambda: _find(api, submission), patience) or run
    if first.id != run.id:
        say(
            f"another submission with this key was faster: going on with run {first.id}; run {run.id} does the same work"
        )
    _check_same(first, submission)
    return first, created and first.id == run.id


def _find(api: Api, submission: Submission) -> Run | None:
    """The first run that was made with the key."""
    mark = _mark(submission.key)
    query = {"namespace": submission.namespace} if submission.namespace else {}
    listed = api.list("/runs", "runs", Predicate(key="description", operation="IS_SUBSTRING", value=mark), **query)
    runs = [run for run in map(read_run, listed) if mark in run.description.split()]
    return min(runs, key=lambda run: (run.created, run.id), default=None)


def _mark(key: str) -> str:
    """The key's digest, because a filter has characters of its own, and a description is 255 characters at most."""
    return _MARK + hashlib.sha256(key.encode()).hexdigest()[:32]


def _body(api: Api, submission: Submission) -> dict[str, Any]:
    body = {
        "display_name": submission.name,
        "description": f"Submitted by concord-pipeline. {_mark(submission.key)}",
        "pipeline_spec": submission.pipeline,
        "runtime_config": {"parameters": submission.parameters},
    }
    if submission.experiment is not None:
        body["experiment_id"] = _experiment(api, submission.experiment, submission.namespace)
    return body


def _experiment(api: Api, name: str, namespace: str | None) -> str:
    """The experiment's id; it is made where there is none."""
    query = {"namespace": namespace} if namespace else {}
    found = api.list("/experiments", "experiments", Predicate(key="name", operation="EQUALS", value=name), **query)
    experiment = found[0] if found else api.post("/experiments", {"display_name": name, **query})
    return str(experiment["experiment_id"])


def _check_same(run: Run, submission: Submission) -> None:
    names = sorted(run.parameters.keys() | submission.parameters.keys())
    for name in names:
        there, here = run.parameters.get(name), submission.parameters.get(name)
        if there != here:
            raise UsageError(
                f"key '{submission.key}' belongs to run {run.id}, which was made with another '{name}': "
                f"{_short(there)}, not {_short(here)}; a new evaluation needs a new key"
            )


def _short(value: object) -> str:
    return "the default" if value is None else f"{value!r:.80}"
