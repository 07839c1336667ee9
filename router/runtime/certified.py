"""Membership of a mesh by certificates: loading and reloading the files, and recognizing neighbours by their
certificates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.runtime.membership import Membership
from amqpmesh.topology.certificates import CertificateError
from amqpmesh.topology.signing import UntrustedError
from amqpmesh.topology.trust import Identity, Trust
from amqpmesh.topology.workers import covers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from amqpmesh.router.config.file import MeshConfig
    from amqpmesh.router.mesh.member import MeshMember


class CertifiedMembership(Membership):
    """A router's own certificate, and its trust in the routers that the mesh's authority has certified."""

    def __init__(
        self, router: str, config: MeshConfig, clock: Callable[[], float], certificate: Path, key: Path, trust: Path
    ) -> None:
        """Read the files.

        Args: clock: seconds since 1970, for the validity of certificates. certificate, key, trust: as configured.
        Raises: ConfigError: a file cannot be read, has the wrong content, or is another router's.
        """
        super().__init__(router, config, clock)
        self._files = certificate, key, trust
        try:
            self._trust = Trust.load(_read(trust, "mesh.trust"), clock)
        except CertificateError as error:
            raise ConfigError(str(trust), "mesh.trust", str(error)) from None
        self._identity = self._identified()
        self.signer, self.verifier, self.recognizer = self._identity, self._trust, self

    def _identified(self) -> Identity:
        certificate, key, _ = self._files
        try:
            identity = Identity.load(_read(certificate, "mesh.certificate"), _read(key, "mesh.key"), self._trust)
        except CertificateError as error:
            raise ConfigError(str(certificate), "mesh.certificate", str(error)) from None
        if not covers(identity.router, self._router):
            reason = f"is the certificate of {identity.router!r}, and this is {self._router!r}"
            raise ConfigError(str(certificate), "mesh.certificate", reason)
        return identity

    def refusal(self, certificate: bytes | None, router: str) -> str | None:
        """Return the reason why a peer is not the router that it claims to be; None: it is. Args: certificate: DER;
        None: it has none.
        """
        return _refusal(certificate, router, self._trust.router_of)

    def expulsion(self, certificate: bytes | None, router: str) -> str | None:
        """Return the reason to part from a neighbour that was accepted before; None: it can stay.

        Its certificate may have been renewed or revoked since.
        """
        return _refusal(certificate, router, self._trust.still_router_of)

    def expires_in(self) -> float | None:
        """Return the seconds until this router's certificate expires, below 0 after that; None: it need not be renewed
        yet.
        """
        now = self._clock()
        return self._identity.expires_at - now if now >= self._identity.warn_at else None

    def reload(self, mesh: MeshMember, now: float) -> None:
        """Read the files again: a new certificate, other authorities, a newer list of revocations.

        Raises: ConfigError: a file is not valid; then nothing has changed.
        """
        CertifiedMembership(self._router, self._config, self._clock, *self._files)  # raises if any file is not valid
        self._trust.reload(_read(self._files[2], "mesh.trust"))
        self.signer = self._identity = self._identified()
        mesh.renew(self._identity, now)


def _refusal(certificate: bytes | None, router: str, certified_by: Callable[[bytes], str]) -> str | None:
    if certificate is None:
        return "it has shown no certificate"
    try:
        certified = certified_by(certificate)
    except UntrustedError as error:
        return error.reason
    return None if covers(certified, router) else f"its certificate is that of {certified!r}"


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), key, error.strerror or str(error)) from None
