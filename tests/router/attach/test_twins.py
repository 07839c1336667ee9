"""Two clients with one container-id that take a link from each other, and one client that comes back often."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from weakref import ref

import pytest

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Target
from amqpmesh.router.amqp.standard.performatives import Attach, Detach
from amqpmesh.router.attach.thefts import LATEST, NAMES, SHOWN, THEFTS, TWIN_TIME, WATCHED
from amqpmesh.router.management.snapshot import snapshot
from tests.router.resumption.test_returning_senders import CLOSE
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import attached
from tests.support.worlds.network import Network


class Twin:
    """A client with the container-id of all others."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.connect()

    def connect(self) -> None:
        self.end = Intruder(self.network)
        self.end.peer.open()
        self.end.peer.begin()
        self.handle = 0

    def resume(self, other: Twin | None = None, name: str = "link", unsettled: object = ()) -> Attach:
        """Attach the link with a map. Args: other: a live holder of the name. Returns: the answer."""
        self.end.peer.write(self.attaching(name, unsettled))
        if other is not None:
            other.answer()
        self.network.advance(1)
        return next(each.performative for each in self.end.peer.hear() if isinstance(each.performative, Attach))

    def attaching(self, name: str, unsettled: object) -> Attach:
        target = Target(address="q", expiry_policy=CLOSE, timeout=30)
        self.handle += 1
        tags = dict.fromkeys(unsettled)  # type: ignore[call-overload]  # octets
        return attached(Role.SENDER, "q", name=name, handle=self.handle, target=target, unsettled=tags)

    def answer(self) -> None:
        """Read all that has come, and answer the detach of a link that was stolen."""
        for each in self.end.peer.hear():
            if isinstance(each.performative, Detach):
                self.end.peer.write(Detach(handle=self.handle, closed=True))
        self.network.run()


def granted(answer: Attach) -> int:
    target = answer.target
    assert isinstance(target, Target)
    return target.timeout


def fight(network: Network, one: Twin, other: Twin) -> list[int]:
    """Let two clients take the link from each other. Returns: the times that they were granted."""
    found = []
    for _ in range(THEFTS):
        for thief, robbed in ((one, other), (other, one)):
            found.append(granted(thief.resume(robbed)))
    return found


def test_a_link_that_two_clients_take_from_each_other_is_resumed_for_neither(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqpmesh")
    network = Network()
    network.client().receiver("q")
    one, other = Twin(network), Twin(network)
    found = fight(network, one, other)
    assert found == [30] * (THEFTS + 1) + [0] * (THEFTS - 1)
    router = snapshot(network.core).router
    assert router.twins == ("peer link",)
    assert len([each for each in caplog.messages if each.startswith("link not resumed")]) == 1
    assert router.stolen == THEFTS + 1, "then both live, so each has a link"
    assert one.resume(other, unsettled=[b"x"]).unsettled is None, "nothing is told of deliveries that may be another's"
    assert granted(one.resume(name="another")) == 30, "other names are resumed"
    one.end.leave()
    other.end.leave()
    network.advance(TWIN_TIME + 31)
    assert snapshot(network.core).router.twins == ()
    one.connect()
    assert granted(one.resume()) == 30
    one.end.leave()
    network.advance(31)
    assert network.core.context.termini.granted == 0


def test_a_client_that_loses_its_connection_often_goes_on_resuming() -> None:
    network = Network()
    client = Twin(network)
    for _ in range(3 * THEFTS):
        assert granted(client.resume()) == 30
        client.connect()  # nobody answers on the old connection, which still seems to be there
    assert snapshot(network.core).router.twins == ()


def test_thefts_that_are_far_apart_make_no_twins() -> None:
    network = Network()
    one, other = Twin(network), Twin(network)
    for _ in range(THEFTS):
        for thief, robbed in ((one, other), (other, one)):
            assert granted(thief.resume(robbed)) == 30
            network.advance(WATCHED / 2)


def test_the_names_that_are_watched_are_bounded() -> None:
    network = Network()
    network.client()
    (record,) = (each for each in network.core.context.connections if not each.own)
    thefts = network.core.thefts
    for number in range(2 * NAMES):
        for _ in range(THEFTS + 1):
            thefts.watch(("", "", "host", "c", f"link-{number}", True), record, record)
            record.octets_in += 1
        thefts.watch(("", "", "host", "c", f"another-{number}", True), record, record)
    assert len(list(thefts.twins())) == NAMES
    assert len(thefts._watched) == NAMES


def test_thefts_that_are_long_ago_are_forgotten() -> None:
    network = Network()
    for number in range(3):
        one, other = Twin(network), Twin(network)
        for each in (one, other):
            each.resume(name=f"link-{number}")
        for each in (one, other):
            each.end.leave()
        network.advance(WATCHED)
    one, other = Twin(network), Twin(network)
    for each in (one, other):
        each.resume(name="link")
    assert len(network.core.thefts._watched) == 1


def test_the_thefts_of_a_name_that_are_remembered_are_bounded() -> None:
    network = Network()
    network.client()
    (record,) = (each for each in network.core.context.connections if not each.own)
    thefts, key = network.core.thefts, ("", "", "host", "c", "link", True)
    for _ in range(10 * LATEST):
        thefts.watch(key, record, record)  # nothing comes from it any more
    assert len(thefts._watched[hash(key)]) == LATEST
    record.octets_in += 1
    thefts.watch(key, record, record)
    assert thefts.has_twins(key)


def test_a_robbed_connection_that_has_ended_counts_by_what_came_before() -> None:
    """A client that closes its connection once its link is stolen, and takes it back over another one, lives."""
    network = Network()
    one, other = Twin(network), Twin(network)
    found = []
    for _ in range(THEFTS):
        for thief, robbed in ((one, other), (other, one)):
            found.append(granted(thief.resume(robbed)))
            robbed.end.leave()
            robbed.connect()
    assert found == [30] * (THEFTS + 1) + [0] * (THEFTS - 1)
    assert snapshot(network.core).router.twins == ("peer link",)


def test_nothing_stays_of_a_robbed_connection_that_has_ended() -> None:
    network = Network()
    gone = []
    for number in range(3):
        one, other = Twin(network), Twin(network)
        one.resume(name=f"link-{number}")
        gone.append(ref(one.end.record))
        other.resume(name=f"link-{number}")
        one.end.leave()
        other.end.leave()
    del one, other
    gc.collect()
    assert network.core.context.stolen == 3
    assert [each() for each in gone] == [None] * 3, "though its thefts are watched still"


def test_what_is_remembered_of_thefts_is_small() -> None:
    network = Network()
    network.client()
    (record,) = (each for each in network.core.context.connections if not each.own)
    thefts = network.core.thefts
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(NAMES):
            key = ("", "", "host", f"{number} {'c' * 30_000}", "link", True)
            for _ in range(LATEST):
                thefts.watch(key, record, record)
                thefts.ended(record)  # so each is of another connection
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 3_500_000


def test_of_long_names_of_twins_the_beginning_is_told() -> None:
    network = Network()
    one, other = Twin(network), Twin(network)
    name = "link" * 1_000
    for _ in range(THEFTS):
        for thief, robbed in ((one, other), (other, one)):
            thief.resume(robbed, name=name)
    assert snapshot(network.core).router.twins == (f"peer {name[:SHOWN]}",)
