"""Changes that known tools ask for under their own names, as requests for tables of the configuration here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.known_tools.tables import PREFIXES
from amqpmesh.router.management.service import BAD_REQUEST, CREATED, NOT_FOUND, OK, RequestError, answer

if TYPE_CHECKING:
    from amqpmesh.router.message.content import Message

_NAMES: Final = frozenset({"name", "identity", "type"})

_ROLES: Final[Mapping[object, str]] = {"normal": "normal", "inter-router": "mesh", "route-container": "container"}

_PORTS: Final[Mapping[object, str]] = {"amqp": "5672", "amqps": "5671"}

_LEVELS: Final[Mapping[str, str]] = {
    **{level: level for level in ("debug", "info", "warning", "error")},
    "trace": "debug",
    "notice": "info",
    "critical": "error",
}
"""Levels of the tools' routers, and those here."""

DEFAULT_LOG: Final = "log/DEFAULT"
"""The only log, which is of all modules."""

_Keys = dict[str, Any]


class KnownChange(NamedTuple):
    """A change that a tool asks for."""

    request: Message
    """The same change of a table here."""
    name: str
    """The name that the entity has for the tool."""
    identity: str
    given: Mapping[str, Any]
    """The attributes in the tool's request."""
    kind: str
    """The type, as the tool calls it."""

    def answered(self, request: Message, response: Message) -> Message:
        """Return the answer to the tool, given its request, and the answer to the one here."""
        status = response.application_properties["statusCode"]
        if status not in (OK, CREATED):
            return response
        body = {**self.given, "name": self.name, "identity": self.identity, "type": self.kind}
        return answer(request, int(status), str(response.application_properties["statusDescription"]), body)


class _Maker(NamedTuple):
    """The way in which a type of the tools is changed here."""

    kind: str
    operations: tuple[str, ...]
    read: Callable[[_Keys, str], tuple[str, _Keys]]
    """Return the name and the keys here. Args: the attributes, which it takes out, and the name in the request."""


def _endpoint(given: _Keys, name: str) -> tuple[str, _Keys]:
    host, port = str(given.pop("host", "127.0.0.1")), given.pop("port", "amqp")
    role = given.pop("role", "normal")
    if role not in _ROLES:
        raise RequestError(BAD_REQUEST, f"there is no role {role!r} here")
    shown = f"[{host}]" if ":" in host else host
    keys: _Keys = {"url": f"amqp://{shown}:{_PORTS.get(port, port)}", "role": _ROLES[role]}
    if (cost := given.pop("cost", None)) is not None:
        keys["cost"] = cost
    return name, keys


def _listener(given: _Keys, name: str) -> tuple[str, _Keys]:
    mechanisms = given.pop("saslMechanisms", None)
    name, keys = _endpoint(given, name)
    return name, keys if mechanisms is None else {**keys, "sasl": str(mechanisms).replace(",", " ").split()}


def _pattern(given: _Keys, name: str) -> tuple[str, _Keys]:
    prefix, pattern = given.pop("prefix", None), given.pop("pattern", None)
    if prefix is not None:
        pattern = f"{str(prefix).rstrip('/')}/#"
    # Names of the tools' addresses are labels. Here it is the pattern that names one.
    name = name if pattern is None else str(pattern)
    distribution = given.pop("distribution", None)
    return name, {} if distribution is None else {"distribution": distribution}


def _auto_link(given: _Keys, name: str) -> tuple[str, _Keys]:
    address, direction = given.pop("address", None), given.pop("direction", None)
    if address is None or direction not in ("in", "out"):
        raise RequestError(BAD_REQUEST, "`address` and `direction`, in or out, are required")
    if given.pop("phase", 0) != 0:
        raise RequestError(BAD_REQUEST, "`phase`: there is none but 0")
    node = given.pop("externalAddress", None)
    keys = {"address": address, "source" if direction == "in" else "target": address if node is None else node}
    if (connector := given.pop("connection", None)) is not None:
        keys["connector"] = connector
    return name or f"{address}.{direction}", keys


def _log(given: _Keys, name: str) -> tuple[str, _Keys]:
    if name not in ("", DEFAULT_LOG, "DEFAULT") or given.pop("module", "DEFAULT") != "DEFAULT":
        raise RequestError(NOT_FOUND, "there is one log, of all modules: DEFAULT")
    enable = str(given.pop("enable", ""))
    level = enable.removesuffix("+").lower()
    if level not in _LEVELS:
        raise RequestError(BAD_REQUEST, f"`enable`: {enable!r} is no level, or none with + behind it")
    return "", {"level": _LEVELS[level]}


_MAKERS: Final[Mapping[str, _Maker]] = {
    "listener": _Maker("listener", ("CREATE", "DELETE"), _listener),
    "connector": _Maker("connector", ("CREATE", "DELETE"), _endpoint),
    "router.config.address": _Maker("address-pattern", ("CREATE", "DELETE"), _pattern),
    "router.config.autoLink": _Maker("container-link", ("CREATE", "DELETE"), _auto_link),
    "log": _Maker("log", ("UPDATE",), _log),
}


def operations_on(table: str) -> tuple[str, ...]:
    """Return the operations of a type of the tools that change the configuration here. Args: table: its short name."""
    maker = _MAKERS.get(table)
    return () if maker is None else maker.operations


def known_change(request: Message) -> KnownChange | None:
    """Return the change of a table that a tool asks for by its own names; None: it asks for something else.

    Raises: RequestError: an attribute has no counterpart here, or is none.
    """
    properties = request.application_properties
    operation, kind = properties.get("operation"), properties.get("type")
    prefix = next((each for each in PREFIXES if isinstance(kind, str) and kind.startswith(each)), None)
    if not isinstance(operation, str) or not isinstance(kind, str) or prefix is None:
        return None
    table = kind.removeprefix(prefix)
    maker = _MAKERS.get(table)
    if maker is None or operation.upper() not in maker.operations:
        return None
    body = request.body if isinstance(request.body, Mapping) else {}
    given: _Keys = {str(key): value for key, value in body.items() if value is not None and key not in _NAMES}
    name = _name_of(properties, body, table)
    left = dict(given)
    keys: _Keys = {}
    if operation.upper() == "DELETE":
        if not name:
            raise RequestError(BAD_REQUEST, "DELETE needs a `name` or an `identity`")
    else:
        name, keys = maker.read(left, name)
        if left:
            raise RequestError(BAD_REQUEST, f"`{min(left)}` has no counterpart here")
    ours: _Keys = {"operation": operation.upper(), "type": f"{PREFIX}{maker.kind}", **({"name": name} if name else {})}
    identity = f"{table}/{name}" if name else DEFAULT_LOG
    changed = replace(request, body=keys, application_properties=ours)
    return KnownChange(changed, name or DEFAULT_LOG, identity, given, kind)


def _name_of(properties: Mapping[str, Any], body: Mapping[Any, Any], table: str) -> str:
    identity = properties.get("identity", body.get("identity"))
    name = properties.get("name", body.get("name"))
    if identity is not None:
        name = identity if table == "log" else str(identity).removeprefix(f"{table}/")
    return "" if name is None else str(name)
