"""The reason why a sender has no credit, asked of the router."""

from collections.abc import Mapping
from typing import Final

import trio

from amqpmesh.router.amqp.connection import OURS, PRODUCT
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.queries import body_of
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message

ANSWER_TIME: Final = 2.0
"""Seconds for the router to answer: the sender waits meanwhile anyway."""

UNKNOWN: Final = "the peer gives none, and does not say why"
"""The text for other peers, and for routers that do not answer."""


async def why_no_credit(connection: Connection, link: str) -> str:
    """Ask the peer's `$management` for the reason of one of our senders. Args: link: its name."""
    try:
        if (connection.peer.properties or {}).get(PRODUCT) == OURS:
            with trio.move_on_after(ANSWER_TIME):
                async with connection.requester(ADDRESS) as requester:
                    asked = {"operation": "READ", "type": f"{PREFIX}link", "name": link}
                    told = body_of(await requester.request(Message(application_properties=asked)))
                if isinstance(told, Mapping) and isinstance(reason := told.get("reason"), str):
                    return reason
    except AmqpMeshError:
        pass  # nobody has to answer that
    return UNKNOWN
