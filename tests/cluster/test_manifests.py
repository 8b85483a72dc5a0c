"""The shipped manifests on a real API server: all of them are accepted, and three commands evaluate a model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed.cluster import Cluster
from testbed.s3 import S3
from testbed.shell import TestbedError, wait_until

from eval_core.storage import Store

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ("pvc", "s3", "gpu", "restricted", "monitoring")
JOB = "concord-work"

SPEC = """
name: cluster
model: {folder}/model
tasks:
  - {{name: docs, type: perplexity, data: {folder}/data/documents.jsonl, window: 64, stride: 48}}
  - {{name: quiz, type: multiple_choice, data: {folder}/data/questions.jsonl, prompt: "Q: {{input}}\\nA:"}}
batch: {{tokens: 256, shard_cost: 5000000}}
work: {{progress_interval: 1, stall_timeout: 60}}
report: {{bootstrap: 50}}
"""

NOWHERE, UNUSED = "/runs/nowhere", SPEC.format(folder="/runs")

# The nodes of a test are small: four workers fit on two cores.
SMALL = """
- {op: replace, path: /spec/pytorchReplicaSpecs/Master/template/spec/containers/0/resources/requests, value: {cpu: 50m, memory: 256Mi}}
- {op: replace, path: /spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/resources/requests, value: {cpu: 50m, memory: 256Mi}}
- {op: replace, path: /spec/pytorchReplicaSpecs/Worker/replicas, value: WORKERS}
"""
SMALL_STEP = """
- {op: replace, path: /spec/template/spec/containers/0/resources/requests, value: {cpu: 50m, memory: 256Mi}}
"""


@dataclass(frozen=True, kw_only=True)
class Space:
    """A namespace with an overlay of ours in it.

    Attributes:
        name: of the namespace.
        overlay: folder of the kustomization.
    """

    cluster: Cluster
    name: str
    overlay: Path

    def apply(self, step: str) -> None:
        """One of the commands of docs/kubernetes.md."""
        self.cluster.kubectl("apply", "-k", self.overlay, "-l", f"concord-eval/step={step}")

    def kubectl(self, *words: object, timeout: float = 120) -> str:
        return self.cluster.kubectl("--namespace", self.name, *words, timeout=timeout)

    def pods(self) -> dict[str, dict[str, Any]]:
        """The pods of the PyTorchJob, by name."""
        listed = json.loads(self.kubectl("get", "pods", "-l", f"training.kubeflow.org/job-name={JOB}", "-o", "json"))
        return {pod["metadata"]["name"]: pod for pod in listed["items"]}

    def await_end(self, kind: str, name: str, done: str, timeout: float) -> None:
        """Wait until `kind/name` has the condition `done`; fail at once where it has failed, with what there is to read."""

        def ended() -> bool:
            status = json.loads(self.kubectl("get", kind, name, "-o", "json")).get("status", {})
            true = {c["type"] for c in status.get("conditions", []) if c["status"] == "True"}
            assert "Failed" not in true, self.story()
            return done in true

        try:
            wait_until(ended, f"{kind} {name} is {done}", timeout, interval=1)
        except TestbedError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error

    def story(self) -> str:
        """Pods, events and logs, for whoever must find out why."""
        events = self.kubectl("get", "events", "--sort-by=.lastTimestamp")
        logs = self.kubectl("logs", "-l", "app.kubernetes.io/name=concord", "--tail=50", "--prefix", "--all-containers")
        return "\n".join([self.kubectl("get", "pods", "-o", "wide"), events[-4000:], logs[-8000:]])


@pytest.fixture
def space(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Space]]:
    """Name a namespace and make an overlay for it: `space("s3", "storage-pvc", run="s3://...", spec=..., workers=3)`."""
    made: list[str] = []

    def make(overlay: str, *components: str, run: str = NOWHERE, spec: str = UNUSED, workers: int = 3) -> Space:
        name = f"concord-{overlay}-{os.urandom(3).hex()}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "spec.yaml").write_text(spec, encoding="utf-8")
        kustomization = {
            "namespace": name,
            "resources": [os.path.relpath(ROOT / "manifests" / "overlays" / overlay, folder)],
            "components": [os.path.relpath(ROOT / "manifests" / "components" / name, folder) for name in components],
            "configMapGenerator": [
                {"name": "concord-spec", "behavior": "replace", "files": ["spec.yaml"]},
                {"name": "concord-run", "behavior": "replace", "literals": [f"CONCORD_RUN={run}"]},
            ],
            "patches": [
                {"target": {"kind": "PyTorchJob"}, "patch": SMALL.replace("WORKERS", str(workers))},
                {"target": {"kind": "Job"}, "patch": SMALL_STEP},
            ],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
        made.append(name)
        return Space(cluster=cluster, name=name, overlay=folder)

    yield make
    for name in made:
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="module")
def shared(cluster: Cluster, tiny_model: Path, small_data: Path) -> Path:
    """Model and data in the folder that the pods see as /runs."""
    if not cluster.own:
        pytest.skip("the pods of the cluster of KUBECONFIG do not see a folder of this machine")
    folder = cluster.shared_folder / "manifests"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(tiny_model, folder / "model")
    shutil.copytree(small_data, folder / "data")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    folder.chmod(0o777)
    return folder


@pytest.fixture(scope="module")
def local_run(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same evaluation by one process on this machine."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "spec.yaml").write_text(SPEC.format(folder=shared), encoding="utf-8")
    command = [sys.executable, "-m", "eval_core.cli", "run", folder / "spec.yaml", "--run", folder / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_api_server_accepts_every_object(overlay: str, space: Callable[..., Space]) -> None:
    """With the operator's webhook, PodSecurity's warnings, and every warning an error."""
    here = space(overlay)
    documents = list(yaml.safe_load_all(here.cluster.kubectl("kustomize", here.overlay)))
    setup = [d for d in documents if d["kind"] == "Namespace"]
    here.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(setup))
    known = set(here.cluster.kubectl("api-resources", "--no-headers").split())
    unknown = {d["kind"] for d in documents} - known
    assert unknown <= {"PodMonitor"}
    accepted = [d for d in documents if d["kind"] not in unknown]
    strict = ("--dry-run=server", "--validate=strict", "--warnings-as-errors")
    output = here.cluster.kubectl("apply", *strict, "-f", "-", input=yaml.safe_dump_all(accepted))
    assert len(output.splitlines()) == len(accepted)
    assert f"networkpolicy.networking.k8s.io/{JOB.replace('work', 'worker')} created (server dry run)" in output


def test_the_launcher_may_do_what_the_role_says_and_the_worker_nothing(space: Callable[..., Space]) -> None:
    here = space("pvc")
    here.apply("setup")
    allowed = {
        ("concord-launcher", verb, resource)
        for resource, verbs in {
            "pytorchjobs.kubeflow.org": ("create", "get", "list", "patch", "delete"),
            "pods": ("list",),
            "pods/log": ("get",),
            "events": ("list",),
        }.items()
        for verb in verbs
    }
    asked = {
        (account, verb, resource)
        for account in ("concord-launcher", "concord-worker")
        for resource in ("pytorchjobs.kubeflow.org", "pods", "pods/log", "events", "secrets")
        for verb in ("create", "get", "list", "watch", "patch", "delete")
    }
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{here.name}:{account}",
                "resourceAttributes": _attributes(here.name, verb, resource),
            },
        }
        for account, verb, resource in sorted(asked)
    ]
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    answers = list(yaml.safe_load_all(here.cluster.kubectl("create", "-f", "-", "-o", "yaml", input=body)))
    assert len(answers) == len(asked)
    granted = {
        (account, verb, resource)
        for account, verb, resource in asked
        for answer in answers
        if answer["status"]["allowed"]
        and answer["spec"]["user"].endswith(f":{account}")
        and answer["spec"]["resourceAttributes"] == _attributes(here.name, verb, resource)
    }
    assert granted == allowed


def test_the_overlay_restricted_refuses_what_the_profile_forbids(space: Callable[..., Space]) -> None:
    here = space("restricted")
    here.apply("setup")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "greedy", "namespace": here.name},
        "spec": {"containers": [{"name": "main", "image": "none", "securityContext": {"privileged": True}}]},
    }
    with pytest.raises(TestbedError, match="violates PodSecurity"):
        here.cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))


@pytest.mark.parametrize(("overlay", "workers"), [("pvc", 3), ("restricted", 1)])
def test_three_commands_give_the_bits_of_one_process(
    overlay: str, workers: int, space: Callable[..., Space], shared: Path, local_run: Path, images: dict[str, str]
) -> None:
    inside = f"/runs/{shared.name}"
    here = space(overlay, run=f"{inside}/{overlay}", spec=SPEC.format(folder=inside), workers=workers)
    here.cluster.offer_shared_folder(here.name)
    here.apply("setup")
    _evaluate(here, workers)
    _compare(str(shared / overlay), here, local_run, workers)
    assert (shared / overlay / "report.html").stat().st_size > 10_000


def test_a_run_in_an_object_store_has_the_same_bits(
    space: Callable[..., Space],
    shared: Path,
    local_run: Path,
    images: dict[str, str],
    s3: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The overlay `s3` with the component `storage-pvc`: the model on the volume, the run in the store."""
    s3.make_bucket("manifests")
    run = f"s3://manifests/{os.urandom(4).hex()}"
    here = space("s3", "storage-pvc", run=run, spec=SPEC.format(folder=f"/runs/{shared.name}"), workers=1)
    here.cluster.offer_shared_folder(here.name)
    here.apply("setup")
    literals = [f"--from-literal={name}={value}" for name, value in s3.environment().items()]
    here.kubectl("create", "secret", "generic", "concord-storage", *literals)
    _evaluate(here, 1)
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    _compare(run, here, local_run, 1)
    assert len(Store(run).require("report.html", "the report step writes it")) > 10_000


def _evaluate(here: Space, workers: int) -> None:
    """The three commands, and what can be seen while they run."""
    here.apply("plan")
    here.await_end("job", "concord-plan", "Complete", 120)

    here.apply("work")
    wait_until(lambda: set(here.pods()) == _names(workers), "the operator has created all pods", 60)
    for pod in here.pods().values():
        mounts = [m["mountPath"] for c in pod["spec"]["containers"] for m in c["volumeMounts"]]
        assert not [path for path in mounts if "serviceaccount" in path]
    here.await_end("pytorchjob", JOB, "Succeeded", 300)

    here.apply("report")
    here.await_end("job", "concord-report", "Complete", 120)
    assert "passed" in here.kubectl("logs", "job/concord-report")


def _compare(run: str, here: Space, local_run: Path, workers: int) -> None:
    """Every pod took part, and the numbers are those of one process, to the bit."""
    store = Store(run)
    records = [key for key in store.list("attempts") if "/rank-" in key]
    ranks = [json.loads(store.require(key, "it was listed")) for key in records]
    assert sorted(rank["host"] for rank in ranks) == sorted(_names(workers)), here.story()
    command = [sys.executable, "-m", "eval_core.cli", "compare", run, str(local_run)]
    compared = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert compared.stdout.startswith("identical: ")


def _names(workers: int) -> set[str]:
    return {f"{JOB}-master-0", *(f"{JOB}-worker-{number}" for number in range(workers))}


def _attributes(namespace: str, verb: str, resource: str) -> dict[str, str]:
    name, _, group = resource.partition(".")
    name, _, subresource = name.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "resource": name, "group": group, "subresource": subresource}
    return {key: value for key, value in attributes.items() if value}
