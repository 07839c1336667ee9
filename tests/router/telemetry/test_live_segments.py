"""Segments in memory: the part of a tenant is what a reader of everything would choose."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from amqpmesh.router.kernel import UNRECORDED, Recorder
from amqpmesh.router.telemetry.live_segments import FOREIGN, MOST, LiveSegments
from amqpmesh.router.telemetry.schema import EVERYTHING, Kind
from amqpmesh.router.telemetry.segments import Damage, read
from tests.support.data.recordings import hops_in, unpacked

NOW = 1_700_000_000 * 10**9
LINKS = {
    number: {"number": number, "tenant": "red" if number % 2 else "blue", "direction": "incoming"}
    for number in range(1, 9)
}
LINKS |= {9: {"number": 9, "tenant": None, "direction": "condition", "name": "amqp:not-found"}}

records = st.tuples(
    st.binary(min_size=14, max_size=14),
    st.integers(0, 2**48 - 1),
    st.sampled_from([1, 2, 3, 4, UNRECORDED]),
    st.integers(0, 8),
    st.sampled_from([0, 0, 5, 6]),
    st.sampled_from([0, 0, 9]),
    st.integers(0, 2**62),
)


def stored(found: list[tuple[Any, ...]]) -> array[int]:
    recorder = Recorder(lambda: 0.0)
    recorder.give(array("Q", bytes(8 * 4 * (3 * len(found) + 3))))
    for key, counter, incoming, outgoing, address, condition, size in found:
        recorder.store(key, counter, 0, 0, 1, incoming, outgoing, size, 1.0, 2.0, 3.0, 4, address, 1, 0, condition)
    return recorder.words[: recorder.used]


def as_told(hop: dict[str, int], tenant: str) -> dict[str, int]:
    """Return a hop record as its tenant gets it: links of others have no numbers."""

    def own(name: str, otherwise: int) -> int:
        number = hop[name]
        return number if not number or LINKS[number]["tenant"] == tenant else otherwise

    return {**hop, "incoming": own("incoming", 0), "outgoing": own("outgoing", FOREIGN)}


@given(st.lists(records, min_size=1, max_size=30))
def test_a_tenant_gets_its_records_and_no_others(found: list[tuple[Any, ...]]) -> None:
    words = stored(found)
    everything = unpacked(words)
    assert len(everything) == sum(each[2] != UNRECORDED for each in found)
    assume(everything)
    live = LiveSegments("A", 1_700_000_000_000, 2**32, LINKS)
    live.take_hops(memoryview(words).cast("B"), 7, len(everything))
    segments = {tenant: octets for tenant, _, octets in live.close(NOW, [EVERYTHING, "red", "blue"], 3)}
    for tenant, octets in segments.items():
        damage = Damage()
        blocks = list(read(octets, damage))
        assert damage == Damage()
        expected = [
            each if tenant == EVERYTHING else as_told(each, tenant)
            for each in everything
            if tenant in (EVERYTHING, LINKS[each["address"] or each["incoming"]]["tenant"])
        ]
        assert hops_in(blocks) == expected
        told = [record for each in blocks if each.kind == Kind.LINK for record in each.records()]
        links = {each["number"]: each for each in told}
        assert {each["tenant"] for each in told} <= ({"red", "blue", None} if tenant == EVERYTHING else {tenant, None})
        for each in expected:
            assert {each["incoming"], each["outgoing"], each["address"], each["condition"]} <= {0, *links}
            assert (each["address"] or each["incoming"]) in links
            assert not each["condition"] or each["condition"] in links
        (end,) = blocks[-1].records()
        assert (end["hops"], end["dropped"]) == (len(expected), 3 if tenant == EVERYTHING else 0)
        assert next(each.first for each in blocks if each.kind == Kind.HOP) == (7 if tenant == EVERYTHING else 0)
    assert set(segments) - {EVERYTHING} == {LINKS[each["address"] or each["incoming"]]["tenant"] for each in everything}


def test_segments_of_a_tenant_are_numbered_without_those_of_others() -> None:
    live = LiveSegments("A", 1_700_000_000_000, 2**32, LINKS)
    names: dict[str, list[str]] = {EVERYTHING: [], "red": [], "blue": []}
    for incoming in (2, 2, 1, 2, 1):
        words = stored([(bytes(14), 1, incoming, 0, 0, 0, 10)])
        live.take_hops(memoryview(words).cast("B"), 0, 1)
        for tenant, name, octets in live.close(NOW, list(names), 0):
            names[tenant].append(name)
            (told,) = next(read(octets, Damage())).records()
            assert name == f"{told['epoch']:013d}.{told['segment']:06d}"
    for tenant, segments in ((EVERYTHING, 5), ("red", 2), ("blue", 3)):
        assert [int(each.rpartition(".")[2]) for each in names[tenant]] == [*range(1, segments + 1)]


def test_long_names_count_for_the_size_of_a_segment() -> None:
    live = LiveSegments("A", 1_700_000_000_000, 2**32, {})
    event = {"link": "x" * 256, "address": "y" * 256, "peer": "z" * 256, "tenant": None}
    taken = 0
    while not live.is_due:
        live.take(Kind.EVENT, taken, [event], wanted=True)
        taken += 1
    ((_, _, octets),) = live.close(NOW, [EVERYTHING], 0)
    assert MOST / 2 < len(octets) < 2 * MOST


def test_a_link_that_ended_is_explained_once_more() -> None:
    live = LiveSegments("A", 1_700_000_000_000, 2**32, {})
    live.take(Kind.LINK, 0, [LINKS[1]], wanted=True)
    live.forget([1])
    explained = []
    for _ in range(3):
        words = stored([(bytes(14), 1, 1, 0, 0, 0, 10)])
        live.take_hops(memoryview(words).cast("B"), 0, 1)
        ((_, _, octets),) = live.close(NOW, [EVERYTHING], 0)
        explained.append(any(each.kind == Kind.LINK for each in read(octets, Damage())))
    assert explained == [True, True, False]


def test_after_publishing_was_off_for_a_while_segments_have_other_numbers_than_before() -> None:
    numbers: dict[tuple[str, Kind], int] = {}
    names: dict[str, list[str]] = {EVERYTHING: [], "red": [], "blue": []}
    for _ in range(2):
        live = LiveSegments("A", 1_700_000_000_000, 2**32, LINKS, numbers)
        for incoming in (1, 2, 1):
            words = stored([(bytes(14), 1, incoming, 0, 0, 0, 10)])
            live.take_hops(memoryview(words).cast("B"), 0, 1)
            for tenant, name, _ in live.close(NOW, [*names], 0):
                names[tenant].append(name[-2:])
    assert names == {
        EVERYTHING: ["01", "02", "03", "04", "05", "06"],
        "red": ["01", "02", "03", "04"],
        "blue": ["01", "02"],
    }


def test_a_segment_in_memory_is_closed_before_it_is_large() -> None:
    live = LiveSegments("A", 1_700_000_000_000, 2**32, LINKS)
    words = stored([(bytes(14), 1, 1, 0, 0, 0, 10)] * 1_000)
    taken = 0
    while not live.is_due:
        live.take_hops(memoryview(words).cast("B"), 0, 1_000)
        live.take(Kind.EVENT, 0, [{"tenant": "red"}] * 100, wanted=True)
        taken += 1
    assert 10 <= taken <= 30
    assert len(list(live.close(NOW, [EVERYTHING], 0))) == 1
    assert not live.is_due
    live.take(Kind.EVENT, 0, [{"tenant": "red"}] * 10_000, wanted=False)
    assert not live.is_due
