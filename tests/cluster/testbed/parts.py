"""What the cluster is made of, each part built once: skipped while its output is there and its inputs are unchanged."""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from . import settings
from .archive import write_archive, write_layer
from .shell import TestbedError, run

# Debian's packages, each with a file that shows that it is there.
PACKAGES = {
    "conntrack": "/usr/sbin/conntrack",
    "containerd": "/usr/bin/containerd",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "debootstrap": "/usr/sbin/debootstrap",
    "docker-registry": "/usr/bin/docker-registry",
    "docker.io": "/usr/sbin/dockerd",
    "ethtool": "/usr/sbin/ethtool",
    "iproute2": "/usr/sbin/ip",
    "iptables": "/usr/sbin/iptables",
    "nftables": "/usr/sbin/nft",
    "openssl": "/usr/bin/openssl",
    "runc": "/usr/sbin/runc",
    "socat": "/usr/bin/socat",
    "util-linux": "/usr/bin/nsenter",
}
BASE_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
OPERATOR_MODULE = "github.com/kubeflow/training-operator"
PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
# A job's worker waits in its init container until `nslookup` finds the Master. busybox's looks the name up otherwise than
# the libc does and fails on the search domains, so the stand-in asks the libc.
NSLOOKUP = b'#!/bin/sh\nexec getent hosts "$1"\n'


@dataclass(frozen=True, kw_only=True)
class GoProgram:
    """A command of one of the module folders under `go/`."""

    name: str
    folder: str
    package: str


KUBERNETES = "k8s.io/kubernetes/cmd"
# The API server first: it pays for the packages that the others share.
PROGRAMS = (
    GoProgram(name="kube-apiserver", folder="kubernetes", package=f"{KUBERNETES}/kube-apiserver"),
    GoProgram(name="kube-controller-manager", folder="kubernetes", package=f"{KUBERNETES}/kube-controller-manager"),
    GoProgram(name="kube-scheduler", folder="kubernetes", package=f"{KUBERNETES}/kube-scheduler"),
    GoProgram(name="kubelet", folder="kubernetes", package=f"{KUBERNETES}/kubelet"),
    GoProgram(name="kube-proxy", folder="kubernetes", package=f"{KUBERNETES}/kube-proxy"),
    GoProgram(name="kubectl", folder="kubernetes", package=f"{KUBERNETES}/kubectl"),
    GoProgram(name="training-operator", folder="operator", package=f"{OPERATOR_MODULE}/cmd/training-operator.v1"),
    GoProgram(name="etcd", folder="etcd", package="go.etcd.io/etcd/server/v3"),
    GoProgram(name="coredns", folder="coredns", package="."),
    GoProgram(name="pause", folder="pause", package="."),
)
S3_PROGRAM = GoProgram(name="weed", folder="seaweedfs", package="github.com/seaweedfs/seaweedfs/weed")


def build() -> None:
    """Build all that a start of the cluster needs.

    Raises:
        TestbedError: not root, no apt or no Go, or a build failed.
    """
    install_packages()
    with ThreadPoolExecutor(max_workers=1) as beside:
        base = beside.submit(_build_base)
        for program in PROGRAMS:
            _build_program(program)
        _once(operator_manifests(), [_module_files("operator"), _source(_render_operator)], _render_operator)
        _build_small_images()
        base.result()


def build_s3() -> None:
    """Build the S3 server of the tests."""
    _build_program(S3_PROGRAM)


def install_packages() -> None:
    """Install the packages whose files are missing.

    Raises:
        TestbedError: something is missing and this user cannot install it.
    """
    if os.geteuid() != 0:
        raise TestbedError("the cluster runs kubelets and network namespaces, which needs root; or give KUBECONFIG")
    missing = [package for package, file in PACKAGES.items() if not Path(file).exists()]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise TestbedError(f"install {', '.join(missing)}: there is no apt-get here; or give KUBECONFIG")
    with timed(f"packages {' '.join(missing)}"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", env=environment)
        run("apt-get", "install", "-y", "--no-install-recommends", *missing, env=environment)


def operator_manifests() -> Path:
    return settings.cache() / "operator.json"


def archive(tag: str) -> Path:
    """The archive of one of the testbed's own images."""
    return settings.cache() / "archives" / f"{tag.replace('/', '-').replace(':', '-')}.tar"


def operator_documents() -> list[dict[str, Any]]:
    """The operator's own manifests."""
    return list(json.loads(operator_manifests().read_text(encoding="utf-8")))


def operator_image() -> str:
    """The image that the operator's deployment names."""
    (deployment,) = (document for document in operator_documents() if document["kind"] == "Deployment")
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def _build_program(program: GoProgram) -> None:
    if shutil.which("go") is None:
        raise TestbedError("the cluster is built from Go modules: put Go 1.26 or newer on PATH, or give KUBECONFIG")
    flags = "-s -w"
    if program.folder == "kubernetes":
        major, minor, _ = settings.KUBERNETES_VERSION.split(".")
        base = "k8s.io/component-base/version"
        flags += f" -X {base}.gitVersion=v{settings.KUBERNETES_VERSION} -X {base}.gitMajor={major} -X {base}.gitMinor={minor}"

    target = settings.binary(program.name)

    def compile_it() -> None:
        command = ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", target, program.package]
        folder = settings.MODULES / program.folder
        run("nice", "-n", "10", *command, cwd=folder, env=os.environ | {"CGO_ENABLED": "0"})

    _once(target, [_module_files(program.folder), flags, program.package, run("go", "version")], compile_it)


def _render_operator() -> None:
    folder = settings.MODULES / "operator"
    run("go", "mod", "download", OPERATOR_MODULE, cwd=folder)
    source = run("go", "list", "-m", "-f", "{{.Dir}}", OPERATOR_MODULE, cwd=folder).strip()
    text = run(settings.binary("kubectl"), "kustomize", f"{source}/manifests/overlays/standalone")
    # As JSON, which is read in no time: the definitions have 3 MB.
    operator_manifests().write_text(json.dumps(list(yaml.safe_load_all(text))), encoding="utf-8")


def _build_base() -> None:
    tree, bundle, nslookup = (_layer(name) for name in ("base", "bundle", "nslookup"))
    _once(tree, [BASE_PACKAGES, _source(_bootstrap)], lambda: _bootstrap(tree))
    env = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", f"PIP_CERT={CA_BUNDLE}"]
    env += [f"{name}={os.environ[name]}" for name in PIP_SETTINGS if name in os.environ]

    def assemble_base() -> None:
        write_layer(bundle, {str(CA_BUNDLE).lstrip("/"): CA_BUNDLE})
        write_archive(archive(settings.BASE_IMAGE), settings.BASE_IMAGE, [tree, bundle], env=env)

    def assemble_init() -> None:
        write_layer(nslookup, {"usr/local/bin/nslookup": NSLOOKUP})
        write_archive(archive(settings.INIT_IMAGE), settings.INIT_IMAGE, [tree, nslookup], env=env[:1])

    how = _source(write_archive)
    _once(archive(settings.BASE_IMAGE), [_stamp(tree), CA_BUNDLE, *env, how], assemble_base)
    _once(archive(settings.INIT_IMAGE), [_stamp(tree), NSLOOKUP, *env, how], assemble_init)


def _bootstrap(target: Path) -> None:
    """A small Debian with Python: what `python:3.11-slim-bookworm` is to a user with an image registry."""
    folder = target.parent / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    run("nice", "-n", "10", "debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", folder)
    for name in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log"):
        shutil.rmtree(folder / name)
        (folder / name).mkdir()
    for marker in folder.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    for name, pointed in (("python", "/usr/bin/python3"), ("pip", "/usr/bin/pip3")):
        (folder / "usr/local/bin" / name).symlink_to(pointed)
    unfinished = target.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w") as layer:
        for path in sorted(folder.iterdir()):
            if path.name not in ("dev", "proc", "sys"):
                layer.add(path, path.name)
    unfinished.replace(target)
    shutil.rmtree(folder)


def _build_small_images() -> None:
    for tag, program, name in (
        (settings.PAUSE_IMAGE, "pause", "pause"),
        (operator_image(), "training-operator", "manager"),
    ):

        def assemble(tag: str = tag, program: str = program, name: str = name) -> None:
            write_layer(_layer(program), {name: settings.binary(program)})
            write_archive(archive(tag), tag, [_layer(program)], entrypoint=[f"/{name}"])

        _once(archive(tag), [_stamp(settings.binary(program)), tag, _source(write_archive)], assemble)


def _layer(name: str) -> Path:
    return settings.cache() / "layers" / f"{name}.tar"


def _once(output: Path, inputs: list[str | bytes | Path], build_it: Callable[[], None]) -> None:
    """Call `build_it` unless the output is there, with the stamp of a call with the same inputs."""
    digest = hashlib.sha256()
    for piece in inputs:
        data = piece.read_bytes() if isinstance(piece, Path) else piece.encode() if isinstance(piece, str) else piece
        digest.update(len(data).to_bytes(8, "big") + data)
    stamp = _stamp(output)

    def is_there() -> bool:
        return output.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest()

    if is_there():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    with stamp.with_name(f"{stamp.name}.lock").open("w") as lock:
        # Another checkout's tests may be building it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_there():
            with timed(output.name):
                build_it()
            stamp.write_text(digest.hexdigest())


def _stamp(output: Path) -> Path:
    """Changes whenever the output does."""
    return settings.cache() / "stamps" / output.name


def _module_files(folder: str) -> bytes:
    files = sorted((settings.MODULES / folder).glob("*.*"))
    return b"".join(file.read_bytes() for file in files)


def _source(function: Callable[..., object]) -> str:
    """Among a part's inputs: it is built again when the way it is built changes."""
    return inspect.getsource(function)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print what takes its time, and how much of it when it is done."""
    print(f"[testbed] {what} ...", flush=True)
    start = time.monotonic()
    yield
    print(f"[testbed] {what}: {time.monotonic() - start:.0f} s", flush=True)
