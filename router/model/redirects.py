"""Redirects in errors, as this router sends and reads them (§2.8.16, §2.8.18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.redirect import Redirect
from amqpmesh.router.amqp.codec.types import Int, Symbol

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.amqp.standard.definitions import Error

MAX_PORT: Final = 2**16 - 1


def info(place: Redirect) -> dict[Symbol, Value]:
    """Return the info of the error that redirects a peer to a place; fields that the place leaves open are left out."""
    values: dict[str, Value] = {
        "hostname": place.hostname,
        "network-host": place.network_host,
        # The standard leaves the type of the port open. Clients in C look for an int.
        "port": None if place.port is None else Int(place.port),
        "address": place.address,
    }
    return {Symbol(key): value for key, value in values.items() if value is not None}


def redirect_of(error: Error) -> Redirect:
    """Return the redirect in a peer's error. A field that is empty, or has a wrong type, counts as missing."""
    told = error.info or {}

    def text(key: str) -> str | None:
        value = told.get(Symbol(key))
        return value if isinstance(value, str) and value else None

    port = told.get(Symbol("port"))
    named = int(port) if isinstance(port, int) and not isinstance(port, bool) else 0
    return Redirect(
        hostname=text("hostname"),
        network_host=text("network-host"),
        port=named if 1 <= named <= MAX_PORT else None,
        address=text("address"),
    )
