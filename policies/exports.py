"""Exports and imports: the addresses of one tenant that peers of another may use, and the names they have there.

A tenant exports a pattern of its addresses to another tenant, under a name of its choice; the other imports it. An
address passes only if both say so. A name under a pattern of an import is always the exporter's: it never stands for an
address of the importer's own, whether it is exported or not. So names do not change their owner when an export goes.

What a tenant imports is not its own, and it exports none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.overlaps import overlap
from amqpmesh.policies.patterns import PatternTable, steps
from amqpmesh.policies.renames import renamed
from amqpmesh.policies.tenants import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST: Final = 1000
"""Exports of a tenant at most, and imports likewise: each export with replies is compared with imports."""


class Use(StrEnum):
    """The use of an exported address by the importer."""

    SEND = "send"
    RECEIVE = "receive"

    @property
    def action(self) -> str:
        """The use in a sentence, before the address."""
        return "send to" if self is Use.SEND else "receive from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An offer of a tenant's addresses to another tenant."""

    key: str
    """Its place in the policy: `exports[1] of tenant "billing"`."""
    exporter: str
    """The keys of both tenants."""
    importer: str
    pattern: str
    """The addresses, as the exporter names them."""
    name: str
    """The pattern of the names that the importer uses, with the same wildcards."""
    may: frozenset[Use]
    replies: bool = False
    """The exporter's peers may send to dynamic nodes of the importer."""

    def offers(self, address: str) -> bool:
        """Tell whether an address of the exporter falls under the export."""
        return renamed(address, self.pattern, self.pattern) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """The acceptance of another tenant's addresses."""

    key: str
    exporter: str
    """The keys of both tenants."""
    importer: str
    pattern: str
    """The names, as the importer uses them."""


class Crossing(NamedTuple):
    """An address of another tenant, and the lines by which a peer may use it."""

    tenant: str
    """The key of the exporter."""
    name: str
    """The address, as the exporter names it."""
    exported: Export
    imported: Import

    def __str__(self) -> str:
        line, other = self.exported, self.imported
        owner = self.tenant or OPERATOR
        return f'{line.key} and {other.key}: it is {self.name} of tenant "{owner}"'


class Exports:
    """All exports and imports of a policy. Immutable.

    Names are decided as everywhere by the most specific pattern: first that of an import, then that of an export by
    the same tenant which permits the use.

    Raises: ValueError: a tenant has an import twice, or an export twice for the same use; the message names it.
    """

    def __init__(self, exports: Sequence[Export] = (), imports: Sequence[Import] = ()) -> None:
        self.exports = tuple(exports)
        self.imports = tuple(imports)
        by_importer: dict[str, list[tuple[str, Import]]] = {}
        #: The imports by which a tenant accepts another's, by the first token: "" for those that begin with a wildcard.
        accepted: dict[tuple[str, str], dict[str, list[Import]]] = {}
        for each in self.imports:
            by_importer.setdefault(each.importer, []).append((each.pattern, each))
            by_first = accepted.setdefault((each.exporter, each.importer), {})
            by_first.setdefault(_first(each.pattern), []).append(each)
        self._imports = {importer: PatternTable(lines) for importer, lines in by_importer.items()}
        by_use: dict[tuple[str, str, Use], list[tuple[str, Export]]] = {}
        #: The exports of a tenant for one use, by the exporter's pattern, whichever tenant they are for.
        offered: dict[tuple[str, Use], dict[str, Export]] = {}
        for export in self.exports:
            for use in export.may:
                by_use.setdefault((export.exporter, export.importer, use), []).append((export.name, export))
                offered.setdefault((export.exporter, use), {}).setdefault(export.pattern, export)
        self._exports = {key: PatternTable(lines) for key, lines in by_use.items()}
        self._offered = {key: PatternTable(lines.items()) for key, lines in offered.items()}
        #: The tenants whose dynamic nodes each tenant's peers may send to, with the export that says so.
        self._replies: dict[tuple[str, str], Export] = {}
        for export in self.exports:
            pair = export.exporter, export.importer
            if export.replies and pair not in self._replies and _is_accepted(export, accepted.get(pair, {})):
                self._replies[pair] = export

    def __bool__(self) -> bool:
        return bool(self.exports or self.imports)

    def are_as(self, others: Exports) -> bool:
        """Tell whether these are the lines of others, in the same order and places."""
        return self is others or (self.exports, self.imports) == (others.exports, others.imports)

    def imported(self, tenant: str, name: str) -> Import | None:
        """Return the import that a tenant's name falls under; None: it is a name of its own addresses, or empty."""
        table = self._imports.get(tenant)
        return None if table is None or not name or is_reserved(name) else table.lookup(name)

    def crossing(self, imported: Import, name: str, use: Use) -> Crossing | None:
        """Return the address that an imported name stands for; None: no export permits the use of it."""
        table = self._exports.get((imported.exporter, imported.importer, use))
        export = None if table is None else table.lookup(name)
        if export is None:
            return None
        address = renamed(name, export.name, export.pattern)
        # A `#` alone covers the router's own addresses, too, and what the exporter imports itself.
        if address is None or is_reserved(address) or self.imported(export.exporter, address) is not None:
            return None
        return Crossing(export.exporter, address, export, imported)

    def replies(self, tenant: str, maker: str) -> Export | None:
        """Return the export by which peers of a tenant may send to dynamic nodes of another; None: there is none.

        Args: tenant, maker: the keys of the senders' tenant, and of that whose peer has made the node.
        """
        return self._replies.get((tenant, maker))

    def is_offered(self, tenant: str, address: str, use: Use) -> bool:
        """Tell whether a tenant exports an address of its own for a use, to any tenant."""
        table = self._offered.get((tenant, use))
        return table is not None and table.lookup(address) is not None


def _first(pattern: str) -> str:
    """Return the first token of a pattern; empty: it is a wildcard."""
    word = steps(pattern)[0][1]
    return "" if word in ("*", "#") else word


def _is_accepted(export: Export, imports: Mapping[str, Sequence[Import]]) -> bool:
    """Tell whether any of the importer's lines takes something of an export. Args: imports: by the first token."""
    first = _first(export.name)
    lines = (imports.get(first, ()), imports.get("", ())) if first else imports.values()
    return any(overlap(each.pattern, export.name) for each in chain.from_iterable(lines))


NO_EXPORTS: Final = Exports()
