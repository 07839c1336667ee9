"""TLS contexts, and whom a certificate names (§5.2).

One context serves a pure TLS port and the TLS layer that a protocol header asks for alike (§5.2, §5.2.1).
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amqpmesh.router.amqp.errors import CommandError

CLIENT_CERTIFICATE: Mapping[str, ssl.VerifyMode] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,  # one that is given must still be good
    "required": ssl.CERT_REQUIRED,
}
"""What a listener asks of its clients."""

NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: when certificates are valid is not looked at."""

STRANGE = frozenset((18, 19, 20, 21))
"""What OpenSSL calls it if nobody known has signed: from X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT on."""

# The alternative names that say who somebody is. Python reads an otherName as the text "<unsupported>", the same for
# everybody, and a directory name as a structure.
_NAMING = ("DNS", "email", "URI", "IP Address")


def server_context(certificate: Path, key: Path, trust: Path | None = None, client: str = "none") -> ssl.SSLContext:
    """A listener's context: TLS 1.2 or later.

    Args: certificate: PEM, the server's own first, then those between it and the authority. key: PEM, not encrypted.
        trust: PEM, the authorities whose clients are believed; needed unless `client` is "none", else not looked at.
        client: whether a client must show a certificate: a key of `CLIENT_CERTIFICATE`.
    Raises: CommandError: an unknown `client`, or no `trust` where one is needed. OSError (`ssl.SSLError` is one): a
        file that cannot be read, or does not hold what it should.
    Source: §5.2.
    """
    if client not in CLIENT_CERTIFICATE:
        raise CommandError(f"client certificates are {', '.join(CLIENT_CERTIFICATE)}, not {client!r}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # in TLS 1.2 a client could make us do handshakes without end
    _load_own(context, certificate, key)
    context.verify_mode = CLIENT_CERTIFICATE[client]
    if context.verify_mode is not ssl.CERT_NONE:
        if trust is None:
            raise CommandError("client certificates are asked for, and no authority is trusted to sign them")
        context.load_verify_locations(trust)
    return context


def client_context(
    trust: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """A client's context: TLS 1.2 or later; the server's certificate and its host name are always verified.

    Args: trust: PEM, the authorities whose servers are believed; None: those that the system trusts.
        certificate, key: PEM, what to show to a server that asks; both or neither.
    Raises: CommandError: one of `certificate` and `key` without the other. OSError: as `server_context`.
    Source: §5.2: the client validates the server's certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if trust is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(trust)
    if certificate is not None and key is not None:
        _load_own(context, certificate, key)
    elif certificate is not None or key is not None:
        raise CommandError("a client certificate needs its key, and a key its certificate")
    return context


def mesh_contexts(certificate: Path, key: Path, trust: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a router among routers of its mesh: as the server, and as the client.

    Both sides show a certificate that the mesh's authority has signed, and that keeps to RFC 5280. No host name is
    looked for: routers are known by their ids. Nor are dates: those are looked at by who knows the id, with the same
    tolerance for clocks as those of signed records.

    Args: certificate, key: PEM, the router's. trust: PEM, the mesh's authority.
    Raises: OSError: as `server_context`.
    """
    server = server_context(certificate, key, trust, "required")
    client = client_context(trust, certificate, key)
    client.check_hostname = False
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT | NO_CHECK_TIME
    return server, client


def not_believed(error: ssl.SSLCertVerificationError, *, mesh: bool) -> str:
    """Why a certificate is not believed: OpenSSL's words, and for a mesh's what they mean there."""
    strange = mesh and error.verify_code in STRANGE
    return f"{error.verify_message}{': it is not of the authority of this mesh' if strange else ''}"


def certificate_user(certificate: Mapping[str, Any] | None) -> str | None:
    """The user that a verified certificate names: its first alternative name, else its subject's common name.

    Args: certificate: what `getpeercert()` returned: None without a certificate, empty for one not verified.
    Returns: None if it names nobody. What SASL EXTERNAL authenticates.
    """
    if not certificate:
        return None
    alternatives = (value for kind, value in certificate.get("subjectAltName", ()) if kind in _NAMING)
    names = (value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName")
    return next(filter(None, (*alternatives, *names)), None)


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    # Without a password given, OpenSSL would stop and ask the terminal for that of an encrypted key.
    context.load_cert_chain(certificate, key, password="")
