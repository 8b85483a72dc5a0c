"""Building images beside the cluster: a dockerd of its own, and a registry that hands the nodes only the layers they lack."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import yaml

from . import node, parts, processes, settings
from .archive import image_id
from .shell import TestbedError, run, succeeds, unmount, wait_until

SOCKET = settings.RUN / "docker.sock"
HOST = f"unix://{SOCKET}"
# Room for the layers of all five images; what was not used for longest goes first.
BUILD_CACHE = "15GB"
REGISTRY = f"{settings.HOST_ADDRESS}:5000"
# Debian's own client: one of another release that comes first on PATH may ask for plugins that are not here.
CLIENT = "/usr/bin/docker"


def start() -> None:
    """Start dockerd, unless it runs, with the stand-in of `python:3.11-slim-bookworm` as `settings.BASE_IMAGE`."""
    if not processes.is_running("dockerd"):
        folder = settings.RUN / "docker"
        configuration = {
            "hosts": [HOST],
            "data-root": str(settings.cache() / "docker"),
            "exec-root": str(folder),
            "pidfile": str(folder / "pid"),
            "iptables": False,
            "bridge": "none",
            "insecure-registries": [REGISTRY],
            "oom-score-adjust": 0,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "daemon.json").write_text(json.dumps(configuration), encoding="utf-8")
        _end_own_containerd()
        processes.start("dockerd", ["/usr/sbin/dockerd", "--config-file", folder / "daemon.json"], niceness=10)

        def answers() -> bool:
            processes.check_running("dockerd")
            return succeeds(CLIENT, "--host", HOST, "version")

        wait_until(answers, "dockerd answers", 60)
    base = parts.archive(settings.BASE_IMAGE)
    if not _has(settings.BASE_IMAGE, image_id(base)):
        docker("load", "--input", base)


def stop() -> None:
    processes.stop("registry")
    processes.stop("dockerd")
    _end_own_containerd()
    unmount(settings.cache() / "docker", settings.RUN / "docker")


def docker(*words: object, env: dict[str, str] | None = None) -> str:
    return run(CLIENT, "--host", HOST, *words, env=os.environ | (env or {}))


def build(target: str, tag: str, arguments: dict[str, str]) -> None:
    """Build one target of the repository's Dockerfile, on the stand-in of its base image."""
    values = {"BASE_IMAGE": settings.BASE_IMAGE} | arguments
    options = [f"--build-arg={name}={value}" for name, value in values.items()]
    words = ["build", "--network=host", f"--target={target}", f"--tag={tag}", *options, settings.REPOSITORY]
    with parts.timed(f"image {tag}"):
        docker(*words, env={"DOCKER_BUILDKIT": "1"})
    docker("image", "prune", "--force")
    docker("builder", "prune", "--force", f"--keep-storage={BUILD_CACHE}")


def load(tag: str) -> None:
    """Hand an image of dockerd's to every node, unless it is there."""
    identity = docker("image", "inspect", "--format={{.Id}}", tag).strip()
    lacking = [which for which in settings.NODES if node.loaded_images(which).get(tag) != identity]
    if not lacking:
        return
    _start_registry()
    passing = f"{REGISTRY}/{tag}"

    def pull(which: settings.NodeSettings) -> None:
        _share_layers(which)
        node.ctr(which, "images", "pull", "--plain-http", passing)
        node.ctr(which, "images", "tag", "--force", passing, _full_name(tag))
        node.ctr(which, "images", "remove", passing)
        node.remember_image(which, tag, identity)

    with parts.timed(f"image {tag} to {' and '.join(which.name for which in lacking)}"), ThreadPoolExecutor() as pool:
        docker("tag", tag, passing)
        docker("push", "--quiet", passing)
        docker("rmi", passing)
        list(pool.map(pull, lacking))


def _start_registry() -> None:
    if processes.is_running("registry"):
        return
    folder = settings.cache() / "registry"
    folder.mkdir(parents=True, exist_ok=True)
    configuration = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder)}},
        "http": {"addr": REGISTRY},
        "log": {"level": "warn"},
    }
    file = settings.state() / "registry.yml"
    file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    if (folder / "docker/registry/v2/repositories").is_dir():  # which the first push makes
        run("/usr/bin/docker-registry", "garbage-collect", "--delete-untagged", file)
    processes.start("registry", ["/usr/bin/docker-registry", "serve", file])

    def answers() -> bool:
        processes.check_running("registry")
        try:
            return bool(urlopen(f"http://{REGISTRY}/v2/", timeout=2).status == 200)
        except OSError:
            return False

    wait_until(answers, "the registry answers", 30)


def _share_layers(which: settings.NodeSettings) -> None:
    """Link the registry's blobs into the node's store, which takes what lies there as fetched: no copy, no time."""
    store = which.containerd_root / "io.containerd.content.v1.content" / "blobs" / "sha256"
    store.mkdir(parents=True, exist_ok=True)
    for blob in (settings.cache() / "registry").glob("docker/registry/v2/blobs/sha256/*/*/data"):
        link = store / blob.parent.name
        if not link.exists():
            os.link(blob, link)


def _has(tag: str, identity: str) -> bool:
    try:
        return docker("image", "inspect", "--format={{.Id}}", tag).strip() == f"sha256:{identity}"
    except TestbedError:
        return False


def _full_name(tag: str) -> str:
    """The name that the kubelet asks for: `concord/worker:1` is short for `docker.io/concord/worker:1`."""
    first, slash, _ = tag.partition("/")
    if not slash:
        return f"docker.io/library/{tag}"
    return tag if "." in first or ":" in first else f"docker.io/{tag}"


def _end_own_containerd() -> None:
    """dockerd starts a containerd; it outlives a dockerd that was killed."""
    processes.kill_all(processes.find(str(settings.RUN / "docker" / "containerd" / "containerd.toml")))
