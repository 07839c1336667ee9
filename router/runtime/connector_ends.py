"""The reasons why connections that the router opens have ended, or could not be opened, as texts for people."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

from amqpmesh.router.client.links.client_connection import foreign_protocol
from amqpmesh.router.io.dialing import reason
from amqpmesh.router.io.tls import untrusted_reason
from amqpmesh.router.statistics.configured import ContainerLinkState

if TYPE_CHECKING:
    from collections.abc import Iterable

    import trio

    from amqpmesh.router.config.file import ConnectorConfig
    from amqpmesh.router.config.urls import Endpoint
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.statistics.configured import ConnectorStatistics, ContainerLinkStatistics


def failure_text(failure: OSError | trio.BrokenResourceError, *, mesh: bool) -> str:
    """Return the reason why a connection could not be opened. Args: mesh: it was to be one to a neighbour."""
    cause = failure.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"TLS: {untrusted_reason(cause, mesh=mesh)}"
    return reason(failure)


def end_reason(connector: ConnectorConfig, record: ConnectionRecord, read_error: str | None, endpoint: Endpoint) -> str:
    """Return the reason why a connection ended. Args: read_error: the transport's."""
    negotiation, closed = record.engine.negotiation, record.closed
    if negotiation.foreign:
        return foreign_protocol(negotiation.foreign)
    if negotiation.refusal:
        return f"not let in: {negotiation.refusal}"
    if closed is not None and closed.error is not None:
        who = "the peer" if closed.by_peer else "the router"
        about = f": {closed.error.description}" if closed.error.description else ""
        return f"{who} closed the connection ({closed.error.condition}){about}"
    if record.engine.remote is not None:
        return read_error or "the peer is gone"
    if not (endpoint.secure or endpoint.is_websocket):
        hint = ": does it want TLS (amqps://)?"
    else:  # a TLS 1.3 server checks our certificate after our handshake, and may not say why it refuses it
        hint = ": does it believe our certificate?" if connector.shows_certificate else ""
    return f"{read_error or 'the peer closed before it answered'}{hint}"


def explained(link: ContainerLinkStatistics, connectors: Iterable[ConnectorStatistics]) -> ContainerLinkStatistics:
    """Return a link's statistics with the reason of its connector, if the connector has no connection."""
    if link.state is not ContainerLinkState.DISCONNECTED:
        return link
    connector = next((each for each in connectors if each.name == link.connector), None)
    if connector is None:
        return link
    reason = f"connector {connector.name} is {connector.state}" + (f": {connector.reason}" if connector.reason else "")
    return replace(link, reason=reason)
