"""`ClientLink`: the common base of sending and receiving links, attached over one connection or several in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.client.links.arguments import text
from amqpmesh.router.client.links.endings import AFTER, ENDINGS, Action, Ending, Stage, detach_ending
from amqpmesh.router.io.dialing import LASTING

if TYPE_CHECKING:
    from amqpmesh.router.amqp.events import DeliveriesGathered, LinkDetached, TransferReceived
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.links.client_connection import ClientConnection
    from amqpmesh.router.client.links.link_manager import LinkManager
    from amqpmesh.router.kernel import Delivery as KernelDelivery

LEAVE_TIME: Final = 1.0
"""Seconds that the peer has to answer our `detach` when the program leaves a link."""

# Stages that each delivery is asked about. To read one from its class costs as much as a call (Python 3.11).
_NEW: Final = Stage.NEW
_ATTACHED: Final = Stage.ATTACHED
_ENDING: Final = (Stage.LEAVING, Stage.OVER)

E = TypeVar("E", bound=AmqpMeshError)


def without_traceback(error: E) -> E:
    """Return a copy of the error to raise once more, without the traceback of its last raise."""
    return type(error)(*error.args)


class ClientLink(ABC):
    """A link of a program. It outlives the engine's link endpoint, since a connection may be lost and made again."""

    #: The word for it in messages to programs.
    kind: ClassVar[str]
    #: The preposition before its address: "to" or "from".
    _direction: ClassVar[str]

    def __init__(self, manager: LinkManager, name: str, address: str | None) -> None:
        self._manager = manager
        #: Spans for its messages; None: the program has not asked for them.
        self.spans = manager.spans
        #: The link's name (§2.6.1).
        self.name = name
        #: The address that the peer attached; before that, the address that was asked for.
        self.address = text("address", address)
        self._stage = Stage.NEW
        self._failure: AmqpMeshError | None = None
        self._client_connection: ClientConnection | None = None
        self._session: Session | None = None
        self._link: Link | None = None
        #: The connection on which the peer is to answer our `detach`.
        self._leaving: ClientConnection | None = None
        #: The time of the last attach, and the number of quick losses in a row.
        self._since = 0.0
        self._losses = 0
        #: Set and replaced at each change that a task may wait for.
        self._change = trio.Event()

    def described(self) -> str:
        """Return the link's state, for people."""
        return f"{shown(self.name)} {self._direction} {shown(self.address)} {self._stage.name.lower()}"

    # -------------------------------------------------------------------------------------------------- for the program

    async def enter(self) -> None:
        """Attach, and wait for the peer's `attach`. Raises: as `PublicLink.__aenter__`."""
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
        """Detach.

        Args: clean: there was no error and no cancellation, so waiting deliveries may take their time.
        """
        if self._stage is Stage.OVER:
            if clean:  # else an error is on its way out, and Cancelled must not replace it
                await trio.lowlevel.checkpoint()
            return
        try:
            if not self.is_over and self._stage is not Stage.NEW:
                await self._finish(clean=clean)
        finally:
            self.stop()
            with trio.move_on_after(LEAVE_TIME, shield=True):
                while self._stage is Stage.LEAVING:
                    await self._change.wait()
            self.detach_unanswered()
        if clean:
            await trio.lowlevel.checkpoint_if_cancelled()

    # -------------------------------------------------------------------------------------------------- for the package

    def start(self) -> None:
        """Attach, now or when there is a connection. Raises: CommandError, ConnectionClosedError: as `enter`."""
        if self._stage is not Stage.NEW:
            raise CommandError(f"a {self.kind} is entered once")
        self._manager.add(self)
        self._stage = Stage.DETACHED
        self._manager.request_connection()
        self.attach_now()

    def attach_now(self) -> None:
        """Attach, if the link's manager has an open connection."""
        client_connection = self._manager.client_connection
        if client_connection is not None and client_connection.is_open:
            self.attach_to(client_connection)

    def attach_to(self, client_connection: ClientConnection) -> None:
        """Attach over this connection, if the link waits for one."""
        if self._stage is not Stage.DETACHED:
            return
        self._client_connection = client_connection
        try:
            self._session = self._choose_session(client_connection)
            self._link = self._attach(self._session)
        except CommandError as error:
            self._end(Ending.UNATTACHABLE, CommandError(f"cannot be attached: {error}"))
            return
        self._link.context = self
        self._stage = Stage.ATTACHING

    def check(self) -> None:
        """Check that the link is usable.

        Raises: AmqpMeshError: the error that ended it. CommandError: the program has not entered it, or has left it.
        """
        if self._failure is not None:
            raise without_traceback(self._failure)
        if self._stage is _NEW:
            raise CommandError(f"a {self.kind} is used inside `async with`")
        if self.is_over:
            raise self._left_error()

    @property
    def is_attached(self) -> bool:
        """True if both ends have attached."""
        return self._stage is _ATTACHED

    @property
    def credit(self) -> int:
        """The number of deliveries that the sending end may send now, as known at this end (link-credit, §2.6.7)."""
        return self._link.credit if self._link is not None and self.is_attached else 0

    @property
    def is_over(self) -> bool:
        """True if the link failed for good, or the program has left it."""
        return self._stage in _ENDING

    @property
    def was_left(self) -> bool:
        """True if the program has left the link."""
        return self.is_over and self._failure is None

    @property
    def peer(self) -> str:
        """The container-id of the peer, for logs; empty: the link is not attached."""
        remote = self._client_connection.engine.remote if self._client_connection is not None else None
        return remote.container_id if remote is not None else ""

    @property
    def engine_state(self) -> LinkEndpointState:
        """The state of the link endpoint (figure 2.33)."""
        return LinkEndpointState.DETACHED if self._link is None else self._link.state

    # ----------------------------------------------------------------------------------------------- the peer, the wire

    def attach_received(self, attach: Attach) -> None:
        """Handle the peer's `attach` (§2.6.3)."""
        if self._stage is not Stage.ATTACHING or not self._accepts(attach):
            return  # the program has left meanwhile, or the peer refuses and its `detach` follows with the reason
        missing = self._missing_from(attach)
        if missing is not None:
            assert self._link is not None
            self._link.detach(error=Error(condition=AmqpCondition.NOT_IMPLEMENTED, description=missing))
            self._end(Ending.UNSUITABLE, LinkDetachedError(missing))
            return
        self._stage = Stage.ATTACHED
        self._since = trio.current_time()
        self._begin_use(attach)
        self._changed()

    def detach_received(self, event: LinkDetached) -> None:
        """End the link endpoint: the peer has detached, or our engine has, for a fault of the peer."""
        error = link_detached("the link was detached", event.error)
        if event.error is None and self._stage is Stage.ATTACHING:
            error = LinkDetachedError("the peer refused the link and gave no reason")
        self._end(detach_ending(event), error)

    def session_ended(self, error: SessionEndedError) -> None:
        """End the link endpoint with its session. An error that comes before the peer's `attach` refuses the link."""
        if error.error is None:
            self._end(Ending.SESSION_ENDED, error)
        elif self._stage is Stage.ATTACHING:
            refusal = link_detached("the peer refused the link, and ended its session", error.error)
            self._end(Ending.SESSION_FAILED, refusal)
        else:
            self._end(Ending.SESSION_FAILED, error)

    def connection_lost(self, error: AmqpMeshError, *, final: bool) -> None:
        """End the link endpoint with its connection. Args: final: the manager makes no other connection."""
        if not final:
            self._end(Ending.CONNECTION_LOST, error)
        else:
            self._end(Ending.CONNECTION_OVER if self._at_origin else Ending.REDIRECT_LOST, error)

    def detach_answered(self) -> None:
        """Forget the link endpoint: the peer has answered our `detach`, or cannot do so any more."""
        self._end(Ending.ANSWERED, self._left_error())

    def detach_unanswered(self) -> None:
        """Stop waiting for the answer to our `detach`, if it has not come."""
        self._end(Ending.UNANSWERED, self._left_error())

    def stop(self) -> None:
        """Detach, without waiting for the peer."""
        self._end(Ending.LEFT, self._left_error())

    @abstractmethod
    def transfer_received(self, event: TransferReceived) -> None:
        """Handle a frame of a delivery."""

    def delivery_resumed(self, delivery: KernelDelivery) -> None:  # noqa: ARG002 - of receivers with a history
        """Handle a delivery of a former link endpoint that the sender goes on with (§2.6.13)."""
        raise AssertionError("the map of the attach named none")

    def batch_received(self, event: DeliveriesGathered) -> None:  # noqa: ARG002 - of batch links
        """Handle a batch of whole deliveries. Only links that enabled the kernel's fast path get any."""
        raise AssertionError("the fast path is not enabled")

    @abstractmethod
    def disposition_received(self, delivery: KernelDelivery, state: bytes | None, settled: bool) -> None:
        """Handle the peer's disposition of a delivery: its state, its settlement, or both."""

    @abstractmethod
    def flow_received(self) -> None:
        """Handle the peer's `flow` of the link, or credit that was used up without a delivery."""

    @abstractmethod
    def resume_sending(self) -> None:
        """Send frames again: the session's window has opened, or the connection has written its backlog."""

    # ---------------------------------------------------------------------------------------- for senders and receivers

    @abstractmethod
    def _choose_session(self, client_connection: ClientConnection) -> Session:
        """Return the session to attach on."""

    @abstractmethod
    def _attach(self, session: Session) -> Link:
        """Send our `attach`."""

    @abstractmethod
    def _accepts(self, attach: Attach) -> bool:
        """Return whether the peer's `attach` names our terminus; if not, its `detach` follows (§2.6.3)."""

    def _missing_from(self, attach: Attach) -> str | None:  # noqa: ARG002 - of receivers
        """Return a description of what the peer's `attach` lacks and the program needs; None: nothing."""
        return None

    @abstractmethod
    def _begin_use(self, attach: Attach) -> None:
        """Start to use the link, which both ends have attached."""

    @abstractmethod
    def _endpoint_lost(self, error: AmqpMeshError, *, final: bool) -> None:
        """End the deliveries that are lost with the link endpoint, and wake waiting tasks."""

    @abstractmethod
    async def _finish(self, *, clean: bool) -> None:
        """Settle or release what is left of the deliveries before our `detach`.

        Args: clean: the program leaves in good order, so this may wait without a limit.
        """

    # ------------------------------------------------------------------------------------------------------ its changes

    def _changed(self) -> None:
        change, self._change = self._change, trio.Event()
        change.set()

    def _left_error(self) -> CommandError:
        return CommandError(f"the {self.kind} was left")

    # ---------------------------------------------------------------------------------------------------------- endings

    def _end(self, ending: Ending, error: AmqpMeshError) -> None:
        """Take the action that the table has for an ending in this stage.

        Args: error: for the tasks that use the link, and for the deliveries that are lost with it.
        """
        action = ENDINGS[self._stage].get(ending)
        if action is Action.RETRY and not self._reconnects:
            action = Action.FAIL
        match action:
            case Action.FAIL:
                self._fail(error)
            case Action.RETRY:
                self._retry(error)
            case Action.AWAIT:
                self._await(error)
            case Action.FOLLOW:
                self._follow(error)
            case Action.ACCOMPANY:
                self._follow_companion(error)
            case Action.CLOSE:
                self._apply(Action.CLOSE, error)
            case Action.DETACH:
                self._detach(error)
            case Action.FINISH:
                self._forget(Action.FINISH)
            case Action.ABANDON:
                assert self._leaving is not None, "our `detach` was sent"
                self._leaving.abandon_detach(self)
                self._forget(Action.ABANDON)

    def _apply(self, action: Action, error: AmqpMeshError) -> None:
        """Enter the stage that follows an action, and end the deliveries that are lost with the link endpoint."""
        self._stage = AFTER[action]
        if self.is_over:
            self._manager.remove(self)
        self._endpoint_lost(error, final=self.is_over)
        self._changed()

    def _fail(self, error: AmqpMeshError) -> None:
        self._drop_endpoint()
        self._failure = error
        self._apply(Action.FAIL, error)

    def _retry(self, error: AmqpMeshError) -> None:
        self._losses = 1 if self._has_lasted else self._losses + 1
        self._drop_endpoint()
        self._apply(Action.RETRY, error)
        self._return_to_origin()
        if not self.is_over:
            self._manager.attach_later(self, self._losses)

    def _detach(self, error: AmqpMeshError) -> None:
        link, session, client_connection = self._link, self._session, self._client_connection
        assert link is not None, "it has a link endpoint"
        assert session is not None, "it has a link endpoint"
        assert client_connection is not None, "it has a link endpoint"
        self._apply(Action.DETACH, error)
        self._session = self._client_connection = None
        if client_connection.failure is not None or not session.can_send:
            self.detach_answered()
            return
        try:
            if link.state in (LinkEndpointState.ATTACHED, LinkEndpointState.ATTACH_SENT):
                link.detach()
        except CommandError:  # the output is full
            self.detach_answered()
            return
        self._leaving = client_connection
        client_connection.await_detach(self, session)

    def _forget(self, action: Action) -> None:
        """Forget the link endpoint that our `detach` ends."""
        self._link = None
        self._stage = AFTER[action]
        self._changed()

    def _drop_endpoint(self) -> None:
        """Drop the link endpoint, and its session if no other link is on it."""
        session, client_connection = self._session, self._client_connection
        self._link = self._session = self._client_connection = None
        if client_connection is not None and session is not None:
            client_connection.release_session(self, session)

    @property
    def _has_lasted(self) -> bool:
        """True if the link was attached for so long that its next loss counts as the first one."""
        return self._stage is Stage.ATTACHED and trio.current_time() - self._since >= LASTING

    # -------------------------------------------------------------------------------------------------- of redirections

    @property
    @abstractmethod
    def _reconnects(self) -> bool:
        """True if the link attaches again after a loss."""

    @property
    @abstractmethod
    def _at_origin(self) -> bool:
        """True if the link's manager is the one that the program asked for the link: the link follows no redirect."""

    @abstractmethod
    def _return_to_origin(self) -> None:
        """Return the link to the manager and the address that the program asked for."""

    @abstractmethod
    def _await(self, error: AmqpMeshError) -> None:
        """Wait for the next connection."""

    @abstractmethod
    def _follow(self, error: AmqpMeshError) -> None:
        """Attach the link where the peer has redirected it, or fail (§2.8.18)."""

    @abstractmethod
    def _follow_companion(self, error: AmqpMeshError) -> None:
        """Detach the link, and attach it over the connection of its companion, which was redirected."""
