"""Clients of HTTP that have logged in, or need not: what they may see and change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from amqpmesh.policies.managing import CONFIDENTIAL, KINDS, Manage
from amqpmesh.policies.rights import Rights


@dataclass(frozen=True, slots=True)
class Visitor:
    """A client and its rights."""

    tenant: str
    """Its tenant: it sees nothing of others, unless it is the operator's, ""."""
    reads: frozenset[str]
    """The types of entities that it may read."""
    changes: frozenset[str]
    """The types of entities that it may change."""
    fields: Mapping[str, object]
    """The fields of the audit log on it."""
    manages: bool = False
    """True if its listener permits all changes: what this router vouches for at others."""

    @classmethod
    def of(cls, tenant: str, rights: Rights | None, fields: Mapping[str, object], *, may_write: bool) -> Visitor:
        """Return a client. Args: rights: by the policy; None: there is none. may_write: its listener says so."""
        everything = frozenset(KINDS)
        if rights is None:
            if may_write:
                return cls(tenant, everything, everything, fields, may_write)
            return cls(tenant, everything - CONFIDENTIAL, frozenset(), fields)
        reads = frozenset(kind for kind in KINDS if rights.manage(Manage.READ, kind) is not None)
        changes = frozenset(kind for kind in KINDS if rights.manage(Manage.WRITE, kind) is not None)
        reads |= CONFIDENTIAL if may_write else changes & CONFIDENTIAL
        return cls(tenant, reads, everything if may_write else changes, fields, may_write)

    def may_read(self, kind: str) -> bool:
        """Tell whether it may read entities of a type."""
        return kind in self.reads

    def may_change(self, kind: str) -> bool:
        """Tell whether it may change entities of a type."""
        return kind in self.changes

    def written(self) -> str:
        """Return it as a text of ASCII, for other workers of the router."""
        said = [self.tenant, sorted(self.reads), sorted(self.changes), dict(self.fields), self.manages]
        return json.dumps(said, default=list)

    @classmethod
    def read(cls, text: str) -> Visitor:
        """Return the client that a text describes. Raises: ValueError: it describes none."""
        try:
            tenant, reads, changes, fields, manages = json.loads(text)
            return cls(str(tenant), frozenset(reads), frozenset(changes), dict(fields), bool(manages))
        except TypeError:
            raise ValueError("no visitor") from None
