"""WHY: the question of a client at `$management` what the router makes of an address, and whether a peer may use it.

Nothing is sent or attached for an answer. What the router knows of receivers, paths and credit is in its entities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.policies.access import Peer
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.service import BAD_REQUEST, RequestError
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value

WHY: Final = "WHY"

KIND: Final = "address"
"""The type of entities that the question is about, without its prefix."""

_SHOWN: Final = ("user", "hostname", "listener", "host")
_KNOWN: Final = frozenset({*_SHOWN, "tenant", "groups"})


class WhyQuestion(NamedTuple):
    """The question. `peer` is a peer as it would show itself, whose rights are asked; None: rights are not asked."""

    address: str
    sends: bool
    """False: the peer would receive."""
    tenant: str | None
    """The name of the tenant whose address is meant; None: the peer's, or the asking client's."""
    peer: Peer | None


def request(address: str, *, sends: bool, tenant: str | None, peer: Mapping[str, Value]) -> Message:
    """Return the request. Args: peer: any of `user`, `hostname`, `listener`, `host`, and a list `groups`."""
    properties: dict[str, Value] = {"operation": WHY, "type": f"{PREFIX}{KIND}", "name": address, "send": sends}
    body = {**peer, **({} if tenant is None else {"tenant": tenant})}
    return Message(body, application_properties=properties)


def question_of(asked: Message) -> WhyQuestion:
    """Return the question in a request. Raises: RequestError: it is malformed."""
    properties = asked.application_properties
    address, sends, body = properties.get("name"), properties.get("send", True), asked.body
    if properties.get("type") not in (KIND, f"{PREFIX}{KIND}"):
        raise RequestError(BAD_REQUEST, f"`type` must be {PREFIX}{KIND}")
    if not isinstance(address, str) or not isinstance(sends, bool):
        raise RequestError(BAD_REQUEST, "WHY needs an address as `name`, and can have `send`, a boolean")
    if body is not None and not isinstance(body, Mapping):
        raise RequestError(BAD_REQUEST, "the body is no map")
    given = dict(body or {})
    if unknown := sorted(map(repr, given.keys() - _KNOWN)):
        raise RequestError(BAD_REQUEST, f"the body can have {', '.join(sorted(_KNOWN))}, and not {unknown[0]}")
    texts = {name: given.get(name) for name in (*_SHOWN, "tenant")}
    groups = given.get("groups", [])
    if not all(value is None or isinstance(value, str) for value in texts.values()):
        raise RequestError(BAD_REQUEST, "what the peer shows must be strings")
    if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
        raise RequestError(BAD_REQUEST, "`groups` must be a list of strings")
    tenant = texts.pop("tenant")
    shown = {name: str(value) for name, value in texts.items() if value is not None}
    peer = Peer(container_id="", groups=tuple(map(str, groups)), **shown) if shown or groups else None  # type: ignore[arg-type]  # texts
    return WhyQuestion(address, sends, None if tenant is None else str(tenant), peer)
