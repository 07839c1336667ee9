"""Dynamic nodes: made for a link that asks for one, under a name of the router's choice (§3.5.3, §3.5.4, §3.5.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from amqpmesh.router.access import caps
from amqpmesh.router.address_syntax import DYNAMIC
from amqpmesh.router.amqp.codec.field_codecs import is_of_the_standard
from amqpmesh.router.amqp.codec.types import Described
from amqpmesh.router.amqp.link import Link, Receiver
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.standard.messaging import LifetimePolicy, Source, Target
from amqpmesh.router.memory.retained import LIFETIME_POLICY
from amqpmesh.router.model.lane import tenant_of_attach
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import DynamicNode

#: Characters of a container-id and of a link's name that the name of a dynamic node contains: enough to trace the node
#: to its link (§3.5.3), few enough for the smallest frame that a peer may take (§2.7.1).
TRACEABLE: Final = 32


def make_dynamic(
    context: Context, record: ConnectionRecord, endpoint: Link, lifetime: LifetimePolicy | None
) -> DynamicNode:
    """Make a node for a link with a dynamic source or target (§3.5.3, §3.5.4, dynamic).

    Only the connection that made it may receive from the node of a dynamic source; others send to it. All who know the
    name of a dynamic target's node may receive from it: its maker is the sender, and needs receivers.
    """
    made_for = f"{_traceable(record.peer.container_id)}/{_traceable(endpoint.name)}"
    name = f"{DYNAMIC}/{made_for}/{context.token(16)}"
    caps.make_node(context, record)
    node = context.nodes.make_dynamic(tenant_of_attach(record, endpoint.remote), name, record)
    node.member = record.usage
    node.is_open = isinstance(endpoint, Receiver)
    # If the link is refused after all, the node is not used, and is forgotten.
    context.touch(node)
    if lifetime is not None:
        node.lifetime = lifetime
    return node


def lifetime_of(terminus: object) -> LifetimePolicy | None:
    """Return the lifetime policy that a peer asks for its dynamic node; None: it asks for none.

    A policy that is an extension of the standard counts as none.
    Raises: RefusedError: the value is no lifetime policy.
    """
    if not (isinstance(terminus, Source | Target) and terminus.dynamic):
        return None
    lifetime = (terminus.dynamic_node_properties or {}).get(LIFETIME_POLICY)
    if isinstance(lifetime, LifetimePolicy | None):
        return lifetime
    if isinstance(lifetime, Described) and not is_of_the_standard(lifetime.descriptor):
        return None
    raise RefusedError(AmqpCondition.INVALID_FIELD, "the lifetime-policy is none (§3.5.9)")


def _traceable(text: str) -> str:
    """Return the beginning of a text, percent-encoded, in `TRACEABLE` characters at most."""
    text = text[:TRACEABLE]
    while len(encoded := quote(text, safe="")) > TRACEABLE:
        text = text[:-1]
    return encoded
