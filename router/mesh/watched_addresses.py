"""Addresses that tables of anonymous senders have routes of, as far as other routers may get consumers of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.router.kernel import KernelRouter


class WatchedAddresses:
    """The addresses, without a container, that one router alone has consumers of: this one or another.

    Once that changes, all routes by address end. So each watched address is one that a router has consumers of. An
    address that is not watched is in no valid table, so its changes end no routes.
    """

    def __init__(self, kernel: KernelRouter) -> None:
        self._kernel = kernel
        self._watched: set[tuple[str, str]] = set()

    def watch(self, tenant: str, name: str) -> None:
        """Note that a table gets a route of an address."""
        self._watched.add((tenant, name))

    def changed(self, tenant: str, name: str) -> None:
        """End all routes by address, if there is one of this address: its messages may lead to another node now."""
        if (tenant, name) in self._watched:
            self.end_routes()

    def end_routes(self) -> None:
        """End all routes by address: each of them is decided again."""
        self._kernel.epoch += 1
        self._watched.clear()
