"""A line for the user. (`eval_core.run` has one too, but takes a second and more to import.)"""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Print to standard error; standard output is for the result."""
    print(message, file=sys.stderr, flush=True)
