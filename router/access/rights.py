"""Checks of what a peer may do, and refusals.

A peer is told that it may not, and nothing of the policy. The log says which right no group of the peer has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.exports import Use
from amqpmesh.policies.managing import CONFIDENTIAL, Manage
from amqpmesh.policies.user_ids import ALL, UserIds
from amqpmesh.router.access import caps
from amqpmesh.router.access.needs import EXPORT, is_of_dynamic_node, needed
from amqpmesh.router.amqp.sasl.exchange import SaslServer
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.delivery.link_loss import close_connection
from amqpmesh.router.kernel import UserIdRule
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.policies.exports import Crossing
    from amqpmesh.policies.groups import May
    from amqpmesh.policies.rights import Grant, Rights
    from amqpmesh.policies.tenants import Tenant
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.usage import Full

NOT_PERMITTED: Final = "not permitted"
"""The description of each refusal: a peer learns nothing of what exists, or of what others may do."""
NO_TENANT: Final = "?"
"""Stands for the tenant of users that come into none; no tenant has this key."""


def is_judged(context: Context, record: ConnectionRecord) -> bool:
    """Tell whether the policy rules a connection: those that clients have made to a listener.

    It rules neither links within the process, nor neighbours, nor containers that the router itself connects to.
    """
    listener = record.listener
    return context.policy is not None and listener is not None and not (listener.is_mesh or record.inside)


def tenant_of_login(context: Context, record: ConnectionRecord, user: str, *, named: bool = True) -> str | None:
    """Return the key of the tenant of a user whose password is checked; None: there are no tenants.

    The connection is not open yet: the hostname of its SASL exchange (§5.3.3.2) stands for that of its `open`.

    Args: user: as the client names it, proved or not. named: the client may choose the tenant by a hostname.
    """
    policy = context.policy
    if policy is None or not policy.tenants or not is_judged(context, record):
        return None
    sasl = record.engine.negotiation.sasl
    hostname = sasl.hostname if named and isinstance(sasl, SaslServer) else None
    peer = replace(record.peer, user=user, hostname=hostname, certificate_subject=record.certificate_subject)
    return key_of(policy.tenant_of(peer))


def key_of(tenant: Tenant | None) -> str:
    """Return the key of the tenant of a user whose password is checked. Args: tenant: None: the user is in none."""
    return NO_TENANT if tenant is None else tenant.key


def admit(context: Context, record: ConnectionRecord) -> bool:
    """Give a peer that has opened its connection its tenant and its rights.

    Returns: False: its connection was closed. It is in no tenant (§2.8.15, unauthorized-access), or a limit of
        connections is reached (resource-limit-exceeded).
    """
    if not is_judged(context, record):
        return True
    assert context.policy is not None
    admitted = context.policy.admit(record.peer)
    if admitted is None:
        refuse_connection(context, record, "the peer is in no tenant")
        return False
    record.peer, record.rights = admitted
    full = caps.enter(context, record, admitted.rights)
    if full is not None:
        context.limited += 1
        _close(context, record, full.reason, caps.error_of(full), full)
    else:
        record.judged = record.rights
    return full is None


def restrict(context: Context, record: ConnectionRecord) -> None:
    """Limit the frames and session windows of a connection as the policy says, before our `open` is sent (§2.7.1)."""
    if is_judged(context, record):
        assert context.policy is not None
        admitted = context.policy.admit(record.peer) if context.policy.limits_frames else None
        if admitted is not None:
            caps.restrict(record, admitted.rights)


def refuse_connection(context: Context, record: ConnectionRecord, reason: str) -> None:
    """Close a connection that the policy does not permit. Args: reason: for the log."""
    context.count_denied(record.peer.tenant)
    error = Error(condition=AmqpCondition.UNAUTHORIZED_ACCESS, description=NOT_PERMITTED)
    _close(context, record, reason, error)


def _close(context: Context, record: ConnectionRecord, reason: str, error: Error, full: Full | None = None) -> None:
    context.log.warning(
        "peer refused",
        connection=record.number,
        peer=record.host,
        container=record.peer.container_id,
        user=record.peer.user,
        reason=reason,
    )
    if context.audit is not None:
        rule = {} if full is None else caps.rule_of(record, full)
        context.audit.of("peer refused", record, reason=reason, rule=rule)
    close_connection(context, record, error)


def check(context: Context, record: ConnectionRecord, right: May) -> None:
    """Check a right that is no matter of a single address. Raises: RefusedError: the peer does not have it."""
    rights = _rights(context, record)
    if rights is not None and rights.may(right) is None:
        _deny(context, record, rights, right)


def check_address(context: Context, record: ConnectionRecord, name: str, container: str | None, *, sends: bool) -> None:
    """Check that a peer may send to an address, or receive from it.

    Args: name, container: of the address, after aliases. An empty name: it stands for all nodes of the container.
    Raises: RefusedError: the peer may not.
    """
    if context.policy is None and record.token is None:
        return
    rights = _rights(context, record)
    lacking = None if rights is None else lack(context, rights, name, container, sends=sends)
    if lacking is not None:
        assert rights is not None
        _deny(context, record, rights, lacking)


def lack(context: Context, rights: Rights, name: str, container: str | None, *, sends: bool) -> str | None:
    """Return the right that a peer lacks to use an address, for the log; None: it may. Args: as of `check_address`."""
    needs = needs_here(context, rights, name, container, sends=sends)
    lacking = next((right for right, grant in needs if grant is None), None)
    return f"{EXPORT}: {Use.SEND.action if sends else Use.RECEIVE.action} {name}" if lacking == EXPORT else lacking


def needs_here(
    context: Context, rights: Rights, name: str, container: str | None, *, sends: bool
) -> Iterator[tuple[str, Grant | Crossing | None]]:
    """Return the rights that a peer needs to use an address, each with its line, as `needed`. Args: as of
    `check_address`.
    """
    # Only the names of dynamic nodes and of imported addresses need the look at the mesh.
    is_ours = not (is_of_dynamic_node(name) or rights.policy.exports) or is_of_mesh(context, container)
    if is_reserved(name) and container in context.config.names:
        container = None
    return needed(rights, name, container, sends=sends, is_ours=is_ours)


def is_of_mesh(context: Context, container: str | None) -> bool:
    """Tell whether a container is none, or a router of the mesh, within reach or not."""
    return container is None or container in context.config.names or bool(context.routes.routers_of(container))


def may_read(context: Context, record: ConnectionRecord, kind: str | None = None) -> bool:
    """Tell whether a peer may read entities of a type at the management node, as far as its tenant has any.

    Args: kind: None: of all types.
    """
    if kind in CONFIDENTIAL and may_change(context, record, kind):
        return True
    try:
        rights = _rights(context, record)
    except RefusedError:
        return False
    return kind not in CONFIDENTIAL if rights is None else rights.manage(Manage.READ, kind) is not None


def may_change(context: Context, record: ConnectionRecord, kind: str | None = None) -> bool:
    """Tell whether a peer may change what the management node can change: its listener, or a group, permits it.

    Args: kind: the type of entities; None: all types.
    """
    if record.listener is not None and record.listener.manage:
        return True
    try:
        rights = _rights(context, record)
    except RefusedError:
        return False
    return rights is not None and rights.manage(Manage.WRITE, kind) is not None


def check_user_ids(incoming: IncomingLink, rights: Rights | None) -> None:
    """Have the user-ids of a link's messages checked. Args: rights: of its peer; None: it may use all."""
    rule, before = None, incoming.endpoint.flow_state.user_ids
    if rights is not None and rights.user_ids != ALL:
        user = incoming.connection.peer.user
        own = user.encode() if user is not None and UserIds.OWN in rights.user_ids else None
        rule = UserIdRule(own, UserIds.ABSENT in rights.user_ids)
        if before is not None:
            rule.walk, rule.skip = before.walk, before.skip  # a message may come at present
    incoming.endpoint.flow_state.user_ids = rule


def _rights(context: Context, record: ConnectionRecord) -> Rights | None:
    """Return the rights of a peer; None: the policy does not rule its connection.

    A policy that has just changed is in force at once, also where it has not been applied to links that exist.
    Raises: RefusedError: the peer is in no tenant any more, or in another one.
    """
    if record.token is not None and record.token.is_awaited:
        raise RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, NOT_PERMITTED, reason="it has put no token yet")
    if not is_judged(context, record):
        return None
    rights = record.rights
    if rights is None or rights.policy is not context.policy:
        assert context.policy is not None
        admitted = context.policy.admit(record.peer)
        if admitted is None or admitted.peer.tenant != record.peer.tenant:
            raise RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, NOT_PERMITTED, reason="its tenant has changed")
        rights = record.rights = admitted.rights
        record.judged = None  # its links are judged later, or were judged by others
    return rights


def why(lacking: str) -> str:
    """Return the reason of a refusal, for the log. Args: lacking: the right that is missing, as `lack` returns it."""
    right, is_export, use = lacking.partition(f"{EXPORT}: ")
    return f"no export permits {use}" if is_export and not right else f"no group permits {lacking}"


def _deny(context: Context, record: ConnectionRecord, rights: Rights, lacking: str) -> NoReturn:
    context.count_denied(record.peer.tenant)
    groups = ", ".join(rights.groups) or "none"
    reason = f"{why(lacking)}; its groups: {groups}"
    raise RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, NOT_PERMITTED, reason=reason, rule={"right": lacking})
