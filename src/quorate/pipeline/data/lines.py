"""Syslog lines as hosts write them: some of a kind that is known, some of one that is not.

Each kind is a form with variable parts in braces. What a known kind is called, and what remains of
an unknown one without its variable parts, is said here on its own and not taken from the pattern
library: it is what the library is held against.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final, NamedTuple
from uuid import UUID


class Line(NamedTuple):
    """A line, and what it is: the signature of a known kind, or else the template of its kind."""

    text: str
    signature: str | None
    template: str | None


def known_line(random: Random) -> Line:
    signature, form = random.choice(_KNOWN)
    return Line(_filled(form, random), signature, None)


def unknown_line(random: Random) -> Line:
    form, template = random.choice(_UNKNOWN)
    return Line(_filled(form, random), None, template)


_KNOWN: Final = (
    ("SSHD:LOGIN:OK", "sshd[{pid}]: Accepted publickey for {user} from {address} port {port} ssh2"),
    ("SSHD:LOGIN:OK", "sshd[{pid}]: Accepted password for {user} from {address} port {port} ssh2"),
    (
        "SSHD:LOGIN:FAILED",
        "sshd[{pid}]: Failed password for {user} from {address} port {port} ssh2",
    ),
    (
        "SSHD:LOGIN:FAILED",
        "sshd[{pid}]: Failed password for invalid user {user} from {address} port {port} ssh2",
    ),
    ("SSHD:SESSION:CLOSED", "sshd[{pid}]: pam_unix(sshd:session): session closed for user {user}"),
    ("SUDO:COMMAND", "sudo: {user} : TTY=pts/{digit} ; PWD={path} ; USER=root ; COMMAND={path}"),
    ("CRON:COMMAND", "CRON[{pid}]: ({user}) CMD ({path})"),
    (
        "KERNEL:MEMORY:KILLED",
        "kernel: [{decimal}] Out of memory: Killed process {pid} (java) total-vm:{count}kB",
    ),
    ("KERNEL:LINK:DOWN", "kernel: [{decimal}] eth{digit}: Link is Down"),
    ("KERNEL:LINK:UP", "kernel: [{decimal}] eth{digit}: Link is Up - 1Gbps/Full"),
    (
        "KERNEL:PACKET:DROPPED",
        "kernel: [{decimal}] DROP IN=eth{digit} OUT= MAC={mac} SRC={address} DST={address} "
        "PROTO=TCP SPT={port} DPT={port}",
    ),
    ("SYSTEMD:UNIT:STARTED", "systemd[1]: Started {service}.service."),
    ("SYSTEMD:UNIT:FAILED", "systemd[1]: {service}.service: Failed with result 'exit-code'."),
    ("DHCP:LEASE", "dhclient[{pid}]: bound to {address} -- renewal in {count} seconds."),
    (
        "MAIL:SENT",
        "postfix/smtp[{pid}]: {queue}: to=<{user}@example.com>, relay=mx.example.com[{address}]:25,"
        " delay={decimal}, status=sent (250 ok)",
    ),
    (
        "MAIL:DEFERRED",
        "postfix/smtp[{pid}]: {queue}: to=<{user}@example.com>, relay=none, delay={decimal}, "
        "status=deferred (connect to mx.example.com[{address}]:25: Connection timed out)",
    ),
    ("CLOCK:STEPPED", "chronyd[{pid}]: System clock was stepped by {decimal} seconds"),
    (
        "VPN:TUNNEL:UP",
        "charon: {digit}[IKE] IKE_SA office[{count}] established between {address} and {address}",
    ),
    ("VPN:TUNNEL:DOWN", "charon: {digit}[IKE] deleting IKE_SA office[{count}] after dead peer"),
    (
        "RADIUS:LOGIN:OK",
        "radiusd[{pid}]: ({count}) Login OK: [{user}] (from client vpn port 0)",
    ),
    (
        "DISK:SECTORS",
        "smartd[{pid}]: Device: /dev/sda, {count} Currently unreadable (pending) sectors",
    ),
)

# The first is one that the thesis met: damaged RRD files, of which no pattern knew (section 3.3.4).
_UNKNOWN: Final = (
    (
        "rrdtool[{pid}]: ERROR: {path}: illegal attempt to update using time {count}",
        "rrdtool[<number>]: ERROR: <path>: illegal attempt to update using time <number>",
    ),
    (
        "keystats[{pid}]: session {uuid} of {address}:{port} took {decimal} s",
        "keystats[<number>]: session <uuid> of <address>:<number> took <number> s",
    ),
    (
        "nids[{pid}]: rule 0x{hex} hit by {mac} at {time}, seen from {long_address}",
        "nids[<number>]: rule <hex> hit by <mac> at <time>, seen from <address>",
    ),
    (
        'backup[{pid}]: volume "{service} {digit}" has {count} blocks, digest {digest}',
        'backup[<number>]: volume "<text>" has <number> blocks, digest <hex>',
    ),
    (
        "mcelog: eth{digit}: bank {digit} reported a corrected error",
        "mcelog: eth<number>: bank <number> reported a corrected error",
    ),
)


def _address(random: Random) -> str:
    return f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(1, 255)}"


def _digits(random: Random, count: int) -> str:
    return f"{random.getrandbits(4 * count):0{count}x}"


_PARTS: Final[Mapping[str, Callable[[Random], str]]] = {
    "pid": lambda random: str(random.randrange(300, 65536)),
    "user": lambda random: random.choice(("root", "alice", "bob", "deploy", "backup")),
    "address": _address,
    "long_address": lambda random: f"fe80::{_digits(random, 4)}:{_digits(random, 4)}",
    "port": lambda random: str(random.randrange(1024, 65536)),
    "digit": lambda random: str(random.randrange(10)),
    "count": lambda random: str(random.randrange(1, 10**9)),
    "decimal": lambda random: f"{random.random() * 1000:.3f}",
    "path": lambda random: f"/var/lib/{random.choice(('rrd', 'spool'))}/{_digits(random, 6)}.db",
    "mac": lambda random: ":".join(_digits(random, 2) for _ in range(6)),
    "service": lambda random: random.choice(("nginx", "squid", "openvpn", "postgresql")),
    "queue": lambda random: _digits(random, 10).upper(),
    "uuid": lambda random: str(UUID(int=random.getrandbits(128))),
    "hex": lambda random: _digits(random, 8),
    "digest": lambda random: _digits(random, 40),
    "time": lambda random: f"{random.randrange(24):02}:{random.randrange(60):02}:07",
}


class _Parts(Mapping[str, str]):
    """Draws a part when a form asks for it."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def __getitem__(self, name: str) -> str:
        return _PARTS[name](self._random)

    def __iter__(self) -> Iterator[str]:
        return iter(_PARTS)

    def __len__(self) -> int:
        return len(_PARTS)


def _filled(form: str, random: Random) -> str:
    return form.format_map(_Parts(random))
