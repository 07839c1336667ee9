"""A second judge of exports and imports, which tries each line, for patterns with one wildcard at the end.

It has nothing of the code that it judges but the lines of a policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.policies.exports import Export, Import, Use


def under(pattern: str, address: str) -> str | None:
    """Return what the wildcard stands for, with the separator before it; None: the address is not under the pattern."""
    if not pattern.endswith(("#", "*")):
        return "" if address == pattern else None
    if pattern == "#":
        return f"/{address}"
    head = fixed(pattern)
    if address == head:
        return "" if pattern.endswith("#") else None
    if not address.startswith(f"{head}/"):
        return None
    rest = address[len(head) :]
    return rest if pattern.endswith("#") or "/" not in rest[1:] else None


def fixed(pattern: str) -> str:
    """Return a pattern without its wildcard, and without the separator before that."""
    return pattern.removesuffix("#").removesuffix("*").removesuffix("/")


def specific(pattern: str) -> tuple[int, int]:
    """Return what the most specific pattern that an address falls under has the least of."""
    head = fixed(pattern)
    tokens = head.count("/") + 1 if head else 0
    return -tokens, 2 if pattern.endswith("#") else 1 if pattern.endswith("*") else 0


@dataclass
class Judge:
    """The lines of a policy, and their answers."""

    exports: Iterable[Export]
    imports: Iterable[Import]
    #: By tenant and use: the patterns that its one group has.
    rights: dict[tuple[str, Use], tuple[str, ...]] = field(default_factory=dict)

    def owner(self, tenant: str, name: str, use: Use) -> tuple[str, str] | None:
        """Return the owner and the address of a name; None: no export lets the tenant use it."""
        imports = [each for each in self.imports if each.importer == tenant and under(each.pattern, name) is not None]
        if not imports or name.startswith("$"):
            return tenant, name
        taken = min(imports, key=lambda each: specific(each.pattern))
        exports = [
            each
            for each in self.exports
            if (each.exporter, each.importer) == (taken.exporter, tenant)
            and use in each.may
            and under(each.name, name) is not None
        ]
        if not exports:
            return None
        export = min(exports, key=lambda each: specific(each.name))
        rest = under(export.name, name)
        assert rest is not None
        address = fixed(export.pattern) + (rest if fixed(export.pattern) else rest[1:])
        if not address or address.startswith("$"):
            return None
        chained = (under(each.pattern, address) for each in self.imports if each.importer == export.exporter)
        return None if any(each is not None for each in chained) else (export.exporter, address)

    def permitted(self, tenant: str, name: str, use: Use) -> tuple[str, str] | None:
        """Return as `owner`; None also if the tenant's group does not permit the use of the name."""
        patterns = self.rights.get((tenant, use), ())
        return self.owner(tenant, name, use) if any(under(each, name) is not None for each in patterns) else None

    def may_answer(self, sender: str, maker: str, names: Iterable[str]) -> bool:
        """Tell whether peers of a tenant may send to dynamic nodes of another. Args: names: that may be used at all."""
        return sender == maker or any(
            each.replies
            and (each.exporter, each.importer) == (sender, maker) == (taken.exporter, taken.importer)
            and any(under(each.name, name) is not None and under(taken.pattern, name) is not None for name in names)
            for each in self.exports
            for taken in self.imports
        )
