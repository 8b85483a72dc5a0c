"""How well the order of the claims keeps 1,024 ranks busy, simulated: `make bench-schedule`.

No process, no clock: an event for each shard. Order and rule are the library's (`eval_core.work.agenda`). The efficiency is
(sum of the work / sum of the speeds) / (time until the last shard is done), the least and the mean of five draws.
The table goes to `benchmarks/README.md` with `--write`.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt
from machine import describe_machine, write_block

from eval_core.work.agenda import dearest_first, leaves_the_rest

RANKS = 1024
DRAWS = 5
UNIT = 1e6
"""Cost units of a second at full speed."""

Floats = npt.NDArray[np.float64]
Rule = Literal["plan's order", "dearest first", "a slow rank takes the cheapest", "a slow rank leaves the rest"]


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Attributes:
        name: for the table.
        seconds: draws the shards' costs, in seconds at full speed.
        slow: part of the ranks that is slow.
        speed: of those; the others' is 1.
        error: sigma of the lognormal factor by which a shard takes longer than its cost says.
    """

    name: str
    seconds: Callable[[np.random.Generator], Floats]
    slow: float = 0.01
    speed: float = 0.25
    error: float = 0.0


def lognormal(sigma: float, shards: int) -> Callable[[np.random.Generator], Floats]:
    """Mean 1."""
    return lambda random: random.lognormal(-(sigma**2) / 2, sigma, shards)


def equal(shards: int) -> Callable[[np.random.Generator], Floats]:
    """As the plan cuts requests of like length."""
    return lambda _: np.ones(shards)


def in_parts(seconds: Callable[[np.random.Generator], Floats], parts: int) -> Callable[[np.random.Generator], Floats]:
    """The same work in smaller shards."""
    return lambda random: np.repeat(seconds(random) / parts, parts)


PLAIN: tuple[Rule, ...] = ("dearest first", "a slow rank leaves the rest")
ALL: tuple[Rule, ...] = (
    "plan's order",
    "dearest first",
    "a slow rank takes the cheapest",
    "a slow rank leaves the rest",
)
CASES: tuple[tuple[Case, tuple[Rule, ...]], ...] = (
    (Case("lognormal, sigma 0.5", lognormal(0.5, 65536)), ALL),
    (Case("lognormal, sigma 0.5, costs known to 10 %", lognormal(0.5, 65536), error=0.1), PLAIN),
    (Case("equal", equal(65536)), ALL),
    (Case("equal, costs known to 10 %", equal(65536), error=0.1), PLAIN),
    (Case("equal, costs known to 10 %, in 4 parts", in_parts(equal(65536), 4), error=0.1), PLAIN),
    (Case("lognormal, sigma 1", lognormal(1, 65536)), ALL),
    (Case("lognormal, sigma 1, in 4 parts", in_parts(lognormal(1, 65536), 4)), PLAIN),
    (Case("equal, costs known to 10 %, none slow", equal(65536), slow=0.0, error=0.1), PLAIN),
    (Case("equal, costs known to 10 %, half of the ranks 2.5 times slower", equal(65536), 0.5, 0.4, 0.1), PLAIN),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    options = parser.parse_args()
    rows = [
        "| costs | order | efficiency, mean | least | to reach |",
        "| :-- | :-- | --: | --: | --: |",
    ]
    for case, rules in CASES:
        for rule in rules:
            found = [efficiency(case, rule, seed) for seed in range(DRAWS)]
            rows.append(f"| {case.name} | {rule} | {np.mean(found):.1%} | {min(found):.1%} | 98 % |")
            print(rows[-1], flush=True)
    head = (
        f"{RANKS:,} ranks, of which 1 % are 4 times slower where nothing else is said; 65,536 shards of 1 s on average."
    )
    table = "\n".join([describe_machine("numpy"), "", head, "", *rows])
    print(f"\n{table}")
    if options.write:
        write_block("schedule", table)


def efficiency(case: Case, rule: Rule, seed: int) -> float:
    """Of one draw."""
    random = np.random.default_rng(seed)
    costs = np.ceil(case.seconds(random) * UNIT).astype(np.int64)
    speeds = np.ones(RANKS)
    speeds[random.choice(RANKS, round(RANKS * case.slow), replace=False)] = case.speed
    order = np.arange(len(costs)) if rule == "plan's order" else dearest_first(range(len(costs)), costs.tolist())
    ordered = costs[order]
    work = ordered / UNIT * random.lognormal(-(case.error**2) / 2, case.error, len(costs))
    return float(work.sum() / speeds.sum() / makespan(ordered.tolist(), work.tolist(), speeds.tolist(), rule))


def makespan(costs: list[int], work: list[float], speeds: list[float], rule: Rule) -> float:
    """Seconds until the last shard is done; `costs` and `work` in the order of the tickets."""
    before = list(accumulate(costs, initial=0))
    last: list[int] = [-1] * len(speeds)
    free = [(0.0, rank) for rank in range(len(speeds))]
    given, back, end = 0, len(costs), 0.0
    while given < back:
        now, rank = heapq.heappop(free)
        own = last[rank]
        leaves = rule == "a slow rank leaves the rest" and rank != 0 and own >= 0
        if leaves and leaves_the_rest(before, own, given, len(speeds)):
            continue
        if rule == "a slow rank takes the cheapest" and speeds[rank] < 1:
            back -= 1
            ticket = back
        else:
            ticket = given
            given += 1
        last[rank] = ticket
        done = now + work[ticket] / speeds[rank]
        end = max(end, done)
        heapq.heappush(free, (done, rank))
    return end


if __name__ == "__main__":
    main()
