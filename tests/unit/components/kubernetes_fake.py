"""The few paths of a Kubernetes API server that the launcher calls: a real HTTP server on 127.0.0.1, with faults on order.

It answers as a 1.34 API server does: Status objects with reason and details, merge patches with a resourceVersion, label and field
selectors. Everything else of a cluster is the tests': they put pods and events into it, and change conditions.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from components.evaluate.cluster import Cluster

Json = dict[str, Any]

JOBS = re.compile(r"/apis/kubeflow\.org/v1/namespaces/(?P<space>[^/]+)/pytorchjobs(/(?P<name>[^/]+))?")
PODS = re.compile(r"/api/v1/namespaces/(?P<space>[^/]+)/pods")
LOGS = re.compile(r"/api/v1/namespaces/(?P<space>[^/]+)/pods/(?P<name>[^/]+)/log")
EVENTS = re.compile(r"/api/v1/namespaces/(?P<space>[^/]+)/events")


@dataclass
class Fault:
    """What the next `times` calls get, whose "METHOD path" matches `call`. Without a status, the connection is dropped."""

    call: str
    status: int | None
    body: Json | str = ""
    times: int = 1


def status(code: int, reason: str, message: str, **details: str) -> Json:
    """A Status object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }


@dataclass
class FakeKubernetes:
    """The server's content, and what happened.

    Attributes:
        jobs, pods, events: by name; events in a list.
        logs: pod -> its log.
        faults: what goes wrong next.
        calls: "METHOD path" of every call, as it came.
        linger: whether a deleted job stays, being deleted.
        created: called with each new job.
    """

    jobs: dict[str, Json] = field(default_factory=dict)
    pods: dict[str, Json] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    calls: list[str] = field(default_factory=list)
    linger: bool = False
    created: Callable[[Json], None] = lambda job: None
    version: int = 1

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def cluster(self, patience: float = 5.0) -> Cluster:
        """A launcher's view of this server."""
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self.server.server_address[1]}"
        configuration.retries = False
        return Cluster(client.ApiClient(configuration), "concord", patience)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def refuse_access(self, verb: str, resource: str, call: str) -> None:
        """From now on RBAC lacks `verb` on `resource`."""
        group = "kubeflow.org" if resource == "pytorchjobs" else ""
        message = (
            f'{resource} is forbidden: User "system:serviceaccount:concord:concord-launcher" cannot {verb} resource '
            f'"{resource}" in API group "{group}" in the namespace "concord"'
        )
        self.faults.append(Fault(call, 403, status(403, "Forbidden", message, kind=resource), times=1000))

    def set_condition(self, name: str, kind: str, message: str = "") -> None:
        """What the operator says of a job; replaces what it said before."""
        with self.lock:
            created = {"type": "Created", "status": "True", "message": ""}
            said = [created] if kind == "Created" else [created, {"type": kind, "status": "True", "message": message}]
            self.jobs[name]["status"] = {"conditions": said}
            self._touch(self.jobs[name])

    def add_pods(self, job: Json, **changes: Any) -> None:
        """The pods that the operator makes of a job, running."""
        with self.lock:
            for role, spec in job["spec"]["pytorchReplicaSpecs"].items():
                for number in range(spec["replicas"]):
                    name = f"{job['metadata']['name']}-{role.lower()}-{number}"
                    labels = spec["template"]["metadata"]["labels"]
                    own = {"training.kubeflow.org/job-name": job["metadata"]["name"]}
                    self.pods[name] = {
                        "metadata": {"name": name, "uid": uuid.uuid4().hex, "labels": labels | own},
                        "spec": spec["template"]["spec"] | {"nodeName": "node-1"},
                        "status": {
                            "phase": "Running",
                            "conditions": [{"type": "PodScheduled", "status": "True"}],
                            "containerStatuses": [{"name": "pytorch", "restartCount": 0, "state": {"running": {}}}],
                        }
                        | changes,
                    }

    def count(self, call: str) -> int:
        """How many calls match."""
        return sum(bool(re.search(call, made)) for made in self.calls)

    def answer(self, method: str, path: str, query: dict[str, str], body: Json | None) -> tuple[int, Json | str]:
        """(HTTP status, body) of a call."""
        if method == "GET" and (match := LOGS.fullmatch(path)):
            return 200, self.logs.get(match["name"], "")
        if method == "GET" and PODS.fullmatch(path):
            return 200, _listing(p for p in self.pods.values() if _selected(p, query["labelSelector"]))
        if method == "GET" and EVENTS.fullmatch(path):
            about = query["fieldSelector"].removeprefix("involvedObject.name=")
            return 200, _listing(e for e in self.events if e["involvedObject"]["name"] == about)
        if match := JOBS.fullmatch(path):
            return self._job(method, match["name"], query, body)
        return 404, "404 page not found\n"

    def _job(self, method: str, name: str | None, query: dict[str, str], body: Json | None) -> tuple[int, Json | str]:
        if name is None and method == "GET":
            return 200, _listing(j for j in self.jobs.values() if _selected(j, query["labelSelector"]))
        if name is None and method == "POST":
            assert body is not None
            name = body["metadata"]["name"]
            if name in self.jobs:
                message = f'pytorchjobs.kubeflow.org "{name}" already exists'
                return 409, status(409, "AlreadyExists", message, name=name)
            body["metadata"] |= {"uid": uuid.uuid4().hex, "creationTimestamp": "2026-11-30T12:00:00Z"}
            self.jobs[name] = self._touch(body)
            self.created(body)
            return 201, body
        if name not in self.jobs:
            return 404, status(404, "NotFound", f'pytorchjobs.kubeflow.org "{name}" not found', name=str(name))
        job = self.jobs[name]
        if method == "PATCH":
            assert body is not None
            if body["metadata"]["resourceVersion"] != job["metadata"]["resourceVersion"]:
                message = "the object has been modified; please apply your changes to the latest version and try again"
                return 409, status(409, "Conflict", message, name=name)
            job["metadata"]["ownerReferences"] = body["metadata"]["ownerReferences"]
            self._touch(job)
        if method == "DELETE":
            if self.linger:
                job["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
                self._touch(job)
            else:
                del self.jobs[name]
        return 200, job

    def _touch(self, thing: Json) -> Json:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        return thing


def _handler(fake: FakeKubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            call = f"{self.command} {url.path}"
            with fake.lock:
                fake.calls.append(call)
                fault = next((f for f in fake.faults if f.times > 0 and re.search(f.call, call)), None)
                if fault is not None:
                    fault.times -= 1
                    if fault.status is None:
                        linger = struct.pack("ii", 1, 0)
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        self.connection.close()
                        return
                    code, answer = fault.status, fault.body
                else:
                    query = {key: values[0] for key, values in parse_qs(url.query).items()}
                    code, answer = fake.answer(self.command, url.path, query, body)
                data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            """Quietly."""

    return Handler


def _listing(items: Any) -> Json:
    return {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": list(items)}


def _selected(thing: Json, selector: str) -> bool:
    label, _, value = selector.partition("=")
    return bool(thing["metadata"]["labels"].get(label) == value)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen"
        time.sleep(0.01)
