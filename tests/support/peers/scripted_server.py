"""The far end of a client's connection. It answers what opens and closes; the test does the rest."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from trio.testing import wait_all_tasks_blocked

from amqpmesh.router.amqp.standard.definitions import Error, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
)
from amqpmesh.router.client.connect import connect
from tests.support.peers.library_client import URL, Roads
from tests.support.peers.scripted import WINDOW, Heard, begun, frame
from tests.support.peers.scripted_stream import AMQP, Peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.standard.delivery_states import DeliveryState
    from amqpmesh.router.amqp.standard.messaging import Source
    from amqpmesh.router.client.connect import Connection

P = TypeVar("P", bound=Performative)


class Far:
    """The far end of a link, on the client's own handle and channel."""

    def __init__(self, counterpart: Counterpart, attach: Attach, channel: int) -> None:
        self.attach = attach
        self.channel = channel
        self._counterpart = counterpart
        #: Deliveries that were begun on it, in either direction.
        self.begun = 0
        self._in_delivery = False
        #: How many deliveries the client lets us begin, all told.
        self.limit = 0
        #: The client has not detached; we have.
        self.is_attached = True
        self.is_detached = False

    @property
    def window(self) -> int:
        """Transfer frames that the session lets us send now."""
        session = self._counterpart.sessions[self.channel]
        return session.limit - session.went

    def count(self, transfer: Transfer) -> None:
        """Count a frame."""
        if not self._in_delivery:
            self.begun += 1
        self._in_delivery = transfer.more and not transfer.aborted

    async def flow(self, credit: int | None = None, *, window: int = WINDOW, **fields: Any) -> None:
        """Send a flow with the session's window, in frames, and the link's credit from here on."""
        session = self._counterpart.sessions[self.channel]
        standard = {"next_incoming_id": session.came, "next_outgoing_id": session.went, "outgoing_window": WINDOW}
        if credit is not None:
            standard |= {"handle": self.attach.handle, "delivery_count": self.begun, "link_credit": credit}
        await self._write(Flow(incoming_window=window, **{**standard, **fields}))

    async def send(self, *payloads: bytes, **fields: Any) -> int:
        """Send a delivery, or its frames but the last if `fields` says `more`. Returns: its id."""
        session = self._counterpart.sessions[self.channel]
        last = fields.pop("more", False)
        if not self._in_delivery:
            session.delivery_id += 1
            first = {"delivery_id": session.delivery_id, "delivery_tag": session.delivery_id.to_bytes(4, "big")}
            first["message_format"] = 0
            fields = {**first, **fields}
        for number, payload in enumerate(payloads, 1):
            more = last or number < len(payloads)
            transfer = Transfer(handle=self.attach.handle, more=more, **fields)
            fields = {key: value for key, value in fields.items() if key == "settled"}
            self.count(transfer)
            session.went += 1
            await self._counterpart.peer.write(frame(transfer, payload, channel=self.channel))
        return session.delivery_id

    async def dispose(
        self, state: DeliveryState | None, first: int = 0, last: int | None = None, *, settled: bool = True
    ) -> None:
        """Send a state of deliveries, by the client's ids where the client sends."""
        role = Role.RECEIVER if self.attach.role is Role.SENDER else Role.SENDER
        await self._write(Disposition(role=role, first=first, last=last, settled=settled, state=state))

    async def accept(self, first: int = 0, last: int | None = None) -> None:
        """Accept and settle."""
        await self.dispose(Accepted(), first, last)

    async def detach(self, error: Error | None = None, *, closed: bool = True) -> None:
        """Detach, or answer a detach."""
        self.is_detached = True
        await self._write(Detach(handle=self.attach.handle, closed=closed, error=error))

    async def end(self, error: Error | None = None) -> None:
        """End its session."""
        self._counterpart.sessions[self.channel].is_ended = True
        await self._write(End(error=error))

    async def _write(self, performative: Performative) -> None:
        await self._counterpart.peer.write(performative, channel=self.channel)


class FarSession:
    """The counters of a session."""

    def __init__(self, limit: int) -> None:
        #: Transfer frames of the client's, and of ours; how many of ours it takes, all told.
        self.came = self.went = 0
        self.limit = limit
        self.delivery_id = -1
        #: We have ended it: the client's `end` is the answer.
        self.is_ended = False


class Counterpart:
    """Serves one connection: `async with counterpart.connect() as connection`.

    It answers `open`, `begin`, `attach`, `detach`, `end` and `close` in kind, but for those kinds that are in `mute`.
    Every other frame is kept until `expect` asks for it.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        credit: int = 0,
        window: int = WINDOW,
        attach: dict[str, Any] | None = None,
        source: Source | None = None,
        refuse: Mapping[Role, Error | None] | None = None,
        **fields: Any,
    ) -> None:
        """Args: credit: that each sender of the client gets at once. window: frames of a session that may come.
        attach: fields of our answers to attaches; source: to those of receivers. refuse: attaches of these roles, and
        why. fields: of our `open`.
        """
        self._credit = credit
        self._window = window
        self._attach = attach or {}
        self._source = source
        #: Why attaches of these roles are refused.
        self.refuse = dict(refuse or {})
        self._open = fields
        self.roads = Roads(nursery)
        self.roads.lead_to(self.serve)
        self.peer: Peer
        #: Kinds of frames that are not answered, but kept like all others.
        self.mute: set[type] = set()
        #: The links, in the order in which they were attached.
        self.links: list[Far] = []
        self.sessions: dict[int, FarSession] = {}
        #: Of the frame that was expected last.
        self.payload = b""
        self.channel = 0
        self._by_handle: dict[tuple[int, int], Far] = {}
        self._put, self._frames = trio.open_memory_channel[Heard](math.inf)

    def connect(self, **settings: Any) -> Connection:
        """Return the client's connection, to be entered."""
        return connect(URL, **{"open_stream": self.roads.open, "mechanisms": (), "idle_time_out": None, **settings})

    async def expect(self, kind: type[P]) -> P:
        """Return the next frame that was not answered, and assert its kind. Flows that nobody expects are skipped."""
        while True:
            self.channel, performative, self.payload = await self._frames.receive()
            if isinstance(performative, kind):
                return performative
            assert isinstance(performative, Flow), f"{performative} came, {kind.__name__} should have"

    async def rest(self) -> list[Performative]:
        """Return all frames that were not answered, but for flows, once no task has more to do."""
        await wait_all_tasks_blocked()
        found: list[Performative] = []
        while True:
            try:
                performative = self._frames.receive_nowait().performative
            except trio.WouldBlock:
                return found
            if not isinstance(performative, Flow):
                found.append(performative)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve the stream to its end."""
        self.peer = Peer(stream)
        assert await self.peer.expect_header() == AMQP
        await self.peer.write(AMQP)
        try:
            while (found := await self.peer.next_frame()) is not None:
                performative, payload = found
                await self._take(performative, payload)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has gone, or a test has cut it off
        await stream.aclose()

    async def _take(self, performative: Performative, payload: bytes) -> None:
        channel = self.peer.channel
        if isinstance(performative, Transfer):
            self.sessions[channel].came += 1
            self._by_handle[channel, performative.handle].count(performative)
        elif isinstance(performative, Flow):
            self._flowed(performative, channel)
        elif isinstance(performative, Detach) and Attach not in self.mute:
            far = self._by_handle[channel, performative.handle]
            is_answer, far.is_detached, far.is_attached = far.is_detached, True, False
            if is_answer:
                return
        elif isinstance(performative, End) and self.sessions[channel].is_ended:
            return
        elif isinstance(performative, Attach) and Attach not in self.mute:
            await self._attached(performative, channel)
            return
        answer: Performative | None = None
        if isinstance(performative, Open):
            answer = Open(container_id="host", **self._open)
        elif isinstance(performative, Begin):
            self.sessions[channel] = FarSession(performative.incoming_window)
            answer = begun(channel, incoming_window=self._window)
        elif isinstance(performative, Detach):
            answer = Detach(handle=performative.handle, closed=performative.closed)
        elif isinstance(performative, End | Close):
            answer = type(performative)()
        if answer is None or type(performative) in self.mute:
            self._put.send_nowait(Heard(channel, performative, payload))
        else:
            await self.peer.write(answer, channel=channel)

    def _flowed(self, flow: Flow, channel: int) -> None:
        self.sessions[channel].limit = (flow.next_incoming_id or 0) + flow.incoming_window
        if flow.handle is not None and (channel, flow.handle) in self._by_handle:
            far = self._by_handle[channel, flow.handle]
            if far.attach.role is Role.RECEIVER:
                far.limit = (flow.delivery_count or 0) + (flow.link_credit or 0)

    async def _attached(self, attach: Attach, channel: int) -> None:
        far = Far(self, attach, channel)
        self.links.append(far)
        self._by_handle[channel, attach.handle] = far
        role = Role.SENDER if attach.role is Role.RECEIVER else Role.RECEIVER
        standard = {
            "source": attach.source,
            "target": attach.target,
            "snd_settle_mode": attach.snd_settle_mode,
            "rcv_settle_mode": attach.rcv_settle_mode,
            "initial_delivery_count": 0 if role is Role.SENDER else None,
        }
        if attach.source is not None and attach.source.dynamic:
            standard["source"] = replace(attach.source, address=f"dynamic-{attach.handle}")
        if role is Role.SENDER and self._source is not None:
            standard["source"] = self._source
        if attach.role in self.refuse:
            standard["source" if role is Role.SENDER else "target"] = None
        answer = Attach(name=attach.name, handle=attach.handle, role=role, **{**standard, **self._attach})
        await self.peer.write(answer, channel=channel)
        if attach.role in self.refuse:
            await far.detach(self.refuse[attach.role])
            return
        if role is Role.RECEIVER and self._credit:
            await far.flow(self._credit, window=self._window)
