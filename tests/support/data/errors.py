"""Errors with which peers detach links, and an empty message."""

from __future__ import annotations

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import Error, LinkCondition
from amqpmesh.router.message.content import Message

PAYLOAD = Message(b"").encode()

GONE = Error(condition=Symbol("amqp:resource-deleted"), description="swept away")
STOLEN = Error(condition=LinkCondition.STOLEN, description="by another")
REDIRECT = Error(
    condition=LinkCondition.REDIRECT,
    description="moved",
    info={
        Symbol("hostname"): "virtual.example",
        Symbol("network-host"): "10.0.0.1",
        Symbol("port"): 5673,
        Symbol("address"): "q2",
    },
)
