"""What happens once per transfer or disposition: counters, the ledger, the reading and writing of the hot frames.

The engine and the router use the objects of this file for their own work, so there is one protocol. It imports nothing
of the project, keeps to ints, bytes and slotted classes, and raises only `Violation`: it runs as it is, and can be
compiled as it is.

Numbers that the standard calls sequence numbers are 32 bit and wrap (RFC 1982); `serial_add` and `serial_distance` are
the only places that know how. An absent optional field of a frame is -1 (numbers) or None (bytes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

MASK: Final = 0xFFFFFFFF
HALF: Final = 0x80000000

LINK: Final = "link"
SESSION: Final = "session"

# Sections that the hot path must know, by descriptor code (§3.2).
HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73

# Delivery states by descriptor code (§3.4, §4.5.8).
RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34

#: `accepted` as every encoder of ours writes it: described list0, descriptor as smallulong.
ACCEPTED_STATE: Final = b"\x00\x53\x24\x45"
RELEASED_STATE: Final = b"\x00\x53\x26\x45"
#: modified(delivery-failed = true), and with undeliverable-here = true.
FAILED_STATE: Final = b"\x00\x53\x27\xc0\x02\x01\x41"
UNDELIVERABLE_STATE: Final = b"\x00\x53\x27\xc0\x03\x02\x41\x41"

#: The longest delivery-tag (§2.8.7).
MAX_TAG: Final = 32


class Violation(Exception):  # noqa: N818 - the name says what happened; what it becomes is a ProtocolError
    """The peer broke the standard in a hot frame: what to answer, and at which level (link, session)."""

    def __init__(self, scope: str, condition: str, description: str) -> None:
        super().__init__(description)
        self.scope = scope
        self.condition = condition
        self.description = description


class Incomplete(Exception):  # noqa: N818 - no error: more bytes may come
    """The bytes end inside the value that is being skipped; more may follow in the next frame."""


def serial_add(value: int, increment: int) -> int:
    """The serial number `increment` after (or, negative, before) `value` (RFC 1982, 3.1)."""
    return (value + increment) & MASK


def serial_distance(start: int, end: int) -> int:
    """How far `end` lies after `start`: -2**31 .. 2**31-1 (RFC 1982, 3.2; exactly half round counts as before)."""
    return ((end - start + HALF) & MASK) - HALF


# ------------------------------------------------------------------------------------------------ counters and ledger


class Delivery:
    """One delivery at one end of a link, from its first frame until it is settled here (§2.6.12)."""

    __slots__ = (
        "aborted",
        "complete",
        "delivery_id",
        "ignored",
        "leg",
        "link",
        "message_format",
        "rcv_settle_mode",
        "relay",
        "remote_settled",
        "remote_state",
        "second",
        "settled",
        "size",
        "state",
        "tag",
    )

    def __init__(self, link: LinkFlow, tag: bytes, message_format: int, settled: bool, second: bool) -> None:
        self.link = link
        self.tag = tag
        self.message_format = message_format
        #: Settled at this end.
        self.settled = settled
        #: Settled at the other end: nobody waits for what we say of it.
        self.remote_settled = settled
        #: rcv-settle-mode second is in force for it (§2.7.5).
        self.second = second
        #: What its first frame says of that, as the sender chooses; -1: nothing, the link's mode holds.
        self.rcv_settle_mode = -1
        #: Assigned when its first frame is read or written; -1 before.
        self.delivery_id = -1
        #: The encoded delivery state of this end and of the other.
        self.state: bytes | None = None
        self.remote_state: bytes | None = None
        #: Its last frame was read or written.
        self.complete = False
        self.aborted = False
        #: A resumed delivery that we do not know: its frames are read and dropped.
        self.ignored = False
        #: Payload bytes so far.
        self.size = 0
        #: What the router hangs here: the relay that it came in with, or the leg that it leaves by.
        self.relay: Relay | None = None
        self.leg: Leg | None = None


class Ledger:
    """The live deliveries of one session and direction, by delivery-id, in the order of their ids.

    A delivery is here from its first frame until it is settled at this end.
    """

    __slots__ = ("deliveries",)

    def __init__(self) -> None:
        self.deliveries: dict[int, Delivery] = {}

    def __len__(self) -> int:
        return len(self.deliveries)

    def select(self, first: int, last: int) -> list[Delivery]:
        """The live deliveries from `first` to `last`, both included, in order (§2.7.6).

        Ids that are unknown, unused or settled are skipped. The cost is bounded by the smaller of the range and the
        ledger, so a range of 2**31 ids is no lever.
        """
        deliveries = self.deliveries
        if first == last:
            delivery = deliveries.get(first)
            return [] if delivery is None else [delivery]
        span = serial_distance(first, last)
        if span < 0:
            return []
        if span < len(deliveries):
            ids = ((first + offset) & MASK for offset in range(span + 1))
            return [deliveries[each] for each in ids if each in deliveries]
        return [each for key, each in deliveries.items() if 0 <= serial_distance(first, key) <= span]


class DispositionRun:
    """Consecutive delivery-ids that say the same: one `disposition` frame."""

    __slots__ = ("first", "last", "receiver", "settled", "state")

    def __init__(self, receiver: bool, delivery_id: int, settled: bool, state: bytes | None) -> None:
        self.receiver = receiver
        self.first = delivery_id
        self.last = delivery_id
        self.settled = settled
        self.state = state


class SessionFlow:
    """What changes in a session with each transfer and disposition (§2.5.6).

    `window_size` is how many transfer frames may be here unreleased: a frame is *held* from its arrival until
    `release`, so what the peer can make us buffer is window_size frames.
    """

    __slots__ = (
        "channel",
        "dispositions",
        "flow_due",
        "held",
        "in_full",
        "incoming",
        "incoming_limit",
        "initial_outgoing_id",
        "next_delivery_id",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing",
        "progress",
        "remote_incoming_window",
        "remote_outgoing_window",
        "wake",
        "window_size",
    )

    def __init__(self, window_size: int, initial_outgoing_id: int = 0, initial_delivery_id: int = 0) -> None:
        #: The outgoing channel; -1 while unmapped.
        self.channel = -1
        self.window_size = window_size
        self.initial_outgoing_id = initial_outgoing_id
        self.next_outgoing_id = initial_outgoing_id
        self.next_incoming_id = 0
        #: The first transfer-id that the peer may not use, by what we last announced.
        self.incoming_limit = window_size
        self.held = 0
        #: The peer needs all fields of a `transfer`, trailing nulls included.
        self.in_full = False
        self.remote_incoming_window = 0
        self.remote_outgoing_window = 0
        self.next_delivery_id = initial_delivery_id
        self.incoming = Ledger()
        self.outgoing = Ledger()
        self.dispositions: list[DispositionRun] = []
        #: The latest state that is no outcome, by (role, delivery-id): only the last one of a delivery matters.
        self.progress: dict[tuple[bool, int], bytes] = {}
        #: Our window should be announced with the next flush.
        self.flow_due = False
        #: Called when something is to be flushed; the engine sets it.
        self.wake: Callable[[], None] | None = None

    @property
    def incoming_window(self) -> int:
        """How many more transfer frames we can take now (the value to announce)."""
        return self.window_size - self.held

    def announce(self) -> int:
        """The window to write into a `begin` or `flow` now; from here on it is what the peer may rely on."""
        window = self.incoming_window
        # It never falls: what a frame takes from the window it adds to next_incoming_id.
        self.incoming_limit = serial_add(self.next_incoming_id, window)
        self.flow_due = False
        return window

    def release(self, frames: int) -> None:
        """The bytes of `frames` transfer frames have left: the window may grow again.

        It is announced once half of it has gathered, or at once when the peer stands still.
        """
        self.held -= frames
        if self.flow_due:
            return
        # How much wider the window is than the peer may know.
        gathered = (self.next_incoming_id + self.window_size - self.held - self.incoming_limit) & MASK
        if gathered * 2 >= self.window_size or (gathered and self.next_incoming_id == self.incoming_limit):
            self.flow_due = True
            if self.wake is not None:
                self.wake()

    def dispose(self, receiver: bool, delivery_id: int, settled: bool, state: bytes | None) -> None:
        """Queue a disposition, joined to the one before where they say the same of consecutive ids (§2.7.6)."""
        runs = self.dispositions
        if not settled and state is not None and not is_terminal(state):
            self.progress[receiver, delivery_id] = state
            if self.wake is not None:
                self.wake()
            return
        if runs:
            run = runs[-1]
            if (
                run.receiver == receiver
                and run.settled == settled
                and (run.last + 1) & MASK == delivery_id
                and run.state == state
            ):
                run.last = delivery_id
                return
        runs.append(DispositionRun(receiver, delivery_id, settled, state))
        if len(runs) == 1 and self.wake is not None:
            self.wake()


class LinkFlow:
    """What changes on a link endpoint with each transfer (§2.6.7), and its counters."""

    __slots__ = (
        "accepted",
        "available",
        "current",
        "delivery_count",
        "drain",
        "granted_limit",
        "handle",
        "link_credit",
        "lowered",
        "max_message_size",
        "modified",
        "octets",
        "owner",
        "presettled",
        "received",
        "rejected",
        "released",
        "second",
        "sender",
        "session",
        "snd_settle_mode",
        "unsettled",
    )

    def __init__(self, session: SessionFlow, sender: bool, owner: object, unsettled: dict[bytes, Delivery]) -> None:
        self.session = session
        #: True: we are the sending endpoint.
        self.sender = sender
        #: The engine's link endpoint.
        self.owner = owner
        #: The output handle; -1 while unassigned.
        self.handle = -1
        self.delivery_count = 0
        self.link_credit = 0
        #: Senders: the latest flow took back all credit; it did not just find some spent.
        self.lowered = False
        self.available = 0
        self.drain = False
        #: Receivers: the highest delivery-limit that the sender may still rely on. It falls only when the peer has
        #: shown that it knows the lower one, so transfers under the old limit are never an error.
        self.granted_limit = 0
        #: The delivery that is in the middle of its frames; transfers of one link never interleave (§2.6.14).
        self.current: Delivery | None = None
        #: The terminus' unsettled map, by delivery-tag (§2.6.13).
        self.unsettled = unsettled
        #: What our side takes at most, in bytes; 0: no limit (§2.7.3).
        self.max_message_size = 0
        #: The link's rcv-settle-mode is second.
        self.second = False
        #: 0 unsettled, 1 settled, 2 mixed (§2.8.2).
        self.snd_settle_mode = 2
        self.reset_counters()

    def reset_counters(self) -> None:
        """Begin to count anew."""
        #: Deliveries whose first frame was read or written, and their payload in bytes.
        self.received = 0
        self.octets = 0
        #: Of those, the ones that were settled then; and how the others ended.
        self.presettled = 0
        self.accepted = 0
        self.rejected = 0
        self.released = 0
        self.modified = 0

    def count_outcome(self, state: bytes | None) -> None:
        """Count a delivery that ended with `state`."""
        kind = state_kind(state)
        if kind == ACCEPTED:
            self.accepted += 1
        elif kind == RELEASED:
            self.released += 1
        elif kind == MODIFIED:
            self.modified += 1
        elif kind == REJECTED:
            self.rejected += 1


#: Octets that count for each chunk besides its payload: the objects around it.
OVERHEAD: Final = 512


class Budget:
    """Octets that wait in some part of this router, against what may; what counts here counts in the whole, too."""

    __slots__ = ("limit", "used", "whole")

    def __init__(self, limit: int, whole: Budget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self.whole = whole

    def add(self, octets: int) -> None:
        """So many more wait, or (negative) fewer."""
        self.used += octets
        if self.whole is not None:
            self.whole.add(octets)


class Chunk:
    """Payload that waits here. It holds a frame of its session's window, and its octets count against the budget."""

    __slots__ = ("_budget", "_session", "_size", "data", "holders")

    def __init__(self, data: bytes, session: SessionFlow | None, budget: Budget) -> None:
        """Args: session: whose window one frame of is held until the chunk is released; None: no frame brought it."""
        self.data = data
        #: How many still have to send it.
        self.holders = 1
        self._session = session
        # What holds the octets costs more than a few of them: empty messages are not free.
        self._size = len(data) + OVERHEAD
        self._budget = budget
        budget.add(self._size)

    def absorb(self, other: Chunk) -> None:
        """Take the place of `other` too. It holds one frame as before; its data is the caller's to join."""
        self._size += other._size
        self._budget.add(other._size)
        other._budget.add(-other._size)
        if other._session is not None:
            other._session.release(1)

    def release(self) -> None:
        """One holder has sent it, or will not."""
        self.holders -= 1
        if self.holders == 0:
            self._budget.add(-self._size)
            if self._session is not None:
                self._session.release(1)


def receive_transfer(link: LinkFlow, frame: TransferFrame, payload_size: int) -> Delivery:
    """Account an incoming transfer on `link`: session window, credit, delivery, ledger.

    Everything is checked before anything changes. Returns the delivery that the frame belongs to; one that is
    `ignored` is a resumed delivery that our unsettled map does not hold (§2.6.13: it counts, and nothing else).

    Raises: Violation at the session (window-violation, invalid field) or at the link (transfer-limit-exceeded,
        message-size-exceeded, invalid field).
    Source: §2.5.6 receiving a transfer, §2.6.7, §2.7.5.
    """
    session = link.session
    if serial_distance(session.next_incoming_id, session.incoming_limit) <= 0:
        raise Violation(SESSION, "amqp:session:window-violation", "transfer beyond the incoming window")
    delivery = link.current
    if delivery is None:
        return _first_transfer(session, link, frame, payload_size)
    if frame.delivery_id != -1 and frame.delivery_id != delivery.delivery_id:
        raise Violation(SESSION, "amqp:invalid-field", "delivery-id changed within a delivery")
    if frame.delivery_tag is not None and frame.delivery_tag != delivery.tag:
        raise Violation(SESSION, "amqp:invalid-field", "delivery-tag changed within a delivery")
    if frame.message_format != -1 and frame.message_format != delivery.message_format:
        raise Violation(SESSION, "amqp:invalid-field", "message-format changed within a delivery")
    if frame.aborted:
        payload_size = 0
    elif link.max_message_size and delivery.size + payload_size > link.max_message_size:
        raise Violation(LINK, "amqp:link:message-size-exceeded", f"more than {link.max_message_size} bytes")
    if frame.settled == 1 and link.snd_settle_mode == 0 and not frame.aborted:
        raise Violation(LINK, "amqp:invalid-field", "settled transfer on a link of snd-settle-mode unsettled")
    if link.snd_settle_mode == 1 and not (frame.settled == 1 or delivery.remote_settled or frame.aborted or frame.more):
        raise Violation(LINK, "amqp:invalid-field", "unsettled delivery on a link of snd-settle-mode settled")
    session.next_incoming_id = (session.next_incoming_id + 1) & MASK
    session.held += 1
    if session.remote_outgoing_window > 0:
        session.remote_outgoing_window -= 1
    delivery.size += payload_size
    link.octets += payload_size
    if frame.state is not None:
        delivery.remote_state = frame.state
    if (frame.settled == 1 or frame.aborted) and not delivery.remote_settled:
        # From here it is at most once: the sender has forgotten it, and so do we (§2.7.5, settled).
        delivery.settled = delivery.remote_settled = True
        forget(delivery)
    if frame.aborted:
        delivery.aborted = True
    if frame.aborted or not frame.more:
        delivery.complete = True
        link.current = None
    return delivery


def _first_transfer(session: SessionFlow, link: LinkFlow, frame: TransferFrame, payload_size: int) -> Delivery:
    """The first frame of a delivery: it needs an id and a tag of its own, and credit."""
    delivery_id = frame.delivery_id
    tag = frame.delivery_tag
    if delivery_id == -1:
        raise Violation(SESSION, "amqp:invalid-field", "first transfer of a delivery without delivery-id")
    if tag is None:
        raise Violation(SESSION, "amqp:invalid-field", "first transfer of a delivery without delivery-tag")
    if serial_distance(link.delivery_count, link.granted_limit) <= 0:
        raise Violation(LINK, "amqp:link:transfer-limit-exceeded", "transfer without link credit")
    if delivery_id in session.incoming.deliveries:
        raise Violation(SESSION, "amqp:invalid-field", f"delivery-id {delivery_id} is in use")
    known = link.unsettled.get(tag)
    if known is not None:
        raise Violation(LINK, "amqp:not-allowed", "delivery-tag is in use by an unsettled delivery")
    if frame.rcv_settle_mode == 1 and not link.second:
        raise Violation(LINK, "amqp:invalid-field", "rcv-settle-mode second on a link of mode first")
    settled = frame.settled == 1
    if settled and link.snd_settle_mode == 0 and not frame.aborted:
        raise Violation(LINK, "amqp:invalid-field", "settled transfer on a link of snd-settle-mode unsettled")
    if not settled and link.snd_settle_mode == 1 and not frame.aborted and not frame.more:
        raise Violation(LINK, "amqp:invalid-field", "unsettled delivery on a link of snd-settle-mode settled")
    if frame.aborted:
        payload_size = 0
    elif link.max_message_size and payload_size > link.max_message_size:
        raise Violation(LINK, "amqp:link:message-size-exceeded", f"more than {link.max_message_size} bytes")
    session.next_incoming_id = (session.next_incoming_id + 1) & MASK
    session.held += 1
    if session.remote_outgoing_window > 0:
        session.remote_outgoing_window -= 1
    link.delivery_count = (link.delivery_count + 1) & MASK
    if link.link_credit > 0:
        link.link_credit -= 1
    if link.available > 0:
        link.available -= 1
    second = link.second and frame.rcv_settle_mode != 0
    delivery = Delivery(link, tag, frame.message_format if frame.message_format != -1 else 0, settled, second)
    delivery.delivery_id = delivery_id
    delivery.size = payload_size
    delivery.remote_state = frame.state
    link.received += 1
    link.octets += payload_size
    if settled:
        link.presettled += 1
    if frame.aborted:
        delivery.aborted = True
        delivery.settled = delivery.remote_settled = True
        delivery.complete = True
        return delivery
    if frame.resume:
        delivery.ignored = True
        delivery.settled = delivery.remote_settled = True
    elif not settled:
        session.incoming.deliveries[delivery_id] = delivery
        link.unsettled[tag] = delivery
    if frame.more:
        link.current = delivery
    else:
        delivery.complete = True
    return delivery


def discard_transfer(session: SessionFlow) -> None:
    """Account a transfer that nobody looks at: its link is being detached. Raises: as `receive_transfer`."""
    if serial_distance(session.next_incoming_id, session.incoming_limit) <= 0:
        raise Violation(SESSION, "amqp:session:window-violation", "transfer beyond the incoming window")
    session.next_incoming_id = (session.next_incoming_id + 1) & MASK
    session.held += 1
    session.release(1)


def send_transfer(
    link: LinkFlow,
    out: bytearray,
    delivery: Delivery,
    payload: bytes | memoryview,
    more: bool,
    aborted: bool,
    state: bytes | None,
    limit: int,
) -> int:
    """Append the next frames of `delivery` to `out`, as far as the session's window allows; account them.

    The first frame takes an id and one of the link's credit; the caller has seen to it that there is credit, and that
    no other delivery is in the middle of its frames. `delivery.settled` goes with every frame.

    Args: more: other parts follow. aborted: drop it, of which frames were sent; `payload` is empty, `more` false.
        state: encoded, for the first frame. limit: octets of a frame that the peer takes.
    Returns: how many octets of the payload went; `delivery.complete` says whether the last frame did.
    Source: §2.5.6 sending a transfer, §2.6.7, §2.6.14.
    """
    session = link.session
    size = len(payload)
    taken = 0
    settled = 1 if delivery.settled else -1
    while session.remote_incoming_window > 0 and not delivery.complete:
        first = delivery.delivery_id == -1
        if first:
            delivery_id = session.next_delivery_id
            frame = TransferFrame(link.handle, delivery_id, delivery.tag, delivery.message_format, settled, more)
            frame.state = state
            frame.rcv_settle_mode = delivery.rcv_settle_mode
        elif taken == size and more:
            break
        else:
            frame = TransferFrame(link.handle, settled=settled, more=more, aborted=aborted)
        rest = memoryview(payload)[taken:] if taken else payload
        taken += write_transfer(out, session.channel, frame, rest, limit, session.in_full)
        session.next_outgoing_id = (session.next_outgoing_id + 1) & MASK
        session.remote_incoming_window -= 1
        if first:
            delivery.delivery_id = delivery_id
            session.next_delivery_id = (delivery_id + 1) & MASK
            link.delivery_count = (link.delivery_count + 1) & MASK
            link.link_credit -= 1
            link.received += 1
            if delivery.settled:
                link.presettled += 1
            else:
                session.outgoing.deliveries[delivery_id] = delivery
                link.unsettled[delivery.tag] = delivery
        if frame.more:
            link.current = delivery
        else:
            link.current = None
            delivery.complete = True
    if delivery.complete and aborted:
        delivery.aborted = True
        delivery.settled = delivery.remote_settled = True
        forget(delivery)
    delivery.size += taken
    link.octets += taken
    return taken


def dispose(delivery: Delivery, state: bytes | None, settled: bool) -> None:
    """Tell the peer our state of `delivery`, and settle it here if `settled` (§2.6.12, §2.7.6).

    Nothing is sent of what the peer has settled, nor where its link or session is gone.
    """
    if delivery.settled:
        return
    if state is not None:
        delivery.state = state
    if settled:
        delivery.settled = True
        forget(delivery)
    link = delivery.link
    if delivery.delivery_id != -1 and not delivery.remote_settled and link.session.channel != -1:
        link.session.dispose(not link.sender, delivery.delivery_id, settled, state)


def receive_disposition(session: SessionFlow, frame: DispositionFrame) -> list[Delivery]:
    """The live deliveries that an incoming disposition speaks of, with what it says noted on them (§2.7.6)."""
    ledger = session.outgoing if frame.receiver else session.incoming
    deliveries = ledger.select(frame.first, frame.last)
    for delivery in deliveries:
        if frame.state is not None:
            delivery.remote_state = frame.state
        if frame.settled:
            delivery.remote_settled = True
    return deliveries


def abandon(link: LinkFlow) -> None:
    """The link endpoint is destroyed: none of its deliveries can be spoken of any more (§2.6.5, §2.6.6)."""
    ledger = link.session.outgoing if link.sender else link.session.incoming
    for delivery in link.unsettled.values():
        ledger.deliveries.pop(delivery.delivery_id, None)
        delivery.delivery_id = -1
    if link.current is not None:
        link.current.delivery_id = -1
        link.current = None


def forget(delivery: Delivery) -> None:
    """Remove `delivery` from the ledger of its session and from the unsettled map of its terminus."""
    link = delivery.link
    ledger = link.session.outgoing if link.sender else link.session.incoming
    if ledger.deliveries.get(delivery.delivery_id) is delivery:
        del ledger.deliveries[delivery.delivery_id]
    if link.unsettled.get(delivery.tag) is delivery:
        del link.unsettled[delivery.tag]


# ------------------------------------------------------------------------------------------------------------- relays


class Leg:
    """The way of one relay out through one outgoing terminus."""

    __slots__ = (
        "aborting",
        "branch",
        "chunks",
        "copy",
        "counted",
        "delivery",
        "done",
        "offset",
        "outcome",
        "relay",
        "started",
    )

    def __init__(self, relay: Relay, branch: object, copy: bool) -> None:
        self.relay = relay
        #: The router's record of the outgoing link.
        self.branch = branch
        #: A `copy` receiver's: its outcome counts for nobody.
        self.copy = copy
        self.delivery: Delivery | None = None
        #: What came and has not left, and how much of the first of it has.
        self.chunks: deque[Chunk] = deque()
        self.offset = 0
        #: Its first frame is written.
        self.started = False
        #: No more of it is sent but `aborted`.
        self.aborting = False
        #: It counts as unsettled on its link.
        self.counted = False
        #: The receiver's terminal state, or what stands for it.
        self.outcome: bytes | None = None
        #: Settled, or gone: nothing will be sent or heard of it any more.
        self.done = False


class Relay:
    """One delivery's journey through this router: one incoming delivery, one or more legs."""

    __slots__ = (
        "address",
        "answered",
        "arrived",
        "attempts",
        "chunks",
        "closed",
        "complete",
        "dropped",
        "excluded",
        "failed",
        "head",
        "incoming",
        "kept",
        "key",
        "legs",
        "message_format",
        "priority",
        "queued",
        "second",
        "section_shift",
        "settled",
        "share",
        "source",
        "to",
        "waiting",
    )

    def __init__(self, source: object, incoming: Delivery | None, message_format: int, arrived: float) -> None:
        #: The router's record of the incoming link.
        self.source = source
        #: None once the sender is gone or has forgotten it: an orphan, if legs of it live.
        self.incoming = incoming
        self.message_format = message_format
        #: Nobody waits for an outcome: the sender settled it.
        self.settled = incoming is None or incoming.remote_settled
        self.second = incoming is not None and incoming.second
        self.legs: list[Leg] = []
        #: What came before there were legs, in order.
        self.chunks: deque[Chunk] = deque()
        self.head: Head | None = None
        #: The router's record of the address that it goes to.
        self.address: object = None
        #: The router's record of the share of credit that it was forwarded by, within its ingress router.
        self.share: object = None
        #: On lanes: its delivery key with the hops that are left, and the final address where the lane has none.
        self.key: bytes | None = None
        self.to: str | None = None
        #: When its first frame came, seconds.
        self.arrived = arrived
        self.priority = 4
        #: Its last frame has come.
        self.complete = False
        #: What still comes is read and dropped.
        self.dropped = False
        #: It waits in its address' queue, unsent: its ticket there; 0: it does not.
        self.queued = 0
        #: It counts as waiting in the pool of its input.
        self.waiting = True
        #: The sender has been told an outcome, and is to settle it (mode second).
        self.answered = False
        #: How many sections fewer than came were sent on.
        self.section_shift = 0
        #: Redelivery: the whole message, the tries so far, whether one of them failed, and who may not have it again.
        self.kept: bytearray | None = None
        self.attempts = 0
        self.failed = False
        self.excluded: set[object] | None = None
        #: Nothing of it is left.
        self.closed = False


# -------------------------------------------------------------------------------------------------- skipping of values

# Sizes by the high nibble of a format code (§1.2): fixed widths, then the width of the size field of variable ones.
_FIXED: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZED: Final = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
#: Format codes of §1.6; a value of another is malformed.
_KNOWN: Final = frozenset(
    bytes.fromhex("404142434445 50515253545556 6061 7071727374 8081828384 9498 a0a1a3 b0b1b3 c0c1 d0d1 e0f0")
)
#: Per format code: octets after the code (0..16), or -1/-4 for a size field of that width, or -99 for an unknown code.
_WIDTH: Final = tuple(
    (_FIXED[code >> 4] if code >> 4 in _FIXED else -_SIZED[code >> 4]) if code in _KNOWN else -99 for code in range(256)
)


def skip(data: bytes, at: int, end: int) -> int:
    """Where the value at `at`, which is not described, ends, without decoding it.

    Raises: Incomplete: it ends beyond `end`. Violation: it is described, or there is no such format code.
    Source: §1.2.
    """
    if at >= end:
        raise Incomplete
    width = _WIDTH[data[at]]
    if width >= 0:
        after = at + 1 + width
    elif width == -1:
        if at + 2 > end:
            raise Incomplete
        after = at + 2 + data[at + 1]
    elif width == -4:
        if at + 5 > end:
            raise Incomplete
        after = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    else:
        raise Violation(LINK, "amqp:decode-error", f"no such format code: 0x{data[at]:02x}")
    if after > end:
        raise Incomplete
    return after


def descriptor_code(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The numeric descriptor of the described value at `at`, and where the value proper begins.

    A symbolic descriptor that is none of `_SECTIONS`, or no descriptor at all, is -1. Raises: Incomplete, Violation.
    """
    if at + 2 < end and data[at] == 0 and data[at + 1] == 0x53:
        return data[at + 2], at + 3
    if at >= end:
        raise Incomplete
    if data[at] != 0:
        return -1, at
    value_at = skip(data, at + 1, end)
    code = data[at + 1]
    if code == 0x80:
        return int.from_bytes(data[at + 2 : at + 10], "big"), value_at
    if code == 0xA3:
        return _SECTIONS.get(data[at + 3 : value_at], -1), value_at
    if code == 0xB3:
        return _SECTIONS.get(data[at + 6 : value_at], -1), value_at
    return -1, value_at


#: The same by symbolic descriptor.
_SECTIONS: Final = {
    b"amqp:header:list": HEADER,
    b"amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
}


def state_kind(state: bytes | None) -> int:
    """Which delivery state the encoded `state` is, by its descriptor's code; -1 for None.

    Here a state is always as our own encoder writes it: the descriptor a smallulong.
    """
    return -1 if state is None else state[2]


def is_terminal(state: bytes | None) -> bool:
    """Whether `state` is an outcome: accepted, rejected, released or modified (§3.4)."""
    return ACCEPTED <= state_kind(state) <= MODIFIED


# ------------------------------------------------------------------------------------------------------------- frames


class TransferFrame:
    """A `transfer` as the hot path sees it; the skimmer and the generic decoder yield the same (§2.7.5)."""

    __slots__ = (
        "aborted",
        "delivery_id",
        "delivery_tag",
        "handle",
        "message_format",
        "more",
        "rcv_settle_mode",
        "resume",
        "settled",
        "state",
    )

    def __init__(
        self,
        handle: int,
        delivery_id: int = -1,
        delivery_tag: bytes | None = None,
        message_format: int = -1,
        settled: int = -1,
        more: bool = False,
        rcv_settle_mode: int = -1,
        state: bytes | None = None,
        resume: bool = False,
        aborted: bool = False,
    ) -> None:
        self.handle = handle
        self.delivery_id = delivery_id
        self.delivery_tag = delivery_tag
        self.message_format = message_format
        #: -1 unset, 0 false, 1 true.
        self.settled = settled
        self.more = more
        #: -1 unset, 0 first, 1 second.
        self.rcv_settle_mode = rcv_settle_mode
        self.state = state
        self.resume = resume
        self.aborted = aborted


class DispositionFrame:
    """A `disposition` as the hot path sees it (§2.7.6)."""

    __slots__ = ("first", "last", "receiver", "settled", "state")

    def __init__(self, receiver: bool, first: int, last: int, settled: bool, state: bytes | None) -> None:
        self.receiver = receiver
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state


#: Format code to tri-state. The two-octet boolean is among what the decoder reads.
_BOOLEAN: Final = {0x41: 1, 0x42: 0, 0x40: -1}

#: What is raised where a frame has not the common shape.
_UNCOMMON: Final = (IndexError, KeyError, Violation)

#: Descriptor and format code of the usual encodings.
_TRANSFER_LIST8: Final = b"\x00\x53\x14\xc0"
_DISPOSITION_LIST8: Final = b"\x00\x53\x15\xc0"


def _uint(data: bytes, at: int) -> tuple[int, int]:
    """The uint at `at` (any encoding; null is -1), and where it ends. Raises: Violation: it is none."""
    code = data[at]
    if code == 0x52:
        return data[at + 1], at + 2
    if code == 0x43:
        return 0, at + 1
    if code == 0x70:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    if code == 0x40:
        return -1, at + 1
    raise Violation(LINK, "amqp:decode-error", "not a uint")


def skim_transfer(data: bytes, at: int, end: int) -> tuple[TransferFrame, int] | None:
    """Read the `transfer` that begins at `at`, and say where its payload begins; None hands it to the decoder.

    Only the common shape is read: descriptor 0x14 as smallulong, list8, compact fields, nothing rare in them. Nothing
    is judged here: what is not exactly that shape, malformed bytes included, is the generic decoder's to judge.
    """
    if end - at < 6 or data[at : at + 4] != _TRANSFER_LIST8:
        return None
    payload_at = at + 5 + data[at + 4]
    count = data[at + 5]
    at += 6
    if payload_at > end or count < 1 or count > 11:
        return None
    delivery_id = message_format = settled = -1
    tag: bytes | None = None
    more = 0
    try:
        handle, at = _uint(data, at)
        if count > 1:
            delivery_id, at = _uint(data, at)
        if count > 2:
            code = data[at]
            if code == 0xA0 and data[at + 1] <= MAX_TAG:
                tag_at = at + 2
                at = tag_at + data[at + 1]
                tag = data[tag_at:at]
            elif code == 0x40:
                at += 1
            else:
                return None
        if count > 3:
            message_format, at = _uint(data, at)
        if count > 4:
            settled = _BOOLEAN[data[at]]
            at += 1
        if count > 5:
            more = _BOOLEAN[data[at]]
            at += 1
        # Some write the whole list: rcv-settle-mode and state null, the flags behind them false.
        if count > 6:
            for field in range(6, count):
                if data[at] != 0x40 and (data[at] != 0x42 or field < 8):
                    return None
                at += 1
    except _UNCOMMON:
        return None
    if at != payload_at or handle == -1:
        return None
    return TransferFrame(handle, delivery_id, tag, message_format, settled, more == 1), payload_at


#: The states that the skimmer knows, as peers write them: to what the decoder makes of them.
_STATES: Final = {
    b"\x40": None,
    ACCEPTED_STATE: ACCEPTED_STATE,
    RELEASED_STATE: RELEASED_STATE,
    b"\x00\x53\x24\xc0\x01\x00": ACCEPTED_STATE,
    b"\x00\x53\x26\xc0\x01\x00": RELEASED_STATE,
    FAILED_STATE: FAILED_STATE,
    UNDELIVERABLE_STATE: UNDELIVERABLE_STATE,
}


def skim_disposition(data: bytes, at: int, end: int) -> DispositionFrame | None:
    """Read the `disposition` that begins at `at`; None hands it to the decoder (see `skim_transfer`)."""
    if end - at < 6 or data[at : at + 4] != _DISPOSITION_LIST8:
        return None
    count = data[at + 5]
    if at + 5 + data[at + 4] != end or count < 2 or count > 6:
        return None
    at += 6
    last = settled = -1
    state: bytes | None = None
    try:
        receiver = _BOOLEAN[data[at]]
        first, at = _uint(data, at + 1)
        if count > 2:
            last, at = _uint(data, at)
        if count > 3:
            settled = _BOOLEAN[data[at]]
            at += 1
        if count > 5:
            end -= 1
            _BOOLEAN[data[end]]  # batchable: a hint that nobody here needs
        if count > 4:
            state = _STATES[data[at:end]]
            at = end
    except _UNCOMMON:
        return None
    if at != end or receiver == -1 or first == -1:
        return None
    return DispositionFrame(receiver == 1, first, first if last == -1 else last, settled == 1, state)


def _append_uint(out: bytearray, value: int) -> None:
    if value == 0:
        out.append(0x43)
    elif value < 256:
        out.append(0x52)
        out.append(value)
    else:
        out.append(0x70)
        out += value.to_bytes(4, "big")


def write_transfer(
    out: bytearray,
    channel: int,
    frame: TransferFrame,
    payload: bytes | memoryview,
    limit: int,
    in_full: bool = False,
) -> int:
    """Append one `transfer` frame of at most `limit` octets to `out`, compact: trailing defaults are left out (§2.7.5).

    Where the payload does not fit whole, as much of it goes as fits, and the frame says `more`.

    Args: limit: at least what the frame takes without payload; a first frame without a state takes 65 octets at most,
        in full 70. in_full: write nulls for the trailing defaults.
    Returns: how many octets of the payload went.
    """
    start = len(out)
    _write_transfer_head(out, channel, frame, in_full)
    taken = len(payload)
    room = limit - (len(out) - start)
    if taken > room:
        if not frame.more:
            del out[start:]
            frame.more = True
            _write_transfer_head(out, channel, frame, in_full)
            room = limit - (len(out) - start)
        taken = max(0, room)
        payload = memoryview(payload)[:taken]
    out += payload
    out[start : start + 4] = (len(out) - start).to_bytes(4, "big")
    return taken


#: Frame header, descriptor and list8 header; the sizes, the channel and the count are filled in.
_TRANSFER_START: Final = b"\x00\x00\x00\x00\x02\x00\x00\x00" + _TRANSFER_LIST8 + b"\x00\x00"
_DISPOSITION_START: Final = b"\x00\x00\x00\x00\x02\x00\x00\x00" + _DISPOSITION_LIST8 + b"\x00\x00"

#: [count:n] are the nulls that stand between the fields written so far and field n.
_NULLS: Final = b"\x40" * 11


def _write_transfer_head(out: bytearray, channel: int, frame: TransferFrame, in_full: bool) -> None:
    """The frame up to its payload; the size of the frame is left open."""
    start = len(out)
    out += _TRANSFER_START
    if channel:
        out[start + 6 : start + 8] = channel.to_bytes(2, "big")
    _append_uint(out, frame.handle)
    count = 1
    if frame.delivery_id != -1:
        _append_uint(out, frame.delivery_id)
        count = 2
    tag = frame.delivery_tag
    if tag is not None:
        out += _NULLS[count:2]
        out.append(0xA0)
        out.append(len(tag))
        out += tag
        count = 3
    if frame.message_format != -1:
        out += _NULLS[count:3]
        _append_uint(out, frame.message_format)
        count = 4
    if frame.settled == 1:
        out += _NULLS[count:4]
        out.append(0x41)
        count = 5
    if frame.more:
        out += _NULLS[count:5]
        out.append(0x41)
        count = 6
    if frame.rcv_settle_mode != -1:
        out += _NULLS[count:6]
        out.append(0x50)
        out.append(frame.rcv_settle_mode)
        count = 7
    if frame.state is not None:
        out += _NULLS[count:7]
        out += frame.state
        count = 8
    if frame.resume:
        out += _NULLS[count:8]
        out.append(0x41)
        count = 9
    if frame.aborted:
        out += _NULLS[count:9]
        out.append(0x41)
        count = 10
    if in_full:
        out += _NULLS[count:11]
        count = 11
    _close_list(out, start, count)


def _close_list(out: bytearray, start: int, count: int) -> None:
    """Fill in size and count of the list that ends a frame's performative; it becomes a list32 if it must."""
    size = len(out) - start - 13
    if size < 256:
        out[start + 12] = size
        out[start + 13] = count
    else:
        # A large state: an error with its info, annotations to merge.
        out[start + 11 : start + 14] = b"\xd0" + (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big")


def write_disposition(out: bytearray, channel: int, run: DispositionRun) -> None:
    """Append a whole `disposition` frame to `out`, compact (§2.7.6)."""
    start = len(out)
    out += _DISPOSITION_START
    if channel:
        out[start + 6 : start + 8] = channel.to_bytes(2, "big")
    out.append(0x41 if run.receiver else 0x42)
    _append_uint(out, run.first)
    count = 2
    if run.last != run.first:
        _append_uint(out, run.last)
        count = 3
    elif run.settled or run.state is not None:
        out.append(0x40)
    if run.settled or run.state is not None:
        out.append(0x41 if run.settled else 0x42)
        count = 4
    if run.state is not None:
        out += run.state
        count = 5
    _close_list(out, start, count)
    out[start : start + 4] = (len(out) - start).to_bytes(4, "big")


# ----------------------------------------------------------------------------------------------------- message heads


class Head:
    """Where the head sections of a message of format 0 lie: header and both annotations (§3.2).

    Offsets into the payload. Extents are (start, end), (0, 0) for a section that is not there.
    """

    __slots__ = (
        "bare_at",
        "delivery_annotations",
        "header",
        "irregular",
        "message_annotations",
        "priority",
        "ttl",
        "ttl_at",
    )

    def __init__(self) -> None:
        self.header = (0, 0)
        self.delivery_annotations = (0, 0)
        self.message_annotations = (0, 0)
        #: Where the bare message begins.
        self.bare_at = 0
        #: 0..255, 4 if absent (§3.2.1).
        self.priority = 4
        #: Milliseconds; -1: absent.
        self.ttl = -1
        #: Where the ttl's format code stands.
        self.ttl_at = 0
        #: Sections out of order, doubled or malformed: from there everything counts as bare message.
        self.irregular = False


def read_head(data: bytes, complete: bool) -> Head | None:
    """Find the head sections at the start of a message, by skipping.

    Args: data: the payload so far, of message-format 0. complete: no more of it will come.
    Returns: the head; None while `data` ends before the first section of the bare message has begun.
    Source: §3.2.
    """
    head = Head()
    at = 0
    end = len(data)
    last = 0
    while at < end:
        try:
            code, value_at = descriptor_code(data, at, end)
            if code < HEADER or code > MESSAGE_ANNOTATIONS:
                break
            if code <= last:
                head.irregular = True
                break
            after = skip(data, value_at, end)
            if code == HEADER:
                _read_header(head, data, value_at, after)
                head.header = (at, after)
            elif code == DELIVERY_ANNOTATIONS:
                head.delivery_annotations = (at, after)
            else:
                head.message_annotations = (at, after)
        except Incomplete:
            if not complete:
                return None
            head.irregular = True
            break
        except Violation:
            head.irregular = True
            break
        last = code
        at = after
    else:
        if not complete:
            return None
    head.bare_at = at
    return head


def _read_header(head: Head, data: bytes, at: int, end: int) -> None:
    """Read priority and ttl of the header list at `at`, which ends at `end` (§3.2.1).

    Raises: Violation: it is no well-formed header, as far as these two go.
    """
    priority = 4
    ttl = -1
    ttl_at = 0
    form = data[at]
    if form == 0xC0 and end - at >= 3:
        count = data[at + 2]
        at += 3
    elif form == 0xD0 and end - at >= 9:
        count = int.from_bytes(data[at + 5 : at + 9], "big")
        at += 9
    elif form == 0x45:
        count = 0
    else:
        raise Violation(LINK, "amqp:decode-error", "the header is not a list")
    try:
        if count > 1:
            at = skip(data, at, end)
            after = skip(data, at, end)
            if data[at] == 0x50:
                priority = data[at + 1]
            elif data[at] != 0x40:
                raise Violation(LINK, "amqp:decode-error", "the priority is not a ubyte")
            at = after
        if count > 2:
            skip(data, at, end)
            ttl_at = at
            ttl, _ = _uint(data, at)
    except Incomplete:
        raise Violation(LINK, "amqp:decode-error", "the header is shorter than its fields") from None
    head.priority = priority
    head.ttl = ttl
    head.ttl_at = ttl_at


def patch_ttl(data: bytes, head: Head, ttl: int) -> bytes:
    """The payload with a smaller ttl (milliseconds) in place: its encoding keeps its width, so nothing moves.

    Args: data: the payload that `head` was read from. head: with a ttl above 0. ttl: 0..head.ttl.
    """
    at = head.ttl_at + 1
    width = 4 if data[at - 1] == 0x70 else 1
    return data[:at] + ttl.to_bytes(width, "big") + data[at + width :]


def read_to(data: bytes, at: int) -> str | None:
    """The `to` of the properties section, if the bare message that begins at `at` starts with one (§3.2.4).

    Raises: Incomplete: the bytes end before it is known. Violation: a malformed section.
    """
    end = len(data)
    code, value_at = descriptor_code(data, at, end)
    if code != PROPERTIES:
        return None
    # The list may go on in the next frame: its items are read as far as they are here.
    if value_at >= end:
        raise Incomplete
    form = data[value_at]
    if form == 0x45:
        return None
    if form not in (0xC0, 0xD0):
        raise Violation(LINK, "amqp:decode-error", "the properties section is not a list")
    width = 1 if form == 0xC0 else 4
    item = value_at + 1 + 2 * width
    if item > end:
        raise Incomplete
    list_end = value_at + 1 + width + int.from_bytes(data[value_at + 1 : value_at + 1 + width], "big")
    if int.from_bytes(data[item - width : item], "big") < 3:
        return None
    known = min(end, list_end)
    try:
        item = skip(data, skip(data, item, known), known)
        after = skip(data, item, known)
    except Incomplete:
        if list_end <= end:
            raise Violation(LINK, "amqp:decode-error", "the properties are shorter than their fields") from None
        raise
    code = data[item]
    if code == 0x40:
        return None
    if code not in (0xA1, 0xB1):
        raise Violation(LINK, "amqp:decode-error", "`to` is not a string")
    try:
        return data[item + (2 if code == 0xA1 else 5) : after].decode()
    except UnicodeDecodeError:
        raise Violation(LINK, "amqp:decode-error", "`to` is not UTF-8") from None
