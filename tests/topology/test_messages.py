"""Bodies and messages, written and read by routers of other versions."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.messages import MAX_MESSAGE, TYPES, AgedRecord, Message, Records, read_message, write_message
from amqpmesh.topology.neighbour_state import MAX_ACKNOWLEDGED
from amqpmesh.topology.records import (
    AREA,
    BODIES,
    EPOCH,
    MAX_BODY,
    NEIGHBOUR,
    ROUTER_ID,
    SEQUENCE,
    Addresses,
    Kind,
    LinkState,
    Neighbour,
    Record,
    encode,
    read_record,
)
from amqpmesh.topology.schema import (
    Array,
    Binary,
    Body,
    Boolean,
    Integer,
    Nullable,
    Row,
    Text,
    UnreadableError,
    ValueType,
    body,
    decode,
    item,
)

ID_CHARACTERS = "".join(chr(code) for code in range(33, 127) if chr(code) not in "@/#*")


def values(form: ValueType) -> st.SearchStrategy[Any]:
    """Return all kinds of values that a type accepts."""
    match form:
        case Integer(low, high):
            return st.integers(low, high)
        case Text(longest, None):
            return st.text(st.characters(exclude_categories=("Cs",)), max_size=min(longest, 20))
        case Text(longest):
            return st.text(ID_CHARACTERS, min_size=1, max_size=min(longest, 20))
        case Binary(longest):
            return st.binary(max_size=min(longest, 40))
        case Boolean():
            return st.booleans()
        case Nullable(inner):
            return st.none() | values(inner)
        case Array(inner, most):
            return st.lists(values(inner), max_size=min(most, 4)).map(tuple)
        case Row():
            return st.tuples(*(values(inner) for _, inner in form.places)).map(lambda row: form.row(*row))
    raise AssertionError(f"no values for {form}")


def bodies(form: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(form, **{item.name: values(item.form) for item in form.ITEMS})


MESSAGES: st.SearchStrategy[Message] = st.one_of([bodies(form) for form in TYPES.values()])
RECORDS: st.SearchStrategy[tuple[Kind, Record]] = st.one_of(
    [st.tuples(st.just(kind), bodies(form)) for kind, form in BODIES.items()]
).filter(lambda pair: not isinstance(pair[1], Addresses) or pair[1].part < pair[1].parts)


@given(MESSAGES)
def test_a_message_that_is_written_is_read(message: Message) -> None:
    assert read_message(write_message(message)) == message


@given(RECORDS)
def test_a_record_that_is_written_is_read(pair: tuple[Kind, Record]) -> None:
    kind, record = pair
    assert read_record(kind, encode(record)) == record
    assert (record.key.kind, record.key.origin) == (kind, record.origin)


@given(MESSAGES, st.data())
def test_a_message_lacks_nothing_that_has_no_default(message: Message, data: st.DataObject) -> None:
    written = msgpack.unpackb(write_message(message))
    key = data.draw(st.sampled_from(sorted(written)))
    del written[key]
    required = {"v", "t"} | {item.key for item in type(message).ITEMS if not _has_default(item)}
    if key in required:
        with pytest.raises(UnreadableError):
            read_message(msgpack.packb(written))
    else:
        item = next(item for item in type(message).ITEMS if item.key == key)
        assert getattr(read_message(msgpack.packb(written)), item.name) == item.default


def _has_default(item: Any) -> bool:
    return not repr(item.default).startswith("<dataclasses._MISSING")


@pytest.mark.parametrize("form", [*TYPES.values(), *BODIES.values()], ids=lambda form: form.__name__)
def test_keys_differ_and_say_what_they_are(form: type[Body]) -> None:
    keys = [item.key for item in form.ITEMS]
    assert len(set(keys)) == len(keys)
    assert not {"v", "t"} & set(keys) or form in BODIES.values()
    assert "v" not in keys
    assert all(item.words and item.form.describe() for item in form.ITEMS)
    assert form.__name__ == form.TITLE


@body("LinkState", "a link state as version 0.4 reads it")
class FormerLinkState(Body):
    """A link state of a router that knows no overload."""

    origin: str = item("o", ROUTER_ID, "the origin")
    epoch: int = item("e", EPOCH, "its epoch")
    sequence: int = item("s", SEQUENCE, "its sequence")
    neighbours: tuple[Neighbour, ...] = item("n", Array(NEIGHBOUR, 1024), "its neighbours", default=())
    addresses: int = item("d", SEQUENCE, "the sequence of its addresses", default=0)
    transit: bool = item("t", Boolean(), "whether paths may lead through it", default=True)
    capabilities: tuple[str, ...] = item("c", Array(Text(64), 32), "what it can do", default=())
    area: str = item("a", AREA, "its area", default="")


@given(bodies(LinkState))
def test_a_former_router_reads_all_of_a_link_state_but_the_overload(record: LinkState) -> None:
    read = decode(FormerLinkState, encode(record), MAX_BODY)
    assert [getattr(read, each.name) for each in FormerLinkState.ITEMS] == [
        getattr(record, each.name) for each in FormerLinkState.ITEMS
    ]


@given(bodies(FormerLinkState))
def test_the_link_state_of_a_former_router_has_no_overload_and_is_written_as_it_was(record: FormerLinkState) -> None:
    read = read_record(Kind.LINK_STATE, encode(record))
    assert isinstance(read, LinkState)
    assert not read.overload
    assert encode(read) == encode(record)


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.5])
def test_another_version_is_not_read(version: object) -> None:
    written = {**msgpack.unpackb(encode(LinkState("A", 1, 1))), "v": version}
    with pytest.raises(UnreadableError) as refused:
        read_record(Kind.LINK_STATE, msgpack.packb(written))
    assert refused.value.reason == "version"


@pytest.mark.parametrize("router", ["", "a b", "a@b", "a/b", "#", "*", "é", "a\n", "x" * 256, 5, None, b"A"])
def test_a_router_id_is_one_as_in_the_configuration(router: object) -> None:
    written = {**msgpack.unpackb(encode(LinkState("A", 1, 1))), "o": router}
    with pytest.raises(UnreadableError):
        read_record(Kind.LINK_STATE, msgpack.packb(written))


def test_a_part_is_one_of_its_parts() -> None:
    with pytest.raises(UnreadableError):
        read_record(Kind.ADDRESSES, encode(Addresses("A", 1, 1, part=2, parts=2)))


def test_the_longest_record_fits_a_message() -> None:
    carried = AgedRecord(2**53 - 1, 255, bytes(64), bytes(MAX_BODY), bytes(512))
    message = Records(2**62 - 1, (carried,), (2**62 - 1,) * MAX_ACKNOWLEDGED, "x" * 64)
    assert len(write_message(message)) <= MAX_MESSAGE
