"""Membership of a mesh without certificates: settings for the topology, and no signatures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from amqpmesh.router.mesh.member import MeshMember
from amqpmesh.topology.linkstate import Topology
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.signing import Signer, Unsigned, Verifier
from amqpmesh.topology.vouching import Vouching

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.config.file import MeshConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.mesh.member import Recognizer


#: Settings that the configuration and the topology call by the same names.
_SETTINGS: Final = (
    "hello", "hold", "link_rate", "link_burst", "address_rate", "address_burst", "max_origin_octets", "max_octets",
    "max_waiting",
)  # fmt: skip


class Membership:
    """A router's membership of a mesh without certificates: it signs nothing, and trusts every router."""

    def __init__(self, router: str, config: MeshConfig, clock: Callable[[], float] = time.time) -> None:
        """Args: clock: seconds since 1970."""
        self._router = router
        self._config = config
        self._clock = clock
        self.signer: Signer = Unsigned()
        self.verifier: Verifier = Unsigned()
        self.recognizer: Recognizer | None = None
        """Recognizes routers by their certificates; None: the mesh has no certificates."""

    def join(self, core: Core, now: float, epoch: int | None = None) -> MeshMember:
        """Join the mesh. Args: epoch: greater than in the router's last life; None: from the wall clock."""
        if epoch is None:
            epoch = int(self._clock() * 1000)
        settings = Settings(
            max_origins=self._config.origins, **{name: getattr(self._config, name) for name in _SETTINGS}
        )
        topology = Topology(self._router, settings, self.signer, self.verifier, epoch, now)
        if self.recognizer is not None:  # a mesh without certificates vouches for nobody
            core.context.vouching = Vouching(topology, self.signer, self.verifier)
        return MeshMember(core.context, core.remote_nodes, topology, self.recognizer)

    def reload(self, mesh: MeshMember, now: float) -> None:
        """Read the files again, if there are any: a new certificate, other authorities, a newer list of revocations.

        Raises: ConfigError: a file is not valid; then nothing has changed.
        """
