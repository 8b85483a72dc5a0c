"""What a run is called in a cluster."""

from __future__ import annotations

import hashlib
import re

RUN_LABEL = "concord-eval/run"

_ATTEMPT = re.compile(r"concord-[0-9a-f]{16}-(\d+)")


def run_key(run: str) -> str:
    """The first 16 hex digits of the SHA-256 of the run's URI: in labels and names, where a URI doesn't fit."""
    return hashlib.sha256(run.encode("utf-8")).hexdigest()[:16]


def job_name(run: str, attempt: int) -> str:
    """The PyTorchJob of an attempt, counted from 1; the same for every launcher."""
    return f"concord-{run_key(run)}-{attempt}"


def attempt_of(name: str) -> int:
    """The attempt in a name that `job_name` made; 0 for any other name."""
    match = _ATTEMPT.fullmatch(name)
    return int(match[1]) if match else 0
