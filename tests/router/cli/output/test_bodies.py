"""AMQP values as JSON, and text for terminals."""

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.maps import PairMap
from amqpmesh.router.amqp.codec.types import Array, Described, Float, Primitive, Symbol, UInt, ULong
from amqpmesh.router.cli.output.bodies import dump, from_octets
from amqpmesh.router.cli.output.terminal import printable
from tests.support.data.values import values


def strictly(text: str) -> Any:
    """Read as JSON is defined, without Python's NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@given(values)
def test_every_value_is_json_in_one_line(value: Any) -> None:
    text = dump(value)
    assert "\n" not in text
    strictly(text)


@given(st.text())
def test_json_does_not_control_the_terminal(text: str) -> None:
    """C1 controls, and what turns the direction of writing, are no less than C0 controls."""
    for value in (text, {text: text}, text.encode(errors="surrogatepass")):
        said = dump(value)
        assert said.isascii()
        assert said.isprintable()


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda children: st.one_of(st.lists(children), st.dictionaries(st.text(), children)),
)


@given(json_values)
def test_what_json_has_too_comes_back_as_it_was(value: Any) -> None:
    assert strictly(dump(value)) == value


@given(st.binary())
def test_binary_comes_back_as_text_or_as_base64(octets: bytes) -> None:
    found = strictly(dump(octets))
    assert (base64.b64decode(found["base64"]) if isinstance(found, dict) else found.encode()) == octets


def test_types_that_json_lacks_have_their_form() -> None:
    assert strictly(dump([Float(float("inf")), float("nan"), Symbol("s"), Described(ULong(5), "x")])) == [
        "inf",
        "nan",
        "s",
        {"descriptor": 5, "value": "x"},
    ]
    assert strictly(dump(Array(Primitive.UINT, [UInt(1), UInt(2)]))) == [1, 2]
    assert strictly(dump({1: "a", None: "c"})) == {"1": "a", "null": "c"}
    assert strictly(dump(PairMap([(1, "a"), (UInt(1), "b")]))) == [["1", "a"], ["1", "b"]]


@given(st.binary())
def test_what_is_sent_has_the_octets_that_were_given(octets: bytes) -> None:
    body = from_octets(octets)
    assert (body.encode() if isinstance(body, str) else body) == octets


@given(st.text(st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Lu"])))
def test_nothing_that_is_shown_controls_the_terminal(text: str) -> None:
    assert printable(text).isprintable()
    assert printable("plain text, \u00e4\u4e2d") == "plain text, \u00e4\u4e2d"
