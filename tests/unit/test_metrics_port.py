"""What Prometheus reads from rank 0, served over a real socket."""

from __future__ import annotations

import math
import socket
import urllib.error
import urllib.request

import pytest

from eval_core.errors import UsageError
from eval_core.work.metrics_port import PORT, metrics_text, with_metrics_port
from eval_core.work.progress import Standing

STANDING = Standing(
    cost_done=30,
    cost_total=120,
    cost_before=10,
    shards_done=3,
    shards_total=12,
    tokens=456,
    values={"docs": 12.5, 'a "quoted" \\ task': 0.25, "unknown yet": math.nan},
)


class Recorder:
    """A display that remembers."""

    def __init__(self) -> None:
        self.shown: list[Standing] = []
        self.said: list[str] = []
        self.closed = False

    def show(self, standing: Standing) -> None:
        self.shown.append(standing)

    def say(self, message: str) -> None:
        self.said.append(message)

    def close(self) -> None:
        self.closed = True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nothing_is_served_unasked() -> None:
    display = Recorder()
    assert with_metrics_port(display, {}) is display


def test_every_number_has_its_type_and_a_task_without_a_value_has_no_line() -> None:
    lines = metrics_text(STANDING).splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert samples == {
        "concord_shards": "12",
        "concord_shards_committed": "3",
        "concord_cost_flops": "120",
        "concord_cost_done_flops": "30",
        "concord_tokens_total": "456",
        'concord_task_value{task="docs"}': "12.5",
        'concord_task_value{task="a \\"quoted\\" \\\\ task"}': "0.25",
    }
    for name in samples:
        assert any(line.startswith(f"# TYPE {name.partition('{')[0]} ") for line in lines)


def test_the_last_standing_is_served_and_shown() -> None:
    port, display = free_port(), Recorder()
    served = with_metrics_port(display, {PORT: str(port)})
    try:
        served.show(STANDING)
        served.say("hello")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == metrics_text(STANDING)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
    finally:
        served.close()
    assert (display.shown, display.said, display.closed) == ([STANDING], ["hello"], True)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


@pytest.mark.parametrize("port", ["many", "70000", "-1"])
def test_a_port_that_is_none_is_one_clear_line(port: str) -> None:
    with pytest.raises(UsageError, match=rf"^CONCORD_METRICS_PORT={port}: can't serve metrics there: "):
        with_metrics_port(Recorder(), {PORT: port})


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(UsageError, match=f"{PORT}={port}: .*[Aa]ddress already in use"):
            with_metrics_port(Recorder(), {PORT: port})
