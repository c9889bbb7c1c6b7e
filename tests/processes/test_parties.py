"""Parties on different machines, as the README tells them to go about it."""

import asyncio
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusters import quorate, quorate_process, until
from net import free_ports
from quorate.client import Consumer, Producer

pytestmark = pytest.mark.xdist_group("processes")

REPLICAS = ("acme", "bolt", "cora", "dyne")
CLIENTS = ("erin", "fred")


def test_parties_that_share_only_public_files_form_a_cluster(tmp_path: Path) -> None:
    # Given parties that make their keys each in a folder of their own,
    for name in (*REPLICAS, *CLIENTS):
        (tmp_path / name).mkdir()
        made = quorate("identity", "new", name, "--directory", tmp_path / name)
        assert made.code == 0, made.err
    # and a cluster file that is made of the public files and copied to everybody,
    ports = free_ports(len(REPLICAS))
    file = tmp_path / "cluster.toml"
    assembled = quorate(
        *("cluster", "assemble", "--name", "market", "--f", "1", "-o", file),
        *(
            part
            for name, port in zip(REPLICAS, ports, strict=True)
            for part in ("--replica", f"{tmp_path / name / name}.pub@127.0.0.1:{port}")
        ),
        *(part for name in CLIENTS for part in ("--client", f"{tmp_path / name / name}.pub")),
    )
    assert assembled.code == 0, assembled.err
    for name in (*REPLICAS, *CLIENTS):
        shutil.copy(file, tmp_path / name)

    # none of whose clients is an operator, so that nobody changes it and everybody is told why,
    refused = quorate("topic", "create", "more", "--directory", tmp_path / CLIENTS[0])
    assert "only an operator creates topics, and cluster market has none" in refused.err
    assert "--client NAME.pub,operator,party=PARTY" in refused.err

    # when each founds the disk of its replica before any of them runs,
    for name in REPLICAS:
        unprepared = quorate("replica", name, "start", "--directory", tmp_path / name)
        assert f"'quorate replica {name} prepare'" in unprepared.err
        prepared = quorate("replica", name, "prepare", "--directory", tmp_path / name)
        assert prepared.code == 0, prepared.err

    # and starts it where its key is, then what one client sends reaches the other.
    with ExitStack() as stack:
        for name in REPLICAS:
            arguments = ("replica", name, "run", "--directory", tmp_path / name)
            stack.enter_context(quorate_process(*arguments))
        until(lambda: all(map(_is_up, ports)))
        assert asyncio.run(asyncio.wait_for(_send(tmp_path), 30)) == b"hello"


def _is_up(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


async def _send(folder: Path) -> bytes | None:
    async with (
        Consumer(folder / "fred", "fred") as consumer,
        Producer(folder / "erin", "erin") as producer,
    ):
        consumer.subscribe(["audit"])
        await consumer.subscribed()
        await producer.send("audit", b"hello")
        record = await consumer.poll(timeout_s=10)
    return None if record is None else record.value
