"""Which servers a domain names for a service: SRV records of DNS (RFC 2782)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.io.environment import surroundings

if TYPE_CHECKING:
    from amqpmesh.router.config.urls import Service

LOOK_UP_TIME: Final = 5.0
"""Seconds for DNS to answer, all its servers together."""


@dataclass(frozen=True, slots=True)
class Server:
    """One SRV record. The least `priority` is tried first; among equals a greater `weight` is more often first."""

    priority: int
    weight: int
    port: int
    target: str


class NoServerError(OSError):
    """DNS says that a domain has no servers: not that it does not say."""


LookUp = Callable[[str], Awaitable[Iterable[Server]]]
"""Finds the SRV records of a name, `_amqps._tcp.example.org`. Raises NoServerError: there are none. OSError: why there
is no answer."""


async def look_up(name: str) -> list[Server]:
    """Ask the DNS that the system is set up for. Raises: NoServerError: no record. OSError: why there is no answer."""
    # Most routers never need it, and it takes a tenth of a second to read.
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
    """The servers of a domain, in the order in which to try them.

    Raises: NoServerError: DNS has none, or says that there is no such service. OSError: it does not answer.
    """
    with trio.move_on_after(2 * LOOK_UP_TIME) as limit:
        found = list(await find(service.name))
    if limit.cancelled_caught:
        raise OSError(f"DNS does not answer for {service.name}")
    # A single target of "." says that the service is not there (RFC 2782).
    servers = [each for each in found if each.target not in ("", ".")]
    if not servers:
        raise NoServerError(f"DNS has no server for {service.name}")
    return [Endpoint(service.scheme, each.target, each.port) for each in ordered(servers, surroundings().chance)]


def ordered(servers: Iterable[Server], chance: Random) -> list[Server]:
    """By priority; among equals at random, by weight, as RFC 2782 has it."""
    result = []
    for _, group in groupby(sorted(servers, key=lambda each: (each.priority, each.weight)), lambda each: each.priority):
        left = list(group)  # those without weight first: they have a small chance
        while left:
            at = chance.randint(0, sum(each.weight for each in left))
            for server in left:
                at -= server.weight
                if at <= 0:
                    break
            left.remove(server)
            result.append(server)
    return result
