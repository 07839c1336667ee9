"""Many and large values in frames: the memory that they keep, and the time that other connections wait."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from types import FrameType

import pytest

from amqpmesh.router.amqp.codec import decoder
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Described, Extension, Symbol
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.standard.definitions import Error, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Modified, Rejected
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations, MessageAnnotations, Source
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Open,
    Performative,
)
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.kernel import Delivery
from amqpmesh.router.model.connections import ConnectionRecord
from tests.support.peers.scripted import AMQP, Script, attached, begun, flow, frame, transferred
from tests.support.worlds.network import Network, message

OCTETS = 24_000
"""The approximate octets of each large value: a frame has 32 KiB at most."""

MANY = 20
"""The number of frames of each kind, if the protocol permits as many."""

KIB = 1024
MAP = {Symbol("x-opt-mesh-many"): [[]] * OCTETS}
"""Empty lists: one octet each on the wire, 56 in memory."""

TEXT = "x" * OCTETS
ERROR = Error(condition=Symbol("x:y"), description="why", info=MAP)


class Attacker:
    """A connection that may send any octets."""

    def __init__(self, network: Network, **limits: object) -> None:
        self.network = network
        listener = replace(network.listener, **limits)  # type: ignore[arg-type]  # the names are the tests'
        self.record = network.core.accept(listener, "192.0.2.1", network.now, secured=False)
        self.peer = Script(self.give, self.take)
        #: CPU seconds of the router for each turn.
        self.turns: list[float] = []

    def give(self, data: bytes) -> None:
        """Pass bytes to the router, in turns, as the edge does."""
        core, now = self.network.core, self.network.now
        while True:
            began = time.thread_time()
            done = core.receive(self.record, data, now)
            self.turns.append(time.thread_time() - began)
            if done:
                return
            data = b""

    def take(self) -> bytes:
        """Return the output of the router."""
        core, now = self.network.core, self.network.now
        data = core.data_to_send(self.record, now)
        core.sent(self.record, now)
        return bytes(data)

    def begin(self) -> None:
        """Open the connection, and begin a session."""
        self.peer.write(AMQP, Open(container_id="attacker"), begun())
        self.take()


def links(**fields: object) -> Callable[[], Iterator[bytes]]:
    """Make the frames of many attaches with these fields, each with its own name and handle."""

    def frames() -> Iterator[bytes]:
        for number in range(MANY):
            yield frame(attached(Role.RECEIVER, **{"name": f"link {number}", "handle": number, **fields}))  # type: ignore[arg-type]  # of an attach

    return frames


def on_channels(performative: Performative) -> Callable[[], Iterator[bytes]]:
    """Make the frames of one performative on many channels."""
    return lambda: (frame(performative, channel=channel) for channel in range(1, MANY + 1))


def each(*parts: Performative | bytes, times: int = MANY) -> Callable[[], Iterator[bytes]]:
    """Make the same frames, many times."""
    return lambda: (part if isinstance(part, bytes) else frame(part) for _ in range(times) for part in parts)


def delivered(payload: bytes, **fields: object) -> Callable[[], Iterator[bytes]]:
    """Make the frames of many deliveries of a payload, on a sender's link."""

    def frames() -> Iterator[bytes]:
        yield frame(attached(Role.SENDER))
        for number in range(MANY):
            yield frame(transferred(number, **fields), payload)

    return frames


def with_annotations(section: type[DeliveryAnnotations | MessageAnnotations]) -> bytes:
    return encode_composite(section(value=MAP)) + message(header=False)


STATE = Modified(message_annotations=MAP)
WINDOWS = {"next_outgoing_id": 0, "incoming_window": 9, "outgoing_window": 9}


@dataclass
class Kind:
    """A kind of attack: its frames, and the octets of each frame that may stay in memory."""

    frames: Callable[[], Iterable[bytes]]
    stays: int = 4 * KIB
    opens: bool = True
    _written: list[bytes] = field(default_factory=list)

    def written(self) -> list[bytes]:
        """Return the frames, which are made once for all tests."""
        self._written = self._written or list(self.frames())
        return self._written


KINDS = {
    "properties of attaches": Kind(links(properties=MAP)),
    "filters": Kind(links(source=Source(address="a", filter=MAP))),
    "default outcomes": Kind(links(source=Source(address="a", default_outcome=STATE))),
    "properties of nodes": Kind(links(source=Source(dynamic=True, dynamic_node_properties=MAP))),
    "capabilities of links": Kind(links(desired_capabilities=(Symbol("c"),) * (OCTETS // 2))),
    "capabilities of sources": Kind(links(source=Source(address="a", capabilities=(Symbol("c"),) * (OCTETS // 2)))),
    "outcomes": Kind(links(source=Source(address="a", outcomes=(Symbol("c"),) * (OCTETS // 2)))),
    "unsettled maps": Kind(links(unsettled={b"%05d" % tag: None for tag in range(OCTETS // 8)}), stays=12 * KIB),
    "one large property": Kind(links(properties={Symbol("p"): TEXT}), stays=12 * KIB),
    "properties of begins": Kind(on_channels(Begin(**WINDOWS, properties=MAP))),
    "capabilities of begins": Kind(
        on_channels(Begin(**WINDOWS, offered_capabilities=(Symbol("c" * 200),) * 100)), stays=12 * KIB
    ),
    "properties of an open": Kind(each(AMQP, Open(container_id="x", properties=MAP), times=1), opens=False),
    "properties of flows": Kind(each(flow(properties=MAP))),
    "reasons of ends": Kind(each(End(error=ERROR), begun())),
    "a reason of a close": Kind(each(Close(error=ERROR), times=1)),
    "reasons of detaches": Kind(each(attached(Role.SENDER), Detach(handle=0, error=ERROR))),
    "long reasons": Kind(
        each(attached(Role.SENDER), Detach(handle=0, error=Error(condition=Symbol("x:y"), description=TEXT)))
    ),
    "states of dispositions": Kind(each(Disposition(role=Role.RECEIVER, first=0, state=STATE))),
    "states of transfers": Kind(delivered(message(), state=STATE), stays=6 * KIB),
    "delivery annotations": Kind(delivered(with_annotations(DeliveryAnnotations))),
    "message annotations": Kind(delivered(with_annotations(MessageAnnotations))),
}
"""The kinds of attacks. Each frame has many values, unless its name says otherwise."""


def relayed_turn() -> float:
    """Return the CPU seconds of a turn with as many octets of ordinary messages, which a receiver takes.

    The messages take the generic way, one frame at a time.
    """
    network = Network(AddressConfig(pattern="a"))
    consumer = network.client("consumer", window=10_000)
    consumer.receiver("a", credit=1000)
    attacker = Attacker(network)
    attacker.begin()
    attacker.peer.write(attached(Role.SENDER))
    attacker.take()
    sizes = count()
    turns = []
    for _ in range(5):
        frames = b"".join(frame(transferred(next(sizes)), message("x" * 400)) for _ in range(40))
        attacker.turns.clear()
        attacker.give(frames)
        network.run()
        turns.append(max(attacker.turns))
    return sorted(turns)[2]


class Attack:
    """A router with a receiver of "a", and an attacker with the frames of a kind."""

    def __init__(self, kind: Kind) -> None:
        self.network = Network(AddressConfig(pattern="a"))
        self.consumer = Attacker(self.network)
        self.consumer.begin()
        self.consumer.peer.write(attached(Role.RECEIVER), flow(handle=0, delivery_count=0, link_credit=MANY))
        self.consumer.take()
        self.attacker = Attacker(self.network)
        if kind.opens:
            self.attacker.begin()
        self.attacker.turns.clear()
        self.frames = kind.written()

    def go(self) -> None:
        """Send the frames."""
        for octets in self.frames:
            self.attacker.give(octets)
            self.attacker.take()
            self.consumer.take()


@pytest.mark.parametrize("name", KINDS)
def test_little_stays_of_what_a_peer_says(name: str) -> None:
    kind = KINDS[name]
    Attack(kind).go()  # fills caches
    attack = Attack(kind)
    number = len(attack.frames)
    gc.collect()
    tracemalloc.start()
    try:
        objects = len(gc.get_objects())
        tracemalloc.reset_peak()
        attack.go()
        _, most = tracemalloc.get_traced_memory()
        gc.collect()
        stays, _ = tracemalloc.get_traced_memory()
        more = len(gc.get_objects()) - objects
    finally:
        tracemalloc.stop()
    assert stays / number < kind.stays, f"{stays:,} octets of {number} frames"
    assert more / number < 60, f"{more} objects of {number} frames"
    assert most < stays + 10 * OCTETS, "nor was there ever more than a few times the octets of a frame"


@pytest.mark.parametrize("name", KINDS)
def test_no_turn_decodes_more_values_than_a_few_frames_may_hold(name: str) -> None:
    attack = Attack(KINDS[name])
    decoded = [0]

    def profile(code: FrameType, event: str, _argument: object) -> None:
        if event == "call" and code.f_code.co_filename == decoder.__file__ and "read" in code.f_code.co_name:
            decoded[-1] += 1

    for octets in attack.frames:
        decoded.append(0)
        sys.setprofile(profile)
        attack.attacker.give(octets)
        sys.setprofile(None)
        attack.attacker.take()
        attack.consumer.take()
    assert max(decoded) < 2 * FEW_VALUES


@pytest.mark.parametrize("name", KINDS)
def test_no_frame_takes_much_longer_than_messages_of_its_size(name: str) -> None:
    most = 10 * max(relayed_turn(), 0.001)
    longest = []
    for _ in range(3):  # another process may have used the core
        attack = Attack(KINDS[name])
        attack.go()
        longest.append(max(attack.attacker.turns))
        if longest[-1] < most:
            return
    pytest.fail(f"{min(longest) * 1000:.1f} ms, {most * 1000:.1f} are allowed")


SHORT = Error(condition=Symbol("x:y"), description="why")


def test_of_a_state_with_very_many_values_the_simple_ones_are_told() -> None:
    network = Network(AddressConfig(pattern="a"))
    consumer = network.client("consumer", max_frame_size=2**15)
    consumer.receiver("a", credit=MANY)
    producer = network.client("producer")
    sender = producer.sender("a")
    for state, told in (
        (STATE, Modified()),
        (Modified(delivery_failed=True, message_annotations=MAP), Modified(delivery_failed=True)),
        (Rejected(error=ERROR), Rejected(error=SHORT)),
        # The essence of an extension is unknown: the delivery ended, and was not accepted.
        (Extension(encode(Described(Symbol("x:y:list"), [None] * OCTETS))), Modified(delivery_failed=True)),
    ):
        sent = producer.send(sender)
        (arrival,) = consumer.take(1)
        arrival.dispose(state, settled=True)
        network.run()
        assert sent.said == [(told, True)]
    assert consumer.session.can_send
    network.leave()


def test_a_message_with_a_state_of_very_many_values_arrives_whole() -> None:
    attack = Attack(KINDS["states of transfers"])
    consumer = attack.network.client("another")
    consumer.receiver("b")
    attack.attacker.peer.write(attached(Role.SENDER, "b"))
    attack.attacker.take()
    attack.attacker.peer.write(frame(transferred(state=Rejected(error=ERROR)), message("body")))
    attack.network.run()
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == message("body")
    assert arrival.delivery.remote_state == encode_composite(Rejected(error=SHORT))


LONG = Rejected(error=Error(condition=Symbol("x:y"), description=TEXT))


@pytest.mark.parametrize("settled", [True, False])
def test_a_long_state_is_told_and_does_not_stay(settled: bool) -> None:
    network = Network(AddressConfig(pattern="a"))
    consumer = network.client("consumer", max_frame_size=2**15)
    consumer.receiver("a", credit=MANY, rcv=ReceiverSettleMode.SECOND)
    producer = network.client("producer", max_frame_size=2**15)
    sender = producer.sender("a", rcv=ReceiverSettleMode.SECOND)
    sent = [producer.send(sender) for _ in range(MANY)]
    for arrival in consumer.take(MANY):
        arrival.dispose(LONG, settled=settled)
    network.run()
    for each_sent in sent:
        ((told, is_settled),) = each_sent.said
        assert isinstance(told, Rejected)
        assert told.error is not None
        assert told.error.condition == "x:y"
        # Unless the receiver has settled, the short form is passed on: it may be kept for ever.
        assert told.error.description == (TEXT if settled else TEXT[:60])
        assert not is_settled, "the producer has not settled yet"
    assert len(_states(producer.record)) == MANY
    assert sum(map(len, {*_states(producer.record), *_states(consumer.record)})) < 4 * KIB
    for each_sent in sent:
        each_sent.dispose(None, settled=True)
    network.run()
    network.leave()


def _states(record: ConnectionRecord) -> list[bytes]:
    """Return the states that the router holds of unsettled deliveries on a connection."""
    links = [*record.incoming, *record.outgoing]
    deliveries = [each for link in links for each in link.endpoint.terminus.unsettled.values()]
    held = [
        (each.state, each.remote_state) if isinstance(each, Delivery) else (each.outcome, None) for each in deliveries
    ]
    return [state for pair in held for state in pair if state is not None]


def test_names_count_against_the_peer_and_the_memory_of_the_router() -> None:
    network = Network(memory=2**20)
    attacker = Attacker(network)
    attacker.begin()
    for number in range(40):
        attacker.peer.write(attached(Role.SENDER, handle=number, name=f"{number}{TEXT[:5000]}"))
    heard = [each.performative for each in attacker.peer.hear()]
    refused = [each for each in heard if isinstance(each, Detach)]
    assert {each.error.condition for each in refused if each.error is not None} == {"amqp:resource-limit-exceeded"}
    assert len(attacker.record.incoming) == 40 - len(refused) == 14, "a sixteenth of the memory, and no more"
    assert network.core.context.budget.used == attacker.record.account.used > 14 * 4000
    # Other clients may use long names.
    bystander = network.client("bystander" * 50)
    assert bystander.sender("a" * 3000).is_attached
    # The handle of a refused link can be used again.
    attacker.peer.write(Detach(handle=30, closed=True), attached(Role.SENDER, handle=30))
    answer = attacker.peer.hear()[0].performative
    assert isinstance(answer, Attach)
    assert answer.target is not None
    network.core.receive_eof(attacker.record, network.now)
    network.leave()
    assert network.core.context.budget.used == 0


def test_a_container_with_a_long_name_is_refused_where_nothing_is_left_for_it() -> None:
    network = Network(memory=2**20)
    for length, condition in ((60_000, None), (70_000, "amqp:resource-limit-exceeded")):
        attacker = Attacker(network, max_frame_size=2**17)
        attacker.peer.write(AMQP, Open(container_id="x" * length))
        attacker.peer.expect_header()
        heard = [each.performative for each in attacker.peer.hear()]
        assert [each.error and each.error.condition for each in heard if isinstance(each, Close)] == (
            [condition] if condition else []
        )
        network.core.receive_eof(attacker.record, network.now)
    assert network.core.context.budget.used == 0


def test_handles_that_are_never_detached_are_few() -> None:
    network = Network()
    attacker = Attacker(network, links=10)
    attacker.begin()
    for number in range(30):
        attacker.peer.write(attached(Role.SENDER, handle=number, name=str(number)))
    heard = [each.performative for each in attacker.peer.hear()]
    (ended,) = [each for each in heard if isinstance(each, End)]
    assert ended.error is not None
    assert ended.error.condition == "amqp:resource-limit-exceeded"
    assert len([each for each in heard if isinstance(each, Detach)]) == 10
    (session,) = attacker.record.engine.channels.incoming.values()
    assert session.links == {}
    assert not attacker.record.incoming


def test_annotations_with_very_many_values_pass_unread_and_none_that_look_like_the_meshs_own() -> None:
    network = Network(AddressConfig(pattern="a"))
    consumer = network.client("consumer", max_frame_size=2**15)
    consumer.receiver("a", credit=MANY)
    producer = network.client("producer", max_frame_size=2**15)
    sender = producer.sender("a")
    others = {Symbol("x-opt-others"): [[]] * OCTETS}
    for section, passes in (
        (DeliveryAnnotations(value=others), True),
        (MessageAnnotations(value=MAP), True),
        (DeliveryAnnotations(value=MAP), False),
    ):
        octets, bare = encode_composite(section), message(header=False)
        consumer.arrivals.clear()
        producer.send(sender, octets + bare, settled=True)
        (arrival,) = consumer.take(1)
        assert bytes(arrival.payload) == (octets + bare if passes else bare)


@pytest.mark.parametrize("is_last", [False, True])
def test_an_unsettled_map_is_refused_if_one_of_its_entries_is_not_small(is_last: bool) -> None:
    attack = Attack(KINDS["unsettled maps"])
    peer = attack.attacker.peer
    for part in (attached(Role.SENDER), frame(transferred(), message()), Detach(handle=0)):
        peer.write(part)
    peer.hear()
    tag = transferred().delivery_tag
    assert tag is not None
    small, large = {tag: None}, {b"other": STATE}
    peer.write(attached(Role.SENDER, unsettled={**small, **large} if is_last else {**large, **small}))
    answer, detach = [each.performative for each in peer.hear() if not isinstance(each.performative, Disposition)]
    assert isinstance(answer, Attach)
    assert answer.target is None
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:resource-limit-exceeded"
