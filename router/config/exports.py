"""The tables of exports and imports in a tenant of the policy file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from amqpmesh.policies import renames
from amqpmesh.policies.exports import MOST, Export, Exports, Import, Use
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.tables import Effect, Rule, Table, emptiness, setting, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from amqpmesh.policies.tenants import Tenant


@table
class ExportConfig(Table):
    """Addresses that a tenant offers to another one."""

    EFFECT = Effect.AT_ONCE

    pattern: str = setting(check=renames.fault)
    to: str = setting(check=emptiness)
    as_: str | None = setting(default=None, check=renames.fault)
    may: tuple[Use, ...] = setting()
    replies: bool = setting(default=False)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("may", f"is required: {', '.join(Use)}, or both", lambda c: not c.may),
        Rule("as", "must have the wildcards of `pattern`, in the same order", lambda c: c.has_other_wildcards),
    )

    @property
    def name(self) -> str:
        """The pattern of the names that the importer uses."""
        return self.pattern if self.as_ is None else self.as_

    @property
    def has_other_wildcards(self) -> bool:
        """True if an address under one pattern has no name under the other."""
        return renames.wildcards(self.name) != renames.wildcards(self.pattern)


@table
class ImportConfig(Table):
    """Addresses that a tenant takes from another one."""

    EFFECT = Effect.AT_ONCE

    from_: str = setting(check=emptiness)
    pattern: str = setting(check=renames.fault)


Lines = tuple[str, "Sequence[ExportConfig]", "Sequence[ImportConfig]"]
"""The name of a tenant, and its exports and imports, in their order."""


def exports_of(lines: Sequence[Lines], tenants: Mapping[str, Tenant], file: Path) -> Exports:
    """Return the exports and imports of all tenants. Args: lines: of each tenant in its order. file: named in errors.

    Raises: ConfigError: a line names no other tenant; or it is there twice; or a tenant has too many.
    """
    exports = list(_exports(lines, tenants, file))
    imports = list(_imports(lines, tenants, file))
    return Exports(exports, imports)


def _exports(lines: Sequence[Lines], tenants: Mapping[str, Tenant], file: Path) -> Iterator[Export]:
    known: set[tuple[str, str, str, Use]] = set()
    for number, (tenant, given, _) in enumerate(lines):
        _check_number(file, f"tenant[{number}].exports", len(given))
        for position, line in enumerate(given):
            key = f"tenant[{number}].exports[{position}]"
            importer = _other(file, f"{key}.to", tenant, line.to, tenants)
            for use in set(line.may):
                if (tenant, line.to, line.name, use) in known:
                    raise ConfigError(str(file), f"{key}.as", f"{line.name} is given twice for {line.to} to {use}")
                known.add((tenant, line.to, line.name, use))
            yield Export(
                key=_place("exports", position, tenants[tenant]),
                exporter=tenants[tenant].key,
                importer=importer,
                pattern=line.pattern,
                name=line.name,
                may=frozenset(line.may),
                replies=line.replies,
            )


def _imports(lines: Sequence[Lines], tenants: Mapping[str, Tenant], file: Path) -> Iterator[Import]:
    for number, (tenant, _, given) in enumerate(lines):
        _check_number(file, f"tenant[{number}].imports", len(given))
        known: set[str] = set()
        for position, line in enumerate(given):
            key = f"tenant[{number}].imports[{position}]"
            exporter = _other(file, f"{key}.from", tenant, line.from_, tenants)
            if line.pattern in known:
                raise ConfigError(str(file), f"{key}.pattern", f"{line.pattern} is given twice")
            known.add(line.pattern)
            place = _place("imports", position, tenants[tenant])
            yield Import(key=place, exporter=exporter, importer=tenants[tenant].key, pattern=line.pattern)


def _place(table: str, position: int, tenant: Tenant) -> str:
    """Return the place of a line in words. Errors have the position of the tenant instead: its name may be wrong."""
    return f'{table}[{position}] of tenant "{tenant.name}"'


def _check_number(file: Path, key: str, lines: int) -> None:
    if lines > MOST:
        raise ConfigError(str(file), key, f"must have at most {MOST} lines")


def _other(file: Path, key: str, tenant: str, other: str, tenants: Mapping[str, Tenant]) -> str:
    """Return the key of the other tenant of a line."""
    if other == tenant:
        raise ConfigError(str(file), key, "is the tenant itself")
    if other not in tenants:
        raise ConfigError(str(file), key, f"there is no tenant {other}")
    return tenants[other].key
