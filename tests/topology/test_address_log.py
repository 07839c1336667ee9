"""The addresses of one origin, for any order of its records."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.address_log import AddressLog, LogVerdict, StoredRecord
from amqpmesh.topology.record_builder import RecordBuilder
from amqpmesh.topology.records import AddressDelta, Name
from amqpmesh.topology.signing import Unsigned

ROOM = 10**9


def spoken(random: Random, batches: int) -> tuple[list[list[StoredRecord]], list[dict[Name, Advert]]]:
    """Return the records of a router, a group for each change, and its state after each group."""
    builder = RecordBuilder("A", 1, "", Unsigned())
    groups: list[list[StoredRecord]] = []
    states: list[dict[Name, Advert]] = []
    for _ in range(batches):
        if random.random() < 0.3 and groups and groups[-1]:
            is_delta = isinstance(groups[-1][0].record, AddressDelta)
            groups.append(builder.state(0.0, new_sequence=not is_delta or random.random() < 0.3))
        else:
            for _ in range(random.randint(1, 4)):
                advert = Advert("closest", random.randint(1, 9), 0) if random.random() < 0.7 else None
                long = "x" * random.choice((1, 1, 2000))
                builder.pending[Name("", f"{random.randint(0, 30)} {long}")] = advert
            groups.append(builder.deltas(0.0))
        states.append(dict(builder.entries))
    return groups, states


class Follower:
    """A router that receives the records."""

    def __init__(self) -> None:
        self.log = AddressLog(ROOM)
        self.state: dict[Name, Advert] = {}
        self.records: dict[object, StoredRecord] = {}

    def hear(self, stored: StoredRecord) -> LogVerdict:
        taken, effects, replaced = self.log.take(stored)
        if taken is LogVerdict.NEW:
            self.records[stored.key] = stored
        for gone in replaced:
            del self.records[gone.key]
        for effect in effects:
            if effect.all:
                self.state.clear()
            for name in effect.removed:
                self.state.pop(name, None)
            self.state.update(effect.entries)
        return taken


@given(st.integers(0, 2**32), st.integers(1, 15))
def test_in_order_the_state_is_the_origins_after_each_step(seed: int, batches: int) -> None:
    groups, states = spoken(Random(seed), batches)
    follower = Follower()
    for group, state in zip(groups, states, strict=True):
        for stored in group:
            assert follower.hear(stored) is LogVerdict.NEW
        assert follower.state == state


@given(st.integers(0, 2**32), st.integers(1, 15))
def test_in_any_order_and_twice_it_is_never_wrong_and_asking_completes_it(seed: int, batches: int) -> None:
    random = Random(seed)
    groups, _ = spoken(random, batches)
    origin, follower = Follower(), Follower()
    states: list[dict[Name, Advert]] = [{}]
    for group in groups:
        for stored in group:
            origin.hear(stored)
            states.append(dict(origin.state))
    said = {stored.key: stored for group in groups for stored in group}
    records = [stored for group in groups for stored in group] * 2
    random.shuffle(records)
    for stored in records[: random.randint(0, len(records))]:
        follower.hear(stored)
        assert follower.state in states
        held = {each.key: each for each in follower.log}
        assert {key: each.signed for key, each in held.items()} == {
            key: each.signed for key, each in follower.records.items()
        }
        assert follower.log.octets == sum(each.octets for each in held.values())
        assert all(follower.log.get(key) is each for key, each in held.items())
    missing = origin.log.since(follower.log.sequence)
    for key in missing:
        found = origin.log.get(key)
        assert found is not None
        assert found.signed == said[key].signed
        follower.hear(said[key])
    assert follower.state == origin.state
    assert not follower.log.is_behind(origin.log.sequence)


def test_what_replaces_more_than_it_adds_may_always_come() -> None:
    groups, _ = spoken(Random(1), 40)
    most = max(stored.octets for group in groups for stored in group)
    log = AddressLog(3 * most)
    for group in groups:
        for stored in group:
            log.take(stored)
            assert log.octets <= 3 * most


def test_a_full_state_that_takes_all_the_room_that_there_is_can_change_and_be_replaced() -> None:
    builder = RecordBuilder("A", 1, "", Unsigned())
    builder.pending = dict.fromkeys((Name("", f"address/{number}") for number in range(3000)), Advert("balanced", 1))
    builder.deltas(0.0)
    most = sum(stored.octets for stored in builder.state(0.0))
    log = AddressLog(most)
    for consumers in range(1, 4):
        builder.pending = dict.fromkeys(builder.entries, Advert("balanced", consumers))
        for stored in (*builder.deltas(0.0), *builder.state(0.0, new_sequence=consumers == 1)):
            assert log.take(stored)[0] is LogVerdict.NEW
            assert log.octets <= 3 * most
    assert log.sequence == log.base
    assert log.octets == most
    builder.pending[Name("", "one/more")] = Advert("balanced", 1)
    builder.deltas(0.0)
    assert LogVerdict.FULL in [log.take(stored)[0] for stored in builder.state(0.0)]
