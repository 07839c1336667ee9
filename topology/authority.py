"""The certificate authority of a mesh: it issues and revokes certificates of routers.

OpenSSL 3 verifies these certificates under `X509_V_FLAG_X509_STRICT`. So each of them has the identifiers of its key
and of the authority's key (RFC 5280, 4.2.1.1, 4.2.1.2), and a key usage (4.2.1.3).

An authority's only state is its key and its certificate. The caller keeps the issued certificates and the latest list
of revocations. Times are seconds since 1970.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from amqpmesh.topology.certificates import (
    AuthorityCertificate,
    CertificateError,
    RouterCertificate,
    authority_uri,
    read_authority,
    read_router,
    router_uri,
)
from amqpmesh.topology.revocations import MAX_LIST, Revocations, read_revocations

DAY: Final = 86_400.0
"""Seconds."""

AUTHORITY_DAYS: Final = 3650
"""The default lifetime of an authority's certificate."""

ROUTER_DAYS: Final = 30
"""The default lifetime of a router's certificate."""

MAX_DAYS: Final = 36_500
"""The longest lifetime of either: X.509 cannot express dates after the year 9999."""

BACKDATED: Final = 300.0
"""Seconds by which a certificate is backdated, for hosts with a slow clock."""

_MAX_COMMON_NAME: Final = 64  # RFC 5280, appendix A.1: ub-common-name
_FAR_AWAY: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280, 4.1.2.5: no good date of expiry


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate and the key of an authority."""

    certificate: AuthorityCertificate
    key: Ed25519PrivateKey

    @classmethod
    def create(cls, mesh: str, now: float, days: float = AUTHORITY_DAYS) -> Self:
        """Create an authority. Raises: CertificateError: the name is not that of a mesh, or the lifetime is
        too long."""
        return cls._signed(mesh, Ed25519PrivateKey.generate(), now, days)

    @classmethod
    def load(cls, certificate: bytes, key: bytes, passphrase: bytes | None = None) -> Self:
        """Load an existing authority. Args: certificate: DER. key: PEM.

        Raises: CertificateError: one of them is malformed, they do not belong together, or the passphrase is wrong.
        """
        read, private = read_authority(certificate), load_key(key, passphrase)
        if private.public_key() != read.key:
            raise CertificateError("the key is that of another certificate")
        return cls(read, private)

    def renewed(self, now: float, days: float = AUTHORITY_DAYS) -> Self:
        """Return the same authority with a later expiry; certificates that it has signed stay valid.

        Raises: CertificateError: the lifetime is too long.
        """
        return self._signed(self.certificate.mesh, self.key, now, days, self.certificate.parsed.subject)

    def issue(self, router: str, key: Ed25519PublicKey, now: float, days: float = ROUTER_DAYS) -> RouterCertificate:
        """Issue a certificate for a router's key; it expires no later than the authority's own.

        Raises: CertificateError: the id is not that of a router, or the authority's certificate has expired.
        """
        uri = router_uri(self.certificate.mesh, router)
        ends = min(now + _seconds(days), self.certificate.not_after)
        if ends <= now:
            raise CertificateError("the authority's certificate has expired")
        builder = _certificate(_subject(router), self.certificate.parsed.subject, key, now, ends)
        builder = _named(builder, uri)
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(purposes, critical=False)
            .add_extension(_authority_key(self.certificate.key), critical=False)
        )
        return read_router(builder.sign(self.key, None).public_bytes(Encoding.DER))

    def revoke(self, serials: Iterable[int], number: int, now: float) -> Revocations:
        """Return a list of revocations, which replaces all earlier lists: `serials` includes the serials of those
        lists.

        Args: number: one more than that of the list before, 1 for the first.
        Raises: CertificateError: the list would be too long to flood.
        """
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self.certificate.parsed.subject, last_update=_time(now), next_update=_FAR_AWAY
        )
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        builder = builder.add_extension(_authority_key(self.certificate.key), critical=False)
        for serial in sorted(set(serials)):
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(_time(now)).build()
            builder = builder.add_revoked_certificate(revoked)
        der = builder.sign(self.key, None).public_bytes(Encoding.DER)
        if len(der) > MAX_LIST:
            raise CertificateError(f"the list of revocations would be longer than {MAX_LIST} octets")
        return read_revocations(der, (self.certificate,))

    @classmethod
    def _signed(
        cls, mesh: str, key: Ed25519PrivateKey, now: float, days: float, subject: x509.Name | None = None
    ) -> Self:
        uri, public = authority_uri(mesh), key.public_key()
        subject = subject or _subject(f"authority of {mesh}")
        builder = _named(_certificate(subject, subject, public, now, now + _seconds(days)), uri)
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(_authority_key(public), critical=False)
        )
        return cls(read_authority(builder.sign(key, None).public_bytes(Encoding.DER)), key)


def load_key(key: bytes, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Load a private key from PEM.

    Raises: CertificateError: it is malformed, not Ed25519, or the passphrase is wrong.
    """
    try:
        loaded = load_pem_private_key(key, passphrase)
    except TypeError:  # the library's error if an encrypted key has no passphrase, or the other way round
        raise CertificateError(
            "the key has a passphrase" if passphrase is None else "the key has no passphrase"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError("not a key" if passphrase is None else "not a key, or the wrong passphrase") from None
    if not isinstance(loaded, Ed25519PrivateKey):
        raise CertificateError("the key is not Ed25519")
    return loaded


def is_encrypted(key: bytes) -> bool:
    """Tell whether a private key in PEM needs a passphrase (RFC 7468, 11)."""
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in key


def key_pem(key: Ed25519PrivateKey, passphrase: bytes | None = None) -> bytes:
    """Return a private key as PEM (PKCS #8), encrypted if there is a passphrase."""
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def certificate_pem(certificate: AuthorityCertificate | RouterCertificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.parsed.public_bytes(Encoding.PEM)


def revocations_pem(revocations: Revocations) -> bytes:
    """Return a list of revocations as PEM."""
    return x509.load_der_x509_crl(revocations.der).public_bytes(Encoding.PEM)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PublicKey, now: float, ends: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now - BACKDATED))
        .not_valid_after(_time(ends))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(builder: x509.CertificateBuilder, uri: str) -> x509.CertificateBuilder:
    return builder.add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)


def _subject(name: str) -> x509.Name:
    # The common name is for people; programs read the alternative name, which is never cut.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_MAX_COMMON_NAME])])


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key(key: Ed25519PublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


def _seconds(days: float) -> float:
    if not 0 < days <= MAX_DAYS:
        raise CertificateError(f"a certificate holds for some days, {MAX_DAYS} at most")
    return days * DAY


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=0)
