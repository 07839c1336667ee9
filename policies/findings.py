"""Lines of a policy that can never give anybody anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    lines: dict[tuple[str, str, str], list[Group]] = {}
    for group in policy.groups:
        if not (group.send or group.receive or group.may or group.manage):
            yield f'{group.key} "{group.name}" permits nothing'
        if group.manage and group.tenant:
            yield f'{group.key}.manage permits nothing: only the tenant "{OPERATOR}" has the management node'
        for action, patterns in (("send", group.send), ("receive", group.receive)):
            for position, pattern in enumerate(patterns):
                having = lines.setdefault((group.tenant, action, pattern), [])
                other_group = next((each for each in having if _is_wider(each, group)), None)
                if other_group is None:
                    having.append(group)
                else:
                    yield (
                        f"{group.key}.{action}[{position}] adds nothing: "
                        f'{other_group.key} "{other_group.name}" permits it to the same peers'
                    )


def _is_wider(one: Group, other: Group) -> bool:
    """Return whether the conditions of one group hold for each peer of the other, as far as their texts show."""
    return all(
        not wide or wide == narrow
        for wide, narrow in (
            (one.users, other.users),
            (one.certificates, other.certificates),
            (one.networks, other.networks),
        )
    )
