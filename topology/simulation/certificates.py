"""The certificates of a simulated mesh: its authority, issued and revoked certificates, in files as in production."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from amqpmesh.topology.authority import Authority, certificate_pem, key_pem, revocations_pem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from amqpmesh.router.config.file import MeshConfig
    from amqpmesh.topology.certificates import RouterCertificate
    from amqpmesh.topology.revocations import Revocations

MESH: Final = "simulated"
"""The name of the mesh."""


class CertificateFiles:
    """The certificates of a simulated mesh: a folder with the certificate, the key and the trust file of
    each router."""

    def __init__(self, folder: Path, days: float, now: float) -> None:
        """Args: days: the default lifetime of certificates. now: seconds since 1970, as in all methods."""
        self._folder = folder
        self._days = days
        self._authority = Authority.create(MESH, now)
        self._issued: dict[str, list[RouterCertificate]] = {}
        self._revoked: Revocations | None = None

    def __contains__(self, router: str) -> bool:
        """Return True if a router has a certificate."""
        return router in self._issued

    def membership(self, router: str, config: MeshConfig) -> MeshConfig:
        """Return a mesh configuration with a router's files."""
        return replace(
            config,
            insecure=False,
            certificate=self._folder / f"{router}.pem",
            key=self._folder / f"{router}.key",
            trust=self._folder / f"{router}-trust.pem",
        )

    def issue(self, router: str, now: float, days: float | None = None) -> None:
        """Give a router a new key and certificate. Raises: CertificateError."""
        key = Ed25519PrivateKey.generate()
        certificate = self._authority.issue(router, key.public_key(), now, self._days if days is None else days)
        (self._folder / f"{router}.pem").write_bytes(certificate_pem(certificate))
        (self._folder / f"{router}.key").write_bytes(key_pem(key))
        if router not in self:
            self.tell(router)
        self._issued.setdefault(router, []).append(certificate)

    def tell(self, router: str) -> None:
        """Give a router the authority's certificate and its present list of revocations."""
        revoked = b"" if self._revoked is None else revocations_pem(self._revoked)
        (self._folder / f"{router}-trust.pem").write_bytes(certificate_pem(self._authority.certificate) + revoked)

    def revoke(self, routers: Iterable[str], now: float) -> None:
        """Revoke all certificates that these routers have been given so far."""
        serials = {each.serial for router in routers for each in self._issued[router]}
        before = self._revoked
        if before is not None:
            serials |= before.serials
        self._revoked = self._authority.revoke(serials, 1 if before is None else before.number + 1, now)
