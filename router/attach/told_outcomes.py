"""Outcomes that a returning sender of rcv-settle-mode first hears by our attach alone.

A sender may resume each delivery of our map, and is told the outcome once more. Some senders do not resume a delivery
whose outcome our attach has told: they have settled it (§2.6.13). In mode first the router settles it as well, once the
sender has shown that it has read our attach, and has had time to resume the delivery. In mode second it waits for the
sender's settlement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.delivery.permitted import is_outcome
from amqpmesh.router.delivery.settlement import resumed
from amqpmesh.router.kernel import expanded, serial_distance, told_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.attach.reattaching import Unsettled
    from amqpmesh.router.context import Context, Errand
    from amqpmesh.router.model.links import IncomingLink

#: Seconds between two looks at the links whose senders have been told outcomes.
LOOK: Final = 1.0


class _Told:
    """The outcomes that the sender of one link was told."""

    __slots__ = ("has_read", "limit", "resumed", "since", "tags")

    def __init__(self, tags: list[bytes], since: int, limit: int) -> None:
        #: The delivery-tags whose outcomes our attach had.
        self.tags = tags
        #: The delivery-count at the attach, and the delivery-limit: without credit.
        self.since = since
        self.limit = limit
        #: Transfers that have resumed deliveries since.
        self.resumed = 0
        #: At the last look the sender had read our attach.
        self.has_read = False


class ToldOutcomes:
    """The links whose senders have been told outcomes by our attach, and may not resume the deliveries."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: dict[IncomingLink, _Told] = {}
        self._errand: Errand | None = None

    def tell(self, incoming: IncomingLink, deliveries: Mapping[bytes, Unsettled]) -> None:
        """Note the outcomes that our attach tells, and ask the sender for a sign that it has read them.

        Args: deliveries: those of the map, by delivery-tag.
        """
        endpoint = incoming.endpoint
        tags = [tag for tag, each in deliveries.items() if is_outcome(told_outcome(each))]
        if endpoint.flow_state.second or not tags:
            return
        self._told[incoming] = _Told(tags, endpoint.delivery_count, endpoint.shown_limit)
        endpoint.owes_echo = True
        endpoint.request_flow()
        self._wait()

    def resumed(self, incoming: IncomingLink) -> None:
        """Note that a sender resumes a delivery, known or not."""
        told = self._told.get(incoming)
        if told is not None:
            told.resumed += 1

    def _wait(self) -> None:
        if self._told and self._errand is None:
            self._errand = self._context.schedule(self._context.now + LOOK, self._look)

    def _look(self) -> None:
        """Settle what senders have read and not resumed: they had time for it since the look before."""
        self._errand = None
        for incoming, told in tuple(self._told.items()):
            if not (incoming.endpoint.is_attached and incoming.endpoint.session.can_send):
                del self._told[incoming]
            elif told.has_read or self._has_gone_on(incoming, told):
                del self._told[incoming]
                self._settle(incoming, told)
            else:
                told.has_read = self._has_read(incoming, told)
        self._wait()

    @staticmethod
    def _has_gone_on(incoming: IncomingLink, told: _Told) -> bool:
        """Tell whether a sender has sent a new delivery behind those that it has resumed."""
        return serial_distance(told.since, incoming.endpoint.delivery_count) > told.resumed

    @staticmethod
    def _has_read(incoming: IncomingLink, told: _Told) -> bool:
        """Tell whether a sender has shown that it knows of credit, which came behind our attach."""
        return incoming.endpoint.shown_limit != told.limit

    def _settle(self, incoming: IncomingLink, told: _Told) -> None:
        unsettled = incoming.endpoint.flow_state.unsettled
        for tag in told.tags:
            entry = unsettled.get(tag)
            if entry is None or not is_outcome(told_outcome(entry)):
                continue  # a new delivery may have the tag
            delivery = expanded(entry)
            if delivery.delivery_id == -1:
                delivery.remote_settled = True
                resumed(self._context, delivery)
