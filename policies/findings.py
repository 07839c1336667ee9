"""Lines of a policy that can never give anybody anything."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from amqpmesh.policies import limit_findings
from amqpmesh.policies.export_findings import findings_of_exports
from amqpmesh.policies.managing import Manage
from amqpmesh.policies.overlaps import covers
from amqpmesh.policies.patterns import steps
from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.policies.variables import names
from amqpmesh.policies.way_findings import findings_of_ways

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.policies.groups import Group
    from amqpmesh.policies.policy import Policy

_Wild = dict[tuple[object, ...], list[tuple["Group", int, str]]]
"""Patterns of groups, with their places, by tenant, action, first word, and the group's conditions."""


def findings(policy: Policy) -> Iterator[str]:
    """Return a sentence for each line without effect."""
    yield from findings_of_ways(policy)
    #: The number of the first group that has a line, by tenant, action, pattern, and the group's conditions.
    lines: dict[tuple[object, ...], int] = {}
    wild = _wild(policy.groups)
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
                    by = _covering(wild, group, action, pattern, position)
                    if by is not None:
                        wide, place = by
                        where = f"{wide.key}.{action}[{place}]"
                        yield f'{group.key}.{action}[{position}] adds nothing: {where} of "{wide.name}" covers it'
                else:
                    other_group = policy.groups[min(wider)]
                    yield (
                        f"{group.key}.{action}[{position}] adds nothing: "
                        f'{other_group.key} "{other_group.name}" permits it to the same peers'
                    )
    yield from limit_findings.findings(policy)
    yield from findings_of_exports(policy)


def _wild(groups: Iterable[Group]) -> _Wild:
    """Return the patterns of groups that stand for many addresses."""
    found: _Wild = {}
    for group in groups:
        for action, patterns in (("send", group.send), ("receive", group.receive)):
            for position, pattern in enumerate(patterns):
                words = [word for _, word in steps(pattern)]
                if not {"*", "#"}.isdisjoint(words) and not set(names(pattern)):
                    key = group.tenant, action, words[0], *_conditions(group)
                    found.setdefault(key, []).append((group, position, pattern))
    return found


def _covering(wild: _Wild, group: Group, action: str, pattern: str, position: int) -> tuple[Group, int] | None:
    """Return a pattern that permits all that one of a group does, to the same peers: its group, and its place there.

    Of two that cover each other, the first one is not covered.
    """
    words = {steps(pattern)[0][1], "*", "#"}
    has_variables = bool(set(names(pattern)))
    for word, conditions in product(sorted(words), _wider(group)):
        for by, place, wide in wild.get((group.tenant, action, word, *conditions), ()):
            if wide == pattern or not (wide == "#" or (not has_variables and covers(wide, pattern))):
                continue
            if has_variables or not covers(pattern, wide) or (by is group and place < position):
                return by, place
    return None


def _wider(group: Group) -> Iterator[tuple[object, ...]]:
    """Return conditions that hold for each peer of a group, as far as their texts show: its own, and fewer of them.

    They are looked up, not compared with those of each other group: a policy has up to ten thousand.
    """
    return product(*({(), each} for each in _conditions(group)))


def _conditions(group: Group) -> tuple[tuple[object, ...], ...]:
    return group.users, group.certificates, group.networks, group.groups, group.claims
