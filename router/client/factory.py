"""The three methods that `Router` and `Connection` share: they make senders, receivers and requesters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.amqp.codec.types import Described, Symbol
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, SenderSettleMode
from amqpmesh.router.client.links.arguments import by_symbol, symbols, whole
from amqpmesh.router.client.links.attach_options import BUFFER, MAX_MESSAGE_SIZE, ReceiverOptions
from amqpmesh.router.client.links.kept_deliveries import KeptDeliveries
from amqpmesh.router.client.links.receiver_link import ReceiverLink
from amqpmesh.router.client.links.sender_link import SenderLink
from amqpmesh.router.client.links.unheard import UnheardDeliveries
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.client.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.amqp.standard.messaging import Source, Target
    from amqpmesh.router.client.links.link_manager import LinkManager


EXACTLY_ONCE_TIME: Final = 60.0
"""Seconds that an exactly-once link asks the peer to keep its end of the link, unless `resume` says otherwise."""


class LinkFactory(ABC):
    """A maker of links. `async with` attaches a link, and detaches it at the end."""

    @property
    @abstractmethod
    def _link_manager(self) -> LinkManager:
        """The manager that attaches the links."""

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
        resume: float | None = None,
        exactly_once: bool = False,
    ) -> Sender:
        """Make a link to send on: `async with connection.sender("orders") as orders`.

        Args: address: of the target; None: the anonymous terminus, where the `to` of each message is its address.
            name: of the link, for peers that remember links (§2.6.1); None: a new name.
            snd_settle_mode, rcv_settle_mode: see §2.8.2 and §2.8.3. With SECOND, receivers wait for our settlement.
            target: replaces the target that names `address`, for the other fields of a target (§3.5.4).
            desired_capabilities, properties: of the attach (§2.7.3).
            resume: seconds for which the peer is asked to keep its end of the link after the connection is lost; with
            `reconnect`, the outcomes that were not heard are then found out (§2.6.13). None: they are in doubt. While a
            sender is away, receivers go on.
            exactly_once: for this end of the link: each message is sent until its outcome is known, and never a second
            time unless it is certain that nobody has it: after `released`, three times at most, or if the peer tells
            that it did not come. After `modified` or in doubt it is not sent again: the error is raised. Messages are
            kept until they are settled. It sets snd-settle-mode UNSETTLED, rcv-settle-mode SECOND, and `resume` to a
            minute unless it is given. Entering raises LinkDetachedError if the peer keeps no unsettled state.
        Raises: CommandError: as `PublicLink`; `resume` is not positive.
        """
        if exactly_once:
            snd_settle_mode, rcv_settle_mode = SenderSettleMode.UNSETTLED, ReceiverSettleMode.SECOND
            resume = EXACTLY_ONCE_TIME if resume is None else resume
        link = SenderLink(
            self._link_manager,
            self._link_manager.name_for(name),
            address,
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            target=target,
            desired_capabilities=symbols(desired_capabilities),
            properties=by_symbol(properties),
            unheard=None if resume is None else UnheardDeliveries(resume, exactly_once=exactly_once),
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
        resume: float | None = None,
        exactly_once: bool = False,
    ) -> Receiver:
        """Make a link to receive from: `async with connection.receiver("orders") as incoming`.

        Args: address: of the source; None: a dynamic node. The peer chooses its address, which is `incoming.address`.
            credit: the most undecided deliveries, here or on their way; 0: the program gives credit with `flow`.
            buffer: octets that may wait here until the program takes them (2 MiB). They are counted in whole frames:
                the session's window (§2.5.6) is `buffer // max_frame_size` transfer frames of any size, 4 at least.
            streaming: return a delivery after its first frames; read its body with `async for`.
            any_format: also return deliveries of a message-format other than 0; they have a `payload` and no `message`.
                Without it they are rejected (amqp:not-implemented). Invalid messages are always rejected.
            max_message_size: octets. The peer refuses larger messages (§2.7.3). None: 16 MiB, or no limit if
                `streaming`. 0: no limit.
            max_values: the most values of a message; each element of a list, map or array counts. Messages with more
                are rejected undecoded, since decoding them would block all tasks of the thread. 0: no limit.
            filter: filters of the source by name; each is a described value (§3.5.8). The attach fails if the peer does
                not apply one of them.
            source: replaces the source that names `address` and `filter`.
            name, snd_settle_mode, rcv_settle_mode, desired_capabilities, properties: as for `sender`.
            resume: seconds for which the peer is asked to keep its end of the link after the connection is lost; with
                `reconnect`, deliveries then go on over the next connection: decisions are told, also those made
                meanwhile (§2.6.13). None: deliveries are lost with the link. While a receiver is away, others do not
                get what it has. What the program has not taken waits until the link is back.
            exactly_once: for this end of the link: no delivery is returned twice while the program runs, and the peer
                keeps each until it has heard the decision. It sets rcv-settle-mode SECOND, and `resume` to a minute
                unless it is given. If the link is away for longer, or the peer forgets, `accept` returns False: the
                message may come again, here or elsewhere. Entering raises LinkDetachedError if the peer keeps no
                unsettled state.
        Raises: CommandError: as `sender`.
        """
        if exactly_once:
            rcv_settle_mode = ReceiverSettleMode.SECOND
            resume = EXACTLY_ONCE_TIME if resume is None else resume
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
            kept=None if resume is None else KeptDeliveries(resume, exactly_once=exactly_once),
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
        """Make a link for requests and one for replies: `async with connection.requester("quotes") as quotes`.

        Args: address: of the target; None: the `to` of each request is its address.
            credit: the most replies on their way; at least 1.
            max_message_size: octets of a reply.
            max_values: as for `receiver`.
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
