"""One node of a PyTorchJob: read what the operator says, start this node's ranks with torchrun's agent, exit with the cause.

    python -m eval_core.work.node

The exit code is the root cause's: a rank's own (2: the input is wrong, nothing gets better by starting again), or 128 + the
signal that ended it. A rank that another one has called off is no cause; its node joins the next group.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eval_core.errors import CalledOffError, ConcordError, UsageError
from eval_core.plan.files import load_plan
from eval_core.say import say
from eval_core.shard_file import SHARDS, shard_key
from eval_core.storage import Store
from eval_core.work.commit import scan_committed

if TYPE_CHECKING:
    from eval_core.work.gathering import Gathering, Patience

_MONITOR_INTERVAL = 0.5
_SIGNALED = 128
_CULPRITS_TIME = 5.0
"""Seconds for the rank that called this one off to end: a new group would end it before it has, and hide its exit code."""


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What the operator and the manifest set.

    Attributes:
        run: URI of the run's storage.
        nodes, node: pods of the job, and this one's number.
        processes: ranks on this node, a number or a word that torchrun knows (`auto`, `gpu`, `cpu`).
        host, port: of node 0.
    """

    run: str
    nodes: int
    node: int
    processes: str
    host: str
    port: int


def read_settings(environ: Mapping[str, str] = os.environ) -> NodeSettings:
    """This node's settings.

    Raises:
        UsageError: a variable is missing or is no number; it is named.
    """
    nodes = _number(environ, "PET_NNODES")
    node = _number(environ, "PET_NODE_RANK")
    if not 0 <= node < nodes:
        raise UsageError(f"PET_NODE_RANK is {node}, but PET_NNODES is {nodes}: it must be below that")
    return NodeSettings(
        run=_text(environ, "CONCORD_RUN"),
        nodes=nodes,
        node=node,
        processes=_text(environ, "PET_NPROC_PER_NODE"),
        host=_text(environ, "PET_MASTER_ADDR"),
        port=_number(environ, "PET_MASTER_PORT"),
    )


def run_node(settings: NodeSettings, patience: Patience | None = None) -> int:
    """Run this node's ranks until nothing is missing; returns the exit code.

    Raises:
        ConcordError: the plan or the storage stands in the way, or node 0 can't be found.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from eval_core.work.gathering import AllCommitted, Gathering, Patience, Seat

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    seat = Seat(node=settings.node, nodes=settings.nodes, host=settings.host, port=settings.port)
    gathering = Gathering(seat, patience or Patience(), _completeness(settings.run), say)
    config = _agent_config(settings, gathering)
    pause = 0.0
    while True:
        try:
            time.sleep(pause)
            elastic_launch(config, sys.executable)("-m", "eval_core.cli", "work")
        except AllCommitted:
            say(f"node {settings.node}: nothing is missing")
        except ChildFailedError as error:
            rank, code = root_cause({rank: failure.exitcode for rank, failure in error.failures.items()})
            if code == CalledOffError.exit_code:
                pause = _CULPRITS_TIME
                continue
            say(f"node {settings.node}: {describe_failure(rank, code)}")
            return code if code > 0 else _SIGNALED - code
        except SignalException as error:
            return _SIGNALED + int(error.sigval)
        except DistError:
            continue
        return 0


def root_cause(codes: Mapping[int, int]) -> tuple[int, int]:
    """(rank, exit code) of the failure that explains the others. `codes` in the order in which they were seen.

    A rank that was called off only follows, and so does one that the agent has ended by SIGTERM.
    """
    for followers in ((CalledOffError.exit_code, -signal.SIGTERM), (-signal.SIGTERM,), ()):
        for rank, code in codes.items():
            if code not in followers:
                return rank, code
    raise ValueError("no failure")


def describe_failure(rank: int, code: int) -> str:
    """A line on how `rank` ended; a negative `code` is a signal's."""
    if code >= 0:
        return f"rank {rank} failed (exit code {code}; its reason stands above)"
    hint = "; out of memory?" if -code == signal.SIGKILL else ""
    return f"rank {rank} was ended by {signal.Signals(-code).name}{hint}"


def main() -> None:
    """Entry point of a pod."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_SIGNALED + signal.SIGTERM))
    try:
        sys.exit(run_node(read_settings()))
    except ConcordError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)


def _agent_config(settings: NodeSettings, gathering: Gathering) -> Any:
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig
    from torch.distributed.run import determine_local_world_size

    rendezvous_handler_registry.register(gathering.get_backend(), lambda _: gathering)
    try:
        processes = determine_local_world_size(settings.processes)
    except ValueError as error:
        raise UsageError(f"PET_NPROC_PER_NODE is {settings.processes!r}: {error}") from error
    return LaunchConfig(
        min_nodes=1,
        max_nodes=settings.nodes,
        nproc_per_node=processes,
        run_id="concord",
        rdzv_backend=gathering.get_backend(),
        rdzv_endpoint=f"{settings.host}:{settings.port}",
        max_restarts=0,
        monitor_interval=_MONITOR_INTERVAL,
    )


def _completeness(uri: str) -> Callable[[], bool]:
    """Whether every shard of the run is there and whole. The shards are read only where none is missing by name."""
    store = Store(uri)
    plan = load_plan(store)
    wanted = {shard_key(shard) for shard in plan.shard_ids()}

    def complete() -> bool:
        if wanted - set(store.list(SHARDS)):
            return False
        return len(scan_committed(store, plan, "node").files) == len(wanted)

    return complete


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _text(environ, name)
    if not text.isdecimal():
        raise UsageError(f"{name} is {text!r}, not a whole number; Concord needs no elasticPolicy in the PyTorchJob")
    return int(text)


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise UsageError(
            f"{name} is not set; the training operator sets PET_*, the manifest CONCORD_RUN (elsewhere: torchrun ... -m eval_core.cli work)"
        )
    return environ[name]


if __name__ == "__main__":
    main()
