"""What a listener shows and whom it believes: read from files when it starts, and again when they have changed."""

import ssl
from dataclasses import dataclass
from typing import Self

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config import ListenerConfig
from amqpmesh.router.io.tls import server_context
from amqpmesh.router.users import Users


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of one listener; a connection keeps those that it began with."""

    context: ssl.SSLContext | None
    """For TLS first (amqps) and for TLS asked for in the stream (amqp) alike; None: there is no TLS."""
    users: Users | None

    @classmethod
    def load(cls, listener: ListenerConfig) -> Self:
        """Read a listener's files.

        Raises: ConfigError: one of them is missing, or is not what it should be.
        """
        users = None if listener.users is None else Users.load(listener.users)
        tls = listener.tls
        if tls is None:
            return cls(None, users)
        try:
            return cls(server_context(tls.certificate, tls.key, tls.trust, tls.client), users)
        except OSError as error:  # ssl.SSLError is one: no PEM, or the key of another certificate
            reason = error.strerror or str(error)
            raise ConfigError(str(error.filename or tls.certificate), f"{listener.name}.tls", reason) from None
