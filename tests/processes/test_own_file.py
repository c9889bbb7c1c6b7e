"""What a replica's file says of that replica alone holds, whatever commands change."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from clusters import TestCluster, running_cluster
from quorate.client import Admin
from quorate.core.errors import RefusedError
from quorate.runtime.files import FOUNDING_FILE, cluster_file, write_cluster
from quorate.runtime.local import OPERATOR
from traffic import eventually

pytestmark = pytest.mark.xdist_group("processes")


def have_changed(reports: dict[str, Any]) -> bool:
    return all(each["log"]["control"]["revision"] == 2 for each in reports.values())


def test_when_logs_are_synced_and_whether_lying_is_allowed_stays_as_in_the_file() -> None:
    """The cluster as commands leave it has what its founding file said of both."""

    async def story(cluster: TestCluster) -> None:
        file = cluster_file(cluster.directory)
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.create_topic("first", {})
            present = await admin.learn_topology()
        assert (present.fsync, present.allow_misbehaviour) == ("always", True)
        file.rename(file.parent / FOUNDING_FILE)
        write_cluster(file, replace(present, fsync="interval", allow_misbehaviour=False))
        for name in cluster.names:
            cluster.launcher.stop(name)
        cluster.launcher.start_all()
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.create_topic("second", {})
            reports: dict[str, Any] = await eventually(admin.status, have_changed)
            assert {each["log"]["fsync"] for each in reports.values()} == {"interval"}
            with pytest.raises(RefusedError, match="does not say allow_misbehaviour"):
                await admin.misbehave("r0", "silent")

    with running_cluster(topics={}) as cluster:
        asyncio.run(story(cluster))
