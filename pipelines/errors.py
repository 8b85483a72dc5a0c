"""What the submitter can meet besides a user's mistake; the whole tree is in `eval_core.errors`.

::

    ConcordError
    ├── UsageError                   exit code 2
    ├── WaitError                    exit code 5: the run isn't over yet
    └── ApiError                     exit code 6: Kubeflow Pipelines is out of reach, or refuses us
        └── TransientError           may pass; tried again
"""

from __future__ import annotations

from eval_core.errors import ConcordError


class WaitError(ConcordError):
    """The time to wait is over, the run is not."""

    exit_code = 5


class ApiError(ConcordError):
    """Kubeflow Pipelines can't be reached, refuses us, or isn't what answers at that address."""

    exit_code = 6


class TransientError(ApiError):
    """No answer, or one that asks to come back.

    Attributes:
        retry_after: seconds that the server asks to wait; 0 where it asks for nothing.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
