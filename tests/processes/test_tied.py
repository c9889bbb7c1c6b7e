"""Replicas of a benchmark, or of the demo, do not outlive whoever started them."""

import subprocess
import sys

import pytest

from clusters import running_cluster, until

pytestmark = pytest.mark.xdist_group("processes")

STARTING = """
import sys
from pathlib import Path

from quorate.runtime.launcher import Launcher

launcher = Launcher(Path(sys.argv[1]), tied=True)
launcher.start_all()
print("up", flush=True)
sys.stdin.read()
"""


def test_replicas_that_are_tied_end_when_whoever_started_them_is_killed() -> None:
    with running_cluster(start=False) as cluster:
        command = [sys.executable, "-c", STARTING, str(cluster.directory)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"up\n"
            assert all(cluster.launcher.pid(name) for name in cluster.names)

            parent.kill()

            until(lambda: not any(cluster.launcher.pid(name) for name in cluster.names))
