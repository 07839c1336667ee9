"""Scopes of a token, the rights that its issuer gives, in the form that RabbitMQ reads.

`read:TENANT/ADDRESS`, `write:TENANT/ADDRESS` and `configure:TENANT/ADDRESS` have patterns in which a `*` stands for any
characters, separators included, and other characters for themselves, or percent-encoded for others. `tag:NAME` gives
rights at the management node. Scopes of any other form give nothing: they are meant for others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.groups import Group, May
from amqpmesh.policies.managing import Manage, Managed
from amqpmesh.policies.names import NamePattern
from amqpmesh.policies.tenants import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TOKEN: Final = "token"  # noqa: S105 - a name
"""The name, in logs and answers, of the group that a token's scopes make."""

_TAGS: Final = {"tag:monitoring": Managed(Manage.READ, None), "tag:administrator": Managed(Manage.WRITE, None)}

_MADE: Final = "$dynamic"
"""The address that `configure` has to cover for dynamic nodes: the router makes their names."""


def managing(texts: Iterable[str]) -> tuple[str, ...]:
    """Return those scopes that give rights at the management node, each once."""
    return tuple(dict.fromkeys(text for text in texts if text in _TAGS))


class Action(StrEnum):
    """The actions of a scope."""

    READ = "read"
    WRITE = "write"
    CONFIGURE = "configure"


_ACTIONS: Final = frozenset(each.value for each in Action)


class Scope(NamedTuple):
    """A right that a scope gives in its tenants."""

    text: str
    """The scope as the token has it, for logs and answers."""
    action: Action
    tenant: NamePattern
    address: NamePattern


def scope_of(text: str) -> Scope | None:
    """Return the right in a scope; None: it is none of a tenant and an address."""
    action, colon, rest = text.partition(":")
    tenant, slash, address = rest.partition("/")
    if not (colon and slash and tenant and address) or action not in _ACTIONS:
        return None
    return Scope(text, Action(action), _glob(tenant), _glob(address))


def _glob(text: str) -> NamePattern:
    """Return a pattern whose parts are percent-decoded: an encoded `*` is a literal one, which no pattern has."""
    parts = text.split("*")
    decoded = [unquote(part, errors="strict") if "%" in part else part for part in parts]
    return NamePattern("*".join(decoded)) if not any("*" in part for part in decoded) else NamePattern("")


class ScopeRights:
    """The rights that scopes give in one tenant."""

    __slots__ = ("_read", "_write", "group", "texts")

    def __init__(self, texts: Iterable[str], tenant: str) -> None:
        """Args: tenant: the key of the tenant."""
        name = tenant or OPERATOR
        self.texts = texts = tuple(texts)
        here = [each for each in _scopes(texts) if each.tenant.matches(name)]
        self._read = tuple(each for each in here if each.action is Action.READ)
        self._write = tuple(each for each in here if each.action is Action.WRITE)
        may = {May.ANONYMOUS} if self._write else set()  # the address of each message is judged, too
        if any(each.action is Action.CONFIGURE and each.address.matches(_MADE) for each in here):
            may.add(May.DYNAMIC)
        manage = frozenset(_TAGS[text] for text in texts if text in _TAGS)
        #: The rights that are no matter of an address, as a group.
        self.group = Group(name=TOKEN, key=TOKEN, tenant=tenant, may=frozenset(may), manage=manage)

    def send(self, address: str) -> Scope | None:
        """Return the scope by which a peer may send to an address."""
        return _first(self._write, address)

    def receive(self, address: str) -> Scope | None:
        """Return the scope by which a peer may receive from an address."""
        return _first(self._read, address)


def _scopes(texts: Iterable[str]) -> Iterator[Scope]:
    for text in texts:
        try:
            found = scope_of(text)
        except UnicodeDecodeError:
            continue  # percent-encoded octets that are no text
        if found is not None:
            yield found


def _first(scopes: tuple[Scope, ...], address: str) -> Scope | None:
    if is_reserved(address):
        return None
    return next((each for each in scopes if each.address.matches(address)), None)
