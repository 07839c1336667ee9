"""Redirects as peers are told them (§2.8.16, §2.8.18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.types import Int, Symbol

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.amqp.types import Value


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
