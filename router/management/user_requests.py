"""CREATE, READ, UPDATE and DELETE of password users: requests to `$management`, and their answers.

Users are in the files of listeners. A request brings a password, and no answer has one, or a verifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from amqpmesh.router.amqp.codec.types import Array
from amqpmesh.router.config.edits import MAX_NAME, MAX_TEXT
from amqpmesh.router.config.urls import is_loopback
from amqpmesh.router.management.entities import PREFIX, TYPES
from amqpmesh.router.management.service import (
    BAD_REQUEST,
    CONFLICT,
    CREATED,
    NO_CONTENT,
    NOT_ALLOWED,
    NOT_FOUND,
    OK,
    RequestError,
    answer,
)
from amqpmesh.router.management.user_list import named, user_statistics

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.config.file import ListenerConfig, RouterConfig
    from amqpmesh.router.config.users import Users
    from amqpmesh.router.message.content import Message
    from amqpmesh.router.model.connections import ConnectionRecord

KIND: Final = "user"
"""The type, without its prefix."""

CREATE, READ, UPDATE, DELETE = OPERATIONS = ("CREATE", "READ", "UPDATE", "DELETE")

KEYS: Final = ("password", "groups", "disabled", "listener")
"""The keys in the body of a request."""

MOST_GROUPS: Final = 64
"""Groups of a user in a request at most."""

IN_CLEAR: Final = "a password is taken in TLS or on loopback only, from a client of this router"
"""The reason to refuse a password that others could read."""

MAX_IDENTITY: Final = 4 * MAX_NAME
"""Characters of a listener, percent-encoded, and a name in an identity at most."""

_REPEATED: Final = frozenset({"name", "identity", "type"})
"""Attributes of each entity, which tools repeat in the body."""


@dataclass(frozen=True, slots=True)
class UserRequest:
    """A request about one user. What it does not say is None."""

    operation: str
    name: str
    listener: str | None = None
    """The listener whose users are meant."""
    password: str | None = field(default=None, repr=False)
    groups: tuple[str, ...] | None = None
    disabled: bool | None = None

    @property
    def is_change(self) -> bool:
        """True if it asks for more than to read."""
        return self.operation != READ


def user_request(request: Message) -> UserRequest | None:
    """Return what a request asks for; None: it is about no user. Raises: RequestError: it is malformed."""
    properties = request.application_properties
    operation, wanted, identity = (properties.get(each) for each in ("operation", "type", "identity"))
    named = isinstance(identity, str) and wanted is None and identity.startswith((f"{KIND}/", f"{KIND}@"))
    if not (named or wanted in (KIND, f"{PREFIX}{KIND}")) or not isinstance(operation, str):
        return None
    if operation not in OPERATIONS:
        raise RequestError(NOT_ALLOWED, f"{operation}: a user takes {', '.join(OPERATIONS)}")
    given = _keys(request.body) if operation in (CREATE, UPDATE) else {}
    name, of_identity = _name(properties.get("name"), identity)
    listener = given.get("listener", properties.get("listener", of_identity))
    if operation == CREATE and "password" not in given:
        raise RequestError(BAD_REQUEST, "CREATE of a user needs a `password`")
    if operation == UPDATE and not given.keys() - {"listener"}:
        raise RequestError(BAD_REQUEST, f"the body has none of {', '.join(KEYS[:-1])}")
    disabled = (given["disabled"] or False) if "disabled" in given else None
    if not (disabled is None or isinstance(disabled, bool)):
        raise RequestError(BAD_REQUEST, "`disabled` is no boolean")
    return UserRequest(
        operation,
        name,
        None if listener is None else _text(listener, "listener"),
        _text(given["password"], "password", MAX_TEXT) if "password" in given else None,
        _groups(given["groups"]) if "groups" in given else None,
        disabled,
    )


def _keys(body: object) -> dict[str, object]:
    if not isinstance(body, Mapping):
        raise RequestError(BAD_REQUEST, "the body is no map of keys")
    given = {str(name): value for name, value in body.items() if name not in _REPEATED}
    unknown = next((name for name in given if name not in KEYS), None)
    if unknown is not None:
        raise RequestError(BAD_REQUEST, f"a key is unknown; known are {', '.join(KEYS)}")
    return given


def _name(name: object, identity: object) -> tuple[str, str | None]:
    """Return the name of a user, and the listener in its identity."""
    listener = None
    if identity is not None:
        place, _, rest = _text(identity, "identity", len(KIND) + 2 + MAX_IDENTITY).partition("/")
        kind, separator, quoted = place.partition("@")
        if kind != KIND or name not in (None, rest):
            raise RequestError(NOT_FOUND, "there is no such entity")
        name, listener = rest, unquote(quoted) if separator else None
    if name is None:
        raise RequestError(BAD_REQUEST, "a `name` is missing")
    return _text(name, "name"), listener


def _text(value: object, name: str, most: int = MAX_NAME) -> str:
    """Return a text, without repeating it in an error: it may be a password."""
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise RequestError(BAD_REQUEST, f"`{name}` is no string of 1 to {most} characters without control characters")
    return "".join(value)


def _groups(value: object) -> tuple[str, ...]:
    if isinstance(value, Array):
        value = list(value.values)
    elif isinstance(value, str) or value is None:  # a single text can stand for a list of one, as in files
        value = [value] if value else []
    if not isinstance(value, list) or len(value) > MOST_GROUPS:
        raise RequestError(BAD_REQUEST, f"`groups` is no list of {MOST_GROUPS} names at most")
    return tuple(_text(each, "groups") for each in value)


def is_confidential(record: ConnectionRecord | None) -> bool:
    """Tell whether nobody can read what a client sends: it is in TLS, or comes from this machine.

    Args: record: its connection; None: it is a client of another router.
    """
    return record is not None and (record.inside or record.tls is not None or is_loopback(record.host))


def listeners_of(config: RouterConfig, wanted: UserRequest) -> tuple[ListenerConfig, ...]:
    """Return the listeners whose users a request is about: first the one that it means, then others of its files.

    Raises: RequestError: there is none, or several have users of their own.
    """
    having = [each for each in config.listeners if each.users_files]
    if wanted.listener is not None:
        having = [each for each in having if each.name == wanted.listener]
        if not having:
            raise RequestError(NOT_FOUND, "there is no listener of that name with a file of users")
    places = {each.users_files for each in having}
    if not places:
        raise RequestError(CONFLICT, "no listener has a file of users")
    if len(places) > 1:
        names = ", ".join(each.name for each in having)
        raise RequestError(BAD_REQUEST, f"several listeners have users of their own: say `listener`, one of {names}")
    first, files = having[0], frozenset(places.pop())
    others = (each for each in config.listeners if each is not first and files.intersection(each.users_files))
    return (first, *others)


def answered(
    request: Message, wanted: UserRequest, config: RouterConfig, listener: ListenerConfig, users: Users | None
) -> Message:
    """Return the answer to a request that was done. Args: users: of the listener, after it."""
    if wanted.operation == DELETE:
        return answer(request, NO_CONTENT, "No Content", {})
    assert users is not None
    kind = TYPES[f"{PREFIX}{KIND}"]
    told = kind.reader(kind.attributes)(user_statistics(*named(listener, config.listeners), users, wanted.name))
    body: dict[Value, Value] = dict(zip(kind.attributes, told, strict=True))
    created = wanted.operation == CREATE
    return answer(request, CREATED if created else OK, "Created" if created else "OK", body)
