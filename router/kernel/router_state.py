"""The kernel's state of a router."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.delivery_keys import _KEY
from amqpmesh.router.kernel.encoded_values import uint32
from amqpmesh.router.kernel.frame_fields import DispositionFrame, FlowFrame, TransferFrame
from amqpmesh.router.kernel.going_ahead import AHEAD_AT_ONCE
from amqpmesh.router.kernel.head_sections import HeaderFields
from amqpmesh.router.kernel.seen_messages import MessageWindows

if TYPE_CHECKING:
    from amqpmesh.router.kernel.credit_pool import Pool
    from amqpmesh.router.kernel.fast_deliveries import FastDelivery
    from amqpmesh.router.kernel.hop_recorder import Recorder
    from amqpmesh.router.kernel.kept_messages import KeptMessage
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.relays import Relay
    from amqpmesh.router.kernel.seen_messages import SeenMessage
    from amqpmesh.router.kernel.trace_contexts import TraceContexts

#: Seconds after a small delivery in which another one is expected.
_BESIDE: Final = 0.1

#: Octets as powers of two: a turn of a thousand of them is a quarter of a MiB, in a mesh half a MiB. A turn there costs
#: more, as each one wakes up the next router; larger writes to a client cost more than the turns that they save.
UNIT: Final = 8
UNIT_IN_MESH: Final = 9


class KernelRouter:
    """The state of a router that changes with each transfer and disposition."""

    __slots__ = (
        "ahead_at_once",
        "ahead_since",
        "contexts",
        "credit_wait",
        "dirty",
        "disposition",
        "due",
        "epoch",
        "exchange",
        "final_address",
        "flipped",
        "flow",
        "generation",
        "header",
        "held_back",
        "held_count",
        "incoming_frame",
        "kept",
        "key_count",
        "key_page",
        "key_prefix",
        "key_stem",
        "key_tails",
        "left",
        "most_relays",
        "needs_update",
        "noted",
        "now",
        "on_expand",
        "on_timer",
        "on_unknown",
        "on_waited",
        "outgoing_frame",
        "pools_ahead",
        "pools_before",
        "put_off",
        "recorder",
        "relays",
        "rewritten",
        "small_at",
        "undealt",
        "unit",
        "windows",
    )

    def __init__(self) -> None:
        #: Called with each relay that was made of a fast delivery: the router completes it.
        self.on_expand: Callable[[Relay], None] | None = None
        #: Called with the record of an anonymous sender's link, and the octets that its table has no route for: the
        #: router puts one there if it can.
        self.on_unknown: Callable[[object, bytes], None] | None = None
        #: The recorder of deliveries; None: nothing is recorded.
        self.recorder: Recorder | None = None
        #: The choice of messages by their trace contexts; None: of none is the context looked at.
        self.contexts: TraceContexts | None = None
        #: The time of the current batch, seconds.
        self.now = 0.0
        #: The time of the last small delivery.
        self.small_at = -_BESIDE
        #: Live relays; `most_relays`: the highest count, since the owner last lowered it.
        self.relays = 0
        self.most_relays = 0
        #: Octets of frames that count as one delivery in `KernelConnection.work`, as a power of two.
        self.unit = UNIT
        #: Fast routes of another generation are invalid (`FastRoute`).
        self.generation = 1
        #: The number of changes by which an address may lead to another node than before (`AnonymousRoutes`).
        self.epoch = 1
        #: The messages of fast deliveries that may be sent again.
        self.kept: dict[FastDelivery, KeptMessage] = {}
        #: Those of them whose receivers have not accepted them: they are sent again once the batch is read, since the
        #: credit for that often comes behind the outcomes (`settle_put_off`).
        self.put_off: list[tuple[FastDelivery, KeptMessage]] = []
        #: The message-ids that addresses have seen, and the entries of fast deliveries.
        self.windows = MessageWindows()
        self.noted: dict[FastDelivery, SeenMessage] = {}
        #: Links that changed since their records were last updated (`KernelLink.dirty`).
        self.dirty: list[KernelLink] = []
        #: The records of the links are to be updated now: credit is to be granted again, or is used up.
        self.needs_update = False
        #: Open pools whose credit the kernel divides at the end of the batch. `undealt`: those that the router must
        #: look at.
        self.due: list[Pool] = []
        self.undealt: list[Pool] = []
        #: Links that were dirty, and that the router must look at. `flipped`: those that have got or lost all credit.
        self.left: list[KernelLink] = []
        self.flipped: list[KernelLink] = []
        #: Pools with deliveries that are held back, and the number of these.
        self.held_back: list[Pool] = []
        self.held_count = 0
        #: The deliveries by which all senders together go ahead of credit (`going_ahead.py`); the pools whose senders
        #: do, since a time, and in the period before.
        self.ahead_at_once = AHEAD_AT_ONCE
        self.pools_ahead = 0
        self.pools_before = 0
        self.ahead_since = 0.0
        #: Seconds without credit from which a link's wait is told to `on_waited`, with its record.
        self.credit_wait = inf
        self.on_waited: Callable[[object], None] | None = None
        #: Called with a pool whose node is to be looked at by a time, seconds.
        self.on_timer: Callable[[Pool, float], None] | None = None
        #: Keys of deliveries that enter the mesh at this router: a common prefix, and a counter (`key_count`).
        #: `key_stem`: the prefix and all octets of the counter but the last, the same for 256 keys. `key_page`: the
        #: counter of the stem without its last octet; -1: the stem is to be made. `key_tails`: by the number of hops,
        #: all pairs of the last octet and the hops; None: not made yet.
        self.key_prefix = b""
        self.key_count = 0
        self.key_stem = b""
        self.key_page = -1
        self.key_tails: list[tuple[bytes, ...] | None] = [None] * 256
        # The frame that is being read, or written; reused for each.
        self.incoming_frame = TransferFrame(0)
        self.outgoing_frame = TransferFrame(0)
        self.disposition = DispositionFrame(False, 0, 0, False, None)
        self.flow = FlowFrame()
        #: The header of the message that is being relayed, for its hop record.
        self.header = HeaderFields()
        #: Of an anonymous sender's message that is being relayed: the payload with or without its final address, None:
        #: it leaves as it came; and the octets of the final address that was put in, empty: none was.
        self.rewritten: bytes | None = None
        self.final_address = b""
        #: Of the same message: `TRACKED` or `HANDED_ON`, if it is settled on one side only; 0: as it came.
        self.exchange = 0

    def mark_dirty(self, link: KernelLink) -> None:
        """Note that a link has changed: its record is to be updated."""
        if not link.dirty:
            link.dirty = True
            self.dirty.append(link)

    def change(self, pool: Pool | None) -> None:
        """Have the credit of a pool divided once the batch is relayed: here, or by the router. Args: None: there."""
        if pool is None:
            self.needs_update = True
        elif not pool.is_open:
            self.leave(pool)
        elif not pool.is_due:
            pool.is_due = True
            self.due.append(pool)

    def change_open(self, pool: Pool | None) -> None:
        """Have the credit of a pool divided as `change` does, and have the router told if it is not open."""
        if pool is not None and pool.is_open:
            self.change(pool)
        else:
            self.needs_update = True

    def leave(self, pool: Pool) -> None:
        """Leave a pool to the router, now."""
        self.note(pool)
        self.needs_update = True

    def note(self, pool: Pool) -> None:
        """Leave a pool to the router, at its next turn."""
        if not pool.is_undealt:
            pool.is_undealt = True
            self.undealt.append(pool)

    def has_news(self) -> bool:
        """Return whether links or pools have changed since the router was last told."""
        return bool(self.dirty or self.left or self.flipped or self.undealt)

    def counter(self, link: KernelLink, tag: bytes) -> int:
        """Return the counter in the key of a delivery with `tag` on `link`; a new one if it enters the mesh here."""
        if link.lane and len(tag) == _KEY + 1:
            return (uint32(tag, 12) & 0xFFFF) << 32 | uint32(tag, 16)
        self.key_count += 1
        return self.key_count

    def next_key(self, hops: int) -> bytes:
        """Return the delivery-tag of a new delivery on a lane: its key, and the hops that it may make."""
        count = self.key_count + 1
        self.key_count = count
        page = count >> 8
        if page != self.key_page:
            self.key_page = page
            self.key_stem = self.key_prefix + page.to_bytes(5, "big")
        tails = self.key_tails[hops]
        if tails is None:
            tails = self.key_tails[hops] = tuple([bytes((octet, hops)) for octet in range(256)])
        return self.key_stem + tails[count & 0xFF]

    def begin_keys(self, prefix: bytes) -> None:
        """Set the prefix of new keys."""
        self.key_prefix = prefix
        self.key_page = -1
