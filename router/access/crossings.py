"""Imported addresses: those of another tenant that a peer's names stand for, and dynamic nodes that it may answer.

The name that a peer uses is judged with the rights of its groups before; here it gets its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.exports import Use
from amqpmesh.router.access.needs import EXPORT
from amqpmesh.router.access.rights import NOT_PERMITTED, is_of_mesh
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, LinkCondition
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from amqpmesh.policies.exports import Crossing
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.node import DynamicNode


def crossing(context: Context, tenant: str, name: str, container: str | None, *, sends: bool) -> Crossing | None:
    """Return the address of another tenant that a name stands for; None: it is of the peer's own tenant.

    Args: tenant: the key of the peer's. name, container: of the address, after aliases.
    Raises: RefusedError: the name is an imported one, and no export permits the use.
    """
    policy = context.policy
    if policy is None or not policy.exports:
        return None
    imported = policy.exports.imported(tenant, name)
    if imported is None or not is_of_mesh(context, container):
        return None
    use = Use.SEND if sends else Use.RECEIVE
    found = policy.exports.crossing(imported, name, use)
    if found is None:
        raise refused(f"no export permits {use.action} {name}")
    return found


def answerable(context: Context, tenant: str, name: str) -> DynamicNode | None:
    """Return the dynamic node of another tenant whose name a peer was given, if an export permits answers there.

    Args: tenant: the key of the peer's. name: without a container.
    """
    policy = context.policy
    if policy is None or not policy.exports:
        return None
    node = context.nodes.find_dynamic(name)
    return node if node is not None and policy.exports.replies(tenant, node.tenant) is not None else None


def refused(reason: str) -> RefusedError:
    """Return the refusal of an address that is not exported. Args: reason: for the log."""
    return RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, NOT_PERMITTED, reason=reason, rule={"right": EXPORT})


def for_importer(refusal: RefusedError) -> RefusedError:
    """Return a refusal of an imported address as the importer may see it: what it says of the exporter is left out.

    Its condition stays, but for a redirect: the address elsewhere is the exporter's, and no export gives it.
    """
    condition = refusal.error.condition
    if condition == LinkCondition.REDIRECT:
        condition = AmqpCondition.NOT_FOUND
    assert isinstance(condition, AmqpCondition | LinkCondition)
    return RefusedError(condition, "the address is not served", reason=refusal.reason, rule=refusal.rule)
