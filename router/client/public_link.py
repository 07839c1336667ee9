"""The common base of `Sender` and `Receiver`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from amqpmesh.router.client.links.link import ClientLink

if TYPE_CHECKING:
    from types import TracebackType

L = TypeVar("L", bound=ClientLink)


class PublicLink(Generic[L]):
    """A link as a program uses it: `async with` attaches and detaches it."""

    __slots__ = ("__weakref__", "_link")

    def __init__(self, link: L) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._link.described()}>"

    async def __aenter__(self) -> Self:
        """Attach, and wait for the peer's attach.

        Raises: LinkDetachedError: the peer refused the link. ConnectionClosedError: there is no connection, and none
            will follow. CommandError: the link was entered before.
        """
        await self._link.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Detach. The peer has one second to answer."""
        await self._link.leave(clean=error is None)

    @property
    def name(self) -> str:
        """The link's name (§2.6.1)."""
        return self._link.name

    @property
    def address(self) -> str | None:
        """The address that the peer attached; before that, the address that was asked for.

        A dynamic node has the address that the peer chose for it.
        """
        return self._link.address

    @property
    def is_attached(self) -> bool:
        """True if both ends have attached. False while there is no connection."""
        return self._link.is_attached

    @property
    def credit(self) -> int:
        """The number of deliveries that the sending end may send now, as known at this end (link-credit, §2.6.7)."""
        return self._link.credit
