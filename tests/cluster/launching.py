"""What the tests of the launcher share: planned runs that the pods see, namespaces with the shipped setup, launchers as pods."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from testbed.cluster import Cluster
from testbed.shell import TestbedError, wait_until

from components.evaluate.request import LaunchRequest
from eval_core.plan.files import load_plan
from eval_core.reduce import load_reduction, load_shards, reduce_run
from eval_core.storage import Store
from eval_core.verify.run import verify_run

ROOT = Path(__file__).resolve().parents[2]

SPEC = """
name: launched
model: {folder}/model
tasks:
  - {{name: docs, type: perplexity, data: {folder}/documents.jsonl, window: 64, stride: 24}}
batch: {{tokens: 64, shard_cost: 200000000}}
audit: {{micro_batches: 2}}
work: {{progress_interval: 1, stall_timeout: 60}}
report: {{bootstrap: 50}}
"""


@dataclass(frozen=True, kw_only=True)
class Work:
    """An evaluation that pods can do: planned, with the digest that one process on this machine gives.

    Attributes:
        folder: model, data and plan, in the folder that the pods share; they see it at the same path.
        digest: of the reduction.
        plan_digest: of the plan.
    """

    folder: Path
    digest: str
    plan_digest: str

    def run(self, name: str) -> Path:
        """A new run with the plan, open to the pods' user."""
        run = self.folder / name
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.folder / "planned", run)
        for path in (run, *run.rglob("*")):
            path.chmod(0o777)
        return run

    def check(self, run: Path) -> set[str]:
        """The run has every bit of the local one, and is verified; returns the attempts that committed its shards."""
        store = Store(str(run))
        plan = load_plan(store)
        loaded = load_shards(store, plan)
        reduction = reduce_run(store, plan, loaded)
        assert reduction.digest == self.digest
        assert verify_run(store, plan, loaded, reduction).verdict == "passed"
        assert not list(run.glob("violations/*"))
        return {file.provenance.attempt for file in loaded.files.values()}


@cache
def make_work(shared: Path, model: Path) -> Work:
    """Plan a few hundred shards, which four pods on two slow cores compute in half a minute, and compute them here.

    Pods may not look below the folder of a user, so the folder has another path, here and there.
    """
    from pydoc_data.topics import topics

    path = Path(tempfile.mkdtemp(prefix="concord-")) / "shared"
    path.symlink_to(shared)
    folder = path / f"launcher-{os.urandom(3).hex()}"
    folder.mkdir()
    shutil.copytree(model, folder / "model")
    texts = [topics[title][:3000] for title in sorted(topics)] * 3
    rows = [json.dumps({"text": f"{number} {text}"}) for number, text in enumerate(texts)]
    (folder / "documents.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "spec.yaml").write_text(SPEC.format(folder=folder), encoding="utf-8")
    _concord("plan", folder / "spec.yaml", "--run", folder / "planned")
    head = folder / "planned/plan/plan.json"
    head.write_text(head.read_text().replace(str(folder.resolve()), str(folder)))
    _concord("run", folder / "spec.yaml", "--run", folder / "local", "--nproc", "2")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    local = Store(str(folder / "local"))
    return Work(folder=folder, digest=load_reduction(local).digest, plan_digest=load_plan(local).digest)


def _concord(*words: object) -> None:
    command = [sys.executable, "-m", "eval_core.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def committed(run: Path) -> int:
    return len(list(run.glob("shards/*/*.json")))


@dataclass(frozen=True, kw_only=True)
class Space:
    """A namespace with the setup of an overlay: accounts, the launcher's Role, the claim on the shared folder."""

    cluster: Cluster
    name: str

    def kubectl(self, *words: object, input: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.name, *words, input=input)

    def get(self, *words: object) -> Any:
        """Objects as kubectl gives them; None where there is none of that name."""
        try:
            found = json.loads(self.kubectl("get", *words, "--output=json"))
        except TestbedError as error:
            if "NotFound" in str(error):
                return None
            raise
        return found["items"] if found["kind"] == "List" else found

    def create(self, thing: dict[str, Any]) -> None:
        self.kubectl("create", "--filename=-", input=json.dumps(thing))

    def await_claim(self) -> None:
        """The claim is bound a while after its volume is there; pods would wait for it with their own patience."""
        self.until(lambda: self.get("pvc", "concord-runs")["status"]["phase"] == "Bound", "the claim is bound")

    def jobs(self) -> list[str]:
        return [job["metadata"]["name"] for job in self.get("pytorchjobs")]

    def pods_of(self, job: str) -> dict[str, Any]:
        """Role (`master-0`, `worker-0`, ...) -> pod."""
        pods = self.get("pods", "--selector", f"training.kubeflow.org/job-name={job}")
        return {pod["metadata"]["name"].removeprefix(f"{job}-"): pod for pod in pods}

    def start_launcher(self, name: str, image: str, request: LaunchRequest) -> None:
        """The launcher as the pipeline starts it: a pod with its own account, and its name and UID in the environment."""
        self.create(_launcher_pod(name, image, request))

    def log(self, pod: str) -> str:
        """What the pod's container has written; nothing, where it hasn't started."""
        try:
            return self.kubectl("logs", pod)
        except TestbedError as error:
            if "is waiting to start" not in str(error):
                raise
            return ""

    def await_launcher(self, name: str, timeout: float) -> tuple[str, str]:
        """(phase, log) of a launcher pod that has ended."""

        def ended() -> bool:
            return self.get("pod", name)["status"]["phase"] in ("Succeeded", "Failed")

        try:
            wait_until(ended, f"the launcher {name} ends", timeout, interval=1)
        except TestbedError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error
        return self.get("pod", name)["status"]["phase"], self.log(name)

    def until(self, condition: Callable[[], object], what: str, timeout: float = 120) -> None:
        try:
            wait_until(condition, what, timeout, interval=0.3)
        except TestbedError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error

    def story(self) -> str:
        """Pods, events and logs, for whoever must find out why."""
        events = self.kubectl("get", "events", "--sort-by=.lastTimestamp")
        logs = self.kubectl(
            "logs", "--selector", "app.kubernetes.io/name=concord", "--tail=60", "--prefix", "--ignore-errors"
        )
        return "\n".join([self.kubectl("get", "pytorchjobs,pods", "--output=wide"), events[-4000:], logs[-10000:]])


def make_space(cluster: Cluster, overlay: str, folder: Path) -> Space:
    """A namespace with `kubectl apply -k` of the setup of an overlay."""
    name = f"launch-{os.urandom(3).hex()}"
    kustomization = {
        "namespace": name,
        "resources": [os.path.relpath(ROOT / "manifests" / "overlays" / overlay, folder)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    cluster.kubectl("apply", "--kustomize", folder, "--selector", "concord-eval/step=setup")
    cluster.offer_shared_folder(name)
    space = Space(cluster=cluster, name=name)
    if overlay != "s3":
        space.await_claim()
    return space


def request_for(
    work: Work, space: Space, run: Path | str, image: str, template: dict[str, Any] | None = None, **changes: Any
) -> LaunchRequest:
    """A request for a run in the shared folder, which pods see at the same path as this machine."""
    folder = str(work.folder.parent)
    pods: dict[str, Any] = {
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "concord-runs"}}],
        "volumeMounts": [{"name": "shared", "mountPath": folder}],
    }
    given: dict[str, Any] = {
        "run": str(run),
        "plan_digest": work.plan_digest,
        "namespace": space.name,
        "image": image,
        "workers": 2,
        "processes_per_worker": 1,
        "gpus_per_worker": 0,
        "pod_template": json.dumps(pods | (template or {})),
        "timeout": 600,
        "patience": 10,
    }
    return LaunchRequest(**(given | changes))


def _launcher_pod(name: str, image: str, request: LaunchRequest) -> dict[str, Any]:
    inputs = {key: value for key, value in vars(request).items() if key != "namespace"} | {"backend": "pytorchjob"}
    executor_input = {
        "inputs": {"parameterValues": inputs},
        "outputs": {
            "parameters": {"job": {"outputFile": "/tmp/outputs/job"}},
            "artifacts": {"metrics": {"artifacts": [{"name": "metrics", "uri": "/tmp/outputs/metrics"}]}},
            "outputFile": "/tmp/outputs/executor_output.json",
        },
    }
    mounts = [*json.loads(request.pod_template)["volumeMounts"], {"name": "tmp", "mountPath": "/tmp"}]
    volumes = [*json.loads(request.pod_template)["volumes"], {"name": "tmp", "emptyDir": {}}]
    fields = {"KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "concord"}},
        "spec": {
            "serviceAccountName": "concord-launcher",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "nodeSelector": {"kubernetes.io/hostname": "node-1"},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-m", "components.evaluate", "--executor-input", json.dumps(executor_input)],
                    "env": [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in fields.items()],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }
