"""Requests of known tools, and their answers: operations of AMQP Management for their types, and some of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpmesh.router.amqp.codec.types import Encoded, ULong
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.logs.event_log import recent_lines
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.known_tools.changes import operations_on
from amqpmesh.router.management.known_tools.seen import Seen
from amqpmesh.router.management.known_tools.tables import PREFIXES, TABLES, KnownTable, node_address
from amqpmesh.router.management.requested_changes import NoClientError
from amqpmesh.router.management.service import (
    BAD_REQUEST,
    FORBIDDEN,
    NO_CONTENT,
    NOT_ALLOWED,
    NOT_FOUND,
    OK,
    PAGE,
    RequestError,
    answer,
    attribute_names_of,
    get_schema,
    number_of,
    refused,
    text_of,
)
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.management.service import Changes
    from amqpmesh.router.management.views import View

LARGEST: Final = 8 * 2**20
"""Octets of the rows of one answer. The tools take a short page for the last one, so it is far above what 500 rows
have. Beyond it, the request is refused: its sender has to ask for fewer rows.
"""

OWN: Final = frozenset({"GET-SCHEMA", "GET-JSON-SCHEMA", "GET-LOG", "GET-MGMT-NODES"})
"""Operations that are the tools' own."""

_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("timestampsInUTC", "opened", "isAuthenticated", "isEncrypted", "ssl"), "boolean"),
    **dict.fromkeys(("enableVhostPolicy", "enableVhostNamePatterns"), "boolean"),
    **dict.fromkeys(("connectionCounters", "properties"), "map"),
    **dict.fromkeys(("cost", "connections", "routerLink", "capacity", "maxConnections", "totalDenials"), "integer"),
}


class _Named(NamedTuple):
    """The type that a request names."""

    table: KnownTable
    full: str
    """The name in the request."""


def asks(request: Message) -> bool:
    """Return True if a request is one of a known tool."""
    properties = request.application_properties
    operation, kind = _operation(request), properties.get("entityType")
    if operation == "GET-SCHEMA":
        return kind is None or _is_known(kind)
    return operation in OWN or any(_is_known(each) for each in (kind, properties.get("type")))


def _is_known(name: object) -> bool:
    # Without a prefix, a name with a dot is none of our own types.
    return isinstance(name, str) and (name.startswith(PREFIXES) or ("." in name and name in TABLES))


def _operation(request: Message) -> str:
    """Return the operation in capitals: the tools send one that is not built into them as it was typed."""
    operation = request.application_properties.get("operation")
    return operation.upper() if isinstance(operation, str) else ""


def respond(request: Message, view: View, changes: Changes | None = None) -> Steps[Message]:
    """Answer a request that `asks`, in steps. Args: as of `service.respond`."""
    operation = _operation(request)
    seen = Seen(view, has_phases=_is_of_dispatch(request))
    try:
        if operation == "DELETE":
            yield from _remove(request, view, seen, changes)
            return answer(request, NO_CONTENT, "No Content", {})
        if operation in _SEARCHES:
            body = yield from _SEARCHES[operation](request, view, seen)
        elif operation == "UPDATE":
            body = yield from _update(request, view, seen, changes)
        elif operation in _OPERATIONS:
            body = _OPERATIONS[operation](request, seen)
        else:
            raise RequestError(NOT_ALLOWED, f"{operation}: use the types that begin with {PREFIX}")
    except RequestError as refusal:
        return refused(request, refusal)
    return answer(request, OK, "OK", body)


def _is_of_dispatch(request: Message) -> bool:
    properties = request.application_properties
    return any(str(properties.get(key)).startswith(PREFIXES[1]) for key in ("entityType", "type"))


def _named(request: Message, key: str) -> _Named:
    name = text_of(request.application_properties, key)
    if name is None:
        raise RequestError(BAD_REQUEST, f"the application-property `{key}` is missing")
    prefix = next((each for each in PREFIXES if name.startswith(each)), "")
    table = TABLES.get(name.removeprefix(prefix))
    if table is None:
        raise RequestError(NOT_FOUND, f"there is no type {name}")
    return _Named(table, name)


def _readable(request: Message, key: str, view: View) -> _Named:
    named = _named(request, key)
    if not view.may_read(named.table.kind):
        raise RequestError(FORBIDDEN, "not permitted")
    return named


def _value(named: _Named, name: str, entity: Any, seen: Seen) -> Value:
    if name == "type":
        return named.full
    return named.table.columns[name](entity, seen)


def _query(request: Message, view: View, seen: Seen) -> Steps[Value]:
    """Return attributes of many entities as a table, without those that the type does not have."""
    named = _readable(request, "entityType", view)
    table = named.table
    wanted = attribute_names_of(request) or table.attributes
    has = frozenset(table.attributes) if table.columns else frozenset()
    names = [name for name in wanted if name in has]
    offset = number_of(request, "offset") or 0
    asked = number_of(request, "count")
    if table.looks_at_deliveries:
        yield from seen.look_at_deliveries()
    results: list[Any] = []
    size = 0
    for entity in list(table.rows(seen))[offset : offset + min(PAGE if asked is None else asked, PAGE)]:
        row = encode([_value(named, name, entity, seen) for name in names])
        size += len(row)
        if size > LARGEST:
            raise RequestError(BAD_REQUEST, "the rows are too large: ask for fewer by `count`")
        results.append(Encoded(row))
        yield
    return {"attributeNames": names, "results": results}


def _read(request: Message, view: View, seen: Seen) -> Steps[Value]:
    """Return all attributes of one entity."""
    named = _readable(request, "type", view)
    entity = yield from _found(request, named, seen)
    return _attributes(named, entity, seen)


def _attributes(named: _Named, entity: Any, seen: Seen) -> dict[Any, Value]:
    return {name: _value(named, name, entity, seen) for name in named.table.attributes}


def _found(request: Message, named: _Named, seen: Seen) -> Steps[Any]:
    properties = request.application_properties
    name, identity = text_of(properties, "name"), text_of(properties, "identity")
    if name is None and identity is None:
        raise RequestError(BAD_REQUEST, f"{properties['operation']} needs a `name` or an `identity`")
    table = named.table
    if table.looks_at_deliveries:
        yield from seen.look_at_deliveries()
    for entity in table.rows(seen):
        if identity in (None, table.columns["identity"](entity, seen)) and name in (
            None,
            table.columns["name"](entity, seen),
        ):
            return entity
        yield
    raise RequestError(NOT_FOUND, "there is no such entity")


def _update(request: Message, view: View, seen: Seen, changes: Changes | None) -> Steps[Value]:
    """End a connection by its `adminStatus`. All else is changed by the names of our own types."""
    named = _readable(request, "type", view)
    body = request.body
    if not named.table.removable or not isinstance(body, Mapping) or body.get("adminStatus") != "deleted":
        raise RequestError(NOT_ALLOWED, f"UPDATE: nothing but adminStatus=deleted; use types that begin with {PREFIX}")
    entity = yield from _found(request, named, seen)
    told = _attributes(named, entity, seen)
    _end(entity, named, view, changes)
    return {**told, "adminStatus": "deleted"}


def _remove(request: Message, view: View, seen: Seen, changes: Changes | None) -> Steps[None]:
    """End a connection."""
    named = _readable(request, "type", view)
    if not named.table.removable:
        raise RequestError(NOT_ALLOWED, f"DELETE: use the types that begin with {PREFIX}")
    entity = yield from _found(request, named, seen)
    _end(entity, named, view, changes)


def _end(entity: Any, named: _Named, view: View, changes: Changes | None) -> None:
    if changes is None or not view.may_change(named.table.kind):
        raise RequestError(FORBIDDEN, "nothing can be changed from where the request came")
    try:
        changes.remove(entity)
    except LookupError as error:
        raise RequestError(NOT_FOUND, str(error)) from None
    except NoClientError:
        raise RequestError(NOT_ALLOWED, "only what a client has opened can be removed") from None


# ----------------------------------------------------------------------------------------------------- about the types


def _tables(request: Message) -> dict[str, KnownTable]:
    """Return the type that a request names, under the name in the request."""
    named = _named(request, "entityType")
    return {named.full: named.table}


def _get_types(request: Message, _seen: Seen) -> Value:
    return {name: [] for name in _tables(request)}


def _get_attributes(request: Message, _seen: Seen) -> Value:
    return {name: list(table.attributes) for name, table in _tables(request).items()}


def _get_operations(request: Message, _seen: Seen) -> Value:
    return {name: list(_operations_of(table)) for name, table in _tables(request).items()}


def _operations_of(table: KnownTable) -> tuple[str, ...]:
    return ("READ", "UPDATE", "DELETE") if table.removable else ("READ", *operations_on(table.name))


def _get_annotations(request: Message, _seen: Seen) -> Value:
    return {name: [] for name in _tables(request)}


def _get_mgmt_nodes(_request: Message, seen: Seen) -> Value:
    """Return the management nodes of all routers that can be reached, this one's among them."""
    if not seen.of("mesh"):
        return []
    reachable = [each.router for each in seen.of("route") if each.distance is not None]
    return [node_address(name) for name in sorted((seen.router.id, *reachable))]


def _get_log(request: Message, seen: Seen) -> Value:
    """Return the last lines of the log, as lists: its logger, level, text, file, line and time."""
    # Lines of the log name users, and the hosts of clients.
    if not (seen.is_operator and seen.may_read_confidential):
        raise RequestError(FORBIDDEN, "not permitted")
    limit = request.application_properties.get("limit")
    if isinstance(limit, str) and limit.isdecimal():  # as the tool passes on what was typed
        limit = int(limit)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise RequestError(BAD_REQUEST, "`limit` is no count")
    lines: list[Value] = [
        [name, level, text, None, None, ULong(int(at))] for name, level, text, at in recent_lines(limit)
    ]
    return lines


def _get_schema(request: Message, _seen: Seen) -> Value:
    """Return the types of known tools with their attributes, as far as the tools read it, beside our own types."""
    return _schema_of(text_of(request.application_properties, "entityType"))


def _schema_of(name: str | None) -> Value:
    request = Message(None, application_properties={} if name is None else {"entityType": name})
    if name is not None and not _is_known(name):
        return get_schema(request)
    tables = TABLES if name is None else _tables(request)
    entity_types: dict[Any, Any] = {
        table.name: {
            "attributes": {name: {"type": _TYPES.get(name, "string")} for name in table.attributes},
            "operations": list(_operations_of(table)),
        }
        for table in tables.values()
    }
    if name is None:
        told: Any = get_schema(request)
        # skstat looks this one up before it asks whether there are any.
        entity_types |= {"vhostUserGroupSettings": {"attributes": {}, "operations": []}, **told["entityTypes"]}
    return {"prefix": PREFIXES[0].rstrip("."), "entityTypes": entity_types}


def _get_json_schema(request: Message, _seen: Seen) -> Value:
    indent = request.application_properties.get("indent")
    if isinstance(indent, str) and indent.isdecimal():
        indent = int(indent)
    spaces = int(indent) if isinstance(indent, int) and 0 <= indent <= 8 else None
    return _json_schema(text_of(request.application_properties, "entityType"), spaces)


@lru_cache(maxsize=4)  # a request for it takes 5 to 8 ms, and the schema does not change while the program runs
def _json_schema(name: str | None, spaces: int | None) -> str:
    return json.dumps(_schema_of(name), indent=spaces)


_SEARCHES: Final[Mapping[str, Callable[[Message, View, Seen], Steps[Value]]]] = {"QUERY": _query, "READ": _read}
_OPERATIONS: Final[Mapping[str, Callable[[Message, Seen], Value]]] = {
    "GET-TYPES": _get_types,
    "GET-ATTRIBUTES": _get_attributes,
    "GET-OPERATIONS": _get_operations,
    "GET-ANNOTATIONS": _get_annotations,
    "GET-MGMT-NODES": _get_mgmt_nodes,
    "GET-SCHEMA": _get_schema,
    "GET-JSON-SCHEMA": _get_json_schema,
    "GET-LOG": _get_log,
}
