"""Who may: what a policy is told about a peer, and what the router keeps for itself."""

from dataclasses import dataclass

RESERVED: str = "$"
"""What addresses of the router itself begin with: its management node, dynamic nodes."""

PREFIXES: tuple[str, ...] = (RESERVED, "amqp$")
"""What no address of anybody else begins with. `amqp$` is kept for nodes of standards, of which there are none here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a connection: the one value that every policy decision takes."""

    container_id: str
    """As its `open` said (§2.7.1): claimed, not proven."""
    user: str | None = None
    """Who it proved to be in the SASL exchange, or by its certificate; None: nobody in particular."""
    mechanism: str | None = None
    """The SASL mechanism of that proof (§5.3), None without a SASL layer."""
    certificate_subject: str | None = None
    """Of the client certificate that TLS verified, None without one."""
    listener: str = ""
    """The name of the listener it came in by; "" when it came in by none, as a link within the process."""
    connector: str = ""
    """The name of the connector by which the router opened the connection; "" when the peer did."""
    hostname: str | None = None
    """As its `open` said (§2.7.1): whom it wants to talk to."""
    tenant: str = ""
    """The first part of the key of every address that it names."""


def is_reserved(address: str) -> bool:
    """Whether an address is the router's own, or would be."""
    return address.startswith(PREFIXES)


def may_consume(address: str) -> bool:
    """Whether a client may take deliveries from an address by naming it.

    Nobody may from the router's own. The maker of a dynamic node is not asked: it names no address (§3.5.3).
    """
    return not is_reserved(address)
