"""Authorities of meshes, and routers with certificates, at a fixed time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from amqpmesh.topology.authority import DAY, Authority, certificate_pem, revocations_pem
from amqpmesh.topology.certificates import RouterCertificate
from amqpmesh.topology.revocations import Revocations
from amqpmesh.topology.trust import Identity, Trust

NOW: Final = 1_750_000_000.0


@dataclass
class Clock:
    """A wall clock that the test moves."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A mesh's authority and its clock."""

    mesh: str = "m1"
    clock: Clock = field(default_factory=Clock)
    revoked: list[Revocations] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.authority = Authority.create(self.mesh, self.clock())

    @property
    def pem(self) -> bytes:
        """The trust file, PEM."""
        return certificate_pem(self.authority.certificate) + b"".join(map(revocations_pem, self.revoked[-1:]))

    def trust(self, **settings: Any) -> Trust:
        """Return what a router of this mesh trusts."""
        return Trust.load(self.pem, self.clock, **settings)

    def certificate(self, router: str, days: float = 30, key: Ed25519PrivateKey | None = None) -> RouterCertificate:
        """Return a certificate for that router."""
        key = key or Ed25519PrivateKey.generate()
        return self.authority.issue(router, key.public_key(), self.clock(), days)

    def identity(self, router: str, days: float = 30, trust: Trust | None = None) -> Identity:
        """Return a router's key and certificate, for signing."""
        key = Ed25519PrivateKey.generate()
        return Identity(self.certificate(router, days, key), key, trust or self.trust())

    def revoke(self, *certificates: RouterCertificate) -> Revocations:
        """Make the next revocation list, with these certificates too."""
        before = self.revoked[-1].serials if self.revoked else frozenset()
        serials = before | {each.serial for each in certificates}
        self.revoked.append(self.authority.revoke(serials, len(self.revoked) + 1, self.clock()))
        return self.revoked[-1]


Change = Callable[[dict[type[x509.ExtensionType], tuple[x509.ExtensionType, bool]]], Any]


def strange(
    signer: Authority, change: Change = lambda _: None, *, key: Any = None, signing_key: Any = None, days: float = 30
) -> bytes:
    """Return a router's certificate, DER, with one fault.

    Args: change: of the extensions, by their type, each with whether it is critical.
        key: the certificate's, instead of one of the right kind. signing_key: instead of the authority's.
    """
    public = (key or Ed25519PrivateKey.generate()).public_key()
    usage = dict.fromkeys(
        (
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign"),
            *("crl_sign", "encipher_only", "decipher_only"),
        ),
        False,
    )
    extensions: dict[type[x509.ExtensionType], tuple[x509.ExtensionType, bool]] = {
        x509.SubjectAlternativeName: (san("amqpmesh://m1/router/A"), False),
        x509.BasicConstraints: (x509.BasicConstraints(ca=False, path_length=None), True),
        x509.KeyUsage: (x509.KeyUsage(digital_signature=True, **usage), True),
        x509.ExtendedKeyUsage: (
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
            False,
        ),
    }
    change(extensions)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A")]))
        .issuer_name(signer.certificate.parsed.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(NOW, UTC))
        .not_valid_after(datetime.fromtimestamp(NOW + days * DAY, UTC))
    )
    for extension, critical in extensions.values():
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signing_key or signer.key, None).public_bytes(Encoding.DER)


def san(*uris: str) -> x509.SubjectAlternativeName:
    """Return alternative names that are URIs."""
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(each) for each in uris])
