"""`Sender`: messages go out, and their outcomes come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from amqpmesh.router.amqp.delivery_states import Accepted
from amqpmesh.router.io.client.attached import Attached
from amqpmesh.router.io.client.sender_end import SenderEnd
from amqpmesh.router.io.client.sent import Sent
from amqpmesh.router.message import encode_message
from amqpmesh.router.outcomes import outcome_error

if TYPE_CHECKING:
    from amqpmesh.router.amqp.types import Value
    from amqpmesh.router.message import Message


class Sender(Attached[SenderEnd]):
    """A link to send on. Several tasks may share it; the order is that of their calls."""

    __slots__ = ()

    @property
    def waiting(self) -> int:
        """Deliveries that wait for credit, or for the peer's window."""
        return self._end.waiting

    @property
    def unsettled(self) -> int:
        """Deliveries that were sent and have no outcome yet."""
        return self._end.unsettled

    async def send(self, message: Message | Value, *, settled: bool = False) -> None:
        """Send a message, and wait until it is accepted.

        Args: message: a `Message`, or the body of one. settled: at most once: no outcome is waited for.
        Raises: RejectedError, ReleasedError, ModifiedError: it was not accepted. InDoubtError: the link was lost before
            the outcome came. LinkDetachedError, ConnectionClosedError: the link is over, and it was not sent.
            CommandError: it cannot be sent: not a message, or larger than the peer takes. Cancelled while it waits for
            credit, nothing was sent; while it waits for the outcome, that is in doubt.
        """
        outgoing = await self._end.transfer(encode_message(message), settled=settled)
        if not outgoing.settled:
            try:
                outcome = await outgoing.until_decided()
            except trio.Cancelled:
                self._end.disown(outgoing)
                raise
            if not isinstance(outcome, Accepted):
                raise outcome_error(outcome)

    async def transfer(self, message: Message | Value, *, settled: bool = False) -> Sent:
        """Send a message as soon as there is credit for it, and wait for nothing more.

        Returns: what tells the outcome, later. Args, Raises: as `send`, but for outcomes.
        """
        return Sent(await self._end.transfer(encode_message(message), settled=settled))

    async def transfer_payload(self, payload: bytes, *, settled: bool = False) -> Sent:
        """As `transfer`, of a message that is encoded already, such as the `payload` of a delivery that came."""
        return Sent(await self._end.transfer(payload, settled=settled))


def end_of(sender: Sender) -> SenderEnd:
    """What is behind it, for those of this package that have to know when the first frame goes."""
    return sender._end
