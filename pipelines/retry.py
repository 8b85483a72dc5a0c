"""Try again what may pass."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from eval_core.say import say
from pipelines.errors import ApiError, TransientError

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0

T = TypeVar("T")


def persist(operation: Callable[[], T], patience: float, give_up_at: float = float("inf")) -> T:
    """Call `operation` until it gives an answer, at growing distances; a server that names a distance is obeyed.

    Args:
        patience: seconds after which the last error is final.
        give_up_at: point of `time.monotonic` after which it is final as well.

    Raises:
        ApiError: nothing but transient errors came; says what the last one was.
    """
    started = time.monotonic()
    until = min(started + patience, give_up_at)
    delay = _FIRST_DELAY
    said = ""
    while True:
        try:
            return operation()
        except TransientError as error:
            wait = max(error.retry_after, delay * random.uniform(0.7, 1.0))
            left = until - time.monotonic()
            if left <= 0 or error.retry_after > left:
                raise ApiError(f"{error}; tried for {time.monotonic() - started:.0f} s") from error
            if str(error) != said:
                said = str(error)
                say(f"{error}; trying again for {left:.0f} s at most")
            time.sleep(min(wait, left))
            delay = min(2 * delay, _LONGEST_DELAY)
