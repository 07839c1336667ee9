"""State of a router that changes with each transfer or disposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.delivery_keys import _KEY
from amqpmesh.router.kernel.encoded_values import uint32
from amqpmesh.router.kernel.frame_fields import DispositionFrame, FlowFrame, TransferFrame
from amqpmesh.router.kernel.head_sections import HeaderFields

if TYPE_CHECKING:
    from amqpmesh.router.kernel.hop_recorder import Recorder
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.relays import Relay

#: Seconds after a small delivery for which others are expected.
_BESIDE: Final = 0.1


class KernelRouter:
    """A router: its state that changes with each transfer and disposition."""

    __slots__ = (
        "disposition",
        "due",
        "flow",
        "generation",
        "header",
        "incoming_frame",
        "key_count",
        "key_page",
        "key_prefix",
        "key_stem",
        "key_tails",
        "most_relays",
        "now",
        "on_expand",
        "outgoing_frame",
        "recorder",
        "relays",
        "small_at",
        "touched",
    )

    def __init__(self) -> None:
        #: Called with what was expanded: the router knows more of it.
        self.on_expand: Callable[[Relay], None] | None = None
        #: Where it is recorded what came and left; None: nowhere.
        self.recorder: Recorder | None = None
        #: Seconds, of the batch that is handled.
        self.now = 0.0
        #: When a small delivery came last.
        self.small_at = -_BESIDE
        #: Live relays, and the most that were, since this was set to fewer.
        self.relays = 0
        self.most_relays = 0
        #: What was decided before this changed holds no more (`FastRoute`).
        self.generation = 1
        #: Links that were relayed on since their records were told (`KernelLink.touched`), and whether that is due:
        #: credit is to be given again, or is spent.
        self.touched: list[KernelLink] = []
        self.due = False
        #: The keys of deliveries that begin their way through the mesh here: what they begin with, and how many there
        #: were. All but the last octet of the count is the same in 256 of them: what those begin with, and which they
        #: are; -1: it is to be made. What follows is the last octet, and how many hops are left: all of them, by how
        #: many hops that is; None: there was no such key.
        self.key_prefix = b""
        self.key_count = 0
        self.key_stem = b""
        self.key_page = -1
        self.key_tails: list[tuple[bytes, ...] | None] = [None] * 256
        # The frames that are read and written now.
        self.incoming_frame = TransferFrame(0)
        self.outgoing_frame = TransferFrame(0)
        self.disposition = DispositionFrame(False, 0, 0, False, None)
        self.flow = FlowFrame()
        #: The header of the message that is relayed now, if it is of format 0.
        self.header = HeaderFields()

    def touch(self, link: KernelLink) -> None:
        """Something changed on a link that its record is to be told of."""
        if not link.touched:
            link.touched = True
            self.touched.append(link)

    def counter(self, link: KernelLink, tag: bytes) -> int:
        """The counter in the key of what came by `link` with `tag`; a new one, if it begins its way here."""
        if link.lane and len(tag) == _KEY + 1:
            return (uint32(tag, 12) & 0xFFFF) << 32 | uint32(tag, 16)
        self.key_count += 1
        return self.key_count

    def next_key(self, hops: int) -> bytes:
        """The delivery-tag of one more delivery on a lane: its key, and how many hops it may make."""
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
        """Keys begin with this from now on."""
        self.key_prefix = prefix
        self.key_page = -1
