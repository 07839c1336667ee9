"""Redirects as peers are told them, and as they tell them (§2.8.16, §2.8.18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.redirect import Redirect
from amqpmesh.router.amqp.codec.types import Int, Symbol

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.amqp.standard.definitions import Error

MAX_PORT: Final = 2**16 - 1


def info(place: Redirect) -> dict[Symbol, Value]:
    """The info of the error that sends a peer there; what the place does not say is not in it."""
    values: dict[str, Value] = {
        "hostname": place.hostname,
        "network-host": place.network_host,
        # The standard leaves its type open; as an int it is what clients in C look for.
        "port": None if place.port is None else Int(place.port),
        "address": place.address,
    }
    return {Symbol(key): value for key, value in values.items() if value is not None}


def redirect_of(error: Error) -> Redirect:
    """Where the error of a peer sends us. What is empty, or of another type than the standard says, is not said."""
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
