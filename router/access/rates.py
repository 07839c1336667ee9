"""Rates of clients, which are kept by withholding credit: the rates of each link, and the turns of links that wait."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.limits import BURST
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.credit.rate_line import Rate, RateLine, RateOwner
from amqpmesh.router.kernel import RateMeter
from amqpmesh.router.model.links import IncomingLink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.policies.limits import Allowance
    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.context import Context

ANSWER: Final = 1.0
"""Seconds for the answer of a sender without an address that is asked to return credit; a pool waits by itself."""


def limit_rates(context: Context, incoming: IncomingLink, rights: Rights | None) -> None:
    """Have a link of a client limited by the rates of its tenant and its user, as they are now.

    Args: rights: of the client; None: the policy does not rule its connection.
    """
    rates = () if rights is None else tuple(_rates(incoming, rights, context.config.workers))
    sink, flow_state = incoming.credit_sink, incoming.endpoint.flow_state
    meter = sink.meter
    if meter is None:
        if not rates:
            return
        record = incoming.connection
        line = context.rates.of(record.peer.tenant, record.principal)
        meter = sink.meter = flow_state.meter = RateMeter(flow_state, line)
    assert isinstance(meter.line, RateLine)
    meter.line.limit(meter, rates, sink.granted, context.now)
    if not rates:
        sink.meter = flow_state.meter = None
    _resume(context, incoming)


def give_turns(context: Context) -> None:
    """Have the links granted credit whose turn has come, and their sessions' windows opened that have paid."""
    # First, since `turns` sets the time of the next look at the others, too.
    debtors = context.rates.debtors.take(context.now)
    for meter in debtors:
        incoming = meter.link.record
        assert isinstance(incoming, IncomingLink)
        meter.settle(incoming.credit_sink.granted, context.now)
    context.rates.paid(debtors, context.now)
    for meter in context.rates.turns(context.now):
        incoming = meter.link.record
        assert isinstance(incoming, IncomingLink)
        _resume(context, incoming)
    for meter in context.rates.holders():
        incoming = meter.link.record
        assert isinstance(incoming, IncomingLink)
        meter.settle(incoming.credit_sink.granted, context.now)  # a pool may have taken back what was not returned
        if incoming.pool.reclaim_unused(incoming.credit_sink, context.now):
            context.touch_input(incoming)
            if isinstance(incoming.pool, FixedCredit):
                context.schedule(context.now + ANSWER, partial(_end_drain, context, incoming))


def _end_drain(context: Context, incoming: IncomingLink) -> None:
    """Take back the credit of a sender without an address that has not answered a drain."""
    if isinstance(incoming.pool, FixedCredit):
        incoming.pool.end_drain(incoming.credit_sink)
        context.touched_windows[incoming.pool] = None


def _resume(context: Context, incoming: IncomingLink) -> None:
    incoming.pool.resume(incoming.credit_sink)
    if isinstance(incoming.pool, FixedCredit):
        context.touched_windows[incoming.pool] = None
    elif incoming.node is not None:
        context.touched[incoming.node] = None  # its fast route stays valid: no delivery leaves otherwise than before


def _rates(incoming: IncomingLink, rights: Rights, workers: int) -> Iterator[Rate]:
    """Yield the rates of a link. Args: workers: of the router, which have together a rate that links share."""
    record, node = incoming.connection, incoming.node
    tenant, user = record.peer.tenant, record.peer.user
    of_tenant = None if rights.tenant is None else rights.tenant.limits
    if of_tenant is not None:
        yield from _of(of_tenant, "", RateOwner("", tenant), tenant, workers)
    if node is not None:
        # An imported address is another tenant's. The router's own are shared by all, and each has its part of them.
        owner = tenant if is_reserved(node.name) else node.tenant
        of_address = RateOwner("", owner, address=node.name)
        yield from _of(rights.policy.limits_of(owner), "_per_address", of_address, tenant, workers, by_name=True)
    # All connections of a user share its rates, also if tokens of some have other limits: the tightest hold.
    of_user = rights.limits if record.usage is None else record.usage.user.allowance
    whose = RateOwner("", tenant, host=record.host) if user is None else RateOwner("", tenant, user=user)
    yield from _of(of_user, "", whose, tenant, workers)
    for kind, limits in (("tenant", of_tenant), ("user", of_user)):
        if limits is not None:
            of_link = whose._replace(link=(kind, record.peer.container_id, incoming.endpoint.name))
            yield from _of(limits, "_per_link", of_link, tenant, by_name=True)


def _of(
    limits: Allowance, per: str, owner: RateOwner, tenant: str, workers: int = 1, *, by_name: bool = False
) -> Iterator[Rate]:
    """Yield the rates of messages and octets of an owner. Args: per: the end of their names in the policy."""
    burst = BURST if limits.burst is None else limits.burst
    for of_octets, name in enumerate(("messages", "octets")):
        limit = f"{name}{per}"
        rate: float | None = getattr(limits, limit)
        if rate is not None:
            yield Rate(owner._replace(limit=limit), rate, rate * burst, bool(of_octets), by_name, tenant, workers)
