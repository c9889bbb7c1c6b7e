"""Tests that compute give way to those that wait for processes, where both run at the same time.

One worker more than there are cores runs the tests, since those that start real replicas or Spark
wait more than they compute (`quorate test`). What they wait for should not be slower for that.
"""

import os
from collections.abc import Iterator

import pytest

PATIENT = 10


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    # Only a privileged user may take it back afterwards, and needs to.
    gives_way = item.get_closest_marker("xdist_group") is None and os.geteuid() == 0
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if gives_way:
        os.setpriority(os.PRIO_PROCESS, 0, max(before, PATIENT))
    try:
        return (yield)
    finally:
        if gives_way:
            os.setpriority(os.PRIO_PROCESS, 0, before)
