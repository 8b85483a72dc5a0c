"""What the tests on a real cluster share: the cluster, the images in it, an S3 server, a namespace of their own.

They run with `CONCORD_CLUSTER=1`, on a cluster that they start themselves, or with `KUBECONFIG`, on the cluster of a user.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from testbed import cluster as testbed
from testbed import docker, parts, settings
from testbed import s3 as s3_server
from testbed.cluster import Cluster
from testbed.s3 import S3
from testbed.shell import TestbedError

from components.images import TARGETS, image

HERE = Path(__file__).parent
WANTED = os.environ.get("CONCORD_CLUSTER") == "1" or bool(os.environ.get("KUBECONFIG"))
collect_ignore_glob = [] if WANTED else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not WANTED:
        line = "tests/cluster was left out: it runs with CONCORD_CLUSTER=1 (starts a Kubernetes, as root) or KUBECONFIG"
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last of all, so that the cluster doesn't run beside other tests."""
    items.sort(key=lambda item: HERE in item.path.parents)


@pytest.fixture(scope="session")
def aloud(pytestconfig: pytest.Config) -> Callable[[], AbstractContextManager[None]]:
    """`with aloud():` lets what takes minutes be seen as it goes, where pytest would keep it."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled if capture else nullcontext


@pytest.fixture(scope="session")
def cluster(aloud: Callable[[], AbstractContextManager[None]]) -> Iterator[Cluster]:
    """The cluster of KUBECONFIG, or the testbed's: one that `make cluster` left running, else one for this session."""
    given = os.environ.get("KUBECONFIG")
    try:
        with aloud():
            running = testbed.given(Path(given)) if given else testbed.up(kept=False)
    except TestbedError as error:
        pytest.fail(f"no cluster: {error}", pytrace=False)
    yield running
    owner = testbed.find_owner()
    if owner and not owner.kept and running.own:
        testbed.down()


@pytest.fixture
def losable_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, for a test that loses a node; the node is back when the test has ended."""
    if not cluster.own:
        pytest.skip("the nodes of the cluster of KUBECONFIG are not ours to lose")
    yield cluster
    cluster.revive_node("node-2")


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Callable[..., str]]:
    """Make namespaces that are deleted after the test: `namespace()`, with PodSecurity `namespace("restricted")`."""
    made: list[str] = []

    def make(standard: str = "baseline") -> str:
        name = f"test-{secrets.token_hex(4)}"
        labels = {"pod-security.kubernetes.io/enforce": standard}
        content = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        cluster.kubectl("create", "-f", "-", input=json.dumps(content))
        made.append(name)
        return name

    yield make
    for name in made:
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def python_image(cluster: Cluster) -> str:
    """An image with Python and nothing of Concord."""
    return settings.BASE_IMAGE if cluster.own else "python:3.11-slim-bookworm"


@pytest.fixture(scope="session")
def docker_host(cluster: Cluster) -> str:
    """The address of a dockerd with the stand-in of the Dockerfile's base image: `DOCKER_HOST`."""
    if not cluster.own:
        pytest.skip("images are built for the testbed's own cluster only")
    docker.start()
    return docker.HOST


@pytest.fixture(scope="session")
def images(cluster: Cluster, aloud: Callable[[], AbstractContextManager[None]]) -> dict[str, str]:
    """The tag of the image of each target of the Dockerfile, built and on every node.

    On a user's own cluster they are taken to be there (`kind load docker-image`, a registry).
    """
    tags = {target: image(target) for target in TARGETS}
    if cluster.own:
        docker.start()
        for target, tag in tags.items():
            with aloud():
                docker.build(target, tag, {})
                cluster.load_image(tag)
    return tags


@pytest.fixture(scope="session")
def s3(cluster: Cluster, aloud: Callable[[], AbstractContextManager[None]]) -> Iterator[S3]:
    """An S3 server that the pods and this process reach at the same address."""
    if not cluster.own:
        pytest.skip("the pods of the cluster of KUBECONFIG do not reach an S3 server on this machine")
    with aloud():
        parts.build_s3()
    with s3_server.server() as running:
        yield running
