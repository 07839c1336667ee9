"""Composites declared as classes (§1.3, §1.4): one of our own, and the standard's book."""

from enum import Enum
from typing import Any

import pytest

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.composite import (
    Composite,
    Registry,
    choices,
    composite,
    declaration,
    decode_composite,
    encode_composite,
    restricted,
)
from amqpmesh.router.amqp.codec.field_types import (
    AnyValue,
    Binary,
    Boolean,
    Map,
    MaxOctets,
    Multiple,
    SimpleValue,
    String,
    UByte,
    UInt,
    ULong,
    Uuid,
)
from amqpmesh.router.amqp.codec.types import Described, Primitive, Symbol
from amqpmesh.router.amqp.codec.values import MAX_DEPTH, decode_exactly, encode
from amqpmesh.router.amqp.errors import CommandError, ProtocolError


@choices(Primitive.UBYTE)
class Binding(Enum):
    PAPER = 1
    CLOTH = 2


@restricted("example:isbn:string", 0x300000003)
class Isbn:
    value: String


@composite("example:book:list", 0x300000002)
class Book:
    """The standard's own example (§1.4), with a field of each kind added."""

    title: String
    authors: Multiple[Symbol] = ()
    isbn: Isbn | None = None
    binding: Binding = Binding.PAPER
    pages: UInt = 100
    sold_out: Boolean = False
    prices: Map[Symbol, UByte | None] | None = None
    id: ULong | Uuid | Binary | String | None = None
    sequel: "AnyValue | None" = None


@composite("example:empty:list", 0xF1)
class Empty:
    """A composite without fields."""


@composite("example:shelf:list", 0xF2)
class Shelf:
    names: Multiple[Symbol]
    item: Book | Empty | None = None
    front: Book | Empty | AnyValue | None = None


HEAD = "00 80 00000003 00000002"


def read(fields: str, count: int) -> Book:
    body = bytes.fromhex(fields)
    value, end = decode_composite(Book, bytes.fromhex(HEAD) + bytes((0xC0, len(body) + 1, count)) + body)
    assert end == 13 + len(body)
    return value


def test_a_composite_is_written_without_trailing_nulls_and_defaults() -> None:
    assert encode_composite(Book(title="x")).hex(" ") == bytes.fromhex(HEAD + "c0 04 01 a1 01 78").hex(" ")
    assert (
        encode_composite(Book(title="x", pages=100, sold_out=True)).hex()
        == bytes.fromhex(HEAD + "c0 09 06 a10178 40 40 40 40 41").hex()
    )
    assert encode_composite(Empty()).hex() == "0053f145"


def test_a_string_as_a_key_that_should_be_a_symbol_is_read_as_one() -> None:
    book = read("a10178 40 40 40 40 40 c1 07 02 a1026162 5001", 7)
    assert book.prices == {"ab": 1}
    assert encode_composite(book).endswith(bytes.fromhex("a3026162 5001"))


def test_in_full_every_field_is_written_with_its_default() -> None:
    assert (
        encode_composite(Book(title="x"), full=True).hex()
        == bytes.fromhex(HEAD + "c0 0e 09 a10178 40 40 5001 5264 42 40 40 40").hex()
    )
    assert encode_composite(Empty(), full=True).hex() == "0053f145"


def test_an_absent_or_null_field_reads_as_the_default() -> None:
    assert read("a10178", 1) == read("a10178 40 40 40 40 40 40 40 40", 9) == Book(title="x")


@pytest.mark.parametrize(
    "descriptor",
    ["80 00000003 00000002", "a3 11" + b"example:book:list".hex(), "b3 00000011" + b"example:book:list".hex()],
)
@pytest.mark.parametrize("header", ["c0 04 01", "d0 00000007 00000001"])
def test_a_composite_is_known_by_either_descriptor_in_every_encoding(descriptor: str, header: str) -> None:
    value, _ = decode_composite(Book, bytes.fromhex("00" + descriptor + header + "a10178"))
    assert value == Book(title="x")


@pytest.mark.parametrize("descriptor", ["53 f1", "80 00000000 000000f1", "a3 12" + b"example:empty:list".hex()])
@pytest.mark.parametrize("body", ["45", "c0 01 00", "d0 00000004 00000000"])
def test_a_composite_without_fields_is_read_from_every_empty_list(descriptor: str, body: str) -> None:
    assert decode_composite(Empty, bytes.fromhex("00" + descriptor + body))[0] == Empty()


@pytest.mark.parametrize(
    ("octets", "authors"),
    [
        ("40", ()),
        ("a3 01 61", ("a",)),
        ("b3 00000001 61", ("a",)),
        ("e0 02 00 a3", ()),
        ("e0 04 01 a3 01 61", ("a",)),
        ("e0 06 02 a3 01 61 01 62", ("a", "b")),
        ("f0 00000009 00000002 a3 01 61 01 62", ("a", "b")),
    ],
)
def test_multiple_values_are_null_or_one_or_an_array(octets: str, authors: tuple[str, ...]) -> None:
    value = read("a10178" + octets, 2)
    assert value.authors == authors
    assert all(type(author) is Symbol for author in value.authors)


def test_multiple_values_are_written_as_null_or_one_or_an_array() -> None:
    a, b = Symbol("a"), Symbol("b")
    for authors, octets in {(): "", (a,): "a30161", (a, b): "e006 02 a3 0161 0162"}.items():
        assert encode_composite(Book(title="x", authors=authors))[16:].hex() == bytes.fromhex(octets).hex()


BOOKS = [
    Book(title=""),
    Book(title="é" * 200, authors=(Symbol("a"),), isbn=Isbn("3-16"), binding=Binding.CLOTH, pages=2**32 - 1),
    Book(title="x", prices={Symbol("eur"): 255, Symbol("chf"): None}, sequel={"a": [types.UInt(1)]}),
    Book(title="x", id=2**64 - 1),
    Book(title="x", id=b"12"),
    Book(title="x", id="12"),
    Book(title="x", sequel=Described(types.ULong(5), "unknown")),
    Shelf(names=(Symbol("n"),), item=Book(title="x"), front=Empty()),
    Shelf(names=(Symbol("n"), Symbol("m")), item=Empty(), front=[1, "anything"]),
    Shelf(names=(Symbol("n"),), front=Described(Symbol("unknown"), None)),
    Empty(),
    Isbn("x"),
]


@pytest.mark.parametrize("value", BOOKS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("full", [False, True])
def test_a_composite_is_the_same_after_a_round_trip(value: Any, full: bool) -> None:
    octets = encode_composite(value, full=full)
    for data in (octets + b"payload", bytearray(octets + b"payload"), memoryview(octets + b"payload")):
        again, end = decode_composite(type(value), data)
        assert again == value
        assert type(again) is type(value)
        assert end == len(octets)


def test_a_field_says_the_type_so_that_its_value_is_plain() -> None:
    value = read("a10178 40 40 40 52 05", 5)
    assert type(value.pages) is int
    assert type(read("a10178 40 40 40 40 40 40 53 05", 8).id) is int


REFUSED = {
    "no such descriptor": ("00 53 f0 45", "decode-error", "Described|book"),
    "descriptor of another type that Python takes for equal": ("00 52 f1 45", "decode-error", "book"),
    "not described": ("c0 01 00", "decode-error", "not a described type"),
    "not a list": (HEAD + "c1 01 00", "decode-error", "book: .*0xc1 is not a list"),
    "cut in the header": (HEAD + "c0", "decode-error", "book: the data ends"),
    "cut before a field": (HEAD + "c0 05 02 a10178", "decode-error", "book: the data ends"),
    "cut in a field": (HEAD + "d0 00000007 00000001 a10278", "decode-error", r"book\.title: the data ends"),
    "no field, one mandatory": (HEAD + "45", "invalid-field", r"book\.title: is mandatory"),
    "mandatory null": (HEAD + "c0 02 01 40", "invalid-field", r"book\.title: is mandatory"),
    "one field too many": (HEAD + "c0 0d 0a a10178" + "40" * 9, "decode-error", "book: 10 fields where 9"),
    "another type": (HEAD + "c0 04 01 a30178", "decode-error", r"book\.title: .*0xa3 is not of type string"),
    "no such format code": (HEAD + "c0 02 01 46", "decode-error", r"book\.title: .*0x46"),
    "not UTF-8": (HEAD + "c0 04 01 a101ff", "decode-error", r"book\.title: text is not UTF-8"),
    "list as multiple": (HEAD + "c0 05 02 a10178 45", "decode-error", r"book\.authors: .*0x45 is not of type symbol"),
    "array of another type": (HEAD + "c0 08 02 a10178 e0 02 00 a1", "decode-error", r"book\.authors: 0xa1"),
    "array of null": (HEAD + "c0 08 02 a10178 e0 02 01 40", "decode-error", r"book\.authors: 0x40"),
    "array of described": (HEAD + "c0 0b 02 a10178 e0 05 00 00 53 01 a3", "decode-error", r"book\.authors: described"),
    "unknown described type": (HEAD + "c0 08 03 a10178 40 00 53 f1 45", "invalid-field", r"book\.isbn: .*ULong\(241\)"),
    "restricted type inside": (
        HEAD + "c0 10 03 a10178 40 00 80 00000003 00000003 a000",
        "decode-error",
        r"book\.isbn: isbn: .*0xa0 is not of type string",
    ),
    "no such choice": (HEAD + "c0 08 04 a10178 40 40 50 03", "invalid-field", r"book\.binding: 3 is not one"),
    "key of another type": (
        HEAD + "c0 0f 07 a10178 40 40 40 40 40 c1 04 02 a000 40",
        "decode-error",
        r"book\.prices: .*0xa0 is not of type symbol",
    ),
    "key that could be no symbol": (
        HEAD + "c0 11 07 a10178 40 40 40 40 40 c1 06 02 a102c3a4 40",
        "decode-error",
        r"book\.prices: as a key, .* is not ASCII",
    ),
    "key twice": (
        HEAD + "c0 12 07 a10178 40 40 40 40 40 c1 07 04 a300 40 a300 40",
        "decode-error",
        r"book\.prices: in a map, the key Symbol\(''\) occurs twice",
    ),
    "odd count": (HEAD + "c0 0d 07 a10178 40 40 40 40 40 c1 02 01 40", "decode-error", r"book\.prices: .*as many keys"),
    "map cut": (HEAD + "c0 0d 07 a10178 40 40 40 40 40 c1 09 02 a3", "decode-error", r"book\.prices: the data ends"),
    "another type of several": (
        HEAD + "c0 0b 08 a10178 40 40 40 40 40 40 41",
        "decode-error",
        r"book\.id: .*0x41 is not of type ulong or uuid or binary or string",
    ),
    "size longer than the fields": (HEAD + "c0 05 01 a10178 40", "decode-error", "book"),
    "size shorter than the fields": (HEAD + "c0 02 01 a10178", "decode-error", "book"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_value_names_the_field(name: str) -> None:
    octets, condition, pattern = REFUSED[name]
    with pytest.raises(ProtocolError, match=pattern) as raised:
        decode_composite(Book, bytes.fromhex(octets))
    assert raised.value.condition == f"amqp:{condition}"


@pytest.mark.parametrize("names", ["40", "e0 02 00 a3"])
def test_a_field_both_multiple_and_mandatory_has_a_value(names: str) -> None:
    octets = bytes.fromhex(names)
    with pytest.raises(ProtocolError, match=r"shelf\.names: is mandatory") as raised:
        decode_composite(Shelf, bytes.fromhex("00 53 f2 c0") + bytes((len(octets) + 1, 1)) + octets)
    assert raised.value.condition == "amqp:invalid-field"
    with pytest.raises(CommandError, match=r"shelf\.names: is mandatory"):
        encode_composite(Shelf(names=()))


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        (Book(title=None), r"book\.title: is mandatory"),  # type: ignore[arg-type]  # what mypy would refuse
        (Book(title=5), r"book\.title"),  # type: ignore[arg-type]  # likewise
        (Book(title="x", pages=-1), r"book\.pages"),
        (Book(title="x", pages=2**32), r"book\.pages"),
        (Book(title="x", pages="5"), r"book\.pages"),  # type: ignore[arg-type]  # likewise
        (Book(title="x", sold_out=1), r"book\.sold-out: 1 is not a boolean"),  # type: ignore[arg-type]  # likewise
        (Book(title="x", authors="abc"), r"book\.authors: 'abc' is one value"),  # type: ignore[arg-type]  # likewise
        (Book(title="x", authors=(Symbol("a"), "é")), r"book\.authors"),  # type: ignore[arg-type]  # likewise
        (Book(title="x", binding=3), r"book\.binding: 3 is not one of the choices"),  # type: ignore[arg-type]  # likewise
        (Book(title="x", isbn=Empty()), r"book\.isbn"),  # type: ignore[arg-type]  # likewise
        (Book(title="x", prices={Symbol("a"): 256}), r"book\.prices"),
        (Book(title="x", id=1.5), r"book\.id: 1\.5 is not permitted"),  # type: ignore[arg-type]  # likewise
        (Isbn(5), "isbn"),  # type: ignore[arg-type]  # likewise
        ("not a composite", "str is not a declared type"),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_the_callers_error(value: Any, pattern: str) -> None:
    with pytest.raises(CommandError, match=pattern):
        encode_composite(value)


def test_a_registry_finds_the_class_by_the_descriptor() -> None:
    registry: Registry[Any] = Registry(Book, Empty, Isbn)
    for value in (Book(title="x"), Empty(), Isbn("5")):
        assert decode_composite(registry, encode_composite(value))[0] == value
    with pytest.raises(ProtocolError, match=r"ULong\(242\) is none of book, empty, isbn"):
        decode_composite(registry, encode_composite(Shelf(names=(Symbol("n"),))))


def test_a_composite_is_written_inside_any_value_and_read_there_as_described() -> None:
    assert decode_exactly(encode({"a": Empty()})) == {"a": Described(types.ULong(0xF1), [])}
    assert decode_exactly(encode([Binding.CLOTH, Isbn("5")])) == [2, Described(types.ULong(0x300000003), "5")]


def test_composites_count_into_the_depth_as_a_described_value_and_a_list() -> None:
    value: Any = None
    for _ in range(MAX_DEPTH // 2):
        value = Book(title="x", sequel=value)
    octets = encode_composite(value)
    with pytest.raises(CommandError, match="deeper"):
        encode_composite(Book(title="x", sequel=value))
    assert decode_composite(Book, octets)[0] is not None
    fields = bytes.fromhex("a10178 40 40 40 40 40 40 40") + octets
    one_more = bytes.fromhex(HEAD + "d0") + (len(fields) + 4).to_bytes(4, "big") + b"\0\0\0\x09" + fields
    with pytest.raises(ProtocolError, match="deeper"):
        decode_composite(Book, one_more)


def test_a_composite_is_frozen_and_takes_keywords_only() -> None:
    with pytest.raises(AttributeError):
        Book(title="x").title = "y"  # type: ignore[misc]  # frozen, as mypy knows
    with pytest.raises(AttributeError):
        object.__setattr__(Book(title="x"), "other", 1)
    with pytest.raises(TypeError):
        Book("x")  # type: ignore[misc]  # keywords only, as mypy knows
    with pytest.raises(TypeError):
        Book()  # type: ignore[call-arg]  # title is mandatory, as mypy knows


def test_a_repr_shows_what_is_set() -> None:
    assert repr(Book(title="x", sold_out=True)) == "Book(title='x', sold_out=True)"
    assert repr(Shelf(names=(), item=Empty())) == "Shelf(names=(), item=Empty())"


def test_a_declaration_can_be_asked() -> None:
    declared = declaration(Book)
    assert isinstance(declared, Composite)
    assert (declared.name, declared.code, declared.label) == ("example:book:list", 0x300000002, "book")
    assert [(field.name, field.mandatory) for field in declared.fields][:2] == [("title", True), ("authors", False)]
    assert declaration(Isbn).name == "example:isbn:string"
    with pytest.raises(KeyError):
        declaration(str)


def test_an_annotation_that_does_not_say_what_is_on_the_wire_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):

        @composite("example:vague:list", 0xF3)
        class Vague:
            number: int


def test_restrictions_hold_in_both_directions() -> None:
    from typing import Annotated

    @composite("example:tag:list", 0xF4)
    class Tag:
        tag: Annotated[bytes, Primitive.BINARY, MaxOctets(2)]
        properties: Map[String, SimpleValue] | None = None

    assert decode_composite(Tag, encode_composite(Tag(tag=b"ab")))[0] == Tag(tag=b"ab")
    with pytest.raises(CommandError, match=r"tag\.tag: 3 octets are more than 2"):
        encode_composite(Tag(tag=b"abc"))
    with pytest.raises(ProtocolError, match=r"tag\.tag: 3 octets are more than 2") as raised:
        decode_composite(Tag, bytes.fromhex("00 53 f4 c0 06 01 a0 03 616263"))
    assert raised.value.condition == "amqp:invalid-field"
    simple = Tag(tag=b"", properties={"a": types.UInt(1), "b": None, "c": Described(Symbol("d"), "e")})
    assert decode_composite(Tag, encode_composite(simple))[0] == simple
    for compound in ([], {}, types.Array(Primitive.NULL, [])):
        with pytest.raises(CommandError, match=r"tag\.properties"):
            encode_composite(Tag(tag=b"", properties={"a": compound}))
    with pytest.raises(ProtocolError, match=r"tag\.properties: .*0x45 is not of type simple"):
        decode_composite(Tag, bytes.fromhex("00 53 f4 c0 09 02 a000 c1 04 02 a100 45"))
