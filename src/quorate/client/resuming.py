"""A producer that goes on where another one of the same session was, even one that was killed.

Replicas take each number of a line once. So whoever knows which number a batch has, and hands in
the same bytes under it again, has published it once, however often that is and whatever became of
those who did it before. What a batch's bytes are must then follow from what is written down: its
time and its salt come from outside, and every batch has a signature of its own.

The numbers of commands are not written down. So what such a producer has to tell the cluster
itself (that it publishes on a topic, and is still there), another session says for it.

A session that rests ends for good after some days, or when its client needs the place for others
(`control/machine.py`). Whoever goes on after long should have an identity of its own.
"""

import msgspec
from blake3 import blake3

from quorate.client.producer import Producer
from quorate.client.session import ClusterLike, IdentityLike
from quorate.core.control import Command, Register, Renew, Unregister
from quorate.core.errors import LocalProtocolError
from quorate.core.ids import SESSION_MAX, Sequence
from quorate.crypto.sids import Place
from quorate.protocol.ordering.publisher import LineOutgoing
from quorate.protocol.ordering.validation import Sealer

SECRET_BYTES = 32


class ResumingProducer(Producer):
    """Publishes in a session that is named, with batches whose every byte is determined."""

    def __init__(
        self,
        cluster: ClusterLike,
        identity: IdentityLike,
        *,
        session: int,
        secret: bytes,
        timeout_s: float = 30.0,
    ) -> None:
        """Salts follow from the `secret`, which is as private as what is published."""
        if not 1 <= session <= SESSION_MAX or len(secret) != SECRET_BYTES:
            raise LocalProtocolError(
                f"session {session} with a secret of {len(secret)} bytes; allowed are sessions 1 "
                f"to {SESSION_MAX} and {SECRET_BYTES} bytes"
            )
        self._given_session, self._secret = session, secret
        # When the batches that are published now were made.
        self.time_us = 0
        super().__init__(cluster, identity, timeout_s=timeout_s)
        # Gives commands for this session.
        self._agent = Producer(self.cluster, self._identity)

    async def start(self) -> None:
        await super().start()
        await self._agent.start()

    async def close(self, *, flush: bool = True) -> None:
        await super().close(flush=flush)
        await self._agent.close()

    async def command(self, command: Command) -> None:
        if isinstance(command, Register | Unregister | Renew):
            command = msgspec.structs.replace(command, session=self.session)
        await self._agent.command(command)

    async def go_on_with(self, topic: str, partition: int, sequence: Sequence) -> None:
        """The next batch for this partition has this number."""
        await self.register(topic)
        if not self.cluster.topics[topic].is_log:
            raise LocalProtocolError(
                f"topic '{topic}' is live, and nobody could tell what was published on it already; "
                f'log topics have order = "total"'
            )
        stream = self._outlets[topic][partition].stream
        assert isinstance(stream, LineOutgoing)
        stream.go_on_with(sequence)

    async def require_permission(self) -> None:
        """Ask whether we may publish where we do; raise what is refused.

        Replicas that let us publish no more say nothing to what we hand in.
        """
        for topic in list(self._outlets):
            await self.register(topic)

    def _new_session(self) -> int:
        return self._given_session

    def _make_sealer(self) -> Sealer:
        return Sealer(
            self.cluster.full_name, self._identity.public.sign_key, self._identity.sign,
            wall_us=lambda: self.time_us, salt=self._salt, sheaf_max=1,
        )  # fmt: skip

    def _salt(self, place: Place, sequence: Sequence) -> bytes:
        words = f"{place.topic} {place.partition} {sequence}"
        return blake3(words.encode(), key=self._secret).digest()
