"""The states of a rank as one int64 vector, for the all-reduce."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eval_core.exact import IntArray
from eval_core.metrics.states import State


def pack(states: Mapping[str, State], committed: IntArray) -> IntArray:
    """The states' vectors in the mapping's order, then how often each shard was committed."""
    return np.concatenate([*(state.to_vector() for state in states.values()), committed])


def unpack(vector: IntArray, like: Mapping[str, State]) -> tuple[dict[str, State], IntArray]:
    """Reverse of `pack` for a sum of such vectors; `like` gives the tasks and their kinds."""
    states: dict[str, State] = {}
    start = 0
    for task, state in like.items():
        size = len(state.to_vector())
        states[task] = type(state).from_vector(vector[start : start + size])
        start += size
    return states, vector[start:]
