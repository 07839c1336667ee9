"""`Dialer`: makes a connection, and makes it again when it is lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from amqpmesh.policies.redirect import NotFollowedError, PeerAddress, Redirect, RedirectChain, RedirectPolicy
from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    ConnectionClosedError,
    ConnectionRedirectError,
    SaslError,
    shown,
)
from amqpmesh.router.amqp.standard.conditions import ConnectionCondition
from amqpmesh.router.amqp.standard.performatives import Open
from amqpmesh.router.client.connections.connection_tasks import CLOSE_TIME, ConnectionTasks
from amqpmesh.router.client.connections.identity import ClientIdentity
from amqpmesh.router.client.links.client_connection import ClientConnection
from amqpmesh.router.client.links.link import ClientLink, without_traceback
from amqpmesh.router.client.links.link_manager import LinkManager
from amqpmesh.router.client.links.spans import Spans
from amqpmesh.router.io.dialing import LASTING, Backoff, PermanentError, reason
from amqpmesh.router.logs import event_log
from amqpmesh.router.model.redirects import redirect_of

log = event_log.EventLog("amqpmesh.client")

LET_IN_AGAIN: Final = 30.0
"""Seconds for which a place that accepted a login, and now refuses it each time that it answers, is asked again."""


class Dialer(LinkManager):
    """The link manager behind a `Connection`. It dials one place after another, and serves the connection it gets."""

    def __init__(
        self,
        places: Sequence[PeerAddress],
        client_identity: ClientIdentity,
        *,
        backoff: Backoff | None,
        redirect_policy: RedirectPolicy | None,
    ) -> None:
        """Args: places: tried in turn. backoff: pauses before each further attempt; None: a lost connection is not made
            again. redirect_policy: the rules for redirects; None: none is followed.
        Raises: CommandError: there are no credentials for any mechanism.
        """
        super().__init__()
        self._places = places
        self.client_identity = client_identity
        self.redirect_policy = redirect_policy
        self._backoff = backoff
        #: The place of the connection in use, or of the one that is being made.
        self._chain = RedirectChain(places[0])
        #: The place that the last connection was redirected to; None: there was no redirect, or it is not followed.
        self._next: RedirectChain | None = None
        #: The error that ended the last connection.
        self._loss: AmqpMeshError | None = None
        self._redirect_dialers: list[RedirectDialer] = []
        self._failure: AmqpMeshError | None = CommandError("the connection was not opened: `async with` opens it")
        self._entered = False
        self._changed = trio.Event()
        self._closing = False
        self._tasks: ConnectionTasks | None = None
        self._made = 0
        #: The place that let this client in last; and since when it does not, by Trio's clock.
        self._let_in: PeerAddress | None = None
        self._refused_since: float | None = None
        self._opened_at = 0.0
        for place in places:
            client_identity.sasl(place)  # raises now if no login is possible

    @property
    def spans(self) -> Spans | None:
        """Spans for messages; None: the program has not asked for them."""
        return self.client_identity.spans

    async def enter(self) -> None:
        """Connect, as `Connection.__aenter__` does."""
        if self._entered:
            raise CommandError("a connection is entered once")
        self._entered = True
        self._failure = None
        self._manager = trio.open_nursery()
        self._running = trio.CancelScope(shield=True)
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._run_on)
        try:
            await trio.lowlevel.checkpoint()
            while self.client_connection is None:
                if self._failure is not None:
                    raise without_traceback(self._failure)
                await self._changed.wait()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Close the connection, even if this task is cancelled. The peer has a second to answer."""
        self._closing = True
        if self._failure is None:
            self._failure = CommandError("the connection was left")
        self.stop_all()
        dialers = list(self._redirect_dialers)
        for dialer in dialers:
            dialer.stop_all()
        with trio.move_on_after(CLOSE_TIME, shield=True):
            if self._tasks is not None:
                self._tasks.client_connection.close()
                await self._tasks.ended.wait()
            for dialer in dialers:
                await dialer.gone.wait()
        for dialer in dialers:
            dialer.scope.cancel()
        # The nursery is not told of the body's error, so it does not wrap it. Shielded, it does not raise that its
        # tasks were cancelled.
        self._running.cancel()
        self._nursery.cancel_scope.shield = True
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)

    @property
    def reconnections(self) -> int:
        """The number of times that the connection was made again."""
        return max(0, self._made - 1)

    @property
    def peer(self) -> Open:
        """The `open` of the peer, as `Connection.peer`."""
        remote = self.client_connection.engine.remote if self.client_connection is not None else None
        if remote is None:
            failure = self._failure if isinstance(self._failure, ConnectionClosedError) else None
            raise without_traceback(failure) if failure else ConnectionClosedError("there is no connection now")
        return remote

    def described(self) -> str:
        """Return the connection's state, for people."""
        urls = ", ".join(map(str, self._places))
        if self.client_connection is not None:
            stage = "connected"
        elif not self._entered:
            stage = "new"
        else:
            stage = "over" if self._failure is not None else "connecting"
        return f"{shown(self.client_identity.id)} to {urls} {stage}"

    # --------------------------------------------------------------------------------------------------- of LinkManager

    @property
    def reconnects(self) -> bool:
        """True if the dialer connects again after it has lost the connection."""
        return self._backoff is not None and not self._closing

    @property
    def failure(self) -> AmqpMeshError | None:
        """The error for which there is no connection, and none will follow; None: there is no such error."""
        return self._failure

    @property
    def max_frame_size(self) -> int:
        """Octets of the largest frame that the peer may send."""
        return self.client_identity.max_frame_size

    def request_connection(self) -> None:
        """Do nothing: there is a connection, or one is being made."""

    def attach_later(self, link: ClientLink, losses: int) -> None:
        """Attach a detached link again after a pause."""
        self._nursery.start_soon(self._attach_later, link, losses)

    async def _attach_later(self, link: ClientLink, losses: int) -> None:
        assert self._backoff is not None
        await trio.sleep(self._backoff.pause(losses))
        link.attach_now()

    def follow(
        self, chain: RedirectChain | None, address: str | None, redirect: Redirect
    ) -> tuple[LinkManager, RedirectChain] | None:
        """Find the dialer and the place that a redirect of a link leads to (§2.8.18)."""
        if self.redirect_policy is None:
            return None
        found = self.redirect_policy.follow(chain or RedirectChain(self._chain.place, address), redirect)
        return self.dialer_for(found.place), found

    def dialer_for(self, place: PeerAddress) -> Dialer:
        """Return the dialer for a place; make one if there is none. Raises: NotFollowedError: none can be made."""
        if self.client_connection is not None and place.is_same(self._chain.place):
            return self
        for dialer in self._redirect_dialers:
            if place.is_same(dialer.place):
                return dialer
        if self._closing:
            raise NotFollowedError("the connection was left")
        try:
            dialer = RedirectDialer(self, place)
        except CommandError as error:
            raise NotFollowedError(str(error)) from None
        self._redirect_dialers.append(dialer)
        self._nursery.start_soon(dialer.run)
        return dialer

    def cut_off(self, dialer: RedirectDialer) -> None:
        """Forget a dialer for redirects: no further link is sent to it."""
        if dialer in self._redirect_dialers:
            self._redirect_dialers.remove(dialer)

    # ------------------------------------------------------------------------------------------------------ connecting

    async def _run_on(self) -> None:
        """Run even while the body is cancelled, until the program has left: links abort, release and detach first."""
        with self._running:
            await self._run()

    async def _run(self) -> None:
        """Connect, serve, and connect again. Raises: nothing."""
        position = failures = 0
        self._chain = RedirectChain(self._places[position])
        while True:
            place = self._chain.place
            began = trio.current_time()
            was_open = False
            self._next = None
            error: AmqpMeshError
            try:
                client_connection = await self.client_identity.serve(
                    place, began=self._tasks_started, opened=self.opened, ended=self.lost
                )
            except PermanentError as refusal:
                if not self._may_be_let_in_again(refusal.error, place):
                    self._fail(refusal.error)
                    return
                error = refusal.error
            except trio.TooSlowError:
                error = ConnectionClosedError(f"{place}: timed out")
            except (OSError, trio.BrokenResourceError) as failure:
                error = ConnectionClosedError(f"{place}: {reason(failure)}")
            except Exception as fault:
                log.error("internal error", exception=fault, peer=str(place))
                self._fail(ConnectionClosedError(f"a fault of this library: {fault!r}"))
                return
            else:
                assert self._loss is not None
                error, was_open = self._loss, client_connection.was_open
            if self._closing:
                return
            if self._next is not None:
                log.info("redirect followed", peer=str(place), to=self._next.place.described)
                self._chain = self._next
                continue
            lasted = was_open and trio.current_time() - began >= LASTING
            if self._was_let_in(place) and not isinstance(error, SaslError):
                self._refused_since = None
            # A peer that has forced the connection closed wants the client elsewhere.
            position = 0 if lasted and not _is_forced(error) else (position + 1) % len(self._places)
            failures = 0 if lasted else failures
            # Every place was tried, or a connection was open: that ends an attempt.
            is_over = was_open or position == 0
            if self._backoff is None and (is_over or isinstance(error, SaslError)):
                self._fail(error)
                return
            log.info("connection lost" if was_open else "not connected", peer=str(place), reason=str(error))
            if self._backoff is not None and is_over:
                failures += 1
                await trio.sleep(self._backoff.pause(failures))
            # Forget where redirects have led: start with the places that the program named.
            self._chain = RedirectChain(self._places[position])

    def _may_be_let_in_again(self, error: AmqpMeshError, place: PeerAddress) -> bool:
        """Tell if a refused login is worth another attempt: this place accepted the same login a short time ago.

        A broker that starts again may accept connections before it knows its users.
        """
        if self._backoff is None or not isinstance(error, SaslError) or not self._was_let_in(place):
            return False
        now = trio.current_time()
        if self._refused_since is None:
            self._refused_since = now
        return now - self._refused_since < LET_IN_AGAIN

    def _was_let_in(self, place: PeerAddress) -> bool:
        return self._let_in is not None and place.is_same(self._let_in)

    def _tasks_started(self, tasks: ConnectionTasks) -> None:
        self._tasks = tasks

    # ---------------------------------------------------------------------------------------------------------- ending

    def lost(self, error: ConnectionClosedError) -> None:
        """End the connection. Another one takes its place after a redirect that is followed (§2.8.16)."""
        if isinstance(error, ConnectionRedirectError) and self.redirect_policy is not None and not self._closing:
            error = self._redirected(error, self.redirect_policy)
        self._loss = error
        self.ended(error, final=self._next is None and not self.reconnects)

    def _redirected(self, told: ConnectionRedirectError, redirect_policy: RedirectPolicy) -> ConnectionRedirectError:
        """Choose the next place by a redirect. Returns: the error for the links, with the reason for not following."""
        assert told.error is not None
        lasted = trio.current_time() - self._opened_at >= LASTING
        try:
            found = redirect_policy.follow(
                RedirectChain(self._chain.place) if lasted else self._chain, redirect_of(told.error)
            )
            self.client_identity.sasl(found.place)
        except (NotFollowedError, CommandError) as refusal:
            return ConnectionRedirectError(f"{told.message}, and the redirect is not followed: {refusal}", told.error)
        self._next = found
        return told

    def opened(self, client_connection: ClientConnection) -> None:
        """Attach all waiting links: the connection is open."""
        if not self._chain.is_redirected:
            self._made += 1
        self._let_in, self._refused_since = self._chain.place, None
        self._opened_at = trio.current_time()
        super().opened(client_connection)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _fail(self, error: AmqpMeshError) -> None:
        if self._failure is None:
            self._failure = error
        self.ended(error, final=True)
        self._wake_waiters()


def _is_forced(error: AmqpMeshError) -> bool:
    told = error.error if isinstance(error, ConnectionClosedError) else None
    return told is not None and told.condition == ConnectionCondition.CONNECTION_FORCED


class RedirectDialer(Dialer):
    """A connection that links were redirected to. It lasts while links are on it, and ends with the first connection.

    Attributes: `place`. `gone`: set when all of it has ended. `scope`: the cancel scope of its task.
    """

    def __init__(self, first: Dialer, place: PeerAddress) -> None:
        super().__init__([place], first.client_identity, backoff=None, redirect_policy=first.redirect_policy)
        self._first = first
        self.place = place
        self.gone = trio.Event()
        self.scope = trio.CancelScope(shield=True)
        self._emptied = trio.Event()
        self._failure = None

    async def run(self) -> None:
        """Connect, and serve until no link is left. Raises: nothing."""
        try:
            with self.scope, suppress(AmqpMeshError):  # its links raise it
                await self.enter()
                try:
                    while self._failure is None and not self._is_empty:
                        self._emptied = trio.Event()
                        await self._emptied.wait()
                finally:
                    self._first.cut_off(self)
                    await self.leave()
        finally:
            self._first.cut_off(self)
            self.gone.set()

    def remove(self, link: ClientLink) -> None:
        """Drop a link that is over, or has moved. The last one ends the connection."""
        super().remove(link)
        if self._is_empty:
            self._emptied.set()
            if self.client_connection is None:
                self._first.cut_off(self)
                self.scope.cancel()

    def attach_later(self, link: ClientLink, losses: int) -> None:
        """Attach a detached link again after a pause, as the first connection does."""
        self._first.attach_later(link, losses)

    def dialer_for(self, place: PeerAddress) -> Dialer:
        """Return the dialer for a place, as the first connection does."""
        return self._first.dialer_for(place)

    @property
    def _is_empty(self) -> bool:
        """True if the connection has no links, except those for replies."""
        return all(link in self._reply_senders.values() for link in self._links)

    def _fail(self, error: AmqpMeshError) -> None:
        self._first.cut_off(self)
        super()._fail(error)
        self._emptied.set()
