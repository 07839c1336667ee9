"""The kernel's state of a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqpmesh.router.kernel.frame_writing import _OUTGOING_WINDOW, write_dispositions, write_flow
from amqpmesh.router.kernel.uncompiled import copy, grow

if TYPE_CHECKING:
    from amqpmesh.router.kernel.client_batch import ReceivedBatch
    from amqpmesh.router.kernel.dispositions import PendingDisposition
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession


class KernelConnection:
    """The state of a connection endpoint that changes with each transfer and disposition."""

    __slots__ = (
        "backlog",
        "batch",
        "compact",
        "container",
        "is_open",
        "max_frame_size",
        "narrow",
        "number",
        "on_wake",
        "out",
        "passed",
        "patient",
        "pending_disposition",
        "remote_max_frame_size",
        "router",
        "sending",
        "sessions",
        "slow_until",
        "stirred",
        "toward",
        "toward_since",
        "waited",
        "waits_for",
        "waits_from",
        "waits_on",
        "waits_since",
        "way",
        "way_count",
        "woken",
        "work",
    )

    def __init__(self) -> None:
        #: The router that relays on it; None: it is the connection of a client.
        self.router: KernelRouter | None = None
        #: The peer's container-id, if it is a router of the same mesh: no delivery returns to it. It is interned,
        #: because it is compared for every delivery.
        self.container: str | None = None
        #: Both sides have opened the connection, and neither has closed it.
        self.is_open = False
        #: Bytes to be sent, in order; `take` replaces the object.
        self.out = bytearray()
        #: Sessions that the next `flush` writes for.
        self.stirred: list[KernelSession] = []
        #: Called once when there is output, until it is taken. `woken`: it was called.
        self.on_wake: Callable[[], None] | None = None
        self.woken = False
        #: Octets that were taken, and are not written to the transport yet. `backlog`: no delivery is written while
        #: more octets wait, those of `out` included.
        self.sending = 0
        self.backlog = 0
        #: The peer does not need fields that have their default.
        self.compact = False
        #: Octets of the largest frame that we take; `remote_max_frame_size`: that the peer takes.
        self.max_frame_size = 512
        self.remote_max_frame_size = 512
        #: Frames that a session announces at once for a large delivery, while small deliveries come to this router.
        self.narrow = _OUTGOING_WINDOW
        #: Sessions that both sides have begun and not ended, by the peer's channel.
        self.sessions: dict[int, KernelSession] = {}
        #: The rest of a disposition that `relay_frames` has read: deliveries that need a decision.
        self.pending_disposition: PendingDisposition | None = None
        #: Deliveries that may be handled before it is the turn of other connections.
        self.work = 0
        #: Of a client: whole deliveries on links with the fast path; None: no link has it.
        self.batch: ReceivedBatch | None = None
        #: The transport supports waiting: input stays unread until the output of `waits_for` is written.
        self.patient = False
        self.waits_for: KernelConnection | None = None
        #: The route that the input waits for, if it waits for no more than that: see `_wait_in_line`.
        self.waits_on: FastRoute | None = None
        #: The time since which the same frame waits, seconds; negative: none does. `waited`: seconds that earlier
        #: frames have waited, less the time that was made up for. See `PATIENCE`.
        self.waits_since = -1.0
        self.waited = 0.0
        #: The time since which it waits in all, as far as others have gone on meanwhile, seconds. `passed`: the next
        #: transfer-id of the session that it waits for; -1: it waits for none.
        self.waits_from = 0.0
        self.passed = -1
        #: The connection's number in its router. `toward`: the number of the connection by which large deliveries
        #: leave; `toward_since`: since this time, seconds.
        self.number = 0
        self.toward = -1
        self.toward_since = 0.0
        #: The route of the delivery that came last, and how many came for it, one after another.
        self.way: FastRoute | None = None
        self.way_count = 0
        #: No input waits for this output until this time, seconds: the last wait was too long.
        self.slow_until = 0.0

    def append(self, channel: int, body: bytes) -> None:
        """Append an AMQP frame to the output."""
        size = 8 + len(body)
        out = self.out
        at = grow(out, size)
        out[at] = size >> 24 & 255
        out[at + 1] = size >> 16 & 255
        out[at + 2] = size >> 8 & 255
        out[at + 3] = size & 255
        out[at + 4] = 2
        out[at + 5] = 0
        out[at + 6] = channel >> 8
        out[at + 7] = channel & 255
        copy(out, at + 8, body, 0, len(body))
        self.wake()

    def wake(self) -> None:
        """Note that there is output."""
        if not self.woken and self.on_wake is not None:
            self.woken = True
            self.on_wake()

    def flush(self) -> None:
        """Write the dispositions and flows that are due. If a session has more to write, its owner writes it."""
        stirred = self.stirred
        for session in stirred:
            session.woken = False
            if session.grants and self.is_open and session.channel != -1 and not session.flows:
                write_grants(session)
            if not self.is_open or session.channel == -1 or session.flows or not write_dispositions(session):
                if session.owner is not None:  # else the session is over, and its engine has let it go
                    session.owner.flush()
            elif session.flow_due:
                write_flow(session, None, False)
        stirred.clear()

    def take(self) -> bytearray:
        """Flush, then return all output, which belongs to the caller."""
        self.flush()
        out = self.out
        self.woken = False
        if out:
            self.out = bytearray()
        return out


def write_grants(session: KernelSession) -> None:
    """Write the flows by which the kernel has granted credit to senders."""
    grants = session.grants
    if grants is not None:
        for link in grants:
            link.flow_due = False
            if link.handle != -1:
                write_flow(session, link, False)
        grants.clear()
