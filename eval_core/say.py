"""A line for the user."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Print to standard error; standard output is for results."""
    print(message, file=sys.stderr, flush=True)
