"""Connections for single tenants, which a connector opens beside its connection to a neighbour."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.io.dialing import LASTING
from amqpmesh.router.logs import event_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from amqpmesh.router.io.dialing import Backoff
    from amqpmesh.router.mesh.member import MeshMember
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.driver import Driver

log = event_log.EventLog("amqpmesh.io")

HEAD_START: Final = 1.0
"""Seconds that the connection of a connector waits for these. Lanes that are attached before move later, and then new
deliveries can overtake those on the way.
"""


class TenantConnectors:
    """The connections for single tenants beside one connection of a connector, as long as that one lasts."""

    def __init__(
        self,
        connector: str,
        mesh: MeshMember,
        driver: Driver,
        backoff: Backoff,
        start: Callable[[Callable[[], Awaitable[None]]], object],
        connect: Callable[[str, Callable[[ConnectionRecord], None]], Awaitable[str]],
    ) -> None:
        """Args: connector: its name, for logs. start: runs a task that ends with the router. connect: opens a
        connection for a tenant, reports its record, and serves it to its end; returns the reason of the end.
        """
        self._connector = connector
        self._mesh = mesh
        self._driver = driver
        self._backoff = backoff
        self._start = start
        self._connect = connect
        self._scopes: dict[str, trio.CancelScope] = {}
        self._records: dict[str, ConnectionRecord] = {}
        #: Tenants whose connection was tried.
        self._tried: set[str] = set()
        self._is_over = False
        mesh.tenant_connections.followers.append(self.follow)

    def follow(self) -> None:
        """Have a connection for each tenant that is to have one now, and for no other."""
        if self._is_over:
            return
        tenants = self._mesh.tenant_connections.tenants
        for tenant in self._scopes.keys() - set(tenants):
            self._end(tenant, "the tenant has no connection of its own any more")
        for tenant in tenants:
            if tenant not in self._scopes:
                scope = self._scopes[tenant] = trio.CancelScope()
                self._start(partial(self._run, tenant, scope))

    async def until_open(self) -> None:
        """Wait until each of them is open, or cannot be opened, for `HEAD_START` at most."""
        if self._scopes:
            with trio.move_on_after(HEAD_START):
                await self._driver.until(lambda: all(map(self._is_settled, self._scopes)))

    def routers(self) -> list[str]:
        """Return the routers that they lead to, once each, oldest connection first."""
        opened = (each.peer.container_id for each in self._records.values() if each.engine.remote is not None)
        return list(dict.fromkeys(opened))

    def connect_no_more(self) -> None:
        """Open no more of them. Open ones continue until they end."""
        self._is_over = True
        for scope in self._scopes.values():
            scope.cancel()

    def stop(self) -> None:
        """Close all of them, and open no more."""
        self._is_over = True
        self._mesh.tenant_connections.followers.remove(self.follow)
        for tenant in tuple(self._scopes):
            self._end(tenant, "the connection between the routers has ended")

    def _is_settled(self, tenant: str) -> bool:
        record = self._records.get(tenant)
        return tenant in self._tried or (record is not None and record.engine.remote is not None)

    def _end(self, tenant: str, reason: str) -> None:
        self._scopes.pop(tenant).cancel()
        record = self._records.get(tenant)
        if record is not None:
            core = self._driver.core
            core.change(partial(self._mesh.tenant_connections.close, record, reason), trio.current_time())
            self._driver.settle()

    async def _run(self, tenant: str, scope: trio.CancelScope) -> None:
        """Connect, serve, and reconnect until the end. Raises: nothing."""
        failures = 0
        with scope:
            while True:
                began = trio.current_time()
                try:
                    why = await self._connect(tenant, partial(self._records.__setitem__, tenant))
                except trio.TooSlowError:
                    why = "no connection in time"
                except (OSError, trio.BrokenResourceError) as failure:
                    why = str(failure)
                except Exception as fault:
                    log.error("internal error", exception=fault, connector=self._connector, tenant=tenant)
                    why = "a fault of this router"
                finally:
                    record = self._records.pop(tenant, None)
                    self._tried.add(tenant)
                was_open = record is not None and record.engine.remote is not None
                if was_open and trio.current_time() - began >= LASTING:
                    failures = 0
                failures += 1
                pause = self._backoff.pause(failures)
                log.info(
                    "tenant connection retrying",
                    connector=self._connector,
                    tenant=tenant,
                    reason=why,
                    seconds=round(pause, 3),
                )
                await trio.sleep(pause)
