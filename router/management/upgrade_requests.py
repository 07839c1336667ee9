"""UPGRADE: a request to `$management` to upgrade a router in place, or to tell how far that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.amqp.codec.types import ULong
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.service import BAD_REQUEST, OK, RequestError, answer
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value

UPGRADE: Final = "UPGRADE"
"""The operation of the type `router`."""

TYPE: Final = f"{PREFIX}router"


class UpgradeState(NamedTuple):
    """The state of a router's process, as far as upgrades are concerned."""

    process: int
    """The process id."""
    under_way: bool
    """True while it has, or starts, a successor."""
    stands_in: bool
    """True if it stands in for the router."""
    failure: str
    """The reason why the last upgrade has failed; empty: it has not."""


def upgrade_request(*, ask: bool) -> Message:
    """Return a request. Args: ask: for the state only."""
    return Message(None, application_properties={"operation": UPGRADE, "type": TYPE, "ask": ask})


def asks_only(request: Message) -> bool:
    """Return whether a request is for the state only. Raises: RequestError: it is malformed."""
    ask = request.application_properties.get("ask", False)
    if not isinstance(ask, bool):
        raise RequestError(BAD_REQUEST, "`ask` is no boolean")
    return ask


def upgrade_told(request: Message, router: str, state: UpgradeState) -> Message:
    """Return the answer to a request. Args: router: the id."""
    body: dict[Value, Value] = {
        "router": router,
        "process": ULong(state.process),
        "under_way": state.under_way,
        "stands_in": state.stands_in,
        "failure": state.failure or None,
    }
    return answer(request, OK, "OK", body)
