"""Links to the other members of a cluster, kept up.

A transport listens, dials, and tells its owner who is connected and what they say. It promises
that messages from a peer arrive whole, authentic and in order for as long as a link lasts, and
nothing across links: what was on its way when a link broke is lost, and the machines above ask
for it again. Of two members, one should dial; if both do, the later link wins, and whoever
dialled waits for that one to end before it dials again.

Back-pressure goes both ways. Towards a peer that does not read, `writable(peer, False)` says
that more than `write_buffer_bytes` wait for it. Towards a peer that sends too much,
`pause_reading` leaves its bytes in its own buffers until `resume_reading`, or until the link
ends: a new link always begins by reading and writable.
"""

import asyncio
from random import Random, SystemRandom

from quorate.core.cluster import Cluster, Replica
from quorate.core.codec import Frame
from quorate.core.errors import ConfigError, LocalProtocolError
from quorate.core.ids import NodeId, member_of
from quorate.crypto.identity import Identity
from quorate.runtime.handshake import Credentials
from quorate.runtime.links import CLOSED_HERE, Hub, Link, Links
from quorate.runtime.tls import Certificates

__all__ = ["Links", "Transport"]

# How long `close` waits for peers to take what is still buffered for them.
_FLUSH_S = 1.0
_BACKLOG = 512


class Transport:
    """All links of one member."""

    def __init__(
        self,
        cluster: Cluster,
        identity: Identity,
        owner: Links,
        *,
        back_off_s: tuple[float, float] = (0.05, 2.0),
        random: Random | None = None,
        write_buffer_bytes: int = 1 << 20,
        handshake_s: float = 5.0,
        session: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._back_off_s = back_off_s
        self._random = random if random is not None else SystemRandom()
        self._hub = Hub(
            Credentials(cluster, identity, session),
            Certificates(cluster, identity) if cluster.link_security == "tls" else None,
            owner,
            write_buffer_bytes=write_buffer_bytes,
            handshake_s=handshake_s,
        )
        self._server: asyncio.Server | None = None
        self._diallers: dict[NodeId, asyncio.Task[None]] = {}
        self._down: dict[NodeId, str] = {}
        # Why nobody was there at the last attempt: no host, no process, or no way to it.
        self._unreached: dict[NodeId, str] = {}

    @property
    def node(self) -> NodeId:
        """As whom the others see this transport: a client has a session of its own each time."""
        return self._hub.credentials.node

    async def listen(self, host: str, port: int) -> None:
        """Accept links from any other member of the cluster."""
        if self._server is not None:
            raise LocalProtocolError("this transport is listening already")
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port, backlog=_BACKLOG)

    def dial(self, peer: NodeId) -> None:
        """Keep a link to this replica up until the transport is closed."""
        replica = self._cluster.member(peer)
        if not isinstance(replica, Replica) or peer == self.node:
            raise ConfigError(f"{replica.name} cannot be dialled; only other replicas can")
        if self._hub.closed:
            raise LocalProtocolError("this transport is closed")
        if peer not in self._diallers:
            self._diallers[peer] = asyncio.create_task(self._keep_up(replica))

    def adopt(self, cluster: Cluster) -> None:
        """The cluster has other members, or members with other keys or addresses, from now on.

        Links to those that have changed end, and replicas are dialled anew. So do handshakes that
        are under way: they rest on the keys of before.
        """
        before, self._cluster = self._cluster, cluster
        self._hub.credentials.adopt(cluster)
        if cluster.link_security == "tls":
            self._hub.certificates = Certificates(cluster, self._identity)
        for old, new in zip(before.replicas, cluster.replicas, strict=False):
            if old == new or new.number == self.node:
                continue
            if (dialler := self._diallers.pop(new.number, None)) is not None:
                dialler.cancel()
                self.dial(new.number)
            if (link := self._hub.up.get(new.number)) is not None:
                link.drop("its keys or its address have changed")
        for link in [*self._hub.all]:
            if not link.is_up:
                link.drop("the cluster changed during its handshake")
        clients = {client.number: client for client in cluster.clients}
        changed = {old.number for old in before.clients if clients.get(old.number) != old}
        for peer, link in [*self._hub.up.items()]:
            if member_of(peer) in changed:
                link.drop("it is no client any more, or has other keys")

    def send(self, peer: NodeId, frames: list[Frame]) -> bool:
        """Hand the frames of one turn to a peer; False when no link to it is up.

        They are then dropped: what must arrive, the machines send again.
        """
        link = self._hub.up.get(peer)
        if link is None:
            return False
        link.send(frames)
        return True

    def pause_reading(self, peer: NodeId) -> None:
        """Take nothing more from this peer for now."""
        if (link := self._hub.up.get(peer)) is not None:
            link.pause_reading()

    def resume_reading(self, peer: NodeId) -> None:
        if (link := self._hub.up.get(peer)) is not None:
            link.resume_reading()

    def buffered_bytes(self, peer: NodeId) -> int:
        """How much waits in this process for the peer to read."""
        link = self._hub.up.get(peer)
        return link.buffered_bytes() if link is not None else 0

    def why_down(self, peer: NodeId) -> str:
        """Why the last attempt to keep a link to this peer up failed; empty when it is up."""
        return "" if peer in self._hub.up else self._down.get(peer, "no answer yet")

    def why_unreached(self, peer: NodeId) -> str:
        """Why nobody was there at its address the last time; empty if somebody was."""
        return "" if peer in self._hub.up else self._unreached.get(peer, "")

    async def close(self) -> None:
        """End all links, after a moment for what is still buffered, and stop listening."""
        self._hub.closed = True
        diallers = list(self._diallers.values())
        for dialler in diallers:
            dialler.cancel()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*diallers, return_exceptions=True)
        links = list(self._hub.all)
        for link in links:
            link.drop(CLOSED_HERE, flush=True)
        await _all_gone(links)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self) -> Link:
        return Link(self._hub)

    async def _keep_up(self, replica: Replica) -> None:
        loop = asyncio.get_running_loop()
        back_off = _BackOff(*self._back_off_s, self._random)
        while True:
            # A link that the peer dialled serves as well.
            link = self._hub.up.get(replica.number) or await self._connect(replica)
            if link is not None and link.is_up:
                began = loop.time()
                await link.gone.wait()
                # A peer that lets us in only to throw us out again is not to be rushed.
                if loop.time() - began >= self._back_off_s[1]:
                    back_off.reset()
            if link is not None:
                self._down[replica.number] = link.why
            await asyncio.sleep(back_off.next_s())

    async def _connect(self, replica: Replica) -> Link | None:
        """A link that has come up, or has failed to; None when nobody answered at all."""
        link = Link(self._hub, dialled=replica.number)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._hub.handshake_s):
                await loop.create_connection(lambda: link, replica.host, replica.port)
        except (OSError, TimeoutError) as error:
            is_refused = isinstance(error, ConnectionRefusedError)
            why = "connection refused" if is_refused else str(error) or "no answer"
            where = f"{replica.host}:{replica.port}"
            self._down[replica.number] = f"cannot be reached at {where}: {why}"
            self._unreached[replica.number] = why
            return None
        except asyncio.CancelledError:
            # uvloop forgets a connection whose opening is cancelled, and never says that it is
            # lost; whoever waits for the link to be gone would wait for ever.
            if link in self._hub.all:
                link.abort()
                link.connection_lost(None)
            raise
        self._unreached.pop(replica.number, None)
        await link.settled.wait()
        return link


class _BackOff:
    """Delays that double up to a bound, each drawn at random so that peers do not move in step."""

    def __init__(self, low_s: float, high_s: float, random: Random) -> None:
        self._low_s = low_s
        self._high_s = high_s
        self._random = random
        self._ceiling_s = low_s

    def next_s(self) -> float:
        self._ceiling_s = min(2 * self._ceiling_s, self._high_s)
        return self._random.uniform(self._low_s, self._ceiling_s)

    def reset(self) -> None:
        self._ceiling_s = self._low_s


async def _all_gone(links: list[Link]) -> None:
    """Wait for closed links to end, and cut off the ones that cannot flush."""
    waits = [asyncio.ensure_future(link.gone.wait()) for link in links]
    if not waits:
        return
    await asyncio.wait(waits, timeout=_FLUSH_S)
    for link in links:
        link.abort()
    await asyncio.gather(*waits)
