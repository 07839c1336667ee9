"""The layers below AMQP at a listener, opened by a task: TLS, then a WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.io.handshake import UNKNOWN, Identity, secure

if TYPE_CHECKING:
    import trio

    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.logins import Logins
    from amqpmesh.router.runtime.credentials import Credentials


async def opened(
    stream: trio.abc.Stream,
    listener: ListenerConfig,
    credentials: Credentials,
    host: str,
    logins: Logins,
    known: Identity | None = None,
) -> tuple[trio.abc.Stream, Identity] | None:
    """Open what a listener demands below AMQP.

    Args: credentials: of the listener. host: the client's address. logins: logs a failure. known: the identity in the
        client's certificate, if all is open already.
    Returns: the stream for AMQP, and the identity in the client's certificate; None: it has failed, which was logged.
    """
    if known is not None:
        return stream, known
    identity = UNKNOWN
    if listener.endpoint.secure:
        assert credentials.context is not None, "the configuration demands a certificate for amqps and wss"
        secured = await secure(
            stream, credentials.context, host, logins, mesh=listener.is_mesh, name=credentials.user_name
        )
        if secured is None:
            return None
        stream, identity = secured
    if listener.endpoint.is_websocket:
        from amqpmesh.router.runtime.websockets import open_websocket  # here: wsproto is an extra

        websocket = await open_websocket(stream, listener, host, logins)
        if websocket is None:
            return None
        stream = websocket
    return stream, identity
