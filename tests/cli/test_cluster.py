"""`quorate cluster`: parties that have to agree before anything changes."""

from dataclasses import replace
from pathlib import Path

import pytest

from clusters import quorate, running_cluster
from net import free_ports
from quorate.runtime.files import cluster_file, read_cluster, write_cluster

pytestmark = pytest.mark.xdist_group("processes")


def let_operate(directory: Path, name: str) -> None:
    """Make this client of a cluster that has not started an operator of a party of its own."""
    file = cluster_file(directory)
    found = read_cluster(file)
    clients = [replace(c, operator=c.operator or c.name == name) for c in found.clients]
    file.unlink()
    write_cluster(file, replace(found, clients=tuple(clients)))


def test_a_replica_that_others_have_yet_to_ask_for_is_no_mistake_of_whoever_asks_first(
    tmp_path: Path,
) -> None:
    quorate("identity", "new", "r4", "--directory", tmp_path)
    (port,) = free_ports(1)
    with running_cluster(topics={"log": {"order": "total"}}, start=False) as cluster:
        let_operate(cluster.directory, "alice")
        cluster.launcher.start_all()
        asks = ("cluster", "add", f"{tmp_path}/r4.pub@127.0.0.1:{port}", "-d", cluster.directory)

        first = quorate(*asks, "--as", "operator")
        second = quorate(*asks, "--as", "alice")

    assert (first.code, first.out) == (1, "")
    assert first.err == (
        "r4 is no replica yet: 1 of 2 parties asked for exactly this replica 'r4' (operator); "
        "operators of others have to ask for the same\n"
    )
    assert (second.code, second.err) == (0, "")
    assert second.out.startswith("r4 is a replica from now on")
