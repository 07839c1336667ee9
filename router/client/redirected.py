"""Links that go on elsewhere when the peer says so: over the same connection, or another one (§2.8.18)."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from amqpmesh.policies.redirect import NotFollowedError
from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    LinkDetachedError,
    LinkRedirectError,
    link_detached,
)
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.client.link import ClientLink, Stage
from amqpmesh.router.logs import event_log
from amqpmesh.router.model.redirects import redirect_of

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import Stop
    from amqpmesh.router.amqp.events import LinkDetached
    from amqpmesh.router.client.link_manager import LinkManager

log = event_log.EventLog("amqpmesh.client")

T = TypeVar("T", Source, Target)


def moved(asked: T, stop: Stop | None) -> T:
    """What a link asks for where redirects led it: the same, by the address there. A dynamic node has none."""
    if stop is None or stop.address is None or asked.dynamic:
        return asked
    return replace(asked, address=stop.address)


class RedirectedLink(ClientLink):
    """A link that is where the program asked for it, or where redirects have led it from there."""

    def __init__(self, home: LinkManager, name: str, address: str | None) -> None:
        super().__init__(home, name, address)
        #: What the program asked to attach it.
        self._origin = home
        #: Where redirects have led it to; None: it is attached to what the program asked for.
        self._stop: Stop | None = None
        #: A link of the program's that is of use only where this one is.
        self._companion: RedirectedLink | None = None

    def detached(self, event: LinkDetached) -> None:
        """As of any link; with a redirect it is attached elsewhere, if that is allowed."""
        error = link_detached("the link was detached", event.error)
        if isinstance(error, LinkRedirectError) and event.by_peer and not self.is_over:
            self._redirected(error)
        else:
            super().detached(event)

    def connection_lost(self, error: AmqpMeshError, *, final: bool) -> None:
        """Its connection is over; `final`: and there will be no other."""
        if self.is_over:
            return
        if final and self._home is not self._origin:
            self._lose(error, final=False)
            return
        if self._home is self._origin:
            self._stop = None
        self._lose(error, final=final, again=final)

    @property
    @abstractmethod
    def _wanted(self) -> str | None:
        """The address that the program asked for; None: the anonymous terminus, or a dynamic node."""

    @property
    def _may_come_again(self) -> bool:
        return self._origin.reconnects

    def _redirected(self, told: LinkRedirectError) -> None:
        """The peer says that the node is elsewhere: go there, if that is allowed (§2.8.18)."""
        assert told.error is not None
        stop = None if self._has_lasted else self._stop
        address = self._wanted if self._stop is None else self._stop.address
        try:
            found = self._home.follow(stop, address, redirect_of(told.error))
        except NotFollowedError as refusal:
            reason = f"the link was redirected, and that is not followed: {refusal}"
            self._lose(LinkRedirectError(reason, told.error), final=True)
            return
        if found is None:
            self._lose(told, final=True)
            return
        home, stop = found
        log.info(
            "redirect followed", peer=self.peer, link=self.name, to=stop.place.described, address=stop.address or ""
        )
        self._let_go()
        self._come_again(told)
        self._move(home, stop)

    def _go_home(self) -> None:
        self._stop = None
        if self._home is not self._origin:
            self._move(self._origin, None)

    def _move(self, home: LinkManager, stop: Stop | None) -> None:
        """Be attached by `home` from now on."""
        if home is not self._home:
            self._home.remove(self)
            self._home = home
            try:
                home.add(self)
            except AmqpMeshError as error:
                self._fail(error)
                return
        self._stop = stop
        if self._companion is not None:
            self._companion.accompany(self)
        if stop is not None:
            self.attach_now()

    def accompany(self, other: ClientLink) -> None:
        """Be attached where another link of the program's is from now on."""
        if self._home is other._home or self._stage not in (Stage.COMING, Stage.ATTACHED):
            return
        link, session = self._link, self._session
        pauses = link is None and self._losses > 0
        if link is not None and session is not None and session.can_send:
            link.context = None
            with suppress(CommandError):  # too much waits to be sent: the session that ends says the same
                link.detach()
        self._let_go()
        self._come_again(LinkDetachedError("the link follows another one, which was redirected"))
        self._move(other._home, None)
        if self.is_over:
            return
        if pauses:
            self._home.attach_later(self, self._losses)
        else:
            self.attach_now()
