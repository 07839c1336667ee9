"""The kernel's state of a session (§2.5.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from amqpmesh.router.kernel.connection_endpoint import KernelConnection
from amqpmesh.router.kernel.encoded_states import is_terminal
from amqpmesh.router.kernel.frame_fields import DispositionRun
from amqpmesh.router.kernel.ledger import Ledger
from amqpmesh.router.kernel.router_state import _BESIDE
from amqpmesh.router.kernel.serial import _MASK, serial_add, serial_distance

if TYPE_CHECKING:
    from amqpmesh.router.kernel.ledger import Delivery
    from amqpmesh.router.kernel.link_endpoint import KernelLink

#: Octets of a window of larger frames that may still be widened. A window of full frames has as many.
_WIDE: Final = 2**22
#: How many times as wide a window that narrows again may become.
_WIDENING: Final = 8


class SessionOwner(Protocol):
    """The engine's session endpoint."""

    def flush(self) -> None:
        """Write the dispositions, then the flows, that are due."""


class KernelSession:
    """The state of a session endpoint that changes with each transfer and disposition (§2.5.6).

    A transfer frame is *held* from its arrival until `release`. At most `window_size` frames may be held: this bounds
    the memory that a peer can make us use.
    """

    __slots__ = (
        "begun",
        "channel",
        "displaced",
        "dispositions",
        "flow_due",
        "flows",
        "grants",
        "held",
        "in_full",
        "in_parts",
        "incoming",
        "incoming_limit",
        "initial_outgoing_id",
        "links",
        "narrows",
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
        "withheld",
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
        #: The connection; `owner`: the engine's session endpoint.
        self.wire = wire if wire is not None else KernelConnection()
        self.owner = owner
        #: Links with the fast path, by the peer's handle (`enable_fast_path`).
        self.links: dict[int, KernelLink] = {}
        #: It is in the connection's list of sessions to flush.
        self.woken = False
        #: The outgoing channel; -1 while unmapped.
        self.channel = -1
        self.window_size = window_size
        #: The size that the window may reach in steps, while frames leave at once and a window of them has at most
        #: `_WIDE` octets. `small`: the number of such frames in a row.
        self.widest = window_size
        self.small = 0
        #: The window becomes as narrow as before with each delivery of several frames (`let_widen`).
        self.narrows = False
        self.initial_outgoing_id = initial_outgoing_id
        self.next_outgoing_id = initial_outgoing_id
        self.next_incoming_id = 0
        #: The first transfer-id beyond the window that we last announced.
        self.incoming_limit = window_size
        self.held = 0
        #: The part of `held` that rates of links withhold.
        self.withheld = 0
        #: The last delivery that began has several frames.
        self.in_parts = False
        #: The peer needs all fields of a `transfer`, trailing nulls included.
        self.in_full = False
        #: The peer has begun the session, too: its first transfer-id is known.
        self.begun = False
        self.remote_incoming_window = 0
        self.remote_outgoing_window = 0
        self.next_delivery_id = initial_delivery_id
        self.incoming = Ledger()
        self.outgoing = Ledger()
        self.dispositions: list[DispositionRun] = []
        #: Deliveries of ended links whose ids later deliveries have.
        self.displaced: list[Delivery] = []
        #: Non-terminal states to write, by (we are the receiver, delivery-id): only the last one of a delivery counts.
        self.progress: dict[tuple[bool, int], bytes] = {}
        #: The next flush announces our window. `flows`: links of the engine whose flows it writes. `grants`: links to
        #: whose senders the kernel has granted credit; None: there was none yet.
        self.flow_due = False
        self.flows: list[object] = []
        self.grants: list[KernelLink] | None = None

    def compact(self) -> None:
        """Free the memory that deliveries have left in the ledgers."""
        self.incoming.compact()
        self.outgoing.compact()

    @property
    def incoming_window(self) -> int:
        """The transfer frames that may come before any is released."""
        return max(0, self.window_size - self.held)

    def width(self) -> int:
        """Return the most frames that are announced at once.

        They are fewer while the peer sends a large message and small messages come to the router: the pauses between
        short pieces of the large message leave time for the small ones.
        """
        wire = self.wire
        if self.in_parts and wire.narrow < self.window_size:
            router = wire.router
            if router is not None and router.now - router.small_at < _BESIDE:
                return wire.narrow
        return self.window_size

    def let_widen(self) -> None:
        """Let the window become `_WIDENING` times as wide while deliveries are small, and narrow again for others."""
        self.widest = _WIDENING * self.window_size
        self.narrows = True

    def begin_parts(self) -> None:
        """Note that a delivery of several frames has begun, whose frames may stay here."""
        self.in_parts = True
        if self.narrows:
            self.small = 0
            self.window_size = self.widest // _WIDENING

    def announce(self) -> int:
        """Return the window to write into a `begin` or `flow` now. The peer may rely on it from now on."""
        width = self.width()
        window = min(width, self.window_size - self.held)
        # The announced limit never falls: a frame takes from the window what it adds to next_incoming_id, or more.
        if width < self.window_size or self.narrows or self.withheld:
            window = max(window, serial_distance(self.next_incoming_id, self.incoming_limit))
        self.incoming_limit = serial_add(self.next_incoming_id, window)
        self.flow_due = False
        return window

    def release(self, frames: int) -> None:
        """Release `frames` held frames; 0: one that left at once, and was counted. The window may grow again."""
        self.held -= frames
        if frames:
            self.small = 0
        elif self.small >= self.window_size and self.window_size < self.widest and not self.held:
            self.window_size = min(2 * self.window_size, self.widest)
        self.look()

    def count_large(self, size: int) -> None:
        """Count a frame of 4 KiB or more that leaves at once. Args: size: octets of its payload.

        A window of few octets is less than what may wait on the way to a peer that reads slowly. Each flow that opens
        the window comes behind that: a peer with much to receive could send little.
        """
        self.small = self.small + 1 if size <= _WIDE // (2 * self.window_size) else 0

    def pass_on(self, size: int) -> None:
        """Release a held frame, of a delivery of several, that leaves at once. Args: size: octets of its payload."""
        self.held -= 1
        self.count_large(size)
        self.release(0)

    def look(self) -> None:
        """Have the window announced if it has grown by half its size, or if the peer can send nothing."""
        if self.flow_due:
            return
        # The frames by which the window is wider than announced; negative: it has become narrower.
        width = self.width()
        limit = (self.next_incoming_id + min(width, self.window_size - self.held)) & _MASK
        gathered = serial_distance(self.incoming_limit, limit)
        if gathered * 2 >= width or (gathered > 0 and self.next_incoming_id == self.incoming_limit):
            self.flow_due = True
            self.stir()

    def stir(self) -> None:
        """Have the connection flush this session."""
        if not self.woken:
            self.woken = True
            self.wire.stirred.append(self)
            self.wire.wake()

    def dispose(self, receiver: bool, delivery_id: int, settled: bool, state: bytes | None) -> None:
        """Queue a disposition; join it to the last one if the ids are consecutive and all else is equal (§2.7.6)."""
        run = self.dispositions[-1] if self.dispositions else None
        if not settled and state is not None and not is_terminal(state):
            self.progress[receiver, delivery_id] = state
            self.stir()
        elif (
            run is not None
            and run.receiver == receiver
            and run.settled == settled
            and (run.last + 1) & _MASK == delivery_id
            and (run.state is state or run.state == state)
        ):
            run.last = delivery_id
        else:
            self.dispositions.append(DispositionRun(receiver, delivery_id, settled, state))
            self.stir()
