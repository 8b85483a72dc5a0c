"""How long processes of this machine take for some micro-batches."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any

from eval_core.errors import ConcordError, WorkerError, first_line
from eval_core.plan.types import Plan
from eval_core.work.forward import score_micro_batch
from eval_core.work.model import load_model, set_up_compute

_PASSES = 2


class Stopwatch:
    """A pool of at most `processes` processes, each of which computes the same micro-batches at the same time."""

    def __init__(self, processes: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._processes = processes
        self._manager = self._context.Manager()
        self._pool = self._new_pool()

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._manager.shutdown()

    def seconds(self, plan: Plan, folder: Path, processes: int) -> float:
        """Wall seconds in which the slowest of `processes` processes computes all of `plan`'s micro-batches.

        The fastest of two passes, after one micro-batch to warm up; loading the model isn't counted.

        Raises:
            WorkerError: a process died, which is mostly for want of memory.
            ConcordError: the model can't be computed as `plan.spec` says.
        """
        start: Any = self._manager.Barrier(processes)
        jobs = [self._pool.submit(_time, plan, folder, rank, start) for rank in range(processes)]
        try:
            return max(job.result() for job in jobs)
        except BrokenProcessPool as error:
            self._pool = self._new_pool()
            raise WorkerError("a process died while it was timed, mostly for want of memory") from error
        except RuntimeError as error:
            raise WorkerError(first_line(error)) from error

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._processes, mp_context=self._context)


def _time(plan: Plan, folder: Path, rank: int, start: Any) -> float:
    spec = plan.spec
    try:
        device = set_up_compute(spec.compute, rank)
        trees = bool(plan.requests.shared.any())
        model = load_model(
            folder, spec.compute, spec.compute.dtype, device, allow_pickle=spec.allow_pickle, trees=trees
        )
        score_micro_batch(plan, 0, model)
    except (ConcordError, RuntimeError):
        start.abort()
        raise
    passes = []
    for _ in range(_PASSES):
        start.wait()
        began = time.perf_counter()
        for batch in range(len(plan.micro_batches)):
            score_micro_batch(plan, batch, model)
        passes.append(time.perf_counter() - began)
    return min(passes)
