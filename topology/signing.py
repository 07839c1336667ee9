"""Who signs what a router says, and who checks it: what the protocol asks of the mesh's trust.

A signature covers the record's kind and its body's octets as sent. What else goes under it (a version, the mesh's
name), what a key id is, and what time it is for a certificate, is for those who implement this to know: the protocol
compares no clocks, and passes key ids on unread.
"""

# ruff: noqa: ARG002 - who believes everybody looks at nothing

from typing import Final, NamedTuple, Protocol

from amqpmesh.topology.records import SignedRecord

__all__ = ["Certified", "Revoked", "SignedRecord", "Signer", "Unsigned", "UntrustedError", "Verifier"]


class UntrustedError(Exception):
    """A record or a certificate that is not to be believed.

    `reason` says why, in a few words for counters and logs. `unknown_key`: the certificate that it names is not known
    (yet): the record may be good, and the certificate is asked for.
    """

    def __init__(self, reason: str, *, unknown_key: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unknown_key = unknown_key


class Certified(NamedTuple):
    """What a certificate certifies: that this key speaks for this router."""

    router: str
    key_id: bytes


class Revoked(NamedTuple):
    """Which list of revocations: the authority's key id, and the number of the list."""

    authority: bytes
    number: int


class Signer(Protocol):
    """Signs what this router says."""

    def sign(self, kind: int, body: bytes) -> tuple[bytes, bytes]:
        """(key id, signature) for a body of a kind."""

    def records(self) -> tuple[SignedRecord, ...]:
        """What has to be known to believe us: our certificates, and the list of revocations if we have one."""


class Verifier(Protocol):
    """Believes, or does not."""

    def verify(self, origin: str, kind: int, key_id: bytes, body: bytes, signature: bytes) -> None:
        """Check that a record is its origin's; certificates and revocations are for `learn` and `revoke`.

        Raises: UntrustedError: it is not, or that cannot be known.
        """

    def learn(self, certificate: bytes) -> Certified:
        """Take a certificate, DER, that the mesh floods; one that is known already is taken as well.

        Raises: UntrustedError: not of this mesh, expired, revoked, or not readable.
        """

    def forget(self, key_id: bytes) -> None:
        """A certificate that nobody needs any more; one that is not known is ignored."""

    def revoke(self, revocations: bytes) -> Revoked:
        """Take an authority's list of revocations, DER, if it is newer than the one that is known.

        What `verify` has passed before may be refused from now on: records that are kept are verified again.

        Raises: UntrustedError: of no authority of this mesh, or not readable.
        """


class Unsigned:
    """Both of them in a mesh without signatures (`insecure = true`): everybody is believed, so it is for trying out."""

    NOTHING: Final = (b"", b"")

    def sign(self, kind: int, body: bytes) -> tuple[bytes, bytes]:
        """See `Signer`."""
        return self.NOTHING

    def records(self) -> tuple[SignedRecord, ...]:
        """See `Signer`."""
        return ()

    def verify(self, origin: str, kind: int, key_id: bytes, body: bytes, signature: bytes) -> None:
        """See `Verifier`; who signs believes in another mesh than this."""
        if (key_id, signature) != self.NOTHING:
            raise UntrustedError("signed in an unsigned mesh")

    def learn(self, certificate: bytes) -> Certified:
        """See `Verifier`."""
        raise UntrustedError("certificate in an unsigned mesh")

    def forget(self, key_id: bytes) -> None:
        """See `Verifier`."""

    def revoke(self, revocations: bytes) -> Revoked:
        """See `Verifier`."""
        raise UntrustedError("revocations in an unsigned mesh")
