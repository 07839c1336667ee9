"""The answer of a sender to each entry of the map of a peer that is no router of ours (§3.4.6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from amqpmesh import InDoubtError
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Received, Released
from amqpmesh.router.amqp.standard.performatives import Detach, Disposition, Transfer
from amqpmesh.router.message.outcomes import ALL_RECEIVED, ReleasedError
from tests.router.client.test_sending_again import attached, end, leave
from tests.support.peers.library_client import Host, Roads
from tests.support.peers.scripted_stream import credit
from tests.support.tasks.calls import Call

PART: Final = Received(section_number=1, section_offset=2)


class Peer:
    """A peer that is lost once it has a message, and says what it has of it when the sender is back."""

    def __init__(self, roads: Roads, state: DeliveryState | None) -> None:
        self.roads, self.state = roads, state
        self.first: list[Transfer] = []
        self.came: list[Transfer] = []
        self.octets = [b"", b""]
        self.settled = False
        self.next = self.come_back
        roads.lead_to(self.lose)

    async def take(self, host: Host, came: list[Transfer]) -> bytes:
        """Give credit, and take the frames of a delivery. Returns: its octets."""
        await host.write(replace(credit(9), next_incoming_id=0), channel=host.channel)
        octets = b""
        while not came or came[-1].more:
            came.append(await host.expect(Transfer))
            octets += host.payload
        return octets

    async def lose(self, stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await attached(host)
        self.octets[0] = await self.take(host, self.first)
        self.roads.lead_to(self.next)
        await trio.aclose_forcefully(stream)

    async def come_back(self, stream: trio.abc.Stream) -> None:
        host = Host(stream)
        tag = self.first[0].delivery_tag
        assert tag is not None
        await attached(host, {tag: self.state})
        self.octets[1] = await self.take(host, self.came)
        if not self.came[-1].aborted:
            if not isinstance(self.state, Accepted):
                await host.write(Disposition(role=Role.RECEIVER, first=0, state=Accepted()), channel=host.channel)
            self.settled = bool((await host.expect(Disposition)).settled)
        await end(host)


@pytest.mark.parametrize("length", [5, 300_000])
@pytest.mark.parametrize(
    ("state", "is_whole"),
    [(None, False), (PART, False), (ALL_RECEIVED, True), (Accepted(), True)],
    ids=["4: null", "2: a part", "6: all", "3: the outcome"],
)
async def test_a_peer_gets_the_octets_again_that_it_may_lack(
    nursery: trio.Nursery, autojump_clock: MockClock, state: DeliveryState | None, is_whole: bool, length: int
) -> None:
    roads = Roads(nursery)
    peer = Peer(roads, state)
    async with (
        roads.connect(reconnect=True, mechanisms=()) as connection,
        connection.sender("q", exactly_once=True) as sender,
    ):
        await Call(nursery, sender.send, "x" * length).result()
    first = peer.came[0]
    assert (first.resume, first.delivery_tag) == (True, peer.first[0].delivery_tag)
    assert peer.octets[1] == (b"" if is_whole else peer.octets[0])
    assert first.state == (state if is_whole else None)
    assert peer.settled


@pytest.mark.parametrize("state", [None, PART], ids=["9: null", "7: a part"])
async def test_what_a_peer_has_in_part_and_is_not_kept_is_aborted_and_in_doubt(
    nursery: trio.Nursery, autojump_clock: MockClock, state: DeliveryState | None
) -> None:
    roads = Roads(nursery)
    peer = Peer(roads, state)
    async with (
        roads.connect(reconnect=True, mechanisms=()) as connection,
        connection.sender("q", resume=30.0) as sender,
    ):
        call = Call(nursery, sender.send, "hello")
        with pytest.raises(InDoubtError):
            await call.result()
    (transfer,) = peer.came
    assert (transfer.resume, transfer.aborted) == (True, True)
    assert peer.octets[1] == b""


async def test_a_connection_that_is_lost_while_octets_are_sent_again_changes_nothing(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    peer = Peer(roads, None)
    parts: list[Transfer] = []

    async def lose_amid(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        tag = peer.first[0].delivery_tag
        assert tag is not None
        await attached(host, {tag: None}, incoming_window=1)
        await host.write(replace(credit(9), next_incoming_id=0, incoming_window=1), channel=host.channel)
        parts.append(await host.expect(Transfer))
        roads.lead_to(peer.come_back)
        await trio.sleep(1)  # nothing more comes
        await trio.aclose_forcefully(stream)

    peer.next = lose_amid
    async with (
        roads.connect(reconnect=True, mechanisms=()) as connection,
        connection.sender("q", exactly_once=True) as sender,
    ):
        await Call(nursery, sender.send, "x" * 600_000).result()
    (part,) = parts
    assert (part.resume, part.more) == (True, True)
    assert (peer.came[0].resume, peer.came[0].delivery_tag) == (True, peer.first[0].delivery_tag)
    assert peer.octets[1] == peer.octets[0]
    assert peer.settled


@pytest.mark.parametrize("losses", [0, 1, 4])
async def test_losses_while_octets_are_sent_again_allow_no_more_tries(
    nursery: trio.Nursery, autojump_clock: MockClock, losses: int
) -> None:
    """A message that is released is sent three times. Args: losses: amid what is sent again as the first of them."""
    roads = Roads(nursery)
    peer = Peer(roads, None)
    left = [losses]
    released: list[bytes] = []

    async def lose_amid(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        tag = peer.first[0].delivery_tag
        assert tag is not None
        await attached(host, {tag: None}, incoming_window=1)
        await host.write(replace(credit(9), next_incoming_id=0, incoming_window=1), channel=host.channel)
        assert (await host.expect(Transfer)).more
        left[0] -= 1
        roads.lead_to(lose_amid if left[0] else release_all)
        await trio.aclose_forcefully(stream)

    async def release_all(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        tag = peer.first[0].delivery_tag
        assert tag is not None
        await attached(host, {tag: None})
        await host.write(replace(credit(9), next_incoming_id=0), channel=host.channel)
        with pytest.raises(AssertionError, match="Detach"):
            while True:
                came = [await host.expect(Transfer)]
                while came[-1].more:
                    came.append(await host.expect(Transfer))
                number = came[0].delivery_id
                assert number is not None
                released.append(came[0].delivery_tag or b"")
                said = Disposition(role=Role.RECEIVER, first=number, settled=True, state=Released())
                await host.write(said, channel=host.channel)
        await host.write(Detach(handle=0, closed=True), channel=host.channel)
        await leave(host)

    peer.next = lose_amid if losses else release_all
    async with (
        roads.connect(reconnect=True, mechanisms=()) as connection,
        connection.sender("q", exactly_once=True) as sender,
    ):
        with pytest.raises(ReleasedError):
            await Call(nursery, sender.send, "x" * 300_000).result()
    assert released[0] == peer.first[0].delivery_tag
    assert len(set(released)) == len(released) == 3
