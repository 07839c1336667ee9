"""Attaches links, and attaches them again: what the connection of a client and the inside of a router share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, LinkDetachedError
from amqpmesh.router.client.links.arguments import text
from amqpmesh.router.client.links.link import without_traceback
from amqpmesh.router.client.links.sender_link import SenderLink
from amqpmesh.router.io.environment import environment

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import Redirect, Stop
    from amqpmesh.router.amqp.errors import AmqpMeshError
    from amqpmesh.router.client.links.client_connection import ClientConnection
    from amqpmesh.router.client.links.link import ClientLink
    from amqpmesh.router.client.links.outgoing import Outgoing

ANONYMOUS_RELAY: Final = Symbol("ANONYMOUS-RELAY")

REPLY_SENDERS: Final = 64
"""Links for replies that are kept, where the peer has no anonymous terminus and each reply address needs one.

There are more only as long as more of them have answers that wait to be sent, or for their outcomes."""


class LinkManager(ABC):
    """Knows the links that are in use, and attaches them to what connection there is."""

    def __init__(self) -> None:
        #: The connection in use; None: there is none now.
        self.client_connection: ClientConnection | None = None
        self._links: dict[ClientLink, None] = {}
        self._names = count(1)
        self._prefix = environment().token(6)
        self._reply_senders: OrderedDict[str | None, SenderLink] = OrderedDict()

    @property
    @abstractmethod
    def reconnects(self) -> bool:
        """Whether a connection that is lost is followed by another."""

    @property
    @abstractmethod
    def failure(self) -> AmqpMeshError | None:
        """Why no link can be attached any more; None: they can."""

    @property
    @abstractmethod
    def max_frame_size(self) -> int:
        """Octets of a frame that we take."""

    @abstractmethod
    def attach_later(self, link: ClientLink, losses: int) -> None:
        """Attach `link`, which was detached, again after a pause. Args: losses: in a row."""

    @abstractmethod
    def follow(self, stop: Stop | None, address: str | None, redirect: Redirect) -> tuple[LinkManager, Stop] | None:
        """Where a link goes on that the peer has redirected (§2.8.18).

        Args: stop: where redirects had led it; None: this is the first one of a row. address: that it asked for.
        Returns: who attaches it from now on, and where to; None: no redirects are followed here.
        Raises: NotFollowedError: this one is not, and why.
        """

    @abstractmethod
    def wake(self) -> None:
        """Somebody wants a connection."""

    def add(self, link: ClientLink) -> None:
        """`link` wants to be attached. Raises: AmqpMeshError: it cannot be, and why."""
        if self.failure is not None:
            raise without_traceback(self.failure)
        self._links[link] = None

    def remove(self, link: ClientLink) -> None:
        """`link` is over."""
        self._links.pop(link, None)

    async def reply(self, to: str, payload: bytes, *, settled: bool) -> Outgoing:
        """Send an answer, over a link that all answers share, or all those to one address.

        Raises: LinkDetachedError, SessionEndedError: there is no way there, for the peer or by the limits that it set.
            ConnectionClosedError, CommandError: there is no way anywhere any more.
        """
        remote = self.client_connection.engine.remote if self.client_connection is not None else None
        anonymous = remote is not None and ANONYMOUS_RELAY in remote.offered_capabilities
        key = None if anonymous else to
        sender = self._reply_senders.get(key)
        if sender is None or sender.is_over:
            sender = SenderLink(self, self.name_for(None), key)
            sender.start()
            self._make_room()
            self._reply_senders[key] = sender
        self._reply_senders.move_to_end(key)
        try:
            return await sender.transfer(payload, settled=settled)
        except CommandError as error:
            if self.failure is not None:
                raise
            # The address does not fit into an attach, or the answer is larger than the peer takes.
            raise LinkDetachedError(str(error)) from None

    def _make_room(self) -> None:
        """Leave links for answers that have nothing to do, those first that were used the longest ago."""
        for key, sender in list(self._reply_senders.items()):
            if len(self._reply_senders) < REPLY_SENDERS:
                return
            if sender.waiting == sender.unsettled == 0:
                del self._reply_senders[key]
                sender.stop()
                sender.detach_unanswered()  # nobody waits for it

    def opened(self, client_connection: ClientConnection) -> None:
        """There is a connection: attach all that wait for one."""
        self.client_connection = client_connection
        for link in list(self._links):
            link.attach_to(client_connection)

    def ended(self, error: AmqpMeshError, *, final: bool) -> None:
        """There is none any more; `final`: and there will be no other."""
        self.client_connection = None
        for link in list(self._links):
            if link in self._links:  # one that goes elsewhere may take another along
                link.connection_lost(error, final=final)

    def stop_all(self) -> None:
        """Whoever left the connection left its links, too."""
        for link in list(self._links):
            link.stop()

    def name_for(self, name: str | None) -> str:
        """The name of a link: `name`, or one that no other link has. Raises: CommandError: it is no text."""
        name = text("name", name)
        return f"{self._prefix}-{next(self._names)}" if name is None else name
