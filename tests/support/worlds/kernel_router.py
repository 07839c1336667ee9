"""A router of either kernel alone: a producer's connection, a consumer's, and links that are open."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from amqpmesh.router.kernel import ACCEPTED_STATE, FAILED_STATE, RELEASED_STATE
from tests.support.worlds.kernels import comparable
from tests.support.worlds.side_by_side import disposition, transfer

M: Final = 2**32
CREDIT: Final = 100

BODIES: Final = (
    b"\x00\x53\x77\xa1\x04body",
    b"\x00\x53\x70\x45\x00\x53\x75\xa0\x01x",
    b"\x00\x53\x70\xc0\x08\x03\x40\x50\x04\x70\x00\x00\x00\x64",
    b"\x00\x53\x70\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x41\x40",
    b"\x00\x53\x71\xc1\x04\x02\xa3\x01k\x41\x00\x53\x72\xc1\x01\x00",
    b"\x00\x53\x71\xc1\x14\x02\xa3\x0dx-opt-mesh-to\xa1\x01k",
    b"\x00\x53",
    b"",
)


_OF_LINKS: Final = (
    *("delivery_count", "link_credit", "deliveries", "octets", "presettled", "accepted", "released", "modified"),
    *("outstanding", "last_tag", "turn", "relayed", "credit_slack", "dirty"),
)
_OF_SESSIONS: Final = (
    *("next_incoming_id", "held", "next_outgoing_id", "next_delivery_id", "remote_incoming_window", "flow_due"),
)


class Router:
    """A router that relays from one sender on `source` to `sink`."""

    def __init__(
        self,
        kernel: Any,
        *,
        first: int = 0,
        second: bool = False,
        consumers: int = 1,
        room: int = 400,
        lanes: str = "",
    ) -> None:
        """Args:
        kernel: the module. first: of transfer-ids and delivery-ids. room: octets of a frame's payload.
        lanes: "in", "out" or both: which links are lanes; those that lead out have one more, for what is large.
        """
        self.flow = kernel.KernelRouter()
        self.flow.key_prefix = b"prefix"
        self.source, self.sink = kernel.KernelConnection(), kernel.KernelConnection()
        for wire in (self.source, self.sink):
            wire.router = self.flow
            wire.backlog = 2**20
            wire.max_frame_size = wire.remote_max_frame_size = 2**20
            wire.work = 1000
        if lanes:
            self.source.container, self.sink.container = "B", "C"
        self.source_session = self._session(kernel, self.source, first)
        self.sink_session = self._session(kernel, self.sink, first)
        self.incoming = kernel.KernelLink(self.source_session, False, None, {})
        self.incoming.link_credit = CREDIT
        self.incoming.granted_limit = CREDIT
        self.incoming.second = second
        self.incoming.lane = "in" in lanes
        self.incoming.max_outstanding = 2**20
        self.outgoing = []
        for handle in range(consumers):
            link = kernel.KernelLink(self.sink_session, True, None, {})
            link.handle = handle
            link.link_credit = CREDIT
            link.max_outstanding = CREDIT
            link.lane = "out" in lanes
            self.outgoing.append(link)
        self.bulk = kernel.KernelLink(self.sink_session, True, None, {})
        self.bulk.handle = consumers
        self.bulk.link_credit = self.bulk.max_outstanding = CREDIT
        self.bulk.lane = True
        self.bulk.part = 4
        self.fast_route = kernel.FastRoute()
        self.fast_route.generation = self.flow.generation
        self.fast_route.order = kernel.FIRST if "out" in lanes else kernel.LEAST
        self.fast_route.links = list(self.outgoing)
        if "out" in lanes:
            self.outgoing.append(self.bulk)
            self.fast_route.bulk = [self.bulk]
        self.fast_route.room = room
        self.fast_route.hops = 3
        kernel.enable_fast_path(self.incoming, 0, self.fast_route)
        self._kernel = kernel

    @staticmethod
    def _session(kernel: Any, wire: Any, first: int) -> Any:
        session = kernel.KernelSession(1000, first, first, wire)
        session.channel = 0
        session.next_incoming_id = first
        session.incoming_limit = (first + 1000) % M
        session.remote_incoming_window = 1000
        wire.sessions[0] = session
        return session

    def relay(self, data: bytes) -> None:
        """Relay frames that come from the producer."""
        assert self._kernel.relay_frames(self.source, data, 0, len(data)) == len(data)

    def hear(self, data: bytes) -> None:
        """Pass on frames that come from the consumer."""
        assert self._kernel.relay_frames(self.sink, data, 0, len(data)) == len(data)

    @property
    def is_empty(self) -> bool:
        """True if no delivery has left anything behind."""
        ledgers = [self.source_session.incoming.deliveries, self.sink_session.outgoing.deliveries]
        return (
            not any(ledgers)
            and not self.incoming.unsettled
            and not any(each.lane_to_lane for each in (*self.outgoing, self.bulk))
            and self.flow.relays == self.incoming.outstanding == sum(each.outstanding for each in self.outgoing) == 0
        )

    def state(self) -> object:
        """Return all that a frame may change."""
        said = [
            (each.first, each.last, each.receiver, each.settled, each.state)
            for session in (self.source_session, self.sink_session)
            for each in session.dispositions
        ]
        links = [
            [(name, getattr(link, name)) for name in _OF_LINKS]
            + [(name, getattr(link, name) is None) for name in ("current", "relay", "leg")]
            for link in (self.incoming, *self.outgoing)
        ]
        sessions = [
            [(name, getattr(session, name)) for name in _OF_SESSIONS]
            for session in (self.source_session, self.sink_session)
        ]
        return comparable(
            [
                said,
                links,
                sessions,
                self.source.out,
                self.sink.out,
                self.flow.relays,
                self.flow.needs_update,
                self.fast_route.borrowed,
                list(self.source_session.incoming.deliveries),
                list(self.sink_session.outgoing.deliveries),
                list(self.incoming.unsettled),
                [list(each.lane_to_lane) for each in (*self.outgoing, self.bulk)],
                [type(each).__name__ for each in self.sink_session.outgoing.deliveries.values()],
            ]
        )


#: Some of each kind.
FRAMES: Final = (
    transfer(0, b"t", BODIES[0]),
    transfer(1, b"u", BODIES[1], style="full"),
    transfer(2, b"v", BODIES[2], style="wide", settled=1),
    disposition(0, 2, ACCEPTED_STATE),
    disposition(0, 0, RELEASED_STATE, style="wide"),
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a transfer or a disposition, encoded as peers do."""
    style = draw(st.sampled_from(["compact", "full", "wide"]))
    number = draw(st.sampled_from([0, 1, 2, 3, M - 1]))
    if draw(st.booleans()):
        return transfer(
            number,
            draw(st.sampled_from([b"%d" % number, b"", b"t" * 32, None])),
            draw(st.sampled_from(BODIES)),
            handle=draw(st.sampled_from([0, 0, 0, 1])),
            settled=draw(st.sampled_from([-1, -1, 0, 1])),
            more=draw(st.sampled_from([False] * 5 + [True])),
            second=draw(st.sampled_from([-1, -1, 0, 1])),
            message_format=draw(st.sampled_from([0, 0, -1, 1])),
            style=style,
        )
    return disposition(
        number,
        (number + draw(st.sampled_from([0, 0, 1, 3, -1]))) % M,
        draw(st.sampled_from([ACCEPTED_STATE, RELEASED_STATE, FAILED_STATE, None])),
        receiver=draw(st.booleans()),
        settled=draw(st.booleans()),
        style=style,
    )
