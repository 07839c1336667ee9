"""The protocol endpoint of a connection that begins, from what the configuration says of it: of both roles."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.sasl.exchange import SaslClient, SaslServer
from amqpmesh.router.config.urls import is_loopback
from amqpmesh.router.config.users import Users

if TYPE_CHECKING:
    from amqpmesh.router.amqp.negotiation import Negotiation
    from amqpmesh.router.config.file import ConnectorConfig, Limits, ListenerConfig

#: Who desires it, of a connection or of a link, follows redirects by itself, and is told of them.
REDIRECT: Final = Symbol("amqpmesh:redirect")

#: Capabilities that the router has, as `open` offers them.
CAPABILITIES: Final = (Symbol("ANONYMOUS-RELAY"), REDIRECT)

WHOLE: Final = Symbol("amqpmesh:whole-deliveries")
"""A capability of a session: each delivery on it comes in one frame. A neighbour that we desire it of in the `begin` of
a session for lanes gives it a wide window, and says so by offering it (§2.7.2)."""

LARGE: Final = Symbol("amqpmesh:large-deliveries")
"""A capability of a session: the deliveries on it may be of many frames. A neighbour that we desire it of gives it a
window of its own, as far as there are not too many of them, and says so by offering it (§2.7.2).

And one of a link: what is small has another link of the lane. A neighbour that we desire it of in its `attach` gives it
few deliveries of credit at a time, while others use theirs, and says so by offering it (§2.7.3)."""

PLAIN: Final = "PLAIN"

PASSWORDS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-1", PLAIN)
"""Mechanisms that need a password, the best liked first."""

WITHHELD: Final = "where a redirect leads, PLAIN is used only under TLS with a verified certificate"
"""Why PLAIN is left out: a peer to which a password was proved, and not told, is not to choose who is told."""


def endpoint(
    container_id: str, limits: Limits, negotiation: Negotiation, now: float, *, hostname: str | None = None
) -> Connection:
    """A connection endpoint of this router. Args: hostname: of the peer, as our `open` names it."""
    settings = ConnectionSettings(
        container_id=container_id,
        max_frame_size=limits.max_frame_size,
        channel_max=limits.channel_max,
        handle_max=limits.handle_max,
        window=limits.session_window,
        small_window=limits.small_window,
        connection_window=limits.connection_window,
        idle_time_out=limits.idle_time_out or None,
        minimum_idle_time_out=limits.minimum_idle_time_out,
        open_time_out=limits.open_time_out,
        close_time_out=limits.close_time_out,
        max_values=limits.max_values,
        offered_capabilities=CAPABILITIES,
    )
    return Connection(_shared(settings), negotiation, now, hostname=hostname)


@lru_cache(maxsize=256)
def _shared(settings: ConnectionSettings) -> ConnectionSettings:
    """Return the first settings that were equal: all connections of a listener hold one object."""
    return settings


def server_sasl(
    listener: ListenerConfig, *, secured: bool, certificate_user: str | None, users: Users | None
) -> SaslServer | None:
    """The exchange that who comes in by a listener is offered; None: the layer is not."""
    mechanisms = listener.mechanisms(secured=secured)
    if not mechanisms:
        return None
    return SaslServer(mechanisms, users or Users({}), external_user=certificate_user, defers=True)


def client_sasl(
    connector: ConnectorConfig,
    host: str,
    *,
    secured: bool,
    password: str | None,
    hostname: str | None = None,
    redirected: bool = False,
) -> SaslClient:
    """The exchange that a connector wants: with its user, else by its certificate, else without a name.

    Args: host: where it connects: to loopback a password may go without TLS. secured: within TLS, whose certificate
        was verified. hostname: which host is wanted. redirected: a redirect of a peer has led there, not the
        configuration: to there no password goes without TLS.
    Raises: CommandError: a user or a password that no mechanism can carry.
    """
    external = secured and connector.shows_certificate
    if connector.user is not None:
        clear = secured or (is_loopback(host) and not redirected)
        mechanisms = PASSWORDS if clear else tuple(name for name in PASSWORDS if name != PLAIN)
    else:
        mechanisms = ("EXTERNAL", "ANONYMOUS") if external else ("ANONYMOUS",)
    withheld = WITHHELD if connector.user is not None and redirected and not secured else None
    return SaslClient(mechanisms, connector.user, password, hostname, external, withheld, defers=True)
