"""The compiled pipelines that are committed beside this module."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from components import images

Variant = Literal["s3", "pvc", "local"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)

STEPS = tuple(step.replace("_", "-") for step in images.STEPS)
"""The pipelines' tasks, in the order in which they run."""

VOLUME = "concord-runs"
VOLUME_PATH = "/runs"
"""The claim of the run storage on a volume, and where every pod mounts it: the steps' here, the workers' by the launcher."""

_FILES = {
    "s3": "distributed_evaluation.yaml",
    "pvc": "distributed_evaluation_pvc.yaml",
    "local": "evaluation_in_one_step.yaml",
}


def compiled_file(variant: Variant) -> Path:
    """Where the compiled pipeline lies."""
    return Path(__file__).with_name(_FILES[variant])
