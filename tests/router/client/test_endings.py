"""Endings of a client's link: for each cell of the table, the effects that the program and the peer see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Described, Extension, Symbol
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ConnectionClosedError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition, Role
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.amqp.standard.performatives import Attach, Detach, End
from amqpmesh.router.client.links.endings import AFTER, ENDINGS, Action, Ending, Stage
from amqpmesh.router.endpoint_setup import CAPABILITIES
from amqpmesh.router.io.dialing import Backoff, PermanentError
from tests.support.peers.scripted_server import Counterpart, Far
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.connect import Connection
    from amqpmesh.router.config.urls import Endpoint

B = "amqp://b.example:5672"
ELSEWHERE = Error(condition=LinkCondition.REDIRECT, info={Symbol("hostname"): "b.example"})
FAULT = Error(condition=AmqpCondition.INTERNAL_ERROR)
UNKNOWN = Extension(encode(Described(Symbol("example:source"), [])))
RED = {"colour": Described(Symbol("example:selector"), "red")}
PAUSE = Backoff(first=8.0, longest=8.0)

E, S = Ending, Stage


class Life:
    """A link of a program, the peer that it is attached to, and the peer that redirects lead to."""

    def __init__(self, nursery: trio.Nursery, kind: str, ending: Ending) -> None:
        self.nursery = nursery
        self.kind = kind
        self.ending = ending
        fields: dict[str, Any] = {"offered_capabilities": CAPABILITIES}
        if ending is E.UNATTACHABLE:
            fields["max_frame_size"] = 512
        elif ending is E.UNSUITABLE:
            fields["attach"] = {"source": Source(address="q")}
        self.a = Counterpart(nursery, **fields)
        self.b = Counterpart(nursery)
        self.a.roads.lead_to(self.b.serve, B)
        self.is_refused = False
        self.connection: Connection
        self.link: Any
        self.entering: Call[Any]
        self.leaving: Call[None]
        self.left_at = 0.0
        #: The far end of the link.
        self.far: Far

    def connect(self, stage: Stage) -> Connection:
        """Return the connection. It does not reconnect if the ending under test is the final loss of the connection."""
        is_final = self.ending is E.CONNECTION_OVER and stage is not S.DETACHED
        self.connection = self.a.connect(
            reconnect=False if is_final else PAUSE, redirects=["b.example"], open_stream=self._open
        )
        return self.connection

    async def _open(self, endpoint: Endpoint) -> trio.abc.Stream:
        if self.is_refused:
            raise PermanentError(ConnectionClosedError("no connection is to be had"))
        return await self.a.roads.open(endpoint)

    @property
    def stage(self) -> Stage:
        """The stage in the link's `repr`."""
        found = re.search(r" (\w+), credit", repr(self.link))
        assert found is not None
        return Stage[found[1].upper()]

    # ------------------------------------------------------------------------------------------------------- the stages

    async def reach(self, stage: Stage) -> None:
        """Bring a new link to a stage. For REDIRECT_LOST, the link is at the peer that a redirect leads to."""
        settings: dict[str, Any] = {"credit": 0} if self.kind == "receiver" else {}
        if self.ending is E.UNSUITABLE:
            settings["filter"] = RED
        self.link = getattr(self.connection, self.kind)("q" * (600 if self.ending is E.UNATTACHABLE else 1), **settings)
        if stage is S.NEW or self.ending in (E.UNATTACHABLE, E.UNSUITABLE):
            return
        peer = self.a
        if self.ending is E.REDIRECT_LOST:
            self.a.refuse = {Role.SENDER: ELSEWHERE, Role.RECEIVER: ELSEWHERE}
            peer = self.b
            if stage is S.DETACHED:
                self.a.roads.lead_to(_say_nothing, B)
        if stage is S.ATTACHING:
            peer.mute = {Attach, Detach}
        self.entering = Call(self.nursery, self.link.__aenter__)
        await wait_all_tasks_blocked()
        if self.ending is E.REDIRECT_LOST and stage is S.DETACHED:
            return
        if stage is S.ATTACHING:
            self.far = Far(peer, await peer.expect(Attach), peer.channel)
            return
        self.far = peer.links[0]
        if stage is S.DETACHED:
            await self.far.detach(closed=False)
            await wait_all_tasks_blocked()
        elif stage is S.LEAVING:
            self.a.mute = {Detach, End}
            await self._leave()

    async def _leave(self) -> None:
        self.left_at = trio.current_time()
        self.leaving = Call(self.nursery, self.link.__aexit__, None, None, None)
        await trio.sleep(0.5)  # a receiver waits for the answer to its last flow

    # ------------------------------------------------------------------------------------------------------ the endings

    async def cause(self, stage: Stage) -> None:
        """Cause the ending."""
        match self.ending:
            case E.UNATTACHABLE | E.UNSUITABLE:
                self.entering = Call(self.nursery, self.link.__aenter__)
            case E.PEER_CLOSED | E.PEER_DETACHED | E.PEER_REDIRECTED:
                if stage is S.ATTACHING:
                    await self._answer(target=None, source=None)
                error = ELSEWHERE if self.ending is E.PEER_REDIRECTED else None
                await self.far.detach(error, closed=self.ending is not E.PEER_DETACHED)
            case E.PEER_VIOLATED if stage is S.ATTACHING:
                await self._answer(target=UNKNOWN, source=UNKNOWN)
            case E.PEER_VIOLATED if self.kind == "receiver":
                await self.far.send(b"\x00\x53\x75\xa0\x00")  # without credit
            case E.PEER_VIOLATED:
                await self.far.flow(1, properties={Symbol("txn-id"): b"unknown"})
            case E.SESSION_ENDED | E.SESSION_FAILED:
                await self.far.end(FAULT if self.ending is E.SESSION_FAILED else None)
            case E.CONNECTION_LOST | E.CONNECTION_OVER:
                self.is_refused = self.ending is E.CONNECTION_OVER
                await self.a.roads.cut()
                await trio.sleep(9 if self.is_refused else 0)
            case E.REDIRECT_LOST:
                self.a.refuse = {}
                await trio.aclose_forcefully(self.a.roads.streams.pop())
            case E.LEFT if stage is S.ATTACHING:
                self.nursery.start_soon(self.entering.cancel)
            case E.LEFT:
                self.a.mute = {Detach}
                await self._leave()
            case E.ANSWERED:
                await self.far.detach()
            case E.UNANSWERED:
                await trio.sleep(1)
            case _:
                raise AssertionError(f"{self.ending} is caused by no step")
        await wait_all_tasks_blocked()

    async def _answer(self, **fields: Any) -> None:
        attach = self.far.attach
        role = Role.SENDER if attach.role is Role.RECEIVER else Role.RECEIVER
        first = {"initial_delivery_count": 0} if role is Role.SENDER else {}
        answer = Attach(name=attach.name, handle=attach.handle, role=role, **first, **fields)
        await self.a.peer.write(answer, channel=self.far.channel)

    # ------------------------------------------------------------------------------------------------------ the actions

    async def check(self, action: Action) -> None:
        """Assert that the action was taken, by its effects on the program and the peers."""
        match action:
            case Action.FAIL:
                error = self.entering.error or await Call(self.nursery, self._use).failure()
                assert isinstance(error, AmqpMeshError)
                assert "was left" not in str(error)
                attached = len(self.a.links)
                await trio.sleep(60)
                assert len(self.a.links) == attached
            case Action.RETRY | Action.AWAIT:
                self.a.mute = set()
                await trio.sleep(10)
                assert self.stage is S.ATTACHED
                assert self.a.links[-1].is_attached
                assert self.connection.reconnections == (1 if action is Action.AWAIT else 0)
            case Action.FOLLOW:
                assert [far.attach.name for far in self.b.links] == [self.link.name]
            case Action.CLOSE:
                assert [type(frame) for frame in await self.a.rest()] == []
                with pytest.raises(CommandError, match="once"):
                    await self.link.__aenter__()
            case Action.DETACH:
                assert [type(frame) for frame in await self.a.rest()] == [Detach]
            case Action.FINISH | Action.ABANDON:
                assert self.leaving.is_done
                assert (trio.current_time() - self.left_at >= 1.0) is (action is Action.ABANDON)
                frames = [type(frame) for frame in await self.a.rest()]
                assert frames[0] is Detach
                assert End in frames or action is Action.FINISH
            case _:
                raise AssertionError(f"{action} is checked elsewhere")

    async def _use(self) -> None:
        await (self.link.send(b"") if self.kind == "sender" else self.link.receive())


async def _say_nothing(_: trio.abc.Stream) -> None:
    await trio.sleep_forever()


CELLS = [
    pytest.param(kind, stage, ending, id=f"{stage.name.lower()}-{ending.name.lower()}-{kind}")
    for stage, row in ENDINGS.items()
    for ending in row
    if ending is not E.COMPANION_MOVED
    for kind in (("receiver",) if ending is E.UNSUITABLE else ("sender", "receiver"))
]


@pytest.mark.parametrize(("kind", "stage", "ending"), CELLS)
async def test_a_link_ends_as_the_table_says(
    kind: str, stage: Stage, ending: Ending, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    life = Life(nursery, kind, ending)
    async with life.connect(stage):
        await life.reach(stage)
        assert life.stage is (S.NEW if ending in (E.UNATTACHABLE, E.UNSUITABLE) else stage)
        await life.cause(stage)
        action = ENDINGS[stage][ending]
        assert life.stage is (S.ATTACHED if action is Action.FOLLOW else AFTER[action])
        await life.check(action)


@pytest.mark.parametrize("stage", [S.DETACHED, S.ATTACHING, S.ATTACHED])
async def test_the_reply_link_of_a_requester_goes_where_its_requests_are_redirected(
    stage: Stage, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    assert ENDINGS[stage][E.COMPANION_MOVED] is Action.ACCOMPANY
    a, b = Counterpart(nursery), Counterpart(nursery)
    a.roads.lead_to(b.serve, B)
    async with a.connect(reconnect=PAUSE, redirects=["b.example"]) as connection, connection.requester("q") as asking:
        replies, requests = a.links
        if stage is not S.ATTACHED:
            await replies.detach(closed=False)
            await wait_all_tasks_blocked()
        if stage is S.ATTACHING:
            a.mute = {Attach}
            await a.expect(Attach)
        await requests.detach(ELSEWHERE)
        await trio.sleep(10)
        assert sorted(far.attach.role.name for far in b.links) == ["RECEIVER", "SENDER"]
        assert asking.reply_to is not None


def test_every_action_leads_to_a_stage_and_every_stage_but_new_to_the_end() -> None:
    assert set(AFTER) == set(Action)
    assert set(ENDINGS) == set(Stage)
    assert {ending for row in ENDINGS.values() for ending in row} == set(Ending)
    for stage in set(Stage) - {S.OVER}:
        assert S.OVER in {AFTER[action] for action in ENDINGS[stage].values()}
