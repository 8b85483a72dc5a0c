"""The names of the images, one for each target of the Dockerfile."""

from __future__ import annotations

from typing import Literal, get_args

from eval_core import __version__

Target = Literal["shard_data", "evaluate", "verify_precision", "generate_report", "worker"]
TARGETS: tuple[Target, ...] = get_args(Target)

STEPS = tuple(target for target in TARGETS if target != "worker")
"""Of the pipeline, in the order in which they run."""

_PREFIX = "concord/"


def image(target: Target) -> str:
    """`concord/shard-data:0.1.0` for `shard_data`."""
    return f"{_PREFIX}{target.replace('_', '-')}:{__version__}"
