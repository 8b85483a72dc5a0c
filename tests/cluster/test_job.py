"""A job that loses its pods and its nodes: it goes on, or the launcher's next attempt does, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes.config.kube_config as kubeconfig
import pytest
from launching import Space, Work, committed, make_space, make_work, request_for
from processes import frozen
from testbed.cluster import Cluster

from components.evaluate.launcher import LaunchRequest, LaunchResult, launch
from components.evaluate.names import job_name

LONG = 420.0
KILL_RANKS = (
    "import os, pathlib, signal\n"
    "for p in pathlib.Path('/proc/1/task/1/children').read_text().split(): os.kill(int(p), signal.SIGKILL)"
)
ON_NODE_2 = {
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [
                            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2"]},
                        ]
                    },
                }
            ]
        }
    }
}


@pytest.fixture(scope="module")
def work(cluster: Cluster, tiny_model: Path) -> Work:
    if not cluster.own:
        pytest.skip("the pods of the cluster of KUBECONFIG do not see a folder of this machine")
    return make_work(cluster.shared_folder, tiny_model)


@pytest.fixture
def here(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A namespace with the shipped setup, in which launchers of this process work."""
    monkeypatch.setattr(kubeconfig, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
    space = make_space(cluster, "pvc", tmp_path)
    yield space
    cluster.kubectl("delete", "namespace", space.name, "--wait=false")


def launching(request: LaunchRequest) -> Future[LaunchResult]:
    return ThreadPoolExecutor(1).submit(launch, request)


def nodes_of(pods: dict[str, Any]) -> dict[str, str]:
    return {role: pod["spec"].get("nodeName", "") for role, pod in pods.items()}


def unchanged(run: Path) -> Callable[[], None]:
    """Remember the shards that are committed; the answer fails where one was written again."""
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in run.glob("shards/*/*.json")}
    assert before

    def check() -> None:
        after = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in before}
        assert after == before, "a committed shard was written again"

    return check


def test_a_worker_and_then_the_master_are_killed(work: Work, here: Space, images: dict[str, str]) -> None:
    """First all ranks of a worker's container, by a signal, as the kernel would; then the Master's pod."""
    run = work.run("killed")
    request = request_for(work, here, run, images["worker"], workers=4)
    job = job_name(request.run, 1)
    result = launching(request)
    here.until(lambda: committed(run) >= 10, "some shards are committed", LONG)
    first = unchanged(run)
    with frozen(ranks_of(run)):
        here.kubectl("exec", f"{job}-worker-1", "--", "python", "-c", KILL_RANKS)
    here.until(lambda: restarts(here, job)["worker-1"] == 1, "the worker's container is started again")
    here.until(lambda: here.log(f"{job}-master-0").count("shards missing") >= 2, "the second group is at work")
    count = committed(run)
    here.until(lambda: committed(run) > count, "the work goes on")
    second = unchanged(run)
    master = here.pods_of(job)["master-0"]["metadata"]["uid"]
    with frozen(ranks_of(run)):
        here.kubectl("delete", "pod", f"{job}-master-0", "--grace-period=1", "--wait=false")
    here.until(lambda: uid(here, job, "master-0") not in ("", master), "the operator has made a new Master")
    done = result.result(LONG)
    assert done.job == job, "one attempt was enough"
    first()
    second()
    attempts = work.check(run)
    assert len(attempts) >= 3
    assert restarts(here, job) == {"master-0": 0, "worker-0": 0, "worker-1": 1, "worker-2": 0}


def test_a_worker_is_lost_with_its_node(
    work: Work, here: Space, images: dict[str, str], losable_cluster: Cluster
) -> None:
    """The operator can't replace the pod, whose end nobody confirms; the others do its work."""
    run = work.run("lost-worker")
    request = request_for(work, here, run, images["worker"])
    job = job_name(request.run, 1)
    losable_cluster.kubectl("cordon", "node-2")
    try:
        result = launching(request)
        here.until(lambda: committed(run) >= 5, "some shards are committed", LONG)
        losable_cluster.kubectl("cordon", "node-1")
        losable_cluster.kubectl("uncordon", "node-2")
        here.kubectl("delete", "pod", f"{job}-worker-0", "--grace-period=1")
        here.until(lambda: nodes_of(here.pods_of(job)).get("worker-0") == "node-2", "a new worker is on node-2")
    finally:
        losable_cluster.kubectl("uncordon", "node-1")
        losable_cluster.kubectl("uncordon", "node-2")
    here.until(lambda: "group" in here.log(f"{job}-worker-0"), "the new worker has joined")
    losable_cluster.kill_node("node-2")
    before = unchanged(run)
    done = result.result(LONG)
    assert done.job == job, "one attempt was enough"
    before()
    assert len(work.check(run)) >= 2


def test_the_master_is_lost_with_its_node(
    work: Work, here: Space, images: dict[str, str], losable_cluster: Cluster
) -> None:
    """The launcher goes on under the next name, while the pods of the first attempt are still listed."""
    run = work.run("lost-master")
    request = request_for(work, here, run, images["worker"], ON_NODE_2)
    result = launching(request)
    here.until(lambda: committed(run) >= 5, "some shards are committed", LONG)
    assert set(nodes_of(here.pods_of(job_name(request.run, 1))).values()) == {"node-2"}
    losable_cluster.kill_node("node-2")
    before = unchanged(run)
    done = result.result(LONG)
    assert done.job == job_name(request.run, 2)
    assert here.pods_of(job_name(request.run, 1)), "the lost node has not confirmed their end"
    before()
    assert len(work.check(run)) == 2


def test_pods_that_live_on_when_their_node_is_lost(
    work: Work, here: Space, images: dict[str, str], losable_cluster: Cluster
) -> None:
    """Zombies: nobody hears of them, and they go on committing, beside the pods that have replaced them."""
    run = work.run("zombies")
    request = request_for(work, here, run, images["worker"], ON_NODE_2)
    job = job_name(request.run, 1)
    result = launching(request)
    here.until(lambda: committed(run) >= 5, "some shards are committed", LONG)
    losable_cluster.zombie_node("node-2")
    before = unchanged(run)
    done = result.result(LONG)
    assert done.job in (job, job_name(request.run, 2))
    before()
    work.check(run)
    count = committed(run)
    losable_cluster.revive_node("node-2")
    here.until(lambda: here.pods_of(job) == {}, "the zombies are gone")
    assert committed(run) == count
    work.check(run)


def ranks_of(run: Path) -> list[int]:
    """Process ids, on this machine, of the ranks in all pods that work on `run`."""

    def holds(process: Path) -> bool:
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            return b"work" in words and f"CONCORD_RUN={run}".encode() in (process / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return False

    found = [int(process.name) for process in Path("/proc").iterdir() if process.name.isdecimal() and holds(process)]
    assert found
    return found


def restarts(space: Space, job: str) -> dict[str, int]:
    return {
        role: sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))
        for role, pod in space.pods_of(job).items()
    }


def uid(space: Space, job: str, role: str) -> str:
    pod = space.pods_of(job).get(role)
    return pod["metadata"]["uid"] if pod else ""
