"""`Sender`: messages go out, and their outcomes come back."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.client.links.arguments import whole
from amqpmesh.router.client.links.sender_link import SenderLink
from amqpmesh.router.client.public_link import PublicLink
from amqpmesh.router.client.sent import Sent
from amqpmesh.router.message.content import encode_message
from amqpmesh.router.message.outcomes import outcome_error
from amqpmesh.router.message.writer import Sections

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.client.links.outgoing import Outgoing
    from amqpmesh.router.message.content import Message


class Sender(PublicLink[SenderLink]):
    """A link to send on. Several tasks may share it; the order is that of their calls."""

    __slots__ = ()

    @property
    def waiting(self) -> int:
        """Deliveries that wait for credit, or for the peer's window."""
        return self._link.waiting

    @property
    def unsettled(self) -> int:
        """Deliveries that were sent and have no outcome yet."""
        return self._link.unsettled

    async def send(self, message: Message | Value, *, settled: bool = False) -> None:
        """Send a message, and wait until it is accepted: of a multicast by one receiver at least, and rejected by none.

        Args: message: a `Message`, or the body of one. settled: at most once: no outcome is waited for.
        Raises: RejectedError, ReleasedError, ModifiedError: it was not accepted. InDoubtError: the link was lost before
            the outcome came. LinkDetachedError, ConnectionClosedError: the link is over, and it was not sent.
            CommandError: it cannot be sent: not a message, or larger than the peer takes. Cancelled while it waits for
            credit, nothing was sent; while it waits for the outcome, that is in doubt.
        """
        await self._until_accepted(await self._link.transfer(encode_message(message), settled=settled))

    async def send_parts(
        self,
        parts: AsyncIterable[bytes],
        *,
        message: Message | None = None,
        size: int | None = None,
        settled: bool = False,
    ) -> None:
        """Send a message whose body is given in parts, and wait until it is accepted. It is never here as a whole.

        The first part is asked for once there is credit, and each one goes as soon as it is there. Meanwhile other
        messages of this sender wait, as transfers of a link do not interleave. The message is aborted, so that its
        receiver drops it, where this is cancelled, the parts raise, or they are not what was announced. Parts are not
        sent twice: where the link is lost in the middle, that is raised, and nothing was sent.

        Args: parts: octets of the body, which is data; an async generator is closed. message: what is said about them,
            without a body; its footer is read behind the last part. size: octets of all parts: the body is one data
            section, else each part is one (§3.2.6). settled: as of `send`.
        Raises: as `send`, and what `parts` raises. CommandError: also if there are other octets than `size` says.
        """
        await self._until_accepted(await self._stream(parts, message, size, settled))

    async def transfer(self, message: Message | Value, *, settled: bool = False) -> Sent:
        """Send a message as soon as there is credit for it, and wait for nothing more.

        Returns: what tells the outcome, later. Args, Raises: as `send`, but for outcomes.
        """
        return Sent(await self._link.transfer(encode_message(message), settled=settled))

    async def transfer_parts(
        self,
        parts: AsyncIterable[bytes],
        *,
        message: Message | None = None,
        size: int | None = None,
        settled: bool = False,
    ) -> Sent:
        """Send a message whose body is given in parts, and wait for nothing more when the last one has gone.

        Returns: what tells the outcome, later. Args, Raises: as `send_parts`, but for outcomes.
        """
        return Sent(await self._stream(parts, message, size, settled))

    async def transfer_payload(self, payload: bytes, *, settled: bool = False) -> Sent:
        """As `transfer`, of a message that is encoded already, such as the `payload` of a delivery that came."""
        return Sent(await self._link.transfer(payload, settled=settled))

    async def _stream(
        self, parts: AsyncIterable[bytes], message: Message | None, size: int | None, settled: bool
    ) -> Outgoing:
        if not isinstance(parts, AsyncIterable):
            raise CommandError("parts come by `async for`, each of them bytes")
        sections = Sections(message, None if size is None else whole("size", size))
        return await self._link.stream(sections, parts, settled=settled)

    async def _until_accepted(self, outgoing: Outgoing) -> None:
        if outgoing.settled:
            return
        try:
            outcome = await outgoing.until_decided()
        except trio.Cancelled:
            self._link.forget(outgoing)
            raise
        if not isinstance(outcome, Accepted):
            raise outcome_error(outcome)


def link_of(sender: Sender) -> SenderLink:
    """What is behind it, for those of this package that have to know when the first frame goes."""
    return sender._link
