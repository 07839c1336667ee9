"""Limits of a policy that can never hold anything back, and limits that contradict what the policy permits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.groups import May
from amqpmesh.policies.limits import CAPS, OF_TENANTS, RATES, UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.policies.groups import Group
    from amqpmesh.policies.limits import Allowance
    from amqpmesh.policies.policy import Policy

#: Pairs of limits: a value of the first at least as large as the second's never holds anything back.
_WITHIN: Final = (
    ("connections_per_host", "connections"),
    ("senders", "links"),
    ("receivers", "links"),
    ("dynamic", "links"),
    ("messages_per_link", "messages"),
    ("octets_per_link", "octets"),
    ("messages_per_address", "messages"),
    ("octets_per_address", "octets"),
)

#: Limits that are of a tenant and of a user alike.
_SHARED: Final = tuple(name for name in (*CAPS, *RATES) if name not in OF_TENANTS)


def findings(policy: Policy) -> Iterator[str]:
    """Return a sentence for each limit without effect, and each that forbids what a line permits."""
    tenants = {each.key: each.limits for each in policy.tenants}
    for tenant in policy.tenants:
        yield from _within(tenant.limits, f'tenant "{tenant.name}"')
    for group in policy.groups:
        of_tenant = tenants.get(group.tenant, UNLIMITED)
        if group.limits is not UNLIMITED:
            yield from _within(group.limits, f'{group.key} "{group.name}"')
            for name in _SHARED:
                mine, others = getattr(group.limits, name), getattr(of_tenant, name)
                if mine is not None and others is not None and mine > others:
                    yield f'{group.key}.limits.{name} "{group.name}" never binds: its tenant may have {_shown(others)}'
        for limits, where in ((group.limits, group.key), (of_tenant, "its tenant")):
            if limits is not UNLIMITED:
                yield from _contradictions(group, limits, where)


def _within(limits: Allowance, owner: str) -> Iterator[str]:
    """Return the limits of one table that others of it make useless."""
    if limits is UNLIMITED:
        return
    for inner, outer in _WITHIN:
        mine, other = getattr(limits, inner), getattr(limits, outer)
        if mine is not None and other is not None and mine >= other:
            yield f"{owner}: limits.{inner} never binds: limits.{outer} is {_shown(other)}"
    if None not in (limits.links, limits.senders, limits.receivers):
        assert limits.links is not None and limits.senders is not None and limits.receivers is not None  # noqa: PT018
        if limits.links >= limits.senders + limits.receivers:
            both = limits.senders + limits.receivers
            yield f"{owner}: limits.links never binds: senders and receivers together are {both}"
    memory = None if limits.memory is None else limits.memory.octets
    if limits.waiting is not None and memory is not None and limits.waiting >= memory:
        yield f"{owner}: limits.waiting never binds: limits.memory is {_shown(memory)}"
    if limits.waiting is not None and limits.message is not None and limits.message > limits.waiting:
        yield f"{owner}: limits.message contradicts limits.waiting, which is less: {_shown(limits.waiting)}"
    if limits.unsettled is not None and limits.receivers is not None and limits.unsettled < limits.receivers:
        yield f"{owner}: limits.receivers contradicts limits.unsettled: {_shown(limits.unsettled)} receivers use it up"
    if limits.burst is not None and all(getattr(limits, name) is None for name in RATES):
        yield f"{owner}: limits.burst does nothing: there is no rate"


def _contradictions(group: Group, limits: Allowance, where: str) -> Iterator[str]:
    """Return the rights of a group that limits take away altogether. Args: where: the limits' owner."""
    for action, given, names in (
        ("send", bool(group.send), ("senders", "links")),
        ("receive", bool(group.receive), ("receivers", "links")),
        ("may", May.DYNAMIC in group.may, ("dynamic", "links")),
    ):
        name = next((each for each in names if getattr(limits, each) == 0), None)
        if given and name is not None:
            yield f'{group.key}.{action} "{group.name}" permits nothing: limits.{name} of {where} is 0'


def _shown(value: float) -> str:
    return f"{value:_g}" if isinstance(value, float) and not value.is_integer() else f"{int(value):_}"
