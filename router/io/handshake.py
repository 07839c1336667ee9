"""The server's side of TLS: the handshake, and the peer's identity."""

from collections.abc import Mapping
from dataclasses import dataclass
from ssl import CERT_NONE, SSLCertVerificationError, SSLContext
from typing import Any, Final, Protocol

import trio

from amqpmesh.router.io.secured_stream import LINGER, TlsStream, close_gracefully
from amqpmesh.router.io.streams import PrefixedStream, TcpStream
from amqpmesh.router.io.tls import certificate_user, untrusted_reason

HANDSHAKE_TIME_OUT = 10.0
"""Seconds for a TLS handshake; the engine has its own time-out for what follows."""

REMEMBERED: Final = 128
"""Certificates that were read and are remembered: a client that connects again and again shows the same one."""

LONGEST: Final = 4096
"""Octets of the longest certificate that is remembered."""


class Failures(Protocol):
    """A log of failed handshakes."""

    def not_secured(self, host: str, reason: str) -> None:
        """Log that the handshake of a client has failed. Args: host: its address."""


SecuredStream = TlsStream | trio.SSLStream[trio.abc.Stream]
"""A stream inside TLS: `TlsStream` over a socket, `trio.SSLStream` over any other stream."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A peer's verified certificate (DER), its user and its subject; all None without a certificate."""

    certificate: bytes | None = None
    user: str | None = None
    subject: str | None = None

    @staticmethod
    def of(stream: SecuredStream, name: str = "any") -> "Identity":
        """Return the identity of the peer of a stream after its handshake.

        Args: name: the kind of name in the certificate that is the user, as of `certificate_user`.
        """
        certificate = stream.getpeercert(binary_form=True)
        # An unverified certificate has a binary form, too.
        if certificate is None or stream.context.verify_mode is CERT_NONE:
            return UNKNOWN
        known = _read.get((certificate, name))
        if known is None:
            told = stream.getpeercert()
            known = Identity(certificate, certificate_user(told, name), certificate_subject(told))
            if len(certificate) <= LONGEST:
                _read[certificate, name] = known
                if len(_read) > REMEMBERED:
                    # Other threads may remember certificates, too: those of HTTP's clients.
                    _read.pop(list(_read)[0], None)  # noqa: RUF015 - an iterator fails if another thread adds one
        return known


UNKNOWN: Final = Identity()
"""The identity of a peer that has shown no certificate."""

_read: Final[dict[tuple[bytes, str], Identity]] = {}
"""The identities of the latest certificates, by certificate and kind of name."""


async def secure(
    stream: trio.abc.Stream,
    context: SSLContext,
    host: str,
    logins: Failures,
    *,
    mesh: bool = False,
    read: bytes = b"",
    name: str = "any",
) -> tuple[SecuredStream, Identity] | None:
    """Start TLS on a stream, as the server.

    Args: host: the client's address. logins: logs a failed handshake. mesh: the peer must be a router of the mesh.
        read: octets of the client's TLS that were read already. name: as of `Identity.of`.
    Returns: None if the handshake failed or took too long, which was logged.
    """
    secured: SecuredStream
    if isinstance(stream, TcpStream):
        secured = TlsStream(stream, context, read=read)
    else:
        # As in https: many peers just close the socket, and AMQP's own `close` says whether anything is missing.
        stream = PrefixedStream(read, stream) if read else stream
        secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    reason = took_too_long(HANDSHAKE_TIME_OUT)
    with trio.move_on_after(HANDSHAKE_TIME_OUT):
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            reason = reason_of(error, mesh=mesh)
        else:
            return secured, Identity.of(secured, name)
    logins.not_secured(host, reason)
    with trio.move_on_after(LINGER):
        await close_gracefully(stream)
    return None


def took_too_long(seconds: float) -> str:
    """Return the reason of a handshake that has taken too long. Args: seconds: its limit."""
    return f"took longer than {seconds:g} s"


def reason_of(error: trio.BrokenResourceError | trio.ClosedResourceError, *, mesh: bool) -> str:
    """Return the reason of a failed handshake. Args: mesh: the peer must be a router of the mesh."""
    cause = error.__cause__
    if mesh and isinstance(cause, SSLCertVerificationError):
        return untrusted_reason(cause, mesh=True)
    return str(cause or "the peer left")


def certificate_subject(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the subject of a verified certificate as RFC 4514 writes it, last part first: `CN=ada,O=Mill`.

    Args: certificate: what `getpeercert()` returned.
    Returns: None without a certificate, or if its subject is empty.
    """
    parts = reversed((certificate or {}).get("subject", ()))
    return ",".join("+".join(f"{_short(kind)}={_quoted(value)}" for kind, value in part) for part in parts) or None


_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


def _short(kind: str) -> str:
    return _SHORT.get(kind, kind)


def _quoted(value: str) -> str:
    # Escaped: each name has one spelling only, and no value can pass for another part of the name.
    text = "".join(f"\\{character}" if character in ',+"\\<>;=' else character for character in value)
    if text.startswith((" ", "#")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and len(value) > 1 else text
