"""Segments in memory: the part of a tenant is what a reader of everything would choose."""

from __future__ import annotations

from array import array
from itertools import pairwise
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
    number: {"number": number, "tenant": "red" if number % 2 else "blue", "direction": "incoming", "name": f"l{number}"}
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
    """Return a hop record as its tenant gets it, but for its own numbers: links of others have none."""

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
        told = [record for each in blocks if each.kind == Kind.LINK for record in each.records()]
        links = {each["number"]: each for each in told}
        hops = hops_in(blocks)
        if tenant == EVERYTHING:
            assert hops == expected
        else:
            assert [apart(each) for each in hops] == [apart(each) for each in expected]
            demand_renamed(hops, expected)
        assert {each["tenant"] for each in told} <= ({"red", "blue", None} if tenant == EVERYTHING else {tenant, None})
        for each in hops:
            assert {each["incoming"], each["outgoing"], each["address"], each["condition"]} <= {0, *links}
            assert (each["address"] or each["incoming"]) in links
            assert not each["condition"] or links[each["condition"]]["name"] == "amqp:not-found"
        (end,) = blocks[-1].records()
        assert (end["hops"], end["dropped"]) == (len(expected), 3 if tenant == EVERYTHING else 0)
        assert next(each.first for each in blocks if each.kind == Kind.HOP) == (7 if tenant == EVERYTHING else 0)
    assert set(segments) - {EVERYTHING} == {LINKS[each["address"] or each["incoming"]]["tenant"] for each in everything}


NAMING = ("incoming", "outgoing", "address", "condition")


def apart(hop: dict[str, int]) -> dict[str, int]:
    """Return a hop record without the numbers that a tenant has of its own."""
    return {name: value for name, value in hop.items() if name not in (*NAMING, "counter", "first")}


def demand_renamed(hops: list[dict[str, int]], expected: list[dict[str, int]]) -> None:
    """Demand that links and deliveries have other names: the same ones for the same, and different ones for others."""
    names: set[tuple[object, ...]] = set()
    for hop, before in zip(hops, expected, strict=True):
        names |= {("link", before[each], hop[each]) for each in NAMING}
        life = before["ingress"], before["epoch"]
        names.add((life, before["counter"], hop["counter"]))
        assert bool(hop["first"]) == bool(before["first"])
    assert len({each[:2] for each in names}) == len({(each[0], each[2]) for each in names}) == len(names)
    assert {each for each in names if each[0] == "link" and each[1] in (0, FOREIGN)} <= {
        ("link", 0, 0),
        ("link", FOREIGN, FOREIGN),
    }


def counters_of(live: LiveSegments, tenant: str, counters: range, key: bytes) -> list[int]:
    """Return the counters of deliveries as a tenant gets them. Args: counters: as the ingress router counted them."""
    words = stored([(bytes(14), each, 1, 0, 0, 0, 10) for each in counters])
    live.take_hops(memoryview(words).cast("B"), 0, len(counters))
    ((_, _, octets),) = live.close(NOW, [tenant], 0, key)
    return [each["counter"] for each in hops_in(read(octets, Damage()))]


def test_counters_are_the_same_at_each_router_of_a_policy_and_tell_no_order() -> None:
    one, other = (LiveSegments(each, 1_700_000_000_000, 2**32, LINKS, secret=each.encode()) for each in "AB")
    counters = range(2**32 - 500, 2**32 + 500)
    found = counters_of(one, "red", counters, b"policy")
    assert counters_of(other, "red", counters, b"policy") == found
    assert len(set(found)) == len(counters)
    assert not set(found) & set(counters_of(other, "red", counters, b"another"))
    rising = sum(before < after for before, after in pairwise(found))
    assert 400 < rising < 600
    assert sum(abs(before - after) < 2**20 for before, after in pairwise(found)) < 10


def test_tenants_cannot_compare_their_numbers() -> None:
    links = {number: {**LINKS[1], "number": number, "tenant": "ab"[number % 2]} for number in range(2, 1_002)}
    live = LiveSegments("A", 1_700_000_000_000, 2**32, links)
    told: dict[str, list[dict[str, Any]]] = {}
    for number in (*links, *links):
        live.take(Kind.COUNTS, 0, [{"number": number, "link": "x", "tenant": links[number]["tenant"]}], wanted=True)
    for tenant, _, octets in live.close(NOW, "ab", 0):
        told[tenant] = [
            record for each in read(octets, Damage()) if each.kind == Kind.COUNTS for record in each.records()
        ]
    one, other = ([each["number"] for each in told[tenant]] for tenant in "ab")
    for found in (one, other):
        assert found[:500] == found[500:]
        assert len(set(found)) == 500
        assert 200 < sum(before < after for before, after in pairwise(found[:500])) < 300
    assert len({*one} & {*other}) < 5


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


def test_names_of_lanes_have_other_numbers_in_all_records_of_a_tenant_and_other_names_stay() -> None:
    names = ["$lane/any/red/q#18b.17", "$lane/any/red/q#18b.18", "a.17", "$lane/x", "17"]
    links = {
        number: {**LINKS[1], "number": number, "name": name, "peer": None, "from_router": True, "address": None}
        for number, name in enumerate(names, 1)
    }
    found: dict[str, list[list[str]]] = {EVERYTHING: [], "red": []}
    for router in "AB":
        live = LiveSegments(router, 1_700_000_000_000, 2**32, links, secret=router.encode())
        words = stored([(bytes(14), 1, number, 0, 0, 0, 10) for number in links])
        live.take_hops(memoryview(words).cast("B"), 0, len(links))
        for kind in (Kind.EVENT, Kind.COUNTS):
            live.take(kind, 0, [{"number": 1, "tenant": "red", "link": each} for each in names], wanted=True)
        for tenant, _, octets in live.close(NOW, [*found], 0, b"policy"):
            blocks = list(read(octets, Damage()))
            told = {
                kind: [
                    each.get("link") or each["name"]
                    for block in blocks
                    if block.kind == kind
                    for each in block.records()
                ]
                for kind in (Kind.LINK, Kind.EVENT, Kind.COUNTS)
            }
            assert told[Kind.EVENT] == told[Kind.COUNTS]
            assert sorted(told[Kind.LINK]) == sorted(told[Kind.EVENT])
            found[tenant].append(told[Kind.EVENT])
    assert found[EVERYTHING] == [names, names]
    one, other = found["red"]
    assert one == other
    assert one[2:] == names[2:]
    assert [each.rpartition(".")[0] for each in one[:2]] == ["$lane/any/red/q#18b"] * 2
    assert len({*one} | {*names}) == len(names) + 2


def test_a_link_keeps_its_number_while_publishing_comes_and_goes_and_policies_change() -> None:
    numbers: set[int] = set()
    for key in (b"one", b"other"):
        live = LiveSegments("A", 1_700_000_000_000, 2**32, LINKS, secret=b"life")
        words = stored([(bytes(14), 1, 1, 0, 0, 0, 10)])
        live.take_hops(memoryview(words).cast("B"), 0, 1)
        ((_, _, octets),) = live.close(NOW, ["red"], 0, key)
        numbers |= {each["incoming"] for each in hops_in(read(octets, Damage()))}
    assert len(numbers) == 1
    assert numbers.isdisjoint(LINKS)


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
