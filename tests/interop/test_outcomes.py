"""Outcomes and settlement, end to end between clients in processes of their own (§3.4, §2.6.12)."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.interop

TEXT = {"sections": [[0x77, ["string", "hello"]]]}

ACCEPTED = {"outcome": "accepted"}
RELEASED = {"outcome": "released"}
REJECTED = {
    "outcome": "rejected",
    "condition": "amqp:not-allowed",
    "description": "spam",
    "info": ["map", [[["symbol", "score"], ["uint", "9000"]]]],
}
MODIFIED = {
    "outcome": "modified",
    "failed": True,
    "undeliverable": True,
    "annotations": ["map", [[["symbol", "x-opt-tried"], ["string", "here"]]]],
}
OUTCOMES = [
    ACCEPTED,
    REJECTED,
    {"outcome": "rejected"},
    RELEASED,
    MODIFIED,
    {"outcome": "modified", "failed": False, "undeliverable": True},
]

pairs = pytest.mark.parametrize(
    ("sending", "receiving"), [("proton", "proton"), ("proton", "rhea"), ("rhea", "proton"), ("rhea", "rhea")]
)


# rhea writes the keys of an error's info as strings; they reach the sender as symbols, as in the standard.


def told(event: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome event without the fields that only describe the event, and without empty fields."""
    fields = {key: value for key, value in event.items() if key not in ("event", "index", "settled")}
    return {key: value for key, value in fields.items() if value is not None}


@pairs
def test_every_outcome_reaches_the_sender_with_all_its_fields(sending, receiving, router, client):
    receiver = client(
        f"{receiving}_receive", router.url, "--address", "jobs",
        "--count", str(len(OUTCOMES)), "--outcomes", json.dumps(OUTCOMES),
    )  # fmt: skip
    sender = client(f"{sending}_send", router.url, "--address", "jobs", messages=[TEXT] * len(OUTCOMES))
    sender.finish()
    receiver.finish()
    assert [told(event) for event in sender.of("outcome")] == OUTCOMES
    assert all(event["settled"] for event in sender.of("outcome"))


@pairs
def test_a_settled_message_arrives_settled(sending, receiving, router, client):
    receiver = client(f"{receiving}_receive", router.url, "--address", "news", "--count", "20")
    sender = client(f"{sending}_send", router.url, "--address", "news", "--settled", messages=[TEXT] * 20)
    sender.finish()
    receiver.finish()
    assert [event["settled"] for event in receiver.of("message")] == [True] * 20
    assert sender.of("outcome") == []


@pairs
@pytest.mark.parametrize("outcome", [ACCEPTED, REJECTED, RELEASED, MODIFIED], ids=lambda o: o["outcome"])
def test_in_mode_second_the_sender_settles_before_the_receiver(sending, receiving, outcome, router, client):
    receiver = client(
        f"{receiving}_receive", router.url, "--address", "once", "--second", "--count", "3",
        "--outcomes", json.dumps([outcome]),
    )  # fmt: skip
    sender = client(f"{sending}_send", router.url, "--address", "once", "--second", messages=[TEXT] * 3)
    sender.finish()
    receiver.finish()
    assert sender.of("attached")[0]["receiver_settle_mode"] == 1
    # The outcome arrives unsettled. The client settles, and only then does the receiver get the settlement.
    assert [(event["settled"], told(event)) for event in sender.of("outcome")] == [(False, outcome)] * 3
    assert len(receiver.of("settled")) == 3


def test_a_receiver_of_mode_second_and_a_sender_of_mode_first_both_get_what_they_asked_for(router, client):
    receiver = client("proton_receive", router.url, "--address", "mixed", "--second", "--count", "2")
    sender = client("proton_send", router.url, "--address", "mixed", messages=[TEXT] * 2)
    sender.finish()
    receiver.finish()
    assert sender.of("attached")[0]["receiver_settle_mode"] == 0
    assert [(event["outcome"], event["settled"]) for event in sender.of("outcome")] == [("accepted", True)] * 2
    assert len(receiver.of("settled")) == 2


def test_a_sender_of_mode_second_confirms_to_a_receiver_of_mode_first(router, client):
    receiver = client("proton_receive", router.url, "--address", "mixed", "--count", "2")
    sender = client("proton_send", router.url, "--address", "mixed", "--second", messages=[TEXT] * 2)
    sender.finish()
    receiver.finish()
    assert [(event["outcome"], event["settled"]) for event in sender.of("outcome")] == [("accepted", False)] * 2


def test_a_delivery_settled_without_a_state_has_failed(router, client):
    receiver = client("proton_receive", router.url, "--address", "mute", "--outcomes", '[{"outcome": "none"}]')
    sender = client("proton_send", router.url, "--address", "mute", messages=[TEXT])
    sender.finish()
    receiver.finish()
    assert [told(event) for event in sender.of("outcome")] == [
        {"outcome": "modified", "failed": True, "undeliverable": False}
    ]


def test_of_two_receivers_each_gets_its_share_and_none_gets_the_other_ones(router, client):
    receivers = [
        client("proton_receive", router.url, "--address", "shared", "--count", "0", "--credit", "5") for _ in range(2)
    ]
    for receiver in receivers:
        receiver.expect("attached")
    sender = client("proton_send", router.url, "--address", "shared", messages=numbered(20))
    sender.finish()
    for receiver in receivers:
        receiver.stop()
        assert receiver.of("message"), "one receiver got everything"
    bodies = [event["sections"][-1] for receiver in receivers for event in receiver.of("message")]
    assert sorted(bodies) == sorted(message["sections"][-1] for message in numbered(20))


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"sections": [[0x77, ["string", f"message {index}"]]]} for index in range(count)]
