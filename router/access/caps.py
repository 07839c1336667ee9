"""Limits of what tenants, users and hosts may have: each connection, session, link and dynamic node is counted here.

What is there stays, even if its limit shrinks; new ones are refused until there are fewer. A peer is told that a limit
is reached. The log says which one, and whose.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.limits import BURST, UNLIMITED
from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.credit.rate_line import Rate, RateOwner
from amqpmesh.router.delivery.memory_pressure import nodes
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import DynamicNode
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.model.usage import RECEIVER, SENDER, Full, Kind, Owner, move_account

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.policies.limits import Allowance
    from amqpmesh.policies.policy import Policy
    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.amqp.connection_settings import ConnectionSettings
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.usage import Member, Usage

TENANTS_AT_ONCE: Final = 1_000
"""Counts that get the limits of a changed policy in one turn."""

_DESCRIPTIONS: Final = {
    Kind.CONNECTIONS: "too many connections",
    Kind.SESSIONS: "too many sessions",
    Kind.LINKS: "too many links",
    Kind.SENDERS: "too many links",
    Kind.RECEIVERS: "too many links",
    Kind.DYNAMIC: "too many dynamic nodes",
}
"""The descriptions of refusals: they do not say whose limit is reached, or which it is."""


def enter(context: Context, record: ConnectionRecord, rights: Rights) -> Full | None:
    """Count a connection that its peer has opened, and sessions that have begun before its peer has put a token.

    Returns: the limit that forbids the connection.
    """
    peer = record.peer
    member = context.usages.join(
        peer.tenant,
        peer.user or record.host,
        record.host,
        is_anonymous=peer.user is None,
        of_tenant=rights.tenant_limits,
        of_user=rights.limits,
    )
    # Another worker, which hands it over, has admitted the connection, and counts it until it lets go of it.
    full = None if record.is_handed_over else _too_many(context, member, "new_connections", Kind.CONNECTIONS)
    if full is None:
        full = context.usages.enter(member, forced=record.is_handed_over)
    else:
        context.usages.part_from(member)
    if full is None:
        record.usage = member
        _move(record, member)
        for session in record.engine.channels.sessions:
            member.begin(session, forced=True)
        _share(context, record, rights)
    return full


def _share(context: Context, record: ConnectionRecord, rights: Rights) -> None:
    """Have a connection share the time of the router with those of other tenants."""
    record.contender = rights.contender
    if rights.contender is not None:
        context.on_tenant(record, rights.contender)


def renew(context: Context, record: ConnectionRecord, rights: Rights) -> None:
    """Give the counts of a connection the limits of a changed policy; count all that it has, if nothing was counted."""
    if record.usage is not None:
        context.usages.give(record.usage, rights.limits)
        _move(record, record.usage)
        _share(context, record, rights)
        return
    record.is_handed_over, before = True, record.is_handed_over
    enter(context, record, rights)
    record.is_handed_over = before
    member = record.usage
    assert member is not None
    for link in (*record.incoming, *record.outgoing):
        if link.key is not None:
            member.take(*_kinds(link), forced=True)
        node = link.node
        if isinstance(node, DynamicNode) and node.maker is record and node.member is None:
            node.member = member
            member.take(Kind.DYNAMIC, forced=True)


def renew_tenants(context: Context, policy: Policy) -> None:
    """Give the counts of tenants and hosts the limits of a changed policy: of some at once, of thousands in steps."""
    steps = _renew_tenants(context, policy)
    if sum(1 for _ in islice(steps, TENANTS_AT_ONCE)) == TENANTS_AT_ONCE:
        context.chores.put_off(steps)


def _renew_tenants(context: Context, policy: Policy) -> Steps[None]:
    for tenant in policy.tenants:
        if tenant.limits is not UNLIMITED:
            context.usages.of(Owner(tenant.key))  # addresses have octets of it, also without a client of its own
            yield
    has_parts = False
    for usage in context.usages:
        if usage.owner.user is None and policy.has_tenant(usage.owner.tenant):
            had_part = usage.budget is not None
            context.usages.limit(usage, policy.limits_of(usage.owner.tenant))
            has_parts = has_parts or (usage.budget is not None and not had_part)
            yield
            if context.policy is not policy:
                return
    if has_parts and len(context.nodes):
        context.chores.put_off(_move_nodes(context))


def _move_nodes(context: Context) -> Steps[None]:
    """Count the octets that wait at addresses as part of what their tenants may take."""
    for node in list(nodes(context)):
        node.belong_to(context.usages.memory_of(node.tenant))
        yield


def _move(record: ConnectionRecord, member: Member) -> None:
    """Count the octets of a connection as part of what its user, or its tenant, may take."""
    budget = member.user.budget or member.tenant.budget
    if budget is not None:
        move_account(record.account, budget)


def begin(context: Context, record: ConnectionRecord, session: Session) -> Error | None:
    """Count a session that a peer has begun. Returns: the error to end it with; None: it is permitted."""
    if record.usage is None:
        return None
    full = record.usage.begin(session, forced=record.is_handed_over)
    if full is None:
        return None
    context.limited += 1
    context.log.info("session refused", connection=record.number, peer=record.host, reason=full.reason)
    if context.audit is not None:
        context.audit.of("session refused", record, reason=full.reason, rule=rule_of(record, full))
    return error_of(full)


def attach(context: Context, record: ConnectionRecord, *, sends: bool, replaces: bool) -> None:
    """Count a link that a peer attaches.

    Args: sends: the peer sends on it. replaces: another link of its name, which is counted, ends at once.
    Raises: RefusedError: a limit forbids it.
    """
    if record.usage is not None:
        kinds = SENDER if sends else RECEIVER
        full = record.usage.take(*kinds, forced=replaces)
        if full is None:
            full = _too_many(context, record.usage, "attaches", Kind.LINKS)
            if full is not None:
                record.usage.release(*kinds)
        if full is not None:
            _refuse(context, record, full)


def _too_many(context: Context, member: Member, name: str, kind: Kind) -> Full | None:
    """Count one more connection or attach of the last second. Returns: the rate that forbids it.

    Args: name: of the rate in a policy.
    """
    usages: dict[RateOwner, Usage] = {}
    rates = []
    for usage in (member.tenant, member.user):
        allowance = usage.allowance
        rate: float | None = getattr(allowance, name)
        if rate is not None:
            burst = rate * (BURST if allowance.burst is None else allowance.burst)
            owner = _rate_owner(name, usage.owner)
            usages[owner] = usage
            rates.append(Rate(owner, rate, burst, False, tenant=owner.tenant, workers=context.config.workers))
    lacking = context.rates.spend(rates, context.now) if rates else None
    return None if lacking is None else Full(usages[lacking.owner], kind, name)


def _rate_owner(name: str, owner: Owner) -> RateOwner:
    """Return the owner of a rate. Args: name: of the rate in a policy."""
    if owner.is_anonymous:
        return RateOwner(name, owner.tenant, host=owner.user)
    return RateOwner(name, owner.tenant, user=owner.user, host=owner.host)


def give_back(record: ConnectionRecord, *, sends: bool) -> None:
    """Count a link no more that was refused after all."""
    if record.usage is not None:
        record.usage.release_late(*(SENDER if sends else RECEIVER))


def make_node(context: Context, record: ConnectionRecord) -> None:
    """Count a dynamic node that a peer makes. Raises: RefusedError: a limit forbids it."""
    if record.usage is not None:
        full = record.usage.take(Kind.DYNAMIC)
        if full is not None:
            _refuse(context, record, full)


def unsettled(
    context: Context, record: ConnectionRecord, most: int, robbed: Iterable[IncomingLink | OutgoingLink]
) -> int | None:
    """Return how many deliveries a new receiver may have unsettled; None: no limit says it.

    Args: most: of its address. robbed: links of its name, which end at once: it takes over what they may have.
    Raises: RefusedError: the other receivers may have all that the limit allows.
    """
    leased = None
    if record.usage is not None:
        members = [(each, each.connection.usage) for each in robbed if isinstance(each, OutgoingLink)]
        freed = sum(member.leases.get(each, 0) for each, member in members if member is not None)
        leased = record.usage.lease(most, freed)
    if leased == 0:
        context.limited += 1
        description = "too many unsettled deliveries"
        reason, rule = "limit reached: unsettled", {"limit": "unsettled"}
        raise RefusedError(AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description, reason=reason, rule=rule)
    return leased


def message_size(record: ConnectionRecord) -> int:
    """Return the octets of the largest message that a peer may send; 0: there is no limit (§2.7.3)."""
    limits = [record.limits.max_message_size or None]
    if record.rights is not None:
        limits += [record.rights.limits.message, record.rights.tenant_limits.message]
    return min((each for each in limits if each is not None), default=0)


def restrict(record: ConnectionRecord, rights: Rights) -> None:
    """Give a connection the frame size and the session windows of its peer's limits, before its `open` is answered."""
    settings = _restricted(record.engine.settings, rights.tenant_limits, rights.limits)
    if settings is not record.engine.settings:
        record.engine.restrict(settings)


@lru_cache(maxsize=256)
def _restricted(settings: ConnectionSettings, of_tenant: Allowance, of_user: Allowance) -> ConnectionSettings:
    frame = _tightest(settings.max_frame_size, of_tenant.frame, of_user.frame)
    window = _tightest(settings.window, of_tenant.session_window, of_user.session_window)
    if frame == settings.max_frame_size and window == settings.window:
        return settings
    # The first session may have a wider window while its messages are small: that is limited, too.
    small_window = _tightest(settings.small_window, of_tenant.session_window, of_user.session_window)
    return replace(settings, max_frame_size=frame, window=window, small_window=small_window)


def _tightest(limit: int, *others: int | None) -> int:
    return min(limit, *(each for each in others if each is not None), limit)


def error_of(full: Full) -> Error:
    """Return the error that a peer gets."""
    return Error(condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description=_DESCRIPTIONS[full.kind])


def rule_of(record: ConnectionRecord, full: Full) -> dict[str, object]:
    """Return the fields of the audit log on a limit: its name and value, whose it is, and its line of the policy."""
    rule: dict[str, object] = {"limit": full.limit, "allowed": full.allowed, "of": full.whose}
    if full.usage.owner.user is None:
        return {**rule, "line": f'limits.{full.limit} of tenant "{full.usage.owner.tenant or OPERATOR}"'}
    if record.rights is None:
        return rule
    # The widest limit of all groups of the peer counts.
    policy = record.rights.policy
    groups = (policy.group(full.usage.owner.tenant, name) for name in record.rights.groups)
    lines = (
        f'{group.key}.limits.{full.limit} of group "{group.name}"'
        for group in groups
        if group is not None and getattr(group.limits, full.limit) == full.allowed
    )
    return {**rule, "line": next(lines, None)}


def _refuse(context: Context, record: ConnectionRecord, full: Full) -> None:
    context.limited += 1
    raise RefusedError(
        AmqpCondition.RESOURCE_LIMIT_EXCEEDED,
        _DESCRIPTIONS[full.kind],
        reason=full.reason,
        rule=rule_of(record, full) if context.audit is not None else None,
    )


def _kinds(link: IncomingLink | OutgoingLink) -> tuple[Kind, ...]:
    return SENDER if isinstance(link, IncomingLink) else RECEIVER
