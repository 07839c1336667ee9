"""State of a connection that changes with each transfer or disposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqpmesh.router.kernel.frame_writing import _OUTGOING_WINDOW, write_dispositions, write_flow

if TYPE_CHECKING:
    from amqpmesh.router.kernel.client_batch import ReceivedBatch
    from amqpmesh.router.kernel.dispositions import PendingDisposition
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession


class KernelConnection:
    """A connection endpoint: its state that changes with each transfer and disposition."""

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
        "waits_since",
        "woken",
        "work",
    )

    def __init__(self) -> None:
        #: Whose relays it carries; None: it is a client's own.
        self.router: KernelRouter | None = None
        #: The peer's container-id, if it is a router of the same mesh: nothing goes back to it. Interned, for it is
        #: compared with every delivery.
        self.container: str | None = None
        #: Both sides have opened it, and none has closed it.
        self.is_open = False
        #: Bytes to be sent, in order; others once `take` has taken these.
        self.out = bytearray()
        #: Sessions that have something to write, with the next `flush`.
        self.stirred: list[KernelSession] = []
        #: Called when there is something to be sent, once until it is taken; and whether it was.
        self.on_wake: Callable[[], None] | None = None
        self.woken = False
        #: Octets that were taken to be sent and are not written yet; and how many may wait in all before no delivery
        #: is written.
        self.sending = 0
        self.backlog = 0
        #: The peer needs no field that has its default.
        self.compact = False
        #: Octets of a frame that we take, and that the peer does.
        self.max_frame_size = 512
        self.remote_max_frame_size = 512
        #: Frames that a session announces at once for what is large, while something small comes to this router.
        self.narrow = _OUTGOING_WINDOW
        #: Sessions that both sides have begun and not ended, by the channel that the peer sends on.
        self.sessions: dict[int, KernelSession] = {}
        #: The rest of a disposition that `relay_frames` has read: what it says of deliveries that need a decision.
        self.pending_disposition: PendingDisposition | None = None
        #: Deliveries that may be looked at before others come first.
        self.work = 0
        #: Of a client: what came whole for links with the fast path; None: there are none.
        self.batch: ReceivedBatch | None = None
        #: Who tells it what came waits where `relay_frames` does, until that output is written: `waits_for`.
        self.patient = False
        self.waits_for: KernelConnection | None = None
        #: Since when the same frame waits, seconds; negative: none does. And how long others have, less what was made
        #: up for. See `PATIENCE`.
        self.waits_since = -1.0
        self.waited = 0.0
        #: Its own, among those of a router; and of the one by which what is large leaves, since when, seconds.
        self.number = 0
        self.toward = -1
        self.toward_since = 0.0
        #: Nobody waits for its output until then, seconds: it has taken too long before.
        self.slow_until = 0.0

    def wake(self) -> None:
        """There is something to be sent."""
        if not self.woken and self.on_wake is not None:
            self.woken = True
            self.on_wake()

    def flush(self) -> None:
        """Write what sessions have gathered. Those that have more than dispositions are asked themselves."""
        stirred = self.stirred
        for session in stirred:
            session.woken = False
            if not self.is_open or session.channel == -1 or session.flows or not write_dispositions(session):
                assert session.owner is not None, "only an engine's session has more to write"
                session.owner.flush()
            elif session.flow_due:
                write_flow(session, None, False)
        stirred.clear()

    def take(self) -> bytearray:
        """All that is to be sent now, after a flush; it belongs to the caller."""
        self.flush()
        out = self.out
        self.woken = False
        if out:
            self.out = bytearray()
        return out
