"""Policies between neighbours, one of which is hostile."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import pytest

from amqpmesh.policies.policy_version import LARGEST, PolicyVersion
from amqpmesh.topology.adjacency import Adjacency
from amqpmesh.topology.changes import Change, PolicyFetched, PolicyNotFetched
from amqpmesh.topology.messages import (
    MAX_MESSAGE,
    PIECE,
    Hello,
    Message,
    PolicyPiece,
    PolicyRequest,
    SeenRouter,
    read_message,
    write_message,
)
from amqpmesh.topology.outbox import Outbox
from amqpmesh.topology.policy_exchange import PIECE_TIME, REFUSED, RESTING, SERVED, TRIES, PolicyExchange
from amqpmesh.topology.schema import unpack
from amqpmesh.topology.settings import Settings

OLD = PolicyVersion.of(b"old", 1)
TEXT = bytes(range(256)) * 160
NEW = PolicyVersion.of(TEXT, 2)


class World:
    """The exchange of a router that has the version 1, with neighbours that a test plays."""

    def __init__(self) -> None:
        self.outbox = Outbox("A", Settings())
        self.exchange = PolicyExchange(self.outbox)
        self.now = 100.0
        self.changes: list[Change] = []
        self.exchange.give(OLD, b"old", self.now)
        self.one, self.two = self.neighbour("B", 1), self.neighbour("C", 2)

    def neighbour(self, router: str, number: int) -> Adjacency:
        made = Adjacency(router, 1, router, number)
        made.router, made.up = router, True
        return made

    def sent(self) -> list[tuple[object, Message]]:
        """Return what the router has sent since the last call."""
        step = self.outbox.finish_step()
        self.changes += step.changes
        return [(name, read_message(data)) for name, data in step.messages]

    def asked(self) -> list[tuple[object, int]]:
        """Return the neighbours that were asked for a piece, and its offset."""
        found = []
        for name, message in self.sent():
            assert isinstance(message, PolicyRequest)
            found.append((name, message.offset))
        return found

    def piece(
        self, offset: int, text: bytes = TEXT, digest: bytes = NEW.digest, total: int | None = None
    ) -> PolicyPiece:
        return PolicyPiece(digest, offset, len(text) if total is None else total, text[offset : offset + PIECE])

    def give_all(self, adjacency: Adjacency, text: bytes = TEXT, digest: bytes = NEW.digest) -> None:
        for offset in range(0, len(text), PIECE):
            self.exchange.receive_piece(adjacency, self.piece(offset, text, digest), self.now)

    def faults(self) -> list[tuple[str, str]]:
        self.sent()
        return [(each.neighbour, each.reason) for each in self.changes if isinstance(each, PolicyNotFetched)]

    def fetched(self) -> list[bytes]:
        self.sent()
        return [each.data for each in self.changes if isinstance(each, PolicyFetched)]


def test_a_newer_policy_is_fetched_piece_by_piece() -> None:
    world = World()
    world.exchange.heard(world.one, NEW, world.now)
    for offset in range(0, len(TEXT), PIECE):
        assert world.asked() == [("B", offset)]
        world.exchange.receive_piece(world.one, world.piece(offset), world.now)
    assert world.fetched() == [TEXT]
    world.exchange.heard(world.two, NEW, world.now)
    assert world.asked() == [], "it is being judged"
    world.exchange.give(NEW, TEXT, world.now)
    assert world.asked() == []


@pytest.mark.parametrize("version", [OLD, PolicyVersion(1, bytes(32)), PolicyVersion.of(b"older", 0)])
def test_an_old_version_is_not_fetched(version: PolicyVersion) -> None:
    world = World()
    world.exchange.heard(world.one, min(version, OLD), world.now)
    assert world.asked() == []


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (lambda w: w.give_all(w.one, TEXT[:-1] + b"x"), "it is not what its digest says"),
        (lambda w: w.exchange.receive_piece(w.one, w.piece(0, total=PIECE - 1), w.now), "do not fit together"),
        (
            lambda w: [w.exchange.receive_piece(w.one, w.piece(at, total=LARGEST - at), w.now) for at in (0, PIECE)],
            "do not fit together",
        ),
        (
            lambda w: w.exchange.receive_piece(w.one, PolicyPiece(NEW.digest, 0, 10, b""), w.now),
            "do not fit together",
        ),
        (
            lambda w: w.exchange.receive_piece(w.one, PolicyPiece(NEW.digest, 0, len(TEXT), TEXT[:1]), w.now),
            "do not fit together",
        ),
    ],
)
def test_a_hostile_neighbour_is_left_and_another_one_asked(attack: Callable[[World], object], reason: str) -> None:
    world = World()
    world.exchange.heard(world.one, NEW, world.now)
    world.exchange.heard(world.two, NEW, world.now)
    world.sent()
    attack(world)
    sent = world.sent()
    assert sent[-1][0] == "C"
    ((neighbour, told),) = world.faults()
    assert neighbour == "B"
    assert reason in told
    world.give_all(world.two)
    assert world.fetched() == [TEXT]
    world.exchange.heard(world.one, NEW, world.now)
    assert world.asked() == [], "it is not asked again for that policy"


def test_endless_pieces_end_with_the_announced_size() -> None:
    world = World()
    world.exchange.heard(world.one, NEW, world.now)
    for number in range(2 * LARGEST // PIECE):
        offset = number * PIECE
        if offset > LARGEST:
            break
        piece = PolicyPiece(NEW.digest, offset, LARGEST, bytes(PIECE))
        world.exchange.receive_piece(world.one, piece, world.now)
    assert world.faults() == [("B", "it is not what its digest says")]
    assert world.exchange._fetch is None


def test_a_piece_that_nobody_asked_for_is_ignored() -> None:
    world = World()
    world.exchange.receive_piece(world.one, world.piece(0), world.now)
    world.exchange.heard(world.one, NEW, world.now)
    world.sent()
    for adjacency, piece in (
        (world.two, world.piece(0)),
        (world.one, world.piece(PIECE)),
        (world.one, world.piece(0, digest=bytes(32))),
    ):
        world.exchange.receive_piece(adjacency, piece, world.now)
    assert world.asked() == []
    assert world.faults() == []


def test_a_piece_that_does_not_come_is_asked_for_again_and_then_elsewhere() -> None:
    world = World()
    world.exchange.heard(world.one, NEW, world.now)
    world.exchange.heard(world.two, NEW, world.now)
    assert world.asked() == [("B", 0)]
    for _ in range(TRIES - 1):
        world.now += PIECE_TIME
        world.exchange.piece_is_late(world.now)
        assert world.asked() == [("B", 0)]
    world.exchange.piece_is_late(world.now)
    assert world.asked() == [("C", 0)]
    world.exchange.gone(world.two, world.now)
    assert world.asked() == []
    assert world.faults() == [("B", "it does not come")]


def test_a_neighbour_that_has_another_policy_meanwhile_is_asked_for_that_one() -> None:
    world = World()
    world.exchange.heard(world.one, NEW, world.now)
    world.exchange.receive_piece(world.one, world.piece(0), world.now)
    world.sent()
    newer = PolicyVersion.of(b"newer", 3)
    world.exchange.heard(world.one, newer, world.now)
    assert world.asked() == [("B", 0)]
    world.exchange.receive_piece(world.one, world.piece(0, b"newer", newer.digest), world.now)
    assert world.fetched() == [b"newer"]
    assert world.faults() == []


def test_a_neighbour_that_replaces_its_offer_again_and_again_holds_no_other_up() -> None:
    world = World()
    world.exchange.heard(world.one, PolicyVersion(100, bytes(32)), world.now)
    world.exchange.heard(world.two, NEW, world.now)
    assert world.asked() == [("B", 0)]
    world.exchange.heard(world.one, PolicyVersion(101, bytes(32)), world.now)
    assert world.asked() == [("C", 0)]
    world.exchange.heard(world.one, PolicyVersion(102, bytes(32)), world.now)
    world.give_all(world.two)
    assert world.fetched() == [TEXT]
    world.exchange.give(NEW, TEXT, world.now)
    assert world.asked() == [("B", 0)], "it may have a newer one indeed"


def test_a_refused_policy_is_not_fetched_again_and_few_are_remembered() -> None:
    world = World()
    world.exchange.heard(world.one, NEW, world.now)
    world.give_all(world.one)
    world.exchange.refuse(NEW, world.now)
    world.sent()
    world.exchange.heard(world.two, NEW, world.now)
    assert world.asked() == []
    for number in range(2 * REFUSED):
        world.exchange.refuse(PolicyVersion(number + 3, bytes(32)), world.now)
    assert len(world.exchange._refused) == REFUSED


def test_a_neighbour_that_offers_ever_higher_versions_is_asked_less_and_less() -> None:
    world = World()
    asked = 0
    for number in range(3_600):
        text = b"%d" % number
        world.exchange.heard(world.one, PolicyVersion.of(text, number + 3), world.now)
        while found := [message for _, message in world.sent() if isinstance(message, PolicyRequest)]:
            asked += 1
            version = PolicyVersion.of(text, number + 3)
            assert found[0].digest == version.digest
            world.exchange.receive_piece(world.one, PolicyPiece(version.digest, 0, len(text), text), world.now)
            world.exchange.refuse(version, world.now)
        world.now += 1.0
    assert 5 <= asked <= 15, "of 3,600 in an hour"
    world.exchange.heard(world.two, NEW, world.now)
    assert world.asked() == [("C", 0)], "another neighbour is asked at once"
    for number in range(2 * RESTING):
        world.exchange._let_rest(str(number), world.now)
    assert len(world.exchange._rests) == RESTING


def test_a_neighbour_gets_the_offered_policy_alone_and_no_more_pieces_than_a_rate() -> None:
    world = World()
    world.exchange.give(NEW, TEXT, world.now)
    world.exchange.receive_request(world.one, PolicyRequest(OLD.digest, 0), world.now)
    world.exchange.receive_request(world.one, PolicyRequest(NEW.digest, len(TEXT)), world.now)
    assert world.sent() == []
    for _ in range(10_000):
        world.exchange.receive_request(world.one, PolicyRequest(NEW.digest, 0), world.now)
    assert len(world.sent()) == SERVED.burst
    world.exchange.receive_request(world.two, PolicyRequest(NEW.digest, PIECE), world.now)
    ((name, piece),) = world.sent()
    assert (name, piece) == ("C", PolicyPiece(NEW.digest, PIECE, len(TEXT), TEXT[PIECE : 2 * PIECE]))


def test_a_hello_has_no_octet_of_a_policy_if_the_router_takes_no_part() -> None:
    hello = Hello("A", 1, 3000, SeenRouter("B", 2))
    assert unpack(write_message(hello), MAX_MESSAGE).keys() == {"t", "v", "r", "e", "h", "n"}


def test_a_router_that_takes_no_part_neither_asks_nor_gives() -> None:
    outbox = Outbox("A", Settings())
    exchange = PolicyExchange(outbox)
    neighbour = World().one
    exchange.heard(neighbour, NEW, 0.0)
    exchange.receive_request(neighbour, PolicyRequest(sha256(b"").digest(), 0), 0.0)
    assert outbox.finish_step().messages == []
    assert exchange.offer is None
