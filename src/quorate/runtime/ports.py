"""Looking at TCP ports on this machine."""

import socket


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nobody uses now. Taken together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
