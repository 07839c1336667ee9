"""Our declarations, compared with the standard's in `types.json` (parts 1 to 5)."""

import json
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from amqpmesh.router.amqp.codec import decoder, field_codecs
from amqpmesh.router.amqp.codec.composite import Composite, Declaration, declaration
from amqpmesh.router.amqp.codec.types import Primitive
from amqpmesh.router.amqp.sasl import exchange
from amqpmesh.router.amqp.standard import conditions, definitions, messaging, performatives, transactions

TYPES: dict[str, dict[str, Any]] = {
    definition["name"]: definition for definition in json.loads(Path(__file__).with_name("types.json").read_text())
}
MODULES = (definitions, performatives, messaging, transactions, exchange)
DECLARED: dict[str, Declaration] = {
    declared.label: declared
    for module in MODULES
    for declared in field_codecs.DECLARED.values()
    if vars(module).get(declared.cls.__name__) is declared.cls
}
CHOICES: dict[str, type[Enum]] = {
    "role": definitions.Role,
    "sender-settle-mode": definitions.SenderSettleMode,
    "receiver-settle-mode": definitions.ReceiverSettleMode,
    "amqp-error": conditions.AmqpCondition,
    "connection-error": conditions.ConnectionCondition,
    "session-error": conditions.SessionCondition,
    "link-error": conditions.LinkCondition,
    "terminus-durability": messaging.TerminusDurability,
    "terminus-expiry-policy": messaging.TerminusExpiryPolicy,
    "std-dist-mode": messaging.DistributionMode,
    "txn-capability": transactions.TransactionCapability,
    "transaction-error": conditions.TransactionCondition,
    "sasl-code": exchange.SaslCode,
}

# A typo of the draft: the published standard has a colon.
CORRECTED = {"amqp:session>window-violation": "amqp:session:window-violation"}


def of_kind(key: str) -> list[str]:
    return [name for name, definition in TYPES.items() if key in definition]


def source(name: str) -> str:
    """Return the type of a type on the wire: a primitive type, a composite, or any ("*")."""
    definition = TYPES.get(name, {"class": "any"})
    return source(definition["source"]) if definition["class"] == "restricted" else name


def on_the_wire(field: dict[str, str]) -> set[str]:
    """Return the types that a field may have; for type="*" those that provide its archetype."""
    if field["type"] != "*":
        return {source(field["type"])}
    providers = {
        source(name) for name, definition in TYPES.items() if field["requires"] in definition.get("provides", [])
    }
    return providers or {"*"}


def default(field: dict[str, Any]) -> object:
    """Return the Python value of null in a field."""
    if field.get("mandatory"):
        return MISSING
    if field.get("multiple"):
        return ()
    text = field.get("default")
    if text is None:
        return None
    for choice in TYPES[field["type"]].get("choices", []):
        if text == choice["name"]:
            text = choice["value"]
    return {"true": True, "false": False}.get(text, int(text) if text.isdecimal() else text)


def plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


@pytest.mark.parametrize("name", of_kind("encodings"))
def test_every_encoding_of_a_primitive_type_is_read(name: str) -> None:
    widths = {encoding["code"]: encoding["width"] for encoding in TYPES[name]["encodings"]}
    assert decoder.PLAIN[Primitive(name)].keys() == widths.keys()
    for encoding in TYPES[name]["encodings"]:
        fields = {"fixed": 1, "variable": 1, "compound": 2, "array": 2}[encoding["category"]]
        constructor = encoding["category"] == "array"
        assert decoder.MIN_WIDTHS[encoding["code"] >> 4] == encoding["width"] * fields + constructor


def test_no_other_format_code_is_read() -> None:
    assert [primitive.value for primitive in Primitive] == of_kind("encodings")
    codes = {encoding["code"] for name in of_kind("encodings") for encoding in TYPES[name]["encodings"]}
    assert set(decoder.READERS_BY_CODE) == codes


def test_every_type_with_a_descriptor_is_declared_and_no_other() -> None:
    assert sorted(DECLARED) == sorted(of_kind("descriptor"))


@pytest.mark.parametrize("name", of_kind("descriptor"))
def test_a_declaration_has_the_standards_descriptor(name: str) -> None:
    assert [DECLARED[name].name, DECLARED[name].code] == TYPES[name]["descriptor"]


@pytest.mark.parametrize("name", [name for name in of_kind("descriptor") if TYPES[name]["class"] == "composite"])
def test_a_composite_has_the_standards_fields_in_their_order(name: str) -> None:
    declared = DECLARED[name]
    assert isinstance(declared, Composite)
    ours = [
        (field.name, set(field.plan.label.split(" or ")), field.mandatory, field.plan.multiple, plain(field.default))
        for field in declared.fields
    ]
    standards = [
        (
            field["name"],
            on_the_wire(field),
            field.get("mandatory", False),
            field.get("multiple", False),
            default(field),
        )
        for field in TYPES[name].get("fields", [])
    ]
    assert ours == standards


@pytest.mark.parametrize("name", of_kind("choices"))
def test_an_enumeration_has_the_standards_choices(name: str) -> None:
    assert [(member.name, member.value) for member in CHOICES[name]] == [
        (choice["name"].upper().replace("-", "_"), choice_value(name, choice["value"]))
        for choice in TYPES[name]["choices"]
    ]


def choice_value(name: str, text: str) -> object:
    kind = source(name)
    if kind == "boolean":
        return text == "true"
    return CORRECTED.get(text, text) if kind == "symbol" else int(text)


def test_every_enumeration_is_looked_at() -> None:
    assert CHOICES.keys() == set(of_kind("choices"))


def test_what_is_declared_can_be_asked_by_its_class() -> None:
    assert declaration(performatives.Attach) is DECLARED["attach"]
