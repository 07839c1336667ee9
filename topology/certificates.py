"""Certificates of a mesh: parsing, and the rules for those of authorities and of routers (RFC 5280, RFC 8410).

Both have Ed25519 keys, and name the mesh in a URI, their only alternative name: the authority `amqpmesh://MESH`, a
router `amqpmesh://MESH/router/ID`, with the id in percent-encoding (RFC 3986, 2.1). The authority signs the
certificates of routers itself, without intermediates. One certificate serves a router for TLS, as client and as server,
and for its signatures.

A certificate for `A` also covers the workers of that router, `A.1`, `A.2`, ...
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from amqpmesh.topology.records import ROUTER_ID, UnreadableError
from amqpmesh.topology.workers import covers

MAX_CERTIFICATE: Final = 4096
"""Octets; the one with the longest router id takes 1,400."""

MAX_MESH: Final = 63
"""The longest mesh name, in characters: as long as a label of a host name."""

_SIGNATURE_SIZE: Final = 64  # octets (RFC 8032, 5.1.6)
_SIGNATURE: Final = bytes((0x03, 1 + _SIGNATURE_SIZE, 0))  # BIT STRING, its length, no unused bits (X.690, 8.6.2)
_SCHEME: Final = "amqpmesh://"
_MESH: Final = re.compile(rf"[a-z0-9](?:[a-z0-9.-]{{0,{MAX_MESH - 2}}}[a-z0-9])?")
_KNOWN_CRITICAL: Final = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    }
)
# Errors of the library for malformed input, besides ValueError.
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class CertificateError(ValueError):
    """A certificate, a key or a list of revocations that a mesh does not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityCertificate:
    """The certificate of an authority. Its signature makes a router a member of the mesh."""

    der: bytes
    authority: bytes
    """SHA-256 of its public key; renewing the certificate does not change it."""
    mesh: str
    key: Ed25519PublicKey
    not_before: float
    """Seconds since 1970, as is `not_after`."""
    not_after: float
    parsed: x509.Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCertificate:
    """The certificate of a router: its id and its key. `issued_by` tells whether an authority signed it."""

    der: bytes
    key_id: bytes
    """SHA-256 of `der`."""
    mesh: str
    router: str
    key: Ed25519PublicKey
    serial: int
    not_before: float
    """Seconds since 1970, as is `not_after`."""
    not_after: float
    parsed: x509.Certificate

    def covers(self, router: str) -> bool:
        """Tell whether the certificate is valid for a router: the one that it names, or a worker of that one."""
        return covers(self.router, router)


def mesh_refusal(mesh: str) -> str | None:
    """Return the reason why a text cannot name a mesh; None: it can."""
    if _MESH.fullmatch(mesh):
        return None
    return f"must be lower-case letters, digits, dots and hyphens, {MAX_MESH} at most, none of the last two at an end"


def authority_uri(mesh: str) -> str:
    """Return the URI in an authority's certificate. Raises: CertificateError: the name is not that of a mesh."""
    refusal = mesh_refusal(mesh)
    if refusal is not None:
        raise CertificateError(f"the name of a mesh {refusal}")
    return f"{_SCHEME}{mesh}"


def router_uri(mesh: str, router: str) -> str:
    """Return the URI in a router's certificate. Raises: CertificateError: a name is not that of a mesh or a router."""
    if not _names_router(router):
        raise CertificateError("no router can have this id")
    return f"{authority_uri(mesh)}/router/{quote(router, safe='')}"


def fingerprint(octets: bytes) -> bytes:
    """Return the SHA-256 of a certificate, by which signed records name it."""
    return sha256(octets).digest()


def read_authority(der: bytes) -> AuthorityCertificate:
    """Parse an authority's certificate, which is self-signed.

    Raises: CertificateError: it breaks a rule; the message names it.
    """
    with parsing("certificate"):
        certificate, key = _load(der)
        extensions = _extensions(certificate)
        mesh = _named(extensions).removeprefix(_SCHEME)
        _require(mesh_refusal(mesh) is None, "names no mesh: it is none of `amqpmesh ca init`")
        _require(extensions.get_extension_for_class(x509.BasicConstraints).value.ca, "is not an authority's")
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        _require(usage.key_cert_sign and usage.crl_sign, "may not sign certificates and revocations")
        _require(_has_signed(certificate, certificate), "has not signed itself")
        return AuthorityCertificate(
            der=der,
            authority=fingerprint(key.public_bytes_raw()),
            mesh=mesh,
            key=key,
            not_before=certificate.not_valid_before_utc.timestamp(),
            not_after=certificate.not_valid_after_utc.timestamp(),
            parsed=certificate,
        )


def read_router(der: bytes) -> RouterCertificate:
    """Parse a router's certificate, without a check of its signature.

    Raises: CertificateError: it breaks a rule; the message names it.
    """
    with parsing("certificate"):
        certificate, key = _load(der)
        extensions = _extensions(certificate)
        uri = _named(extensions)
        mesh, _, router = uri.removeprefix(_SCHEME).partition("/router/")
        router = unquote(router)
        # Each id has one spelling in a certificate, so any other spelling is refused.
        known = mesh_refusal(mesh) is None and _names_router(router)
        _require(known and uri == router_uri(mesh, router), "names no router")
        _require(not extensions.get_extension_for_class(x509.BasicConstraints).value.ca, "is an authority's")
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        _require(usage.digital_signature and not usage.key_cert_sign, "is not for signatures alone")
        purposes = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        _require(
            purposes >= {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH},
            "is not for clients and servers",
        )
        return RouterCertificate(
            der=der,
            key_id=fingerprint(der),
            mesh=mesh,
            router=router,
            key=key,
            serial=certificate.serial_number,
            not_before=certificate.not_valid_before_utc.timestamp(),
            not_after=certificate.not_valid_after_utc.timestamp(),
            parsed=certificate,
        )


def is_signed_canonically(der: bytes) -> bool:
    """Tell whether DER ends with a canonical signature: a bit string of 64 octets without unused bits.

    The library also accepts unused bits. Then one certificate could have several fingerprints.
    """
    return der[-_SIGNATURE_SIZE - len(_SIGNATURE) : -_SIGNATURE_SIZE] == _SIGNATURE


def issued_by(certificate: RouterCertificate, authority: AuthorityCertificate) -> bool:
    """Tell whether an authority signed a router's certificate."""
    return certificate.mesh == authority.mesh and _has_signed(authority.parsed, certificate.parsed)


def certificates_in(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM file, as DER, in their order.

    Raises: CertificateError: there is none, or one is malformed.
    """
    with parsing("certificate"):
        return [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(pem)]


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turn the library's errors for malformed input within this context into `CertificateError`."""
    try:
        with warnings.catch_warnings():
            # Any peer can send malformed certificates: they are refused without a warning of the process.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            yield
    except CertificateError:
        raise
    except _UNREADABLE as error:
        raise CertificateError(f"not a {what} that a mesh takes") from error


def _names_router(text: str) -> bool:
    try:
        ROUTER_ID.read(text)
    except UnreadableError:
        return False
    return True


def _require(met: bool, refusal: str) -> None:
    if not met:
        raise CertificateError(f"the certificate {refusal}")


def _load(der: bytes) -> tuple[x509.Certificate, Ed25519PublicKey]:
    _require(len(der) <= MAX_CERTIFICATE, f"is longer than {MAX_CERTIFICATE} octets")
    _require(is_signed_canonically(der), "does not end with an Ed25519 signature")
    certificate = x509.load_der_x509_certificate(der)
    _require(certificate.serial_number > 0, "has no serial number")
    key = certificate.public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise CertificateError("the certificate's key is not Ed25519")
    return certificate, key


def _extensions(certificate: x509.Certificate) -> x509.Extensions:
    extensions = certificate.extensions
    unknown = [each.oid for each in extensions if each.critical and each.oid not in _KNOWN_CRITICAL]
    _require(not unknown, "has a critical extension that a mesh does not know")
    return extensions


def _named(extensions: x509.Extensions) -> str:
    names = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    _require(len(names) == 1 and isinstance(names[0], x509.UniformResourceIdentifier), "does not name one URI")
    uri = str(names[0].value)
    _require(uri.startswith(_SCHEME), f"names no {_SCHEME} URI")
    return uri


def _has_signed(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_UNREADABLE):  # wrong signature or name, or an algorithm that is not the key's
        return False
    return True
