"""The three doors: `router.` and `connection.` offer the same senders, receivers and requesters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from amqpmesh.router.amqp.codec.types import Described, Symbol
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, SenderSettleMode
from amqpmesh.router.client.links.arguments import by_symbol, symbols, whole
from amqpmesh.router.client.links.attach_options import BUFFER, MAX_MESSAGE_SIZE, ReceiverOptions
from amqpmesh.router.client.links.receiver_link import ReceiverLink
from amqpmesh.router.client.links.sender_link import SenderLink
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.client.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.amqp.standard.messaging import Source, Target
    from amqpmesh.router.client.links.link_manager import LinkManager


class LinkFactory(ABC):
    """Makes links; each is attached by `async with`, and detached when that is left."""

    @property
    @abstractmethod
    def _link_manager(self) -> LinkManager:
        """What attaches them."""

    def sender(
        self,
        address: str | None,
        *,
        name: str | None = None,
        snd_settle_mode: SenderSettleMode = SenderSettleMode.MIXED,
        rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode.FIRST,
        target: Target | None = None,
        desired_capabilities: Sequence[str] = (),
        properties: Mapping[str, Value] | None = None,
    ) -> Sender:
        """A link to send on; used as `async with connection.sender("orders") as orders`.

        Args: address: the target's; None: the anonymous terminus, where each message goes by its `to`.
            name: of the link, for peers that remember links (§2.6.1); None: one of its own.
            snd_settle_mode, rcv_settle_mode: as §2.8.2 and §2.8.3 say; with SECOND receivers wait for our settlement.
            target: in the place of the one that names `address`, for all else that a target may say (§3.5.4).
            desired_capabilities, properties: of the attach (§2.7.3).
        """
        link = SenderLink(
            self._link_manager,
            self._link_manager.name_for(name),
            address,
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            target=target,
            desired_capabilities=symbols(desired_capabilities),
            properties=by_symbol(properties),
        )
        return Sender(link)

    def receiver(
        self,
        address: str | None,
        *,
        credit: int = 100,
        buffer: int = BUFFER,
        streaming: bool = False,
        any_format: bool = False,
        name: str | None = None,
        snd_settle_mode: SenderSettleMode = SenderSettleMode.MIXED,
        rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode.FIRST,
        max_message_size: int | None = None,
        max_values: int = MAX_VALUES,
        source: Source | None = None,
        filter: Mapping[str, Any] | None = None,
        desired_capabilities: Sequence[str] = (),
        properties: Mapping[str, Value] | None = None,
    ) -> Receiver:
        """A link to receive from; used as `async with connection.receiver("orders") as incoming`.

        Args: address: the source's; None: a dynamic node, whose address the peer chooses: `incoming.address`.
            credit: deliveries that may be here or on their way and are not decided; 0: none but by `flow` and `drain`.
            buffer: octets that may wait here before the program takes them (2 MiB). It is counted in whole frames: the
                session's window (§2.5.6) is `buffer // max_frame_size` transfer frames, 4 at least, however full.
            streaming: hand a delivery out at its first frames; its body comes by `async for`.
            any_format: hand out what is of another message-format than 0, too, which has a `payload` and no `message`.
                Else it is rejected (amqp:not-implemented), as what is no message is.
            max_message_size: octets; larger ones are refused by the peer (§2.7.3). None: 16 MiB, and without limit
                where they stream; 0: no limit.
            max_values: values that a message may hold, each element of a list, map or array being one. Messages with
                more are rejected undecoded: they would hold up all tasks of the thread. 0: no limit.
            filter: of the source, by name, each value described (§3.5.8); a peer that does not apply one is not
                received from. source: in the place of the one that names `address` and `filter`.
            name, snd_settle_mode, rcv_settle_mode, desired_capabilities, properties: as for `sender`.
        """
        if max_message_size is None:
            max_message_size = 0 if streaming else MAX_MESSAGE_SIZE
        options = ReceiverOptions(
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            max_message_size=max_message_size,
            source=source,
            filter=_filters(filter),
            desired_capabilities=symbols(desired_capabilities),
            properties=by_symbol(properties),
        )
        link = ReceiverLink(
            self._link_manager,
            self._link_manager.name_for(name),
            address,
            options,
            credit=credit,
            buffer=buffer,
            streaming=streaming,
            any_format=any_format,
            max_values=max_values,
        )
        return Receiver(link)

    def requester(
        self,
        address: str | None,
        *,
        credit: int = 100,
        max_message_size: int = MAX_MESSAGE_SIZE,
        max_values: int = MAX_VALUES,
    ) -> Requester:
        """A link to ask on, and a dynamic node for the answers; used as `async with connection.requester("quotes")`.

        Args: address: the target's; None: each request goes by its `to`. credit: answers that may be on their way,
            1 at least. max_message_size: octets of an answer. max_values: as for `receiver`.
        """
        if whole("credit", credit) == 0:
            raise CommandError("without credit no answer can come")
        name = self._link_manager.name_for(None)
        replies = (f"{name}-replies", credit, max_message_size, max_values)
        return Requester(self._link_manager, name, address, replies)


def _filters(filters: Mapping[str, Any] | None) -> dict[Symbol, Any] | None:
    for name, value in (filters or {}).items():
        if not isinstance(value, Described | None):
            raise CommandError(f"filter {name}: a filter is a described value (§3.5.8)")
    return by_symbol(filters)
