"""Lines of a policy that can never give anybody anything."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from amqpmesh.policies import limit_findings
from amqpmesh.policies.export_findings import findings_of_exports
from amqpmesh.policies.managing import Manage
from amqpmesh.policies.tenants import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.policies.groups import Group
    from amqpmesh.policies.policy import Policy
    from amqpmesh.policies.tenants import Match, Tenant


def findings(policy: Policy) -> Iterator[str]:
    """Return a sentence for each line without effect."""
    first: dict[Match, Tenant] = {}
    for tenant in policy.tenants:
        for position, match in enumerate(tenant.match):
            other = first.setdefault(match, tenant)
            if other is not tenant:
                yield f'tenant "{tenant.name}": match[{position}] never applies: tenant "{other.name}" has it before'
    #: The number of the first group that has a line, by tenant, action, pattern, and the group's conditions.
    lines: dict[tuple[object, ...], int] = {}
    for number, group in enumerate(policy.groups):
        if not (group.send or group.receive or group.may or group.manage or group.user_id):
            yield f'{group.key} "{group.name}" permits nothing'
        if group.tenant and any(each.right is Manage.WRITE for each in group.manage):
            yield f'{group.key}.manage gives no more than read: all that can be changed is of the tenant "{OPERATOR}"'
        for action, patterns in (("send", group.send), ("receive", group.receive)):
            for position, pattern in enumerate(patterns):
                line = group.tenant, action, pattern
                wider = [lines[key] for conditions in _wider(group) if (key := (*line, *conditions)) in lines]
                if not wider:
                    lines[(*line, *_conditions(group))] = number
                else:
                    other_group = policy.groups[min(wider)]
                    yield (
                        f"{group.key}.{action}[{position}] adds nothing: "
                        f'{other_group.key} "{other_group.name}" permits it to the same peers'
                    )
    yield from limit_findings.findings(policy)
    yield from findings_of_exports(policy)


def _wider(group: Group) -> Iterator[tuple[object, ...]]:
    """Return conditions that hold for each peer of a group, as far as their texts show: its own, and fewer of them.

    They are looked up, not compared with those of each other group: a policy has up to ten thousand.
    """
    return product(*({(), each} for each in _conditions(group)))


def _conditions(group: Group) -> tuple[tuple[object, ...], ...]:
    return group.users, group.certificates, group.networks, group.groups, group.claims
