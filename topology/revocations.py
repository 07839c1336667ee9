"""Lists of revoked certificates: an X.509 CRL of each authority, with a number (RFC 5280, 5).

Of two lists of one authority, the one with the higher number counts. A list has no expiry, since flooding tells of a
newer one. So routers ignore `nextUpdate`, which is far in the future for other tools.
"""

import re
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID

from amqpmesh.topology.certificates import AuthorityCertificate, CertificateError, is_signed_canonically, parsing

MAX_LIST: Final = 60 * 2**10
"""Octets: a list is flooded as one record. It has room for 1,500 certificates that have not expired."""

_BLOCK: Final = re.compile(rb"-----BEGIN X509 CRL-----[^-]*-----END X509 CRL-----")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocations:
    """A parsed list of revocations."""

    der: bytes
    authority: bytes
    """The authority: SHA-256 of its public key."""
    number: int
    """One more than that of the list before."""
    serials: frozenset[int]


def read_revocations(der: bytes, authorities: tuple[AuthorityCertificate, ...]) -> Revocations:
    """Parse a list of revocations that one of these authorities signed.

    Raises: CertificateError: it is malformed, or of another authority.
    """
    if len(der) > MAX_LIST:
        raise CertificateError(f"the list of revocations is longer than {MAX_LIST} octets")
    if not is_signed_canonically(der):
        raise CertificateError("the list of revocations does not end with an Ed25519 signature")
    with parsing("list of revocations"):
        parsed = x509.load_der_x509_crl(der)
        if any(each.critical for each in parsed.extensions):
            raise CertificateError("the list of revocations is only a part of one")
        number = parsed.extensions.get_extension_for_oid(ExtensionOID.CRL_NUMBER).value
        signer = next((each for each in authorities if _has_signed(each, parsed)), None)
        if signer is None:
            raise CertificateError("the list of revocations is of an unknown authority")
        assert isinstance(number, x509.CRLNumber)
        return Revocations(
            der=der,
            authority=signer.authority,
            number=number.crl_number,
            serials=frozenset(each.serial_number for each in parsed),
        )


def lists_in(pem: bytes) -> list[bytes]:
    """Return the lists of a PEM file, as DER, in their order; other content is ignored.

    Raises: CertificateError: a list is malformed.
    """
    with parsing("list of revocations"):
        return [x509.load_pem_x509_crl(block).public_bytes(Encoding.DER) for block in _BLOCK.findall(pem)]


def _has_signed(authority: AuthorityCertificate, revocations: x509.CertificateRevocationList) -> bool:
    return revocations.issuer == authority.parsed.subject and revocations.is_signature_valid(authority.key)
