"""SRV records of DNS: the servers of a domain for a service (RFC 2782)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.io.environment import environment

if TYPE_CHECKING:
    from amqpmesh.router.config.urls import Service

LOOK_UP_TIME: Final = 5.0
"""Seconds for an answer, all DNS servers together."""


@dataclass(frozen=True, slots=True)
class Server:
    """One SRV record. The lowest `priority` is tried first; among equal priorities a greater `weight` is first more
    often.
    """

    priority: int
    weight: int
    port: int
    target: str


class NoServerError(OSError):
    """The answer of DNS that a domain has no servers. A missing answer is another `OSError`."""


LookUp = Callable[[str], Awaitable[Iterable[Server]]]
"""A function that finds the SRV records of a name such as `_amqps._tcp.example.org`.

Raises: NoServerError: there are none. OSError: DNS gave no answer; with the reason.
"""


async def look_up(name: str) -> list[Server]:
    """Ask the system's DNS servers. Raises: NoServerError: there is no record. OSError: DNS gave no answer; with the
    reason.
    """
    # Imported here: most routers never need it, and the import takes a tenth of a second.
    from dns.asyncresolver import Resolver
    from dns.exception import DNSException
    from dns.resolver import NXDOMAIN, NoAnswer

    try:
        answer = await Resolver().resolve(name, "SRV", lifetime=LOOK_UP_TIME)
    except (NXDOMAIN, NoAnswer) as error:
        raise NoServerError(f"DNS: {error}") from None
    except DNSException as error:
        raise OSError(f"DNS: {error}") from None
    return [Server(each.priority, each.weight, each.port, each.target.to_text(omit_final_dot=True)) for each in answer]


async def endpoints(service: Service, find: LookUp) -> list[Endpoint]:
    """Return the servers of a domain, in the order in which to try them.

    Raises: NoServerError: DNS has none, or says that the service does not exist. OSError: DNS gave no answer.
    """
    with trio.move_on_after(2 * LOOK_UP_TIME) as limit:
        found = list(await find(service.name))
    if limit.cancelled_caught:
        raise OSError(f"DNS does not answer for {service.name}")
    # A single target "." means that the service does not exist (RFC 2782).
    servers = [each for each in found if each.target not in ("", ".")]
    if not servers:
        raise NoServerError(f"DNS has no server for {service.name}")
    return [Endpoint(service.scheme, each.target, each.port) for each in ordered(servers, environment().chance)]


def ordered(servers: Iterable[Server], chance: Random) -> list[Server]:
    """Order servers by priority, and those of equal priority at random by weight, as RFC 2782 demands."""
    result = []
    for _, group in groupby(sorted(servers, key=lambda each: (each.priority, each.weight)), lambda each: each.priority):
        left = list(group)  # servers of weight 0 come first: they have a small chance
        while left:
            at = chance.randint(0, sum(each.weight for each in left))
            for server in left:
                at -= server.weight
                if at <= 0:
                    break
            left.remove(server)
            result.append(server)
    return result
