"""What `Sender` and `Receiver` have in common: a name, and a life that `async with` begins and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from amqpmesh.router.client.links.link import ClientLink

if TYPE_CHECKING:
    from types import TracebackType

L = TypeVar("L", bound=ClientLink)


class PublicLink(Generic[L]):
    """A link as programs see it. The link's end, which the peer talks to, is behind it."""

    __slots__ = ("__weakref__", "_link")

    def __init__(self, link: L) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._link.described()}>"

    async def __aenter__(self) -> Self:
        """Attach, and wait for the peer's attach.

        Raises: LinkDetachedError: the peer refused. ConnectionClosedError: there is no connection, and none will come.
            CommandError: it was entered before.
        """
        await self._link.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Detach; the peer has a second to answer."""
        await self._link.leave(clean=error is None)

    @property
    def name(self) -> str:
        """The link's name (§2.6.1)."""
        return self._link.name

    @property
    def address(self) -> str | None:
        """What the peer attached: of a dynamic node, the address that it was given; before that, what was asked for."""
        return self._link.address

    @property
    def is_attached(self) -> bool:
        """Whether the peer has attached, too; not, while there is no connection."""
        return self._link.is_attached

    @property
    def credit(self) -> int:
        """Deliveries that the sending end may send now, as far as it is known here (link-credit, §2.6.7)."""
        return self._link.credit
