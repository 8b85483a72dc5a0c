"""The standing of an attempt for Prometheus: where CONCORD_METRICS_PORT is set, rank 0 answers GET /metrics on that port."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from eval_core.errors import UsageError
from eval_core.work.progress import Display, Standing

PORT = "CONCORD_METRICS_PORT"


def with_metrics_port(display: Display, environ: Mapping[str, str] = os.environ) -> Display:
    """`display`, whose standings are also served where the environment asks for it.

    Raises:
        UsageError: the port is no number, or can't be had.
    """
    if PORT not in environ:
        return display
    try:
        server = _Server(("", int(environ[PORT])), _Handler)
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(f"{PORT}={environ[PORT]}: can't serve metrics there: {error}") from error
    return _Served(display, server)


def metrics_text(standing: Standing) -> str:
    """The standing in Prometheus' text format, version 0.0.4."""
    return "".join(f"{line}\n" for line in _lines(standing))


class _Served:
    def __init__(self, display: Display, server: _Server) -> None:
        self.display = display
        self.server = server
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True, name="metrics").start()

    def show(self, standing: Standing) -> None:
        self.server.text = metrics_text(standing)
        self.display.show(standing)

    def say(self, message: str) -> None:
        self.display.say(message)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.display.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    text = ""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""


def _lines(standing: Standing) -> Iterator[str]:
    for name, kind, meaning, value in (
        ("concord_shards", "gauge", "Shards of the plan, audit included.", standing.shards_total),
        ("concord_shards_committed", "gauge", "Shards committed, by earlier attempts too.", standing.shards_done),
        ("concord_cost_flops", "gauge", "FLOPs of the plan, audit included.", standing.cost_total),
        ("concord_cost_done_flops", "gauge", "FLOPs done, by earlier attempts too.", standing.cost_done),
        ("concord_tokens_total", "counter", "Input tokens computed in this attempt.", standing.tokens),
    ):
        yield f"# HELP {name} {meaning}"
        yield f"# TYPE {name} {kind}"
        yield f"{name} {value}"
    yield "# HELP concord_task_value Running value of a task's headline metric, for display only."
    yield "# TYPE concord_task_value gauge"
    for task, running in standing.values.items():
        if not math.isnan(running):
            yield f'concord_task_value{{task="{_escaped(task)}"}} {running!r}'


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
