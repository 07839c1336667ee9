"""Segments: appended blocks are read, damaged ones are skipped and counted."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.telemetry.schema import UNIT_OCTETS, UNIT_WORDS, Kind
from amqpmesh.router.telemetry.segments import HEAD, MAGIC, MAX_MAPS, Damage, Name, block, maps, read


def framed(kind: Kind, first: int, count: int, body: bytes) -> bytes:
    return block(kind, first, count, body) + body


def hops(count: int, first: int = 0) -> bytes:
    return framed(Kind.HOP, first, count, array("Q", range((count + 1) * UNIT_WORDS)).tobytes())


PARTS = [framed(Kind.SEGMENT, 0, 1, maps([{"router": "A"}])), hops(3), hops(1, 5), framed(Kind.EVENT, 0, 0, maps([]))]
WHOLE = b"".join(PARTS)


def contents(data: bytes) -> tuple[list[tuple[int, int, int, bytes]], Damage]:
    damage = Damage()
    return [(each.kind, each.first, each.count, bytes(each.body)) for each in read(data, damage)], damage


def test_what_was_appended_is_read() -> None:
    found, damage = contents(WHOLE)
    assert [(kind, first, count) for kind, first, count, _ in found] == [
        (Kind.SEGMENT, 0, 1),
        (Kind.HOP, 0, 3),
        (Kind.HOP, 5, 1),
        (Kind.EVENT, 0, 0),
    ]
    assert damage == Damage()
    assert next(iter(read(WHOLE, damage))).records() == [{"router": "A"}]


@given(st.integers(0, len(WHOLE)))
def test_a_torn_end_costs_the_torn_block_only(end: int) -> None:
    ends = [sum(map(len, PARTS[: index + 1])) for index in range(len(PARTS))]
    found, damage = contents(WHOLE[:end])
    assert len(found) == sum(each <= end for each in ends)
    whole = max([each for each in ends if each <= end], default=0)
    assert damage.octets == end - whole
    assert damage.torn == (end != whole)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_one_wrong_octet_costs_its_block_only(at: int, flipped: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= flipped
    before = contents(WHOLE)[0]
    found, damage = contents(bytes(data))
    assert len(found) == len(PARTS) - 1
    assert all(each in before for each in found)
    assert damage.blocks == 1


@given(st.binary(max_size=300), st.integers(0, len(PARTS)))
def test_whatever_stands_between_blocks_is_passed_over(foreign: bytes, place: int) -> None:
    found, damage = contents(b"".join(PARTS[:place]) + foreign + b"".join(PARTS[place:]))
    assert found == contents(WHOLE)[0]
    assert damage.octets == len(foreign)
    assert sum(end - begin for begin, end in damage.where) == len(foreign)


def test_a_magic_within_a_body_begins_nothing() -> None:
    inner = hops(1)
    outer = framed(Kind.EVENT, 0, 1, maps([{"link": inner}]))
    assert [kind for kind, *_ in contents(outer + WHOLE)[0]][:2] == [Kind.EVENT, Kind.SEGMENT]
    broken = bytearray(outer)
    broken[-1] ^= 1
    found, damage = contents(bytes(broken) + WHOLE)
    assert found == contents(WHOLE)[0]
    assert damage.blocks == 1


def test_maps_that_would_fill_the_memory_are_none() -> None:
    bomb = b"\xdd" + (MAX_MAPS).to_bytes(4, "big") + b"\x80" * MAX_MAPS
    assert list(read(block(Kind.LINK, 0, MAX_MAPS, bomb) + bomb, Damage())) == []


def test_hop_records_that_do_not_fill_their_block_are_none() -> None:
    for body in (bytes(2 * UNIT_OCTETS), bytes(3 * UNIT_OCTETS + 8)):
        wrong = framed(Kind.HOP, 0, 2, body)
        found, damage = contents(wrong + WHOLE)
        assert found == contents(WHOLE)[0]
        assert damage.octets == len(wrong)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", maps([{"a": 1}])[:-1], b"\x01", b"\x91\x01", maps([{}, {}]), b"\x91\x81\x01\x02", b"\xdf" * 9],
)
def test_a_body_that_holds_something_else_is_told(body: bytes) -> None:
    (found,) = read(block(Kind.LINK, 0, 1, body) + body, Damage())
    with pytest.raises(ValueError, match=r"."):
        found.records()


@pytest.mark.parametrize("router", ["A", "A.1", "../x", "a b/ü%", "."])
def test_a_segments_name_names_its_router(router: str) -> None:
    name = Name(router, 1_700_000_000_000, 7)
    assert "/" not in name.file()
    assert Name.of(name.file()) == name
    assert Name.of(name.file(".open")) == name


@pytest.mark.parametrize(
    "file",
    [
        "",
        "A.events",
        "A.1700000000000.000001.parquet",
        ".1700000000000.000001.events",
        f"A.{10**18}.000001.events",
        f"A.1700000000000.{10**18}.events",
    ],
)
def test_other_files_are_none(file: str) -> None:
    assert Name.of(file) is None


def test_a_head_is_what_it_says() -> None:
    assert HEAD.size == 32
    assert not MAGIC.isascii()
