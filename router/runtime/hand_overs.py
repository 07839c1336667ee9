"""Connections that one worker hands over to another: to the one that the address of their first attach lives at; those
of other routers to the one that their `open` asks for, since it has their lanes.

The worker that has accepted a connection serves it up to its first attach, or its `open`. Then it sends the other
worker the socket, the identity that the peer has proved, and all that was read behind the SASL layer. The other worker
replays these octets, and answers the attach. If it refuses the connection or is gone, the first one goes on.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.amqp.events import ConnectionOpened
from amqpmesh.router.amqp.frames import protocol_header
from amqpmesh.router.amqp.negotiation import AMQP_ID
from amqpmesh.router.attach.homes import Homes
from amqpmesh.router.config.workers import hand_over_path
from amqpmesh.router.endpoint_setup import wanted
from amqpmesh.router.io.handshake import Identity
from amqpmesh.router.io.streams import BridgedStream, TcpStream
from amqpmesh.router.logs import event_log
from amqpmesh.router.mesh.neighbour import is_between_workers
from amqpmesh.router.runtime.worker_channels import PACKET, Channel, Door, close_all
from amqpmesh.topology.workers import worker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import TypeAlias

    from amqpmesh.router.amqp.events import LinkAttached
    from amqpmesh.router.config.mesh import WorkerConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.accepted import AcceptedTransport
    from amqpmesh.router.runtime.polled import PolledTransport
    from amqpmesh.router.runtime.poller import Poller

    _Leading: TypeAlias = LinkAttached | ConnectionOpened

log = event_log.EventLog("amqpmesh.io")

FRESH: Final = 10_000
"""Connections without an attach whose input is kept. If there are more, the oldest stay where they are. The input takes
less memory than the connection itself.
"""

UNDER_WAY: Final = 64
"""Connections that are sent to one worker before it answers. Further ones wait: thousands may come at once."""

ANSWER_TIME: Final = 5.0
"""Seconds for a worker to take a connection up or to refuse it. Then the connection is cut: the worker may still write
to it, so no other one may.
"""

HEADER: Final = protocol_header(AMQP_ID)
OPEN: Final = b"\x00\x53\x10"
"""The descriptor of `open`, behind a frame's header (§2.7.1)."""

PASSED: Final = ord("p")
TAKEN: Final = ord("t")
REFUSED: Final = ord("r")
"""Kinds of packets: a connection, and the two answers."""

_HEAD: Final = struct.Struct("!BIHH")  # kind, number of the hand-over, octets of the terms, octets of output


class Terms(NamedTuple):
    """The terms of a connection, and the identity that its peer has proved."""

    listener: str
    """The listener's name."""
    host: str
    """The peer's address, without its port."""
    mechanism: str | None
    """The SASL mechanism; None: no SASL layer."""
    user: str | None
    certificate: str | None
    """The peer's certificate: DER, as hexadecimal digits."""
    certificate_user: str | None
    certificate_subject: str | None
    tls: str | None
    """The version of TLS, which the worker decrypts that has accepted the connection; None: no TLS."""
    cipher: str | None
    bridged: bool
    """The worker that has accepted the connection passes its octets on: it is in TLS, or a WebSocket."""
    skip: int
    """The octets of the output since AMQP's protocol header that were written; -1: more than the header."""

    @property
    def identity(self) -> Identity:
        """The identity of the peer's certificate."""
        der = None if self.certificate is None else bytes.fromhex(self.certificate)
        return Identity(der, self.certificate_user, self.certificate_subject)


class Arrival(NamedTuple):
    """A connection from another worker."""

    terms: Terms
    output: bytes
    """Output that was not written. With `skip` -1, it replaces that of the replay."""
    received: bytes
    """All input since AMQP's protocol header, up to the event and beyond that leads to the other worker."""


class _Move:
    """A connection on its way to another worker."""

    def __init__(
        self,
        channel: Channel,
        transport: PolledTransport,
        record: ConnectionRecord,
        event: _Leading,
        kept: bytes,
        send: Callable[[_Move], object],
    ) -> None:
        """Args: event: it leads to the other worker. kept: the input up to it. send: sends this object."""
        self.channel = channel
        self.transport = transport
        self.record = record
        self.event = event
        self.kept = kept
        #: The time by which the worker must have answered, seconds; `is_cut`: it has not.
        self.until = 0.0
        self.is_cut = False
        self._send = send

    def conclude(self) -> None:
        """See `Concluding`: the turn in which the attach came is over."""
        self._send(self)

    def cancel(self) -> None:
        """See `Concluding`."""
        self.transport.cut()

    def packet(self, number: int) -> bytes | None:
        """Return the connection as a packet; None: it cannot be handed over."""
        record, transport = self.record, self.transport
        if not transport.can_move:
            return None
        sasl = record.engine.negotiation.sasl
        skip, output = _unwritten(bytes(record.engine.out))
        assert record.listener is not None, "only a listener's connections are handed over"
        terms = Terms(
            record.listener.name,
            record.host,
            sasl.mechanism if sasl is not None and sasl.done else None,
            record.peer.user,
            None if record.certificate is None else record.certificate.hex(),
            record.certificate_user,
            record.certificate_subject,
            record.tls,
            record.cipher,
            transport.is_bridged,
            skip,
        )
        told = json.dumps(terms).encode()
        content = b"".join((told, output, self.kept, transport.unread))
        if _HEAD.size + len(content) > PACKET:  # a certificate may be long
            return None
        return _HEAD.pack(PASSED, number, len(told), len(output)) + content


def _unwritten(out: bytes) -> tuple[int, bytes]:
    """Return `skip` and `output` of an arrival. Args: out: the output that was not written.

    If nothing of our `open` was written, the other worker writes its own.
    """
    at = out.find(HEADER)
    if at >= 0:
        return 0, out[:at]
    if out[8:11] == OPEN:
        return len(HEADER), b""
    return -1, out


def parsed(packet: bytes) -> tuple[int, Arrival]:
    """Return the number of a hand-over, and the connection in its packet."""
    _, number, terms, output = _HEAD.unpack_from(packet)
    begin = _HEAD.size + terms
    told = Terms(*json.loads(packet[_HEAD.size : begin]))
    return number, Arrival(told, packet[begin : begin + output], packet[begin + output :])


class HandOvers:
    """The connections that a worker hands over, and those that it takes up."""

    def __init__(
        self,
        core: Core,
        worker: WorkerConfig,
        poller: Poller,
        has_room: Callable[[str], bool],
        take_up: Callable[[TcpStream, Arrival], None],
    ) -> None:
        """Args: has_room: tells whether a listener, by its name, takes one more connection. take_up: starts to serve a
        connection.

        Raises: OSError: the worker's socket cannot be made.
        """
        self._context = core.context
        self._worker = worker
        self._poller = poller
        self._has_room = has_room
        self._take_up = take_up
        self._homes = Homes(core.context, core.lookup, worker, self._is_alive)
        #: Connections without an attach so far.
        self._fresh: dict[ConnectionRecord, PolledTransport] = {}
        #: Connections from other workers whose input is replayed, each with the event that has led here.
        self._arriving: dict[ConnectionRecord, _Leading | None] = {}
        #: Channels to other workers, and what each of them has not answered.
        self._channels: dict[int, Channel] = {}
        self._under_way: dict[Channel, dict[int, _Move]] = {}
        self._waiting: dict[Channel, deque[_Move]] = {}
        self._incoming: set[Channel] = set()
        self._number = 0
        self._is_scheduled = False
        self._is_stopped = False
        self._door = Door(hand_over_path(worker.folder, worker.number), 4 * worker.count, poller, self._admit)
        core.context.leads_away = self._leads_away

    def welcome(self, record: ConnectionRecord, transport: PolledTransport) -> None:
        """Keep the input of a new connection until its first attach, or its `open` if it is a router's."""
        is_routers = record.role == "mesh" and not is_between_workers(record)
        if self._is_stopped or not (record.role == "normal" or is_routers):
            return
        record.engine.negotiation.keeps_input = True
        self._fresh[record] = transport
        if len(self._fresh) > FRESH:
            oldest = next(iter(self._fresh))
            del self._fresh[oldest]
            oldest.engine.stop_keeping()

    def forget(self, record: ConnectionRecord) -> None:
        """Note that a connection has ended."""
        self._fresh.pop(record, None)

    def begin(self, record: ConnectionRecord, transport: AcceptedTransport, arrival: Arrival) -> None:
        """Serve a connection from another worker. Never raise."""
        self._context.taken_up += 1
        self._arriving[record] = None
        transport.take_up(arrival.received)
        event = self._arriving.pop(record)
        if event is None:
            log.warning(
                "hand-over failed", connection=record.number, peer=record.host, reason="the input has no attach"
            )
            transport.cut()
            return
        out, skip = record.engine.out, arrival.terms.skip
        out[:] = arrival.output + (b"" if skip < 0 else out[skip:])
        transport.go_on(event)

    def stop(self) -> None:
        """Take up and hand over no more connections; wait for answers still."""
        self._is_stopped = True
        self._door.close()
        for record in self._fresh:
            record.engine.stop_keeping()
        self._fresh.clear()
        for each in tuple(self._incoming):
            each.close()
        self._incoming.clear()

    def close(self) -> None:
        """Close all channels; all connections have ended."""
        for each in self._channels.values():
            each.close()

    # ----------------------------------------------------------------------------------------------------- handing over

    def _leads_away(self, record: ConnectionRecord, event: _Leading) -> bool:
        """See `Context.leads_away`."""
        if record in self._arriving:
            self._arriving[record] = event
        else:
            transport = self._fresh.pop(record, None)
            if transport is None:
                return False
            kept = record.engine.stop_keeping()
            # The token of a peer, and its expiry, stay with the worker that has judged it.
            can_move = kept and transport.can_move and record.token is None
            channel = self._channel_for(record, event) if can_move else None
            if channel is None:
                return False
            transport.hold()
            self._poller.conclude_soon(_Move(channel, transport, record, event, kept, self._send))
        record.engine.flow_state.work = 0  # the core stops here
        return True

    def _channel_for(self, record: ConnectionRecord, event: _Leading) -> Channel | None:
        """Return the channel to the worker that serves a connection from now on; None: this worker does."""
        if isinstance(event, ConnectionOpened):
            number = self._wanted(wanted(event.open))
        else:
            number = self._homes.of_attach(record, event)
        if number is None or number == self._worker.number:
            return None
        return self._channels.get(number)

    def _wanted(self, routers: Collection[str]) -> int | None:
        """Return the number of the first worker that runs, of those among some routers; None: none is."""
        workers = {worker_of(self._worker.name, each): each for each in range(1, self._worker.count + 1)}
        numbers = dict.fromkeys(workers[each] for each in routers if each in workers)  # a peer may repeat a name
        return next((each for each in numbers if each == self._worker.number or self._is_alive(each)), None)

    def _is_alive(self, number: int) -> bool:
        """Return whether a worker takes connections up; open a channel to it if there is none."""
        if number in self._channels:
            return not self._hangs(self._channels[number])
        if self._is_stopped:
            return False
        try:
            channel = Channel.to(
                hand_over_path(self._worker.folder, number), self._poller, self._answered, self._channel_ended
            )
        except OSError:
            return False
        self._channels[number] = channel
        self._under_way[channel] = {}
        self._waiting[channel] = deque()
        return True

    def _hangs(self, channel: Channel) -> bool:
        """Return whether a worker has not answered in time: it gets no other connection before it has."""
        return any(move.is_cut for move in islice(self._under_way[channel].values(), 1))

    def _send(self, move: _Move) -> bool:
        """Send a connection to another worker, have it wait for that, or go on here. Returns: False: it waits."""
        channel = move.channel
        may_send = channel.is_open and not self._hangs(channel)
        if may_send and len(self._under_way[channel]) >= UNDER_WAY:
            self._waiting[channel].append(move)
            return False
        self._number = number = (self._number + 1) % 2**32
        packet = move.packet(number) if may_send else None
        if packet is None:
            move.transport.go_on(move.event)
            return True
        try:
            with move.transport.offered() as descriptor:
                channel.send(packet, descriptor)
        except OSError as error:
            if isinstance(error, BlockingIOError) and self._under_way[channel]:  # each answer makes room
                self._waiting[channel].appendleft(move)
                return False
            move.transport.go_on(move.event)
            return True
        move.until = self._context.now + ANSWER_TIME
        self._under_way[channel][number] = move
        self._schedule()
        return True

    def _answered(self, channel: Channel, packet: bytes, descriptors: list[int]) -> None:
        close_all(descriptors)
        kind, number, _, _ = _HEAD.unpack_from(packet)
        move = self._under_way[channel].pop(number, None)
        if move is not None and not move.is_cut:
            self._conclude(channel, move, kind)
        waiting = self._waiting[channel]
        while waiting and len(self._under_way[channel]) < UNDER_WAY:
            if not self._send(waiting.popleft()):
                break

    def _conclude(self, channel: Channel, move: _Move, kind: int) -> None:
        """Act on an answer."""
        if kind != TAKEN:
            move.transport.go_on(move.event)
            return
        worker = next(each for each, other in self._channels.items() if other is channel)
        record = move.record
        self._context.handed_over += 1
        log.info(
            "connection handed over",
            connection=record.number,
            peer=record.host,
            container=record.peer.container_id,
            to=worker_of(self._worker.name, worker),
        )
        if self._context.audit is not None:
            self._context.audit.of("connection handed over", record, to=worker_of(self._worker.name, worker))
        move.transport.let_go()

    def _channel_ended(self, channel: Channel) -> None:
        """Serve the connections that a worker has not taken up before its end."""
        self._channels = {number: each for number, each in self._channels.items() if each is not channel}
        for move in (*self._under_way.pop(channel).values(), *self._waiting.pop(channel)):
            if not move.is_cut:
                move.transport.go_on(move.event)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._context.schedule(self._context.now + ANSWER_TIME / 2, self._cut_overdue)

    def _serve_waiting(self, channel: Channel) -> None:
        """Serve the connections here that wait for a worker which does not answer."""
        waiting = self._waiting[channel]
        while waiting:
            move = waiting.popleft()
            move.transport.go_on(move.event)

    def _cut_overdue(self) -> None:
        self._is_scheduled = False
        waiting = [each for moves in self._under_way.values() for each in moves.values() if not each.is_cut]
        for move in waiting:
            if move.until <= self._context.now:
                move.is_cut = True
                record = move.record
                log.warning("hand-over failed", connection=record.number, peer=record.host, reason="no answer")
                move.transport.cut()
                self._serve_waiting(move.channel)
        if waiting:
            self._schedule()

    # -------------------------------------------------------------------------------------------------------- taking up

    def _admit(self, connected: socket.socket) -> None:
        try:
            self._incoming.add(Channel(connected, self._poller, self._passed, self._incoming.discard))
        except OSError:  # no resources
            connected.close()

    def _passed(self, channel: Channel, packet: bytes, descriptors: list[int]) -> None:
        number, arrival = parsed(packet)
        is_taken = bool(descriptors) and self._has_room(arrival.terms.listener)
        try:
            channel.send(_HEAD.pack(TAKEN if is_taken else REFUSED, number, 0, 0))
        except BlockingIOError:  # the other worker learns nothing, and cuts the connection
            is_taken = False
        except OSError:
            pass  # the other worker is gone: the connection has nobody else
        if not is_taken:
            close_all(descriptors)
            return
        kind = BridgedStream if arrival.terms.bridged else TcpStream
        self._take_up(kind(socket.socket(fileno=descriptors[0])), arrival)
