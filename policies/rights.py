"""The rights of a peer: those of all its groups together."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from amqpmesh.policies.groups import May
from amqpmesh.policies.limits import UNLIMITED, widest
from amqpmesh.policies.managing import Manage, Managed
from amqpmesh.policies.patterns import PatternTable
from amqpmesh.policies.scopes import TOKEN
from amqpmesh.policies.user_ids import ALL, KINDS
from amqpmesh.policies.variables import expanded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.policies.groups import Group
    from amqpmesh.policies.limits import Allowance
    from amqpmesh.policies.policy import Policy
    from amqpmesh.policies.scopes import Scope, ScopeRights
    from amqpmesh.policies.tenants import Tenant
    from amqpmesh.policies.user_ids import UserIds


class Grant(NamedTuple):
    """A line of the policy that permits something."""

    group: str
    """The name of the group."""
    key: str
    """The place in the policy: `group[0].send[1]`."""
    line: str
    """The value there."""

    def __str__(self) -> str:
        return f'{self.key} of group "{self.group}": {self.line}'


class Rights:
    """The rights of a peer, and the lines of the policy that give them.

    Peers of the same groups, tenant, scopes, and values of variables share one object.

    Each question is answered with the line that permits it; None: no line does.
    """

    __slots__ = (
        "__weakref__",
        "_manage",
        "_may",
        "_receive",
        "_scopes",
        "_send",
        "_user_ids",
        "groups",
        "limits",
        "of_policy",
        "policy",
        "receive_lines",
        "send_lines",
        "tenant",
        "user_ids",
    )

    def __init__(
        self,
        policy: Policy,
        groups: tuple[Group, ...],
        values: Mapping[str, tuple[str, ...]],
        tenant: Tenant | None = None,
        scopes: ScopeRights | None = None,
    ) -> None:
        """Args: policy: that these rights are of. values: of the variables in patterns. tenant: of the peer. scopes:
        of its token.
        """
        self.policy = policy
        self.tenant = tenant
        self._scopes = scopes
        #: The names of the groups that the policy has; `groups` has that of the token's scopes, too.
        self.of_policy = tuple(each.name for each in groups)
        if scopes is not None:
            groups = (*groups, scopes.group)
        self.groups = tuple(each.name for each in groups)
        #: Of the peer's user, beside those of its tenant.
        self.limits = widest(each.limits for each in groups)
        #: The kinds of user-ids that its messages may have.
        self.user_ids = ALL
        #: The patterns of addresses that it may send to, and receive from, apart from those of scopes, and their lines.
        self.send_lines = _granted(groups, "send", values)
        self.receive_lines = _granted(groups, "receive", values)
        self._send = PatternTable(self.send_lines.items())
        self._receive = PatternTable(self.receive_lines.items())
        self._may: dict[May, Grant] = {}
        self._manage: dict[Managed, Grant] = {}
        self._user_ids: dict[UserIds, Grant] = {}
        for group in groups:
            if group.user_id is not None:
                for kind_of_id in KINDS[group.user_id]:
                    self._user_ids.setdefault(kind_of_id, Grant(group.name, f"{group.key}.user_id", group.user_id))
                self.user_ids = reduce(or_, self._user_ids)
            for permitted in group.may:
                is_telemetry = permitted is May.TELEMETRY
                place, line = ("telemetry", "true") if is_telemetry else ("may", permitted.value)
                self._may.setdefault(permitted, Grant(group.name, f"{group.key}.{place}", line))
            for right, kind in sorted(group.manage, key=lambda each: (each.right, each.kind or "")):
                line = right.value if kind is None else f"{right}:{kind}"
                self._manage.setdefault(Managed(right, kind), Grant(group.name, f"{group.key}.manage", line))

    @property
    def tenant_key(self) -> str:
        """The key of its tenant."""
        return "" if self.tenant is None else self.tenant.key

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of its token, which give rights beside those of groups."""
        return () if self._scopes is None else self._scopes.texts

    @property
    def others(self) -> frozenset[May | Managed]:
        """The rights that are no matter of an address of its tenant."""
        return frozenset((*self._may, *self._manage))

    @property
    def contender(self) -> Tenant | None:
        """The tenant of the peer, if there are several, which contend for what a router has."""
        return self.tenant if len(self.policy.tenants) > 1 else None

    @property
    def tenant_limits(self) -> Allowance:
        """The limits of the peer's tenant."""
        return UNLIMITED if self.tenant is None else self.tenant.limits

    def send(self, address: str) -> Grant | None:
        """Return the line by which it may send to an address, without its container."""
        found = self._send.lookup(address)
        return _by(self._scopes.send(address)) if found is None and self._scopes is not None else found

    def receive(self, address: str) -> Grant | None:
        """Return the line by which it may receive from an address, without its container."""
        found = self._receive.lookup(address)
        return _by(self._scopes.receive(address)) if found is None and self._scopes is not None else found

    def may(self, right: May) -> Grant | None:
        """Return the line by which it has a right that is not a matter of a single address."""
        return self._may.get(right)

    def manage(self, right: Manage, kind: str | None = None) -> Grant | None:
        """Return the line by which it may read, or change, at the management node.

        Args: kind: the type of entities; None: all types.
        """
        rights = (Manage.READ, Manage.WRITE) if right is Manage.READ else (right,)
        kinds = (None,) if kind is None else (None, kind)
        found = (self._manage.get(Managed(each, of)) for of in kinds for each in rights)
        return next((grant for grant in found if grant is not None), None)

    def user_id(self, kind: UserIds) -> Grant | None:
        """Return the line by which its messages may have user-ids of a kind; None: no group says that."""
        return self._user_ids.get(kind)

    @property
    def management(self) -> Grant | None:
        """The first line by which it may do anything at the management node."""
        return next(iter(self._manage.values()), None)

    @property
    def may_change_something(self) -> bool:
        """True if it may change entities of any type there."""
        return any(each.right is Manage.WRITE for each in self._manage)


def _by(scope: Scope | None) -> Grant | None:
    return None if scope is None else Grant(TOKEN, "scope", scope.text)


def _granted(groups: Iterable[Group], action: str, values: Mapping[str, tuple[str, ...]]) -> dict[str, Grant]:
    """Return the patterns of addresses of groups, each with the first line that has it.

    Args: action: `send` or `receive`.
    """
    found: dict[str, Grant] = {}
    for group in groups:
        for position, line in enumerate(getattr(group, action)):
            for pattern in expanded(line, values):
                found.setdefault(pattern, Grant(group.name, f"{group.key}.{action}[{position}]", line))
    return found
