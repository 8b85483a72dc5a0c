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

import pytest
import yaml
from testbed.cluster import Cluster
from testbed.shell import TestbedError, wait_until

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
    """Make a namespace with the setup of an overlay: `space("pvc", run="/runs/x", spec=..., workers=3)`."""
    made: list[str] = []

    def make(overlay: str, run: str = "/runs/none", spec: str = SPEC.format(folder="/runs"), workers: int = 3) -> Space:
        name = f"concord-{overlay}-{os.urandom(3).hex()}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "spec.yaml").write_text(spec, encoding="utf-8")
        kustomization = {
            "namespace": name,
            "resources": [os.path.relpath(ROOT / "manifests" / "overlays" / overlay, folder)],
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
    overlay: str,
    workers: int,
    space: Callable[..., Space],
    shared: Path,
    local_run: Path,
    images: dict[str, str],
    concord: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    inside = f"/runs/{shared.name}"
    here = space(overlay, run=f"{inside}/{overlay}", spec=SPEC.format(folder=inside), workers=workers)
    here.apply("setup")
    here.cluster.offer_shared_folder(here.name)

    here.apply("plan")
    here.await_end("job", "concord-plan", "Complete", 120)

    here.apply("work")
    here.await_end("pytorchjob", JOB, "Succeeded", 300)
    pods = json.loads(here.kubectl("get", "pods", "-l", f"training.kubeflow.org/job-name={JOB}", "-o", "json"))["items"]
    assert {pod["metadata"]["name"] for pod in pods} == {
        f"{JOB}-master-0",
        *(f"{JOB}-worker-{number}" for number in range(workers)),
    }
    for pod in pods:
        mounts = [m["mountPath"] for c in pod["spec"]["containers"] for m in c["volumeMounts"]]
        assert not [path for path in mounts if "serviceaccount" in path]

    here.apply("report")
    here.await_end("job", "concord-report", "Complete", 120)
    assert "passed" in here.kubectl("logs", "job/concord-report")

    (attempt,) = (shared / overlay / "attempts").iterdir()
    ranks = [json.loads(path.read_text(encoding="utf-8")) for path in attempt.glob("rank-*.json")]
    assert {rank["host"] for rank in ranks} == {pod["metadata"]["name"] for pod in pods}
    assert (shared / overlay / "report.html").stat().st_size > 10_000
    compared = concord("compare", shared / overlay, local_run)
    assert compared.returncode == 0, compared.stdout
    assert compared.stdout.startswith("identical: ")


def _attributes(namespace: str, verb: str, resource: str) -> dict[str, str]:
    name, _, group = resource.partition(".")
    name, _, subresource = name.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "resource": name, "group": group, "subresource": subresource}
    return {key: value for key, value in attributes.items() if value}
