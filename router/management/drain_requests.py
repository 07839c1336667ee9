"""DRAIN: a request to `$management` to move the clients of a router to others, and to end it then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.amqp.codec.types import ULong
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.service import BAD_REQUEST, OK, RequestError, answer
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from typing import Any

    from amqpmesh.router.amqp.codec.types import Value

DRAIN: Final = "DRAIN"
"""The operation of the type `router`."""

TYPE: Final = f"{PREFIX}router"

PACE: Final = (0.001, 1.0)
"""The least and the greatest `pace`."""

TIMEOUT: Final = (0.0, 86_400.0)
"""The least and the greatest `timeout`, seconds."""


class Wanted(NamedTuple):
    """The arguments of a request."""

    pace: float | None
    """The share of the clients that is moved in a second; None: as configured."""
    timeout: float | None
    """Seconds; None: as configured."""
    cancel: bool
    """Let the rest of the clients stay."""


def drain_request(*, pace: float | None = None, timeout: float | None = None, cancel: bool = False) -> Message:
    """Return a request. Args: as of `Wanted`."""
    properties: dict[str, Value] = {"operation": DRAIN, "type": TYPE, "cancel": cancel}
    if pace is not None:
        properties["pace"] = pace
    if timeout is not None:
        properties["timeout"] = timeout
    return Message(None, application_properties=properties)


def arguments(request: Message) -> Wanted:
    """Return the arguments of a request. Raises: RequestError: one of them is malformed."""
    properties = request.application_properties
    cancel = properties.get("cancel", False)
    if not isinstance(cancel, bool):
        raise RequestError(BAD_REQUEST, "`cancel` is no boolean")
    return Wanted(_number(properties, "pace", PACE), _number(properties, "timeout", TIMEOUT), cancel)


def drained(request: Message, *, moving: bool, left: int, moved: int, seconds: float) -> Message:
    """Return the answer to a request. Args: moving: clients are being moved. left, moved: connections of clients.
    seconds: until the router ends in any case.
    """
    body: dict[Value, Value] = {
        "draining": moving,
        "left": ULong(left),
        "moved": ULong(moved),
        "seconds": seconds,
    }
    return answer(request, OK, "OK", body)


def _number(properties: Any, name: str, bounds: tuple[float, float]) -> float | None:
    value = properties.get(name)
    if value is None:
        return None
    least, greatest = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= greatest:
        raise RequestError(BAD_REQUEST, f"`{name}` is no number from {least:g} to {greatest:g}")
    return float(value)
