"""`LinkManager`: attaches links, and attaches them again; the base of a client's connection and a router's own."""

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
from amqpmesh.router.endpoint_setup import TENANT
from amqpmesh.router.io.environment import environment

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import Redirect, RedirectChain
    from amqpmesh.router.amqp.errors import AmqpMeshError
    from amqpmesh.router.client.links.client_connection import ClientConnection
    from amqpmesh.router.client.links.link import ClientLink
    from amqpmesh.router.client.links.outgoing import Outgoing
    from amqpmesh.router.client.links.spans import Spans

ANONYMOUS_RELAY: Final = Symbol("ANONYMOUS-RELAY")

REPLY_SENDERS: Final = 64
"""The number of links for replies that are kept, for peers without an anonymous terminus: each address needs a link.

There are more only as long as they have replies that wait to be sent or for their outcomes.
"""


class LinkManager(ABC):
    """The links in use, and the connection that they are attached to."""

    def __init__(self) -> None:
        #: The open connection; None: there is none now.
        self.client_connection: ClientConnection | None = None
        self._links: dict[ClientLink, None] = {}
        self._names = count(1)
        self._prefix = environment().token(6)
        self._reply_senders: OrderedDict[tuple[str | None, str], SenderLink] = OrderedDict()

    @property
    def spans(self) -> Spans | None:
        """Spans for messages; None: the program has not asked for them."""
        return None

    @property
    @abstractmethod
    def reconnects(self) -> bool:
        """True if the manager connects again after it has lost the connection."""

    @property
    @abstractmethod
    def failure(self) -> AmqpMeshError | None:
        """The error for which no link can be attached any more; None: links can be attached."""

    @property
    @abstractmethod
    def max_frame_size(self) -> int:
        """Octets of the largest frame that the peer may send."""

    @property
    def widening(self) -> int:
        """The number of times that a receiver's window may be as wide while messages are small; 1: it never widens."""
        return 1

    @abstractmethod
    def attach_later(self, link: ClientLink, losses: int) -> None:
        """Attach a detached link again after a pause. Args: losses: the number of its losses in a row."""

    @abstractmethod
    def follow(
        self, chain: RedirectChain | None, address: str | None, redirect: Redirect
    ) -> tuple[LinkManager, RedirectChain] | None:
        """Find the manager and the place that a redirect of a link leads to (§2.8.18).

        Args: chain: the redirects that the link has followed; None: this is the first one of a row.
            address: the address that the link asked for.
        Returns: the manager that attaches it from now on, and the place; None: this manager follows no redirects.
        Raises: NotFollowedError: this redirect is not followed, with the reason.
        """

    @abstractmethod
    def request_connection(self) -> None:
        """Make a connection, if there is none and none is being made: a link needs it."""

    def add(self, link: ClientLink) -> None:
        """Take in a link that is to be attached. Raises: AmqpMeshError: no link can be attached, with the reason."""
        if self.failure is not None:
            raise without_traceback(self.failure)
        self._links[link] = None

    def remove(self, link: ClientLink) -> None:
        """Drop a link that is over."""
        self._links.pop(link, None)

    async def reply(self, to: str, payload: bytes, *, settled: bool, tenant: str = "") -> Outgoing:
        """Send a reply over the link that all replies share, or over one for its address.

        Args: tenant: of the address; a router's own links may name another one than their connection's.
        Raises: LinkDetachedError, SessionEndedError: the peer does not accept the address, or its limits forbid the
            reply. ConnectionClosedError, CommandError: no reply can be sent at all any more.
        """
        remote = self.client_connection.engine.remote if self.client_connection is not None else None
        anonymous = remote is not None and ANONYMOUS_RELAY in remote.offered_capabilities
        key = (None if anonymous else to), tenant
        sender = self._reply_senders.get(key)
        if sender is None or sender.is_over:
            properties = {TENANT: tenant} if tenant else None
            sender = SenderLink(self, self.name_for(None), key[0], properties=properties)
            sender.start()
            self._make_room()
            self._reply_senders[key] = sender
        self._reply_senders.move_to_end(key)
        try:
            return await sender.transfer(payload, settled=settled)
        except CommandError as error:
            if self.failure is not None:
                raise
            # The address does not fit into an `attach`, or the reply is larger than the peer accepts.
            raise LinkDetachedError(str(error)) from None

    def _make_room(self) -> None:
        """Leave idle links for replies, the least recently used first."""
        for key, sender in list(self._reply_senders.items()):
            if len(self._reply_senders) < REPLY_SENDERS:
                return
            if sender.waiting == sender.unsettled == 0:
                del self._reply_senders[key]
                sender.stop()
                sender.detach_unanswered()  # no task waits for the answer

    def opened(self, client_connection: ClientConnection) -> None:
        """Attach all waiting links: a connection is open."""
        self.client_connection = client_connection
        for link in list(self._links):
            link.attach_to(client_connection)

    def ended(self, error: AmqpMeshError, *, final: bool) -> None:
        """Tell all links that the connection is over. Args: final: no other connection follows."""
        self.client_connection = None
        for link in list(self._links):
            if link in self._links:  # a link that moves may have taken its companion along
                link.connection_lost(error, final=final)

    def stop_all(self) -> None:
        """Detach all links: the program has left the connection."""
        for link in list(self._links):
            link.stop()

    def name_for(self, name: str | None) -> str:
        """Return `name`, or a new link name if it is None. Raises: CommandError: the name is no text."""
        name = text("name", name)
        return f"{self._prefix}-{next(self._names)}" if name is None else name
