"""Where this process stands among the others, from the environment that torchrun and the operator set."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from eval_core.errors import WorkerError


@dataclass(frozen=True, kw_only=True)
class Place:
    """One process of an attempt.

    Attributes:
        rank, world_size: among all processes.
        local_rank: among those of this node; also the number of its GPU.
        node: number of the node.
        host: its name.
        launched: whether a launcher set the environment (else this process is alone).
    """

    rank: int
    world_size: int
    local_rank: int
    node: int
    host: str
    launched: bool


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """This process's place.

    Raises:
        WorkerError: the environment is half set.
    """
    host = socket.gethostname()
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return Place(rank=0, world_size=1, local_rank=0, node=0, host=host, launched=False)
    try:
        return Place(
            rank=int(environ["RANK"]),
            world_size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            node=int(environ.get("GROUP_RANK", environ.get("PET_NODE_RANK", environ["RANK"]))),
            host=host,
            launched=True,
        )
    except (KeyError, ValueError) as error:
        raise WorkerError(
            f"the launcher's environment is not whole ({error}); start with torchrun, or without RANK"
        ) from error
