"""Links that follow redirects, over the same connection or another one (§2.8.18)."""

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
)
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.client.links.endings import Action, Ending, Stage
from amqpmesh.router.client.links.link import ClientLink
from amqpmesh.router.logs import event_log
from amqpmesh.router.model.redirects import redirect_of

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import RedirectChain
    from amqpmesh.router.client.links.link_manager import LinkManager

log = event_log.EventLog("amqpmesh.client")

T = TypeVar("T", Source, Target)


def at_redirect(asked: T, chain: RedirectChain | None) -> T:
    """Return the terminus to ask for at the end of a redirect, with the address there. Dynamic nodes have none."""
    if chain is None or chain.address is None or asked.dynamic:
        return asked
    return replace(asked, address=chain.address)


class RedirectedLink(ClientLink):
    """A link that is attached where the program asked for it, or where redirects have led it."""

    def __init__(self, manager: LinkManager, name: str, address: str | None) -> None:
        super().__init__(manager, name, address)
        #: The manager that the program asked for the link.
        self._origin = manager
        #: The end of the redirects that it followed; None: it is at the place that the program asked for.
        self._chain: RedirectChain | None = None
        #: The other link of a requester, which must be at the same peer.
        self._companion: RedirectedLink | None = None

    @property
    @abstractmethod
    def _requested_address(self) -> str | None:
        """The address that the program asked for; None: the anonymous terminus, or a dynamic node."""

    @property
    def _reconnects(self) -> bool:
        return self._origin.reconnects

    @property
    def _at_origin(self) -> bool:
        return self._manager is self._origin

    def accompany(self) -> None:
        """Move to the companion's manager, if this link is elsewhere."""
        assert self._companion is not None
        if self._manager is not self._companion._manager:
            error = LinkDetachedError("the link follows another one, which was redirected")
            self._end(Ending.COMPANION_MOVED, error)

    def _await(self, error: AmqpMeshError) -> None:
        if self._at_origin:
            self._chain = None
        self._drop_endpoint()
        self._apply(Action.AWAIT, error)

    def _follow(self, error: AmqpMeshError) -> None:
        assert isinstance(error, LinkRedirectError)
        assert error.error is not None
        chain = None if self._has_lasted else self._chain
        address = self._requested_address if self._chain is None else self._chain.address
        try:
            found = self._manager.follow(chain, address, redirect_of(error.error))
        except NotFollowedError as refusal:
            reason = f"the link was redirected, and that is not followed: {refusal}"
            self._fail(LinkRedirectError(reason, error.error))
            return
        if found is None:
            self._fail(error)
            return
        manager, chain = found
        log.info(
            "redirect followed", peer=self.peer, link=self.name, to=chain.place.described, address=chain.address or ""
        )
        self._drop_endpoint()
        self._apply(Action.FOLLOW, error)
        self._use_manager(manager, chain)

    def _follow_companion(self, error: AmqpMeshError) -> None:
        assert self._companion is not None
        link, session = self._link, self._session
        pauses = self._stage is Stage.DETACHED and self._losses > 0
        if link is not None and session is not None and session.can_send:
            link.context = None
            with suppress(CommandError):  # the output is full; the end of the session detaches the link, too
                link.detach()
        self._drop_endpoint()
        self._apply(Action.ACCOMPANY, error)
        self._use_manager(self._companion._manager, None)
        if self.is_over:
            return
        if pauses:
            self._manager.attach_later(self, self._losses)
        else:
            self.attach_now()

    def _return_to_origin(self) -> None:
        self._chain = None
        if not self._at_origin:
            self._use_manager(self._origin, None)

    def _use_manager(self, manager: LinkManager, chain: RedirectChain | None) -> None:
        """Let `manager` attach the link from now on."""
        if manager is not self._manager:
            self._manager.remove(self)
            self._manager = manager
            try:
                manager.add(self)
            except AmqpMeshError as error:
                self._fail(error)
                return
        self._chain = chain
        if self._companion is not None:
            self._companion.accompany()
        if chain is not None:
            self.attach_now()
