"""Spans of OpenTelemetry for deliveries: the begin of each, at the message whose sender asks for it.

The steps of the delivery are noted as those of a trace (`tracing`), and become the events of the span. The kernel
relays no message that gets a span, and looks at no context where no address gets any (`FastRoute.traced`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.delivery import tracing
from amqpmesh.router.model.foreign_links import name_of
from amqpmesh.router.model.lane import tenant_of

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Relay
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.node import Node


def begin(
    context: Context, relay: Relay, incoming: IncomingLink, node: Node | None, to: str | None, data: bytes
) -> None:
    """Begin the span of a delivery, if its message asks for one, and is in the share.

    A delivery that `amqpmesh trace` follows gets none.
    Args: node: the one that it came to; None: there is none. to: its address, if the messages of the link name their
        own. data: its first frame.
    """
    book, address = context.traces.spans, (node.name if node is not None else "") or to or ""
    if book is None or relay.message_format or relay in context.traces.relays or not book.has(address):
        return
    if not book.contexts.takes(data, 0, len(data)):
        return
    span = book.begin(relay, data, tenant_of(incoming), context.now, relay.came, context.wall_clock())
    if span is not None:
        tracing.follow(context, relay, incoming, span, len(data), name_of(incoming) or to)


def is_traced(context: Context, node: Node) -> bool:
    """Tell whether messages that come to a node may get spans."""
    return context.traces.spans is not None and context.traces.spans.has(node.name)
