"""The `$management` operations: requests and answers about the state of a router.

Requests and responses follow AMQP Management (working draft): QUERY and READ, and the operations that list types,
attributes and operations. UPDATE changes costs and DELETE ends connections and links, if the sender is allowed to. The
types are those of `entities.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpmesh.policies.access import RESERVED
from amqpmesh.router.amqp.codec.types import Array, Encoded, Int, ULong
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.config.limits import USHORT_MAX
from amqpmesh.router.management.entities import COMMON, PREFIX, TYPES, EntityType
from amqpmesh.router.management.entity_schema import schema
from amqpmesh.router.management.requested_changes import NoClientError
from amqpmesh.router.message.content import Message
from amqpmesh.router.statistics.router_statistics import Costly, Removable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.management.views import View

ADDRESS: Final = f"{RESERVED}management"
"""The address for requests."""

NODE: Final = "org.amqp.management"
"""The type of the management node, which is itself an entity."""

PAGE: Final = 500
"""Entities in one answer to a QUERY at most; the next request continues by `offset`."""

PAGE_SIZE: Final = 256 * 2**10
"""Octets after which an answer gets no further entity: names may be long."""

PAGE_VALUES: Final = MAX_VALUES * 3 // 4
"""Values in the rows of an answer at most: clients with the default limit of values can decode it."""

MAX_ATTRIBUTE_NAMES: Final = 200
"""Attribute names in a QUERY at most; there are fewer."""

DELETED: Final[Mapping[str, Any]] = {"adminStatus": "deleted"}
"""The change of a connection or link that ends it, as tools of Qpid Dispatch ask for it."""

OK, CREATED, NO_CONTENT = 200, 201, 204
BAD_REQUEST, FORBIDDEN, NOT_FOUND, NOT_ALLOWED, CONFLICT, NOT_IMPLEMENTED = 400, 403, 404, 405, 409, 501

_DESCRIPTIONS: Final = {
    OK: "OK",
    NO_CONTENT: "No Content",
    BAD_REQUEST: "Bad Request",
    FORBIDDEN: "Forbidden",
    NOT_FOUND: "Not Found",
    NOT_ALLOWED: "Method Not Allowed",
    CONFLICT: "Conflict",
    NOT_IMPLEMENTED: "Not Implemented",
}


Change = Callable[[str, Costly, int], None]
"""A function that sets the cost of an entity, given its identity and statistics. Raises: LookupError: it cannot have
one.
"""

Remove = Callable[[Removable], None]
"""A function that removes an entity, given its statistics. Raises: LookupError: it is gone. NoClientError: it is none
that may be removed.
"""


class Changes(NamedTuple):
    """The changes that a peer may ask for, as far as its rights permit them."""

    set_cost: Change
    remove: Remove


class RequestError(Exception):
    """A refused request: the response has this status and no body."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def respond(request: Message, view: View, changes: Changes | None = None) -> Steps[Message]:
    """Answer a request, in steps, since answers may be long; an error is answered, too.

    The answer's `to` is the request's reply-to, and its correlation-id is the request's correlation-id, or else its
    message-id. Args: view: the entities that the sender may see. changes: None: the sender may change nothing.
    """
    properties = request.application_properties
    try:
        operation = text_of(properties, "operation")
        if operation is None:
            raise RequestError(BAD_REQUEST, "the application-property `operation` is missing")
        if operation in _SEARCHES:
            body = yield from _SEARCHES[operation](request, view)
        elif operation == "UPDATE":
            body = yield from _update(request, view, changes)
        elif operation == "DELETE":
            yield from _delete(request, view, changes)
            return answer(request, NO_CONTENT, _DESCRIPTIONS[NO_CONTENT], {})
        else:
            body = _operation(operation)(request)
    except RequestError as refusal:
        return refused(request, refusal)
    return answer(request, OK, _DESCRIPTIONS[OK], body)


def answer(request: Message, status: int, description: str, body: Value) -> Message:
    """Return the answer to a request."""
    return Message(
        body,
        to=request.reply_to,
        correlation_id=request.message_id if request.correlation_id is None else request.correlation_id,
        application_properties={"statusCode": Int(status), "statusDescription": description},
    )


def refused(request: Message, refusal: RequestError) -> Message:
    """Return the answer to a request that is refused."""
    return answer(request, refusal.status, f"{_DESCRIPTIONS[refusal.status]}: {refusal}", {})


def goes_on(request: Message) -> bool:
    """Return True if a request asks for a page after the first."""
    return bool(request.application_properties.get("offset"))


def _operation(name: str) -> Callable[[Message], Value]:
    operation = _OPERATIONS.get(name)
    if operation is not None:
        return operation
    if name in _CHANGING:
        raise RequestError(NOT_ALLOWED, f"{name}: nothing comes or goes by that")
    raise RequestError(NOT_IMPLEMENTED, f"there is no operation {name}")


# ----------------------------------------------------------------------------------------------------- the operations


def _query(request: Message, view: View) -> Steps[Value]:
    """Return attributes of many entities as a table: `attributeNames`, and a row for each entity in `results`.

    Rows are encoded as they are read. Encoding takes as long as reading, and would be one long step at the end.
    """
    kinds = _visible_types(request, "entityType", view)
    names = attribute_names_of(request) or list(dict.fromkeys(name for kind in kinds for name in kind.attributes))
    offset = number_of(request, "offset") or 0
    asked = number_of(request, "count")
    count = min(PAGE if asked is None else asked, PAGE, PAGE_VALUES // (len(names) + 1))
    readers = {kind: kind.reader(names) for kind in kinds}
    results: list[Any] = []
    size = values = 0
    for kind, entity in _page(kinds, view, offset, count):
        told = readers[kind](entity)
        row = encode(told)
        size += len(row)
        values += 1 + len(told) + sum(map(_count, told))
        if results and (size > PAGE_SIZE or values > PAGE_VALUES):
            break
        results.append(Encoded(row))
        yield
    return {"attributeNames": names, "results": results}


def _count(value: object) -> int:
    """Return the number of values in a list or map."""
    if isinstance(value, Mapping):
        return sum(2 + _count(each) for each in value.values())
    return sum(1 + _count(each) for each in value) if isinstance(value, list) else 0


def _page(kinds: Iterable[EntityType], view: View, offset: int, count: int) -> Iterator[tuple[EntityType, Any]]:
    """Yield `count` entities after the first `offset` of all."""
    for kind in kinds:
        entities = view.entities(kind)
        page = entities[offset : offset + count]
        offset = max(0, offset - len(entities))
        count -= len(page)
        for entity in page:
            yield kind, entity


def _read(request: Message, view: View) -> Steps[Value]:
    """Return all attributes of one entity."""
    name, identity, wanted = _requested_entity(request)
    if "self" in (name, identity) and wanted in (None, NODE):
        return {"name": "self", "identity": "self", "type": NODE}
    kind, entity = yield from _find(request, view)
    return _attributes(kind, entity)


def _update(request: Message, view: View, changes: Changes | None) -> Steps[Value]:
    """Set the cost of a neighbour, or of all connections of a connector or listener; return the changed entity.

    A connection or link whose `adminStatus` becomes `deleted` ends.
    """
    kind, entity = yield from _find(request, view)
    _demand_type(request, kind)
    if kind.removable and request.body == DELETED:
        _remove(kind, entity, view, changes)
        return {**_attributes(kind, entity), **DELETED}
    if not kind.changeable:
        raise RequestError(NOT_ALLOWED, f"UPDATE: nothing of {kind.name} can be changed")
    permitted = _permitted(kind, view, changes)
    body = request.body
    if not isinstance(body, Mapping) or set(body) != set(kind.changeable):
        raise RequestError(BAD_REQUEST, f"the body is no map of what can be changed: {', '.join(kind.changeable)}")
    cost = body["cost"]
    if not isinstance(cost, int) or isinstance(cost, bool) or not 1 <= cost <= USHORT_MAX:
        raise RequestError(BAD_REQUEST, f"`cost` is no number from 1 to {USHORT_MAX}")
    try:
        permitted.set_cost(kind.identity(entity), entity, int(cost))
    except LookupError as error:
        raise RequestError(NOT_FOUND, str(error)) from None
    return {**_attributes(kind, entity), "cost": ULong(cost)}


def _delete(request: Message, view: View, changes: Changes | None) -> Steps[None]:
    """End a client's connection or link."""
    kind, entity = yield from _find(request, view)
    _demand_type(request, kind)
    if not kind.removable:
        raise RequestError(NOT_ALLOWED, f"DELETE: nothing of {kind.name} can be removed")
    _remove(kind, entity, view, changes)


def _remove(kind: EntityType, entity: Any, view: View, changes: Changes | None) -> None:
    try:
        _permitted(kind, view, changes).remove(entity)
    except LookupError as error:
        raise RequestError(NOT_FOUND, str(error)) from None
    except NoClientError:
        raise RequestError(NOT_ALLOWED, "only what a client has opened can be removed") from None


def _demand_type(request: Message, kind: EntityType) -> None:
    """Refuse a change of a table of the configuration that names no type. The cost of a neighbour is in no table."""
    properties = request.application_properties
    is_cost = isinstance(request.body, Mapping) and set(request.body) == set(kind.changeable)
    if kind.table is not None and not is_cost and properties.get("type") is None and properties.get("identity") is None:
        raise RequestError(BAD_REQUEST, f"there is a {kind.kind} of that name: say its `type`")


def _permitted(kind: EntityType, view: View, changes: Changes | None) -> Changes:
    """Return the changes that the sender may make to entities of a type. Raises: RequestError: it may make none."""
    if changes is None or not view.may_change(kind.kind):
        raise RequestError(FORBIDDEN, "nothing can be changed from where the request came")
    return changes


def _attributes(kind: EntityType, entity: Any) -> dict[str, Value]:
    return dict(zip(kind.attributes, kind.reader(kind.attributes)(entity), strict=True))


def _requested_entity(request: Message) -> tuple[str | None, str | None, str | None]:
    """Return name, identity and type of the requested entity."""
    properties = request.application_properties
    name, identity, wanted = (text_of(properties, each) for each in ("name", "identity", "type"))
    if name is None and identity is None:
        raise RequestError(BAD_REQUEST, f"{properties['operation']} needs a `name` or an `identity`")
    return name, identity, wanted


def _find(request: Message, view: View) -> Steps[tuple[EntityType, Any]]:
    """Find the requested entity."""
    name, identity, _ = _requested_entity(request)
    found: list[tuple[EntityType, Any]] = []
    for kind in _visible_types(request, "type", view):
        for entity in view.entities(kind):
            if identity in (None, kind.identity(entity)) and name in (None, kind.entity_name(entity)):
                found.append((kind, entity))
            yield
    if not found:
        raise RequestError(NOT_FOUND, "there is no such entity")
    if len(found) > 1:
        raise RequestError(BAD_REQUEST, f"{len(found)} entities have that name: say its `type`, or its `identity`")
    return found[0]


def _get_types(request: Message) -> Value:
    """Return the types, each with the types that it extends: none."""
    return {name: [] for name in _type_names(request)}


def _get_attributes(request: Message) -> Value:
    """Return the attribute names of each type."""
    return {name: list(TYPES[name].attributes if name in TYPES else COMMON) for name in _type_names(request)}


def _get_operations(request: Message) -> Value:
    """Return the operations of each type, with the names of their arguments."""
    return {name: _operations_of(name) for name in _type_names(request)}


def _operations_of(name: str) -> Value:
    if name not in TYPES:
        return dict(_ARGUMENTS)
    if name == f"{PREFIX}user":
        return {each: ["name", "identity", "listener"] for each in ("CREATE", "READ", "UPDATE", "DELETE")}
    known: dict[Any, Value] = {"READ": ["name", "identity"]}
    table = TYPES[name].table
    is_row = table is not None and table.key is not None
    if is_row:
        known["CREATE"] = ["name"]
    if TYPES[name].changeable or TYPES[name].removable or table is not None:
        known["UPDATE"] = ["name", "identity"]
    if TYPES[name].removable or is_row:
        known["DELETE"] = ["name", "identity"]
    if name == f"{PREFIX}policy":
        known["PUSH"] = ["digest", "offset", "total"]
    if name == f"{PREFIX}router":
        known["APPLY"] = ["file", "dry_run"]
        known["CONFIG"] = ["offset", "digest"]
        known["DRAIN"] = ["pace", "timeout", "cancel"]
        known["UPGRADE"] = ["ask"]
    if name == f"{PREFIX}address":
        known["WHY"] = ["name", "send"]
        known["TRACE"] = ["name", "next", "wait"]
    return known


def get_schema(request: Message) -> Value:
    """Return the attributes of each type with their types, and those that can be changed."""
    return _schema_of(tuple(name for name in _type_names(request) if name in TYPES))


@lru_cache(maxsize=len(TYPES) + 1)
def _schema_of(names: tuple[str, ...]) -> Value:
    """Return the schema of types. It is made once: that takes longer than a step may."""
    return schema(names, _operations_of)


def _get_annotations(request: Message) -> Value:
    """Return the annotations of each type: none."""
    return {name: [] for name in _type_names(request)}


#: The operations that search the entities, in steps.
_SEARCHES: Final[Mapping[str, Callable[[Message, View], Steps[Value]]]] = {"QUERY": _query, "READ": _read}
_OPERATIONS: Final[Mapping[str, Callable[[Message], Value]]] = {
    "GET-TYPES": _get_types,
    "GET-ATTRIBUTES": _get_attributes,
    "GET-OPERATIONS": _get_operations,
    "GET-ANNOTATIONS": _get_annotations,
    "GET-SCHEMA": get_schema,
}
_CHANGING: Final = frozenset({"CREATE", "REGISTER", "DEREGISTER"})
_ARGUMENTS: Final[Mapping[str, Value]] = {
    "QUERY": ["entityType", "offset", "count"],
    "READ": ["name", "identity"],
    "GET-TYPES": ["entityType"],
    "GET-ATTRIBUTES": ["entityType"],
    "GET-OPERATIONS": ["entityType"],
    "GET-ANNOTATIONS": ["entityType"],
    "GET-SCHEMA": ["entityType"],
    "GET-MGMT-NODES": [],
}


# -------------------------------------------------------------------------------------------------------- what they say


def text_of(properties: Mapping[str, Value], name: str) -> str | None:
    """Return an application-property; None: it is missing. Raises: RequestError: it is no string."""
    value = properties.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestError(BAD_REQUEST, f"`{name}` is no string")
    return value


def number_of(request: Message, name: str) -> int | None:
    """Return an application-property; None: it is missing. Raises: RequestError: it is no count."""
    value = request.application_properties.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestError(BAD_REQUEST, f"`{name}` is no count")
    return value


def _entity_type(name: str) -> EntityType:
    kind = TYPES.get(name) or TYPES.get(f"{PREFIX}{name}")
    if kind is None:
        raise RequestError(NOT_FOUND, f"there is no type {name}")
    return kind


def _visible_types(request: Message, argument: str, view: View) -> Sequence[EntityType]:
    """Return the requested type, or all types that the sender may read, without long and confidential ones.

    Raises: RequestError(FORBIDDEN): it may not read the requested one.
    """
    name = text_of(request.application_properties, argument)
    if name is None:
        return [each for each in TYPES.values() if view.may_read(each.kind) and not each.by_type]
    kind = _entity_type(name)
    if not view.may_read(kind.kind):
        raise RequestError(FORBIDDEN, "not permitted")
    return [kind]


def _type_names(request: Message) -> list[str]:
    """Return the name of the requested type, or of all types including the management node's."""
    name = text_of(request.application_properties, "entityType")
    if name is None:
        return [NODE, *TYPES]
    return [name] if name == NODE else [_entity_type(name).name]


def attribute_names_of(request: Message) -> list[str]:
    """Return the requested attribute names; none: all."""
    body = request.body
    if not isinstance(body, Mapping):
        if body is None or body in (b"", ""):
            return []
        raise RequestError(BAD_REQUEST, "the body is no map")
    names = body.get("attributeNames") or []
    if isinstance(names, Array):
        names = list(names.values)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RequestError(BAD_REQUEST, "`attributeNames` is no list of strings")
    if len(names) > MAX_ATTRIBUTE_NAMES:
        raise RequestError(BAD_REQUEST, f"`attributeNames` are more than {MAX_ATTRIBUTE_NAMES}")
    return names
