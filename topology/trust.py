"""Trust within a mesh: certificates of routers, and Ed25519 signatures of their records.

A signature covers a prefix and the octets of a record's body. The prefix is the word `amqpmesh`, the version of this
rule, the record's kind, and the mesh's name with its length. So no signature is valid for another kind of record, or in
another mesh. A record names its certificate by SHA-256. All certificates of a router that have not expired are valid,
so a new one can replace another without a gap.

The wall clock decides about the validity of certificates and nothing else. It is passed in, as a function, and can be
five minutes off.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from amqpmesh.topology.authority import load_key
from amqpmesh.topology.certificates import (
    AuthorityCertificate,
    CertificateError,
    RouterCertificate,
    certificates_in,
    fingerprint,
    issued_by,
    read_authority,
    read_router,
)
from amqpmesh.topology.records import Kind
from amqpmesh.topology.revocations import Revocations, lists_in, read_revocations
from amqpmesh.topology.signing import Certified, Revoked, SignedRecord, Signer, UntrustedError, Verifier

CLOCK_TOLERANCE: Final = 300.0
"""Seconds that this clock can be off from the authority's."""

EXPIRY_WARNING: Final = 7 * 86_400.0
"""Seconds before its expiry at which a certificate should have been renewed; at most a quarter of its lifetime."""

MAX_CERTIFICATES: Final = 8
"""Known certificates of one router; of more, those that expire last are kept. A renewal makes two."""

MAX_VERIFIED: Final = 65_536
"""Verified records that are remembered: some 10 MB."""

EXPIRED: Final = "certificate expired"
"""The reason why an expired certificate is not trusted."""

_VERSION: Final = 1
_SIGNATURE_SIZE: Final = 64  # octets (RFC 8032, 5.1.6)


def signed_octets(mesh: str, kind: int, body: bytes) -> bytes:
    """Return the octets that a signature covers. Raises: ValueError: the kind is not one of 0 to 255."""
    name = mesh.encode("ascii")
    return b"".join((b"amqpmesh", bytes((_VERSION, kind, len(name))), name, body))


class VerifiedRecords:
    """A bounded set of verified records. Routers in one process share it, so each record is verified once."""

    __slots__ = ("_digests", "_size")

    def __init__(self, size: int = MAX_VERIFIED) -> None:
        """Args: size: the most records; the oldest are forgotten."""
        self._digests: OrderedDict[bytes, None] = OrderedDict()
        self._size = size

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def add(self, digest: bytes) -> None:
        """Add a record."""
        self._digests[digest] = None
        if len(self._digests) > self._size:
            self._digests.popitem(last=False)


class Trust(Verifier):
    """The authorities of a mesh, the certificates of its routers, and their revocations."""

    def __init__(
        self,
        authorities: Iterable[AuthorityCertificate],
        clock: Callable[[], float],
        *,
        verified: VerifiedRecords | None = None,
    ) -> None:
        """Args: authorities: one at least, all of one mesh. clock: seconds since 1970.

        Raises: CertificateError: there is none, or they are of several meshes.
        """
        self._authorities = _of_one_mesh(authorities)
        self._clock = clock
        self._verified = verified if verified is not None else VerifiedRecords()
        self._known: dict[bytes, tuple[RouterCertificate, AuthorityCertificate]] = {}
        self._keys: dict[str, list[bytes]] = {}
        """The known certificates of each router."""
        self._revocations: dict[bytes, Revocations] = {}
        """The latest list of each authority."""

    @classmethod
    def load(cls, pem: bytes, clock: Callable[[], float], *, verified: VerifiedRecords | None = None) -> Self:
        """Load a file that `amqpmesh ca` wrote: the authorities' certificates, and their lists of revocations.

        Raises: CertificateError: there is no certificate in it, or one of them is bad.
        """
        trust = cls(_authorities_in(pem), clock, verified=verified)
        trust._take_lists(pem)
        return trust

    @property
    def mesh(self) -> str:
        """The name of the mesh."""
        return self._authorities[0].mesh

    def reload(self, pem: bytes) -> None:
        """Reload the file. Known certificates of a removed authority are no longer trusted.

        Raises: CertificateError: as `load`; then nothing has changed.
        """
        authorities = _of_one_mesh(_authorities_in(pem))
        if authorities[0].mesh != self.mesh:
            raise CertificateError(
                f"the authority is that of the mesh {authorities[0].mesh!r}, and not of {self.mesh!r}"
            )
        for der in lists_in(pem):
            read_revocations(der, authorities)
        self._authorities = authorities
        self._take_lists(pem)
        known = [certificate for certificate, _ in self._known.values()]
        self._known.clear()
        self._keys.clear()
        for certificate in known:
            authority = self._authority_of(certificate)
            if authority is not None:
                self._keep(certificate, authority)

    def verify(self, origin: str, kind: int, key_id: bytes, body: bytes, signature: bytes) -> None:
        """Verify that a record is its origin's.

        Raises: UntrustedError: it is not; `unknown_key` says that its certificate is not known.
        """
        found = self._known.get(key_id)
        if found is None:
            raise UntrustedError("unknown certificate", unknown_key=True)
        certificate, authority = found
        self._require_current(certificate, authority)
        if not certificate.covers(origin):
            raise UntrustedError("certificate of another router")
        if not 0 <= kind <= 255 or len(signature) != _SIGNATURE_SIZE:
            raise UntrustedError("bad signature")
        signed = signed_octets(self.mesh, kind, body)
        digest = sha256(b"".join((key_id, signature, signed))).digest()
        if digest in self._verified:
            return
        try:
            certificate.key.verify(signature, signed)
        except InvalidSignature:
            raise UntrustedError("bad signature") from None
        self._verified.add(digest)

    def learn(self, certificate: bytes) -> Certified:
        """Take a router's certificate, DER.

        Raises: UntrustedError: it is not of this mesh, of an unknown authority, expired, revoked, or malformed.
        """
        read, authority = self._verify_chain(certificate)
        if read.key_id not in self._known:
            self._keep(read, authority)
        return Certified(read.router, read.key_id)

    def router_of(self, certificate: bytes) -> str:
        """Return the router that a certificate of a TLS handshake, DER, names; `covers` tells whether it is valid for a
        worker.

        Raises: UntrustedError: as `learn`.
        """
        return self._verify_chain(certificate)[0].router

    def still_router_of(self, certificate: bytes) -> str:
        """Return the router of an open connection's certificate. An expired one still counts while a newer one is
        known.

        Raises: UntrustedError: as `learn`.
        """
        try:
            return self.router_of(certificate)
        except UntrustedError as error:
            if error.reason != EXPIRED:
                raise
            router = read_router(certificate).router
            if not any(self._is_current(key_id) for key_id in self._keys.get(router, ())):
                raise
            return router

    def forget(self, key_id: bytes) -> None:
        """Forget a certificate that is no longer needed; an unknown one is ignored."""
        found = self._known.pop(key_id, None)
        if found is not None:
            router = found[0].router
            self._keys[router].remove(key_id)
            if not self._keys[router]:
                del self._keys[router]

    def revoke(self, revocations: bytes) -> Revoked:
        """Take an authority's list of revocations, DER, if it is newer than the known one.

        Raises: UntrustedError: it is of no authority of this mesh, or malformed.
        """
        try:
            read = read_revocations(revocations, self._authorities)
        except CertificateError as error:
            raise UntrustedError(str(error)) from None
        known = self._revocations.get(read.authority)
        if known is None or read.number > known.number:
            self._revocations[read.authority] = read
        return Revoked(read.authority, read.number)

    def revocations(self) -> tuple[Revocations, ...]:
        """Return the latest list of each authority that has one."""
        return tuple(self._revocations.values())

    def valid_until(self, certificate: RouterCertificate) -> float:
        """Return the time until which a certificate and that of its authority are valid: seconds since 1970.

        Raises: UntrustedError: no known authority has signed it.
        """
        authority = self._authority_of(certificate)
        if authority is None:
            raise UntrustedError("unknown authority")
        return min(certificate.not_after, authority.not_after)

    def _verify_chain(self, der: bytes) -> tuple[RouterCertificate, AuthorityCertificate]:
        found = self._known.get(fingerprint(der))
        if found is None:
            try:
                certificate = read_router(der)
            except CertificateError as error:
                raise UntrustedError(str(error)) from None
            if certificate.mesh != self.mesh:
                raise UntrustedError("certificate of another mesh")
            authority = self._authority_of(certificate)
            if authority is None:
                raise UntrustedError("certificate of an unknown authority")
            found = certificate, authority
        self._require_current(*found)
        return found

    def _is_current(self, key_id: bytes) -> bool:
        try:
            self._require_current(*self._known[key_id])
        except UntrustedError:
            return False
        return True

    def _require_current(self, certificate: RouterCertificate, authority: AuthorityCertificate) -> None:
        revocations = self._revocations.get(authority.authority)
        if revocations is not None and certificate.serial in revocations.serials:
            raise UntrustedError("certificate revoked")
        now = self._clock()
        if now < max(certificate.not_before, authority.not_before) - CLOCK_TOLERANCE:
            raise UntrustedError("certificate not yet valid")
        if now > min(certificate.not_after, authority.not_after) + CLOCK_TOLERANCE:
            raise UntrustedError(EXPIRED)

    def _authority_of(self, certificate: RouterCertificate) -> AuthorityCertificate | None:
        """Return the authority that signed a certificate; of two certificates of a renewed authority, the later one."""
        signers = [authority for authority in self._authorities if issued_by(certificate, authority)]
        return max(signers, key=lambda authority: authority.not_after, default=None)

    def _keep(self, certificate: RouterCertificate, authority: AuthorityCertificate) -> None:
        self._known[certificate.key_id] = certificate, authority
        keys = self._keys.setdefault(certificate.router, [])
        keys.append(certificate.key_id)
        if len(keys) > MAX_CERTIFICATES:
            self.forget(min(keys, key=lambda key_id: self._known[key_id][0].not_after))

    def _take_lists(self, pem: bytes) -> None:
        try:
            for der in lists_in(pem):
                self.revoke(der)
        except UntrustedError as error:
            raise CertificateError(error.reason) from None


class Identity(Signer):
    """The certificate and the key of a router, which sign its records."""

    def __init__(self, certificate: RouterCertificate, key: Ed25519PrivateKey, trust: Trust) -> None:
        """Args: trust: that of this router, which has to trust the certificate.

        Raises: CertificateError: the key is another's, or the certificate is not valid now in this mesh.
        """
        if key.public_key() != certificate.key:
            raise CertificateError("the key is that of another certificate")
        try:
            trust.learn(certificate.der)
            self.expires_at = trust.valid_until(certificate)
        except UntrustedError as error:
            raise CertificateError(error.reason) from None
        self.certificate = certificate
        self._key = key
        self._trust = trust

    @classmethod
    def load(cls, certificate: bytes, key: bytes, trust: Trust) -> Self:
        """Load files that `amqpmesh ca issue` wrote, PEM both; the router's own certificate is the first one.

        Raises: CertificateError: one of them is malformed, or as the constructor.
        """
        return cls(read_router(certificates_in(certificate)[0]), load_key(key), trust)

    @property
    def router(self) -> str:
        """The id in the certificate; workers share the certificate."""
        return self.certificate.router

    @property
    def mesh(self) -> str:
        """The name of the mesh."""
        return self.certificate.mesh

    @property
    def warn_at(self) -> float:
        """The time from which to warn of the expiry: seconds since 1970, as `expires_at`."""
        return self.expires_at - min(EXPIRY_WARNING, (self.expires_at - self.certificate.not_before) / 4)

    def sign(self, kind: int, body: bytes) -> tuple[bytes, bytes]:
        """Return (key id, signature) for a body of a kind, 0 to 255."""
        return self.certificate.key_id, self._key.sign(signed_octets(self.mesh, kind, body))

    def records(self) -> tuple[SignedRecord, ...]:
        """Return the router's certificate, and the lists of revocations. Only the authority signs these."""
        return (
            SignedRecord(Kind.CERTIFICATE, self.certificate.key_id, self.certificate.der, b""),
            *(SignedRecord(Kind.REVOCATION, each.authority, each.der, b"") for each in self._trust.revocations()),
        )


def _of_one_mesh(authorities: Iterable[AuthorityCertificate]) -> tuple[AuthorityCertificate, ...]:
    found = tuple(authorities)
    if not found:
        raise CertificateError("there is no authority")
    if len({authority.mesh for authority in found}) > 1:
        raise CertificateError("the authorities are of several meshes")
    return found


def _authorities_in(pem: bytes) -> list[AuthorityCertificate]:
    return [read_authority(der) for der in certificates_in(pem)]
