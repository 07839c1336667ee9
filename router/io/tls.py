"""TLS contexts, and the user that a certificate names (§5.2).

One context serves both ways into TLS: a port for TLS only, and the TLS that a protocol header asks for (§5.2.1).
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amqpmesh.router.amqp.errors import CommandError

CLIENT_CERTIFICATE: Mapping[str, ssl.VerifyMode] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,  # a certificate that is shown must be valid
    "required": ssl.CERT_REQUIRED,
}
"""The demands of a listener for client certificates, by the words of the configuration."""

NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: it ignores the period of validity."""

UNKNOWN_ISSUER = frozenset((18, 19, 20, 21))
"""OpenSSL's error codes for a certificate without a trusted issuer, from X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT on."""

# The kinds of alternative names that identify a user. Other kinds do not: Python reads every otherName as the same text
# "<unsupported>", and a directory name as a structure.
_NAMING: Mapping[str, str] = {"dns": "DNS", "email": "email", "uri": "URI", "ip": "IP Address"}

VERSIONS: Mapping[str, ssl.TLSVersion] = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
"""The least versions of TLS, by the words of the configuration."""


def server_context(
    certificate: Path,
    key: Path,
    trust: Path | None = None,
    client: str = "none",
    *,
    password: str = "",
    minimum: str = "1.2",
    ciphers: str | None = None,
    revoked: Path | None = None,
) -> ssl.SSLContext:
    """Return the context of a listener: TLS 1.2 or later.

    Args: certificate: PEM, the server's own first, then the intermediate ones. key: PEM.
        trust: PEM, the authorities whose clients are trusted; needed unless `client` is "none", else ignored.
        client: a key of `CLIENT_CERTIFICATE`. password: of the key; empty: the key is not encrypted.
        minimum: a key of `VERSIONS`. ciphers: of TLS 1.2, as OpenSSL writes them; None: Python's choice.
        revoked: PEM, a revocation list of each authority that signs clients' certificates; None: none is revoked.
    Raises: CommandError: an unknown `client`, or no `trust` where one is needed. OSError (`ssl.SSLError` is one): a
        file that cannot be read, or has the wrong content.
    Source: §5.2.
    """
    if client not in CLIENT_CERTIFICATE:
        raise CommandError(f"client certificates are {', '.join(CLIENT_CERTIFICATE)}, not {client!r}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[minimum]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a TLS 1.2 client could otherwise force endless handshakes
    if ciphers is not None:
        context.set_ciphers(ciphers)
    _load_own(context, certificate, key, password)
    context.verify_mode = CLIENT_CERTIFICATE[client]
    if context.verify_mode is not ssl.CERT_NONE:
        if trust is None:
            raise CommandError("client certificates are asked for, and no authority is trusted to sign them")
        context.load_verify_locations(trust)
        if revoked is not None:
            context.load_verify_locations(revoked)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def client_context(
    trust: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Return the context of a client: TLS 1.2 or later; the server's certificate and its host name are always verified.

    Args: trust: PEM, the authorities whose servers are trusted; None: those of the system.
        certificate, key: PEM, for servers that ask for a client certificate; both or neither.
    Raises: CommandError: `certificate` without `key`, or the reverse. OSError: as `server_context`.
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
    """Return the contexts of a router within its mesh: as the server, and as the client.

    Both sides show a certificate that the mesh's authority has signed and that follows RFC 5280. TLS checks no host
    name, because routers are known by their ids. TLS checks no dates either: the code that verifies the id checks them,
    with the same tolerance for clocks as for signed records.

    Args: certificate, key: PEM, the router's. trust: PEM, the mesh's authority.
    Raises: OSError: as `server_context`.
    """
    server = server_context(certificate, key, trust, "required")
    client = client_context(trust, certificate, key)
    client.check_hostname = False
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT | NO_CHECK_TIME
    return server, client


def untrusted_reason(error: ssl.SSLCertVerificationError, *, mesh: bool) -> str:
    """Return OpenSSL's reason why a certificate is not trusted, with an explanation for a certificate of a mesh."""
    strange = mesh and error.verify_code in UNKNOWN_ISSUER
    return f"{error.verify_message}{': it is not of the authority of this mesh' if strange else ''}"


def certificate_user(certificate: Mapping[str, Any] | None, name: str = "any") -> str | None:
    """Return the user that a verified certificate names: its first alternative name, else its subject's common name.

    This is the user that SASL EXTERNAL authenticates.

    Args: certificate: what `getpeercert()` returned: None without a certificate, empty for one not verified.
        name: the kind of name that is the user: `dns`, `email`, `uri`, `ip` or `common-name`; `any`: the first of
            these.
    Returns: None if it names no user.
    """
    if not certificate:
        return None
    kinds = _NAMING.values() if name == "any" else (_NAMING.get(name),)
    found = [value for kind, value in certificate.get("subjectAltName", ()) if kind in kinds]
    if name in ("any", "common-name"):
        found += [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return next(filter(None, found), None)


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path, password: str = "") -> None:
    # An empty password: without one, OpenSSL would ask the terminal for the password of an encrypted key.
    context.load_cert_chain(certificate, key, password=password)


class RevocationLists:
    """The certificate revocation lists of a file (RFC 5280), for connections whose handshake is over.

    The import of cryptography takes some tens of milliseconds, which a router without such a file does not spend.
    """

    def __init__(self, file: Path) -> None:
        """Args: file: PEM, one list or several. Raises: OSError, ValueError: it cannot be read, or holds no list."""
        from cryptography import x509

        begin = b"-----BEGIN X509 CRL-----"
        _, *parts = file.read_bytes().split(begin)
        self._lists = [x509.load_pem_x509_crl(begin + part) for part in parts]

    def has(self, certificate: bytes) -> bool:
        """Tell whether a verified certificate is revoked. Args: certificate: DER."""
        from cryptography import x509

        shown = x509.load_der_x509_certificate(certificate)
        return any(
            each.issuer == shown.issuer
            and each.get_revoked_certificate_by_serial_number(shown.serial_number) is not None
            for each in self._lists
        )
