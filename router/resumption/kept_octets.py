"""The octets of messages whose receivers may come back without all of them (§2.6.13, §3.4.6).

They are kept from the first frame of a delivery until it is settled, on links that were granted some time, whose
receiver's map does not say for certain what came whole. If there is no room, the user that has most loses its oldest:
such a delivery is aborted when its receiver comes back.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from amqpmesh.router.delivery.lifetime import leg_sent
from amqpmesh.router.kernel import Budget, SentMessages

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Leg
    from amqpmesh.router.model.links import OutgoingLink

#: Octets that each message counts in addition to its payload: for the objects around it.
_OVERHEAD: Final = 256

#: Once there is no room, so much is freed: a part of the limit.
_FREED: Final = 8

#: The most that a holder with most gives up beyond the next one, in one turn: a part of the limit.
_A_TURN: Final = 64


#: The most messages that one step gives up.
_AT_ONCE: Final = 500


class KeptOctets(SentMessages):
    """The messages of one link that are kept."""

    __slots__ = ("_parts", "_store", "holder", "messages")

    def __init__(self, store: OctetStore, holder: tuple[str, str]) -> None:
        """Args: holder: the tenant and the user, or host, for whom they are kept."""
        self._store = store
        self.holder = holder
        #: Whole messages by delivery-tag, the oldest first.
        self.messages: dict[bytes, bytes] = {}
        #: The begin of the message that is being sent. It grows in place: a large message may have many frames.
        self._parts: dict[bytes, bytearray] = {}

    def keep(self, tag: bytes, data: bytes, first: bool, more: bool) -> None:
        """Keep the next payload of a delivery, as `SentMessages.keep` does."""
        begin = None if first else self._parts.get(tag)
        if begin is None:
            if not (first and self._store.takes(len(data))):
                return
            if more:
                self._parts[tag] = bytearray(data)
            else:
                self.messages[tag] = data
            self._store.count(self, len(data) + _OVERHEAD)
            return
        if not self._store.takes(len(begin) + len(data)):
            self.drop(tag)
            return
        begin += data
        if not more:
            self.messages[tag] = bytes(self._parts.pop(tag))
        self._store.count(self, len(data))

    def drop(self, tag: bytes) -> None:
        """Free what is kept of a delivery, as `SentMessages.drop` does."""
        data: bytes | bytearray | None = self.messages.pop(tag, None)
        if data is None:
            data = self._parts.pop(tag, None)
        if data is not None:
            self._store.count(self, -len(data) - _OVERHEAD)

    @property
    def tags(self) -> list[bytes]:
        """The delivery-tags, those of whole messages first, the oldest first."""
        return [*self.messages, *self._parts]

    def first_tags(self, most: int) -> list[bytes]:
        """Return the same of the first ones. Args: most: of them."""
        return list(islice(chain(self.messages, self._parts), most))


class OctetStore:
    """The octets of all links of a router."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._account = Budget(context.budget.limit, context.budget)
        self._of_holder: dict[tuple[str, str], int] = {}
        #: The links of each holder for which something is kept, by octets.
        self._links: dict[tuple[str, str], dict[KeptOctets, int]] = {}
        #: Messages that were given up for want of room.
        self.given_up = 0

    @property
    def octets(self) -> int:
        """The octets that are kept, in all."""
        return self._account.used

    def keeping(self, holder: tuple[str, str]) -> KeptOctets | None:
        """Return the place of the messages of a link; None: none are kept."""
        limits = self._context.config.resumption
        return KeptOctets(self, holder) if limits.keep and limits.keep_max else None

    def takes(self, octets: int) -> bool:
        """Tell whether a message may be kept. Args: octets: of it."""
        if octets > self._context.config.resumption.keep_max or self._context.memory.is_over(self._account):
            self.given_up += 1
            return False
        return True

    def count(self, kept: KeptOctets, octets: int) -> None:
        """Count octets that a link keeps now, or (negative) does not keep any more, and make room if there is none."""
        holder = kept.holder
        links = self._links.setdefault(holder, {})
        links[kept] = links.get(kept, 0) + octets
        self._of_holder[holder] = self._of_holder.get(holder, 0) + octets
        self._account.add(octets)
        if not links[kept]:
            del links[kept]
            if not links:
                del self._links[holder], self._of_holder[holder]
        if octets > 0 and self._account.used > self._context.config.resumption.keep:
            most = self._context.config.resumption.keep
            self.make_room(most - most // _FREED)

    def make_room(self, most: int) -> None:
        """Give up messages of the holders that have most, the oldest first, until at most so many octets are left."""
        largest = [(-octets, holder) for holder, octets in self._of_holder.items()]
        heapify(largest)
        while largest and self._account.used > most:
            _, holder = heappop(largest)
            # Of several that have alike none has its turn for a few octets: each turn lists the messages of a link.
            next_largest = -largest[0][0] - most // _A_TURN if largest else 0
            while holder in self._links and not self._give_up(next(iter(self._links[holder])), most, next_largest):
                pass
            if holder in self._of_holder:
                heappush(largest, (-self._of_holder[holder], holder))

    def by_holder(self) -> dict[tuple[str, str], int]:
        """Return the octets that are kept for each holder."""
        return dict(self._of_holder)

    def of(self, holder: tuple[str, str]) -> int:
        """Return the octets that are kept for a holder."""
        return self._of_holder.get(holder, 0)

    def give_up(self, holder: tuple[str, str], octets: int) -> int:
        """Give up messages of a holder, as `LastingTermini.give_up_octets` does."""
        left = self.of(holder) - octets
        dropped = 0
        while holder in self._links and self._of_holder[holder] > left and dropped < _AT_ONCE:
            kept = next(iter(self._links[holder]))
            for tag in kept.first_tags(_AT_ONCE - dropped):
                kept.drop(tag)
                dropped += 1
                if self.of(holder) <= left:
                    break
        self.given_up += dropped
        return dropped

    def _give_up(self, kept: KeptOctets, most: int, next_largest: int) -> bool:
        """Give up messages of one link. Returns: whether that is enough, and not: the link has none left."""
        for tag in kept.tags:
            kept.drop(tag)
            self.given_up += 1
            if self._account.used <= most or self._of_holder.get(kept.holder, 0) < next_largest:
                return True
        return False


def keep_rest(context: Context, link: OutgoingLink, leg: Leg) -> bool:
    """Keep the rest of a message that has come whole, and has left in part. Returns: whether all of it is kept."""
    keeps, delivery = link.endpoint.flow_state.keeps, leg.delivery
    if keeps is None or delivery is None or not leg.relay.complete or leg.aborting:
        return False
    rest = b"".join(chunk.data for chunk in leg.chunks)[leg.offset :]
    keeps.keep(delivery.tag, rest, first=False, more=False)
    assert isinstance(keeps, KeptOctets)
    if delivery.tag not in keeps.messages:
        return False
    for chunk in leg.chunks:
        chunk.release()
    leg.chunks.clear()
    link.current = None
    delivery.complete = True
    leg_sent(context, leg)
    return True
