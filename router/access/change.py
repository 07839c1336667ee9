"""Changed policies and users: they hold for connections and links that exist."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.router.access import caps
from amqpmesh.router.access.contention import weigh_again, weights
from amqpmesh.router.access.judging import Comparison, Verdict, judge
from amqpmesh.router.access.rates import limit_rates
from amqpmesh.router.access.rights import NOT_PERMITTED, check_user_ids, is_judged, refuse_connection
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.config.listener import PASSWORD_MECHANISMS
from amqpmesh.router.delivery.link_loss import fail_link, stop_link
from amqpmesh.router.kernel import AnonymousRoutes

if TYPE_CHECKING:
    from amqpmesh.policies.access import Peer
    from amqpmesh.policies.lost_rights import LostRights
    from amqpmesh.policies.policy import Policy
    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink

LINKS_A_STEP: Final = 16
"""Links that one step of a chore judges, and stops."""


def put_in_force(context: Context, policy: Policy) -> None:
    """Put a policy in force. New links and messages are judged by it at once; those that exist, one after the other."""
    before, context.policy = context.policy, policy
    caps.renew_tenants(context, policy)
    context.by_tenant = {each: counts for each, counts in context.by_tenant.items() if policy.has_tenant(each)}
    context.kernel.epoch += 1  # addresses of anonymous senders are judged again
    if context.connections:
        context.chores.put_off(_apply(context, policy))
        if before is None or weights(before) != weights(policy):
            context.chores.put_off(weigh_again(context, policy))
    context.on_tenants()


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
    """Judge all connections again, and those links whose peers have lost a right; then see to the rates of links, so
    that no right outlives its end for them.
    """
    limited: dict[ConnectionRecord, Rights] = {}
    stopped: deque[Verdict] = deque()
    try:
        yield from _judge_all(context, policy, stopped, limited)
    finally:
        _end_later(context, stopped)
    for record, rights in limited.items():
        if context.policy is not policy:
            return
        yield from _limit(context, record, rights)


def _judge_all(
    context: Context, policy: Policy, stopped: deque[Verdict], limited: dict[ConnectionRecord, Rights]
) -> Steps[None]:
    """Judge all connections again. Args: stopped: as of `_judge`. limited: gets those with other rates."""
    comparison = Comparison(policy)
    for record in list(context.connections):
        if context.policy is not policy:
            return
        if record.lost or record.engine.remote is None:
            continue
        if not is_judged(context, record):
            if record.inside:  # no group permits its links or refuses them, and imports are for each peer of a tenant
                yield from _judge(context, record, None, None, stopped)
            continue
        if record.token is not None and record.token.is_awaited:
            continue
        admitted = policy.admit(record.peer)
        if admitted is None or admitted.peer.tenant != record.peer.tenant:
            refuse_connection(context, record, "its tenant has changed")
            yield
            continue
        # A peer that has asked for something since then has its new rights, but its links were not judged.
        rights, before = admitted.rights, record.judged
        record.rights, record.judged = rights, None
        caps.renew(context, record, rights)
        yield from _judge(context, record, rights, comparison.lost(before, rights), stopped)
        if before is None or before.user_ids != rights.user_ids:
            yield from _check_user_ids(context, record, rights)
        if record.rights is rights:
            if comparison.are_rates_equal(before, rights):
                record.judged = rights
            else:
                limited[record] = rights
        yield


def judge_links(context: Context, record: ConnectionRecord, rights: Rights) -> None:
    """Judge the links of one connection by other rights, which are in force for new links already."""
    record.judged = None
    for link in record.incoming:
        table = link.endpoint.flow_state.fast_route
        if isinstance(table, AnonymousRoutes):
            table.generation = 0  # its addresses are judged again, and not those of all other anonymous senders
    if record.incoming or record.outgoing:
        context.chores.put_off(_apply_to_links(context, record, rights))


def _apply_to_links(context: Context, record: ConnectionRecord, rights: Rights) -> Steps[None]:
    stopped: deque[Verdict] = deque()
    try:
        yield from _judge(context, record, rights, Comparison(rights.policy).lost(None, rights), stopped)
    finally:
        _end_later(context, stopped)
    yield from _check_user_ids(context, record, rights)
    yield from _limit(context, record, rights)


def _judge(
    context: Context,
    record: ConnectionRecord,
    rights: Rights | None,
    lost: LostRights | None,
    stopped: deque[Verdict],
) -> Steps[None]:
    """Stop the links of a connection that its peer may not have any more.

    Args: rights, lost: as of `judge`. stopped: gets the links, which the caller has to end.
    """
    if lost is not None and not lost:
        return
    links: list[IncomingLink | OutgoingLink] = [*record.incoming, *record.outgoing]
    for number, link in enumerate(links, 1):
        if record.rights is not rights or record.lost:
            return
        if not _is_over(context, link):
            verdict = judge(context, link, rights, lost)
            if verdict is not None:
                if stop_link(context, link):
                    stopped.append(verdict)
                else:
                    _withdraw(context, verdict)
        if number % LINKS_A_STEP == 0:
            yield


def _is_over(context: Context, link: IncomingLink | OutgoingLink) -> bool:
    """Tell whether a link has ended, or takes and gives nothing more."""
    return link.endpoint.flow_state.ended or link in context.ended_links.stopped


def _end_later(context: Context, stopped: deque[Verdict]) -> None:
    if stopped:
        context.chores.put_off(_end(context, stopped))


def _end(context: Context, stopped: deque[Verdict]) -> Steps[None]:
    """Detach links that have stopped, whatever the policy says by now: messages may have been dropped."""
    try:
        while stopped:
            verdict = stopped.popleft()
            del context.ended_links.stopped[verdict.link]
            if not verdict.link.endpoint.flow_state.ended:
                _withdraw(context, verdict)
            yield
    finally:
        _end_later(context, stopped)  # if one has failed


def _withdraw(context: Context, verdict: Verdict) -> None:
    link, reason = verdict.link, f"{verdict.reason} any more"
    record = link.connection
    context.count_denied(record.peer.tenant)
    context.log.info(
        "right withdrawn", connection=record.number, peer=record.host, link=link.endpoint.name, reason=reason
    )
    if context.audit is not None:
        context.audit.of("right withdrawn", record, link=link.endpoint.name, reason=reason)
    error = Error(condition=AmqpCondition.UNAUTHORIZED_ACCESS, description=NOT_PERMITTED)
    fail_link(context, link, error)


def _check_user_ids(context: Context, record: ConnectionRecord, rights: Rights) -> Steps[None]:
    for number, link in enumerate(list(record.incoming), 1):
        if record.rights is not rights or record.lost:
            return
        if not _is_over(context, link):
            check_user_ids(link, rights)
        if number % LINKS_A_STEP == 0:
            yield


def _limit(context: Context, record: ConnectionRecord, rights: Rights) -> Steps[None]:
    """Give the links of a connection the rates of other rights: then all its links are as these rights say."""
    for link in list(record.incoming):
        if record.rights is not rights or record.lost:
            return
        if not _is_over(context, link):
            limit_rates(context, link, rights)
            yield
    if record.rights is rights:
        record.judged = rights
