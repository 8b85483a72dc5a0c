"""A real S3 server (SeaweedFS) for the tests of storage, which the pods reach at the host's address."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from . import parts, processes, settings
from .shell import wait_until

PORT = 18333
FILER_PORT = 18888


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
        """Make a bucket, if it is not there: a folder of the server's file store, where no request must be signed."""
        urlopen(Request(f"http://{settings.HOST_ADDRESS}:{FILER_PORT}/buckets/{name}/", method="POST"))


@contextmanager
def server() -> Iterator[S3]:
    """Run the server, which was built, on an empty folder; the bridge of the cluster must be there."""
    program = settings.binary(parts.S3_PROGRAM.name)
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
        "master.port": 19333,
        "master.volumeSizeLimitMB": 100,
        "volume.port": 18080,
        "volume.max": 200,  # each bucket takes seven
        "filer": "true",
        "filer.port": FILER_PORT,
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
        # At its own pace it waits 10 s for readers of what is dropped anyway.
        processes.stop("s3", grace=0)


def _answers(endpoint: str) -> bool:
    processes.check_running("s3")
    try:
        urlopen(endpoint, timeout=2)
    except HTTPError:
        return True
    except OSError:
        return False
    return True
