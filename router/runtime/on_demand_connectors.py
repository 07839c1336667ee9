"""Connectors that nobody configured: made when something is elsewhere, and ended when nothing needs them any more."""

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
"""Makes a connector and has it run. With whom certificates have to name."""


class OnDemand:
    """The connectors of one router that were made on demand."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._over = False
        self._connectors: dict[str, Connector] = {}

    def __iter__(self) -> Iterator[Connector]:
        """Those that are there, in the order in which they were made."""
        return iter(tuple(self._connectors.values()))

    def connect(self, config: ConnectorConfig, certified: str | None) -> None:
        """Connect to a place, until `disconnect`. Args: certified: whom certificates have to name; None: its host."""
        if self._over:
            return
        try:
            credentials = ConnectorCredentials.load(config)
        except ConfigError as error:  # a file that was there when the router began
            log.error("connector credentials unreadable", connector=config.name, reason=str(error))
            return
        self._connectors[config.name] = self._start(config, credentials, certified)

    def disconnect(self, name: str) -> None:
        """Connect there no more."""
        connector = self._connectors.pop(name, None)
        if connector is not None:
            connector.stop()

    def stop(self) -> None:
        """End all of them: the router is about to end."""
        self._over = True
        for connector in self:
            connector.stop()
