"""Relays: deliveries on their way through the router that need its decisions."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_states import _ACCEPTED, _EXTENSION, _MODIFIED, _REJECTED, _RELEASED, state_kind

if TYPE_CHECKING:
    from amqpmesh.router.kernel.budget import Chunk
    from amqpmesh.router.kernel.head_sections import Head
    from amqpmesh.router.kernel.ledger import Delivery
    from amqpmesh.router.kernel.seen_messages import SeenMessage

#: The strength of outcomes: the sender of a multicast learns the strongest one. An outcome of an extension is the
#: strongest, because only the sender can interpret it.
_STRENGTH: Final = {_EXTENSION: 4, _REJECTED: 3, _ACCEPTED: 2, _MODIFIED: 1, _RELEASED: 0}

_NEVER: Final = float("inf")


class Leg:
    """The part of a relay that leaves by one outgoing link."""

    __slots__ = (
        "aborting",
        "chunks",
        "copy",
        "counted",
        "delivery",
        "done",
        "offset",
        "open",
        "outcome",
        "outcome_at",
        "outgoing",
        "relay",
        "sent_at",
        "started",
        "tracked",
    )

    def __init__(self, relay: Relay, outgoing: object, copy: bool) -> None:
        self.relay = relay
        #: The router's record of the outgoing link.
        self.outgoing = outgoing
        #: The receiver gets a copy: its outcome does not count.
        self.copy = copy
        #: The sender has settled the delivery, and the router at the end of the lane reports when it has left there.
        self.tracked = False
        self.delivery: Delivery | None = None
        #: Payload that has come and not left. `offset`: octets of the first chunk that have left.
        self.chunks: deque[Chunk] = deque()
        self.offset = 0
        #: Its first frame is written.
        self.started = False
        #: The delivery is being aborted: only `aborted` is sent.
        self.aborting = False
        #: The leg counts as unsettled on its link.
        self.counted = False
        #: The receiver's outcome, or the one in its place.
        self.outcome: bytes | None = None
        #: The time of the last frame; `outcome_at`: of the outcome; seconds, -1: not yet, or not recorded.
        self.sent_at = -1.0
        self.outcome_at = -1.0
        #: The leg has ended: settled or lost. `end` sets it.
        self.done = False
        #: The leg counts among the open legs of its relay.
        self.open = False

    def decide(self, outcome: bytes) -> None:
        """Set the outcome, which was None. The strongest outcome of a relay's legs is passed to the sender."""
        self.outcome = outcome
        relay = self.relay
        if self.open and not self.copy:
            relay.unanswered -= 1
            strongest = relay.strongest
            if strongest is None or _STRENGTH[state_kind(outcome)] > _STRENGTH[state_kind(strongest)]:
                relay.strongest = outcome

    def end(self) -> None:
        """End the leg: no frame of it will be sent or received."""
        self.done = True
        if self.delivery is not None:
            self.delivery.leg = None  # each refers to the other: the circle ends here
        if self.open:
            self.open = False
            self.relay.open -= 1


class Relay:
    """A delivery on its way through this router: one incoming delivery, and one or more legs."""

    __slots__ = (
        "answered",
        "arrived",
        "attempts",
        "came",
        "chunks",
        "closed",
        "complete",
        "counter",
        "dropped",
        "excluded",
        "expires",
        "failed",
        "first",
        "head",
        "header_info",
        "incoming",
        "kept",
        "key",
        "legs",
        "message_format",
        "message_id",
        "node",
        "open",
        "portion",
        "presettled",
        "priority",
        "queued",
        "recorded",
        "second",
        "section_shift",
        "seen",
        "settled",
        "share",
        "source",
        "strongest",
        "tag",
        "to",
        "unanswered",
        "waiting",
    )

    def __init__(self, source: object, incoming: Delivery | None, message_format: int, arrived: float) -> None:
        #: The router's record of the incoming link.
        self.source = source
        #: None: the sender is gone or has forgotten it. Then the relay is an orphan, as long as legs are open.
        self.incoming = incoming
        self.message_format = message_format
        #: The sender has settled it, and waits for no outcome.
        self.settled = incoming is None or incoming.remote_settled
        self.second = incoming is not None and incoming.second
        #: Changed by `add` and `drop` alone. Counters spare a loop over thousands of legs for each outcome:
        #: `open`: legs that have not ended; `unanswered`: open legs without an outcome, without copies; `strongest`:
        #: the strongest outcome so far.
        self.legs: list[Leg] = []
        self.open = 0
        self.unanswered = 0
        self.strongest: bytes | None = None
        #: Payload that came before there were legs, in order.
        self.chunks: deque[Chunk] = deque()
        self.head: Head | None = None
        #: The router's node that the delivery goes to.
        self.node: object = None
        #: The share of credit by which the ingress router forwarded the delivery.
        self.share: object = None
        #: On lanes: the delivery key with the hops that are left. `to`: the final address, if the lane has none.
        self.key: bytes | None = None
        self.to: str | None = None
        #: The time of the first frame, seconds.
        self.arrived = arrived
        #: The time at which it expires, seconds; infinite: never, or the node ignores absolute-expiry-time.
        self.expires = _NEVER
        self.priority = 4
        #: The last frame has come.
        self.complete = False
        #: Frames that still come are read and dropped.
        self.dropped = False
        #: The ticket in the node's queue, where the delivery waits unsent; 0: it does not wait.
        self.queued = 0
        #: The delivery counts as waiting in the pool of its input.
        self.waiting = True
        #: Of an anonymous sender: the portion of its window that the delivery takes while it waits, here or elsewhere.
        self.portion: object = None
        #: The sender knows the outcome, and has to settle (mode second).
        self.answered = False
        #: The number of sections that were removed before sending.
        self.section_shift = 0
        #: For redelivery: the whole message; the attempts so far; one of them has failed; excluded receivers.
        self.kept: bytearray | None = None
        self.attempts = 0
        self.failed = False
        self.excluded: set[object] | None = None
        #: Of a message whose address drops duplicates: its message-id, as `read_message_id` returns it; and its entry,
        #: whose first message it is, or whose outcome it waits for. None: it has none.
        self.message_id: bytes | None = None
        self.seen: SeenMessage | None = None
        #: The relay has ended.
        self.closed = False
        #: For hop records: the time and the tag of its arrival; it came settled; a record says already that it was not
        #: sent; `HeaderFields.info` of its header.
        self.came = arrived
        self.tag = incoming.tag if incoming is not None else b""
        self.presettled = self.settled
        self.recorded = False
        self.header_info = 4
        #: The counter of its key, if no tag has it. `first`: the counter of the first attempt. 0: none yet.
        self.counter = 0
        self.first = 0

    def add(self, leg: Leg) -> None:
        """Add a leg, which has no outcome yet."""
        self.legs.append(leg)
        leg.open = True
        self.open += 1
        if not leg.copy:
            self.unanswered += 1

    def drop(self, kept: list[Leg]) -> None:
        """Forget all legs and their outcomes. Args: kept: legs of copies, which stay."""
        for leg in self.legs:
            leg.open = False
        self.legs = []
        self.open = self.unanswered = 0
        self.strongest = None
        for leg in kept:
            self.add(leg)
