"""A real S3 server (SeaweedFS) for the tests of storage, which the pods reach at the host's address."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.request import urlopen

from . import parts, processes, settings
from .shell import run, wait_until

PORT = 18333
MASTER_PORT = 19333
MASTER = f"{settings.HOST_ADDRESS}:{MASTER_PORT}"


@dataclass(frozen=True, kw_only=True)
class S3:
    """Where the server answers, and to whom."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str

    def environment(self) -> dict[str, str]:
        """The variables by which every S3 client, and Concord, finds it."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name: str) -> None:
        """Make a bucket; the server has no request for it that needs no signature, so its own shell is asked."""
        run(settings.binary("weed"), "shell", f"-master={MASTER}", input=f"s3.bucket.create -name {name}\n", timeout=60)


@contextmanager
def server() -> Iterator[S3]:
    """Run the server on an empty folder; the bridge of the cluster must be there."""
    program = parts.build_s3()
    folder = settings.cache() / "s3"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    access = S3(
        endpoint=f"http://{settings.HOST_ADDRESS}:{PORT}",
        access_key="concord",
        secret_key="concord-secret",
        region="us-east-1",
    )
    credentials = [{"accessKey": access.access_key, "secretKey": access.secret_key}]
    identity = {"name": "concord", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    configuration = folder / "s3.json"
    configuration.write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
    flags = {
        "dir": folder / "data",
        "ip": settings.HOST_ADDRESS,
        "ip.bind": settings.HOST_ADDRESS,
        "master.port": MASTER_PORT,
        "master.volumeSizeLimitMB": 100,
        "volume.port": 18080,
        "volume.max": 20,
        "filer": "true",
        "filer.port": 18888,
        "s3": "true",
        "s3.port": PORT,
        "s3.config": configuration,
    }
    processes.stop("s3", grace=0)
    processes.start("s3", [program, "server", *(f"-{name}={value}" for name, value in flags.items())])
    try:
        wait_until(lambda: _answers(access.endpoint), "the S3 server answers", 60)
        yield access
    finally:
        processes.stop("s3")


def _answers(endpoint: str) -> bool:
    processes.check_running("s3")
    try:
        urlopen(endpoint, timeout=2)
    except HTTPError:
        return True
    except OSError:
        return False
    return True
