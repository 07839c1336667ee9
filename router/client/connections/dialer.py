"""Makes a connection, and makes it again when it is lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio

from amqpmesh.policies.redirect import Following, NotFollowedError, Place, Redirect, Stop
from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    ConnectionClosedError,
    ConnectionRedirectError,
    SaslError,
    shown,
)
from amqpmesh.router.amqp.standard.performatives import Open
from amqpmesh.router.client.connections.connection_tasks import CLOSE_TIME, ConnectionTasks
from amqpmesh.router.client.connections.identity import ClientIdentity
from amqpmesh.router.client.links.client_connection import ClientConnection
from amqpmesh.router.client.links.link import ClientLink, without_traceback
from amqpmesh.router.client.links.link_manager import LinkManager
from amqpmesh.router.io.dialing import LASTING, Backoff, PermanentError, reason
from amqpmesh.router.logs import event_log
from amqpmesh.router.model.redirects import redirect_of

log = event_log.EventLog("amqpmesh.client")


class Dialer(LinkManager):
    """What is behind a `Connection`: it dials one peer after the other, and serves whoever is there."""

    def __init__(
        self,
        places: Sequence[Place],
        client_identity: ClientIdentity,
        *,
        backoff: Backoff | None,
        following: Following | None,
    ) -> None:
        """Args: places: tried in turn. backoff: None: a connection that is lost is not made again. following: None: no
        redirect is followed. Raises: CommandError: there are no credentials for any mechanism.
        """
        super().__init__()
        self._places = places
        self.client_identity = client_identity
        self.following = following
        self._backoff = backoff
        #: Where the connection in use goes, or the one that is being made.
        self._stop = Stop(places[0])
        #: Where a redirect of the connection that is over leads; None: there was none, or it is not followed.
        self._next: Stop | None = None
        #: Why that is over.
        self._loss: AmqpMeshError | None = None
        self._redirect_dialers: list[RedirectDialer] = []
        self._failure: AmqpMeshError | None = CommandError("the connection was not opened: `async with` opens it")
        self._entered = False
        self._changed = trio.Event()
        self._closing = False
        self._tasks: ConnectionTasks | None = None
        self._made = 0
        self._opened_at = 0.0
        for place in places:
            client_identity.sasl(place)  # what cannot work is said now

    async def enter(self) -> None:
        """As `Connection.__aenter__`."""
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
        """Close; the peer has a second to answer, whoever is cancelled."""
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
        # Not told of the body's error the nursery does not wrap it, and shielded it keeps to itself that its tasks
        # were cancelled.
        self._running.cancel()
        self._nursery.cancel_scope.shield = True
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)

    @property
    def reconnections(self) -> int:
        """How often it was made again."""
        return max(0, self._made - 1)

    @property
    def peer(self) -> Open:
        """As `Connection.peer`."""
        remote = self.client_connection.engine.remote if self.client_connection is not None else None
        if remote is None:
            failure = self._failure if isinstance(self._failure, ConnectionClosedError) else None
            raise without_traceback(failure) if failure else ConnectionClosedError("there is no connection now")
        return remote

    def described(self) -> str:
        """How it stands, for people."""
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
        """Whether a connection that is lost is followed by another."""
        return self._backoff is not None and not self._closing

    @property
    def failure(self) -> AmqpMeshError | None:
        """Why there is no connection, and none will come."""
        return self._failure

    @property
    def max_frame_size(self) -> int:
        """Octets of a frame that we take."""
        return self.client_identity.max_frame_size

    def wake(self) -> None:
        """A connection is there, or on its way."""

    def attach_later(self, link: ClientLink, losses: int) -> None:
        """Attach it again after a pause."""
        self._nursery.start_soon(self._attach_later, link, losses)

    async def _attach_later(self, link: ClientLink, losses: int) -> None:
        assert self._backoff is not None
        await trio.sleep(self._backoff.pause(losses))
        link.attach_now()

    def follow(self, stop: Stop | None, address: str | None, redirect: Redirect) -> tuple[LinkManager, Stop] | None:
        """Where a link goes on that is redirected (§2.8.18): over this connection, or another one of its own."""
        if self.following is None:
            return None
        found = self.following.follow(stop or Stop(self._stop.place, address), redirect)
        return self.to(found.place), found

    def to(self, place: Place) -> Dialer:
        """A connection to there, made if there is none. Raises: NotFollowedError: none can be made."""
        if self.client_connection is not None and place.is_same(self._stop.place):
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
        """No link comes to it any more."""
        if dialer in self._redirect_dialers:
            self._redirect_dialers.remove(dialer)

    # ------------------------------------------------------------------------------------------------------ connecting

    async def _run_on(self) -> None:
        """Go on when the body is cancelled, until it has been left: links abort, release and detach."""
        with self._running:
            await self._run()

    async def _run(self) -> None:
        """Connect, serve, and again. Raises: nothing."""
        position = failures = 0
        self._stop = Stop(self._places[position])
        while True:
            place = self._stop.place
            began = trio.current_time()
            was_open = False
            self._next = None
            try:
                client_connection = await self.client_identity.serve(
                    place, began=self._began, opened=self.opened, ended=self.lost
                )
            except PermanentError as refusal:
                self._fail(refusal.error)
                return
            except trio.TooSlowError:
                error: AmqpMeshError = ConnectionClosedError(f"{place}: timed out")
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
                self._stop = self._next
                continue
            lasted = was_open and trio.current_time() - began >= LASTING
            position = 0 if lasted else (position + 1) % len(self._places)
            failures = 0 if lasted else failures
            # A whole round was made, or a connection: what follows is not the same try any more.
            is_over = was_open or position == 0
            if self._backoff is None and (is_over or isinstance(error, SaslError)):
                self._fail(error)
                return
            log.info("connection lost" if was_open else "not connected", peer=str(place), reason=str(error))
            if self._backoff is not None and is_over:
                failures += 1
                await trio.sleep(self._backoff.pause(failures))
            # Wherever redirects had led to: it begins where the program said.
            self._stop = Stop(self._places[position])

    def _began(self, tasks: ConnectionTasks) -> None:
        self._tasks = tasks

    # ---------------------------------------------------------------------------------------------------------- ending

    def lost(self, error: ConnectionClosedError) -> None:
        """The connection is over: by a redirect that is followed another one takes its place (§2.8.16)."""
        if isinstance(error, ConnectionRedirectError) and self.following is not None and not self._closing:
            error = self._redirected(error, self.following)
        self._loss = error
        self.ended(error, final=self._next is None and not self.reconnects)

    def _redirected(self, told: ConnectionRedirectError, following: Following) -> ConnectionRedirectError:
        """Returns: what is told of it: if it is not followed, why."""
        assert told.error is not None
        lasted = trio.current_time() - self._opened_at >= LASTING
        try:
            found = following.follow(Stop(self._stop.place) if lasted else self._stop, redirect_of(told.error))
            self.client_identity.sasl(found.place)
        except (NotFollowedError, CommandError) as refusal:
            return ConnectionRedirectError(f"{told.message}, and the redirect is not followed: {refusal}", told.error)
        self._next = found
        return told

    def opened(self, client_connection: ClientConnection) -> None:
        """There is a connection."""
        if not self._stop.is_redirected:
            self._made += 1
        self._opened_at = trio.current_time()
        super().opened(client_connection)
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _fail(self, error: AmqpMeshError) -> None:
        if self._failure is None:
            self._failure = error
        self.ended(error, final=True)
        self._tell()


class RedirectDialer(Dialer):
    """A connection to where links were redirected: as long as one of them is on it, and no longer than the first.

    Attributes: `place`. `gone`: set when nothing of it is left. `scope`: of its task.
    """

    def __init__(self, first: Dialer, place: Place) -> None:
        super().__init__([place], first.client_identity, backoff=None, following=first.following)
        self._first = first
        self.place = place
        self.gone = trio.Event()
        self.scope = trio.CancelScope(shield=True)
        self._emptied = trio.Event()
        self._failure = None

    async def run(self) -> None:
        """Connect, and serve until no link is left. Raises: nothing."""
        try:
            with self.scope, suppress(AmqpMeshError):  # its links are told what that is
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
        """`link` is over, or goes on elsewhere: the last one closes it."""
        super().remove(link)
        if self._is_empty:
            self._emptied.set()
            if self.client_connection is None:
                self._first.cut_off(self)
                self.scope.cancel()

    def attach_later(self, link: ClientLink, losses: int) -> None:
        """Attach it again after a pause of the first connection's."""
        self._first.attach_later(link, losses)

    def to(self, place: Place) -> Dialer:
        """As the first connection finds it."""
        return self._first.to(place)

    @property
    def _is_empty(self) -> bool:
        """Whether nobody is on it but those who answer for others."""
        return all(link in self._reply_senders.values() for link in self._links)

    def _fail(self, error: AmqpMeshError) -> None:
        self._first.cut_off(self)
        super()._fail(error)
        self._emptied.set()
