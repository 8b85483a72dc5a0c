"""The thin edge to the Kubernetes API: PyTorchJobs, their pods, events and logs.

Every call is tried again while the API server is out of reach or answers 429 or 5xx, as long as its caller can wait. What
doesn't pass by itself becomes one error that names the verb and the resource.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from components.evaluate.names import RUN_LABEL, run_key
from eval_core.errors import ConcordError, first_line

GROUP = "kubeflow.org"
VERSION = "v1"
PLURAL = "pytorchjobs"
JOB_NAME_LABEL = "training.kubeflow.org/job-name"

Json = dict[str, Any]

_JOBS = f"{PLURAL}.{GROUP}"
_CALL_TIMEOUT = (5, 30)
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0
_FORBIDDEN = re.compile(r"cannot (?P<verb>\w+) resource \"(?P<resource>[^\"]+)\"")


class ClusterError(ConcordError):
    """The API server can't be reached, or refused a call for good."""


class AccessError(ClusterError):
    """RBAC lacks a verb on a resource; the message names both."""


class RefusedError(ClusterError):
    """The API server, a quota or an admission webhook refused the object."""


class OperatorMissingError(ClusterError):
    """The PyTorchJob kind isn't there, or its webhook doesn't answer."""


class ConflictError(ClusterError):
    """The object exists already, or has changed since it was read."""


def connect(namespace: str, patience: float = 60.0) -> Cluster:
    """The cluster that this pod runs in, or that the user's kubeconfig names.

    Raises:
        ClusterError: there is neither.
    """
    configuration = client.Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException:
        try:
            load_kube_config(client_configuration=configuration)
        except (ConfigException, OSError) as error:
            raise ClusterError(
                "no Kubernetes cluster: this is neither a pod with a service-account token, nor is there a usable kubeconfig "
                f"({first_line(error)})"
            ) from error
    configuration.retries = False
    return Cluster(client.ApiClient(configuration), namespace, patience)


def delete_run_jobs(run_uri: str, namespace: str) -> list[str]:
    """Delete every PyTorchJob of the run at `run_uri`; returns their names.

    Raises:
        ClusterError: the API server can't be reached, or doesn't allow it.
    """
    cluster = connect(namespace)
    names = [job["metadata"]["name"] for job in cluster.list_jobs(run_key(run_uri))]
    for name in names:
        cluster.delete_job(name)
    return names


class Cluster:
    """One namespace of a cluster. `patience`: seconds that a call is tried again."""

    def __init__(self, api: client.ApiClient, namespace: str, patience: float) -> None:
        self.namespace = namespace
        self.patience = patience
        self._api = api
        self._core = client.CoreV1Api(api)
        self._custom = client.CustomObjectsApi(api)
        self._jobs = {"group": GROUP, "version": VERSION, "namespace": namespace, "plural": PLURAL}

    def with_patience(self, seconds: float) -> Cluster:
        """The same cluster, its calls tried again for `seconds`."""
        return Cluster(self._api, self.namespace, seconds)

    def create_job(self, manifest: Json) -> Json:
        """Create a PyTorchJob.

        Raises:
            ConflictError: one of that name exists.
            RefusedError: admission or a quota refused it.
        """
        created: Json = self._call(
            "create",
            _JOBS,
            lambda: self._custom.create_namespaced_custom_object(
                **self._jobs, body=manifest, _request_timeout=_CALL_TIMEOUT
            ),
        )
        return created

    def get_job(self, name: str) -> Json | None:
        """The PyTorchJob, or None where there is none of that name."""
        found: Json | None = self._call(
            "get",
            _JOBS,
            lambda: self._custom.get_namespaced_custom_object(**self._jobs, name=name, _request_timeout=_CALL_TIMEOUT),
            missing=True,
        )
        return found

    def list_jobs(self, key: str) -> list[Json]:
        """The PyTorchJobs of the run with `key`."""
        found: Json = self._call(
            "list",
            _JOBS,
            lambda: self._custom.list_namespaced_custom_object(
                **self._jobs, label_selector=f"{RUN_LABEL}={key}", _request_timeout=_CALL_TIMEOUT
            ),
        )
        jobs: list[Json] = found["items"]
        return jobs

    def set_owners(self, job: Json, owners: list[Json]) -> Json | None:
        """Replace the job's ownerReferences; None where it is gone.

        Raises:
            ConflictError: the job has changed since it was read.
        """
        metadata = {"resourceVersion": job["metadata"]["resourceVersion"], "ownerReferences": owners}
        patched: Json | None = self._call(
            "patch",
            _JOBS,
            lambda: self._custom.patch_namespaced_custom_object(
                **self._jobs,
                name=job["metadata"]["name"],
                body={"metadata": metadata},
                _request_timeout=_CALL_TIMEOUT,
            ),
            missing=True,
        )
        return patched

    def delete_job(self, name: str) -> None:
        """Delete a PyTorchJob and, in the background, its pods; quietly nothing where it is gone."""
        self._call(
            "delete",
            _JOBS,
            lambda: self._custom.delete_namespaced_custom_object(
                **self._jobs, name=name, propagation_policy="Background", _request_timeout=_CALL_TIMEOUT
            ),
            missing=True,
        )

    def list_pods(self, label: str, value: str) -> list[Json]:
        """The pods with a label, in the order of their names."""
        pods = self._list(
            "pods",
            lambda: self._core.list_namespaced_pod(
                self.namespace,
                label_selector=f"{label}={value}",
                _preload_content=False,
                _request_timeout=_CALL_TIMEOUT,
            ),
        )
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def list_events(self, name: str) -> list[Json]:
        """The events about the object called `name`."""
        return self._list(
            "events",
            lambda: self._core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.name={name}",
                _preload_content=False,
                _request_timeout=_CALL_TIMEOUT,
            ),
        )

    def log_tail(self, pod: str, container: str, lines: int, *, previous: bool) -> str:
        """The last lines that a container wrote; with `previous`, those of its run before the last restart."""
        response = self._call(
            "get",
            "pods/log",
            lambda: self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                tail_lines=lines,
                previous=previous,
                _preload_content=False,
                _request_timeout=_CALL_TIMEOUT,
            ),
        )
        return bytes(response.data).decode("utf-8", "replace")

    def _list(self, resource: str, call: Callable[[], Any]) -> list[Json]:
        response = self._call("list", resource, call)
        items: list[Json] = json.loads(response.data)["items"]
        return items

    def _call(self, verb: str, resource: str, call: Callable[[], Any], *, missing: bool = False) -> Any:
        """What `call` returns; with `missing`, None where the object isn't there."""
        deadline = time.monotonic() + self.patience
        pause = _FIRST_PAUSE
        while True:
            try:
                return call()
            except ApiException as error:
                if missing and error.status == 404 and _reason(error) == "NotFound":
                    return None
                if not _passes_by_itself(error):
                    raise self._final(verb, resource, error) from error
                failure: Exception = error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                failure = error
            if time.monotonic() + pause > deadline:
                raise self._given_up(verb, resource, failure) from failure
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _final(self, verb: str, resource: str, error: ApiException) -> ClusterError:
        message = _message(error)
        if error.status == 401:
            return ClusterError(f"the API server doesn't accept the credentials ({verb} {resource}): {message}")
        if error.status == 403:
            if lacking := _FORBIDDEN.search(message):
                named = lacking["resource"]
                return AccessError(
                    f"RBAC doesn't allow it: the service account lacks the verb '{lacking['verb']}' on '{named}' in namespace "
                    f"{self.namespace}; see the launcher's Role among the manifests"
                )
            return RefusedError(f"{verb} {resource} was refused: {message}")
        if error.status == 404 and resource == _JOBS and _reason(error) != "NotFound":
            return OperatorMissingError(
                f"the cluster has no {_JOBS}: install the Kubeflow training operator v1 (its CRDs are missing)"
            )
        if error.status == 409:
            return ConflictError(f"{verb} {resource}: {message}")
        if error.status in (400, 422):
            return RefusedError(f"{verb} {resource} was refused: {message}")
        return ClusterError(f"{verb} {resource} in namespace {self.namespace} failed: {message}")

    def _given_up(self, verb: str, resource: str, error: Exception) -> ClusterError:
        text = _message(error) if isinstance(error, ApiException) else first_line(error)
        if "failed calling webhook" in text:
            return OperatorMissingError(
                f"the training operator's webhook didn't answer for {self.patience:.0f} s; is the operator running? ({text})"
            )
        return ClusterError(f"{verb} {resource}: the API server didn't answer for {self.patience:.0f} s: {text}")


def _passes_by_itself(error: ApiException) -> bool:
    """Whether the same call may succeed a little later."""
    return error.status in (0, 408, 429) or error.status >= 500


def _status(error: ApiException) -> Json:
    """The API server's Status object, where the answer holds one."""
    try:
        status = json.loads(error.body or "")
    except (ValueError, TypeError):
        return {}
    return status if isinstance(status, dict) else {}


def _reason(error: ApiException) -> str:
    """The machine-readable reason. A path that the API server doesn't serve at all is answered without one."""
    status = _status(error)
    return str(status.get("reason", "")) if status.get("details", {}).get("name") else ""


def _message(error: ApiException) -> str:
    return str(_status(error).get("message") or f"HTTP {error.status} {error.reason}").strip().replace("\n", " ")
