"""`BatchLink`: receives whole deliveries in batches, undecoded, and decides them in batches."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router import kernel
from amqpmesh.router.amqp.link import FORGIVEN, MAX_CREDIT
from amqpmesh.router.amqp.link import Receiver as EngineReceiver
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source
from amqpmesh.router.client.links.arguments import whole
from amqpmesh.router.client.links.attach_options import ReceiverOptions
from amqpmesh.router.client.links.incoming import WindowShare
from amqpmesh.router.client.links.receiver_link import ANSWER_TIME
from amqpmesh.router.client.links.redirected import RedirectedLink, at_redirect
from amqpmesh.router.endpoint_setup import REDIRECT
from amqpmesh.router.kernel import RELEASED_STATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.amqp.errors import AmqpMeshError
    from amqpmesh.router.amqp.events import DeliveriesGathered, TransferReceived
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.links.client_connection import ClientConnection
    from amqpmesh.router.client.links.link_manager import LinkManager

STEP: Final = 2048
"""The most deliveries on their way at once, however much credit there is in all.

A peer has to hold, and look again at, all that it cannot send at once. This many small messages take a hundredth of a
second.
"""

WINDOW: Final = 2 * STEP
"""The most transfer frames that the peer may send before it learns that some were taken (§2.5.6).

As many frames may still arrive when `memory` is full. So a link with little memory has a smaller window: as many frames
of the largest size as its memory holds, but not less than `LEAST_WINDOW`.
"""

LEAST_WINDOW: Final = 64


@dataclass(slots=True)
class Packed:
    """Octets of many items in one place: to visit a hundred thousand objects again costs more than to receive them."""

    octets: bytearray = field(default_factory=bytearray)
    #: The number of octets of each, C integers.
    sizes: array[int] = field(default_factory=lambda: array("i"))

    def add(self, items: Sequence[bytes]) -> None:
        """Add items."""
        self.octets += b"".join(items)
        self.sizes.extend(map(len, items))

    def cut(self, count: int) -> Packed:
        """Remove the first `count` items, and return them."""
        octets = sum(self.sizes[:count])
        first = Packed(self.octets[:octets], self.sizes[:count])
        del self.octets[:octets]
        del self.sizes[:count]
        return first

    def items(self) -> list[bytes]:
        """Return all items."""
        found, at = [], 0
        for size in self.sizes:
            found.append(bytes(self.octets[at : at + size]))
            at += size
        return found


@dataclass(slots=True)
class Batch:
    """Deliveries in the order of their arrival: octets, tags, message-formats, and the kernel's record of each.

    `link` is the link endpoint that received them. Once it is gone, they cannot be decided any more.
    """

    link: Link | None = None
    payloads: Packed = field(default_factory=Packed)
    tags: Packed = field(default_factory=Packed)
    formats: array[int] = field(default_factory=lambda: array("I"))
    deliveries: list[kernel.Delivery] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.deliveries)

    def add(self, payloads: Sequence[bytes], deliveries: Sequence[kernel.Delivery]) -> int:
        """Add deliveries. Returns: how many octets they have."""
        before = len(self.payloads.octets)
        self.payloads.add(payloads)
        self.tags.add([delivery.tag for delivery in deliveries])
        self.formats.extend([delivery.message_format for delivery in deliveries])
        self.deliveries += deliveries
        return len(self.payloads.octets) - before

    def cut(self, count: int) -> Batch:
        """Remove the first `count` deliveries, and return them."""
        first = Batch(
            self.link, self.payloads.cut(count), self.tags.cut(count), self.formats[:count], self.deliveries[:count]
        )
        del self.formats[:count]
        del self.deliveries[:count]
        return first


class BatchLink(RedirectedLink):
    """The receiving end of a link whose deliveries are taken and decided in batches."""

    kind = "receiver"
    _direction = "from"

    def __init__(
        self,
        manager: LinkManager,
        name: str,
        address: str | None,
        options: ReceiverOptions,
        *,
        credit: int,
        memory: int,
        most: int | None,
    ) -> None:
        """Args: credit, memory, most: as of `batch_receiver`."""
        super().__init__(manager, name, address)
        self._options = options
        self._requested = options.source_for(address)
        self._credit = whole("credit", credit, MAX_CREDIT)
        self._memory = memory
        self._most = most
        self._window_share: WindowShare | None = None
        #: Whole deliveries that are not taken yet.
        self._came = Batch()
        #: The frames of the delivery that is arriving.
        self._pieces: list[bytes] = []
        #: Octets and number of all whole deliveries that are not decided, taken or not.
        self._octets = 0
        self._undecided = 0
        #: Frames that are not yet returned to the session's window.
        self._frames = 0
        #: Whether the answer to our last `flow` is awaited.
        self._awaits_flow = False
        #: The number of all deliveries so far, and of losses of the link.
        self.received = 0
        self.losses = 0

    # ------------------------------------------------------------------------------------------------- for the program

    @property
    def waiting(self) -> int:
        """The number of deliveries that can be taken now."""
        return len(self._came)

    @property
    def undecided(self) -> int:
        """The number of deliveries that have arrived and are not decided."""
        return self._undecided

    @property
    def is_full(self) -> bool:
        """True if no more deliveries arrive until some are decided."""
        return self._undecided >= self._credit or self._octets > self._memory

    def take(self, count: int, octets: int) -> Batch:
        """Take up to `count` deliveries of up to `octets` in all; at least one if there is any, whatever its size."""
        sizes = self._came.payloads.sizes
        number = min(count, len(sizes))
        total = sum(sizes[:number])
        while number > 1 and total > octets:
            number -= 1
            total -= sizes[number]
        return self._came.cut(number)

    def decide(self, batch: Batch, state: bytes) -> bool:
        """Settle deliveries that were taken, each at most once.

        Returns: whether the peer is told; False if the link that received them is gone.
        """
        told = batch.link is not None and batch.link is self._link and self.is_attached
        if told:
            for delivery in batch.deliveries:
                kernel.dispose(delivery, state, True)
        self._octets -= len(batch.payloads.octets)
        self._undecided -= len(batch)
        self._open_window()
        self._replenish()
        return told

    # ---------------------------------------------------------------------------------------------------- of ClientLink

    @property
    def _requested_address(self) -> str | None:
        return self._requested.address

    def _choose_session(self, client_connection: ClientConnection) -> Session:
        frames = self._memory // self._manager.max_frame_size
        session = client_connection.session_for(self, min(WINDOW, max(LEAST_WINDOW, frames)))
        self._window_share = WindowShare(session)
        return session

    def _attach(self, session: Session) -> Link:
        link = self._options.attach(session, self.name, at_redirect(self._requested, self._chain))
        remote = session.connection.remote
        if isinstance(link, EngineReceiver) and not (remote is not None and REDIRECT in remote.offered_capabilities):
            link.forgiven = FORGIVEN  # the peer is no amqpmesh router
        return link

    def _accepts(self, attach: Attach) -> bool:
        return attach.source is not None

    def _missing_from(self, attach: Attach) -> str | None:
        assert isinstance(attach.source, Source)
        copy = DistributionMode.COPY
        if self._requested.distribution_mode is copy and attach.source.distribution_mode is not copy:
            return "the peer does not let messages be browsed"
        return self._options.missing_from(attach, self._requested)

    def _begin_use(self, attach: Attach) -> None:
        assert isinstance(attach.source, Source)
        self.address = attach.source.address
        self._came.link = self._link
        self._enable_fast_path()
        self._replenish()

    def _endpoint_lost(self, error: AmqpMeshError, *, final: bool) -> None:  # noqa: ARG002 - no task waits for a delivery here
        """Drop the deliveries that are not taken. Those that were sent settled stay: the sender has no copy."""
        self.losses += 1
        came, self._came = self._came, Batch()
        for payload, delivery in zip(came.payloads.items(), came.deliveries, strict=True):
            if delivery.remote_settled:
                self._came.add([payload], [delivery])
            else:
                self._octets -= len(payload)
                self._undecided -= 1
        self._pieces = []
        self._frames = 0
        if self._window_share is not None:
            self._window_share.close()

    async def _finish(self, *, clean: bool) -> None:  # noqa: ARG002 - its waits are bounded in any case
        """Stop the credit, and release all deliveries that are not decided."""
        link = self._link
        self._credit = 0
        if not isinstance(link, EngineReceiver) or not self.is_attached:
            return
        with trio.move_on_after(ANSWER_TIME, shield=True):
            if link.credit:
                # After the answer no delivery follows. A drain would do the same, but RabbitMQ fails on it.
                self._awaits_flow = True
                link.flow(0, echo=True)
                while self._awaits_flow and self.is_attached:
                    await self._change.wait()
        if self.is_attached:
            for delivery in list(link.flow_state.unsettled.values()):
                assert isinstance(delivery, kernel.Delivery), "nothing is relayed here"
                kernel.dispose(delivery, RELEASED_STATE, True)

    def transfer_received(self, event: TransferReceived) -> None:
        """Handle a frame of a delivery (§2.7.5)."""
        came = event.delivery
        assert self._window_share is not None, "it was attached"
        self._window_share.take()
        self._frames += 1
        if came.aborted:
            self._pieces = []
        elif came.complete:
            payload = event.payload
            if self._pieces:
                payload = b"".join((*self._pieces, payload))
                self._pieces = []
            self._octets += self._came.add([payload], [came])
            self._undecided += 1
            self.received += 1
        else:
            self._pieces.append(event.payload)
        self._open_window()
        self._replenish()

    def batch_received(self, event: DeliveriesGathered) -> None:
        """Handle a batch of whole deliveries, one frame each (§2.7.5)."""
        assert self._window_share is not None, "it was attached"
        number = len(event.deliveries)
        self._window_share.take(number)
        self._frames += number
        self._octets += self._came.add(event.payloads, event.deliveries)
        self._undecided += number
        self.received += number
        self._open_window()
        self._replenish()

    def disposition_received(
        self,
        delivery: kernel.Delivery,
        state: bytes | None,  # noqa: ARG002 - the receiver's state counts
        settled: bool,
    ) -> None:
        """Handle the sender's settlement of a delivery (§2.7.6)."""
        if settled:
            # The sender has forgotten the delivery, whatever the program decides.
            kernel.dispose(delivery, None, True)

    def flow_received(self) -> None:
        """Handle the sender's `flow` (§2.6.7)."""
        if self._awaits_flow:
            self._awaits_flow = False
            self._changed()
        self._replenish()

    def resume_sending(self) -> None:
        """Do nothing: a receiver sends nothing that has to wait."""

    # ----------------------------------------------------------------------------------------------------------- inside

    def _enable_fast_path(self) -> None:
        """Let the kernel receive whole deliveries in batches, without an event for each."""
        link, client_connection = self._link, self._client_connection
        assert link is not None, "both have attached"
        assert link.input_handle is not None, "both have attached"
        assert client_connection is not None, "both have attached"
        wire = client_connection.engine.flow_state
        wire.batch = wire.batch or kernel.ReceivedBatch()
        kernel.enable_fast_path(link.flow_state, link.input_handle, None)

    def _open_window(self) -> None:
        """Let the sender send as many further frames as were received, unless the undecided deliveries fill the memory.

        One delivery can be larger than the memory. So the window also opens while no delivery is undecided.
        """
        if self._frames and self._window_share is not None and (self._octets <= self._memory or not self._undecided):
            frames, self._frames = self._frames, 0
            self._window_share.release(frames)

    def _replenish(self) -> None:
        """Send more credit to the peer, if half of a step is free or the peer has none."""
        link = self._link
        if not isinstance(link, EngineReceiver) or not self.is_attached or self._octets > self._memory:
            return
        step = min(STEP, self._credit)
        wanted = min(step, self._credit - self._undecided)
        if self._most is not None:
            wanted = min(wanted, self._most - self.received)
        due = wanted - link.credit
        if due > 0 and (link.credit == 0 or due * 2 >= step):
            link.flow(link.credit + due)
