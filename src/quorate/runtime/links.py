"""One link: an authenticated, ordered stream of messages between two members.

A link passes through three stages, each of which reads as far as the bytes go:

    hello  ->  confirm (`mac` only)  ->  up

It reports itself to its owner only once the peer is proven to be who it claims; until then it
is a stranger that holds a place among a bounded number, for a bounded time. Whatever is wrong
from then on ends the link and names the peer: no byte after it is looked at.

Everything runs on the event loop's thread. One read becomes one call of `received`, with every
message it brought; one turn's frames become one record and one write.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol, cast

from quorate.core.bulk import Bulk, decode_bulk
from quorate.core.codec import LENGTH, Frame, decode
from quorate.core.errors import AuthenticationError, RemoteProtocolError
from quorate.core.ids import MemberId, NodeId, member_of
from quorate.core.messages import Message
from quorate.runtime.handshake import HELLO_BYTES, MAGIC, Credentials, Hello, check_magic
from quorate.runtime.records import (
    LONG_RECORD_BYTES,
    BareRecords,
    Desk,
    Inbox,
    Records,
    frames_of,
    grouped,
)
from quorate.runtime.tls import Certificates, RefusedByPeerError, TlsSession

STRANGERS_MAX = 256
STRANGERS_PER_HOST_MAX = 64
# A client may be connected as often as this at once, each time in a session of its own. For all
# of them together, this much may wait for the rest of long records.
SESSIONS_PER_MEMBER_MAX = 64
UNFINISHED_BYTES_PER_MEMBER_MAX = 64 * 1024 * 1024
# TLS answers requests for new keys by itself, past those who bound what waits for a peer.
UNREAD_BYTES_MAX = 32 * 1024 * 1024
CLOSED_HERE = "this node closed its links"

# A host that vanished without a word is noticed after about 25 s.
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


class Links(Protocol):
    """What a transport tells its owner, synchronously and on the event loop's thread."""

    def received(self, peer: NodeId, messages: list[Message]) -> None:
        """Everything that one read brought, decoded, in the order in which it was sent."""

    def connected(self, peer: NodeId) -> None:
        """The peer proved its identity. The link is writable from here on."""

    def disconnected(self, peer: NodeId, why: str) -> None:
        """The link is gone, with whatever was still on its way."""

    def writable(self, peer: NodeId, writable: bool) -> None:
        """Whether the peer keeps up: stop sending at False, go on at True."""

    def offence(self, peer: NodeId | None, address: str, sentence: str) -> None:
        """Somebody did what no correct member does, and the link is closed.

        The peer is None when it did not prove who it is; the sentence then says whom it
        claimed to be, if anyone.
        """


@dataclass(eq=False)
class Hub:
    """What the links of one node share: its credentials, its bounds, and who is connected."""

    credentials: Credentials
    certificates: Certificates | None
    owner: Links
    _: KW_ONLY
    write_buffer_bytes: int
    handshake_s: float
    desk: Desk = field(default_factory=Desk)
    up: "dict[NodeId, Link]" = field(default_factory=dict)
    all: "set[Link]" = field(default_factory=set)
    strangers: "set[Link]" = field(default_factory=set)
    closed: bool = False

    def opened(self, link: "Link") -> None:
        """Register a new connection, or raise when there are too many unproven ones."""
        self.all.add(link)
        if self.closed:
            # It was accepted in the turn in which the node closed.
            link.drop(CLOSED_HERE)
        if self.closed or link.dialled is not None:
            return
        same_host = sum(other.host == link.host for other in self.strangers)
        if same_host >= STRANGERS_PER_HOST_MAX or len(self.strangers) >= STRANGERS_MAX:
            raise RemoteProtocolError(
                f"came on top of {len(self.strangers)} connections that have not proven who they "
                f"are, {same_host} from the same host; allowed are {STRANGERS_MAX} in all and "
                f"{STRANGERS_PER_HOST_MAX} per host"
            )
        self.strangers.add(link)

    def proven(self, link: "Link", peer: NodeId) -> None:
        """The link is up. It replaces an older one: the peer knows best which of them works."""
        self.strangers.discard(link)
        older = self.up.get(peer)
        if older is not None:
            older.drop("replaced by a newer link of the same peer")
        elif len(self._links_of(member_of(peer))) >= SESSIONS_PER_MEMBER_MAX:
            raise RemoteProtocolError(
                f"opened more than {SESSIONS_PER_MEMBER_MAX} sessions at the same time"
            )
        self.up[peer] = link
        self.owner.connected(peer)

    def dropped(self, link: "Link", why: str) -> None:
        """The link ends. Its owner hears of it if it was told that it was up."""
        self.strangers.discard(link)
        peer = link.peer
        if peer is not None and self.up.get(peer) is link:
            del self.up[peer]
            self.owner.disconnected(peer, why)

    def gone(self, link: "Link") -> None:
        """The connection is closed; nothing of the link is left."""
        self.all.discard(link)

    def check_room(self, member: MemberId) -> None:
        """Raise when a member makes us hold too much of records that it does not finish."""
        held_bytes = sum(link.held_bytes() for link in self._links_of(member))
        if held_bytes > UNFINISHED_BYTES_PER_MEMBER_MAX:
            raise RemoteProtocolError(
                f"began records of {held_bytes} bytes at the same time; allowed are "
                f"{UNFINISHED_BYTES_PER_MEMBER_MAX} in all sessions together"
            )

    def _links_of(self, member: MemberId) -> list["Link"]:
        return [link for peer, link in self.up.items() if member_of(peer) == member]


class Link(asyncio.BufferedProtocol):
    """One connection, dialled to a member or accepted from a stranger."""

    def __init__(self, hub: Hub, *, dialled: NodeId | None = None) -> None:
        self.dialled = dialled
        self.peer: NodeId | None = None
        self.host = ""
        self.address = ""
        self.why = ""
        self.is_up = False
        self.settled = asyncio.Event()
        self.gone = asyncio.Event()
        self._hub = hub
        self._owner = hub.owner
        self._inbox = Inbox(hub.desk)
        self._records: Records = BareRecords()
        self._hello = hub.credentials.hello()
        self._stage: Callable[[], bool] = self._read_hello
        self._claimed: NodeId = self._hello.node
        self._tcp: asyncio.Transport
        self._ended = False
        self._deadline: asyncio.TimerHandle | None = None
        self._tls: TlsSession | None = None
        if hub.certificates is not None:
            self._tls = hub.certificates.session(dialled=dialled is not None)

    # What the hub and the transport ask of a link.

    def send(self, frames: Sequence[Frame]) -> None:
        """Write the frames as one record, or as several when they are many or large."""
        if len(frames) == 1 and isinstance(frame := frames[0], bytes):
            self._write(self._records.seal((frame,), len(frame)))
            return
        for group in grouped(frames):
            if isinstance(group, Bulk):
                self._write(self._records.seal_bulk(group))
            else:
                self._write(self._records.seal(*group))

    def pause_reading(self) -> None:
        if not self._ended and self._tcp.is_reading():
            self._tcp.pause_reading()

    def resume_reading(self) -> None:
        if not self._ended and not self._tcp.is_reading():
            self._tcp.resume_reading()

    def buffered_bytes(self) -> int:
        return self._tcp.get_write_buffer_size()

    def held_bytes(self) -> int:
        """How much of a record that is not whole yet waits here."""
        return self._inbox.held_bytes

    def drop(self, why: str, *, flush: bool = False) -> None:
        """End the link. What is buffered is thrown away, unless it is to be flushed first."""
        if self._ended:
            return
        self._ended = True
        self.why = why
        self.is_up = False
        self._stop_deadline()
        if flush:
            self._tcp.close()
        else:
            self._tcp.abort()
        self._hub.dropped(self, why)
        self.settled.set()

    def abort(self) -> None:
        """Give up flushing, if it is not done."""
        if not self.gone.is_set():
            self._tcp.abort()

    # What the event loop tells a link.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)
        self.host, self.address = _address(self._tcp)
        _tune(self._tcp)
        self._tcp.set_write_buffer_limits(high=self._hub.write_buffer_bytes)
        try:
            self._hub.opened(self)
            self._begin()
        except RemoteProtocolError as error:
            self._offend(str(error))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.space() if self._tls is None else self._hub.desk.view

    def buffer_updated(self, count: int) -> None:
        messages: list[Message] = []
        offence = ""
        try:
            if self._tls is None:
                self._inbox.filled(count)
                self._advance(messages)
            else:
                self._decrypt(self._tls, count, messages)
        except (AuthenticationError, RemoteProtocolError) as error:
            offence = str(error)
        except RefusedByPeerError as refusal:
            self.drop(str(refusal))
        # What came before an offence was authentic, and counts.
        if messages and self.is_up and self.peer is not None:
            self._owner.received(self.peer, messages)
        if offence:
            self._offend(offence)

    def pause_writing(self) -> None:
        self._report_writable(False)

    def resume_writing(self) -> None:
        self._report_writable(True)

    def connection_lost(self, error: Exception | None) -> None:
        why = str(error) if error is not None else "the peer closed the connection"
        self.drop(why if self.is_up else f"{why} during the handshake")
        self._hub.gone(self)
        self.settled.set()
        self.gone.set()

    # Reading.

    def _advance(self, messages: list[Message]) -> None:
        inbox = self._inbox
        while not self.is_up and self._stage():
            pass
        if self.is_up:
            records = self._records
            while (taken := inbox.take(records.trailer_bytes)) is not None:
                record, is_bulk = taken
                if is_bulk:
                    messages.append(decode_bulk(records.open_bulk(record)))
                else:
                    messages.extend(map(decode, frames_of(records.open(record))))
        inbox.clear()
        if inbox.held_bytes > LONG_RECORD_BYTES and self.peer is not None:
            self._hub.check_room(member_of(self.peer))

    def _decrypt(self, tls: TlsSession, count: int, messages: list[Message]) -> None:
        tls.feed(self._hub.desk.view[:count])
        try:
            if not tls.established:
                self._negotiate(tls)
            inbox = self._inbox
            while tls.established and (filled := tls.read_into(inbox.space())):
                inbox.filled(filled)
                self._advance(messages)
        finally:
            # A last alert tells the peer why; a key update asks for an answer.
            answered = self._drain(tls)
        if answered and self.buffered_bytes() > UNREAD_BYTES_MAX:
            raise RemoteProtocolError(
                f"asks for new keys and does not read the answers: {self.buffered_bytes()} bytes "
                f"wait for it, allowed are {UNREAD_BYTES_MAX}"
            )

    # The handshake.

    def _begin(self) -> None:
        if self._ended:
            return
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._hub.handshake_s, self._expire)
        if self.dialled is None:
            return
        if self._tls is None:
            self._write([self._hello.pack()])
        else:
            self._tls.handshake()
            self._drain(self._tls)

    def _negotiate(self, tls: TlsSession) -> None:
        tls.handshake()
        if not tls.established or self._hub.certificates is None:
            return
        self.peer = self._hub.certificates.holder(tls.certificate())
        if self.dialled is not None:
            self._write([self._hello.pack()])

    def _read_hello(self) -> bool:
        start = self._inbox.peek(len(MAGIC))
        if start is not None:
            check_magic(bytes(start))
        packed = self._inbox.peek(HELLO_BYTES)
        if packed is None:
            return False
        theirs = self._hub.credentials.check(packed, dialled=self.dialled)
        self._inbox.skip(HELLO_BYTES)
        self._claimed = theirs.node
        if self._tls is None:
            self._confirm(theirs)
        else:
            self._compare_certificate()
        return True

    def _compare_certificate(self) -> None:
        if self.peer != member_of(self._claimed):
            name = self._hub.credentials.name
            shown = "nobody" if self.peer is None else name(self.peer)
            raise AuthenticationError(
                f"claims to be {name(self._claimed)} with the certificate of {shown}"
            )
        self._answer_hello()
        self._come_up(self._claimed)

    def _confirm(self, theirs: Hello) -> None:
        self._answer_hello()
        dialled = self.dialled is not None
        self._records = self._hub.credentials.session(self._hello, theirs, dialled=dialled)
        # Neither side waits for the other's proof, so that each can name an impostor.
        self._write(self._records.seal((), 0))
        self._stage = self._read_confirmation

    def _read_confirmation(self) -> bool:
        whole_bytes = LENGTH.size + self._records.trailer_bytes
        record = self._inbox.peek(whole_bytes)
        if record is None:
            return False
        name = self._hub.credentials.name(self._claimed)
        if LENGTH.unpack_from(record) != (0,):
            raise RemoteProtocolError(f"claims to be {name} and does not confirm it first")
        try:
            self._records.open(record[LENGTH.size :])
        except AuthenticationError:
            raise AuthenticationError(
                f"claims to be {name} and cannot prove it: its first record is not made with the "
                f"key that the cluster file pins"
            ) from None
        self._inbox.skip(whole_bytes)
        self._come_up(self._claimed)
        return True

    def _answer_hello(self) -> None:
        if self.dialled is None:
            self._write([self._hello.pack()])

    def _come_up(self, peer: NodeId) -> None:
        self._stop_deadline()
        self.peer = peer
        self.is_up = True
        self._hub.proven(self, peer)
        self.settled.set()

    def _expire(self) -> None:
        sentence = f"did not finish its handshake within {self._hub.handshake_s:g} s"
        # A member that we dialled may just be busy; a stranger holds a place that others need.
        if self.dialled is None:
            self._offend(sentence)
        else:
            self.drop(f"{self._hub.credentials.name(self.dialled)} {sentence}")

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    # Writing and ending.

    def _write(self, buffers: list[bytes]) -> None:
        if self._ended:
            return
        if self._tls is None:
            self._tcp.writelines(buffers)
        else:
            self._tls.write(b"".join(buffers))
            self._drain(self._tls)

    def _drain(self, tls: TlsSession) -> bool:
        """Whether there was anything to write."""
        ciphertext = tls.drain()
        if not ciphertext or self._ended:
            return False
        self._tcp.write(ciphertext)
        return True

    def _report_writable(self, writable: bool) -> None:
        if self.is_up and self.peer is not None:
            self._owner.writable(self.peer, writable)

    def _offend(self, sentence: str) -> None:
        if self._ended:
            return
        if self.peer is None and self.dialled is not None:
            name = self._hub.credentials.name(self.dialled)
            sentence = f"{sentence} (it was dialled as {name})"
        self._owner.offence(self.peer, self.address, sentence)
        # A stranger has nothing buffered but a few bytes that may tell it why.
        self.drop(sentence, flush=not self.is_up)


def _address(tcp: asyncio.Transport) -> tuple[str, str]:
    peer = tcp.get_extra_info("peername")
    if not peer:
        return "unknown", "unknown"
    host, port = str(peer[0]), peer[1]
    return host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tune(tcp: asyncio.Transport) -> None:
    connection = tcp.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        # Not every system lets these be chosen; its own values then hold.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
