"""How a router becomes one of a mesh: its certificate read, whom it believes, and this life of it begun."""

import time
from collections.abc import Callable
from pathlib import Path

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config import MeshConfig, RouterConfig
from amqpmesh.router.core import Core
from amqpmesh.router.mesh import Mesh
from amqpmesh.topology.certificates import CertificateError, covers
from amqpmesh.topology.protocol import Topology
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.signing import Signer, Unsigned, UntrustedError, Verifier
from amqpmesh.topology.trust import Identity, Trust


class Membership:
    """What a router shows the mesh and whom it believes there."""

    def __init__(self, router: str, config: MeshConfig, clock: Callable[[], float] = time.time) -> None:
        """Read the files.

        Args: clock: seconds since 1970, by which certificates are valid.
        Raises: ConfigError: one cannot be read, is not what it should be, or is another router's.
        """
        self._router = router
        self._config = config
        self._clock = clock
        self._trust: Trust | None = None
        self.signer: Signer = Unsigned()
        self.verifier: Verifier = Unsigned()
        if config.certificate is not None and config.key is not None and config.trust is not None:
            try:
                trust = Trust.load(_read(config.trust, "mesh.trust"), clock)
            except CertificateError as error:
                raise ConfigError(str(config.trust), "mesh.trust", str(error)) from None
            self._trust = trust
            self.verifier = trust
            self.signer = self._identity(trust, config.certificate, config.key)

    def _identity(self, trust: Trust, certificate: Path, key: Path) -> Identity:
        try:
            identity = Identity.load(_read(certificate, "mesh.certificate"), _read(key, "mesh.key"), trust)
        except CertificateError as error:
            raise ConfigError(str(certificate), "mesh.certificate", str(error)) from None
        if not covers(identity.router, self._router):
            reason = f"is the certificate of {identity.router!r}, and this is {self._router!r}"
            raise ConfigError(str(certificate), "mesh.certificate", reason)
        return identity

    def refusal(self, certificate: bytes | None, router: str) -> str | None:
        """Why a peer is not the router that it says it is; None: it is. Args: certificate: DER; None: it has none."""
        return self._refusal(certificate, router, Trust.router_of)

    def parting(self, certificate: bytes | None, router: str) -> str | None:
        """The same of a neighbour, after a while: it may have another certificate by now."""
        return self._refusal(certificate, router, Trust.still_router_of)

    def _refusal(self, certificate: bytes | None, router: str, of: Callable[[Trust, bytes], str]) -> str | None:
        if self._trust is None:
            return None
        if certificate is None:
            return "it has shown no certificate"
        try:
            certified = of(self._trust, certificate)
        except UntrustedError as error:
            return error.reason
        return None if covers(certified, router) else f"its certificate is that of {certified!r}"

    def expires_in(self) -> float | None:
        """Seconds that are left of this router's certificate, once it should have been renewed; None: it is new."""
        if not isinstance(self.signer, Identity):
            return None
        now = self._clock()
        return self.signer.expires_at - now if now >= self.signer.warn_at else None

    def join(self, core: Core, now: float, epoch: int | None = None) -> Mesh:
        """Begin a life in the mesh. Args: epoch: greater than in the life before; None: by the wall clock."""
        if epoch is None:
            epoch = int(self._clock() * 1000)
        settings = Settings(hello=self._config.hello, hold=self._config.hold)
        topology = Topology(self._router, settings, self.signer, self.verifier, epoch, now)
        return Mesh(core, topology, self if self._trust is not None else None)

    def reload(self, mesh: Mesh, now: float) -> None:
        """Read the files again: a new certificate, other authorities, a newer list of revocations.

        Raises: ConfigError: one of them is no good; then nothing has changed.
        """
        Membership(self._router, self._config, self._clock)  # whether all of them are good
        config = self._config
        if self._trust is None or config.trust is None or config.certificate is None or config.key is None:
            return
        self._trust.reload(_read(config.trust, "mesh.trust"))
        self.signer = self._identity(self._trust, config.certificate, config.key)
        mesh.renew(self.signer, now)


def membership(config: RouterConfig, clock: Callable[[], float] = time.time) -> Membership | None:
    """What the configuration says of the mesh; None: the router is in none. Args, Raises: as `Membership`."""
    return None if config.mesh is None else Membership(config.id, config.mesh, clock)


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), key, error.strerror or str(error)) from None
