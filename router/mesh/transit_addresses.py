"""Addresses whose messages from anonymous senders leave by a transit lane, by routes that the kernel keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.router.kernel import KernelRouter


class TransitAddresses:
    """The addresses, without a container, that one other router alone has consumers of.

    Once that changes, all routes by address end. So each watched address is one that other routers advertise.
    """

    def __init__(self, kernel: KernelRouter) -> None:
        self._kernel = kernel
        self._watched: set[tuple[str, str]] = set()

    def watch(self, tenant: str, name: str) -> None:
        """Note that routes of an address lead to a transit lane."""
        self._watched.add((tenant, name))

    def is_watched(self, tenant: str, name: str) -> bool:
        """Return whether routes of an address lead to a transit lane."""
        return (tenant, name) in self._watched

    def end_routes(self) -> None:
        """End all routes by address: each of them is decided again."""
        self._kernel.epoch += 1
        self._watched.clear()
