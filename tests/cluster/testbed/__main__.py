"""`python -m testbed build | up | down`: what `make cluster` and `make cluster-down` call."""

from __future__ import annotations

import argparse
import sys
import time

from . import cluster, docker, parts, settings
from .shell import TestbedError


def main() -> int:
    parser = argparse.ArgumentParser(prog="testbed", description=__doc__)
    # `clear` is for `up` alone, which holds the lock that `down` waits for.
    parser.add_argument("command", choices=("build", "up", "down", "clear"), metavar="build | up | down")
    command = parser.parse_args().command
    start = time.monotonic()
    try:
        if command == "build":
            parts.build()
            parts.build_s3()
        elif command == "up":
            running = cluster.up(kept=True)
            docker.start()
            print(f"two nodes are Ready ({time.monotonic() - start:.0f} s); logs in {settings.logs()}")
            print(f"use it:  export KUBECONFIG={running.kubeconfig} PATH={settings.cache() / 'bin'}:$PATH")
            print(f"build:   DOCKER_BUILDKIT=1 {docker.CLIENT} --host {docker.HOST} build --network=host ...")
            print("stop it: make cluster-down")
        elif command == "down":
            cluster.down()
        else:
            cluster.clear(cluster.find_owner())
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
