"""Messages from the user of one peer to the user of another, type by type (part 1, §3.2)."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest

pytestmark = pytest.mark.interop

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)

pairs = pytest.mark.parametrize(
    ("sending", "receiving"), [("proton", "proton"), ("proton", "rhea"), ("rhea", "proton"), ("rhea", "rhea")]
)

UUID = ["uuid", "00112233445566778899aabbccddeeff"]

SIMPLE = [
    ["boolean", True],
    ["boolean", False],
    *(["ubyte", str(n)] for n in (0, 255)),
    *(["ushort", str(n)] for n in (0, 65535)),
    *(["uint", str(n)] for n in (0, 1, 255, 256, 2**32 - 1)),
    *(["ulong", str(n)] for n in (0, 1, 255, 256, 2**32, 2**63, 2**64 - 1)),
    *(["byte", str(n)] for n in (-128, 127)),
    *(["short", str(n)] for n in (-32768, 32767)),
    *(["int", str(n)] for n in (-(2**31), -129, -128, 0, 127, 128, 2**31 - 1)),
    *(["long", str(n)] for n in (-(2**63), -(2**31), -129, -128, 0, 127, 128, 2**63 - 1)),
    *(["float", octets] for octets in ("00000000", "80000000", "3f800000", "7f7fffff", "00000001", "7f800000")),
    *(
        ["double", octets]
        for octets in ("0000000000000000", "8000000000000000", "400921fb54442d18", "fff0000000000000")
    ),
    ["decimal32", "3290000f"],
    ["decimal64", "31c000000000000f"],
    ["decimal128", "3040000000000000000000000000000f"],
    *(["char", str(n)] for n in (ord("a"), ord("é"), 0x1F600)),
    *(["timestamp", str(n)] for n in (0, 1, 1_700_000_000_123, -1)),
    UUID,
    *(["binary", octets] for octets in ("", "00", "ff" * 300)),
    *(["string", text] for text in ("", "a", "zwölf € 😀", "x" * 300)),
    *(["symbol", text] for text in ("amqp:accepted:list", "y" * 300)),
]

ARRAYS = [
    ["array", "uint", [["uint", "1"], ["uint", "300"], ["uint", "4294967295"]]],
    ["array", "boolean", [["boolean", True], ["boolean", False]]],
    ["array", "symbol", [["symbol", "a"], ["symbol", "bc"]]],
    ["array", "string", [["string", "a"], ["string", "é"]]],
    ["array", "double", [["double", "400921fb54442d18"]]],
    ["array", "uuid", [UUID, UUID]],
    ["array", "int", []],
    [
        "array",
        "long",
        [["described", ["symbol", "x:miles"], ["long", "7"]], ["described", ["symbol", "x:miles"], ["long", "-8"]]],
    ],
]

COMPOUND = [
    ["null"],
    ["list", []],
    ["map", []],
    ["list", [["null"], ["list", [["list", [["uint", "1"]]]]], ["map", [[["string", "k"], ["list", []]]]]]],
    ["map", [[["symbol", "s"], ["string", "v"]], [["uint", "7"], ["ulong", "7"]], [["string", "n"], ["map", []]]]],
    ["described", ["ulong", str(0x0000_ABCD_0000_0001)], ["list", [["string", "own type"]]]],
    ["described", ["symbol", "example:point:list"], ["list", [["int", "1"], ["int", "2"]]]],
]

FULL_HEADER = [HEADER, ["list", [["boolean", True], ["ubyte", "9"], ["uint", "600000"], ["null"], ["uint", "2"]]]]
ANNOTATIONS = [["symbol", "x-opt-number"], ["ulong", "5000000000"]], [["symbol", "x-opt-list"], ["list", [UUID]]]


def properties(message_id, correlation_id):
    return [
        PROPERTIES,
        ["list", [
            message_id, ["binary", "616c696365"], ["string", "somewhere"], ["string", "subject"], ["string", "reply"],
            correlation_id, ["symbol", "text/plain"], ["symbol", "gzip"], ["timestamp", "1800000000000"],
            ["timestamp", "1700000000000"], ["string", "group"], ["uint", "7"], ["string", "reply group"],
        ]],
    ]  # fmt: skip


VALUES = {
    "every simple type": ["list", SIMPLE],
    "arrays": ["list", ARRAYS],
    "compound values": ["list", COMPOUND],
    "null": ["null"],
}
BODIES = {name: [[VALUE, value]] for name, value in VALUES.items()} | {
    "text": [[VALUE, ["string", "hello"]]],
    "binary value": [[VALUE, ["binary", "0001"]]],
    "data": [[DATA, ["binary", "00ff"]]],
    "empty data": [[DATA, ["binary", ""]]],
    "a sequence": [[SEQUENCE, ["list", [["string", "a"], ["uint", "1"], ["list", []]]]]],
}
HEADS = {
    "header": [FULL_HEADER],
    "delivery annotations": [[DELIVERY_ANNOTATIONS, ["map", list(ANNOTATIONS)]]],
    "message annotations": [[MESSAGE_ANNOTATIONS, ["map", list(ANNOTATIONS)]]],
    "properties": [properties(["ulong", "18446744073709551615"], UUID)],
    "binary ids": [properties(["binary", "00"], ["string", "c"])],
    "application properties": [
        [APPLICATION_PROPERTIES, ["map", [[["string", f"p{n}"], value] for n, value in enumerate(SIMPLE)]]]
    ],
}
# Only rhea's API writes several body sections and a footer. It puts the footer before the body, with strings as
# keys. A router that refused either would break its users.
RHEA_ONLY = {
    "three data sections": [[DATA, ["binary", octets]] for octets in ("00", "", "ff01")],
    "two sequences": [[SEQUENCE, ["list", [["uint", str(n)]]]] for n in (1, 2)],
    "a footer": [[FOOTER, ["map", [[["string", "x-opt-sum"], ["ulong", "1"]]]]], [VALUE, ["string", "hello"]]],
}
EVERYTHING = [
    FULL_HEADER,
    [DELIVERY_ANNOTATIONS, ["map", list(ANNOTATIONS)]],
    [MESSAGE_ANNOTATIONS, ["map", list(ANNOTATIONS)]],
    properties(["string", "id"], ["binary", "ff"]),
    [APPLICATION_PROPERTIES, ["map", [[["string", "p"], ["int", "-1"]]]]],
    [VALUE, ["list", [*SIMPLE, *ARRAYS, *COMPOUND]]],
]
MESSAGES = {
    **BODIES,
    **{name: [*head, [VALUE, ["string", "body"]]] for name, head in HEADS.items()},
    "everything at once": EVERYTHING,
}

DEFAULTS = {HEADER: [["boolean", False], ["ubyte", "4"], ["null"], ["boolean", False], ["uint", "0"]]}


def normal(sections):
    """Return the sections without empty ones, a null body, null fields at a list's end, and header defaults."""
    found = []
    for code, value in sections:
        if code in (HEADER, PROPERTIES):
            fields = list(value[1])
            defaults = DEFAULTS.get(code, [])
            for index, default in enumerate(defaults[: len(fields)]):
                if fields[index] == default:
                    fields[index] = ["null"]
            while fields and fields[-1] == ["null"]:
                fields.pop()
            value = ["list", fields]
        if code <= APPLICATION_PROPERTIES and not value[1]:
            continue
        if [code, value] == [VALUE, ["null"]]:
            continue  # proton writes no body for it
        found.append([code, value])
    return found


def without_ttl(sections):
    """Return the sections without the header's ttl, and that ttl."""
    ttl = None
    found = []
    for code, value in sections:
        if code == HEADER and len(value[1]) > 2:
            ttl = int(value[1][2][1])
            value = ["list", [*value[1][:2], ["null"], *value[1][3:]]]
        found.append([code, value])
    return found, ttl


def sent_and_received(sending, receiving, messages, router, client):
    receiver = client(f"{receiving}_receive", router.url, "--address", "types", "--count", str(len(messages)))
    sender = client(
        f"{sending}_send", router.url, "--address", "types",
        messages=[{"sections": sections} for sections in messages],
    )  # fmt: skip
    sender.finish()
    receiver.finish()
    # Messages that waited are relayed by priority: those of one priority are in order.
    received = defaultdict(deque)
    for each in receiver.of("message"):
        received[priority(each)].append(each)
    together = [(each, received[priority(each)].popleft()) for each in sender.of("sent")]
    assert not any(received.values())
    return together


def priority(message):
    headers = [value[1] for code, value in normal(message["sections"]) if code == HEADER]
    return str(headers[0][1]) if headers and len(headers[0]) > 1 else "none"


def check(wanted, sent, received):
    wanted, ttl = without_ttl(normal(wanted))
    assert normal(without_ttl(sent["sections"])[0]) == normal(wanted), "the sender's own library changed the message"
    bare, ttl_left = without_ttl(received["sections"])
    assert normal(bare) == normal(wanted)
    if ttl is None:
        assert received["sha256"] == sent["sha256"]
    else:
        assert ttl - 20_000 < ttl_left <= ttl


@pairs
def test_every_section_and_every_type_arrives_as_it_was_sent(sending, receiving, router, client):
    for (name, wanted), (sent, received) in zip(
        MESSAGES.items(),
        sent_and_received(sending, receiving, MESSAGES.values(), router, client),
        strict=True,
    ):
        try:
            check(wanted, sent, received)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("receiving", ["proton", "rhea"])
def test_several_body_sections_and_footers_arrive_as_they_were_sent(receiving, router, client):
    for wanted, (sent, received) in zip(
        RHEA_ONLY.values(), sent_and_received("rhea", receiving, RHEA_ONLY.values(), router, client), strict=True
    ):
        check(wanted, sent, received)
