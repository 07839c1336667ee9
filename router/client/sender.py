"""`Sender`: sends messages, and returns their outcomes."""

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
from amqpmesh.router.message.content import Message, encode_message
from amqpmesh.router.message.outcomes import outcome_error
from amqpmesh.router.message.writer import Sections

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.client.links.outgoing import Outgoing


class Sender(PublicLink[SenderLink]):
    """A link to send on. Several tasks may share it; messages leave in the order of the calls."""

    __slots__ = ()

    @property
    def waiting(self) -> int:
        """The number of deliveries that wait for credit, or for room in the peer's session window."""
        return self._link.waiting

    @property
    def unsettled(self) -> int:
        """The number of deliveries that were sent and have no outcome yet."""
        return self._link.unsettled

    async def send(self, message: Message | Value, *, settled: bool = False) -> None:
        """Send a message, and wait until it is accepted.

        A multicast message counts as accepted if at least one receiver accepts it and none rejects it. If this call is
        cancelled while it waits for credit, nothing was sent. If it is cancelled later, the outcome is in doubt. If a
        message in doubt has a `message_id`, and its address drops duplicates, send it again: it is processed once.

        Args: message: a `Message`, or the body of one. settled: send at most once, and wait for no outcome.
        Raises: RejectedError, ReleasedError, ModifiedError: the message was not accepted. InDoubtError: the link was
            lost before the outcome came. LinkDetachedError, ConnectionClosedError: the link is over, and the message
            was not sent. CommandError: the message cannot be sent: it is invalid, or larger than the peer accepts.
        """
        spans = self._link.spans
        if spans is None:
            await self._until_accepted(await self._link.transfer(encode_message(message), settled=settled))
            return
        with spans.sending(message, self._link.address) as carrying:
            await self._until_accepted(await self._link.transfer(carrying.encode(), settled=settled))

    async def send_parts(
        self,
        parts: AsyncIterable[bytes],
        *,
        message: Message | None = None,
        size: int | None = None,
        settled: bool = False,
    ) -> None:
        """Send a message whose body is produced in parts, and wait until it is accepted.

        The whole message is never held in memory. The first part is requested once there is credit, and each part is
        sent as soon as it is there. Until the last part, other messages of this sender wait, since the transfers of a
        link do not interleave. The message is aborted, so that its receiver drops it, if this call is cancelled, if
        `parts` raises, or if the parts do not match `size`. Parts are not sent twice: if the link is lost before the
        last part, the call raises that error, and nothing was sent.

        Args: parts: octets of the body, which are data sections; an async generator is closed at the end. message: all
            other sections, without a body; its footer is read after the last part. size: octets of all parts together.
            With it the body is one data section; without it each part is one (§3.2.6). settled: as for `send`.
        Raises: as `send`, and whatever `parts` raises. CommandError: also if the parts have another length than `size`.
        """
        spans = self._link.spans
        if spans is None:
            await self._until_accepted(await self._stream(parts, message, size, settled))
            return
        with spans.sending(message or Message(), self._link.address) as carrying:
            await self._until_accepted(await self._stream(parts, carrying, size, settled))

    async def transfer(self, message: Message | Value, *, settled: bool = False) -> Sent:
        """Send a message as soon as there is credit, and return without waiting for the outcome.

        Returns: a `Sent`, which has the outcome later. Args, Raises: as `send`, except for outcomes.
        """
        spans = self._link.spans
        if spans is None:
            return Sent(await self._link.transfer(encode_message(message), settled=settled))
        with spans.sending(message, self._link.address) as carrying:
            return Sent(await self._link.transfer(carrying.encode(), settled=settled))

    async def transfer_parts(
        self,
        parts: AsyncIterable[bytes],
        *,
        message: Message | None = None,
        size: int | None = None,
        settled: bool = False,
    ) -> Sent:
        """Send a message whose body is produced in parts, and return once the last part is sent.

        Returns: a `Sent`, which has the outcome later. Args, Raises: as `send_parts`, except for outcomes.
        """
        spans = self._link.spans
        if spans is None:
            return Sent(await self._stream(parts, message, size, settled))
        with spans.sending(message or Message(), self._link.address) as carrying:
            return Sent(await self._stream(parts, carrying, size, settled))

    async def transfer_payload(self, payload: bytes, *, settled: bool = False) -> Sent:
        """Send a message that is encoded already, such as the `payload` of a delivery; otherwise as `transfer`."""
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
    """Return the link behind a sender, for code of this package that must know when the first frame is sent."""
    return sender._link
