"""Looking at TCP ports on this machine."""

import os
import socket

from quorate.core.errors import ConfigError

_BASE_LOW, _BASE_HIGH, _STEP = 12_000, 32_000, 200


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


def free_base_port() -> int:
    """The first of many ports in a row of which nobody uses the ones a local cluster takes.

    Below the range that the system hands out for outgoing connections, so that none of those
    takes one of them meanwhile.
    """
    for base in range(_BASE_LOW + os.getpid() % 50 * _STEP, _BASE_HIGH, _STEP):
        if all(is_free("127.0.0.1", base + offset) for offset in (*range(16), *range(100, 116))):
            return base
    raise ConfigError(f"no {_STEP} free ports in a row between {_BASE_LOW} and {_BASE_HIGH}")


def is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # As the replicas do it: a port whose last connections are still winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
