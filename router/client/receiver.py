"""`Receiver`: deliveries come in, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.client.links.receiver_link import ReceiverLink
from amqpmesh.router.client.public_link import PublicLink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, Value


class Receiver(PublicLink[ReceiverLink]):
    """A link to receive from: `async for delivery in receiver`. Several tasks may share it."""

    __slots__ = ()

    @property
    def filter(self) -> Mapping[Symbol, Value]:
        """The filters that the peer applies (§3.5.8)."""
        return self._link.filter

    @property
    def undecided(self) -> int:
        """Deliveries that have begun to come and are not decided."""
        return self._link.undecided

    def __aiter__(self) -> Self:
        """Deliveries, until the receiver is left or fails."""
        return self

    async def __anext__(self) -> Delivery:
        """As `receive`; where that says that the receiver was left, the iteration ends."""
        try:
            return await self.receive()
        except CommandError:
            if self._link.was_left:
                raise StopAsyncIteration from None
            raise

    async def receive(self) -> Delivery:
        """The next delivery, waiting for one if need be. What is no message is rejected, and never seen here;
        nor is what is of another message-format than 0, unless the receiver was made with `any_format`.

        Raises: LinkDetachedError, ConnectionClosedError: the link is over. CommandError: it was left. Cancelled,
            nothing was taken.
        """
        return Delivery(self._link, await self._link.receive())

    def flow(self, credit: int) -> None:
        """Give the peer credit for so many deliveries more (§2.6.7).

        Whoever waits in `drain` waits no longer.
        Raises: CommandError: the receiver gives its credit itself, or is over, or that is too much.
        """
        self._link.flow(credit)

    async def drain(self) -> None:
        """Have the credit used up: what the peer has it sends, then there is none left (§2.6.7).

        What came is to be received as ever. Raises: CommandError: as `flow`. LinkDetachedError, ConnectionClosedError.
        """
        await self._link.drain()
