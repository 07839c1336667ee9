"""What senders and receivers have in common: attached as long as `async with` lasts, over one connection or several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import trio

from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    LinkDetachedError,
    SessionEndedError,
    link_detached,
    shown,
)
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.client.arguments import text
from amqpmesh.router.io.dialing import LASTING

if TYPE_CHECKING:
    from amqpmesh.router.amqp.events import DeliveriesGathered, LinkDetached, TransferReceived
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.client_connection import ClientConnection
    from amqpmesh.router.client.link_manager import LinkManager
    from amqpmesh.router.kernel import Delivery as KernelDelivery

LEAVE_TIME: Final = 1.0
"""Seconds that the peer has to answer when a link is left."""

E = TypeVar("E", bound=AmqpMeshError)


class Stage(Enum):
    """Where a link is in its life."""

    NEW = auto()
    #: It waits for a connection, or for the peer's attach.
    COMING = auto()
    ATTACHED = auto()
    #: It failed for good, or was left.
    OVER = auto()


def again(error: E) -> E:
    """The same error for one more raising, without the traceback of the one before."""
    return type(error)(*error.args)


class ClientLink(ABC):
    """A link of a program's. It outlives the engine's link endpoint, as a connection may be lost and come back."""

    #: What programs call it.
    kind: ClassVar[str]
    #: Of its address.
    _way: ClassVar[str]

    def __init__(self, home: LinkManager, name: str, address: str | None) -> None:
        self._home = home
        #: The link's name (§2.6.1).
        self.name = name
        #: What the peer attached; before that, what was asked for.
        self.address = text("address", address)
        self._stage = Stage.NEW
        self._failure: AmqpMeshError | None = None
        self._client_connection: ClientConnection | None = None
        self._session: Session | None = None
        self._link: Link | None = None
        #: Where the peer's answer to our detach is to come.
        self._leaving: ClientConnection | None = None
        #: When it was attached, and how often in a row it did not stay so for long.
        self._since = 0.0
        self._losses = 0
        #: Replaced when something changed that somebody may wait for.
        self._change = trio.Event()

    def described(self) -> str:
        """How it stands, for people."""
        return f"{shown(self.name)} {self._way} {shown(self.address)} {self._stage.name.lower()}"

    # -------------------------------------------------------------------------------------------------- for the program

    async def enter(self) -> None:
        """Attach, and wait for the peer's attach. Raises: as `Attached.__aenter__`."""
        self.start()
        try:
            await trio.lowlevel.checkpoint()
            while self._stage is not Stage.ATTACHED:
                self.check()
                await self._change.wait()
        except BaseException:
            await self.leave(clean=False)
            raise

    async def leave(self, *, clean: bool) -> None:
        """Detach. Args: clean: nothing failed and nobody was cancelled: what is due before may take its time."""
        if self._stage is Stage.OVER and self._link is None:
            if clean:  # else there is an error that goes on from here, and Cancelled must not take its place
                await trio.lowlevel.checkpoint()
            return
        try:
            if self._stage in (Stage.ATTACHED, Stage.COMING):
                await self._finish(clean=clean)
        finally:
            self.stop()
            with trio.move_on_after(LEAVE_TIME, shield=True):
                while self._link is not None:
                    await self._change.wait()
            self.give_up_detach()
        if clean:
            await trio.lowlevel.checkpoint_if_cancelled()

    # ------------------------------------------------------------------------------------------------- for the package

    def start(self) -> None:
        """Attach, now or when there is a connection. Raises: CommandError, ConnectionClosedError: as `enter`."""
        if self._stage is not Stage.NEW:
            raise CommandError(f"a {self.kind} is entered once")
        self._home.add(self)
        self._stage = Stage.COMING
        self._home.wake()
        self.attach_now()

    def attach_now(self) -> None:
        """Attach, if there is a connection where it is to be attached now."""
        client_connection = self._home.client_connection
        if client_connection is not None and client_connection.is_open:
            self.attach_to(client_connection)

    def attach_to(self, client_connection: ClientConnection) -> None:
        """Attach over this connection."""
        if self._stage is not Stage.COMING or self._link is not None:
            return
        self._client_connection = client_connection
        try:
            self._session = self._choose_session(client_connection)
            self._link = self._attach(self._session)
        except CommandError as error:
            # Nothing was sent of the link; a session that was begun for it is of no use.
            session, self._session, self._client_connection = self._session, None, None
            if session is not None:
                client_connection.drop(self, session)
            self._fail(CommandError(f"cannot be attached: {error}"))
            return
        self._link.context = self

    def check(self) -> None:
        """Raises: AmqpMeshError: it is over, and why; CommandError: it was not entered, or was left."""
        if self._failure is not None:
            raise again(self._failure)
        if self._stage is Stage.NEW:
            raise CommandError(f"a {self.kind} is used inside `async with`")
        if self._stage is Stage.OVER:
            raise CommandError(f"the {self.kind} was left")

    @property
    def is_attached(self) -> bool:
        """Whether the peer has attached, too."""
        return self._stage is Stage.ATTACHED

    @property
    def credit(self) -> int:
        """Deliveries that the sending end may send now, as far as it is known here (link-credit, §2.6.7)."""
        return self._link.credit if self._link is not None and self.is_attached else 0

    @property
    def is_over(self) -> bool:
        """Whether it failed for good, or was left."""
        return self._stage is Stage.OVER

    @property
    def was_left(self) -> bool:
        """Whether the program left it."""
        return self._stage is Stage.OVER and self._failure is None

    @property
    def peer(self) -> str:
        """The container-id of whoever it is attached to, for logs; empty: it is not attached."""
        remote = self._client_connection.engine.remote if self._client_connection is not None else None
        return remote.container_id if remote is not None else ""

    @property
    def engine_state(self) -> LinkEndpointState:
        """Of the link endpoint (figure 2.33)."""
        return LinkEndpointState.DETACHED if self._link is None else self._link.state

    # ----------------------------------------------------------------------------------------------- the peer, the wire

    def attached(self, attach: Attach) -> None:
        """The peer's attach came (§2.6.3)."""
        if not self._accepts(attach):
            return  # refused: its detach says why
        wanting = self._wanting(attach)
        if wanting is not None:
            assert self._link is not None
            self._link.detach(error=Error(condition=AmqpCondition.NOT_IMPLEMENTED, description=wanting))
            self._lose(LinkDetachedError(wanting), final=True)
            return
        self._stage = Stage.ATTACHED
        self._since = trio.current_time()
        self._begin_use(attach)
        self._changed()

    def detached(self, event: LinkDetached) -> None:
        """The peer detached, or we did for what it did wrong; both sides know."""
        error = link_detached("the link was detached", event.error)
        if event.error is None and self._stage is Stage.COMING:
            error = LinkDetachedError("the peer refused the link and gave no reason")
        gone_for_now = event.error is None and not event.closed
        forced = event.error is not None and event.error.condition == LinkCondition.DETACH_FORCED
        self._lose(error, final=not ((gone_for_now or forced) and event.by_peer))

    def session_ended(self, error: SessionEndedError) -> None:
        """Its session is over. One that ends with an error before the link was attached is a refusal of the link."""
        if self._stage is Stage.COMING and error.error is not None:
            self._lose(link_detached("the peer refused the link, and ended its session", error.error), final=True)
        else:
            self._lose(error, final=False)

    @abstractmethod
    def connection_lost(self, error: AmqpMeshError, *, final: bool) -> None:
        """Its connection is over; `final`: and there will be no other."""

    def seen_off(self) -> None:
        """The peer has answered our detach, or never will."""
        self._link = None
        self._changed()

    @abstractmethod
    def transferred(self, event: TransferReceived) -> None:
        """A frame of a delivery came."""

    def gathered(self, event: DeliveriesGathered) -> None:  # noqa: ARG002 - of those who have
        """Whole deliveries came: only to those who have asked the kernel for it."""
        raise AssertionError("the fast path is not enabled")

    @abstractmethod
    def disposed(self, delivery: KernelDelivery, state: bytes | None, settled: bool) -> None:
        """The peer told its state of a delivery, or settled it."""

    @abstractmethod
    def flowed(self) -> None:
        """The peer's flow state of the link came, or credit was used without a delivery."""

    @abstractmethod
    def can_go_on(self) -> None:
        """Frames can be sent again."""

    # -------------------------------------------------------------------------------------------- of senders, receivers

    @abstractmethod
    def _choose_session(self, client_connection: ClientConnection) -> Session:
        """The session to attach on."""

    @abstractmethod
    def _attach(self, session: Session) -> Link:
        """Send our attach."""

    @abstractmethod
    def _accepts(self, attach: Attach) -> bool:
        """Whether the peer's attach has what was asked for; without, its detach follows (§2.6.3)."""

    def _wanting(self, attach: Attach) -> str | None:  # noqa: ARG002 - of receivers
        """What the peer's attach leaves out and the program cannot do without; None: nothing."""
        return None

    @abstractmethod
    def _begin_use(self, attach: Attach) -> None:
        """Both have attached."""

    @abstractmethod
    def _lost(self, error: AmqpMeshError, *, final: bool) -> None:
        """The link endpoint is gone: what becomes of its deliveries, and of those who wait."""

    @abstractmethod
    async def _finish(self, *, clean: bool) -> None:
        """What is due before the detach. It may wait; what it waits for is bounded unless `clean`."""

    # ----------------------------------------------------------------------------------------------------------- inside

    def _changed(self) -> None:
        change, self._change = self._change, trio.Event()
        change.set()

    def _fail(self, error: AmqpMeshError) -> None:
        """It is over for good."""
        self._failure = error
        self._stage = Stage.OVER
        self._home.remove(self)
        self._lost(error, final=True)
        self._changed()

    def _lose(self, error: AmqpMeshError, *, final: bool, again: bool = True) -> None:
        """The link endpoint is gone. Args: final: for good. again: it is to be attached again, after a pause; else
        somebody else sees to that.
        """
        if self._stage is Stage.OVER:
            self.seen_off()
            return
        lasted = self._has_lasted
        self._let_go()
        if final or (again and not self._may_come_again):
            self._fail(error)
            return
        self._come_again(error)
        if again:
            self._losses = 1 if lasted else self._losses + 1
            self._go_home()
            if not self.is_over:
                self._home.attach_later(self, self._losses)

    @property
    @abstractmethod
    def _may_come_again(self) -> bool:
        """Whether it is attached again after a loss."""

    @abstractmethod
    def _go_home(self) -> None:
        """Begin again where the program said, wherever redirects had led."""

    @property
    def _has_lasted(self) -> bool:
        """Whether it was attached, and for so long that what comes next is not the same try."""
        return self._stage is Stage.ATTACHED and trio.current_time() - self._since >= LASTING

    def _let_go(self) -> None:
        """The link endpoint is gone, and its session of no use."""
        session, client_connection = self._session, self._client_connection
        self._link = self._session = self._client_connection = None
        if client_connection is not None and session is not None:
            client_connection.drop(self, session)

    def _come_again(self, error: AmqpMeshError) -> None:
        """It waits to be attached once more."""
        self._stage = Stage.COMING
        self._lost(error, final=False)
        self._changed()

    def give_up_detach(self) -> None:
        """The peer need not answer the detach any more: the session is ended, and the link with it (§2.5.2)."""
        if self._link is not None and self._leaving is not None:
            self._leaving.give_up(self)
            self._link = None

    def stop(self) -> None:
        """Detach, without waiting for the peer."""
        if self._stage is not Stage.OVER:
            self._stage = Stage.OVER
            self._home.remove(self)
            self._lost(CommandError(f"the {self.kind} was left"), final=True)
        link, session, client_connection = self._link, self._session, self._client_connection
        if link is None or session is None or client_connection is None:
            return
        self._session = self._client_connection = None
        if client_connection.failure is not None or not session.can_send:
            self._link = None
            return
        try:
            if link.state in (LinkEndpointState.ATTACHED, LinkEndpointState.ATTACH_SENT):
                link.detach()
        except CommandError:
            self._link = None
            return
        self._leaving = client_connection
        client_connection.leave(self, session)
