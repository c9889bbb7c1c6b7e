"""The cluster file: who takes part, with which keys, and what every topic promises.

All parties hold the same file. It contains public parts only (names, numbers, addresses and
the keys to pin), so it may be shared openly, but not changed by one party alone: whoever
writes it decides whom everybody trusts. `quorate init` and `quorate cluster assemble` write
it, people edit its topics.

A `Cluster` that exists is consistent: its names, numbers, keys and addresses are unique, and
it has enough replicas for every contract. Whether a certificate belongs to its key is for
`quorate.crypto.identity.public_of` to say, because this package knows no cryptography.

A cluster has an identity that no second founding shares: a hash over 16 random bytes in the file,
the name, the numbers n and f, and the founding members. So a file with another f or another key is
the file of another cluster. Everything that is signed or authenticated contains the full name,
`NAME/IDENTITY`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

from blake3 import blake3

from quorate.core.contract import EVERYONE, Contract
from quorate.core.control import CONTROL_TOPIC, RESERVED_PREFIX, control_contract
from quorate.core.errors import ConfigError
from quorate.core.ids import MEMBER_ID_MAX, MemberId, NodeId, member_of, topic_id
from quorate.core.limits import SLOTS_KEPT, SNAPSHOT_EVERY
from quorate.core.names import MAC_ALGORITHMS, check_name
from quorate.core.stores import KafkaStore, check_stores, read_stores, render_stores
from quorate.core.toml import Table, render_key, render_pairs

LINK_SECURITIES = ("tls", "mac")
FSYNCS = ("always", "interval", "never")
CLIENT_NUMBER_MIN = 1000
REPLICAS_MAX = CLIENT_NUMBER_MIN
PORT_MAX = 65535
REVISION_MAX = 2**63 - 1
SLOTS_MAX = 2**31 - 1
PUBLIC_KEY_BYTES = 32
# The format of the cluster file. Version 1 had no identity, and nobody has one.
FILE_VERSION = 2
NONCE_BYTES = 16
IDENTITY_BYTES = 32
_IDENTITY_CONTEXT = "quorate 2026 identity of a cluster"
_FOUNDERS_CONTEXT = "quorate 2026 founding members of a cluster"

_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+\n-----END CERTIFICATE-----\n"
)
_HOST = re.compile(r"[A-Za-z0-9.:_%-]{1,253}", re.ASCII)


class Pinned(Protocol):
    """What is pinned of a member, wherever it comes from: a public identity has this form."""

    @property
    def name(self) -> str: ...
    @property
    def sign_key(self) -> bytes: ...
    @property
    def mac_key(self) -> bytes: ...
    @property
    def certificate(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Somebody with a number and pinned keys."""

    number: MemberId
    name: str
    sign_key: bytes
    mac_key: bytes
    certificate: str
    party: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica(Member):
    """One broker process, and where it listens."""

    host: str
    port: int
    metrics_port: int | None = None

    @staticmethod
    def of(
        pinned: Pinned,
        *,
        number: MemberId,
        host: str,
        port: int,
        metrics_port: int | None = None,
        party: str | None = None,
    ) -> "Replica":
        """Give a public identity a number and an address; it is its own party unless told."""
        return Replica(
            number=number,
            name=pinned.name,
            party=pinned.name if party is None else party,
            host=host,
            port=port,
            metrics_port=metrics_port,
            **pins_of(pinned),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Client(Member):
    """A publisher or subscriber. An operator may also make replicas misbehave on purpose."""

    operator: bool = False

    @staticmethod
    def of(
        pinned: Pinned, *, index: int, operator: bool = False, party: str | None = None
    ) -> "Client":
        """Number a public identity as the client with this index, from 0."""
        return Client(
            number=CLIENT_NUMBER_MIN + index,
            name=pinned.name,
            party=pinned.name if party is None else party,
            operator=operator,
            **pins_of(pinned),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A client that was removed. What it published keeps its name, and its number stays its own."""

    number: MemberId
    name: str
    party: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Everything that the members of a cluster agree on beforehand."""

    name: str
    f: int
    # What no two foundings share: drawn at random for each.
    nonce: bytes = bytes(NONCE_BYTES)
    link_security: Literal["tls", "mac"] = "tls"
    mac: str = "aes-gmac"
    allow_misbehaviour: bool = False
    # When a replica's log is synced to its disk.
    fsync: str = "always"
    # The first so many replicas order the Byzantine logs; all that there were when it was founded.
    orderers: int = 0
    # How often commands have changed it since then. A file with 0 is the founding one.
    revision: int = 0
    # The digest of the members that founded it; those of a founding file are these.
    founders: bytes = b""
    # After how many slots the state of a log is signed as a whole, and how many slots replicas
    # keep for those who were away.
    snapshot_every: int = SNAPSHOT_EVERY
    slots_kept: int = SLOTS_KEPT
    replicas: tuple[Replica, ...]
    clients: tuple[Client, ...] = ()
    formers: tuple[Former, ...] = ()
    topics: Mapping[str, Contract] = field(default_factory=dict)
    # How many replicas there were when a live topic was placed, if fewer than there are now.
    placed_over: Mapping[str, int] = field(default_factory=dict)
    # Which replicas keep payloads of validated topics outside, by name.
    stores: Mapping[str, KafkaStore] = field(default_factory=dict)
    _numbered: dict[MemberId, Member] = field(init=False, repr=False, compare=False)
    _named: dict[str, Member] = field(init=False, repr=False, compare=False)
    _names: dict[MemberId, str] = field(init=False, repr=False, compare=False)
    # The contract of the topic that every cluster has; None if it has too few replicas for one.
    control: Contract | None = field(init=False, repr=False, compare=False)
    identity: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self)
        n = len(self.replicas)
        object.__setattr__(self, "orderers", self.orderers or n)
        object.__setattr__(self, "control", control_contract(self.orderers, self.f))
        object.__setattr__(self, "founders", self.founders or _founders(self))
        object.__setattr__(self, "identity", _identity(self))
        fewer = {
            name: over
            for name, over in self.placed_over.items()
            if over != n and not self.topics[name].is_log
        }
        object.__setattr__(self, "placed_over", fewer)
        object.__setattr__(self, "_numbered", {member.number: member for member in self.members})
        object.__setattr__(self, "_named", {member.name: member for member in self.members})
        ever: tuple[Member | Former, ...] = (*self.formers, *self.members)
        names = {each.number: each.name for each in ever}
        object.__setattr__(self, "_names", names)

    @staticmethod
    def parse(text: str) -> "Cluster":
        """Read a cluster file; whatever is wrong with it is raised as a sentence."""
        return _read(Table.read("the cluster file", text))

    def render(self) -> str:
        """The cluster file, with comments for whoever opens it."""
        return "\n".join(_sections(self))

    def shared(self) -> "Cluster":
        """As every replica has it: each chooses for itself when it syncs, and the like."""
        return replace(
            self, fsync="always", slots_kept=SLOTS_KEPT, allow_misbehaviour=False, stores={}
        )

    def as_in(self, file: "Cluster") -> "Cluster":
        """With what this file says of whoever has it alone; no command changes that."""
        return replace(
            self,
            fsync=file.fsync,
            slots_kept=file.slots_kept,
            allow_misbehaviour=file.allow_misbehaviour,
            stores=_of_these(self.replicas, file.stores),
        )

    @property
    def full_name(self) -> str:
        """What this cluster is called in everything that is signed or authenticated."""
        return f"{self.name}/{self.identity.hex()}"

    def founded_anew(self, nonce: bytes) -> "Cluster":
        """Another cluster, with the members and topics of this one."""
        return replace(self, nonce=nonce, founders=b"", orderers=0, revision=0, placed_over={})

    @property
    def members(self) -> tuple[Member, ...]:
        return (*self.replicas, *self.clients)

    def member(self, number: MemberId) -> Member:
        member = self._numbered.get(number)
        if member is None:
            known = ", ".join(str(known) for known in self._numbered)
            raise ConfigError(f"cluster {self.name} has no member number {number}; it has {known}")
        return member

    def named(self, name: str) -> Member:
        member = self._named.get(name)
        if member is None:
            known = ", ".join(self._named)
            raise ConfigError(f"cluster {self.name} has no member named {name!r}; it has {known}")
        return member

    def name_of(self, node: NodeId) -> str:
        """What to call a node in a sentence, whoever it is or was."""
        return self._names.get(member_of(node), f"node {node}")

    def knows(self, node: NodeId) -> bool:
        """Whether this is a node of somebody who is or was a member."""
        return member_of(node) in self._names

    def placement(self, topic: str) -> tuple[MemberId, ...]:
        """The replicas that serve this topic: as many as its contract needs, in order.

        Rendezvous hashing spreads topics over the replicas that there were when the topic was
        placed. A replica that is added later serves later topics only, since what replicas know
        of a topic (its streams, its log) does not move by itself.
        """
        contract = self.contract(topic)
        if contract.is_log:
            # Log topics with the same protection are ordered together, by the same replicas.
            return tuple(range(self._group_size(contract)))
        over = self.placed_over.get(topic, len(self.replicas))
        return _rendezvous(topic, over, contract.replicas(self.f))

    def contract(self, topic: str) -> Contract:
        """What this topic promises; the cluster's own commands are a topic, too."""
        contract = self.control if topic == CONTROL_TOPIC else self.topics.get(topic)
        if contract is None:
            known = ", ".join(self.topics)
            raise ConfigError(f"cluster {self.name} has no topic {topic!r}; it has {known}")
        return contract

    def _group_size(self, contract: Contract) -> int:
        """Every replica carries commands out, so all founders are in the group that orders those.

        Those that were added later follow it: whoever orders with whom does not change.
        """
        has_commands = self.control is not None and self.control.protection == contract.protection
        return self.orderers if has_commands else contract.replicas(self.f)


def other_cluster(what: str, other: str, known: str) -> str:
    """The sentence about something of another cluster than the keys are of; by full names."""
    again = other.partition("/")[0] == known.partition("/")[0]
    hint = "; a cluster that is founded again is another one" if again else ""
    return f"{what} of cluster {other!a}, and the keys are of {known!a}{hint}"


def parse_topics(text: str) -> dict[str, Contract]:
    """Read a file that holds nothing but `[topics.NAME]` tables."""
    top = Table.read("the topics file", text)
    topics = _read_topics(top)
    for key in top.rest():
        raise ConfigError(
            f"the topics file has a key {key!r}; a topic of that name is written [topics.{key}]"
        )
    return topics


def render_topics(
    topics: Mapping[str, Contract], placed_over: Mapping[str, int] | None = None
) -> str:
    """The `[topics.NAME]` tables of a cluster file."""
    placed = {name: {"placed_over": over} for name, over in (placed_over or {}).items()}
    return "\n".join(
        f"[topics.{render_key(name)}]\n{render_pairs(contract.table() | placed.get(name, {}))}"
        for name, contract in topics.items()
    )


@lru_cache(maxsize=4096)
def _rendezvous(topic: str, replicas: int, count: int) -> tuple[MemberId, ...]:
    def score(number: MemberId) -> bytes:
        return blake3(number.to_bytes(4, "little") + topic.encode()).digest()

    return tuple(sorted(sorted(range(replicas), key=score)[:count]))


def _identity(cluster: Cluster) -> bytes:
    numbers = (str(cluster.orderers).encode(), str(cluster.f).encode())
    parts = (cluster.nonce, cluster.name.encode(), *numbers, cluster.founders)
    return _hash(_IDENTITY_CONTEXT, parts)


def _founders(cluster: Cluster) -> bytes:
    # Where no command changes clients, the file does, and they are no part of the identity.
    members = cluster.replicas if cluster.control is None else cluster.members
    return _hash(
        _FOUNDERS_CONTEXT,
        (
            part
            for each in members
            for part in (
                str(each.number).encode(),
                each.name.encode(),
                each.party.encode(),
                each.sign_key,
                each.mac_key,
            )
        ),
    )


def _hash(context: str, parts: Iterable[bytes]) -> bytes:
    """Over the parts, each behind its length."""
    hasher = blake3(derive_key_context=context)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return hasher.digest()


def _read(top: Table) -> Cluster:
    head = top.table("cluster")
    if not head.has("version"):
        raise ConfigError(
            f"the cluster file has no version, and was written before version {FILE_VERSION}, when "
            "clusters had no identity; such files and what replicas kept under them cannot be "
            "read: found a cluster with 'quorate init' or 'quorate cluster assemble'"
        )
    if (version := head.number("version", 1, 2**31 - 1)) != FILE_VERSION:
        raise ConfigError(
            f"the cluster file has version {version}, and this program reads version "
            f"{FILE_VERSION}; use the program that wrote it, or a later one"
        )
    security = head.choice("link_security", LINK_SECURITIES, "tls")
    placed_over: dict[str, int] = {}
    cluster = Cluster(
        name=head.text("name"),
        f=head.number("f", 0, REPLICAS_MAX - 1),
        nonce=head.hex_bytes("nonce", NONCE_BYTES),
        link_security="mac" if security == "mac" else "tls",
        mac=head.choice("mac", MAC_ALGORITHMS, "aes-gmac"),
        allow_misbehaviour=head.flag("allow_misbehaviour", False),
        fsync=head.choice("fsync", FSYNCS, "always"),
        orderers=head.number("orderers", 1, REPLICAS_MAX) if head.has("orderers") else 0,
        revision=head.number("revision", 1, REVISION_MAX) if head.has("revision") else 0,
        founders=head.hex_bytes("founders", IDENTITY_BYTES) if head.has("founders") else b"",
        snapshot_every=head.number("snapshot_every", 1, SLOTS_MAX, SNAPSHOT_EVERY),
        slots_kept=head.number("slots_kept", 1, SLOTS_MAX, SLOTS_KEPT),
        replicas=tuple(_read_replica(table) for table in top.tables("replica")),
        clients=tuple(_read_client(table) for table in top.tables("client")),
        formers=tuple(_read_former(table) for table in top.tables("former")),
        topics=_read_topics(top, placed_over),
        placed_over=placed_over,
        stores=read_stores(top),
    )
    head.end()
    top.end()
    return cluster


def _read_replica(table: Table) -> Replica:
    replica = Replica(
        **_read_heading(table, "replica", 0, REPLICAS_MAX - 1),
        host=table.text("host"),
        port=table.number("port", 1, PORT_MAX),
        metrics_port=table.number("metrics_port", 1, PORT_MAX)
        if table.has("metrics_port")
        else None,
        **read_pins(table),
    )
    table.end()
    return replica


def _read_client(table: Table) -> Client:
    client = Client(
        **_read_heading(table, "client", CLIENT_NUMBER_MIN, MEMBER_ID_MAX),
        operator=table.flag("operator", False),
        **read_pins(table),
    )
    table.end()
    return client


def _read_former(table: Table) -> Former:
    former = Former(**_read_heading(table, "former client", CLIENT_NUMBER_MIN, MEMBER_ID_MAX))
    table.end()
    return former


def _read_heading(table: Table, role: str, low: int, high: int) -> dict[str, Any]:
    name = check_name(f"{table.where}: name", table.text("name"))
    # From here on, sentences about this table can say who it is about.
    table.where = f"{role} {name}"
    number = table.number("number", low, high)
    return {"number": number, "name": name, "party": table.text("party", name)}


def read_pins(table: Table) -> dict[str, Any]:
    return {
        "sign_key": table.key_bytes("sign_key", PUBLIC_KEY_BYTES),
        "mac_key": table.key_bytes("mac_key", PUBLIC_KEY_BYTES),
        "certificate": table.text("certificate"),
    }


def pins_of(pinned: Pinned) -> dict[str, Any]:
    """What is pinned of a member beside its name, by the names in files."""
    return {
        "sign_key": pinned.sign_key,
        "mac_key": pinned.mac_key,
        "certificate": pinned.certificate,
    }


def _read_topics(top: Table, placed_over: dict[str, int] | None = None) -> dict[str, Contract]:
    """The contracts; where topics are placed stands beside them, but is no part of them."""
    if not top.has("topics"):
        return {}
    contracts = {}
    for name, content in top.table("topics").rest().items():
        table = Table(f"[topics.{name}]", content)
        if placed_over is not None and table.has("placed_over"):
            placed_over[name] = table.number("placed_over", 1, REPLICAS_MAX)
        contracts[name] = Contract.parse(name, table.rest())
    return contracts


def _of_these(
    replicas: Iterable[Replica], stores: Mapping[str, KafkaStore]
) -> dict[str, KafkaStore]:
    """The stores of replicas that there still are."""
    names = {replica.name: None for replica in replicas}
    return {name: store for name, store in stores.items() if name in names}


def _check(cluster: Cluster) -> None:
    check_name("the name of the cluster", cluster.name)
    if len(cluster.nonce) != NONCE_BYTES or len(cluster.founders) not in (0, IDENTITY_BYTES):
        raise ConfigError(
            f"a cluster has a nonce of {NONCE_BYTES} bytes, and a digest of its founders of "
            f"{IDENTITY_BYTES}"
        )
    _check_choices(cluster)
    for member in cluster.members:
        _check_member(member)
    _check_numbers(cluster)
    _check_unique(cluster)
    n = len(cluster.replicas)
    if not 0 <= cluster.orderers <= n:
        raise ConfigError(f"[cluster]: orderers is {cluster.orderers}, but there are {n} replicas")
    if not 0 <= cluster.f < n:
        raise ConfigError(
            f"f = {cluster.f} faulty replicas of {n} leave no correct one; "
            f"a cluster needs at least f + 1 replicas, and most contracts 3f + 1"
        )
    clients = {client.name: None for client in cluster.clients}
    for name, contract in cluster.topics.items():
        if name.startswith(RESERVED_PREFIX):
            raise ConfigError(
                f"topic {name!r}: names that begin with '{RESERVED_PREFIX}' are the cluster's own"
            )
        contract.check(name, cluster.placed_over.get(name, n), cluster.f)
        _check_access(clients, name, contract)
    _check_placed(cluster)
    check_stores(cluster.stores, [replica.name for replica in cluster.replicas])


def _check_placed(cluster: Cluster) -> None:
    n = len(cluster.replicas)
    for name, over in cluster.placed_over.items():
        if name not in cluster.topics:
            raise ConfigError(f"placed_over names {name!r}, which is no topic of this cluster")
        if not 1 <= over <= n:
            raise ConfigError(
                f"topic {name!r}: placed_over is {over}, but this cluster has {n} replicas"
            )


def _check_access(clients: Mapping[str, None], topic: str, contract: Contract) -> None:
    """A misspelt name in an access list would lock its owner out without a word."""
    for key, listed in (("publish", contract.publish), ("subscribe", contract.subscribe)):
        for name in listed:
            if listed != EVERYONE and name not in clients:
                raise ConfigError(
                    f"topic {topic!r}: {key} names {name!a}, which is no client of this cluster; "
                    f"its clients are {', '.join(clients)}"
                )


def _check_choices(cluster: Cluster) -> None:
    for key, value, allowed in (
        ("link_security", cluster.link_security, LINK_SECURITIES),
        ("mac", cluster.mac, MAC_ALGORITHMS),
        ("fsync", cluster.fsync, FSYNCS),
    ):
        if value not in allowed:
            words = ", ".join(f'"{word}"' for word in allowed)
            raise ConfigError(f"[cluster]: {key} is {value!r}, but it must be one of {words}")


def _check_member(member: Member) -> None:
    check_name(f"the name of member {member.number}", member.name)
    check_name(f"the party of {member.name}", member.party)
    if len(member.sign_key) != PUBLIC_KEY_BYTES or len(member.mac_key) != PUBLIC_KEY_BYTES:
        raise ConfigError(f"the keys of {member.name} must have {PUBLIC_KEY_BYTES} bytes each")
    if "PRIVATE KEY" in member.certificate:
        raise ConfigError(
            f"the certificate of {member.name} comes with a private key, which belongs in no "
            f"cluster file; treat that key as known to others, and make a new identity"
        )
    if not _CERTIFICATE.fullmatch(member.certificate):
        raise ConfigError(f"the certificate of {member.name} must be one PEM certificate")
    if isinstance(member, Replica):
        _check_address(member)


def _check_address(replica: Replica) -> None:
    if not _HOST.fullmatch(replica.host):
        raise ConfigError(
            f"the host of {replica.name} is {replica.host!a}, but it must be a host name or an "
            f"IP address without a port"
        )
    for what, port in (("port", replica.port), ("metrics_port", replica.metrics_port)):
        if port is not None and not 1 <= port <= PORT_MAX:
            raise ConfigError(
                f"the {what} of {replica.name} is {port}, but it must be from 1 to {PORT_MAX}"
            )


def _check_numbers(cluster: Cluster) -> None:
    n = len(cluster.replicas)
    if not 1 <= n <= REPLICAS_MAX:
        raise ConfigError(f"a cluster has 1 to {REPLICAS_MAX} replicas, this one has {n}")
    numbers = [replica.number for replica in cluster.replicas]
    if numbers != list(range(n)):
        raise ConfigError(
            f"the replicas must be numbered 0 to {n - 1} and stand in that order, "
            f"but their numbers are {', '.join(map(str, numbers))}"
        )
    for client in cluster.clients:
        if not CLIENT_NUMBER_MIN <= client.number <= MEMBER_ID_MAX:
            raise ConfigError(
                f"the number of {client.name} is {client.number}, but clients are numbered "
                f"from {CLIENT_NUMBER_MIN} to {MEMBER_ID_MAX}"
            )


def _check_unique(cluster: Cluster) -> None:
    members = cluster.members
    ever: tuple[Member | Former, ...] = (*members, *cluster.formers)
    _refuse_twins("the name", ((member.name, member.name) for member in ever))
    _refuse_twins("the number", ((member.number, member.name) for member in ever))
    _refuse_twins("the sign_key", ((member.sign_key, member.name) for member in members))
    _refuse_twins("the mac_key", ((member.mac_key, member.name) for member in members))
    _refuse_twins(
        "an address",
        (
            (f"{replica.host}:{port}", replica.name)
            for replica in cluster.replicas
            for port in (replica.port, replica.metrics_port)
            if port is not None
        ),
    )
    _refuse_twins("the topic number", ((topic_id(name), name) for name in cluster.topics))


def _refuse_twins(what: str, owners: Iterable[tuple[object, str]]) -> None:
    """Every value has one owner: two members with one key would be one member twice."""
    seen: dict[object, str] = {}
    for value, owner in owners:
        if value in seen:
            shown = "" if isinstance(value, bytes) else f" {value}"
            raise ConfigError(
                f"{seen[value]} and {owner} share {what}{shown}, but each must have its own"
            )
        seen[value] = owner


def _sections(cluster: Cluster) -> Iterable[str]:
    yield _HEAD + _render_head(cluster)
    yield _TOPICS_COMMENT + "\n" + render_topics(cluster.topics, cluster.placed_over)
    yield _REPLICAS_COMMENT
    yield from (_render_replica(replica) for replica in cluster.replicas)
    if cluster.stores:
        yield _STORES_COMMENT
        yield render_stores(cluster.stores)
    yield _CLIENTS_COMMENT
    yield from (_render_client(client) for client in cluster.clients)
    if cluster.formers:
        yield _FORMERS_COMMENT
        yield from ("[[former]]\n" + render_pairs(_heading(former)) for former in cluster.formers)


def _render_head(cluster: Cluster) -> str:
    return (
        f"[cluster]\n"
        f"{render_pairs({'version': FILE_VERSION, 'name': cluster.name})}"
        f"# Drawn at random when the cluster was founded. This, the name, f and the founding\n"
        f"# members are its identity, for good: a file with others is that of another cluster.\n"
        f"{render_pairs({'nonce': cluster.nonce.hex()})}"
        f"# So many replicas may fail, or lie, at the same time.\n"
        f"{render_pairs({'f': cluster.f})}"
        f'# "tls" (mutual TLS 1.3), or "mac" for closed networks: authenticated, not encrypted.\n'
        f"{render_pairs({'link_security': cluster.link_security})}"
        f"# How messages are authenticated: {', '.join(MAC_ALGORITHMS)}.\n"
        f"{render_pairs({'mac': cluster.mac})}"
        f"# Whether an operator may make replicas lie on purpose. Never in production.\n"
        f"{render_pairs({'allow_misbehaviour': cluster.allow_misbehaviour})}"
        f'# When logs are synced to disk. "always" is safe; "interval" and "never" may lose what\n'
        f"# was acknowledged if machines lose power.\n"
        f"{render_pairs({'fsync': cluster.fsync})}"
        f"{_render_slots(cluster)}"
        f"{_render_changes(cluster)}"
    )


def _render_changes(cluster: Cluster) -> str:
    """What only a cluster has that was changed by commands."""
    changes: dict[str, object] = {}
    if cluster.orderers != len(cluster.replicas):
        changes["orderers"] = cluster.orderers
    if cluster.revision:
        changes["revision"] = cluster.revision
    if cluster.founders != _founders(cluster):
        changes["founders"] = cluster.founders.hex()
    comment = "# Commands have changed this cluster since it was founded.\n"
    return comment + render_pairs(changes) if changes else ""


def _render_slots(cluster: Cluster) -> str:
    """Only what is not as usual."""
    usual = {"snapshot_every": SNAPSHOT_EVERY, "slots_kept": SLOTS_KEPT}
    found = {key: getattr(cluster, key) for key in usual if getattr(cluster, key) != usual[key]}
    comment = "# After how many slots a log's state is signed, and how many slots are kept.\n"
    return comment + render_pairs(found) if found else ""


def _render_replica(replica: Replica) -> str:
    metrics = {} if replica.metrics_port is None else {"metrics_port": replica.metrics_port}
    address = {"host": replica.host, "port": replica.port, **metrics}
    return "[[replica]]\n" + render_pairs({**_heading(replica), **address, **pins_of(replica)})


def _render_client(client: Client) -> str:
    rights = {"operator": True} if client.operator else {}
    return "[[client]]\n" + render_pairs({**_heading(client), **rights, **pins_of(client)})


def _heading(member: Member | Former) -> dict[str, object]:
    return {"number": member.number, "name": member.name, "party": member.party}


_HEAD = """\
# A Quorate cluster. Every member holds the same copy of this file.
# There are no secrets in it: each member keeps its own private keys in a file of its own.

"""
_TOPICS_COMMENT = """\
# Topics. Each names the guarantees that it needs, and pays only for those.
#   protection        "none", "crash" or "byzantine": what may go wrong with replicas
#   order             "none", "fifo" (per publisher), or "total": a log, kept on disk
#   partitions        of a log; retention and retention_bytes say how much of it is kept
#   broadcast         "vote", "authenticated", "reliable" or "chain": how the events of a
#                     byzantine topic reach its subscribers
#   history_every     after so many batches, a history repairs what was lost on the way
#   queue_events_max  how many events may wait for one slow subscriber
#   discard           what then happens: "oldest" or "newest" is dropped, or "never" any, and
#                     publishers have to wait
#   publish           the names of the clients that may, or ["*"] for all; so for subscribe
#   placed_over       how many replicas there were when the topic was made, if more came since
# Once a replica has run, `quorate topic alter` changes topics, and editing them here does not.
# Whatever is left out has a safe default. README.md has the whole table of contracts.
"""
_REPLICAS_COMMENT = """\
# Replicas: the broker processes, numbered from 0. A party is the organisation that runs one.
# The keys are pinned: exactly these are trusted, and nobody else vouches for them.
"""
_STORES_COMMENT = """\
# Stores: replicas that keep the payloads of validated topics in a Kafka cluster of their own. What
# is under settings goes to librdkafka; secrets are named ("env:NAME", "file:PATH"), never written.
"""
_CLIENTS_COMMENT = """\
# Clients: who may publish and subscribe, numbered from 1000. An operator may also change
# topics and replicas, and make replicas misbehave on purpose, where the cluster allows it.
"""
_FORMERS_COMMENT = """\
# Clients that were removed: what they published keeps their names.
"""
