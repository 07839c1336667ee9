"""The routers of a simulated mesh: real ones that can be frozen, and whose connectors come and go."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amqpmesh.router.runtime.connectors import Connector
from amqpmesh.router.runtime.credentials import ConnectorCredentials, membership
from amqpmesh.router.runtime.driver import Driver
from amqpmesh.router.runtime.membership import Membership
from amqpmesh.router.runtime.router import Router
from amqpmesh.topology.simulation.log import log_as

if TYPE_CHECKING:
    from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.mesh.member import MeshMember
    from amqpmesh.topology.simulation.network import Host


class HostedDriver(Driver):
    """The driver of a router, which stops while its host is frozen."""

    def __init__(self, core: Core, host: Host) -> None:
        super().__init__(core)
        self._host = host

    def settle(self, seconds: float = math.inf) -> bool:
        """Send all output; a frozen router sends nothing."""
        return not self._host.frozen and super().settle(seconds)

    def host_changed(self) -> None:
        """Note that the host is frozen, or no longer frozen: then late timers fire."""
        self._alarm.deadline = self._next_timer()
        self.settle()

    def _next_timer(self) -> float:
        return math.inf if self._host.frozen else super()._next_timer()


class HostedRouter(Router):
    """A router on a host of a simulated network."""

    _driver: HostedDriver

    def __init__(self, host: Host, config: RouterConfig, wall_clock: Callable[[], float], **means: Any) -> None:
        """Args: wall_clock: of the host, seconds since 1970. means: other arguments of `Router`, such as `backoff`."""
        super().__init__(config, **means)
        self._host = host
        self._wall_clock = wall_clock

    def _drive(self, core: Core) -> Driver:
        return HostedDriver(core, self._host)

    def _member(self) -> Membership | None:
        return membership(self.config, self._wall_clock)

    def _wall(self) -> float:
        return self._wall_clock()

    def host_changed(self) -> None:
        """Note that the host is frozen, or no longer frozen."""
        self._driver.host_changed()

    @property
    def mesh(self) -> MeshMember:
        """The router's membership in the mesh."""
        mesh = self._started().mesh
        assert mesh is not None, "every router of a simulated mesh is one of a mesh"
        return mesh

    @property
    def consumed(self) -> set[tuple[str, str]]:
        """The addresses with consumers that it advertises, each with its tenant."""
        found = self._started().context.nodes.values()
        return {(each.tenant, each.name) for each in found if each.is_advertised}

    def add_connector(self, config: ConnectorConfig) -> None:
        """Connect to a place from now on. Raises: ConfigError: a file that the connector names is not valid."""
        connector = Connector(
            config,
            ConnectorCredentials.load(config, self.config.mesh),
            self._network,
            driver=self._driver,
            transport=self._transport,
            serve=self._serve_opened,
            run_task=self._nursery.start_soon,
        )
        self._edge.connectors.append(connector)
        core = self._started()
        # `$management` can change its cost, as that of other connectors.
        core.context.config = replace(core.context.config, connectors=(*core.context.config.connectors, config))
        self._nursery.start_soon(self._run_connector, connector)

    async def _run_connector(self, connector: Connector) -> None:
        log_as(self.id)
        await connector.run()

    def remove_connector(self, name: str) -> None:
        """Connect to a place no more. A present connection stays until it is lost."""
        for connector in self.connectors:
            if connector.name == name:
                connector.stop()
                self._edge.connectors.remove(connector)
        core = self._started()
        core.context.config = replace(
            core.context.config, connectors=tuple(each for each in core.context.config.connectors if each.name != name)
        )

    def set_cost(self, config: ConnectorConfig | ListenerConfig, cost: int) -> None:
        """Set the cost of the connections of a connector or a listener."""
        self.mesh.set_cost_of(config, cost)
        self._driver.settle()
