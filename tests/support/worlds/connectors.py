"""Routers with connectors whose pauses have no random part."""

from __future__ import annotations

from typing import Any

from amqpmesh.router.config.file import ConnectorConfig
from amqpmesh.router.io.dialing import Backoff
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.statistics.configured import ConnectorStatistics
from tests.support.peers.library_client import URL, Roads


class Even(Backoff):
    """Pauses between attempts, without their random part."""

    def pause(self, row: int) -> float:
        """Return the longest pause, in seconds, before attempt `row`."""
        return min(self.longest, self.first * 2.0 ** (row - 1))


def container(*urls: str, **settings: Any) -> ConnectorConfig:
    """Return the connector `broker` to another container."""
    return ConnectorConfig(url=urls or URL, name="broker", role="container", **settings)


def connecting(roads: Roads, *connectors: ConnectorConfig, **settings: Any) -> Router:
    """Return a router whose connectors use these roads."""
    return Router(connectors=connectors or [container()], open_stream=roads.open, backoff=Even(), **settings)


def told(router: Router) -> ConnectorStatistics:
    """Return the statistics of the only connector."""
    (connector,) = router.statistics().connectors
    return connector
