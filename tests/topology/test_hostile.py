"""Octets of dishonest neighbours: dropped, counted by origin, and without other effect."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.linkstate import Dropped, RevocationsChanged, Settings, Topology
from amqpmesh.topology.messages import (
    MAX_MESSAGE,
    Acknowledgement,
    AgedRecord,
    Hello,
    Message,
    Records,
    Request,
    RequestEntry,
    Summary,
    SummaryEntry,
    read_message,
    write_message,
)
from amqpmesh.topology.neighbour_state import SMALL_QUEUE
from amqpmesh.topology.records import (
    MAX_BODY,
    MAX_EPOCH,
    AddressDelta,
    Entry,
    Kind,
    LinkState,
    Neighbour,
    encode,
    read_record,
)
from amqpmesh.topology.schema import UnreadableError
from amqpmesh.topology.signing import Signer, Unsigned
from amqpmesh.topology.trust import Identity, Trust
from tests.support.data.authorities import World
from tests.support.worlds.topologies import EPOCH, Line, Mesh


def running(mesh: Mesh | None = None) -> tuple[Mesh, Line]:
    """Return a line of A, B and C, at rest, and the connection of A and B."""
    mesh = mesh or Mesh()
    mesh.start("A", "B", "C")
    line = mesh.connect("A", "B")
    mesh.connect("B", "C")
    for name in mesh.routers:
        mesh.advertise(name, f"at {name}", 1)
    mesh.run(20)  # a record older than its successor is now reported
    assert mesh.disagreement() == ""
    mesh.forget_changes()
    return mesh, line


class Signed:
    """A signed mesh, and a hostile member with its own id."""

    def __init__(self) -> None:
        self.world = World()
        self.pem = self.world.pem  # as at the start
        self.identities: dict[str, Identity] = {}
        self.trusts: dict[str, Trust] = {}
        self.mesh, self.line = running(Mesh(identity=self._identity))
        self.router = self.mesh.routers["A"]

    def _identity(self, name: str) -> Any:
        trust = Trust.load(self.pem, self.world.clock)
        self.trusts[name] = trust
        self.identities[name] = self.world.identity(name, trust=trust)
        return self.identities[name], trust

    def say(self, *records: AgedRecord, number: int = 999_999) -> list[Dropped]:
        """Let B send messages to A. Returns: the drops that A reports."""
        self.mesh.inject("A", self.line, write_message(Records(number, records)))
        return self.mesh.told("A", Dropped)

    def held(self) -> object:
        """Return A's knowledge of the mesh."""
        return known(self.router)


def known(router: Topology) -> object:
    """Return a router's knowledge of its mesh."""
    origins = router.database.origins
    return (
        {name: (origin.link.signed, [stored.signed for stored in origin.log]) for name, origin in origins.items()},
        {name: router.graph.neighbours(name) for name in router.routers()},
        {key: dict(router.lookup(*key)) for key in router.book.addresses()},
        router.epoch,
        list(router.database.certificates),
    )


def links(origin: str, epoch: int = EPOCH, sequence: int = 1000, **items: Any) -> bytes:
    return encode(LinkState(origin, epoch, sequence, (Neighbour("C", 1, 1),), **items))


def signed(signer: Signer, body: bytes, kind: int = Kind.LINK_STATE, age_ms: int = 0) -> AgedRecord:
    key_id, signature = signer.sign(kind, body)
    return AgedRecord(age_ms, kind, key_id, body, signature)


# ------------------------------------------------------------------------------------------------- one record, one drop


def test_what_an_origin_has_signed_is_taken() -> None:
    signing = Signed()
    assert signing.say(signed(signing.identities["C"], links("C"))) == []
    assert signing.router.database.origins["C"].pair == (EPOCH, 1000)


def forged(signing: Signed) -> AgedRecord:
    carried = signed(signing.identities["C"], links("C"))
    return carried._replace(body=links("C", sequence=1001))


def for_another_origin(signing: Signed) -> AgedRecord:
    return signed(signing.identities["B"], links("C"))


def of_another_kind(signing: Signed) -> AgedRecord:
    _, signature = signing.identities["C"].sign(Kind.ADDRESS_DELTA, links("C"))
    return signed(signing.identities["C"], links("C"))._replace(signature=signature)


def of_another_mesh(signing: Signed) -> AgedRecord:
    stranger = World(mesh="m2").identity("C")
    own = signing.identities["C"]
    return AgedRecord(0, Kind.LINK_STATE, own.certificate.key_id, links("C"), stranger.sign(1, links("C"))[1])


def without_signature(signing: Signed) -> AgedRecord:
    return signed(signing.identities["C"], links("C"))._replace(signature=b"")


def stale(signing: Signed) -> AgedRecord:
    return signed(signing.identities["C"], links("C", sequence=1))


def of_the_last_life(signing: Signed) -> AgedRecord:
    return signed(signing.identities["C"], links("C", EPOCH - 1))


def too_old(signing: Signed) -> AgedRecord:
    return signed(signing.identities["C"], links("C"), age_ms=300_000)


def stale_addresses(signing: Signed) -> AgedRecord:
    return signed(signing.identities["C"], encode(AddressDelta("C", EPOCH - 1, 7)), Kind.ADDRESS_DELTA)


def of_another_area(signing: Signed) -> AgedRecord:
    return signed(signing.identities["C"], links("C", area="elsewhere"))


def of_an_unknown_kind(signing: Signed) -> AgedRecord:
    return signed(signing.identities["C"], links("C"), kind=77)


def of_another_version(signing: Signed) -> AgedRecord:
    body = msgpack.packb({**msgpack.unpackb(links("C")), "v": 2})
    return signed(signing.identities["C"], body)


def nonsense(signing: Signed) -> AgedRecord:
    return signed(signing.identities["C"], b"\xc1")


def a_bad_certificate(signing: Signed) -> AgedRecord:
    return AgedRecord(0, Kind.CERTIFICATE, b"", b"nonsense", b"")


def a_certificate_of_another_mesh(signing: Signed) -> AgedRecord:
    return AgedRecord(0, Kind.CERTIFICATE, b"", World(mesh="m2").certificate("C").der, b"")


def a_list_of_another_authority(signing: Signed) -> AgedRecord:
    return AgedRecord(0, Kind.REVOCATION, b"", World().revoke().der, b"")


@pytest.mark.parametrize(
    ("make", "origin", "reason"),
    [
        (forged, "C", "untrusted"),
        (for_another_origin, "C", "untrusted"),
        (of_another_kind, "C", "untrusted"),
        (of_another_mesh, "C", "untrusted"),
        (without_signature, "C", "untrusted"),
        (stale, "C", "stale"),
        (of_the_last_life, "C", "replayed"),
        (too_old, "C", "stale"),
        (stale_addresses, "C", "replayed"),
        (of_another_area, "C", "area"),
        (of_an_unknown_kind, "", "kind"),
        (of_another_version, "", "version"),
        (nonsense, "", "malformed"),
        (a_bad_certificate, "", "untrusted"),
        (a_certificate_of_another_mesh, "", "untrusted"),
        (a_list_of_another_authority, "", "untrusted"),
    ],
)
def test_a_record_that_cannot_be_believed_is_dropped_counted_and_told(
    make: Callable[[Signed], AgedRecord], origin: str, reason: str
) -> None:
    signing = Signed()
    before = signing.held()
    (dropped,) = signing.say(make(signing))
    assert (dropped.origin, dropped.neighbour, dropped.reason, dropped.count) == (origin, "B", reason, 1)
    assert dropped.detail
    assert signing.router.dropped[reason] == 1
    assert signing.held() == before
    assert [type(change) for change in signing.mesh.changes["A"]] == [Dropped]
    signing.mesh.run(1)
    assert signing.mesh.disagreement() == ""


def test_the_dead_are_not_brought_back() -> None:
    world = World()
    identities: dict[str, Identity] = {}

    def identity(name: str) -> Any:
        trust = world.trust()
        identities[name] = world.identity(name, trust=trust)
        return identities[name], trust

    mesh = Mesh(Settings(max_age=20.0), identity)
    mesh.start("A", "B", "C")
    line = mesh.connect("A", "B")
    gone = mesh.connect("B", "C")
    mesh.run(10)
    last = mesh.routers["A"].database.origins["C"].link.signed
    mesh.cut(gone)
    mesh.run(25)
    assert mesh.routers["A"].routers() == ["A", "B"]
    mesh.inject("A", line, write_message(Records(1, (AgedRecord(0, *last),))))
    (dropped,) = mesh.told("A", Dropped)
    assert (dropped.origin, dropped.reason) == ("C", "replayed")
    assert mesh.routers["A"].routers() == ["A", "B"]


def test_many_of_the_same_are_told_once_per_message_with_their_number() -> None:
    signing = Signed()
    (dropped,) = signing.say(*[for_another_origin(signing)] * 50)
    assert dropped.count == 50
    assert signing.router.dropped["untrusted"] == 50


def test_nobody_makes_a_router_jump_without_its_key() -> None:
    signing = Signed()
    signing.say(signed(signing.identities["B"], links("A", EPOCH + 1000)))
    signing.mesh.inject("A", signing.line, write_message(Summary(held=((("A", MAX_EPOCH, 1, 1, ())),))))  # type: ignore[arg-type]
    signing.mesh.run(1)
    assert signing.router.epoch == EPOCH
    signing.say(signed(signing.identities["A"], links("A", EPOCH + 1000)))
    assert signing.router.epoch == EPOCH + 1001
    signing.mesh.run(1)
    assert signing.mesh.disagreement() == ""


def test_the_same_pair_in_another_body_is_of_another_life() -> None:
    signing = Signed()
    pair = signing.router.database.origins["A"].pair
    assert signing.say(signed(signing.identities["A"], links("A", pair.epoch, pair.sequence))) == []
    assert signing.router.epoch == EPOCH + 1
    signing.mesh.run(1)
    assert signing.mesh.disagreement() == ""


# ------------------------------------------------------------------------------------------- lifetimes of certificates


def test_a_record_waits_for_its_certificate_and_asks_for_it() -> None:
    signing = Signed()
    late = signing.world.identity("D")
    record = signed(late, links("D"))
    acknowledged: list[int] = []

    def listen(line: Line, sender: str, data: bytes) -> bytes:
        message = read_message(data)
        if sender == "A" and isinstance(message, Acknowledgement | Records):
            acknowledged.extend(message.acknowledged)
        return data

    signing.mesh.intercept = listen
    assert signing.say(record, number=5) == []
    assert "D" not in signing.router.routers()
    signing.say(record, number=6)
    certificate = AgedRecord(0, Kind.CERTIFICATE, late.certificate.key_id, late.certificate.der, b"")
    assert signing.router.sent["Request"] == 1
    assert signing.say(certificate) == []
    assert "D" in signing.router.routers()
    signing.mesh.run(0.1)
    assert acknowledged == [999_999]  # the certificate; waiting records may be dropped, and have to come again
    signing.mesh.start("E")  # a router that joins later gets both
    signing.mesh.connect("A", "E")
    signing.mesh.run(1)
    assert "D" in signing.mesh.routers["E"].routers()
    assert signing.mesh.told("E", Dropped) == []


def test_what_waits_for_certificates_is_bounded() -> None:
    signing = Signed()
    for number in range(1000):
        signing.say(AgedRecord(0, Kind.LINK_STATE, number.to_bytes(32), links("D", sequence=number), bytes(64)))
    assert signing.router.dropped["full"] == 1000 - signing.mesh.settings.max_waiting
    assert signing.router.sent["Request"] <= 1000
    signing.mesh.run(15)
    signing.mesh.forget_changes()
    signing.say(AgedRecord(0, Kind.LINK_STATE, bytes(32), links("D"), bytes(64)))
    assert signing.mesh.told("A", Dropped) == []


def test_a_router_whose_certificate_is_revoked_is_forgotten_everywhere() -> None:
    signing = Signed()
    mesh = signing.mesh
    signing.world.revoke(signing.identities["C"].certificate)
    signing.trusts["A"].reload(signing.world.pem)  # the operator of A has the new list
    mesh.call("A", lambda router, now: router.renew(signing.identities["A"], now))
    mesh.run(0.5)
    for name in ("A", "B"):
        (change,) = mesh.told(name, RevocationsChanged)
        assert change.number == 1
        assert mesh.routers[name].distance("C") is None
        assert not mesh.routers[name].lookup("", "at C")
    mesh.run(150)  # C renews its link state, in vain
    assert "C" not in mesh.routers["B"].routers()
    assert mesh.routers["B"].dropped["untrusted"] >= 2
    # A router that joins later gets the list, too.
    mesh.start("D")
    mesh.connect("A", "D")
    mesh.run(1)
    assert mesh.told("D", RevocationsChanged)


def test_a_router_renews_its_certificate_without_a_gap() -> None:
    signing = Signed()
    mesh = signing.mesh
    renewed = signing.world.identity("C", trust=signing.world.trust())
    mesh.call("C", lambda router, now: router.renew(renewed, now))
    mesh.run(1)
    assert mesh.disagreement() == ""
    for router in mesh.routers.values():
        origin = router.database.origins["C"]
        assert origin.key_ids() == {renewed.certificate.key_id}
        assert list(router.lookup("", "at C")) == ["C"]
    assert all(mesh.told(name, Dropped) == [] for name in mesh.routers)
    mesh.run(700)  # the old certificate is forgotten, the others are not
    assert signing.identities["C"].certificate.key_id not in signing.router.database.certificates
    assert len(signing.router.database.certificates) == 3


def test_a_mesh_without_signatures_takes_none() -> None:
    mesh, line = running()
    identity = World().identity("C")
    mesh.inject("A", line, write_message(Records(1, (signed(identity, links("C")),))))
    mesh.inject(
        "A", line, write_message(Records(2, (AgedRecord(0, Kind.CERTIFICATE, b"", identity.certificate.der, b""),)))
    )
    assert [dropped.reason for dropped in mesh.told("A", Dropped)] == ["untrusted"] * 2


# --------------------------------------------------------------------------------------------------------------- bounds


def test_no_more_routers_are_kept_than_may_be() -> None:
    mesh, line = running(Mesh(Settings(max_origins=10)))
    for number in range(50):
        mesh.inject("A", line, write_message(Records(number, (signed(Unsigned(), links(f"X{number}")),))))
    router = mesh.routers["A"]
    assert len(router.routers()) == 10
    assert router.dropped["full"] == 43


def test_no_more_addresses_of_one_origin_are_kept_than_may_be() -> None:
    mesh, line = running(Mesh(Settings(max_origin_octets=20_000)))
    epoch = mesh.routers["A"].database.origins["C"].pair.epoch
    for number in range(2, 200):
        entries = tuple(Entry("", f"{number} {'x' * 200} {entry}", "closest", 1, 0) for entry in range(10))
        body = encode(AddressDelta("C", epoch, number, entries))
        mesh.inject("A", line, write_message(Records(number, (signed(Unsigned(), body, Kind.ADDRESS_DELTA),))))
    router = mesh.routers["A"]
    assert router.database.origins["C"].log.octets <= 20_000
    assert router.dropped["full"] > 150
    assert {change.origin for change in mesh.told("A", Dropped)} == {"C"}


def test_no_more_octets_of_all_origins_are_kept_than_may_be_and_known_routers_are_heard_all_the_same() -> None:
    mesh, line = running(Mesh(Settings(max_octets=20_000)))
    router = mesh.routers["A"]
    for number in range(100):
        states = signed(Unsigned(), links(f"X{number}"))
        entries = tuple(Entry("", f"{number} {'x' * 200} {entry}", "closest", 1, 0) for entry in range(10))
        delta = signed(Unsigned(), encode(AddressDelta(f"X{number}", EPOCH, 1, entries)), Kind.ADDRESS_DELTA)
        mesh.inject("A", line, write_message(Records(number, (states, delta))))
    assert 15_000 < router.database.octets <= 20_000
    assert router.dropped["full"] > 80
    mesh.forget_changes()
    mesh.inject("A", line, write_message(Records(999, (signed(Unsigned(), links("C")),))))
    assert router.database.origins["C"].pair.sequence == 1000
    mesh.advertise("A", "more", 1)
    mesh.run(1)
    assert list(mesh.routers["C"].lookup("", "more")) == ["A"]
    for name in list(router.database.origins):
        if name != "A":
            router.database.forget(name)
    assert router.database.octets < 1000


def test_a_neighbour_that_tells_of_a_million_routers_that_are_not_there_is_waited_for_within_bounds() -> None:
    mesh = Mesh(Settings(max_origins=1000))
    mesh.start("A", "B")
    line = mesh.connect("A", "B")
    mesh.intercept = lambda _, sender, data: data if isinstance(read_message(data), Hello) else None
    mesh.run(0.5)
    for number in range(100):
        names = sorted(f"X{number}-{each}" for each in range(500))
        held = tuple(SummaryEntry(name, EPOCH, 1, 1, ()) for name in names)
        mesh.inject("A", line, write_message(Summary("", names[-1], held)))
    neighbour = mesh.routers["A"]._flooding.neighbours["B"]
    assert len(neighbour.missing) == 1000
    mesh.intercept = lambda line, sender, data: data
    mesh.run(20)
    assert not neighbour.missing
    assert mesh.disagreement() == ""


def test_a_neighbour_that_acknowledges_nothing_costs_no_more_the_longer_it_lasts() -> None:
    mesh, _ = running()

    def deaf(line: Line, sender: str, data: bytes) -> bytes | None:
        message = read_message(data)
        return None if sender == "B" and isinstance(message, Acknowledgement | Records) else data

    mesh.intercept = deaf
    neighbour = mesh.routers["A"]._flooding.neighbours["B"]
    for number in range(4500):
        mesh.advertise("A", "here", number % 2)
        mesh.run(0.021)
        # At most a thousand deltas hold at a time; as many may have been replaced since the queue was last pruned.
        assert neighbour.queued <= 3 * SMALL_QUEUE
    mesh.intercept = lambda line, sender, data: data
    mesh.run(20)
    assert mesh.disagreement() == ""
    assert neighbour.queued == 0


def test_one_that_gives_itself_the_highest_epoch_and_sequence_harms_itself_alone() -> None:
    signing = Signed()
    own = signing.identities["B"]
    assert signing.say(signed(own, links("B", MAX_EPOCH, MAX_EPOCH))) == []
    assert signing.router.database.origins["B"].pair == (MAX_EPOCH, MAX_EPOCH)
    signing.mesh.run(5)
    for name in ("A", "C"):  # B itself can send nothing newer, either
        router = signing.mesh.routers[name]
        assert router.epoch == EPOCH
        assert list(router.lookup("", f"at {name}")) == [name]
    signing.mesh.start("D")
    signing.mesh.connect("A", "D")
    signing.mesh.run(1)
    assert signing.router.distance("D") == 1
    assert list(signing.mesh.routers["D"].lookup("", "at A")) == ["A"]


def test_what_waits_for_certificates_that_never_come_takes_no_more_than_that() -> None:
    signing = Signed()
    for number in range(2000):
        signing.say(AgedRecord(0, Kind.LINK_STATE, number.to_bytes(32), links("D", sequence=number), bytes(64)))
    assert len(signing.router._flooding._uncertified) == signing.mesh.settings.max_waiting


@pytest.mark.parametrize("days", [100, -100])
def test_a_clock_that_steps_beyond_all_certificates_and_back_loses_nobody_for_long(days: int) -> None:
    signing = Signed()
    mesh = signing.mesh
    now = signing.world.clock.now
    signing.world.clock.now += days * 86_400
    mesh.advertise("C", "while it was wrong", 1)
    mesh.run(1)
    dropped = mesh.told("B", Dropped)  # the first to receive it, and passes nothing on
    assert {(each.origin, each.reason) for each in dropped} == {("C", "untrusted")}
    assert all("certificate" in each.detail for each in dropped)
    assert list(signing.router.lookup("", "at C")) == ["C"]  # a verified record is not verified again
    signing.world.clock.now = now
    mesh.run(150)  # C has renewed its link state, which has the sequence of its addresses
    assert mesh.disagreement() == ""
    assert list(signing.router.lookup("", "while it was wrong")) == ["C"]


def test_a_message_or_a_record_that_is_too_long_is_not_read() -> None:
    mesh, line = running()
    mesh.inject("A", line, bytes(MAX_MESSAGE + 1))
    assert mesh.told("A", Dropped)[0].reason == "oversized"
    with pytest.raises(UnreadableError) as refused:
        read_record(Kind.LINK_STATE, bytes(MAX_BODY + 1))
    assert refused.value.reason == "oversized"


BOMBS = {
    "arrays in arrays": b"\x91" * MAX_MESSAGE,
    "arrays that announce the most": b"\xdc\x10\x00" * (MAX_MESSAGE // 3),
    "arrays that announce 4 billion": b"\xdd\xff\xff\xff\xff" * (MAX_MESSAGE // 5),
    "maps in maps": b"\x81\xa1x" * (MAX_MESSAGE // 3),
    "maps that announce 4 billion": b"\xdf\xff\xff\xff\xff" * (MAX_MESSAGE // 5),
    "maps that announce the most": b"\xde\x00\x40\xa1x" * (MAX_MESSAGE // 5),
    "a string of 4 GiB": b"\xdb\xff\xff\xff\xff",
    "extensions": b"\xc7\xff\x01" + bytes(255),
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "nothing": b"",
    "numbers": b"\x01" * MAX_MESSAGE,
    "keys that are alike": b"\xde\x00\x40" + b"\xa1v\x01" * 64,
    "a key that is an array": b"\x81\x91\x01\x01",
    "no UTF-8": b"\x81\xa2\xff\xff\x01",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_costs_bounded_time_and_memory(bomb: bytes) -> None:
    for read in (read_message, lambda data: read_record(Kind.ADDRESSES, data[:MAX_BODY])):
        tracemalloc.start()
        began = time.thread_time()
        with pytest.raises(UnreadableError):
            read(bomb[:MAX_MESSAGE])
        assert time.thread_time() - began < 1.0
        assert tracemalloc.get_traced_memory()[1] < 48 * 2**20
        tracemalloc.stop()


# ----------------------------------------------------------------------------------------------------------------- fuzz

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=5),
    max_leaves=20,
)
KEYS = st.sampled_from(["v", "t", "a", "r", "e", "h", "n", "f", "l", "x", "q", "s", "k", "o", "d", "c", "p", "?"])
SHAPED = st.builds(
    lambda items, kind: {**items, "v": 1, "t": kind}, st.dictionaries(KEYS, VALUES, max_size=9), st.integers(0, 6)
).map(msgpack.packb)
NEAR: list[Message] = [
    Hello("B", EPOCH, 3000),
    Summary(),
    Request((RequestEntry(2, "C", b""), RequestEntry(4, "", b"12"))),
    Records(7, (signed(Unsigned(), links("C")), signed(Unsigned(), links("A", EPOCH + 1)))),
    Records(8, (signed(Unsigned(), encode(AddressDelta("C", EPOCH, 9)), Kind.ADDRESS_DELTA),)),
    Acknowledgement((1, 2, 3)),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a valid message with a few octets changed."""
    data = bytearray(write_message(draw(st.sampled_from(NEAR))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 2)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at:]
                data += draw(st.binary(max_size=4))
            case _:
                data[at:at] = draw(st.binary(max_size=4))
        if not data:
            break
    return bytes(data)


HOSTILE = st.binary(max_size=200) | SHAPED | damaged()


def refusal(read: Callable[[bytes], object], data: bytes) -> str:
    try:
        read(data)
    except UnreadableError as error:
        return error.reason
    return ""


@settings(max_examples=300)
@given(HOSTILE)
@example(b"\x80")
def test_whatever_is_read_is_a_body_or_one_error(data: bytes) -> None:
    for read in (read_message, *(lambda data, kind=kind: read_record(kind, data) for kind in (0, 1, 2, 3, 4, 5, -1))):
        assert refusal(read, data) in {"", "malformed", "oversized", "version", "kind"}


@settings(max_examples=60)
@given(st.lists(HOSTILE, max_size=12))
def test_whatever_a_neighbour_says_a_mesh_goes_on(messages: list[bytes]) -> None:
    signing = Signed()
    for data in messages:
        signing.mesh.inject("A", signing.line, data)
        signing.mesh.run(0.02)
    signing.mesh.run(15)  # a changed HELLO can end the adjacency, or name another router
    if signing.router.neighbours()[0].reason == "refused":  # then its connection is closed
        signing.mesh.cut(signing.line)
        signing.mesh.connect("A", "B")
        signing.mesh.run(15)
    assert signing.mesh.disagreement() == ""


def overheard() -> list[bytes]:
    """Return all messages of B in a run in which everything happens: the seeds of mutated ones."""
    said: dict[bytes, None] = {}

    def listen(line: Line, sender: str, data: bytes) -> bytes:
        if sender == "B" and "A" in line.ends:
            said[data] = None
        return data

    mesh = Mesh()
    mesh.intercept = listen
    mesh, line = running(mesh)
    for number in range(5):
        mesh.advertise("C", f"address {number}", 1)
        mesh.run(0.01)
    mesh.set_cost(line, "B", 7)
    mesh.run(1)
    mesh.cut(line)
    mesh.run(1)
    mesh.connect("A", "B")
    mesh.run(2)
    return list(said)


OVERHEARD = overheard()


def bent(value: Any, draw: st.DrawFn, depth: int = 0) -> Any:
    """Return a message with a part of it, or all of it, replaced; records are decoded and encoded again."""
    if depth and draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from([MAX_EPOCH, 2**64 - 1, "A", "C", "X", b"", [], {}, None, True]) | VALUES)
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: bent(value[key], draw, depth + 1)}
    if isinstance(value, list) and value:
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], bent(value[at], draw, depth + 1), *value[at + 1 :]]
    if isinstance(value, bytes) and value[:1] > b"\x80":
        return msgpack.packb(bent(msgpack.unpackb(value), draw, depth + 1))
    return value if draw(st.booleans()) else draw(VALUES)


@st.composite
def otherwise(draw: st.DrawFn) -> bytes:
    """Return a former message of B with present ages, unchanged or mutated."""
    data = draw(st.sampled_from(OVERHEARD))
    return msgpack.packb(bent(msgpack.unpackb(data), draw)) if draw(st.integers(0, 3)) else data


@settings(max_examples=150, deadline=None)
@given(st.lists(otherwise() | damaged(), max_size=25))
def test_whatever_a_believed_neighbour_makes_of_true_messages_a_router_stays_sound(messages: list[bytes]) -> None:
    bounds = Settings(max_origins=20, max_origin_octets=4000, max_octets=20_000, max_waiting=4)
    mesh, line = running(Mesh(bounds))  # without signatures, so that its records are trusted, whatever their origin
    router = mesh.routers["A"]
    for data in messages:
        mesh.inject("A", line, data)
        mesh.run(0.02)
        assert len(router.database.origins) <= 20
        assert len(router.database.dead) <= 20
        assert router.database.octets <= 20_000 + 20 * MAX_BODY
        kept = [stored for origin in router.database.origins.values() for stored in (origin.link, *origin.log)]
        assert router.database.octets == sum(stored.octets for stored in kept)
        assert set(router.paths.reachable()) <= {"A", *router.routers()}
    mesh.cut(line)
    mesh.start("D")
    mesh.connect("A", "D")
    mesh.advertise("D", "at D", 1)
    mesh.run(2)
    if len(router.database.origins) < 20 or "D" in router.routers():
        assert list(router.lookup("", "at D")) == ["D"]
    assert list(mesh.routers["D"].lookup("", "at A")) == ["A"]


@settings(max_examples=100)
@given(st.binary(max_size=100))
def test_whatever_a_stranger_says_makes_no_neighbour(data: bytes) -> None:
    router = Topology("A", Settings(), Unsigned(), Unsigned(), EPOCH, 0.0)
    router.connected("stranger", 1, 0.0)
    before = known(router)
    for message in (data, *(write_message(message) for message in NEAR[1:])):
        router.received("stranger", message, 0.1)
    assert known(router) == before
    assert not router.neighbours()[0].up
    assert router.received("nobody", data, 0.2) == ([], [])


# -------------------------------------------------------------------------------------------------------- future fields


def test_what_later_versions_add_is_ignored() -> None:
    mesh, line = running()
    body = msgpack.unpackb(links("C"))
    body["n"] = [["B", 3, 1, "more"]]
    body["z"] = {"new": [1, 2, 3]}
    message = msgpack.unpackb(write_message(Records(1, (signed(Unsigned(), msgpack.packb(body)),))))
    message["n"][0].append("more")
    message["z"] = 1.5
    mesh.inject("A", line, msgpack.packb(message))
    assert mesh.told("A", Dropped) == []
    state = mesh.routers["A"].database.origins["C"].state
    assert state.sequence == 1000
    assert state.neighbours == (Neighbour("B", 3, 1),)
    mesh.start("E")
    mesh.connect("A", "E")
    mesh.run(0.5)
    # The record is passed on unchanged.
    assert mesh.routers["E"].database.origins["C"].link.signed.body == msgpack.packb(body)


@pytest.mark.parametrize("message", NEAR, ids=lambda message: type(message).__name__)
def test_every_message_says_its_area_and_is_dropped_in_another(message: Message) -> None:
    mesh, line = running()
    assert "a" in {item.key for item in type(message).ITEMS}
    before = known(mesh.routers["A"])
    mesh.inject("A", line, write_message(replace(message, area="elsewhere")))
    assert [dropped.reason for dropped in mesh.told("A", Dropped)] == ["area"]
    assert known(mesh.routers["A"]) == before


def test_an_advert_of_any_distribution_is_passed_on_as_it_is() -> None:
    mesh, _ = running()
    mesh.call("A", lambda router, now: router.advertise("t", "new", Advert("invented later", 3, 4), now))
    mesh.run(0.5)
    assert dict(mesh.routers["C"].lookup("t", "new")) == {"A": Advert("invented later", 3, 4)}
