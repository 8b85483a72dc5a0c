"""Create the PyTorchJob of a run, or adopt it, and watch it until the run's shards are all committed."""

from __future__ import annotations

from components.evaluate.request import LaunchRequest, LaunchResult

__all__ = ["LaunchRequest", "LaunchResult", "launch"]


def launch(request: LaunchRequest) -> LaunchResult:
    """Do what is missing in the run with a PyTorchJob.

    Raises:
        UsageError: the request, the pod template or the plan can't be used.
        JobError: the job can't end well; says why, and what to do.
        StorageError: the run's storage is out of reach.
    """
    raise NotImplementedError
