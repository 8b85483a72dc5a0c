"""The numbers of a run, from its storage, where that is within reach from here."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval_core.errors import ConcordError

if TYPE_CHECKING:
    from eval_core.report.headline import HeadlineRow
    from eval_core.verify.types import Status

_PATIENCE = 60.0


@dataclass(frozen=True, kw_only=True)
class Results:
    """What the run's storage holds.

    Attributes:
        verdict: of its verification.
        sentence: the verdict in words.
        reduction: digest of the numbers; equal digests are equal bits.
        rows: the headline table.
    """

    verdict: Status
    sentence: str
    reduction: str
    rows: Sequence[HeadlineRow]


def read_results(uri: str) -> Results | str:
    """The results at `uri`; or, in words, why they can't be read from here, which is no error: the run's end counts.

    A storage without credentials may try for minutes, so this gives up after one.
    """
    answer: list[Results | str] = []

    def read() -> None:
        try:
            answer.append(_read(uri))
        except ConcordError as error:
            answer.append(str(error))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answer[0] if answer else f"{uri} doesn't answer"


def _read(uri: str) -> Results | str:
    from eval_core.plan.files import load_plan
    from eval_core.reduce import load_reduction
    from eval_core.report.headline import headline, verdict_sentence
    from eval_core.storage import Store
    from eval_core.verify.types import load_verification

    if "://" not in uri and not Path(uri).is_dir():
        return f"{uri} is no folder on this machine"
    store = Store(uri)
    plan, reduction, verification = load_plan(store), load_reduction(store), load_verification(store)
    if (verification.plan, verification.reduction) != (plan.digest, reduction.digest):
        return f"{uri}: its verification is not of the numbers that lie there"
    return Results(
        verdict=verification.verdict,
        sentence=verdict_sentence(verification),
        reduction=reduction.digest,
        rows=headline(plan, reduction, verification),
    )
