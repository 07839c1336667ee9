"""The order of hop records, with missing and doubled ones among them."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.pipeline.hop_order import Chains, chains

SCHEMA = pa.schema(
    {
        "key": pa.binary(), "began": pa.bool_(), "hops_left": pa.int64(), "router": pa.string(), "leaving": pa.int64(),
        "incoming_peer": pa.string(), "from_router": pa.bool_(), "outgoing_peer": pa.string(), "to_router": pa.bool_(),
        "time": pa.int64(),
    }
)  # fmt: skip

LEFT = 18


def passage(where: str, hop: int, key: bytes = b"k", *, time: int = 0) -> dict[str, Any]:
    """Return a record. Args: where: `came>router>went`; routers are large letters, clients small
    ones; went: empty for none. hop: its distance from the ingress router.
    """
    came, router, went = where.split(">")
    return {
        "key": key, "began": hop == 0, "hops_left": LEFT - max(0, hop - 1), "router": router,
        "leaving": crc32(went.encode()), "incoming_peer": came, "from_router": came.isupper(),
        "outgoing_peer": went or None, "to_router": went.isupper() if went else None, "time": time,
    }  # fmt: skip


def put(*records: dict[str, Any]) -> Chains:
    def place(record: dict[str, Any]) -> Any:
        return record["key"], not record["began"], -record["hops_left"], record["router"], record["leaving"]

    return chains(pa.Table.from_pylist(sorted(records, key=place), SCHEMA))


def paths(found: Chains) -> list[tuple[str, bool]]:
    """Of each chain its routers, and whether it is complete."""
    routers = np.array(found.table.column("router").to_pylist())
    ends = zip(found.offsets[:-1], found.offsets[1:], found.complete, strict=True)
    return [("".join(routers[found.places[begin:end]]), bool(complete)) for begin, end, complete in ends]


WAY = [passage("s>A>B", 0), passage("A>B>C", 1), passage("B>C>D", 2), passage("C>D>r", 3)]


def test_one_way_is_one_chain() -> None:
    found = put(*WAY)
    assert paths(found) == [("ABCD", True)]
    assert found.legs.tolist() == [1]
    assert found.contradictions.to_pylist() == [[]]


def test_one_router_is_a_chain_too() -> None:
    assert paths(put(passage("s>A>r", 0))) == [("A", True)]
    assert paths(put(passage("s>A>", 0))) == [("A", True)]


def test_no_records_are_no_chains() -> None:
    assert paths(put()) == []


@pytest.mark.parametrize("missing", range(4))
def test_a_record_that_is_missing_leaves_one_chain_that_is_not_complete(missing: int) -> None:
    found = put(*(each for each in WAY if each is not WAY[missing]))
    assert paths(found) == [("ABCD".replace("ABCD"[missing], ""), False)]


def test_two_gaps_leave_one_chain() -> None:
    assert paths(put(WAY[0], WAY[2])) == [("AC", False)]
    longer = [*WAY[:3], passage("C>D>E", 3), passage("D>E>r", 4)]
    assert paths(put(longer[0], longer[2], longer[4])) == [("ACE", False)]


def test_a_loop_is_one_chain() -> None:
    records = [passage("s>A>B", 0), passage("A>B>A", 1), passage("B>A>C", 2), passage("A>C>r", 3)]
    assert paths(put(*records)) == [("ABAC", True)]


def test_a_multicast_delivery_is_a_chain_for_each_receiver() -> None:
    tree = [
        passage("s>A>B", 0), passage("s>A>C", 0), passage("s>A>r", 0), passage("A>B>x", 1), passage("A>B>y", 1),
        passage("A>C>D", 1), passage("C>D>z", 2),
    ]  # fmt: skip
    found = put(*tree)
    assert sorted(paths(found)) == [("A", True), ("AB", True), ("AB", True), ("ACD", True)]
    assert found.legs.tolist() == [4, 4, 4, 4]
    without = put(*(each for each in tree if each["router"] != "C"))
    assert sorted(paths(without)) == [("A", False), ("A", True), ("AB", True), ("AB", True), ("D", False)]


def test_keys_do_not_mix() -> None:
    found = put(*(passage("s>A>B", 0, key) for key in (b"1", b"2")), passage("A>B>r", 1, b"2"))
    assert paths(found) == [("A", False), ("AB", True)]


def test_a_record_that_is_there_twice_counts_once_and_is_told() -> None:
    found = put(*WAY, WAY[1])
    assert paths(found) == [("ABCD", True)]
    assert found.contradictions.to_pylist() == [["B has recorded it twice, alike"]]
    found = put(*WAY, {**WAY[1], "time": 7}, passage("s>A>r", 0, b"z"))
    assert paths(found) == [("ABCD", True), ("A", True)]
    assert found.contradictions.to_pylist() == [["B has recorded it twice, with another time"], []]


def test_what_goes_on_behind_its_end_is_told() -> None:
    found = put(passage("s>A>r", 0), passage("B>C>r", 2))
    assert paths(found) == [("AC", False)]
    assert found.contradictions.to_pylist() == [["A sent it to no router, and C has recorded it behind that"]]


def test_what_began_at_two_routers_is_told() -> None:
    found = put(passage("s>A>r", 0), passage("s>B>r", 0))
    assert sorted(paths(found)) == [("A", True), ("B", True)]
    assert found.contradictions.to_pylist() == [["it began its way at A, and at B"]] * 2


RECORDS = st.lists(
    st.builds(
        lambda came, router, went, hop, key, time: passage(f"{came}>{router}>{went}", hop, key, time=time),
        st.sampled_from("ABCs"), st.sampled_from("ABC"), st.sampled_from(["A", "B", "C", "r", "q", ""]),
        st.integers(0, 20), st.sampled_from([b"1", b"2"]), st.integers(0, 1),
    ),
    max_size=12,
)  # fmt: skip


@given(RECORDS)
def test_every_passage_stands_in_some_chain_whatever_the_records_say(records: list[dict[str, Any]]) -> None:
    found = put(*records)
    passages = {(each["key"], each["began"], each["hops_left"], each["router"], each["leaving"]) for each in records}
    assert found.table.num_rows == len(passages)
    assert set(found.places.tolist()) == set(range(len(passages)))
    lengths = np.diff(found.offsets)
    assert (lengths > 0).all()
    keys = np.array(found.table.column("key").to_pylist())
    for begin, end in zip(found.offsets[:-1], found.offsets[1:], strict=True):
        assert len(set(keys[found.places[begin:end]])) == 1
        assert (np.diff(found.places[begin:end]) > 0).all()
