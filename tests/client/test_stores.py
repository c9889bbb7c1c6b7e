"""How many replicas a producer has large batches stored by."""

import pytest

from quorate.client import Producer
from quorate.core.errors import LocalProtocolError
from quorate.runtime.local import make_local_cluster

LOCAL = make_local_cluster(base_port=1)


@pytest.mark.parametrize("stores", [1, 5])
def test_fewer_than_faults_call_for_and_more_than_there_are_is_refused(stores: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"{stores} stores .* allowed are 2 to 4"):
        Producer(LOCAL.cluster, LOCAL.identities["alice"], stores=stores)


def test_every_replica_may_be_one() -> None:
    assert Producer(LOCAL.cluster, LOCAL.identities["alice"], stores=4).member.name == "alice"
