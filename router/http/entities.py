"""The entities of a router in JSON, and the requests for changes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from amqpmesh.router.http.requests import BAD_REQUEST, FORBIDDEN, NOT_ALLOWED, NOT_FOUND, HttpError
from amqpmesh.router.management.entities import PREFIX, TYPES
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqpmesh.router.http.requests import Request
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.management.entities import EntityType
    from amqpmesh.router.management.views import View

ROOT: Final = "/api"
"""The path of all entities; below it each type has one, and each entity."""

PART: Final = 64 * 2**10
"""Octets of a part of an answer, and a little more: a client that reads slowly makes the router hold one."""

OPERATIONS: Final = {"PATCH": "UPDATE", "DELETE": "DELETE"}
"""The operations of `$management` behind the methods that change something."""


def is_entities(path: str) -> bool:
    """Tell whether a path is one of entities."""
    return path == ROOT or path.startswith(f"{ROOT}/")


class Place:
    """The place of entities in a path: `/api`, `/api/TYPE` or `/api/TYPE/REST`, with percent-encoded parts."""

    def __init__(self, path: str) -> None:
        """Args: path: of a request. Raises: HttpError: there is no such type."""
        kind, _, rest = path.removeprefix(ROOT).removeprefix("/").partition("/")
        found = TYPES.get(f"{PREFIX}{unquote(kind)}")
        if kind and found is None:
            raise HttpError(NOT_FOUND, "there is no such type of entities")
        #: The type; None: all types.
        self.kind: EntityType | None = found
        #: The identity of the entity; None: all of the type.
        self.identity = f"{kind}/{rest}" if rest else None

    def kinds(self, view: View) -> Sequence[EntityType]:
        """Return the types that the client asks for and may read. Raises: HttpError: it may not read the one."""
        if self.kind is None:
            return [each for each in TYPES.values() if view.may_read(each.kind) and not each.by_type]
        if not view.may_read(self.kind.kind):
            raise HttpError(FORBIDDEN, "not permitted")
        return [self.kind]


def listed(kinds: Sequence[EntityType], view: View) -> Iterator[bytes]:
    """Return an object of JSON with a list of entities for each type, in small pieces."""
    before = b"{"
    for kind in kinds:
        yield before + json.dumps(kind.kind).encode() + b":["
        for number, entity in enumerate(view.entities(kind)):
            yield (b",\n" if number else b"\n") + _encoded(kind, entity)
        yield b"]"
        before = b",\n"
    yield b"}\n" if before != b"{" else b"{}\n"


def found(place: Place, view: View) -> Steps[bytes]:
    """Return one entity as an object of JSON, in steps. Raises: HttpError: there is none, or it may not be read."""
    (kind,) = place.kinds(view)
    wanted = place.identity
    for entity in view.entities(kind):
        # Each character of an identity may stand as itself or percent-encoded, also those that identities encode.
        identity = kind.identity(entity)
        if wanted in (identity, None) or unquote(wanted or "") == identity:
            return _encoded(kind, entity) + b"\n"
        yield
    raise HttpError(NOT_FOUND, "there is no such entity")


def next_part(pieces: Iterator[bytes]) -> Steps[bytes]:
    """Return the next pieces together, at least `PART` octets, in steps; b"": there are no more."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= PART:
            break
        yield
    return bytes(part)


def change(request: Request, place: Place) -> Message:
    """Return a change as a request for `$management`. Raises: HttpError: it is for no single entity, or malformed."""
    if place.kind is None or place.identity is None:
        raise HttpError(NOT_ALLOWED, "a change is for one entity", ("Allow", "GET, HEAD"))
    if request.method not in OPERATIONS:
        raise HttpError(NOT_ALLOWED, "entities are changed by PATCH and DELETE", ("Allow", "GET, HEAD, PATCH, DELETE"))
    body = object_in(request) if request.method == "PATCH" else {}
    properties = {"operation": OPERATIONS[request.method], "type": place.kind.name, "identity": unquote(place.identity)}
    return Message(body, reply_to="", application_properties=properties)


def object_in(request: Request) -> dict[str, Any]:
    """Return the object of JSON in a request. Raises: HttpError: it has none."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpError(BAD_REQUEST, "the content is no application/json")
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        raise HttpError(BAD_REQUEST, "the content is no valid JSON") from None
    if not isinstance(body, dict):
        raise HttpError(BAD_REQUEST, "the content is no object of JSON")
    return body


def _encoded(kind: EntityType, entity: Any) -> bytes:
    told = dict(zip(kind.attributes, kind.reader(kind.attributes)(entity), strict=True))
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
