"""The identity of a peer, and the addresses that a router keeps for itself."""

from dataclasses import dataclass

from amqpmesh.policies.claims import NO_CLAIMS, Claims

RESERVED: str = "$"
"""The prefix of the router's own addresses: its management node, and dynamic nodes."""

PREFIXES: tuple[str, ...] = (RESERVED, "amqp$")
"""Prefixes that no address of a client may have. `amqp$` is reserved for nodes of standards; the router has none."""

PUBLISHED: str = "$telemetry"
"""The address of what all routers of a mesh record; with a slash and the name of a tenant, of that tenant's part."""

VOUCHED: tuple[str, ...] = ("$management", "$cbs")
"""Nodes that each router has. A router says for its clients, at those of other routers, which client asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The peer at the other end of a connection, as policy decisions see it."""

    container_id: str
    """The container-id of its `open` (§2.7.1): claimed, not proven."""
    user: str | None = None
    """The user that the SASL exchange or the certificate proved; None: no user."""
    mechanism: str | None = None
    """The SASL mechanism of that proof (§5.3); None: no SASL layer."""
    certificate_subject: str | None = None
    """The subject of the client certificate that TLS verified; None: no certificate."""
    listener: str = ""
    """The name of the listener that accepted it; "": none, as for a link within the process."""
    connector: str = ""
    """The name of the connector that opened the connection; "": the peer opened it."""
    hostname: str | None = None
    """The hostname of its `open` (§2.7.1): the host that the peer asks for."""
    host: str = ""
    """The address of its host, without a port; "": it has none."""
    tenant: str = ""
    """The tenant: the first part of the key of each address that the peer names."""
    claims: Claims = NO_CLAIMS
    """The claims of its token; empty: it has shown no token."""
    groups: tuple[str, ...] = ()
    """The groups that its token names."""
    token_tenant: str | None = None
    """The tenant that its token names; None: the rules of tenants choose it."""
    scopes: tuple[str, ...] = ()
    """The scopes of its token, after aliases."""


def is_reserved(address: str) -> bool:
    """Tell whether an address is reserved for routers: clients have none like it."""
    return address.startswith(PREFIXES)


def is_published(address: str) -> bool:
    """Tell whether an address is one that routers publish at: clients may receive from it, all over the mesh."""
    return address == PUBLISHED or address.startswith(f"{PUBLISHED}/")


def is_within(address: str) -> bool:
    """Tell whether an address is reserved, and one of a single router: no route leads to it."""
    return address.startswith(PREFIXES) and not is_published(address)
