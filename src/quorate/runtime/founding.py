"""Founding: which cluster a replica's disk belongs to, and whether it may vote.

A replica that has forgotten its votes may vote twice. So a data directory carries a mark, which
the act of founding writes: `quorate init`, or each party's `quorate replica NAME prepare`. The
mark has the cluster file as it was when the replica first ran. A directory without a mark is a
lost disk, and a replica starts on it only after `quorate replica NAME restore`.

Rules:
- nobody founds what others have run: `prepare` is refused if f + 1 other replicas run under the
  same identity. At least one of them is correct, and the cluster has a history;
- nobody restores what is gone: `restore` is refused unless f + 1 other replicas run under it.
  In both, a replica whose disk is here counts if it has run;
- a mark of another identity is the disk of another cluster, or the cluster file was edited;
- until the first run, topics and addresses in the file may be edited; from then on commands do.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quorate.core.cluster import Cluster, Member, Replica
from quorate.core.errors import ConfigError
from quorate.core.ids import MemberId, NodeId
from quorate.core.messages import Message
from quorate.crypto.identity import Identity
from quorate.runtime.transport import Transport
from quorate.storage.files import make_directory, read_checked, replace_file

MARK_FILE = "mark"
MARK_VERSION = 1
# How long other replicas have to answer whether they run.
ANSWER_WITHIN_S = 3.0
LOOK_EVERY_S = 0.02
FOUND_ANEW = "'quorate cluster found' founds it anew, as another cluster"


class _Encoded(msgspec.Struct, frozen=True):
    version: int
    has_run: bool
    founding: str


@dataclass(frozen=True, slots=True)
class Mark:
    """The cluster that a data directory belongs to."""

    founding: Cluster
    has_run: bool


class LostDiskError(ConfigError):
    """A data directory without what a replica has to remember."""


def read_mark(data: Path) -> Mark | None:
    encoded = read_checked(data / MARK_FILE)
    if encoded is None:
        return None
    try:
        found = msgspec.msgpack.decode(encoded, type=_Encoded)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{data / MARK_FILE} cannot be read: {error}") from None
    if found.version != MARK_VERSION:
        raise ConfigError(
            f"{data / MARK_FILE} has version {found.version}, and this program reads version "
            f"{MARK_VERSION}; run it with the program that wrote it"
        )
    return Mark(Cluster.parse(found.founding), found.has_run)


def write_mark(data: Path, founding: Cluster, *, has_run: bool = False) -> None:
    make_directory(data)
    text = founding.shared().render()
    replace_file(data / MARK_FILE, msgspec.msgpack.encode(_Encoded(MARK_VERSION, has_run, text)))


def check_mark(data: Path, cluster: Cluster, name: str) -> tuple[Mark, list[str]]:
    """The mark under which this replica may start, and what of its file does not count.

    `LostDiskError` if its disk was lost, `ConfigError` if its disk or its file is another's.
    """
    mark = read_mark(data)
    if mark is None:
        raise LostDiskError(_lost(cluster, name, f"{data} has no founding mark"))
    founding = mark.founding
    if founding.identity != cluster.identity:
        raise ConfigError(_other_cluster(data, cluster, founding, name))
    # Where there are no commands, the file says what there is.
    if not mark.has_run or cluster.control is None:
        return mark, []
    if not any(data.glob("journal-*")):
        raise LostDiskError(_lost(cluster, name, f"{data} has a founding mark and no journal"))
    # A file that commands have changed is not what the cluster began with.
    if cluster.revision != founding.revision:
        return mark, []
    return mark, compare(cluster, founding)


def compare(file: Cluster, known: Cluster) -> list[str]:
    """What of this file does not count where the cluster was known to be otherwise.

    `ConfigError` if it has other addresses: nobody would find a replica that listens there.
    """
    for now, then in zip(file.replicas, known.replicas, strict=False):
        if (now.host, now.port) != (then.host, then.port):
            raise ConfigError(
                f"the cluster file has {now.name} at {now.host}:{now.port}, and the cluster knows "
                f"it at {then.host}:{then.port}: put that back; 'quorate cluster replace "
                f"{now.name}.pub@HOST:PORT' moves it, and 'quorate cluster current' writes the file"
            )
    return [*_ignored(file, known)]


async def running_others(cluster: Cluster, identity: Identity) -> list[str]:
    """The other replicas that run under this identity now: those that a handshake succeeds with."""
    me = cluster.named(identity.public.name).number
    met = _Met()
    transport = Transport(cluster, identity, met)
    others = [replica for replica in cluster.replicas if replica.number != me]
    for replica in others:
        transport.dial(replica.number)
    loop = asyncio.get_running_loop()
    end = loop.time() + ANSWER_WITHIN_S
    silent = others
    while silent and loop.time() < end:
        await asyncio.sleep(LOOK_EVERY_S)
        silent = [
            replica
            for replica in silent
            if replica.number not in met.peers and not transport.why_unreached(replica.number)
        ]
    await transport.close()
    return [replica.name for replica in others if replica.number in met.peers]


def check_preparation(cluster: Cluster, replica: Replica, others: Sequence[str]) -> None:
    """Refuse to found what others have run; one that was added later has voted on nothing."""
    if len(others) > cluster.f and replica.number < cluster.orderers:
        raise ConfigError(
            f"{replica.name} is not prepared, since {', '.join(others)} have run under the "
            f"identity of this cluster: without its disk it may vote twice. 'quorate replica "
            f"{replica.name} restore' replaces the disk all the same; its help says what that "
            "may cost"
        )


def check_restoration(cluster: Cluster, replica: Replica, others: Sequence[str]) -> None:
    if len(others) <= cluster.f:
        raise ConfigError(
            f"{replica.name} is not restored: that takes {cluster.f + 1} other replicas that run "
            f"or have their disks here, and there are {len(others)}. Start those that have their "
            f"disks; if all disks of the cluster are gone, {FOUND_ANEW}"
        )


class _Met:
    """The owner of a transport that only wants to know who is there."""

    def __init__(self) -> None:
        self.peers: set[MemberId] = set()

    def connected(self, peer: NodeId) -> None:
        self.peers.add(peer)

    def received(self, peer: NodeId, messages: list[Message]) -> None: ...
    def disconnected(self, peer: NodeId, why: str) -> None: ...
    def writable(self, peer: NodeId, writable: bool) -> None: ...
    def offence(self, peer: NodeId | None, address: str, sentence: str) -> None: ...


# Sentences


def _lost(cluster: Cluster, name: str, why: str) -> str:
    return (
        f"{why}: the disk of {name} was lost, or never prepared. If {cluster.f + 1} other replicas "
        f"run, 'quorate replica {name} restore' replaces it; before the cluster first runs, "
        f"'quorate replica {name} prepare' makes it; if all disks of the cluster are gone, "
        f"{FOUND_ANEW}"
    )


def _other_cluster(data: Path, cluster: Cluster, founding: Cluster, name: str) -> str:
    if (founding.name, founding.nonce) != (cluster.name, cluster.nonce):
        return (
            f"the disk of {name}, {data}, belongs to the cluster {founding.full_name}, and the "
            f"cluster file is that of {cluster.full_name}; start it with the file of its own "
            "cluster, or move the disk away"
        )
    has, was, instead = _edited(cluster, founding)
    return (
        f"the cluster file has {has}, and the cluster was founded with {was}, which is for good: "
        f"put it back; {instead}"
    )


def _edited(cluster: Cluster, founding: Cluster) -> tuple[str, str, str]:
    """The first value of the identity that differs, what it was, and the command for it."""
    if cluster.f != founding.f:
        return f"f = {cluster.f}", f"f = {founding.f}", f"for another f, {FOUND_ANEW}"
    if cluster.orderers != founding.orderers:
        n, added = cluster.orderers, "'quorate cluster add' adds a replica"
        return f"{n} founding replicas", str(founding.orderers), added
    pairs = zip(cluster.members, founding.members, strict=False)
    name = next((then.name for now, then in pairs if _pins(now) != _pins(then)), None)
    has = "other founding members" if name is None else f"another name, party or key of {name}"
    changes = "'quorate cluster replace', 'add-client' and 'remove-client' change members"
    return has, "others", f"{changes}, and 'quorate cluster current' writes the file"


def _pins(member: Member) -> tuple[str, str, bytes, bytes]:
    return member.name, member.party, member.sign_key, member.mac_key


def _ignored(cluster: Cluster, founding: Cluster) -> Iterator[str]:
    """What was edited since the first run, and does not count."""
    edited = "in the cluster file since the first run, which changes nothing"
    for topic in {**founding.topics, **cluster.topics}:
        now, then = cluster.topics.get(topic), founding.topics.get(topic)
        if then is None:
            yield f"topic '{topic}' was added {edited}: 'quorate topic create {topic}' creates it"
        elif now is None:
            yield f"topic '{topic}' was removed {edited}"
        elif now != then:
            yield f"topic '{topic}' was edited {edited}: 'quorate topic alter {topic}' changes it"
