"""The launcher on a real cluster: as a pod with the shipped rights, alone and twice, and what it says of each thing that is wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launching import Space, Work, committed, make_space, make_work, request_for
from testbed.cluster import Cluster
from testbed.s3 import S3

from components.evaluate import cluster as edge
from components.evaluate import launcher, reasons
from components.evaluate.cluster import OperatorMissingError, delete_run_jobs
from components.evaluate.launcher import JobError, LaunchRequest, launch
from components.evaluate.names import job_name
from eval_core.errors import ConcordError, UsageError
from eval_core.plan.files import load_plan
from eval_core.storage import Store

MINUTE = 60.0


@pytest.fixture(scope="module")
def work(cluster: Cluster, tiny_model: Path) -> Work:
    if not cluster.own:
        pytest.skip("the pods of the cluster of KUBECONFIG do not see a folder of this machine")
    return make_work(cluster.shared_folder, tiny_model)


@pytest.fixture
def space(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Space]]:
    """Make a namespace with the shipped setup: `space("pvc")`."""
    made: list[Space] = []

    def make(overlay: str = "pvc") -> Space:
        made.append(make_space(cluster, overlay, tmp_path))
        return made[-1]

    yield make
    for one in made:
        cluster.kubectl("delete", "namespace", one.name, "--wait=false")


@pytest.fixture
def from_here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers of this process use the cluster of the tests."""
    import kubernetes.config.kube_config as loader

    monkeypatch.setattr(loader, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))


def test_as_a_pod_with_the_shipped_role_in_a_restricted_namespace(
    work: Work, space: Callable[..., Space], images: dict[str, str]
) -> None:
    here, run = space("restricted"), work.run("restricted")
    request = request_for(work, here, run, images["worker"], workers=3)
    here.start_launcher("launcher", images["evaluate"], request)
    job = job_name(request.run, 1)
    here.until(lambda: len(here.pods_of(job)) == 3, "the job has its pods")
    owner = here.get("pytorchjob", job)["metadata"]["ownerReferences"]
    assert [(one["kind"], one["name"]) for one in owner] == [("Pod", "launcher")]
    phase, log = here.await_launcher("launcher", 300)
    assert phase == "Succeeded", log
    assert f"{job} created in namespace {here.name}" in log
    assert "shards are committed" in log
    assert len(work.check(run)) == 1
    here.until(lambda: reasons.is_finished(here.get("pytorchjob", job)), "the operator says that the job is finished")


@pytest.mark.parametrize(
    ("verb", "resource"), [("create", "pytorchjobs"), ("list", "pods"), ("list", "events"), ("get", "pytorchjobs")]
)
def test_a_verb_less_is_named(
    verb: str, resource: str, work: Work, space: Callable[..., Space], images: dict[str, str]
) -> None:
    here, run = space("pvc"), work.run("forbidden")
    role = here.get("role", "concord-launcher")
    for rule in role["rules"]:
        if resource in rule["resources"]:
            rule["verbs"].remove(verb)
    role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
    here.kubectl("replace", "--filename=-", input=json.dumps(role))
    stuck = {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}
    here.start_launcher("launcher", images["evaluate"], request_for(work, here, run, images["worker"], stuck))
    phase, log = here.await_launcher("launcher", MINUTE)
    assert phase == "Failed"
    assert f"lacks the verb '{verb}' on '{resource}' in namespace {here.name}" in log
    assert "Traceback" not in log


def test_launchers_that_come_together_die_and_come_again(
    work: Work, space: Callable[..., Space], images: dict[str, str]
) -> None:
    """Two at once make one job. It outlives either of them, but not both; the next one goes on where they were."""
    here, run = space("pvc"), work.run("again")
    request = request_for(work, here, run, images["worker"])
    for name in ("first", "second"):
        here.start_launcher(name, images["evaluate"], request)
    job = job_name(request.run, 1)

    def owners() -> set[str]:
        found = here.get("pytorchjob", job)
        return {owner["name"] for owner in found["metadata"]["ownerReferences"]} if found else set()

    here.until(lambda: owners() == {"first", "second"}, "both launchers own the job")
    assert here.jobs() == [job]
    here.until(lambda: committed(run) >= 5, "some shards are committed")
    here.kubectl("delete", "pod", "first", "--grace-period=0", "--force")
    time.sleep(5)
    assert here.jobs() == [job], "the other launcher still owns it"
    here.kubectl("delete", "pod", "second", "--grace-period=0", "--force")
    here.until(lambda: here.jobs() == [], "the job is collected with its last owner")
    here.until(lambda: here.pods_of(job) == {}, "its pods are gone")
    before = {path: path.stat().st_mtime_ns for path in run.glob("shards/*/*.json")}
    assert 0 < len(before) < len(load_plan(Store(str(run))).shard_ids())
    here.start_launcher("third", images["evaluate"], request)
    phase, log = here.await_launcher("third", 300)
    assert phase == "Succeeded", log
    assert {path: path.stat().st_mtime_ns for path in before} == before, "a committed shard was written again"
    assert len(work.check(run)) == 2


def test_sigterm_deletes_the_job(work: Work, space: Callable[..., Space], images: dict[str, str]) -> None:
    here, run = space("pvc"), work.run("terminated")
    request = request_for(work, here, run, images["worker"], {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}})
    request = dataclasses.replace(request, patience=300)
    here.start_launcher("launcher", images["evaluate"], request)
    job = job_name(request.run, 1)
    here.until(lambda: here.jobs() == [job], "the job is there")
    reader = ThreadPoolExecutor(1).submit(here.kubectl, "logs", "--follow", "launcher")
    here.until(lambda: "0 of" in here.log("launcher"), "the launcher watches")
    here.kubectl("delete", "pod", "launcher", "--wait=false")
    here.until(lambda: here.jobs() == [], "the job is deleted")
    assert f"{job} deleted" in reader.result(MINUTE)


def test_a_path_below_runs_is_on_the_claim_by_itself(
    work: Work, space: Callable[..., Space], images: dict[str, str]
) -> None:
    """As a user of the manifests has it: no pod_template at all, the run at /runs/NAME."""
    here, run = space("pvc"), work.run("plain")
    inside = f"/runs/{work.folder.name}"
    head = run / "plan/plan.json"
    head.write_text(head.read_text().replace(str(work.folder), inside))
    request = request_for(work, here, f"{inside}/plain", images["worker"], workers=1, processes_per_worker=2)
    job = launcher.build_job(request, launcher.parse_pod_template("{}"), 1, None)
    here.create(job)
    here.until(
        lambda: reasons.job_state(here.get("pytorchjob", job["metadata"]["name"]))[0] == "succeeded", "it ends", 300
    )
    assert len(work.check(run)) == 1


@pytest.mark.usefixtures("from_here")
def test_on_s3(work: Work, space: Callable[..., Space], images: dict[str, str], s3: S3, monkeypatch: Any) -> None:
    here = space("s3")
    s3.make_bucket("evaluations")
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "concord-storage"}}
    here.create(secret | {"stringData": s3.environment()})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    here.create(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "concord-runs"}, "spec": claim}
    )
    uri = f"s3://evaluations/{here.name}"
    here.await_claim()
    planned, there = Store(str(work.folder / "planned")), Store(uri)
    for key in planned.list("plan"):
        there.put(key, planned.get(key) or b"")
    result = launch(request_for(work, here, uri, images["worker"]))
    assert (result.shards_before, result.restarts) == (0, 0)
    copy = work.run("from-s3")
    for key in there.list("shards") + there.list("attempts"):
        target = copy / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(there.get(key) or b"")
    assert len(work.check(copy)) == 1
    assert launch(request_for(work, here, uri, images["worker"])).job == "", "nothing is left to do"
    assert delete_run_jobs(uri, here.name) == [result.job]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ConcordError, match=r"s3://evaluations/.*: can't read plan/plan.json: "):
        launch(request_for(work, here, uri, images["worker"]))


def refused(request: LaunchRequest, kind: type[ConcordError], within: float) -> str:
    """What `launch` raises, within a minute of its patience, in one line."""
    started = time.monotonic()
    with pytest.raises(kind) as error:
        launch(request)
    assert time.monotonic() - started < within
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.usefixtures("from_here")
class TestWhatIsWrongIsSaid:
    """Each within a minute of the patience, which is 10 s here; and the job is gone, so that it holds nothing."""

    WITHIN = 10 + MINUTE

    def test_an_image_that_is_not_there(self, work: Work, space: Callable[..., Space]) -> None:
        here = space()
        request = request_for(work, here, work.run("wrong"), "concord/wroker:0.1.0")
        said = refused(request, JobError, self.WITHIN)
        assert "the image 'concord/wroker:0.1.0' of pod " in said
        assert "can't be pulled: " in said
        assert here.jobs() == []

    def test_a_node_selector_that_fits_nowhere(self, work: Work, space: Callable[..., Space], images: Any) -> None:
        here = space()
        request = request_for(work, here, work.run("wrong"), images["worker"], {"nodeSelector": {"pool": "moon"}})
        said = refused(request, JobError, self.WITHIN)
        assert (
            "can't be scheduled: 0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector" in said
        )
        assert f"0 of {len(load_plan(Store(request.run)).shard_ids())} shards are committed" in said
        assert here.jobs() == []

    def test_too_little_memory(self, work: Work, space: Callable[..., Space], images: Any) -> None:
        here = space()
        template = {"resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "96Mi"}}}
        request = request_for(work, here, work.run("wrong"), images["worker"], template)
        said = refused(request, JobError, self.WITHIN)
        assert "was OOMKilled at its limit of 96Mi, for the second time; give the pods more memory" in said
        assert here.jobs() == []

    def test_a_model_that_is_not_the_planned_one(self, work: Work, space: Callable[..., Space], images: Any) -> None:
        here, run = space(), work.run("wrong")
        model = work.folder / "altered"
        subprocess.run(["cp", "-r", work.folder / "model", model], check=True)
        weights = bytearray((model / "model.safetensors").read_bytes())
        weights[-5] ^= 1
        (model / "model.safetensors").write_bytes(weights)
        head = run / "plan/plan.json"
        head.write_text(head.read_text().replace(f"{work.folder}/model", str(model)))
        said = refused(request_for(work, here, run, images["worker"]), UsageError, self.WITHIN)
        assert "failed with exit code 2: its input is wrong (error: " in said
        assert "not the file that was planned" in said
        assert here.jobs() == []

    def test_storage_that_the_pods_may_not_write(self, work: Work, space: Callable[..., Space], images: Any) -> None:
        here, run = space(), work.run("wrong")
        for folder in (run, run / "plan"):
            os.chmod(folder, 0o555)
        said = refused(request_for(work, here, run, images["worker"]), JobError, self.WITHIN)
        assert "failed with exit code 1, for the second time (error: " in said
        assert "can't write probe/" in said
        assert "permission denied" in said

    def test_a_quota_that_is_used_up(self, work: Work, space: Callable[..., Space], images: Any) -> None:
        here = space()
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "one"},
            "spec": {"hard": {"pods": "1"}},
        }
        here.create(quota)
        here.until(lambda: here.get("resourcequota", "one").get("status", {}).get("hard"), "the quota is in force")
        said = refused(request_for(work, here, work.run("wrong"), images["worker"]), JobError, self.WITHIN)
        assert "a quota of the namespace is used up: " in said
        assert "exceeded quota: one" in said

    def test_pods_that_pod_security_refuses(self, work: Work, space: Callable[..., Space], images: Any) -> None:
        here, run = space("restricted"), work.run("wrong")
        template = {
            "volumes": [{"name": "shared", "hostPath": {"path": str(work.folder.parent)}}],
        }
        said = refused(request_for(work, here, run, images["worker"], template), JobError, self.WITHIN)
        assert 'the pods are refused: Error creating: pods "' in said
        assert "violates PodSecurity" in said
        assert "hostPath" in said

    def test_a_job_that_the_api_server_refuses(self, work: Work, space: Callable[..., Space], images: Any) -> None:
        here = space()
        said = refused(request_for(work, here, work.run("wrong"), ""), ConcordError, self.WITHIN)
        assert "create pytorchjobs.kubeflow.org was refused: admission webhook" in said
        assert "image: Required value" in said

    def test_a_deadline(self, work: Work, space: Callable[..., Space], images: Any) -> None:
        here = space()
        nowhere = {"nodeSelector": {"pool": "moon"}}
        request = request_for(work, here, work.run("wrong"), images["worker"], nowhere, timeout=5, patience=60)
        assert "ran into its deadline of 5 s; a larger timeout gives it more" in refused(request, JobError, self.WITHIN)

    def test_a_cluster_without_the_operators_kind(
        self, work: Work, space: Callable[..., Space], images: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The real API server's answer for a group that no CRD defines."""
        here = space()
        monkeypatch.setattr(edge, "GROUP", "nobody-installed.kubeflow.org")
        said = refused(request_for(work, here, work.run("wrong"), images["worker"]), OperatorMissingError, 10)
        assert "install the Kubeflow training operator v1 (its CRDs are missing)" in said

    def test_an_operator_that_says_nothing(
        self, work: Work, space: Callable[..., Space], images: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A job that is another controller's: this operator leaves it alone, as one that doesn't run would."""
        here = space()

        def elsewhere(*arguments: Any) -> Any:
            job = build_job(*arguments)
            job["spec"]["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"
            return job

        build_job = launcher.build_job
        monkeypatch.setattr(launcher, "build_job", elsewhere)
        said = refused(request_for(work, here, work.run("wrong"), images["worker"]), JobError, 2 * MINUTE)
        assert "the training operator says nothing of the job for 60 s; see that it is running" in said
        assert here.jobs() == []
