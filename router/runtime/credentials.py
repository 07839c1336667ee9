"""Certificates, users and passwords of listeners and connectors: read at the start, and again on reload."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from amqpmesh.router.amqp.errors import CommandError, ConfigError
from amqpmesh.router.config.file import (
    ConnectorConfig,
    ConnectorTlsConfig,
    ListenerConfig,
    MeshConfig,
    PasswordConfig,
    RouterConfig,
)
from amqpmesh.router.config.users import Users
from amqpmesh.router.endpoint_setup import client_sasl
from amqpmesh.router.io.handshake import UNKNOWN, Identity
from amqpmesh.router.io.tls import RevocationLists, client_context, mesh_contexts, server_context
from amqpmesh.router.runtime.asked_users import AskedUsers

if TYPE_CHECKING:
    from amqpmesh.router.amqp.negotiation import Negotiation
    from amqpmesh.router.amqp.sasl.mechanisms import Authenticator
    from amqpmesh.router.core import Core
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.membership import Membership

HTTP_PACKAGE: Final = "h11"
WEBSOCKET_PACKAGE: Final = "wsproto"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a listener; a connection keeps those that it started with."""

    context: ssl.SSLContext | None
    """The context for both ways into TLS, first (amqps) and within the stream (amqp); None: there is no TLS."""
    users: Users | None
    user_name: str = "any"
    """The kind of name in a client's certificate that is the user, as of `certificate_user`."""
    revoked: RevocationLists | None = None
    """The clients' certificates that are revoked, for connections that exist."""
    asked: AskedUsers | None = None
    """The users, if a function of the program checks them."""

    @classmethod
    def load(
        cls,
        listener: ListenerConfig,
        mesh: MeshConfig | None = None,
        *,
        where: str | None = None,
        users_of: Callable[[tuple[Path, ...]], Users] | None = None,
    ) -> Self:
        """Read a listener's files.

        Args: mesh: holds the files of a listener for the mesh. where: its name in errors; None: the configured name.
            users_of: reads files of users; None: `Users.load`.
        Raises: ConfigError: a file is missing, or has the wrong content.
        """
        if listener.is_mesh:
            contexts = _of_the_mesh(mesh)
            return cls(contexts and contexts[0], None)
        if listener.is_http and find_spec(HTTP_PACKAGE) is None:
            reason = f"HTTP needs the package {HTTP_PACKAGE}: pip install 'amqpmesh[http]'"
            raise ConfigError("configuration", f"{where or listener.name}.role", reason)
        if listener.endpoint.is_websocket:
            _demand_websocket(f"{where or listener.name}.url")
        files = listener.users_files
        users = None if not files else Users.load(*files) if users_of is None else users_of(files)
        asked = None if listener.user_check is None else AskedUsers(listener.user_check, where or listener.name)
        tls = listener.tls
        if tls is None:
            return cls(None, users, asked=asked)
        where = f"{where or listener.name}.tls"
        password = "" if tls.key_password is None else read_password(tls.key_password, f"{where}.key_password")
        try:
            context = server_context(
                tls.certificate,
                tls.key,
                tls.trust,
                tls.client,
                password=password,
                minimum=tls.minimum,
                ciphers=tls.ciphers,
                revoked=tls.revoked,
            )
        except OSError as error:
            raise _unusable_file(error, tls.certificate, where) from None
        try:
            revoked = None if tls.revoked is None else RevocationLists(tls.revoked)
        except ValueError as error:
            raise ConfigError(str(tls.revoked), f"{where}.revoked", str(error)) from None
        return cls(context, users, tls.user, revoked, asked)

    @classmethod
    def load_all(
        cls,
        listeners: Iterable[ListenerConfig],
        mesh: MeshConfig | None = None,
        before: Mapping[ListenerConfig, Credentials] = MappingProxyType({}),
    ) -> dict[ListenerConfig, Self]:
        """Read the files of listeners, those of users once for all listeners that have the same.

        Args: before: of listeners that run; what has not changed in files of users is taken from theirs.
        Raises: ConfigError: as `load`.
        """
        known = {each.users_files: held.users for each, held in before.items() if held.users is not None}

        @cache
        def users_of(files: tuple[Path, ...]) -> Users:
            return Users.load(*files, before=known.get(files))

        return {each: cls.load(each, mesh, users_of=users_of) for each in listeners}

    def users_for(self, host: str) -> Authenticator | None:
        """Return the users for a client. Args: host: its address."""
        return self.users if self.asked is None else self.asked.of(host)

    def has_revoked(self, certificate: bytes) -> bool:
        """Tell whether a client's certificate is revoked now. Args: certificate: DER."""
        return self.revoked is not None and self.revoked.has(certificate)

    def accept(
        self,
        core: Core,
        listener: ListenerConfig,
        host: str,
        now: float,
        identity: Identity = UNKNOWN,
        *,
        secured: bool,
        negotiation: Negotiation | None = None,
    ) -> ConnectionRecord:
        """Tell the core of a connection to the listener.

        Args: host: the peer's address. identity: shown in TLS. secured: the connection is in TLS; the listener's URL
            may have changed since its handshake began. negotiation: as of `Core.accept`.
        """
        return core.accept(
            listener,
            host,
            now,
            secured=secured,
            certificate=identity.certificate,
            certificate_user=identity.user,
            certificate_subject=identity.subject,
            users=self.users_for(host),
            negotiation=negotiation,
        )


@dataclass(frozen=True, slots=True)
class ConnectorCredentials:
    """The credentials of a connector; a connection keeps those that it started with."""

    context: ssl.SSLContext | None
    """None: there is no TLS."""
    password: str | None

    def __repr__(self) -> str:
        """Return a text without the password."""
        return f"{type(self).__name__}(context={self.context!r})"

    @classmethod
    def load(cls, connector: ConnectorConfig, mesh: MeshConfig | None = None, *, where: str | None = None) -> Self:
        """Read a connector's files. Args: mesh, where: as for a listener.

        Raises: ConfigError: a file is missing, or has the wrong content; or no mechanism can carry the user or
            password.
        """
        if connector.is_mesh:
            contexts = _of_the_mesh(mesh)
            return cls(contexts and contexts[1], None)
        where = where or connector.name
        if connector.has_websocket:
            _demand_websocket(f"{where}.url")
        password = None if connector.password is None else read_password(connector.password, f"{where}.password")
        for place in connector.places:
            try:
                client_sasl(connector, place.host, secured=place.secure, password=password)
            except CommandError as error:
                raise ConfigError("credentials", f"{where}.password", str(error)) from None
        if not connector.secure:
            return cls(None, password)
        tls = connector.tls or ConnectorTlsConfig()
        try:
            return cls(client_context(tls.trust, tls.certificate, tls.key), password)
        except OSError as error:
            raise _unusable_file(error, tls.certificate or tls.trust, f"{where}.tls") from None


def _demand_websocket(key: str) -> None:
    """Raise ConfigError if the package for WebSockets is missing. Args: key: of the URL that needs it."""
    if find_spec(WEBSOCKET_PACKAGE) is None:
        reason = f"WebSocket needs the package {WEBSOCKET_PACKAGE}: pip install 'amqpmesh[websocket]'"
        raise ConfigError("configuration", key, reason)


def _of_the_mesh(mesh: MeshConfig | None) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the mesh's contexts, server's and client's; None: it has no certificates. Raises: ConfigError."""
    if mesh is None or mesh.certificate is None or mesh.key is None or mesh.trust is None:
        return None
    try:
        return mesh_contexts(mesh.certificate, mesh.key, mesh.trust)
    except OSError as error:
        raise _unusable_file(error, mesh.certificate, "mesh.certificate") from None


_REASONS: Final[Mapping[str, str]] = {
    "": "the certificate or its key is no PEM, is cut off, or is encrypted with another password",
    "NO_CIPHER_MATCH": "OpenSSL has none of the ciphers",
    "KEY_VALUES_MISMATCH": "the key is another certificate's",
}
"""Explanations of OpenSSL's reasons."""


def _unusable_file(error: OSError, file: Path | None, key: str) -> ConfigError:
    """Return the error for an unusable file. `ssl.SSLError` is an OSError: no PEM, or a key of another certificate."""
    reason = error.strerror or str(error)
    if isinstance(error, ssl.SSLError):
        # OpenSSL tells Python nothing about a file that it cannot read, not even which of the two files it is.
        reason = _REASONS.get(error.reason or "", reason)
    return ConfigError(str(error.filename or file), key, reason)


def read_password(given: PasswordConfig, where: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a configured password. Raises: ConfigError: it is missing or empty."""
    if given.env is not None:
        password = environment.get(given.env, "")
        if not password:
            raise ConfigError("environment", f"{where}.env", f"{given.env} is not set")
        return password
    assert given.file is not None, "one or the other is given"
    try:
        password = given.file.read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ConfigError(str(given.file), f"{where}.file", reason) from None
    if not password:
        raise ConfigError(str(given.file), f"{where}.file", "its first line is empty")
    return password


def membership(config: RouterConfig, clock: Callable[[], float] = time.time) -> Membership | None:
    """Return the membership that the configuration asks for, or None if the router is in no mesh.

    Args: clock: seconds since 1970, for the validity of certificates.
    Raises: ConfigError: a file cannot be read, has the wrong content, or is another router's.
    """
    mesh = config.mesh
    if mesh is None:
        return None
    # Imported here: a router without a mesh needs no topology, and an unsigned mesh no cryptography.
    if mesh.certificate is None or mesh.key is None or mesh.trust is None:
        from amqpmesh.router.runtime.membership import Membership

        return Membership(config.id, mesh, clock)
    from amqpmesh.router.runtime.certified import CertifiedMembership

    return CertifiedMembership(config.id, mesh, clock, mesh.certificate, mesh.key, mesh.trust)
