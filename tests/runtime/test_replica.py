"""One replica as a process."""

import asyncio
from pathlib import Path

import pytest

from net import free_ports
from quorate.core.contract import Contract
from quorate.runtime import replica
from quorate.runtime.files import CLUSTER_FILE, data_directory, key_file
from quorate.runtime.keeper import LogKeeper
from quorate.runtime.local import make_local_cluster, write_local_cluster
from quorate.storage.errors import StorageError
from quorate.storage.store import DiskStore


def test_a_replica_whose_disk_fails_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever supervises it must see that it did not end because it was told to."""
    contract = Contract.parse("log", {"order": "total", "protection": "none"})
    (port,) = free_ports(1)
    local = make_local_cluster(replicas=1, f=0, base_port=port, topics={"log": contract})
    directory = tmp_path / "cluster"
    write_local_cluster(directory, local)

    async def fail_soon(self: object, broker: object) -> None:
        await asyncio.sleep(0)
        raise StorageError("the disk does not answer")

    # Given a disk that fails once and is well afterwards, as one does on its way out,
    monkeypatch.setattr(LogKeeper, "keep", fail_soon)
    monkeypatch.setattr(replica, "run", asyncio.run)
    data = data_directory(directory, "r0")
    arguments = ["--cluster", directory / CLUSTER_FILE, "--name", "r0", "--data", data]
    code = replica.main(list(map(str, [*arguments, "--key", key_file(directory, "r0")])))

    assert code == 2
    assert "r0 stops, since its disk failed: the disk does not answer" in caplog.text
    # and its store was closed as it should be.
    DiskStore(data).close()
