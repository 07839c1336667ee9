"""Watches: receivers that show whether a node exists, for containers that accept messages for missing nodes.

RabbitMQ 3 accepts messages for a queue that does not exist, and drops them. But it refuses a receiver of such a queue,
and detaches a receiver when its queue is deleted. So the router attaches a *watch* beside a link that feeds a node: a
receiver of the same node that never gets credit. While the watch is refused because the node does not exist, the router
sends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, LinkCondition
from amqpmesh.router.config.connector import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.amqp.standard.definitions import Error

GONE: Final = frozenset({AmqpCondition.NOT_FOUND, AmqpCondition.RESOURCE_DELETED, LinkCondition.REDIRECT})
"""Conditions that say that a node does not exist."""

#: The prefixes of queues' addresses in RabbitMQ 3; a name without a slash is a queue's, too. Other nodes, exchanges and
#: topics, have no watch: RabbitMQ would make a queue for it, and all their messages would gather there.
_QUEUES: Final = ("/amq/queue/", "/queue/")


def drops_in_silence(properties: Mapping[Symbol, Value] | None) -> bool:
    """Return whether a container accepts messages for queues that do not exist. Args: properties: of its `open`."""
    told: Mapping[str, Value] = properties or {}  # type: ignore[assignment]  # a symbol is a string
    version = told.get("version")
    return told.get("product") == "RabbitMQ" and isinstance(version, str) and version.startswith("3.")


def is_watched(watch: Watch, node: str, *, is_doubtful: bool) -> bool:
    """Return whether a link that feeds a node needs a watch. Args: is_doubtful: its container `drops_in_silence`."""
    if watch is not Watch.AUTO:
        return watch is Watch.ALWAYS
    return is_doubtful and (node.startswith(_QUEUES) or not node.startswith("/"))


def is_gone(error: Error | None) -> bool:
    """Return whether an error says that the node does not exist."""
    return error is not None and error.condition in GONE
