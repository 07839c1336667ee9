"""Senders of several tenants at one node: they share the credit of its receivers by the weights of their tenants.

That is so once a sender of another tenant than the node's has come; until then the node's pool knows no tenants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel import CreditSink, Pool
from amqpmesh.router.model.links import IncomingLink

if TYPE_CHECKING:
    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.node import Node

SINKS_A_STEP: Final = 256
"""Senders of a node that one step of a chore counts as their tenants'; the nodes that one looks at."""


def share_credit(context: Context, node: Node, incoming: IncomingLink) -> None:
    """Count a new link of a client as its tenant's, if several tenants send to its node."""
    pool = node.pool
    if pool.weights:
        _join(context, pool, incoming.credit_sink)
        context.routes.contend(node)
    elif incoming.foreign is not None and incoming.foreign.crossing is not None:
        _join(context, pool, incoming.credit_sink)
        context.routes.contend(node)
        if len(pool.sinks) > 1:
            context.chores.put_off(_join_all(context, node))


def weigh_again(context: Context, policy: Policy) -> Steps[None]:
    """Give the tenants that share the credit of a node the weights of a policy, in small steps."""
    for number, local in enumerate(context.nodes.values(), 1):
        if context.policy is not policy:
            return
        pool = (local.ingress or local).pool  # senders of clients have links to the ingress, where there is one
        for tenant in pool.weights:
            pool.weigh(tenant, weight_of(policy, tenant))
        if pool.weights or number % SINKS_A_STEP == 0:
            yield


def weights(policy: Policy) -> dict[str, float]:
    """Return the weights of all tenants, by `Tenant.key`."""
    return {each.key: each.weight for each in policy.tenants}


def weight_of(policy: Policy | None, key: str) -> float:
    """Return the weight of a tenant. Args: key: as of `Tenant.key`."""
    tenant = None if policy is None else policy.tenant(key)
    return 1.0 if tenant is None else tenant.weight


def _join_all(context: Context, node: Node) -> Steps[None]:
    for number, sink in enumerate(list(node.pool.sinks), 1):
        if sink.pool is node.pool and sink.part is None:
            _join(context, node.pool, sink)
        if number % SINKS_A_STEP == 0:
            yield
    context.touch(node)


def _join(context: Context, pool: Pool, sink: CreditSink) -> None:
    owner = sink.owner
    key = owner.connection.peer.tenant if isinstance(owner, IncomingLink) and owner.lane is None else ""
    # At other routers it may have senders as well, and less than its weight here: the mesh weighs it so.
    weight = pool.weights.get(key)
    pool.join(sink, key, weight_of(context.policy, key) if weight is None else weight)
