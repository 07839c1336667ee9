"""Connectors that nobody configured: made when something is elsewhere, and ended when nothing needs them any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from amqpmesh.router import logs
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.io.credentials import ConnectorCredentials

if TYPE_CHECKING:
    from amqpmesh.router.config import ConnectorConfig
    from amqpmesh.router.io.connectors import Connector

log = logs.EventLog("amqpmesh.io")

Make = Callable[["ConnectorConfig", ConnectorCredentials, str | None], "Connector | None"]
"""Makes a connector and has it run; None: the router is about to end. With whom certificates have to name."""


class OnDemand:
    """The connectors of one router that were made on demand."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._connectors: dict[str, Connector] = {}

    def __iter__(self) -> Iterator[Connector]:
        """Those that are there, in the order in which they were made."""
        return iter(tuple(self._connectors.values()))

    def connect(self, config: ConnectorConfig, certified: str | None) -> None:
        """Connect to a place, until `disconnect`. Args: certified: whom certificates have to name; None: its host."""
        try:
            credentials = ConnectorCredentials.load(config)
        except ConfigError as error:  # a file that was there when the router began
            log.error("connector without credentials", connector=config.name, reason=str(error))
            return
        connector = self._make(config, credentials, certified)
        if connector is not None:
            self._connectors[config.name] = connector

    def disconnect(self, name: str) -> None:
        """Connect there no more."""
        connector = self._connectors.pop(name, None)
        if connector is not None:
            connector.stop()

    def stop(self) -> None:
        """End all of them."""
        for connector in self:
            connector.stop()
