"""Sections, termini and node properties (part 3), and the types of part 4."""

from typing import Any
from uuid import UUID

import pytest

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Described, Symbol
from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.messaging import (
    Accepted,
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    Data,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    DeliveryAnnotations,
    DistributionMode,
    Footer,
    Header,
    MessageAnnotations,
    Modified,
    Properties,
    Received,
    Rejected,
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
)
from amqpmesh.router.amqp.standard.transactions import (
    Coordinator,
    Declare,
    Declared,
    Discharge,
    TransactionalState,
    TransactionCapability,
)
from tests.support.data.values import identical

S = Symbol

VALUES: list[Any] = [
    Header(durable=True, priority=9, ttl=60_000, first_acquirer=True, delivery_count=3),
    Header(),
    DeliveryAnnotations({S("x-opt-a"): 1, types.ULong(5): "five"}),
    MessageAnnotations({S("x-opt-a"): Described(S("d"), [None]), S("x-opt-b"): None}),
    Properties(
        message_id=2**64 - 1,
        user_id=b"ada",
        to="queue",
        subject="s",
        reply_to="replies",
        correlation_id=UUID(int=5),
        content_type=S("text/plain"),
        content_encoding=S("gzip"),
        absolute_expiry_time=-1,
        creation_time=1311704463521,
        group_id="g",
        group_sequence=2**32 - 1,
        reply_to_group_id="r",
    ),
    Properties(message_id=b"binary", correlation_id="string"),
    ApplicationProperties({"a": types.UInt(1), "b": None, "c": 1.5, "d": S("symbol"), "": b""}),
    Data(b"\x00" * 300),
    AmqpSequence([1, "two", [3.0]]),
    AmqpValue({"map": [1]}),
    AmqpValue(None),
    Footer({S("x-opt-hash"): b"1"}),
    Received(section_number=1, section_offset=2**33),
    Rejected(error=Error(condition=AmqpCondition.NOT_ALLOWED, description="no", info={S("k"): "v"})),
    Modified(delivery_failed=True, undeliverable_here=False, message_annotations={S("x-opt-a"): 1}),
    Source(
        address="queue",
        durable=TerminusDurability.UNSETTLED_STATE,
        expiry_policy=TerminusExpiryPolicy.NEVER,
        timeout=30,
        dynamic=True,
        dynamic_node_properties={
            S("lifetime-policy"): DeleteOnNoMessages(),
            S("supported-dist-modes"): [S("move"), S("copy")],
        },
        distribution_mode=DistributionMode.COPY,
        filter={S("selector"): Described(S("apache.org:selector-filter:string"), "a = 1")},
        default_outcome=Modified(delivery_failed=True),
        outcomes=(S("amqp:accepted:list"), S("amqp:rejected:list")),
        capabilities=(S("queue"),),
    ),
    Target(
        address="queue",
        durable=TerminusDurability.CONFIGURATION,
        expiry_policy=TerminusExpiryPolicy.LINK_DETACH,
        timeout=2**32 - 1,
        dynamic=True,
        dynamic_node_properties={S("lifetime-policy"): DeleteOnNoLinksOrMessages()},
        capabilities=(S("queue"), S("topic")),
    ),
    Target(dynamic_node_properties={S("lifetime-policy"): DeleteOnNoLinks()}),
    Coordinator(capabilities=(TransactionCapability.LOCAL_TRANSACTIONS, TransactionCapability.MULTI_TXNS_PER_SSN)),
    Declare(global_id=Described(S("global"), b"1")),
    Declare(),
    Discharge(txn_id=b"1", fail=True),
    Discharge(txn_id=b"1"),
    Declared(txn_id=b"x" * 32),
    TransactionalState(txn_id=b"1", outcome=Accepted()),
    TransactionalState(txn_id=b"1"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_the_same_after_a_round_trip(value: Any) -> None:
    octets = encode_composite(value)
    again, end = decode_composite(type(value), octets)
    assert (again, end) == (value, len(octets))
    assert encode_composite(again) == octets


def test_message_ids_are_of_the_type_that_their_class_stands_for() -> None:
    for value, octets in {5: "5305", "5": "a10135", b"5": "a00135", UUID(int=5): "98" + "00" * 15 + "05"}.items():
        written = encode_composite(Properties(message_id=value))
        assert written[6:].hex() == octets
        assert identical(decode_composite(Properties, written)[0].message_id, value)


def test_annotations_keep_the_type_of_their_keys() -> None:
    annotations, _ = decode_composite(
        MessageAnnotations, encode_composite(MessageAnnotations({S("1"): "a", types.ULong(1): "b"}))
    )
    assert identical(list(annotations.value), [S("1"), types.ULong(1)])


@pytest.mark.parametrize(
    ("cls", "octets", "pattern"),
    [
        (
            MessageAnnotations,
            "00 53 72 c1 05 02 a00161 40",
            "message-annotations: .*0xa0 is not of type symbol or ulong",
        ),
        (DeliveryAnnotations, "00 53 71 c1 03 02 40 40", "delivery-annotations: .*0x40"),
        (Footer, "00 53 78 c1 04 02 5201 40", "footer: .*0x52"),
        (ApplicationProperties, "00 53 74 c1 05 02 a30161 40", "application-properties: .*0xa3 is not of type string"),
        (ApplicationProperties, "00 53 74 c1 05 02 a10161 45", "application-properties: .*0x45 is not of type simple"),
        (ApplicationProperties, "00 53 74 c1 07 02 a10161 c10100", "application-properties: .*0xc1"),
        (ApplicationProperties, "00 53 74 c1 08 02 a10161 e0020040", "application-properties: .*0xe0"),
        (ApplicationProperties, "00 53 74 c1 09 04 a10161 40 a10161 40", "application-properties: .*twice"),
        (Data, "00 53 75 a1 01 61", "data: .*0xa1 is not of type binary"),
        (Data, "00 53 75 40", "data: .*0x40 is not of type binary"),
        (AmqpSequence, "00 53 76 c1 01 00", "amqp-sequence: .*0xc1 is not of type list"),
        (AmqpValue, "00 53 77", "amqp-value: the data ends"),
        (AmqpValue, "00 53 77 46", "amqp-value: .*0x46"),
        (Properties, "00 53 73 c0 02 01 41", r"properties\.message-id: .*0x41"),
        (Properties, "00 53 73 c0 06 03 40 40 a30161", r"properties\.to: .*0xa3 is not of type string"),
        (Header, "00 53 70 c0 03 01 5201", r"header\.durable: .*0x52 is not of type boolean"),
    ],
)
def test_a_value_of_another_type_is_a_decode_error(cls: type, octets: str, pattern: str) -> None:
    with pytest.raises(ProtocolError, match=pattern) as raised:
        decode_composite(cls, bytes.fromhex(octets))
    assert raised.value.condition is AmqpCondition.DECODE_ERROR


@pytest.mark.parametrize(
    ("cls", "octets", "pattern"),
    [
        (Source, "00 53 28 c0 04 02 40 5203", r"source\.durable: 3 is not one of the choices"),
        (Source, "00 53 28 c0 06 03 40 40 a30161", r"source\.expiry-policy: 'a' is not one of the choices"),
        (Source, "00 53 28 c0 0d 09 40 40 40 40 40 40 40 40 00532345", r"source\.default-outcome: .*ULong\(35\)"),
        (Received, "00 53 23 c0 02 01 43", r"received\.section-offset: is mandatory"),
        (Declared, "00 53 33 45", r"declared\.txn-id: is mandatory"),
        (Declared, "00 53 33 c0 24 01 a0 21" + "00" * 33, r"declared\.txn-id: 33 octets"),
        (TransactionalState, "00 53 34 c0 08 02 a00101 00533445", r"transactional-state\.outcome: .*ULong\(52\)"),
    ],
)
def test_a_forbidden_value_is_an_invalid_field(cls: type, octets: str, pattern: str) -> None:
    with pytest.raises(ProtocolError, match=pattern) as raised:
        decode_composite(cls, bytes.fromhex(octets))
    assert raised.value.condition is AmqpCondition.INVALID_FIELD


@pytest.mark.parametrize(
    "value",
    [
        MessageAnnotations({"text": 1}),  # type: ignore[dict-item]  # what mypy would refuse
        MessageAnnotations({1: 1}),  # type: ignore[dict-item]  # likewise
        ApplicationProperties({"a": []}),
        Data("text"),  # type: ignore[arg-type]  # likewise
        Header(priority=256),
        Header(ttl=-1),
        Properties(message_id=-1),
        Properties(to=b"binary"),  # type: ignore[arg-type]  # likewise
    ],
    ids=repr,
)
def test_a_value_that_a_section_cannot_hold_is_the_callers_error(value: Any) -> None:
    with pytest.raises(CommandError):
        encode_composite(value)
