"""The protocol endpoint of a new connection, made from the configuration of its listener or connector."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.connection_settings import ConnectionSettings, encoded_open
from amqpmesh.router.amqp.frames import HEADER_SIZE
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.sasl.exchange import SaslClient, SaslServer
from amqpmesh.router.amqp.sasl.mechanisms import TokenJudge
from amqpmesh.router.config.limits import UINT_MAX
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.urls import is_loopback
from amqpmesh.router.config.users import Users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.amqp.sasl.mechanisms import Authenticator
    from amqpmesh.router.amqp.standard.performatives import Open
    from amqpmesh.router.config.file import ConnectorConfig, RouterConfig

#: A peer that desires this capability, of a connection or of a link, follows redirects itself and is told of them.
REDIRECT: Final = Symbol("amqpmesh:redirect")

#: The property of an attach by which the router's own links name the tenant of their addresses.
TENANT: Final = Symbol("amqpmesh:tenant")

#: The property of a router's `open`: the ids of those that it wants to be connected to, the most wanted one first. A
#: worker hands the connection over to the first worker of its router among them.
WANTED: Final = Symbol("amqpmesh:wanted-routers")

#: The capabilities of the router, which its `open` offers.
CAPABILITIES: Final = (Symbol("ANONYMOUS-RELAY"), REDIRECT)

#: Of a link whose terminus is kept: its unsettled map names all that has come, and null says that nothing is known.
WHOLE_MAP: Final = Symbol("amqpmesh:whole")

#: The property of an attach of a lane that goes on with some of the deliveries of a lost one: the name of that.
PART_OF: Final = Symbol("amqpmesh:part-of")

WHOLE: Final = Symbol("amqpmesh:whole-deliveries")
"""A capability of a session: each of its deliveries is one frame. The router desires it in the `begin` of a session for
lanes. A neighbour that offers it in its answer gives the session a wide window (§2.7.2)."""

LARGE: Final = Symbol("amqpmesh:large-deliveries")
"""A capability of a session: its deliveries may be of many frames. A neighbour that offers it in its answer gives the
session a window of its own, unless there are too many of them (§2.7.2).

Also a capability of a link: small deliveries of the lane have another link. A neighbour that offers it in its answer
gives the link credit for few deliveries at a time, while other links use theirs (§2.7.3)."""

HEADROOM: Final = 512
"""Octets by which a frame of a neighbour may be larger than one of a client. A lane has longer tags: a full frame
of a client would leave as two frames, and the second one would carry a few octets."""

PLAIN: Final = "PLAIN"

NOBODY: Final = Users({})
"""The users of a listener that has none."""

PASSWORDS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1", PLAIN)
"""The mechanisms that need a password, the most preferred first."""

WITHHELD: Final = "where a redirect leads, PLAIN is used only under TLS with a verified certificate"
"""The reason for not using PLAIN: a peer that has seen only the proof of a password must not choose who sees it."""


def endpoint(
    container_id: str,
    limits: ListenerConfig | ConnectorConfig,
    negotiation: Negotiation,
    now: float,
    *,
    hostname: str | None = None,
) -> Connection:
    """Return a connection endpoint of this router. Args: hostname: of the peer, for our `open`."""
    of_listener = isinstance(limits, ListenerConfig)
    settings = _shared(container_id, limits) if of_listener else _settings(container_id, limits)
    return Connection(settings, negotiation, now, hostname=hostname)


def container_id(router: str, config: RouterConfig, connector: ConnectorConfig) -> str:
    """Return the container-id for a connector.

    One worker has the container links of the router. Whatever its number is, the connections for these links carry
    the id of the whole router.
    """
    worker = config.worker
    has_links = any(each.connector == connector.name for each in config.container_links)
    return router if worker is None or not has_links else worker.name


def _settings(container_id: str, limits: ListenerConfig | ConnectorConfig) -> ConnectionSettings:
    frame_size = limits.max_frame_size
    return ConnectionSettings(
        container_id=container_id,
        max_frame_size=min(frame_size + HEADROOM, UINT_MAX) if limits.is_mesh else frame_size,
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


def name_wanted(engine: Connection, routers: Sequence[str]) -> None:
    """Name the routers that a connection is wanted to, in its `open` (§2.7.1, properties), as far as they fit.

    A peer takes an `open` of 512 octets (§2.4.1), and ids may be long: a connection is worth more than its place.
    Args: engine: its `open` is to be sent yet. routers: their ids, the most wanted one first.
    """
    before, room = engine.settings, engine.remote_max_frame_size - HEADER_SIZE
    for count in range(len(routers), 0, -1):
        settings = replace(before, properties={**(before.properties or {}), WANTED: list(routers[:count])})
        if len(encoded_open(settings, engine.hostname, compact=False)) <= room:
            engine.restrict(settings)
            return


def wanted(opened: Open) -> tuple[str, ...]:
    """Return the ids of the routers that a peer wants to be connected to, the most wanted one first."""
    told = (opened.properties or {}).get(WANTED)
    return tuple(each for each in told if isinstance(each, str)) if isinstance(told, list) else ()


#: All connections of a listener hold one object.
_shared: Final = lru_cache(maxsize=256)(_settings)


class SizedTokenJudge(TokenJudge, Protocol):
    """A judge of bearer tokens, and the octets of the largest."""

    size: int


def server_sasl(
    listener: ListenerConfig,
    users: Authenticator | None,
    tokens: SizedTokenJudge | None,
    *,
    secured: bool,
    certificate_user: str | None,
) -> SaslServer | None:
    """Return the SASL exchange that a listener offers; None: it offers none."""
    mechanisms = _mechanisms(listener, secured)
    if not mechanisms:
        return None
    return SaslServer(
        mechanisms,
        users or NOBODY,
        external_user=certificate_user,
        defers=True,
        tokens=tokens,
        token_size=0 if tokens is None else tokens.size,
    )


@lru_cache(maxsize=256)
def _mechanisms(listener: ListenerConfig, secured: bool) -> tuple[str, ...]:
    return listener.mechanisms(secured=secured)


def agreed(mechanism: str | None, user: str | None) -> Negotiation:
    """Return a negotiation before AMQP's protocol header: another process of this router has agreed on the rest.

    Args: mechanism: of the SASL exchange; None: there was none. user: its user.
    """
    if mechanism is None:
        return Negotiation(server=True)
    sasl = SaslServer((mechanism,), NOBODY)
    sasl.ended_elsewhere(mechanism, user)
    return Negotiation(server=True, sasl=sasl)


def client_sasl(
    connector: ConnectorConfig,
    host: str,
    *,
    secured: bool,
    password: str | None,
    hostname: str | None = None,
    redirected: bool = False,
) -> SaslClient:
    """Return the SASL exchange of a connector: with its user, else with its certificate, else anonymous.

    Args: host: the peer's address: to loopback a password may go without TLS. secured: the transport has TLS with a
        verified certificate. hostname: of the peer. redirected: a peer's redirect, not the configuration, named the
        place: no password goes there without TLS.
    Raises: CommandError: no mechanism can carry the user or the password.
    """
    external = secured and connector.shows_certificate
    if connector.user is not None:
        clear = secured or (is_loopback(host) and not redirected)
        mechanisms = PASSWORDS if clear else tuple(name for name in PASSWORDS if name != PLAIN)
    else:
        mechanisms = ("EXTERNAL", "ANONYMOUS") if external else ("ANONYMOUS",)
    withheld = WITHHELD if connector.user is not None and redirected and not secured else None
    return SaslClient(mechanisms, connector.user, password, hostname, external, withheld, defers=True)
