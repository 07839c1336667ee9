"""Exports and imports that give nothing, or that contradict each other or a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies import variables
from amqpmesh.policies.exports import Use
from amqpmesh.policies.overlaps import covers, overlap
from amqpmesh.policies.tenants import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.policies.exports import Export, Import
    from amqpmesh.policies.groups import Group
    from amqpmesh.policies.policy import Policy


def findings_of_exports(policy: Policy) -> Iterator[str]:
    """Return a sentence for each export, import, or line of a group about imported addresses that gives nothing."""
    exports: dict[tuple[str, str], list[Export]] = {}
    for export in policy.exports.exports:
        exports.setdefault((export.exporter, export.importer), []).append(export)
    imports: dict[str, list[Import]] = {}
    for each in policy.exports.imports:
        imports.setdefault(each.importer, []).append(each)
    groups: dict[str, list[Group]] = {}
    for group in policy.groups:
        groups.setdefault(group.tenant, []).append(group)
    for export in policy.exports.exports:
        yield from _of_export(export, imports)
    for importer, lines in imports.items():
        for number, each in enumerate(lines):
            yield from _of_import(each, exports.get((each.exporter, importer), ()), groups.get(importer, ()))
            yield from _crossed(each, lines[:number])
        offers = [export for pair, given in exports.items() if pair[1] == importer for export in given]
        for group in groups.get(importer, ()):
            yield from _of_group(group, lines, offers)


def _of_export(export: Export, imports: dict[str, list[Import]]) -> Iterator[str]:
    accepted = (each for each in imports.get(export.importer, ()) if each.exporter == export.exporter)
    if not any(overlap(each.pattern, export.name) for each in accepted):
        yield f'{export.key} gives nothing: tenant "{_name(export.importer)}" imports nothing of {export.name}'
    taken = next((each for each in imports.get(export.exporter, ()) if covers(each.pattern, export.pattern)), None)
    if taken is not None:
        yield f"{export.key} gives nothing: {taken.key} has these addresses, and what is imported is not exported"


def _of_import(line: Import, exports: Iterable[Export], groups: Iterable[Group]) -> Iterator[str]:
    offers = [each for each in exports if overlap(line.pattern, each.name)]
    if not offers:
        yield f'{line.key} gives nothing: tenant "{_name(line.exporter)}" exports nothing of {line.pattern}'
        return
    uses = {use for each in offers for use in each.may}
    if not any(overlap(line.pattern, pattern) for use in uses for _, pattern in _patterns(groups, use)):
        may = " and ".join(use.action for use in Use if use in uses)
        yield f"{line.key} gives nothing: no group may {may} addresses under {line.pattern}"


def _crossed(line: Import, others: Iterable[Import]) -> Iterator[str]:
    """Return a sentence for each import of another tenant's addresses that meets a line, and neither is narrower."""
    for other in others:
        if other.exporter == line.exporter or not overlap(line.pattern, other.pattern):
            continue
        if not (covers(line.pattern, other.pattern) or covers(other.pattern, line.pattern)):
            yield f"{line.key} meets {other.key}: addresses under both are of the more specific pattern"


def _of_group(group: Group, imports: Iterable[Import], offers: Iterable[Export]) -> Iterator[str]:
    """Return a sentence for each pattern of a group that an import takes whole, and that no export serves."""
    for use in Use:
        for key, pattern in _patterns([group], use):
            taken = next((each for each in imports if covers(each.pattern, pattern)), None)
            if taken is None:
                continue
            served = (each for each in offers if use in each.may and each.exporter == taken.exporter)
            if not any(overlap(each.name, pattern) for each in served):
                yield f"{key} permits nothing: {taken.key} has these addresses, and no export serves it"


def _patterns(groups: Iterable[Group], use: Use) -> Iterator[tuple[str, str]]:
    """Return the patterns of groups for a use, each with its place. A variable stands for one token, as a `*` does."""
    for group in groups:
        for position, pattern in enumerate(group.send if use is Use.SEND else group.receive):
            yield f"{group.key}.{use}[{position}]", variables.with_stars(pattern)


def _name(tenant: str) -> str:
    return tenant or OPERATOR
