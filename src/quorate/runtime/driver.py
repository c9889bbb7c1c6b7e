"""The driver: one machine, one transport, one `Ready` per turn of the event loop.

Whatever arrives is put aside until the loop has read everything that is there; then all of it
is stepped, one `Ready` is taken, and each peer gets one write. Under load a turn therefore
carries many messages and the cost of a turn is shared, and when idle nothing waits.

Records that something rests on go to the journal first. What must be synced waits for that in
another thread, and whatever the machine wants meanwhile waits behind it and shares the next sync
(group commit), so that the order of what leaves is the order of the turns. Records that may be lost
are written when everything has left that the same turn wants to send. When the disk is full nothing
is taken in until there is room; peers say again what they said meanwhile.

Nothing here grows without bound: a peer that does not read is first reported to the machine,
which holds back, and what is sent to it regardless beyond `PEER_BYTES_MAX` is dropped. The
machines send again what matters. What waits for a sync because a peer asked for it is bounded in
the same way.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from typing import Any, Protocol

from quorate.core.codec import Frame, encode, for_link
from quorate.core.errors import LocalProtocolError, QuorateError
from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.protocol.machine import Machine, Outcome, Ready, Report
from quorate.protocol.misbehaviour import Rewrite, behave
from quorate.protocol.ordering.records import Deposit, Record
from quorate.runtime.transport import Transport
from quorate.storage.errors import RefusedRecordError

PEER_BYTES_MAX = 16 * 1024 * 1024
# Of what a peer asked for, so much waits for a sync before the machine holds back.
ANSWERS_WAITING_BYTES = PEER_BYTES_MAX // 2
# So many questions to the process itself are answered to a peer in one turn.
QUESTIONS_MAX = 16
TIMER_PRECISION_S = 0.001
DISK_RETRY_S = 0.25

_log = logging.getLogger("quorate.driver")

Handler = Callable[[NodeId, Any], None]


class Paced(Machine, Protocol):
    """A machine that can be told that a peer does not keep up."""

    def writable(self, peer: NodeId, writable: bool) -> None: ...


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Disk(Protocol):
    """Where records go. `sync` is called in another thread while more is appended."""

    def append(self, records: list[Record]) -> None: ...

    def sync(self) -> None: ...

    @property
    def syncs(self) -> bool:
        """Whether `sync` does anything."""


class Driver:
    """Steps a machine with what a transport brings, and carries out what it wants.

    `handlers` take messages that are for the process rather than for the machine. They come at the
    end of a turn: within one, what has just arrived looks as if it waited for somebody.
    """

    def __init__(
        self,
        machine: Paced,
        *,
        on_outcomes: Callable[[list[Outcome]], None] | None = None,
        on_report: Callable[[Report], None] | None = None,
        on_offence: Callable[[NodeId | None, str, str], None] | None = None,
        handlers: Mapping[type, Handler] | None = None,
        name_of: Callable[[NodeId], str] = "node {}".format,
        disk: Disk | None = None,
        on_disk_error: Callable[[Exception], None] | None = None,
        on_refused: Callable[[int, str], None] | None = None,
        on_deposit: Callable[[list[Deposit]], None] | None = None,
    ) -> None:
        self.machine = machine
        # Why nothing can be written, while that is so.
        self.disk_full = ""
        self._disk = disk
        self._on_disk_error = on_disk_error
        self._on_refused = on_refused
        self._on_deposit = on_deposit
        self._syncer = ThreadPoolExecutor(1, "sync") if disk is not None else None
        self._is_syncing = False
        self._behind_sync: list[Ready] = []
        self._answers_waiting: Counter[NodeId] = Counter()
        # Those of whom the transport says that they do not keep up.
        self._clogged: set[NodeId] = set()
        self.rewrite: Rewrite = behave
        self.counters: Counter[str] = Counter()
        self.connected_peers: dict[NodeId, None] = {}
        self._on_outcomes = on_outcomes
        self._on_report = on_report
        self._on_offence = on_offence
        self._handlers = dict(handlers or {})
        self._name_of = name_of
        self._inbox: list[tuple[NodeId, list[Message]]] = []
        self._for_process: list[tuple[NodeId, Message]] = []
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        # When the machine wants to be woken, as a heap.
        self._due_us: list[int] = []
        self._stopped = False
        self._link_came_up = asyncio.Event()

    def start(self, transport: Transport) -> None:
        self._transport = transport
        self.wake()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._syncer is not None:
            self._syncer.shutdown()

    def wake(self) -> None:
        """Take a turn soon: the application has changed the machine."""
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def tell(self, word: Callable[[], None]) -> None:
        """Somebody in this process has news for the machine."""
        if not self._stopped:
            self.machine.tick(now_us())
            word()
            self.wake()

    async def until_connected(self, peer: NodeId) -> None:
        """Wait for a link to this peer."""
        while peer not in self.connected_peers:
            self._link_came_up.clear()
            await self._link_came_up.wait()

    def send(self, peer: NodeId, message: Message) -> None:
        """A message of the process itself, past the machine and its misbehaviour."""
        if self._transport is not None:
            self._transport.send(peer, [encode(message)])

    # Links

    def received(self, peer: NodeId, messages: list[Message]) -> None:
        self._inbox.append((peer, messages))
        self.wake()

    def connected(self, peer: NodeId) -> None:
        self.connected_peers[peer] = None
        self._link_came_up.set()
        self.machine.tick(now_us())
        self.machine.connected(peer)
        self.wake()

    def disconnected(self, peer: NodeId, why: str) -> None:
        self.connected_peers.pop(peer, None)
        self._clogged.discard(peer)
        _log.info("link to %s is down: %s", self._name_of(peer), why)
        if not self.disk_full:
            self.machine.tick(now_us())
            # What the peer said last came before its link went down.
            self._step_all()
        self.machine.disconnected(peer)
        self.wake()

    def writable(self, peer: NodeId, writable: bool) -> None:
        (self._clogged.discard if writable else self._clogged.add)(peer)
        self.machine.writable(peer, writable)
        self.wake()

    def offence(self, peer: NodeId | None, address: str, sentence: str) -> None:
        self.counters["offences"] += 1
        if self._on_offence is not None:
            self._on_offence(peer, address, sentence)

    # Turns

    def _turn(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        if self.disk_full:
            # The machine stands still, or what it wants would pile up.
            self._inbox = self._messages_for_process()
            self._step_all()
            self._handle_all()
            return
        now = now_us()
        self.machine.tick(now)
        self._step_all()
        try:
            wanted = self.machine.take()
        except Exception:
            # The group whose mistake it is has stopped, and the others go on.
            self.counters["internal_errors"] += 1
            _log.exception("a turn was dropped")
            self._loop.call_later(DISK_RETRY_S, self.wake)
            return
        for delay_us, ready in self.rewrite(wanted, now):
            if delay_us:
                self._loop.call_later(delay_us / 1e6, self._carry_out, ready)
            else:
                self._carry_out(ready)
        self._handle_all()

    def _step_all(self) -> None:
        inbox, self._inbox = self._inbox, []
        for peer, messages in inbox:
            for message in messages:
                if type(message) in self._handlers:
                    self._for_process.append((peer, message))
                else:
                    self._guarded(self.machine.step, peer, message)

    def _handle_all(self) -> None:
        asked, self._for_process = self._for_process, []
        questions: Counter[NodeId] = Counter()
        for peer, message in asked:
            questions[peer] += 1
            if questions[peer] <= QUESTIONS_MAX and not self._is_behind(peer):
                self._guarded(self._handlers[type(message)], peer, message)

    def _guarded(self, step: Handler, peer: NodeId, message: Message) -> None:
        try:
            step(peer, message)
        except Exception:
            # A peer must not be able to stop us, not even through a mistake of ours.
            self.counters["internal_errors"] += 1
            kind, name = type(message).__name__, self._name_of(peer)
            _log.exception("a %s from %s was dropped", kind, name)

    def _messages_for_process(self) -> list[tuple[NodeId, list[Message]]]:
        """What is not for the machine, which cannot take anything in now."""
        return [
            (peer, [message for message in messages if type(message) in self._handlers])
            for peer, messages in self._inbox
        ]

    def _carry_out(self, ready: Ready) -> None:
        if self._stopped:
            return
        if ready.deposit and self._on_deposit is not None:
            self._on_deposit(ready.deposit)
        if ready.sync or self._is_syncing:
            self._write(ready, lambda: self._sync(ready))
        else:
            # Nothing rests on what need not be synced, so it need not be waited for either. Later
            # records rest on it, whatever becomes of what leaves.
            try:
                self._release(ready)
            finally:
                self._write(ready)

    def _write(self, ready: Ready, then: Callable[[], None] = lambda: None) -> None:
        """Append its records and go on; if there is no room, as soon as there is."""
        if self._stopped:
            return
        if ready.persist and not self._append(ready):
            if self.disk_full:
                self._loop.call_later(DISK_RETRY_S, self._write, ready, then)
            return
        then()

    def _append(self, ready: Ready) -> bool:
        if self._disk is None:
            raise LocalProtocolError("this driver has no disk, and its machine asks for one")
        try:
            self._disk.append(ready.persist)
        except RefusedRecordError as error:
            self._stop_group(ready, error)
            return self._append(ready)
        except QuorateError as error:
            if not error.retriable:
                self._fail(error)
                return False
            if not self.disk_full:
                _log.error("nothing is acknowledged any more: %s", error)
            self.disk_full = str(error)
            return False
        if self.disk_full:
            _log.warning("there is room on the disk again")
            self.disk_full = ""
            self.wake()
        return True

    def _stop_group(self, ready: Ready, error: RefusedRecordError) -> None:
        """One group cannot go on. Nothing leaves that may rest on its records; peers ask again."""
        ready.persist = [
            record for record in ready.persist if getattr(record, "group", None) != error.group
        ]
        ready.send, ready.deliver = [], []
        if self._on_refused is not None:
            self._on_refused(error.group, str(error))
            self.wake()

    def _sync(self, ready: Ready) -> None:
        if self._is_syncing:
            self._bound_answers(ready)
            self._behind_sync.append(ready)
        elif ready.sync and self._disk is not None and self._disk.syncs:
            self._begin_sync([ready])
        else:
            self._release(ready)

    def _bound_answers(self, ready: Ready) -> None:
        """Whoever asks again and again while a sync takes its time does not fill our memory."""
        waiting = self._answers_waiting
        for peer, count in ready.answered.items():
            waiting[peer] += count
            if waiting[peer] > ANSWERS_WAITING_BYTES:
                self.machine.writable(peer, False)
        if any(waiting[peer] > PEER_BYTES_MAX for peer in ready.answered):
            kept = [each for each in ready.send if waiting[each[0]] <= PEER_BYTES_MAX]
            self.counters["dropped_frames"] += len(ready.send) - len(kept)
            ready.send = kept

    def _begin_sync(self, readies: list[Ready]) -> None:
        assert self._syncer is not None
        assert self._disk is not None
        self._is_syncing = True
        future = self._loop.run_in_executor(self._syncer, self._disk.sync)
        future.add_done_callback(lambda done: self._end_sync(done, readies))

    def _end_sync(self, done: "asyncio.Future[None]", readies: list[Ready]) -> None:
        error = None if done.cancelled() else done.exception()
        if self._stopped or error is not None:
            # What a failed sync has lost nobody knows: nothing may be said that rests on it.
            if isinstance(error, Exception):
                self._fail(error)
            return
        self._is_syncing = False
        self._go_on_answering()
        waiting, self._behind_sync = self._behind_sync, []
        if any(ready.sync for ready in waiting):
            self._begin_sync(waiting)
        else:
            readies += waiting
        self._release(*readies)

    def _go_on_answering(self) -> None:
        waiting, self._answers_waiting = self._answers_waiting, Counter()
        for peer, count in waiting.items():
            if count > ANSWERS_WAITING_BYTES and peer not in self._clogged:
                self.machine.writable(peer, True)
                self.wake()

    def _fail(self, error: Exception) -> None:
        self._stopped = True
        if self._on_disk_error is not None:
            self._on_disk_error(error)

    def _release(self, *readies: Ready) -> None:
        """Let out what these turns want to be known; what they send goes in one write per peer."""
        self._send([each for ready in readies for each in ready.send])
        for ready in readies:
            if ready.deliver and self._on_outcomes is not None:
                self._on_outcomes(ready.deliver)
            if self._on_report is not None:
                for report in ready.reports:
                    self._on_report(report)
            for at_us in ready.timers:
                self._wake_at(at_us)

    def _send(self, messages: list[tuple[NodeId, Message]]) -> None:
        """One write per peer; a message that goes to several is encoded once."""
        transport = self._transport
        if transport is None or not messages:
            return
        per_peer: dict[NodeId, list[Frame]] = {}
        encoded: dict[int, Frame] = {}
        for peer, message in messages:
            frame = encoded.get(id(message))
            if frame is None:
                try:
                    frame = encoded[id(message)] = for_link(message)
                except LocalProtocolError:
                    # The machine's mistake, which must not cost the others what is for them.
                    self.counters["internal_errors"] += 1
                    kind, name = type(message).__name__, self._name_of(peer)
                    _log.exception("a %s to %s was dropped", kind, name)
                    continue
            frames = per_peer.get(peer)
            if frames is None:
                per_peer[peer] = [frame]
            else:
                frames.append(frame)
        for peer, frames in per_peer.items():
            if self._is_behind(peer):
                self.counters["dropped_frames"] += len(frames)
            else:
                transport.send(peer, frames)

    def _is_behind(self, peer: NodeId) -> bool:
        """Whether more waits for this peer than it should."""
        return self._transport is not None and self._transport.buffered_bytes(peer) > PEER_BYTES_MAX

    def _wake_at(self, at_us: int) -> None:
        """Every time that a machine asks for counts: it asks once, and not again if woken early."""
        if at_us in self._due_us:
            return
        heappush(self._due_us, at_us)
        if self._due_us[0] == at_us:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, self._due_us[0] - now_us()) / 1e6
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = now_us()
        if now < self._due_us[0]:
            # uvloop rounds to milliseconds.
            self._timer = self._loop.call_later(TIMER_PRECISION_S, self._on_timer)
            return
        while self._due_us and self._due_us[0] <= now:
            heappop(self._due_us)
        if self._due_us:
            self._set_timer()
        self.wake()
