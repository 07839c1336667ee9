"""CREATE, UPDATE and DELETE of tables of the configuration: requests to `$management`, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpmesh.router.amqp.codec.types import Array
from amqpmesh.router.config import edits
from amqpmesh.router.config.edits import KINDS, TableKind
from amqpmesh.router.config.limits import USHORT_MAX
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.plain_settings import PlainSettings
from amqpmesh.router.management.config_requests import told
from amqpmesh.router.management.entities import PREFIX, TYPES, settings_of
from amqpmesh.router.management.service import (
    BAD_REQUEST,
    CONFLICT,
    CREATED,
    FORBIDDEN,
    NO_CONTENT,
    NOT_ALLOWED,
    NOT_FOUND,
    OK,
    RequestError,
    answer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.config.differences import Difference
    from amqpmesh.router.config.edits import Edit
    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.config.tables import Table
    from amqpmesh.router.management.runtime_marks import Marks
    from amqpmesh.router.message.content import Message

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"

DEEPEST: Final = 4
"""Lists and maps within each other, in the body of a request, at most: no table needs more."""

COSTLY: Final = ("listener", "connector")
"""The tables that lead to neighbours, and have a cost."""

_NAMES: Final = frozenset({"name", "identity", "type"})
"""Attributes of each entity, which tools repeat in the body."""


class ConfigEdit(NamedTuple):
    """A request to change a table of the configuration."""

    operation: str
    kind: TableKind
    name: str
    keys: Mapping[str, object]
    """The keys of the table with their values as plain data; None: the default."""

    @property
    def edit(self) -> Edit:
        """The change of the configuration."""
        if self.operation == DELETE:
            return partial(edits.delete, kind=self.kind, name=self.name)
        change = edits.create if self.operation == CREATE else edits.update
        return partial(change, kind=self.kind, name=self.name, raw=self.keys)

    def gives_rights(self, config: RouterConfig) -> bool:
        """Tell whether it decides which clients may change everything: for that its sender needs this right, too.

        Args: config: in force. Another login of a listener with `manage` lets others in.
        """
        asks = any(key.replace("-", "_") == "manage" and value is not False for key, value in self.keys.items())
        return asks or (
            self.kind.cls is ListenerConfig and getattr(self.kind.rows(config).get(self.name), "manage", False)
        )


class CostEdit(NamedTuple):
    """A request to change nothing but the cost of a listener or a connector."""

    kind: str | None
    """The type of entities; None: the request has only a name."""
    name: str
    cost: int

    def identity_in(self, config: RouterConfig) -> str:
        """Return the identity of the entity. Args: config: of the whole router. Raises: RequestError: it has no such
        entity, or that leads to no neighbour.
        """
        kinds = COSTLY if self.kind is None else (self.kind,)
        found = [(kind, row) for kind in kinds if (row := KINDS[kind].rows(config).get(self.name)) is not None]
        if len(found) != 1:
            raise RequestError(NOT_FOUND, "there is no such entity")
        ((kind, row),) = found
        if not row.is_mesh:
            raise RequestError(NOT_FOUND, "it leads to no neighbour: its role is not mesh")
        return f"{kind}/{self.name}"


def cost_edit(request: Message) -> CostEdit | None:
    """Return the change of a cost alone that a request asks for; None: it asks for something else, or is malformed."""
    properties, body = request.application_properties, request.body
    if properties.get("operation") != UPDATE or not isinstance(body, Mapping) or set(body) != {"cost"}:
        return None
    kind, name = _named(properties)
    is_named_alone = properties.get("type") is None and properties.get("identity") is None
    is_costly = kind.kind in COSTLY if kind is not None else is_named_alone
    cost = body["cost"]
    is_cost = isinstance(cost, int) and not isinstance(cost, bool) and 1 <= cost <= USHORT_MAX
    if name is None or not is_costly or not is_cost:
        return None
    return CostEdit(None if kind is None else kind.kind, name, int(cost))


def config_edit(request: Message) -> ConfigEdit | None:
    """Return the change that a request asks for; None: it asks for something else. A change of a cost alone is one.

    Raises: RequestError: it is malformed.
    """
    properties = request.application_properties
    operation = properties.get("operation")
    if operation not in (CREATE, UPDATE, DELETE):
        return None
    kind, name = _named(properties)
    if kind is None:
        if operation == CREATE:
            raise _no_table(properties.get("type"))
        return None
    keys = {} if operation == DELETE else _keys(request.body, kind)
    if name is None:
        raise RequestError(BAD_REQUEST, f"{operation} needs a `name`" if operation == CREATE else "a `name` is missing")
    if operation == UPDATE and set(keys) == set(TYPES[f"{PREFIX}{kind.kind}"].changeable):
        return None
    return ConfigEdit(str(operation), kind, name, keys)


def _named(properties: Mapping[str, Any]) -> tuple[TableKind | None, str | None]:
    """Return the table that a request names, by its type or by its identity."""
    found = {key: properties.get(key) for key in ("type", "name", "identity")}
    for key, value in found.items():
        if not (value is None or isinstance(value, str)):
            raise RequestError(BAD_REQUEST, f"`{key}` is no string")
    wanted, name, identity = found.values()
    first, separator, rest = (identity or "").partition("/")
    if wanted is None:
        return (KINDS.get(first), rest if name is None else name) if separator else (None, name)
    kind = KINDS.get(wanted.removeprefix(PREFIX))
    if kind is not None and identity is not None:
        if first != kind.kind or not separator or name not in (None, rest):
            raise RequestError(NOT_FOUND, "there is no such entity")
        name = rest
    if kind is not None and kind.key is None and name is None:
        name = ""  # there is one
    return kind, name


def _no_table(wanted: object) -> RequestError:
    if wanted is None:
        return RequestError(BAD_REQUEST, "CREATE needs a `type`")
    if wanted in TYPES or f"{PREFIX}{wanted}" in TYPES:
        makers = ", ".join(each.kind for each in KINDS.values() if each.key is not None)
        return RequestError(NOT_ALLOWED, f"CREATE: nothing of that type is created by a request, but of {makers}")
    return RequestError(NOT_FOUND, "there is no such type")


def _keys(body: object, kind: TableKind) -> dict[str, object]:
    if not isinstance(body, Mapping):
        raise RequestError(BAD_REQUEST, "the body is no map of keys")
    keys = {name: _plain(value, DEEPEST) for name, value in body.items() if isinstance(name, str)}
    if len(keys) < len(body):
        raise RequestError(BAD_REQUEST, "a key is no string")
    return {str(name): value for name, value in keys.items() if name not in _NAMES or name == kind.key}


def _plain(value: Any, depth: int) -> object:
    """Return a value of AMQP as TOML has it. Raises: RequestError: TOML has none like it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, Array):
        value = list(value.values)
    if depth and isinstance(value, list | tuple):
        return [_plain(each, depth - 1) for each in value]
    if depth and isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {"".join(name): _plain(each, depth - 1) for name, each in value.items()}
    raise RequestError(BAD_REQUEST, "a value is no text, number, list or map, or is nested too deeply")


# ------------------------------------------------------------------------------------------------------------- answers


def refusal_of(error: edits.EditError) -> RequestError:
    """Return the refusal for a change that cannot be made."""
    if isinstance(error, edits.MissingRowError):
        return RequestError(NOT_FOUND, str(error))
    if isinstance(error, edits.DeniedKeyError):
        return RequestError(FORBIDDEN, str(error))
    return RequestError(CONFLICT, str(error))


def edited(
    request: Message,
    change: ConfigEdit,
    config: RouterConfig,
    differences: Sequence[Difference],
    marks: Marks,
) -> Message:
    """Return the answer to a change that was made: the entity's attributes, and `changes`, what differs from before.

    Args: config: in force now. marks: of it.
    """
    changes = [told(each) for each in differences]
    if change.operation == DELETE:
        return answer(request, NO_CONTENT, "No Content", {})
    rows: Mapping[str, Table] = change.kind.rows(config)
    name = change.name or next(iter(rows))
    row = rows[name]
    body = {
        "name": name,
        "identity": f"{change.kind.kind}/{name}",
        "type": f"{PREFIX}{change.kind.kind}",
        "runtime": (change.kind.kind, name) in marks.rows or (not change.kind.attribute and marks.has_router_keys),
        "settings": settings_of(PlainSettings(row)),
        "changes": changes,
    }
    if change.operation == CREATE:
        return answer(request, CREATED, "Created", body)
    return answer(request, OK, "OK", body)
