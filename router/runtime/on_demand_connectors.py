"""Connectors made on demand: a node of another container needs them, and they end when nothing needs them any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.credentials import ConnectorCredentials

if TYPE_CHECKING:
    from amqpmesh.router.config.file import ConnectorConfig
    from amqpmesh.router.runtime.connectors import Connector

log = event_log.EventLog("amqpmesh.io")

Start = Callable[["ConnectorConfig", ConnectorCredentials, str | None], "Connector"]
"""A function that makes a connector and runs it; the last argument is the name that certificates must have."""


class OnDemand:
    """The on-demand connectors of one router."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._over = False
        self._connectors: dict[str, Connector] = {}

    def __iter__(self) -> Iterator[Connector]:
        """Iterate over the connectors, oldest first."""
        return iter(tuple(self._connectors.values()))

    def connect(self, config: ConnectorConfig, certified: str | None) -> None:
        """Connect to a place until `disconnect`. Args: certified: the name that certificates must have; None:
        the host.
        """
        if self._over:
            return
        try:
            credentials = ConnectorCredentials.load(config)
        except ConfigError as error:  # the file was valid when the router started
            log.error("connector credentials unreadable", connector=config.name, reason=str(error))
            return
        self._connectors[config.name] = self._start(config, credentials, certified)

    def disconnect(self, name: str) -> None:
        """End the connector of this name."""
        connector = self._connectors.pop(name, None)
        if connector is not None:
            connector.stop()

    def stop(self) -> None:
        """End all connectors: the router is about to end."""
        self._over = True
        for connector in self:
            connector.stop()
