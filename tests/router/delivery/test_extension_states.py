"""Delivery states of extensions, which a router passes on."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.types import Described, Extension, Symbol, ULong
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.config.file import AddressConfig
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Network

LINE = [("A", "B"), ("B", "C")]
NAME = Symbol("x:done:list")
#: Of a number, of a name; of one whose octets are not the shortest, and of one whose name is 36 octets long (0x24).
STATES = [
    encode(Described(ULong(0x99), [])),
    encode(Described(NAME, ["how", {"it": "went"}])),
    bytes.fromhex("00 80 00000000 00000099 d0 00000005 00000001 40"),
    encode(Described(Symbol("x" * 0x24), None)),
    encode(Described(ULong(0x0000468C00000024), [])),
]


@pytest.mark.parametrize("octets", STATES, ids=["number", "name", "long", "0x24 octets", "a domain's 0x24"])
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_state_of_an_extension_reaches_the_other_side_octet_by_octet(octets: bytes, rcv: ReceiverSettleMode) -> None:
    network = Network()
    sender, receiver = network.client(), network.client()
    receiver.receiver("q", rcv=rcv)
    link = sender.sender("q", rcv=rcv)
    state = Extension(octets)
    first, second = sender.send(link, state=octets), sender.send(link)
    arrival, other = receiver.take(2)
    assert arrival.delivery.remote_state == octets, "with the transfer"
    arrival.dispose(state, settled=False)
    network.run()
    assert first.said == [(state, False)], "it may be no outcome: nothing is settled for it"
    second.dispose(state, settled=False)
    network.run()
    assert other.said == [(state, False)]
    arrival.dispose(None, settled=True)
    other.dispose(state, settled=True)
    network.run()
    # A receiver that settles with this state ends the delivery (§2.6.12).
    settled = rcv is ReceiverSettleMode.FIRST
    assert first.said[-1] == (state, settled)
    assert second.said[-1] == (state, settled)
    for sent in (first, second):
        sent.dispose(None, settled=True)
    network.run()
    assert not network.relays
    network.leave()


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_a_state_of_an_extension_crosses_a_mesh(rcv: ReceiverSettleMode) -> None:
    mesh = World("ABC", LINE)
    receiver, sender = mesh["C"].client(), mesh["A"].client()
    receiver.receiver("q", rcv=rcv)
    mesh.advance(0.2)
    sent = sender.send(sender.sender("q", rcv=rcv))
    mesh.advance(0.2)
    (arrival,) = receiver.take(1)
    arrival.dispose(Extension(STATES[1]), settled=rcv is ReceiverSettleMode.FIRST)
    mesh.advance(0.2)
    assert sent.said == [(Extension(STATES[1]), rcv is ReceiverSettleMode.FIRST)]
    sent.dispose(Extension(STATES[0]), settled=True)
    mesh.advance(0.2)
    assert rcv is ReceiverSettleMode.FIRST or arrival.said[-1] == (Extension(STATES[0]), True)
    mesh.leave()


def test_a_sender_may_settle_with_a_state_of_an_extension() -> None:
    network = Network()
    sender, receiver = network.client(), network.client()
    receiver.receiver("q")
    sent = sender.send(sender.sender("q"))
    (arrival,) = receiver.take(1)
    sent.dispose(Extension(STATES[1]), settled=True)
    network.run()
    assert arrival.said == [(Extension(STATES[1]), True)]
    network.leave()


def test_a_state_that_may_be_an_outcome_is_the_strongest_of_a_multicast() -> None:
    network = Network(AddressConfig(pattern="m", distribution=Distribution.MULTICAST))
    sender, receiver = network.client(), network.client()
    for _ in range(3):
        receiver.receiver("m")
    sent = sender.send(sender.sender("m"))
    states: tuple[DeliveryState, ...] = (Accepted(), Extension(STATES[0]), Rejected())
    for arrival, state in zip(receiver.take(3), states, strict=True):
        arrival.dispose(state, settled=True)
    network.run()
    assert sent.said == [(Extension(STATES[0]), True)]
    network.leave()


@pytest.mark.parametrize(
    ("octets", "outcomes", "default", "heard"),
    [
        (STATES[1], [NAME], None, Extension(STATES[1])),
        (STATES[0], [NAME], None, Extension(STATES[0])),
        (STATES[0], ["amqp:released:list", "amqp:modified:list"], None, Modified(delivery_failed=True)),
        (STATES[1], ["amqp:released:list", "x:other:list"], None, Released()),
        (STATES[1], ["amqp:accepted:list"], Released(), Released()),
        (STATES[1], ["amqp:accepted:list"], Extension(STATES[0]), Extension(STATES[0])),
    ],
)
def test_a_state_that_a_source_does_not_list_becomes_one_that_it_does(
    octets: bytes, outcomes: list[str], default: Released | Extension | None, heard: DeliveryState
) -> None:
    network = Network()
    sender, receiver = network.client(), network.client()
    receiver.receiver("q")
    source = Source(outcomes=tuple(map(Symbol, outcomes)), default_outcome=default)
    link = sender.sender("q", source=source)
    assert link.remote is not None
    assert link.remote.source == source, "as it came"
    sent = sender.send(link)
    receiver.take(1)[0].dispose(Extension(octets), settled=True)
    network.run()
    assert sent.said == [(heard, True)]
    network.leave()


def test_a_state_that_the_sender_has_no_room_for_is_told_as_a_failure() -> None:
    network = Network()
    sender, receiver = network.client(max_frame_size=512), network.client()
    receiver.receiver("q")
    link = sender.sender("q")
    sent, other = sender.send(link), sender.send(link)
    long = Extension(encode(Described(NAME, "n" * 600)))
    arrival, progressing = receiver.take(2)
    progressing.dispose(long, settled=False)
    arrival.dispose(long, settled=True)
    network.run()
    assert sent.said == [(Modified(delivery_failed=True), True)]
    assert other.said == [], "what may be no outcome ends nothing"
    progressing.accept()
    network.run()
    assert other.said == [(Accepted(), True)]
    network.leave()


def test_a_receiver_hears_without_it_what_its_frames_have_no_room_for() -> None:
    network = Network()
    sender, receiver = network.client(), network.client(max_frame_size=512)
    receiver.receiver("q")
    long = encode(Described(NAME, "n" * 600))
    sent = sender.send(sender.sender("q"), state=long)
    (arrival,) = receiver.take(1)
    assert arrival.delivery.remote_state is None
    sent.dispose(Extension(long), settled=True)
    network.run()
    assert arrival.said == [(None, True)]
    network.leave()


def test_a_default_outcome_of_an_extension_is_not_in_force() -> None:
    network = Network()
    sender, receiver = network.client(), network.client()
    taking = receiver.receiver(None, source=Source(address="q", default_outcome=Extension(STATES[0])))
    assert taking.remote is not None
    assert isinstance(taking.remote.source, Source)
    assert taking.remote.source.default_outcome is None
    sent = sender.send(sender.sender("q"))
    receiver.take(1)[0].dispose(None, settled=True)
    network.run()
    assert sent.said == [(Modified(delivery_failed=True), True)]
    network.leave()
