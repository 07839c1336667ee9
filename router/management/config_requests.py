"""APPLY and CONFIG: requests to `$management` to put the router's own file in force, and for what is in force."""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import ULong
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.service import BAD_REQUEST, CONFLICT, OK, RequestError, answer
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import Protocol

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.config.differences import Difference

    class UserChange(Protocol):
        """A change in a file of users."""

        @property
        def event(self) -> str: ...  # noqa: D102
        @property
        def listener(self) -> str: ...  # noqa: D102
        @property
        def user(self) -> str | None: ...  # noqa: D102
        @property
        def others(self) -> int | None: ...  # noqa: D102


APPLY: Final = "APPLY"
"""The operation of the type `router`."""

CONFIG: Final = "CONFIG"
"""The operation of the type `router` that returns the configuration in force."""

PART: Final = 64 * 2**10
"""Characters of the configuration in one answer at most."""

TYPE: Final = f"{PREFIX}router"

ACCEPTED: Final = 202
"""The status of an answer whose keys do not all hold yet: some wait for a restart."""

TOLD: Final = 500
"""Differences, and changes of users, in an answer at most; it has the number of the others."""


def apply_request(file: Path | None, *, dry_run: bool) -> Message:
    """Return a request to apply the router's configuration file. Args: file: refuse another one; None: whatever it is.
    dry_run: only compare.
    """
    properties: dict[str, Value] = {"operation": APPLY, "type": TYPE, "dry_run": dry_run}
    if file is not None:
        properties["file"] = str(file)
    return Message(None, application_properties=properties)


def config_request(offset: int = 0, digest: str | None = None) -> Message:
    """Return a request for a part of the configuration in force.

    Args: offset: of its first character. digest: of the first answer; the router refuses if the configuration has
        another one by now.
    """
    properties: dict[str, Value] = {"operation": CONFIG, "type": TYPE, "offset": offset}
    if digest is not None:
        properties["digest"] = digest
    return Message(None, application_properties=properties)


def config_part(request: Message, text: str) -> Message:
    """Return the answer to a request for the configuration. Args: text: all of it. Raises: RequestError."""
    properties = request.application_properties
    offset, wanted = properties.get("offset", 0), properties.get("digest")
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0 or not isinstance(wanted, str | None):
        raise RequestError(BAD_REQUEST, "CONFIG takes `offset`, a count, and `digest`, a string")
    digest = sha256(text.encode()).hexdigest()
    if wanted not in (None, digest):
        raise RequestError(CONFLICT, "the configuration has changed")
    body: dict[Value, Value] = {"text": text[offset : offset + PART], "total": ULong(len(text)), "digest": digest}
    return answer(request, OK, "OK", body)


def arguments(request: Message) -> tuple[str | None, bool]:
    """Return the file and `dry_run` of a request. Raises: RequestError: one of them is malformed."""
    properties = request.application_properties
    file, dry_run = properties.get("file"), properties.get("dry_run", False)
    if not (file is None or isinstance(file, str)) or not isinstance(dry_run, bool):
        raise RequestError(BAD_REQUEST, "APPLY takes `file`, a string, and `dry_run`, a boolean")
    return file, dry_run


def told(found: Difference) -> dict[Value, Value]:
    """Return a difference as a map for an answer."""
    return {
        "key": found.key,
        "effect": found.effect.value,
        "from": found.before,
        "to": found.after,
        "reason": found.reason or None,
    }


def applied(request: Message, differences: Sequence[Difference], users: Iterable[UserChange]) -> Message:
    """Return the answer to a request that was done: what differs from what ran before."""
    waiting = sum(each.needs_restart for each in differences)
    body: dict[Value, Value] = {
        "differences": [told(each) for each in differences[:TOLD]],
        "more": ULong(max(0, len(differences) - TOLD)),
        "waiting": ULong(waiting),
        "users": [
            {
                "event": each.event,
                "listener": each.listener,
                "user": each.user,
                "others": None if each.others is None else ULong(each.others),
            }
            for each in islice(users, TOLD)
        ],
    }
    return answer(request, ACCEPTED, "Accepted", body) if waiting else answer(request, OK, "OK", body)
