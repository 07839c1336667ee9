"""Octets of segments as rows; damaged octets are found, and cost no others."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest

from amqpmesh.pipeline.events import TABLES, Column, Problem, arrow_schema
from amqpmesh.pipeline.segments import MOST_FINDINGS, Account, convert, peek
from amqpmesh.router.telemetry.schema import FIELDS, HOP, UNIT_OCTETS, VERSION, Kind, Outcome, Unit
from amqpmesh.router.telemetry.segments import HEAD, MAGIC, Name, block, maps
from tests.support.data.segments import (
    ACCEPTED,
    ANSWERED,
    BEGAN,
    BEGUN,
    COPY,
    SETTLED,
    TIMED,
    Recorder,
    at,
    framed,
    hop,
    units,
    words,
)

NAME = Name("A", BEGAN, 1)


def converted(data: bytes, name: Name | None = NAME) -> tuple[dict[str, list[dict[str, Any]]], Account]:
    """Return the rows by table, and the account."""
    account = Account(name)
    rows: dict[str, list[dict[str, Any]]] = {"hops": [], "events": [], "counts": [], "edges": []}
    for table, batch in convert(data, account):
        batch.validate(full=True)
        assert batch.schema.names == [column.name for column in TABLES[table]]
        rows[table] += batch.to_pylist()
    assert {table: len(each) for table, each in rows.items()} == account.rows or account.is_other
    return rows, account


def problems(account: Account) -> list[Problem]:
    return [finding.problem for finding in account.findings]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def test_the_columns_are_those_that_are_declared_with_unit_and_meaning() -> None:
    schema = arrow_schema(TABLES["hops"])
    assert schema.names[: len(HOP)] == [field.name for field in HOP]
    assert schema.field("size").metadata == {b"unit": b"octets", b"meaning": schema.field("size").metadata[b"meaning"]}
    assert all(each.metadata[b"meaning"] for name in TABLES for each in arrow_schema(TABLES[name]))
    assert schema.field("key").type == pa.binary()
    assert all(isinstance(column, Column) for columns in TABLES.values() for column in columns)
    assert {Kind.HOP, Kind.EVENT, Kind.COUNTS, Kind.EDGE} <= FIELDS.keys()


def test_a_hop_record_is_read_as_declared(recorder: Recorder) -> None:
    incoming = recorder.link("in", peer="shop", address="orders", tenant="t")
    lane = recorder.link("lane", "outgoing", "B", lane=True, address=None, tenant=None)
    condition = recorder.link("shop:sold-out", "condition", None, address=None, tenant=None)
    recorder.hops(
        hop(
            time=at(1), ingress=0x0102030405060708, epoch=0x0A0B0C0D0E0F, counter=0x101, first=0x100, attempt=2,
            hops_left=18, priority=4, outcome=Outcome.REJECTED, flags=BEGUN | TIMED | ANSWERED, incoming=incoming,
            condition=condition, outgoing=lane, size=400, in_router=1_000, outcome_after=90_000, delivery_count=1,
        )
    )  # fmt: skip
    rows, account = converted(recorder.end())
    assert rows["hops"] == [
        {
            "router": "A", "time": at(1), "key": bytes.fromhex("0102030405060708 0a0b0c0d0e0f 000000000101"),
            "first_key": bytes.fromhex("0102030405060708 0a0b0c0d0e0f 000000000100"), "hops_left": 18, "began": True,
            "attempt": 2, "address": "orders", "tenant": "t", "incoming_link": "in", "incoming_peer": "shop",
            "from_router": False, "outgoing_link": "lane", "outgoing_peer": "B", "to_router": True,
            "outcome": "rejected", "condition": "shop:sold-out", "settled": False, "copy": False, "size": 400,
            "in_router": 1_000, "outcome_after": 90_000, "priority": 4, "delivery_count": 1, "epoch": BEGAN,
            "segment": 1,
        }
    ]  # fmt: skip
    assert account.findings == []
    assert account.whole
    assert (account.first_time, account.last_time, account.first_hop, account.next_hop) == (at(1), at(1), 0, 1)


def test_what_is_not_known_is_null(recorder: Recorder) -> None:
    (row,) = converted(recorder.data + framed(Kind.HOP, 0, 1, units(hop(flags=SETTLED | COPY))))[0]["hops"]
    unknown = {name for name, value in row.items() if value is None}
    assert unknown == {
        "first_key", "attempt", "address", "tenant", "incoming_link", "incoming_peer", "from_router", "outgoing_link",
        "outgoing_peer", "to_router", "in_router", "outcome_after", "condition",
    }  # fmt: skip
    assert row["settled"]
    assert row["copy"]


def test_an_address_of_its_own_goes_before_that_of_the_link(recorder: Recorder) -> None:
    anonymous = recorder.link("in", address=None, tenant=None)
    named = recorder.link("", "address", None, address="stock", tenant="t")
    recorder.hops(hop(incoming=anonymous, address=named), hop(incoming=anonymous))
    rows = converted(recorder.end())[0]["hops"]
    assert [(row["address"], row["tenant"]) for row in rows] == [("stock", "t"), (None, None)]


def test_a_number_means_the_link_that_was_explained_last_before_it(recorder: Recorder) -> None:
    recorder.link("old", number=5)
    recorder.hops(hop(incoming=5))
    recorder.link("new", number=5)
    recorder.hops(hop(incoming=5))
    rows = converted(recorder.end())[0]["hops"]
    assert [row["incoming_link"] for row in rows] == ["old", "new"]


def test_hops_of_unknown_links_stay_and_are_counted(recorder: Recorder) -> None:
    recorder.link("in", number=7)
    recorder.hops(hop(incoming=7, outgoing=9), hop(incoming=(1 << 32) - 1), hop(incoming=7))
    rows, account = converted(recorder.end())
    assert [row["incoming_link"] for row in rows["hops"]] == ["in", None, "in"]
    assert [(each.problem, each.records) for each in account.findings] == [(Problem.UNKNOWN_LINK, 2)]


def test_an_outcome_that_is_none_is_null_and_counted(recorder: Recorder) -> None:
    recorder.hops(hop(outcome=15), hop(outcome=ACCEPTED))
    rows, account = converted(recorder.end())
    assert [row["outcome"] for row in rows["hops"]] == [None, "accepted"]
    assert [(each.problem, each.records) for each in account.findings] == [(Problem.UNKNOWN_OUTCOME, 1)]


def test_maps_become_rows_with_the_router_that_wrote_them(recorder: Recorder) -> None:
    recorder.put(Kind.EVENT, [{"time": 1, "happening": "up", "link": "in", "direction": "incoming", "novel": 3}])
    recorder.put(Kind.EDGE, [{"time": 2, "origin": "A", "neighbour": "B", "cost": 1, "whole": True}])
    rows, account = converted(recorder.end())
    (event,), (edge,) = rows["events"], rows["edges"]
    assert {name: value for name, value in event.items() if value is not None} == {
        "router": "A", "time": 1, "happening": "up", "link": "in", "direction": "incoming", "epoch": BEGAN, "segment": 1
    }  # fmt: skip
    assert (edge["router"], edge["neighbour"], edge["cost"]) == ("A", "B", 1)
    assert account.findings == []


@pytest.mark.parametrize(
    "record",
    [
        {"time": 2, "origin": "A", "neighbour": "B", "cost": "1", "whole": True},
        {"time": 2, "origin": "A", "neighbour": "B", "cost": 1.5, "whole": True},
        {"time": 1 << 63, "origin": "A", "whole": True},
        {"time": (1 << 62) + 1, "origin": "A", "whole": True},
        {"time": -1, "origin": "A", "whole": True},
        {"time": 2, "origin": "A", "neighbour": "B", "cost": 1 << 54, "whole": True},
        {"origin": "A", "whole": True},
        {"time": 2, "origin": 5, "whole": True},
        {"time": 2, "origin": b"\xff", "whole": True},
        {},
    ],
)
def test_a_map_with_something_else_than_declared_costs_its_block(recorder: Recorder, record: dict[str, Any]) -> None:
    recorder.put(Kind.EDGE, [record])
    recorder.put(Kind.EDGE, [{"time": 2, "origin": "A", "neighbour": None, "cost": None, "whole": False}])
    rows, account = converted(recorder.end())
    assert len(rows["edges"]) == 1
    assert [(each.problem, each.records) for each in account.findings] == [(Problem.UNREADABLE, 1)]


@pytest.mark.parametrize("name", ["time", "size", "in_router", "outcome_after"])
def test_a_hop_record_with_a_number_that_no_router_writes_costs_its_block(recorder: Recorder, name: str) -> None:
    recorder.hops(hop(), hop(**{name: (1 << 62) + 1}))
    recorder.hops(hop(time=at(1), size=1 << 45))
    rows, account = converted(recorder.end())
    assert [each["size"] for each in rows["hops"]] == [1 << 45]
    assert (Problem.UNREADABLE, 2) in [(each.problem, each.records) for each in account.findings]


@pytest.mark.parametrize("number", ["x", None, True, (1 << 64) - 1])
def test_a_link_that_is_explained_wrongly_explains_nothing(recorder: Recorder, number: Any) -> None:
    recorder.put(Kind.LINK, [{"number": number, "name": "in", "direction": "incoming", "from_router": False}])
    recorder.hops(hop(incoming=1))
    rows, account = converted(recorder.end())
    assert len(rows["hops"]) == 1
    assert problems(account) == [Problem.UNREADABLE, Problem.UNKNOWN_LINK]


def test_records_that_found_no_room_are_told(recorder: Recorder) -> None:
    recorder.hops(hop())
    recorder.lose(41)
    recorder.hops(hop())
    _, account = converted(recorder.end())
    assert [(each.problem, each.records) for each in account.findings] == [(Problem.LOST, 41)]
    assert account.dropped == 41
    assert "for want of room" in account.findings[0].sentence
    assert account.whole


def test_a_damaged_block_costs_itself_and_is_told_once_for_each_consequence(recorder: Recorder) -> None:
    recorder.hops(hop())
    begin = len(recorder.data)
    recorder.hops(hop(), hop())
    end = len(recorder.data)
    recorder.hops(hop())
    data = bytearray(recorder.end())
    data[end - 1] ^= 1
    rows, account = converted(bytes(data))
    assert len(rows["hops"]) == 2
    assert [(each.problem, each.at, each.octets, each.records) for each in account.findings] == [
        (Problem.DAMAGED, begin, end - begin, None),
        (Problem.LOST, end, None, 2),
        (Problem.MISCOUNTED, None, None, 2),
    ]
    assert "damaged" in account.findings[1].sentence
    assert not account.whole


def test_numbers_that_go_back_are_told_and_used(recorder: Recorder) -> None:
    recorder.hops(hop(), hop())
    data = recorder.data + framed(Kind.HOP, 1, 1, units(hop()))
    rows, account = converted(data)
    assert len(rows["hops"]) == 3
    assert problems(account) == [Problem.DISORDERED, Problem.UNFINISHED]


def test_a_segment_that_is_not_at_its_end_says_so(recorder: Recorder) -> None:
    assert problems(converted(recorder.data)[1]) == [Problem.UNFINISHED]


def test_an_end_that_says_something_else_is_told(recorder: Recorder) -> None:
    data = recorder.data + framed(Kind.END, 0, 1, maps([{"time": 1, "hops": 3, "blocks": 1, "dropped": 0}]))
    _, account = converted(data)
    assert [(each.problem, each.records) for each in account.findings] == [(Problem.MISCOUNTED, 3)]


def test_an_empty_file_and_a_foreign_one_are_told() -> None:
    assert problems(converted(b"")[1]) == [Problem.EMPTY]
    assert problems(converted(b"hello" * 1000)[1]) == [Problem.FOREIGN]
    assert problems(converted(MAGIC * 1000)[1]) == [Problem.FOREIGN]


def test_what_a_newer_version_has_written_is_left_alone(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, version=VERSION + 1)
    recorder.hops(hop())
    rows, account = converted(recorder.end())
    assert rows["hops"] == []
    assert problems(account) == [Problem.NEWER]
    assert account.is_other


def test_what_an_older_version_has_written_is_told_and_not_used(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, version=1)
    data = recorder.data + framed(Kind.HOP, 0, 2, bytes(160)) + framed(Kind.EVENT, 0, 1, maps([{"as": "it was then"}]))
    rows, account = converted(data)
    assert not any(rows.values())
    assert problems(account) == [Problem.OLDER]
    assert account.findings[0].sentence == "version 1 has written it, and this is 2"


def test_a_record_that_needs_several_units_is_one_row(recorder: Recorder) -> None:
    large = {"size": 1 << 40, "in_router": 1 << 50, "outcome_after": 1 << 52, "delivery_count": 3, "attempt": 2}
    plain = {"size": 7, "in_router": 8, "outcome_after": 9, "delivery_count": 0, "attempt": 1}
    keys = [(1, 5, 1 << 32), (1, 5, 1), (2, 6, 1), (2, 6, 2), (1, 5, 2)]
    recorder.hops(
        *(
            hop(ingress=ingress, epoch=epoch, counter=counter, first=1, flags=BEGUN | TIMED | ANSWERED, **each)
            for ingress, epoch, counter in keys
            for each in (plain, large)
        )
    )
    rows, account = converted(recorder.end())
    assert problems(account) == []
    assert [{name: each[name] for name in plain} for each in rows["hops"]] == [plain, large] * len(keys)
    assert [each["key"] for each in rows["hops"]] == [
        number.to_bytes(8, "big") + epoch.to_bytes(6, "big") + counter.to_bytes(6, "big")
        for number, epoch, counter in keys
        for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("marks", "why"),
    [
        ((Unit.KEY, Unit.RECORD, Unit.RECORD, Unit.KEY), "2 records instead of 1"),
        ((Unit.RECORD, Unit.KEY), "a record stands before what its key begins with"),
        ((Unit.WIDE, Unit.KEY, Unit.RECORD), "a wide unit stands behind no record"),
        ((Unit.KEY, Unit.WIDE, Unit.RECORD), "a wide unit stands behind no record"),
        ((Unit.KEY, Unit.RECORD, Unit.WIDE, Unit.WIDE), "a wide unit stands behind no record"),
        ((Unit.KEY, Unit.RECORD, Unit.KEY, Unit.WIDE), "a wide unit stands behind no record"),
        ((Unit.KEY, Unit.RECORD, 0xA0), "a unit is none that is known"),
    ],
)
def test_units_that_no_router_writes_are_told(recorder: Recorder, marks: Sequence[int], why: str) -> None:
    body = b"".join(bytes(23) + bytes([mark]) + bytes(8) for mark in marks)
    rows, account = converted(recorder.data + framed(Kind.HOP, 0, 1, body))
    assert rows["hops"] == []
    (found,) = (each for each in account.findings if each.problem is Problem.UNREADABLE)
    assert found.sentence.endswith(f"cannot be read: {why}")


def test_what_a_segment_says_itself_counts_more_than_its_name(recorder: Recorder) -> None:
    recorder.hops(hop())
    rows, account = converted(recorder.end(), Name("other", BEGAN, 3))
    assert rows["hops"][0]["router"] == "A"
    assert account.name == NAME
    assert problems(account) == [Problem.MISNAMED]


def test_a_segment_whose_beginning_is_lost_is_known_by_its_name(recorder: Recorder) -> None:
    recorder.hops(hop())
    data = recorder.end()
    rows, account = converted(data[HEAD.size :], Name("A", BEGAN, 1))
    assert rows["hops"][0]["router"] == "A"
    assert problems(account) == [Problem.DAMAGED, Problem.MISCOUNTED]
    assert account.date == "2026-05-01"


def test_a_thousand_damaged_places_are_told_in_a_hundred_and_one() -> None:
    data = b"".join(framed(Kind.EVENT, 0, 0, maps([])) + b"\0" for _ in range(1000))
    _, account = converted(data)
    damaged = [each for each in account.findings if each.problem is Problem.DAMAGED]
    assert len(damaged) == MOST_FINDINGS + 1
    assert damaged[-1].sentence == "899 more of this kind"  # the last place is the torn end
    assert Problem.TORN in problems(account)


def sample(recorder: Recorder) -> bytes:
    """Return records of every kind, with 300 hop records."""
    recorder.link("in")
    recorder.link("lane", "outgoing", "B", lane=True)
    recorder.put(Kind.EDGE, [{"time": 2, "origin": "A", "neighbour": "B", "cost": 1, "whole": True}])
    for index in range(30):
        recorder.hops(*(hop(time=at(index), counter=10 * index + each, incoming=1, outgoing=2) for each in range(10)))
    return recorder.end()


def test_a_segment_cut_anywhere_keeps_what_stands_before(recorder: Recorder) -> None:
    data = sample(recorder)
    before = converted(data)[0]["hops"]
    for end in random.Random(7).sample(range(len(data)), 200):
        rows, account = converted(data[:end])
        assert rows["hops"] == before[: len(rows["hops"])]
        assert len(before) - len(rows["hops"]) <= 10 * (1 + (len(data) - end) // (HEAD.size + 11 * UNIT_OCTETS))
        assert account.findings


def test_random_octets_and_random_changes_are_findings_never_errors(recorder: Recorder) -> None:
    data, chance = sample(recorder), random.Random(11)
    for _ in range(200):
        spoiled = bytearray(data)
        for _ in range(chance.randrange(1, 20)):
            at_, length = chance.randrange(len(data)), chance.randrange(1, 60)
            spoiled[at_ : at_ + length] = chance.randbytes(chance.randrange(0, 60))
        rows, account = converted(bytes(spoiled))
        assert len(rows["hops"]) <= 300
        if bytes(spoiled) != data:
            assert account.findings
    for size in range(0, 2000, 97):
        assert converted(chance.randbytes(size))[1].findings


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_kinds_that_are_not_known_are_passed_over_and_told(recorder: Recorder, kind: int) -> None:
    body = b"whatever"
    head = bytearray(block(Kind.END, 0, 500, body))
    head[4] = kind
    head[28:] = crc32(bytes(head[:28])).to_bytes(4, "little")
    recorder.hops(hop())
    rows, account = converted(recorder.data + bytes(head) + body)
    assert len(rows["hops"]) == 1
    assert [each.records for each in account.findings if each.problem is Problem.UNREADABLE] == [500]


def test_of_segments_one_behind_the_other_the_first_alone_is_used(recorder: Recorder) -> None:
    recorder.hops(hop())
    first = recorder.data
    rows, account = converted(first + sample(recorder))
    assert len(rows["hops"]) == 1
    assert not account.whole
    found = [each for each in account.findings if each.problem is Problem.UNREADABLE]
    assert [each.at for each in found] == [len(first)]
    assert found[0].records


def test_numbers_of_records_beyond_63_bits_are_findings(recorder: Recorder) -> None:
    recorder.hops(hop())
    data = recorder.data + framed(Kind.HOP, (1 << 64) - 1, 1, units(hop()))
    rows, account = converted(data)
    assert len(rows["hops"]) == 2
    largest = (1 << 63) - 1
    assert (account.first_hop, account.next_hop) == (0, largest)
    assert [each.records for each in account.findings if each.problem is Problem.LOST] == [largest - 1]


def test_times_and_versions_beyond_63_bits_are_the_largest() -> None:
    assert Account(Name("A", 10**17, 1)).began == (1 << 63) - 1
    newer = framed(Kind.SEGMENT, 0, 1, maps([{"version": (1 << 64) - 1}]))
    assert converted(newer)[1].version == (1 << 63) - 1


def test_the_first_block_says_which_segment_it_is(recorder: Recorder) -> None:
    assert peek(recorder.data[:200]) == (NAME, VERSION)
    assert peek(b"") == peek(b"x" * 200) == peek(framed(Kind.HOP, 0, 1, units(hop()))) == (None, None)
    assert peek(framed(Kind.SEGMENT, 0, 1, maps([{"version": "1"}]))) == (None, None)
    for router in ("", "a/b", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace")):
        name, _ = peek(framed(Kind.SEGMENT, 0, 1, maps([
            {"version": 1, "router": router, "epoch": BEGAN, "segment": 1, "time": 1, "sample": 1}
        ])))  # fmt: skip
        assert name is None or name.router == router


def test_a_record_takes_much_less_than_a_microsecond(recorder: Recorder) -> None:
    count = 600_000
    for number in range(1, 400):
        recorder.link(f"link-{number}", address=f"address-{number % 50}")
    for each in range(0, count, 60_000):
        counters = np.arange(each, each + 60_000)
        recorder.hops(words({"counter": counters, "incoming": counters % 399 + 1, "time": counters}, 60_000))
    data = recorder.end()
    began = time.process_time()
    found = sum(batch.num_rows for table, batch in convert(data, Account(NAME)) if table == "hops")
    taken = time.process_time() - began
    assert found == count
    assert taken / count < 2e-6, taken / count  # 0.25 us on a machine of its own
