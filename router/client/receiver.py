"""`Receiver`: receives deliveries one by one."""

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
        """The number of deliveries that have arrived, in part or whole, and are not decided."""
        return self._link.undecided

    def __aiter__(self) -> Self:
        """Iterate over the deliveries, until the program leaves the receiver or the link fails."""
        return self

    async def __anext__(self) -> Delivery:
        """Return the next delivery, as `receive` does. The iteration ends when the program has left the receiver."""
        try:
            return await self.receive()
        except CommandError:
            if self._link.was_left:
                raise StopAsyncIteration from None
            raise

    async def receive(self) -> Delivery:
        """Return the next delivery; wait for one if there is none.

        A delivery that is no valid message is rejected and not returned. So is one of a message-format other than 0,
        unless the receiver was made with `any_format`. If this call is cancelled, no delivery is taken.

        Raises: LinkDetachedError, ConnectionClosedError: the link is over. CommandError: the program has left the
            receiver.
        """
        return Delivery(self._link, await self._link.receive())

    def receive_nowait(self) -> Delivery:
        """Return the next delivery, as `receive` does, if there is one that no waiting task gets.

        Raises: trio.WouldBlock: there is none. Others as `receive`.
        """
        return Delivery(self._link, self._link.receive_nowait())

    def flow(self, credit: int) -> None:
        """Give the peer credit for this many more deliveries (§2.6.7). A task that waits in `drain` stops waiting.

        Raises: CommandError: the receiver manages its credit itself, or is over, or the credit would be too large.
        """
        self._link.flow(credit)

    async def drain(self) -> None:
        """Make the peer use up its credit: it sends what it has, and discards the rest of the credit (§2.6.7).

        Deliveries that arrive meanwhile are received as usual.
        Raises: CommandError: as `flow`. LinkDetachedError, ConnectionClosedError: the link is over.
        """
        await self._link.drain()
