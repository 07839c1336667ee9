"""What the tables of one configuration must agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.router.config import RouterConfig
    from amqpmesh.router.urls import Endpoint, Service


def disagreements(config: RouterConfig) -> Iterator[tuple[str, str]]:
    """The key and the reason of each."""
    for kind, tables in (
        ("listener", config.listeners),
        ("connector", config.connectors),
        ("link", config.container_links),
    ):
        yield from _doubled(kind, [table.name for table in tables if table.name], "are named", repr)
    urls = [str(listener.endpoint) for listener in config.listeners if listener.endpoint.port]
    yield from _doubled("listener", urls, "are at", str)
    for position, listener in enumerate(config.listeners):
        if listener.is_mesh:
            yield from _unlike_the_mesh(config, f"listener[{position}]", (listener.endpoint,))
    for position, connector in enumerate(config.connectors):
        if connector.is_mesh:
            yield from _unlike_the_mesh(config, f"connector[{position}]", connector.places)
    try:
        config.address_table()
    except ValueError as error:
        yield "address", str(error)


def unbound(config: RouterConfig) -> Iterator[tuple[str, str]]:
    """The key and the reason of each link that names no connector for it; connectors have their names by now."""
    roles = {connector.name: connector.role for connector in config.connectors}
    for position, link in enumerate(config.container_links):
        role = roles.get(link.connector)
        if role is None:
            known = ", ".join(roles) or "none"
            yield f"link[{position}].connector", f"there is no connector {link.connector!r}; known are {known}"
        elif role != "container":
            yield f"link[{position}].connector", f'{link.connector!r} has not role = "container"'


def _doubled(kind: str, values: list[str], are: str, shown: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    for position, value in enumerate(values):
        if value in values[:position]:
            yield kind, f"two {kind}s {are} {shown(value)}"


def _unlike_the_mesh(
    config: RouterConfig, where: str, places: Sequence[Endpoint | Service]
) -> Iterator[tuple[str, str]]:
    mesh = config.mesh
    if mesh is None:
        yield f"{where}.role", '"mesh" needs a table [mesh]'
        return
    for place in places:
        if mesh.insecure and not place.loopback:
            yield f"{where}.url", f"an insecure mesh is for loopback only, not for {place}"
        elif mesh.insecure == place.secure:
            wanted, why = ("amqp", "has no certificates") if mesh.insecure else ("amqps", "has certificates")
            yield f"{where}.url", f"must begin with {wanted}: the mesh {why}"


def free_name(stem: str, taken: Sequence[str]) -> str:
    """A name that is not taken: `amqp`, `amqp-2`, ..."""
    return next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if name not in taken)
