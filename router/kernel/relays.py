"""Relays: deliveries on their way through the router, as the router decides about them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_states import _ACCEPTED, _EXTENSION, _MODIFIED, _REJECTED, _RELEASED, state_kind

if TYPE_CHECKING:
    from amqpmesh.router.kernel.budget import Chunk
    from amqpmesh.router.kernel.head_sections import Head
    from amqpmesh.router.kernel.ledger import Delivery

#: The stronger of two outcomes goes up, where a delivery has several receivers. One of an extension is known to its
#: sender alone.
_STRENGTH: Final = {_EXTENSION: 4, _REJECTED: 3, _ACCEPTED: 2, _MODIFIED: 1, _RELEASED: 0}

_NEVER: Final = float("inf")


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
        "open",
        "outcome",
        "outcome_at",
        "relay",
        "sent_at",
        "started",
        "tracked",
    )

    def __init__(self, relay: Relay, branch: object, copy: bool) -> None:
        self.relay = relay
        #: The router's record of the outgoing link.
        self.branch = branch
        #: A `copy` receiver's: its outcome counts for nobody.
        self.copy = copy
        #: The sender has settled it, and the router where its lane ends says when it has left there.
        self.tracked = False
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
        #: When its last frame left, and when there was an outcome, seconds; -1: it has not, or nobody has noted it.
        self.sent_at = -1.0
        self.outcome_at = -1.0
        #: Settled, or gone: nothing will be sent or heard of it any more. `end` sets it.
        self.done = False
        #: It counts among the open legs of its relay.
        self.open = False

    def decide(self, outcome: bytes) -> None:
        """Note the outcome, which had none: of several legs of a relay the strongest goes up."""
        self.outcome = outcome
        relay = self.relay
        if self.open and not self.copy:
            relay.unanswered -= 1
            strongest = relay.strongest
            if strongest is None or _STRENGTH[state_kind(outcome)] > _STRENGTH[state_kind(strongest)]:
                relay.strongest = outcome

    def end(self) -> None:
        """Note that nothing will be sent or heard of it any more."""
        self.done = True
        if self.open:
            self.open = False
            self.relay.open -= 1


class Relay:
    """One delivery's journey through this router: one incoming delivery, one or more legs."""

    __slots__ = (
        "address",
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
        "open",
        "portion",
        "presettled",
        "priority",
        "queued",
        "recorded",
        "second",
        "section_shift",
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
        #: None once the sender is gone or has forgotten it: an orphan, if legs of it live.
        self.incoming = incoming
        self.message_format = message_format
        #: Nobody waits for an outcome: the sender settled it.
        self.settled = incoming is None or incoming.remote_settled
        self.second = incoming is not None and incoming.second
        #: To be read; see `add` and `drop`. How many of them are not done, how many that are no copies have no outcome,
        #: and the strongest outcome of the others: with thousands of legs nobody looks at all whenever one has spoken.
        self.legs: list[Leg] = []
        self.open = 0
        self.unanswered = 0
        self.strongest: bytes | None = None
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
        #: When its absolute-expiry-time is over, seconds; infinite: never, or its address does not honour that.
        self.expires = _NEVER
        self.priority = 4
        #: Its last frame has come.
        self.complete = False
        #: What still comes is read and dropped.
        self.dropped = False
        #: It waits in its address' queue, unsent: its ticket there; 0: it does not.
        self.queued = 0
        #: It counts as waiting in the pool of its input.
        self.waiting = True
        #: Of an anonymous sender's: its portion of that sender's window while it waits, here or at another router.
        self.portion: object = None
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
        #: For its records: when and with which tag it came, whether settled, what its header told, and whether it is
        #: recorded already that it was not sent.
        self.came = arrived
        self.tag = incoming.tag if incoming is not None else b""
        self.presettled = self.settled
        self.recorded = False
        self.header_info = 4
        #: The counter of its key, where that stands in no tag, and of the key of its first try; 0: there is none yet.
        self.counter = 0
        self.first = 0

    def add(self, leg: Leg) -> None:
        """It leaves by one more leg, of which nothing is known yet."""
        self.legs.append(leg)
        leg.open = True
        self.open += 1
        if not leg.copy:
            self.unanswered += 1

    def drop(self, kept: list[Leg]) -> None:
        """Forget its legs, and what they said. Args: kept: copies that go on by themselves."""
        for leg in self.legs:
            leg.open = False
        self.legs = []
        self.open = self.unanswered = 0
        self.strongest = None
        for leg in kept:
            self.add(leg)
