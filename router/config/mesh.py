"""The mesh of a router: the trust between its routers, and the workers that are routers of their own."""

from pathlib import Path
from typing import ClassVar

from amqpmesh.router.config.tables import Effect, Rule, Table, setting, table

MAX_ORIGINS = 100_000
INSECURE_ORIGINS = 1_000
"""Routers that are remembered, unless the configuration sets the number."""


@table
class MeshConfig(Table):
    """Membership in a mesh: this router's credentials, its trust, its timing, and the limits of other routers.

    All files are PEM.
    """

    EFFECT = Effect.RESTART
    RESTART = "the other routers of the mesh know the router by it"

    certificate: Path | None = setting(default=None)
    key: Path | None = setting(default=None)
    trust: Path | None = setting(default=None)
    insecure: bool = setting(default=False)
    hello: float = setting(default=1.0, low=0.01, high=3600.0)
    hold: float = setting(default=3.0, low=0.02, high=3600.0)
    lane_idle: float = setting(default=10.0, low=0.0, high=3600.0)
    resume: int = setting(default=0, low=0, high=3600)
    lane_window: int = setting(default=8192, low=0, high=2**31 - 1)
    bulk_window: int = setting(default=64, low=1, high=2**31 - 1)
    transit_window: int = setting(default=512, low=1, high=2**31 - 1)
    output_backlog: int = setting(default=2**20, low=1)
    tenant_connections: int = setting(default=8, low=0, high=64)
    outposts: int = setting(default=10_000, low=0)
    # Limits of other routers, by the topology's names for them.
    link_rate: float = setting(default=5.0, low=0.1, high=1e6)
    link_burst: int = setting(default=40, low=4)
    address_rate: int = setting(default=2**20, low=2**12)
    address_burst: int = setting(default=2**24, low=2**16)
    max_origins: int | None = setting(default=None, low=1)
    max_origin_octets: int = setting(default=2**24, low=2**16)
    max_octets: int = setting(default=2**28, low=2**20)
    max_waiting: int = setting(default=256, low=1)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "insecure",
            "excludes certificate, key and trust",
            lambda c: c.insecure and (c.certificate or c.key or c.trust) is not None,
        ),
        Rule(
            "certificate",
            "is required, with key and trust; `amqpmesh ca issue` makes them. On loopback insecure = true needs none",
            lambda c: not c.insecure and c.certificate is None,
        ),
        Rule("key", "is required with certificate", lambda c: not c.insecure and c.key is None),
        Rule(
            "trust",
            "is required: the certificate of the mesh's authority",
            lambda c: not c.insecure and c.trust is None,
        ),
        Rule("hold", "must be more than hello, the time between two signs of life", lambda c: c.hold <= c.hello),
    )

    @property
    def origins(self) -> int:
        """The most routers of the mesh that are remembered: few in an insecure mesh, where any peer can invent them."""
        if self.max_origins is not None:
            return self.max_origins
        return INSECURE_ORIGINS if self.insecure else MAX_ORIGINS


@table
class WorkerConfig(Table):
    """One of several worker processes of a router. It is not in a file: `amqpmesh run --workers` sets it.

    The id of the worker is `NAME.NUMBER`. It uses the certificate of `NAME`, if there is one.
    """

    name: str = setting()
    number: int = setting(low=1)
    #: The number of workers.
    count: int = setting(default=1, low=1)
    #: The folder of the workers' Unix sockets; no other user can read it.
    folder: Path = setting()
