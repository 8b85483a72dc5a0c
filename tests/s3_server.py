"""moto's S3 over HTTP, with writes one at a time: `python tests/s3_server.py PORT`.

moto looks whether a key exists and writes it in two steps, so that two requests with If-None-Match may both succeed; S3
promises that one does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


def one_write_at_a_time(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The WSGI application `app`; its reads stay concurrent."""
    writing = Lock()

    def serve(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environment, start_response)
        with writing:
            return list(app(environment, start_response))

    return serve


if __name__ == "__main__":
    served = one_write_at_a_time(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), served, threaded=True)
