"""Ways into tenants and conditions of groups that no peer can ever meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.tenants import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amqpmesh.policies.groups import Group
    from amqpmesh.policies.names import NamePattern
    from amqpmesh.policies.policy import Policy
    from amqpmesh.policies.tenants import Match, Tenant

_Asked = tuple["NamePattern", ...]
"""Patterns of which a peer has to match one."""

_ORDER: Final = ("user", "hostname", "listener", "certificate")


def findings_of_ways(policy: Policy) -> Iterator[str]:
    """Return a sentence for each way into a tenant that another one has before, and each group without peers."""
    before: dict[tuple[str, str], list[tuple[Tenant, int, dict[str, _Asked]]]] = {}
    for tenant in policy.tenants:
        for position, match in enumerate(tenant.match):
            asked = _of_way(match)
            found = next((each for each in _candidates(before, asked) if _covers(each[2], asked)), None)
            if found is not None:
                by, number, _ = found
                does = f"match[{position}] {'adds nothing' if by is tenant else 'never applies'}"
                yield f'tenant "{tenant.name}": {does}: match[{number}] of tenant "{by.name}" covers it'
            kind = next(each for each in (*_ORDER, *asked) if each in asked)
            for pattern in asked[kind]:
                before.setdefault((kind, pattern.prefix), []).append((tenant, position, asked))
    tenants = {each.key: each for each in policy.tenants}
    for group in policy.groups:
        home = tenants.get(group.tenant)
        if home is not None and not home.default and not _has_peers(group, home):
            yield (
                f'{group.key} "{group.name}" has no peers: no way into tenant "{home.name or OPERATOR}" admits them, '
                "unless their token names the tenant"
            )


def _of_way(match: Match) -> dict[str, _Asked]:
    """Return what a way asks a peer for, by kind."""
    given: dict[str, NamePattern | None] = {each: getattr(match, each) for each in _ORDER}
    asked: dict[str, _Asked] = {kind: (pattern,) for kind, pattern in given.items() if pattern is not None}
    if match.claim is not None:
        asked[f"claim {match.claim.name}"] = match.claim.patterns
    return asked


def _candidates(
    before: Mapping[tuple[str, str], list[tuple[Tenant, int, dict[str, _Asked]]]], asked: Mapping[str, _Asked]
) -> Iterator[tuple[Tenant, int, dict[str, _Asked]]]:
    """Return the ways that may cover one: a pattern that covers another one begins like it."""
    for kind, patterns in asked.items():
        for end in range(len(patterns[0].prefix) + 1):
            yield from before.get((kind, patterns[0].prefix[:end]), ())


def _covers(wide: Mapping[str, _Asked], narrow: Mapping[str, _Asked]) -> bool:
    """Tell whether each peer that comes in one way comes in another one, too."""
    return all(
        kind in narrow and all(any(each.covers(one) for each in patterns) for one in narrow[kind])
        for kind, patterns in wide.items()
    )


def _has_peers(group: Group, tenant: Tenant) -> bool:
    """Tell whether a peer that meets the conditions of a group can come in a way into its tenant."""
    asked: dict[str, _Asked] = {"user": group.users, "certificate": group.certificates}
    # A claim may have several texts: one for the way, and another one for the group.
    conditions = {kind: patterns for kind, patterns in asked.items() if patterns}
    return any(
        all(
            kind not in way or any(one.overlaps(other) for one in way[kind] for other in patterns)
            for kind, patterns in conditions.items()
        )
        for way in map(_of_way, tenant.match)
    )
