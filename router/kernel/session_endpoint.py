"""State of a session that changes with each transfer or disposition (§2.5.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from amqpmesh.router.kernel.connection_endpoint import KernelConnection
from amqpmesh.router.kernel.encoded_states import is_terminal
from amqpmesh.router.kernel.frame_fields import DispositionRun
from amqpmesh.router.kernel.ledger import Ledger
from amqpmesh.router.kernel.router_state import _BESIDE
from amqpmesh.router.kernel.serial import _MASK, serial_add, serial_distance

if TYPE_CHECKING:
    from amqpmesh.router.kernel.ledger import Delivery
    from amqpmesh.router.kernel.link_endpoint import KernelLink


class SessionOwner(Protocol):
    """The engine's session endpoint."""

    def flush(self) -> None:
        """Write what has gathered: states of deliveries, then flows."""


class KernelSession:
    """A session endpoint: its state that changes with each transfer and disposition (§2.5.6).

    `window_size` is how many transfer frames may be here unreleased: a frame is *held* from its arrival until
    `release`, so what the peer can make us buffer is window_size frames.
    """

    __slots__ = (
        "begun",
        "channel",
        "displaced",
        "dispositions",
        "flow_due",
        "flows",
        "held",
        "in_full",
        "in_parts",
        "incoming",
        "incoming_limit",
        "initial_outgoing_id",
        "links",
        "next_delivery_id",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing",
        "owner",
        "progress",
        "remote_incoming_window",
        "remote_outgoing_window",
        "small",
        "widest",
        "window_size",
        "wire",
        "woken",
    )

    def __init__(
        self,
        window_size: int,
        initial_outgoing_id: int = 0,
        initial_delivery_id: int = 0,
        wire: KernelConnection | None = None,
        owner: SessionOwner | None = None,
    ) -> None:
        #: The connection's part; and the engine's session endpoint.
        self.wire = wire if wire is not None else KernelConnection()
        self.owner = owner
        #: Links of which something may be handled without asking, by the peer's handle (`enable_fast_path`).
        self.links: dict[int, KernelLink] = {}
        #: It will be flushed.
        self.woken = False
        #: The outgoing channel; -1 while unmapped.
        self.channel = -1
        self.window_size = window_size
        #: What that becomes in steps, as long as what comes is small and leaves at once; and how many such frames came
        #: in a row.
        self.widest = window_size
        self.small = 0
        self.initial_outgoing_id = initial_outgoing_id
        self.next_outgoing_id = initial_outgoing_id
        self.next_incoming_id = 0
        #: The first transfer-id that the peer may not use, by what we last announced.
        self.incoming_limit = window_size
        self.held = 0
        #: What began last comes in several frames.
        self.in_parts = False
        #: The peer needs all fields of a `transfer`, trailing nulls included.
        self.in_full = False
        #: The peer has begun it, too: it is known where its transfers begin.
        self.begun = False
        self.remote_incoming_window = 0
        self.remote_outgoing_window = 0
        self.next_delivery_id = initial_delivery_id
        self.incoming = Ledger()
        self.outgoing = Ledger()
        self.dispositions: list[DispositionRun] = []
        #: Deliveries that came by links that are over, and whose ids others have now.
        self.displaced: list[Delivery] = []
        #: The latest state that is no outcome, by (role, delivery-id): only the last one of a delivery matters.
        self.progress: dict[tuple[bool, int], bytes] = {}
        #: Our window should be announced with the next flush, and flows of links are to be written.
        self.flow_due = False
        self.flows: list[object] = []

    def compact(self) -> None:
        """Let go of the room that deliveries had."""
        self.incoming.compact()
        self.outgoing.compact()

    @property
    def incoming_window(self) -> int:
        """Return how many more transfer frames may come before some are released."""
        return self.window_size - self.held

    def width(self) -> int:
        """Return how many frames are announced at once, at most.

        A sender of a large message in short pieces leaves time between them for small messages.
        """
        wire = self.wire
        if self.in_parts and wire.narrow < self.window_size:
            router = wire.router
            if router is not None and router.now - router.small_at < _BESIDE:
                return wire.narrow
        return self.window_size

    def announce(self) -> int:
        """The window to write into a `begin` or `flow` now; from here on it is what the peer may rely on."""
        width = self.width()
        window = min(width, self.window_size - self.held)
        # It never falls: what a frame takes from the window it adds to next_incoming_id.
        if width < self.window_size:
            window = max(window, serial_distance(self.next_incoming_id, self.incoming_limit))
        self.incoming_limit = serial_add(self.next_incoming_id, window)
        self.flow_due = False
        return window

    def release(self, frames: int) -> None:
        """The bytes of `frames` transfer frames have left, or of one at once (0): the window may grow again."""
        self.held -= frames
        if frames:
            self.small = 0
        elif self.small >= self.window_size and self.window_size < self.widest and not self.held:
            self.window_size = min(2 * self.window_size, self.widest)
        self.look()

    def look(self) -> None:
        """See whether the peer is to be told of a wider window: once half of it has gathered, or at once when the peer
        stands still.
        """
        if self.flow_due:
            return
        # How much wider the window is than the peer may know; it has become narrower if that is less than nothing.
        width = self.width()
        limit = (self.next_incoming_id + min(width, self.window_size - self.held)) & _MASK
        gathered = serial_distance(self.incoming_limit, limit)
        if gathered * 2 >= width or (gathered > 0 and self.next_incoming_id == self.incoming_limit):
            self.flow_due = True
            self.stir()

    def stir(self) -> None:
        """Something of it is to be flushed."""
        if not self.woken:
            self.woken = True
            self.wire.stirred.append(self)
            self.wire.wake()

    def dispose(self, receiver: bool, delivery_id: int, settled: bool, state: bytes | None) -> None:
        """Queue a disposition, joined to the one before where they say the same of consecutive ids (§2.7.6)."""
        runs = self.dispositions
        if not settled and state is not None and not is_terminal(state):
            self.progress[receiver, delivery_id] = state
            self.stir()
            return
        if runs:
            run = runs[-1]
            if (
                run.receiver == receiver
                and run.settled == settled
                and (run.last + 1) & _MASK == delivery_id
                and (run.state is state or run.state == state)
            ):
                run.last = delivery_id
                return
        runs.append(DispositionRun(receiver, delivery_id, settled, state))
        self.stir()
