"""Interfaces for signing and verifying records: what the link-state protocol needs of the mesh's trust.

A signature covers the kind of a record and the octets of its body. The implementation decides what else it covers (a
version, the mesh's name), what a key id is, and when a certificate is valid. The protocol compares no clocks, and
passes key ids on without reading them.
"""

# ruff: noqa: ARG002 - `Unsigned` ignores its arguments

from typing import Final, NamedTuple, Protocol

from amqpmesh.topology.records import SignedRecord

__all__ = ["Certified", "Revoked", "SignedRecord", "Signer", "Unsigned", "UntrustedError", "Verifier"]


class UntrustedError(Exception):
    """A record or a certificate that is not trusted.

    `reason` says why, in a few words for counters and logs. `unknown_key`: the certificate that the record names is not
    known yet. Then the record may be good, and the certificate is requested.
    """

    def __init__(self, reason: str, *, unknown_key: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unknown_key = unknown_key


class Certified(NamedTuple):
    """The content of a certificate: this key may sign for this router."""

    router: str
    key_id: bytes


class Revoked(NamedTuple):
    """The version of a list of revocations: the authority's key id, and the number of the list."""

    authority: bytes
    number: int


class Signer(Protocol):
    """A signer of this router's records."""

    def sign(self, kind: int, body: bytes) -> tuple[bytes, bytes]:
        """Return (key id, signature) for a body of a kind."""

    def records(self) -> tuple[SignedRecord, ...]:
        """Return the records that others need to trust this router: its certificates, and lists of revocations."""


class Verifier(Protocol):
    """A judge of signatures."""

    def verify(self, origin: str, kind: int, key_id: bytes, body: bytes, signature: bytes) -> None:
        """Verify that a record is its origin's; certificates and revocations are for `learn` and `revoke`.

        Raises: UntrustedError: it is not, or that cannot be known.
        """

    def learn(self, certificate: bytes) -> Certified:
        """Take a certificate, DER, that the mesh floods; a known one is accepted again.

        Raises: UntrustedError: it is not of this mesh, expired, revoked, or malformed.
        """

    def forget(self, key_id: bytes) -> None:
        """Forget a certificate that is no longer needed; an unknown one is ignored."""

    def revoke(self, revocations: bytes) -> Revoked:
        """Take an authority's list of revocations, DER, if it is newer than the known one.

        From now on `verify` can refuse records that it accepted before, so stored records are verified again.

        Raises: UntrustedError: it is of no authority of this mesh, or malformed.
        """


class Unsigned:
    """Signer and verifier of a mesh without signatures (`insecure = true`), for trials: it trusts every router."""

    NOTHING: Final = (b"", b"")

    def sign(self, kind: int, body: bytes) -> tuple[bytes, bytes]:
        """Return an empty signature."""
        return self.NOTHING

    def records(self) -> tuple[SignedRecord, ...]:
        """Return nothing: there are no certificates."""
        return ()

    def verify(self, origin: str, kind: int, key_id: bytes, body: bytes, signature: bytes) -> None:
        """Accept a record without a signature; see `Verifier`. A signed one comes from another mesh."""
        if (key_id, signature) != self.NOTHING:
            raise UntrustedError("signed in an unsigned mesh")

    def learn(self, certificate: bytes) -> Certified:
        """Raise UntrustedError: an unsigned mesh has no certificates. See `Verifier`."""
        raise UntrustedError("certificate in an unsigned mesh")

    def forget(self, key_id: bytes) -> None:
        """Do nothing; see `Verifier`."""

    def revoke(self, revocations: bytes) -> Revoked:
        """Raise UntrustedError: an unsigned mesh has no lists of revocations. See `Verifier`."""
        raise UntrustedError("revocations in an unsigned mesh")
