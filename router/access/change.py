"""Changed policies and users: they hold for connections and links that exist."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amqpmesh.policies.groups import May
from amqpmesh.router.access import caps
from amqpmesh.router.access.crossings import crossing
from amqpmesh.router.access.rates import limit_rates
from amqpmesh.router.access.rights import NOT_PERMITTED, check_user_ids, is_judged, lack, refuse_connection, why
from amqpmesh.router.address_syntax import split
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.config.listener import PASSWORD_MECHANISMS
from amqpmesh.router.delivery.link_loss import fail_link
from amqpmesh.router.kernel import AnonymousRoutes
from amqpmesh.router.model.foreign_links import name_of
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import DynamicNode
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from amqpmesh.policies.access import Peer
    from amqpmesh.policies.policy import Policy
    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord


def put_in_force(context: Context, policy: Policy) -> None:
    """Put a policy in force. New links and messages are judged by it at once; those that exist, one after the other."""
    context.policy = policy
    caps.renew_tenants(context, policy)
    context.by_tenant = {each: counts for each, counts in context.by_tenant.items() if policy.has_tenant(each)}
    context.kernel.epoch += 1  # addresses of anonymous senders are judged again
    if context.connections:
        context.chores.put_off(_apply(context, policy))


def end_logins(context: Context) -> None:
    """Close the connections of users who may not log in by a password any more, and judge those whose groups are
    others now, in small steps.
    """
    if context.connections:
        context.chores.put_off(_end_logins(context))


def _end_logins(context: Context) -> Steps[None]:
    for record in list(context.connections):
        if not record.lost and check_login(context, record) and record.engine.remote is not None:
            _renew_groups(context, record)
        yield


def with_groups(context: Context, record: ConnectionRecord) -> Peer:
    """Return the peer of a connection, with the groups that the users of its listener have now."""
    peer, listener = record.peer, record.listener
    if listener is None or peer.user is None or peer.mechanism not in PASSWORD_MECHANISMS:
        return peer
    users = context.users_of(listener)
    groups = peer.groups if users is None or record.token is not None else users.groups_of(peer.user)
    return peer if groups == peer.groups else replace(peer, groups=groups)


def _renew_groups(context: Context, record: ConnectionRecord) -> None:
    """Judge a connection again whose user is in other groups now."""
    peer = with_groups(context, record)
    if peer is record.peer:
        return
    record.peer = peer
    if not is_judged(context, record):
        return
    assert context.policy is not None
    admitted = context.policy.admit(peer)
    if admitted is None or admitted.peer.tenant != peer.tenant:
        refuse_connection(context, record, "its tenant has changed")
    elif admitted.rights is not record.rights:
        record.rights = admitted.rights
        caps.renew(context, record, admitted.rights)
        judge_links(context, record, admitted.rights)


def check_login(context: Context, record: ConnectionRecord) -> bool:
    """Close the connection of a user who may not log in by a password any more, or whose certificate is revoked.

    Returns: whether the connection may stay.

    A peer may wait with its `open` for a while after its login; the users may have been read again in between.
    """
    peer, listener = record.peer, record.listener
    if listener is not None and record.certificate is not None and context.is_revoked(listener, record.certificate):
        refuse_connection(context, record, "the certificate is revoked")
        return False
    if listener is None or peer.user is None or peer.mechanism not in PASSWORD_MECHANISMS:
        return True
    users = context.users_of(listener)
    if users is None or users.may_log_in(peer.user):
        return True
    refuse_connection(context, record, "the user may not log in any more")
    return False


def _apply(context: Context, policy: Policy) -> Steps[None]:
    """Judge all connections and links again. A step is a connection or a link."""
    for record in list(context.connections):
        if context.policy is not policy:
            return
        if record.lost or record.engine.remote is None:
            continue
        if not is_judged(context, record):
            if record.inside:  # no group permits its links or refuses them, and imports are for each peer of a tenant
                yield from _apply_to_links(context, record, None)
            continue
        if record.token is not None and record.token.is_awaited:
            continue
        admitted = policy.admit(record.peer)
        if admitted is None or admitted.peer.tenant != record.peer.tenant:
            refuse_connection(context, record, "its tenant has changed")
        else:  # a peer that has asked for something since then has its new rights, but its links were not judged
            record.rights = admitted.rights
            caps.renew(context, record, admitted.rights)
            yield from _apply_to_links(context, record, admitted.rights)
        yield


def judge_links(context: Context, record: ConnectionRecord, rights: Rights) -> None:
    """Judge the links of one connection by other rights, which are in force for new links already."""
    for link in record.incoming:
        table = link.endpoint.flow_state.fast_route
        if isinstance(table, AnonymousRoutes):
            table.generation = 0  # its addresses are judged again, and not those of all other anonymous senders
    if record.incoming or record.outgoing:
        context.chores.put_off(_apply_to_links(context, record, rights))


def _apply_to_links(context: Context, record: ConnectionRecord, rights: Rights | None) -> Steps[None]:
    links: list[IncomingLink | OutgoingLink] = [*record.incoming, *record.outgoing]
    for link in links:
        if record.rights is not rights or record.lost:
            return
        reason = None if link.endpoint.flow_state.ended else _reason(context, link, rights)
        if reason is not None:
            context.count_denied(record.peer.tenant)
            context.log.info(
                "right withdrawn",
                connection=record.number,
                peer=record.host,
                link=link.endpoint.name,
                reason=f"{reason} any more",
            )
            if context.audit is not None:
                context.audit.of("right withdrawn", record, link=link.endpoint.name, reason=f"{reason} any more")
            error = Error(condition=AmqpCondition.UNAUTHORIZED_ACCESS, description=NOT_PERMITTED)
            fail_link(context, link, error)
        elif isinstance(link, IncomingLink) and not link.endpoint.flow_state.ended:
            limit_rates(context, link, rights)
            check_user_ids(link, rights)
        yield


def _reason(context: Context, link: IncomingLink | OutgoingLink, rights: Rights | None) -> str | None:
    """Return the reason why a link ends, for the log; None: its peer may have it. Args: rights: as of `_lack`."""
    lacking = None if rights is None else _lack(context, link, rights)
    return _foreign(context, link) if lacking is None else why(lacking)


def _foreign(context: Context, link: IncomingLink | OutgoingLink) -> str | None:
    """Return the reason why a link's node is not, or not any more, the one that its peer's name stands for.

    The link of a peer to its own tenant's node ends, too, if the tenant imports the name now.
    """
    policy, node, foreign, tenant = context.policy, link.node, link.foreign, link.connection.peer.tenant
    if policy is None or node is None or not (foreign is not None or policy.exports):
        return None
    if isinstance(node, DynamicNode):
        may = foreign is None or policy.exports.replies(tenant, node.tenant) is not None
        return None if may else "no export permits replies"
    name, container = split(name_of(link) or "")
    try:
        found = crossing(context, tenant, name, container, sends=isinstance(link, IncomingLink))
    except RefusedError as refusal:
        return refusal.reason
    before = None if foreign is None else foreign.crossing
    if before is None or found is None:
        return None if before is found else f"{name} does not stand for the same address"
    # An alias of the exporter's router may lead within one pattern, and out of the other.
    is_same = found[:2] == before[:2] and found.exported.offers(split(node.name)[0])
    return None if is_same else f"{name} does not stand for the same address"


def _lack(context: Context, link: IncomingLink | OutgoingLink, rights: Rights) -> str | None:
    """Return the right that a link needs and its peer does not have, for the log; None: there is none."""
    if isinstance(link, OutgoingLink) and link.copy and rights.may(May.COPY) is None:
        return May.COPY
    if isinstance(link.node, DynamicNode):
        is_made = link.node.maker is link.connection
        return May.DYNAMIC if is_made and rights.may(May.DYNAMIC) is None else None
    if link.node is not None:
        name, container = split(name_of(link) or "")
    else:  # each message of the link has an address of its own, but for a link that gives it by its target
        assert isinstance(link, IncomingLink), "an outgoing link has a node"
        name, container = ("", link.container) if link.to is None else split(link.to)
    return lack(context, rights, name, container, sends=isinstance(link, IncomingLink))
