"""Azure's pure-Python stack, which reads lists by position and fails on an open, begin, attach or flow cut short."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.interop

TEXT = {"value": "hello"}
PROTON_TEXT = {"sections": [[0x77, ["string", "hello"]]]}
FULL = {
    "data": "00ff" * 20,
    "properties": {"message_id": "m-1", "to": "somewhere", "subject": "s", "group_sequence": 7},
    "application": {"number": 5, "text": "t"},
}


def hexadecimal(text):
    return text.encode().hex()


def test_it_sends_to_itself(router, client):
    receiver = client("azure_receive", router.url, "--address", "hub", "--count", "3")
    receiver.expect("attached")
    sender = client("azure_send", router.url, "--address", "hub", messages=[TEXT, FULL, TEXT])
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 3
    text, full, _ = receiver.of("message")
    assert text["value"] == hexadecimal("hello")
    assert full["data"] == [FULL["data"]]
    assert full["header"][:2] == [True, 7]
    assert full["properties"][:4] == [hexadecimal("m-1"), None, hexadecimal("somewhere"), hexadecimal("s")]
    assert full["application"] == {hexadecimal("number"): 5, hexadecimal("text"): hexadecimal("t")}


@pytest.mark.parametrize("receiving", ["proton", "rhea"])
def test_it_sends_to_others(receiving, router, client):
    receiver = client(f"{receiving}_receive", router.url, "--address", "hub", "--count", "2")
    receiver.expect("attached")
    sender = client("azure_send", router.url, "--address", "hub", messages=[TEXT, FULL])
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 2
    text, full = (dict(event["sections"]) for event in receiver.of("message"))
    assert text[0x77] == ["string", "hello"]
    assert full[0x75] == ["binary", FULL["data"]]
    assert full[0x73][1][2] == ["string", "somewhere"]


@pytest.mark.parametrize("sending", ["proton", "rhea"])
def test_others_send_to_it(sending, router, client):
    receiver = client(
        "azure_receive", router.url, "--address", "hub", "--count", "5",
        "--outcomes", "accepted,rejected,released,modified",
    )  # fmt: skip
    sender = client(f"{sending}_send", router.url, "--address", "hub", messages=[PROTON_TEXT] * 5)
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == [
        "accepted", "rejected", "released", "modified", "accepted",
    ]  # fmt: skip
    assert {event["value"] for event in receiver.of("message")} == {hexadecimal("hello")}


def test_it_receives_more_messages_than_its_first_credit(router, client):
    receiver = client("azure_receive", router.url, "--address", "hub", "--count", "50", "--credit", "4")
    sender = client("proton_send", router.url, "--address", "hub", messages=[PROTON_TEXT] * 50)
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 50


def test_it_speaks_plain_over_tls(start_router, client, credentials, users):
    router = start_router(f"""
        [router]
        id = "A"
        drain = 0.2
        [[listener]]
        url = "amqps://127.0.0.1:0"
        sasl = ["PLAIN"]
        users = "{users}"
        tls = {{ certificate = "{credentials.certificate}", key = "{credentials.key}" }}
    """)
    url = router.url.replace("127.0.0.1", "localhost")
    known = ("--user", "alice", "--password", "correct horse", "--trust", str(credentials.trust))
    receiver = client("azure_receive", url, "--address", "hub", *known)
    receiver.expect("attached")
    sender = client("azure_send", url, "--address", "hub", *known, messages=[TEXT])
    sender.finish()
    receiver.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"
