"""A check and a verification."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from eval_core.canonical import digest_json
from eval_core.errors import CorruptFileError
from eval_core.storage import Store

Status = Literal["passed", "failed", "undecided"]

VERIFICATION_KEY = "verification.json"
VERIFICATION_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was checked.

    Attributes:
        name: short and stable, such as `coverage` or `precision/log-likelihood`.
        question: what the check asks, in a sentence.
        status: passed, failed, or undecided (the evidence doesn't suffice; it fails nothing).
        expected, found: in words and numbers.
        details: lines that name what is wrong, or say more; at most a few.
    """

    name: str
    question: str
    status: Status
    expected: str
    found: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval (low <= estimate <= high where all are finite)."""

    estimate: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Flip:
    """An answer that the reference changes.

    Attributes:
        example: index in its task.
        metric: acc, acc_norm or acc_bytes.
        run, reference: the answers chosen.
        margin: how far the run's best answer lay above its second, in the metric's own unit (nats, or nats per
            character or byte).
    """

    example: int
    metric: str
    run: int
    reference: int
    margin: float


@dataclass(frozen=True, kw_only=True)
class TaskPrecision:
    """What the audit says of one task.

    Attributes:
        tokens, examples: of the task in the audit (examples: questions; 0 for perplexity).
        relative_error: of the summed log-likelihood against the reference, with its interval; None where
            the audit has no token of the task.
        largest_token_error: largest absolute difference of one token, in nats.
        largest_mode_difference: the same between mode `fast`, in which the run was computed, and mode `reference`, in the
            run's dtype; None in mode `reference`, or where the audit has it for no token of the task.
        flips: metric -> flipped answers; flip_rate: metric -> interval of their proportion.
        flipped: each of them.
    """

    tokens: int
    examples: int
    relative_error: Interval | None
    largest_token_error: float
    largest_mode_difference: float | None
    flip_rate: Mapping[str, Interval]
    flipped: tuple[Flip, ...]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All checks of a run.

    Attributes:
        plan, reduction: digests of what was verified.
        checks: in the order in which a reader wants them.
        dtype, reference_dtype: of the run and of its audit.
        precision: task -> what the audit found; `overall` for all tasks together.
        overall: the relative error over all audited tokens.
    """

    plan: str
    reduction: str
    checks: tuple[Check, ...]
    dtype: str
    reference_dtype: str
    overall: Interval | None
    precision: Mapping[str, TaskPrecision]

    @property
    def verdict(self) -> Status:
        """failed where a check failed; else undecided where one is; else passed."""
        statuses = {check.status for check in self.checks}
        if "failed" in statuses:
            return "failed"
        return "undecided" if "undecided" in statuses else "passed"

    def to_json(self) -> dict[str, Any]:
        content = {"format": VERIFICATION_FORMAT, "verdict": self.verdict, **_plain(asdict(self))}
        return content | {"digest": digest_json(content)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verification:
        """Reverse of `to_json`.

        Raises:
            CorruptFileError: the digest doesn't fit the content.
        """
        content = {name: value for name, value in data.items() if name != "digest"}
        if digest_json(content) != data["digest"]:
            raise CorruptFileError(
                f"{VERIFICATION_KEY}: the content doesn't fit its digest; verify again: concord verify --run URI"
            )
        return cls(
            plan=data["plan"],
            reduction=data["reduction"],
            checks=tuple(Check(**{**check, "details": tuple(check["details"])}) for check in data["checks"]),
            dtype=data["dtype"],
            reference_dtype=data["reference_dtype"],
            overall=_interval(data["overall"]),
            precision={task: _task_precision(value) for task, value in data["precision"].items()},
        )


def load_verification(store: Store) -> Verification:
    """The verification of a run.

    Raises:
        StorageError: there is none yet.
        CorruptFileError: it was altered.
    """
    data = store.require(VERIFICATION_KEY, f"verify first: concord verify --run {store.uri}")
    try:
        return Verification.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            f"{VERIFICATION_KEY}: not a whole file; verify again: concord verify --run {store.uri}"
        ) from error


def _plain(value: Any) -> Any:
    """JSON-able, with floats that JSON can't carry as text."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return repr(value)
    return value


def _interval(data: Mapping[str, Any] | None) -> Interval | None:
    return None if data is None else Interval(**{name: float(value) for name, value in data.items()})


def _task_precision(data: Mapping[str, Any]) -> TaskPrecision:
    rates = {metric: _interval(value) for metric, value in data["flip_rate"].items()}
    difference = data["largest_mode_difference"]
    return TaskPrecision(
        tokens=data["tokens"],
        examples=data["examples"],
        relative_error=_interval(data["relative_error"]),
        largest_token_error=float(data["largest_token_error"]),
        largest_mode_difference=None if difference is None else float(difference),
        flip_rate={metric: rate for metric, rate in rates.items() if rate is not None},
        flipped=tuple(Flip(**{**flip, "margin": float(flip["margin"])}) for flip in data["flipped"]),
    )
