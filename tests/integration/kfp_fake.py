"""Kubeflow Pipelines' /apis/v2beta1 as far as a submitter sees it: a real HTTP server on 127.0.0.1, with faults on order.

What it answers was read from the backend's code (2.17): grpc-gateway's JSON, which leaves out what is empty; filters that
are decoded twice; the state history; a driver before each step; a terminated run that ends as FAILED.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
import struct
import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

STEPS = ("shard-data", "evaluate", "verify-precision", "generate-report")


@dataclass
class Moment:
    """What a run shows at one look: its state, and the states of the Argo nodes below it."""

    state: str
    nodes: dict[str, str] = field(default_factory=dict)


def succeeding() -> list[Moment]:
    """A run in which all goes well."""
    return [
        Moment("PENDING"),
        Moment("RUNNING", {"shard-data-driver": "RUNNING"}),
        Moment("RUNNING", {"shard-data-driver": "SUCCEEDED", "shard-data": "RUNNING"}),
        Moment("RUNNING", {"shard-data": "SUCCEEDED", "evaluate": "RUNNING"}),
        Moment("SUCCEEDED", dict.fromkeys(STEPS, "SUCCEEDED")),
    ]


def failing(step: str) -> list[Moment]:
    """A run in which `step` fails; later ones are omitted, and the exit task runs."""
    at = STEPS.index(step)
    nodes = dict.fromkeys(STEPS[:at], "SUCCEEDED") | {step: "FAILED"}
    later = {} if step == STEPS[-1] else {STEPS[-1]: "SUCCEEDED"}
    omitted = dict.fromkeys(STEPS[at + 1 : -1], "RUNTIME_STATE_UNSPECIFIED")
    return [Moment("RUNNING", nodes | omitted), Moment("FAILED", nodes | omitted | later)]


def terminated() -> list[Moment]:
    """A run that someone terminates during `evaluate`, as a backend with Argo shows it."""
    going = {"shard-data": "SUCCEEDED", "evaluate": "RUNNING"}
    gone = {"shard-data": "SUCCEEDED", "evaluate": "FAILED"}
    return [
        Moment("RUNNING", going),
        Moment("CANCELING", gone),
        Moment("FAILED", gone | {"generate-report": "SUCCEEDED"}),
    ]


class FakeKfp:
    """The server. Set its attributes before or while clients call; everything that happened is counted.

    Attributes:
        script: the moments of the next runs; the last one stays.
        token: the bearer token to ask for; None asks for none.
        multi_user: whether a namespace is needed.
        writes_history: whether CANCELING gets into the history.
        seen: (method, path) -> number of requests.
        fired: fault -> how often it was done to a request.
        times: when each request came, by the wall.
    """

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.script = succeeding()
        self.token: str | None = None
        self.forbidden = False
        self.multi_user = False
        self.writes_history = True
        self.page_size = 100
        self.runs: dict[str, dict[str, Any]] = {}
        self.experiments: dict[str, dict[str, Any]] = {}
        self.seen: Counter[tuple[str, str]] = Counter()
        self.fired: Counter[str] = Counter()
        self.times: list[tuple[str, str, datetime.datetime]] = []
        self.authorizations: list[str | None] = []
        self._faults: deque[tuple[str, str]] = deque()
        self._lock = threading.Lock()
        self._scheme = "https" if certificate else "http"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def will(self, fault: str, method: str = "GET", times: int = 1) -> FakeKfp:
        """Order a fault for the next `times` requests of `method` on runs: `fake.will("drop").will("429")`.

        429 (with Retry-After: 1), 500, 503, drop (no answer), torn (half an answer), html (a login page), redirect; and
        for POST `lose`: the run is made, the answer is lost.
        """
        self._faults.extend([(method, fault)] * times)
        return self

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeKfp]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def add_run(self, script: list[Moment], parameters: dict[str, Any] | None = None) -> str:
        """A run that is there already; returns its id."""
        body = {"display_name": "there already", "runtime_config": {"parameters": parameters or {}}}
        return str(self._make_run(body, script)["run_id"])

    def _make_run(self, body: dict[str, Any], script: list[Moment]) -> dict[str, Any]:
        run = {
            **body,
            "run_id": str(uuid.uuid4()),
            "created_at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "script": deque(script),
            "state_history": [],
        }
        self.runs[run["run_id"]] = run
        self._move(run)
        return run

    def _move(self, run: dict[str, Any]) -> None:
        moment = run["script"].popleft() if len(run["script"]) > 1 else run["script"][0]
        history = run["state_history"]
        if (not history or history[-1]["state"] != moment.state) and (
            self.writes_history or moment.state != "CANCELING"
        ):
            history.append({"state": moment.state})
        run["state"] = moment.state
        tasks = [{"display_name": "root", "state": moment.state, "start_time": "2026-01-01T00:00:00Z"}]
        for name, state in moment.nodes.items():
            tasks.append({"display_name": name, "state": state, "start_time": f"2026-01-01T00:00:{len(tasks):02}Z"})
            tasks.append({"display_name": "executor", "state": state, "start_time": "2026-01-01T00:01:00Z"})
        run["run_details"] = {"task_details": tasks}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                self._serve("GET", None)

            def do_POST(self) -> None:
                self._serve("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _serve(self, method: str, body: Any) -> None:
                parts = urlsplit(self.path)
                with fake._lock:
                    fake.seen[method, parts.path] += 1
                    fake.times.append((method, parts.path, datetime.datetime.now(datetime.timezone.utc)))
                    fake.authorizations.append(self.headers.get("Authorization"))
                    fault = fake._next_fault(method, parts.path)
                    if fault is not None:
                        fake.fired[fault] += 1
                    if fault is not None and fault != "lose":
                        self._fail(fault)
                        return
                    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                    status, answer = fake._answer(method, parts.path, query, body, self.headers.get("Authorization"))
                if fault == "lose":
                    self._fail("drop")
                else:
                    self._send(status, json.dumps(answer).encode())

            def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _fail(self, fault: str) -> None:
                if fault == "drop":
                    # Without a farewell: the other side reads a reset.
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()
                    self.close_connection = True
                elif fault == "torn":
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", "1000")
                    self.end_headers()
                    self.wfile.write(b'{"run_id": "')
                    self.close_connection = True
                elif fault == "html":
                    self._send(200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
                elif fault == "redirect":
                    self._send(302, b"", {"Location": "/dex/auth?state=1"})
                elif fault == "429":
                    self._send(429, b"{}", {"Retry-After": "1"})
                else:
                    self._send(int(fault), json.dumps({"code": 13, "message": "the database is away"}).encode())

        return Handler

    def _next_fault(self, method: str, path: str) -> str | None:
        if self._faults and self._faults[0][0] == method and path.startswith("/apis/v2beta1/runs"):
            return self._faults.popleft()[1]
        return None

    def _answer(
        self, method: str, path: str, query: dict[str, str], body: Any, authorization: str | None
    ) -> tuple[int, dict[str, Any]]:
        if self.token is not None and authorization != f"Bearer {self.token}":
            return 401, {"error": "Request header error: there is no user identity header.", "code": 16}
        if self.forbidden:
            return 403, {"error": "User 'ci' is not authorized with reason: (no permission)", "code": 7}
        if path == "/apis/v2beta1/healthz":
            return 200, {"multi_user": True} if self.multi_user else {}
        if path == "/apis/v2beta1/experiments":
            return self._experiments(method, query, body)
        if path == "/apis/v2beta1/runs":
            return self._create(body) if method == "POST" else self._list(query)
        run = self.runs.get(path.removeprefix("/apis/v2beta1/runs/"))
        if run is None:
            return 404, {"error": "Failed to get a run: ResourceNotFoundError", "code": 5}
        self._move(run)
        return 200, _shown(run)

    def _create(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if not body.get("display_name"):
            return 400, {"error": "The run name is empty. Please specify a valid name", "code": 3}
        if set(body["pipeline_spec"]) != {"pipeline_spec", "platform_spec"}:
            return 400, {"error": "Failed to parse the pipeline source", "code": 3}
        if len(body.get("description", "")) > 255:
            return 500, {"error": "Data too long for column 'Description'", "code": 13}
        if self.multi_user and body.get("experiment_id") not in self.experiments:
            return 400, {"error": "Experiment id can not be empty in multi-user mode", "code": 3}
        return 200, _shown(self._make_run(body, self.script))

    def _list(self, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if self.multi_user and not query.get("namespace"):
            return 400, {"error": "A run cannot have an empty namespace in multi-user mode", "code": 3}
        predicate = _predicate(query)
        assert predicate["operation"] == "IS_SUBSTRING"
        key, value = predicate["key"], predicate["string_value"]
        found = [_shown(run) for run in self.runs.values() if value in run.get(key, "")]
        start = int(query.get("page_token") or 0)
        size = min(int(query["page_size"]), self.page_size)
        answer: dict[str, Any] = {"runs": found[start : start + size]} if found else {}
        if start + size < len(found):
            answer["next_page_token"] = str(start + size)
        return 200, answer

    def _experiments(self, method: str, query: dict[str, str], body: Any) -> tuple[int, dict[str, Any]]:
        if method == "POST":
            made = {**body, "experiment_id": str(uuid.uuid4())}
            self.experiments[made["experiment_id"]] = made
            return 200, made
        predicate = _predicate(query)
        assert (predicate["operation"], predicate["key"]) == ("EQUALS", "name")
        found = [
            e
            for e in self.experiments.values()
            if e["display_name"] == predicate["string_value"] and e.get("namespace") == query.get("namespace")
        ]
        return 200, {"experiments": found} if found else {}


def _predicate(query: dict[str, str]) -> dict[str, Any]:
    (predicate,) = json.loads(unquote(query["filter"]))["predicates"]
    return predicate


def _shown(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name != "script" and value not in ("", [], {})}


def make_certificates(folder: Path) -> tuple[Path, tuple[Path, Path]]:
    """An authority of our own and a server's certificate for 127.0.0.1: (authority, (certificate, key))."""
    now = datetime.datetime.now(datetime.timezone.utc)

    def build(name: str, issuer: str, public: Any, extension: x509.ExtensionType) -> x509.CertificateBuilder:
        named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, issuer)]
        return (
            x509.CertificateBuilder()
            .subject_name(named[0])
            .issuer_name(named[1])
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=True)
        )

    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = build("ours", "ours", authority_key.public_key(), x509.BasicConstraints(ca=True, path_length=None))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = build("kfp", "ours", server_key.public_key(), address)
    files = {}
    for name, certificate in (("ca", authority), ("server", server)):
        files[name] = folder / f"{name}.pem"
        files[name].write_bytes(
            certificate.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
    key = folder / "server.key"
    key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files["ca"], (files["server"], key)
