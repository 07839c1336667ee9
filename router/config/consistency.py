"""Consistency of the tables of one configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import Distribution
from amqpmesh.policies.redirect import comes_back
from amqpmesh.router.address_syntax import split
from amqpmesh.router.config.urls import DEFAULT_PORTS, Endpoint, is_loopback

if TYPE_CHECKING:
    from amqpmesh.policies.patterns import PatternTable
    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.config.file import AddressConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.config.urls import Service

LOCALHOST: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine."""

ANYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
"""Hosts of listeners on all interfaces."""


def disagreements(config: RouterConfig) -> Iterator[tuple[str, str]]:
    """Find contradictions; yield the key and the reason of each."""
    for kind, tables in (
        ("listener", config.listeners),
        ("connector", config.connectors),
        ("link", config.container_links),
    ):
        yield from _duplicates(kind, [table.name for table in tables if table.name], "are named", repr)
    urls = [str(listener.endpoint) for listener in config.listeners if listener.endpoint.port]
    yield from _duplicates("listener", urls, "are at", str)
    yield from _token_faults(config)
    for position, listener in enumerate(config.listeners):
        yield from _place_faults(config, f"listener[{position}]", (listener.endpoint,), is_mesh=listener.is_mesh)
    for position, connector in enumerate(config.connectors):
        yield from _place_faults(config, f"connector[{position}]", connector.places, is_mesh=connector.is_mesh)
    try:
        config.address_table()
    except ValueError as error:
        yield "address", str(error)
        return
    yield from _circular_redirects(config)
    limits = config.resumption
    if limits.timeout < 1 or not (limits.links and limits.links_per_user):
        for position, address in enumerate(config.addresses):
            if address.requires_resumption:
                yield f"address[{position}].resumption", "cannot be required: [resumption] grants no link any time"


def unbound(config: RouterConfig) -> Iterator[tuple[str, str]]:
    """Find links with an unknown connector or an unsuitable address; yield the key and the reason of each.

    Connectors have their names by now.
    """
    roles = {connector.name: connector.role for connector in config.connectors}
    for position, link in enumerate(config.container_links):
        role = roles.get(link.connector)
        if role is None:
            known = ", ".join(roles) or "none"
            yield f"link[{position}].connector", f"there is no connector {link.connector!r}; known are {known}"
        elif role != "container":
            yield f"link[{position}].connector", f'{link.connector!r} does not have role = "container"'
        address = config.address_table().lookup(link.address)
        if address is not None and address.redirect is not None:
            yield f"link[{position}].address", f"is redirected, by the pattern {address.pattern!r}"
        elif address is not None and address.alias is not None:
            yield f"link[{position}].address", f"stands for {address.alias}, by the pattern {address.pattern!r}"
        elif address is not None and address.distribution is Distribution.UNAVAILABLE:
            yield f"link[{position}].address", f"is unavailable, by the pattern {address.pattern!r}"
        elif address is not None and address.requires_resumption:
            reason = f"takes only links that can be resumed, by the pattern {address.pattern!r}: no container resumes"
            yield f"link[{position}].address", reason
    yield from _circular_links(config)


def _circular_links(config: RouterConfig) -> Iterator[tuple[str, str]]:
    """Find links that do the same as another one, or send back what another one brings."""
    met: dict[tuple[str, str | None, str | None, str], str] = {}
    for position, link in enumerate(config.container_links):
        same, back = (link.source, link.target), (link.target, link.source)
        if (link.connector, *same, link.address) in met:
            other = met[link.connector, *same, link.address]
            yield f"link[{position}]", f"does the same as {other!r}: one link is enough"
        elif (link.connector, *back, link.address) in met:
            other = met[link.connector, *back, link.address]
            yield f"link[{position}]", f"sends back the messages of {other!r}: they would go in a circle"
        met.setdefault((link.connector, *same, link.address), link.name)


def _token_faults(config: RouterConfig) -> Iterator[tuple[str, str]]:
    """Find tokens that prove nothing, and listeners that wait for tokens which nobody can make."""
    yield from _duplicates("token_issuer", [each.issuer for each in config.token_issuers], "have the issuer", repr)
    yield from _duplicates("token_key", [each.name for each in config.token_keys], "are named", repr)
    for position, listener in enumerate(config.listeners):
        if listener.bearers and not config.token_issuers:
            yield f"listener[{position}].sasl", f"{' and '.join(listener.bearers)} need a table [[token_issuer]]"
        if listener.cbs and not (config.token_issuers or config.token_keys):
            yield f"listener[{position}].cbs", "needs a table [[token_issuer]] or [[token_key]]"
    if config.policy is None:
        for key, tables in (("token_issuer", config.token_issuers), ("token_key", config.token_keys)):
            for position, each in enumerate(tables):
                for name in ("groups", "tenant", "scopes"):
                    if getattr(each, name):
                        yield f"{key}[{position}].{name}", "does nothing without [policy]"


def _duplicates(kind: str, values: list[str], are: str, shown: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    for position, value in enumerate(values):
        if value in values[:position]:
            yield kind, f"two {kind}s {are} {shown(value)}"


def _place_faults(
    config: RouterConfig, where: str, places: Sequence[Endpoint | Service], *, is_mesh: bool
) -> Iterator[tuple[str, str]]:
    mesh = config.mesh
    if is_mesh and mesh is None:
        yield f"{where}.role", '"mesh" needs a table [mesh]'
        return
    for place in places:
        if isinstance(place, Endpoint) and place.is_unix:
            if not (is_mesh and config.worker is not None):
                yield f"{where}.url", "a Unix socket is for the workers of one router, among themselves"
        elif mesh is None or not is_mesh:
            continue
        elif mesh.insecure and not place.loopback:
            yield f"{where}.url", f"an insecure mesh is for loopback only, not for {place}"
        elif mesh.insecure == place.secure:
            wanted, why = ("amqp", "has no certificates") if mesh.insecure else ("amqps", "has certificates")
            yield f"{where}.url", f"must begin with {wanted}: the mesh {why}"


def _circular_redirects(config: RouterConfig) -> Iterator[tuple[str, str]]:
    """Find redirects that lead in circles, as far as that is visible without DNS."""
    for position, listener in enumerate(config.listeners):
        if listener.redirect is not None:
            led_to = _listener_at(config, listener.redirect.place)
            if led_to is not None and led_to.redirect is not None:
                yield f"listener[{position}].redirect", f"leads to {led_to.endpoint}, which redirects, too"
    table = config.address_table()

    def rule(address: str) -> Redirect | None:
        name, container = split(address)
        found = table.lookup(name) if container in (None, config.id) else None
        return None if found is None or found.redirect is None else found.redirect.place

    def is_here(place: Redirect) -> bool:
        if (place.hostname or place.network_host or place.port) is None:
            return True
        listener = _listener_at(config, place)
        if listener is None or listener.redirect is None:
            return listener is not None
        return _listener_at(config, listener.redirect.place) is not None

    for position, address in enumerate(config.addresses):
        if address.redirect is not None and comes_back(address.redirect.place, rule, is_here):
            yield f"address[{position}].redirect", "leads in a circle, back to this router"
        dead = table.lookup(split(address.dead_letter)[0]) if address.dead_letter is not None else None
        if dead is not None and dead.absolute_expiry:
            reason = f"has absolute_expiry, by the pattern {dead.pattern!r}: expired messages would expire again"
            yield f"address[{position}].dead_letter", reason
        if _stands_for_itself(address, table, config.id):
            yield f"address[{position}].alias", "leads in a circle, back to itself"


def _stands_for_itself(address: AddressConfig, table: PatternTable[AddressConfig], here: str) -> bool:
    """Tell whether an alias leads back to itself, and never to an address."""
    met: set[str] = set()
    alias = address.alias
    while alias is not None:
        name, container = split(alias)
        if name in met:
            return True
        met.add(name)
        found = table.lookup(name) if container in (None, here) and name else None
        alias = None if found is None or is_reserved(name) else found.alias
    return False


def _listener_at(config: RouterConfig, place: Redirect) -> ListenerConfig | None:
    """Return the listener of this router at a place; a place without a host is at this router."""
    host = (place.network_host or place.hostname or "").lower()
    ports = DEFAULT_PORTS.values() if place.port is None else (place.port,)
    for listener in config.listeners:
        endpoint = listener.endpoint
        same = host in ("", endpoint.host) or ({host, endpoint.host} <= LOCALHOST)
        if endpoint.port in ports and (same or (endpoint.host in ANYWHERE and is_loopback(host))):
            return listener
    return None


def free_name(stem: str, taken: Sequence[str]) -> str:
    """Return a free name: `amqp`, `amqp-2`, ..."""
    return next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if name not in taken)
