"""Measure this machine: what a spec's settings cost here, and which others would be faster.

Nothing is decided at run time, because every one of these settings can change bits: the user puts the lines that are printed into
the spec, which makes another plan.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval_core.errors import UsageError, WorkerError
from eval_core.model_files import read_shape, weight_files
from eval_core.plan.build import batch_of, build_plan, lay_out, take
from eval_core.plan.types import Int64, Plan
from eval_core.say import say
from eval_core.spec import EvalSpec

_WORTH = 1.03
_CPU_TOKENS = (512, 1024, 2048, 4096)
_CUDA_TOKENS = (2048, 8192, 32768, 65536)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to compute a spec.

    Attributes:
        name: what is different, as a user writes it; nothing of the spec's own.
        changed: section -> key -> value that the spec would have to say.
        processes: that compute at once on this machine.
    """

    name: str
    changed: Mapping[str, Mapping[str, Any]]
    processes: int

    def of(self, spec: EvalSpec) -> EvalSpec:
        """`spec` with what is changed."""
        sections: dict[str, Any] = {
            section: replace(getattr(spec, section), **keys) for section, keys in self.changed.items()
        }
        return replace(spec, **sections)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A setting and the input tokens a second, padding and duplicates not counted, of the whole machine."""

    setting: Setting
    rate: float


def tune(spec: EvalSpec, base: Path) -> None:
    """Time `spec` and its alternatives on a sample of its requests, and print the lines that would make it faster.

    Raises:
        UsageError: the spec can't be planned, or scores no tokens.
    """
    from eval_core.work.stopwatch import Stopwatch

    plan = build_plan(spec, base)
    folder = Path(plan.locations["model"])
    units = _units(plan.spec)
    sample = draw_sample(plan, max(_tokens_of(plan.spec)))
    tokens = int((np.diff(plan.requests.offsets)[sample] - 1).sum())
    own = Setting(name="as the spec says", changed={}, processes=_processes(plan.spec, units))
    say(
        f"timing {len(sample)} requests, {tokens} tokens, on {units} {_UNIT[plan.spec.compute.device]}; each line takes a while"
    )
    with Stopwatch(units) as stopwatch:

        def timed(setting: Setting) -> Timing:
            part = sub_plan(plan, sample, setting.of(plan.spec), folder)
            rate = setting.processes * tokens / stopwatch.seconds(part, folder, setting.processes)
            say(f"  {setting.name}: {rate:,.0f} tokens/s")
            return Timing(setting=setting, rate=rate)

        timings = [timed(own)]
        for setting in alternatives(plan.spec, units):
            try:
                timings.append(timed(setting))
            except WorkerError as error:
                say(f"  {setting.name}: {error}")
        better = together(timings)
        if better is not None:
            timings.append(timed(better))
        again = timed(own)
    show(timings, again)


_UNIT = {"cpu": "CPU cores", "cuda": "GPUs"}


def _units(spec: EvalSpec) -> int:
    if spec.compute.device == "cpu":
        return len(os.sched_getaffinity(0))
    import torch

    return max(1, torch.cuda.device_count())


def _processes(spec: EvalSpec, units: int) -> int:
    return max(1, units // spec.compute.threads) if spec.compute.device == "cpu" else units


def _tokens_of(spec: EvalSpec) -> tuple[int, ...]:
    return _CPU_TOKENS if spec.compute.device == "cpu" else _CUDA_TOKENS


def alternatives(spec: EvalSpec, units: int) -> Iterator[Setting]:
    """Settings that differ from `spec` in one key each."""
    compute, batch = spec.compute, spec.batch
    blocked = ("blocked",) if compute.device == "cpu" else ()
    keys: list[tuple[str, str, tuple[Any, ...], Any]] = [
        ("compute", "attention", (*blocked, "sdpa", "eager"), compute.attention),
        ("compute", "head_rows", (96, 192, 384, 768), compute.head_rows),
    ]
    if compute.device == "cpu":
        keys.insert(0, ("compute", "threads", tuple(sorted({1, units})), compute.threads))
        keys.insert(0, ("compute", "cpu_products", ("onednn", "native"), compute.cpu_products))
    if compute.mode == "fast":
        keys.append(("batch", "tokens", _tokens_of(spec), batch.tokens))
        keys.append(("batch", "pad_to_multiple", (1, 8, 16), batch.pad_to_multiple))
    for section, key, values, own in keys:
        for value in values:
            if value != own:
                changed = Setting(name=f"{section}.{key}: {value}", changed={section: {key: value}}, processes=1)
                yield replace(changed, processes=_processes(changed.of(spec), units))


def together(timings: list[Timing]) -> Setting | None:
    """The best value of every key for which another than the spec's is worth it; None where that is one key or none."""
    own = timings[0]
    best: dict[tuple[str, str], Timing] = {}
    for timing in timings[1:]:
        [(section, keys)] = timing.setting.changed.items()
        [key] = keys
        place = (section, key)
        if timing.rate >= own.rate * _WORTH and (place not in best or timing.rate > best[place].rate):
            best[place] = timing
    if len(best) < 2:
        return None
    changed: dict[str, dict[str, Any]] = {}
    processes = own.setting.processes
    for (section, key), timing in best.items():
        changed.setdefault(section, {})[key] = timing.setting.changed[section][key]
        if key == "threads":
            processes = timing.setting.processes
    return Setting(name="all that are worth it", changed=changed, processes=processes)


def draw_sample(plan: Plan, tokens: int) -> Int64:
    """int64: requests that score tokens, ascending, of items drawn by the seed until they hold `tokens` input tokens.

    Raises:
        UsageError: there are none.
    """
    inputs = np.diff(plan.requests.offsets) - 1
    draw = np.random.default_rng(plan.spec.seed)
    chosen: set[int] = set()
    total = 0
    for item in draw.permutation(len(plan.items)).tolist():
        links = plan.items.link_request[plan.items.link_offsets[item] : plan.items.link_offsets[item + 1]]
        new = {r for r in links.tolist() if not plan.requests.is_prompt[r]} - chosen
        chosen |= new
        total += int(inputs[sorted(new)].sum())
        if total >= tokens:
            break
    if not chosen:
        raise UsageError("the spec has no task that scores tokens, which is what is timed; tasks that generate aren't")
    return np.array(sorted(chosen), dtype=np.int64)


def sub_plan(plan: Plan, sample: Int64, spec: EvalSpec, folder: Path) -> Plan:
    """`plan` with the requests of `sample` alone, in rows and micro-batches as `spec` wants them; its items are not its own."""
    item_of_link = np.repeat(np.arange(len(plan.items)), np.diff(plan.items.link_offsets))
    item = np.full(len(plan.requests), -1, dtype=np.int64)
    item[plan.items.link_request[::-1]] = item_of_link[::-1]
    by_item = sample[np.argsort(item[sample], kind="stable")]
    requests, _, micro_batches = lay_out(
        take(plan.requests, by_item),
        item[by_item],
        plan.examples.task[plan.items.example[item[by_item]]],
        plan.generations,
        batch_of(spec),
        read_shape(folder, weight_files(folder, allow_pickle=spec.allow_pickle)),
        int(plan.model["max_length"]),
    )
    return replace(plan, spec=spec, requests=requests, micro_batches=micro_batches)


def show(timings: list[Timing], again: Timing) -> None:
    """Print all timings, and the lines for the spec; `again`: the spec's own settings a second time."""
    own = timings[0]
    base = max(own.rate, again.rate)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("setting", "left"),
        ("processes", "right"),
        ("tokens/s", "right"),
        ("of the spec's", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for timing in timings:
        table.add_row(
            Text(timing.setting.name),
            str(timing.setting.processes),
            f"{timing.rate:,.0f}",
            f"{timing.rate / base:.2f}",
        )
    Console().print(table)
    noise = abs(own.rate - again.rate) / base
    print(f"The spec's own settings, timed first and last, differ by {noise:.1%}: a gain of that size is none.")
    best = max(timings, key=lambda timing: timing.rate)
    gain = best.rate / base
    if gain < max(_WORTH, 1 + noise):
        print(f"Nothing is worth a change. Start it with --nproc {own.setting.processes}.")
        return
    print(
        f"\nFor the spec, {gain:.2f} times as fast (another plan, so other last bits); start it with --nproc {best.setting.processes}:\n"
    )
    print(
        yaml.safe_dump({section: dict(keys) for section, keys in best.setting.changed.items()}, sort_keys=False), end=""
    )
