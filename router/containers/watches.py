"""Watches: they show whether the node that a link feeds exists, where its container accepts messages in any case.

RabbitMQ 3 accepts, and drops, what is sent to a queue that is not there. It refuses a receiver of such a queue, and a
receiver ends with its queue. So beside a link that feeds a node a *watch* is attached: a receiver of the same node that
is never given credit. While the watch is refused because the node is not there, nothing is sent.
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
"""Conditions that say that a node is not there."""

#: What the addresses of queues begin with in RabbitMQ 3; a name without a slash is a queue's, too. For a receiver
#: of another node, an exchange or a topic, a queue is made, where all messages would gather.
_QUEUES: Final = ("/amq/queue/", "/queue/")


def drops_in_silence(properties: Mapping[Symbol, Value] | None) -> bool:
    """Whether the container that sent these properties in its `open` accepts messages for queues that are not there."""
    told: Mapping[str, Value] = properties or {}  # type: ignore[assignment]  # a symbol is a string
    version = told.get("version")
    return told.get("product") == "RabbitMQ" and isinstance(version, str) and version.startswith("3.")


def is_watched(watch: Watch, node: str, *, is_doubtful: bool) -> bool:
    """Whether a link that feeds a node has a watch. Args: is_doubtful: its container drops in silence."""
    if watch is not Watch.AUTO:
        return watch is Watch.ALWAYS
    return is_doubtful and (node.startswith(_QUEUES) or not node.startswith("/"))


def is_gone(error: Error | None) -> bool:
    """Whether an error says that the node is not there."""
    return error is not None and error.condition in GONE
