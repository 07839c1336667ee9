"""Clients that send messages again after their connection is gone: each is processed once (§3.2.4, message-id)."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.interop

CONFIG = """
[[listener]]
url = "amqp://127.0.0.1:0"

[[address]]
pattern = "once"
duplicates = "message-id"
"""
IDS = ["string", "one"], ["ulong", "1"], ["string", "1"], ["uuid", "00000000000000000000000000000001"]
REJECTED = {"outcome": "rejected", "condition": "amqp:not-allowed", "description": "spam"}


LAST = ["string", "last"]


def messages(times: int, *more: list[str]) -> list[dict[str, Any]]:
    """Return messages, each of them so many times. Args: more: further message-ids."""
    body = [0x77, ["string", "hello"]]
    return [{"sections": [[0x73, ["list", [each]]], body]} for each in (*IDS, *more) for _ in range(times)]


@pytest.mark.parametrize("sending", ["proton", "rhea"])
def test_messages_that_are_sent_again_hear_the_first_outcomes_and_arrive_once(sending, start_router, client):
    router = start_router(CONFIG)
    accepted = {"outcome": "accepted"}
    outcomes = [accepted, REJECTED, accepted, accepted, accepted]
    receiver = client(
        "proton_receive",
        router.url,
        "--address",
        "once",
        "--count",
        str(len(IDS) + 1),
        "--outcomes",
        json.dumps(outcomes),
    )
    receiver.expect("attached")
    senders = [client(f"{sending}_send", router.url, "--address", "once", messages=messages(2))]
    senders[0].finish()
    senders.append(client("proton_send", router.url, "--address", "once", messages=messages(1, LAST)))
    senders[1].finish()
    receiver.finish()
    told = [sorted(each.of("outcome"), key=lambda event: event["index"]) for each in senders]
    heard = [[event["outcome"] for event in events] for events in told]
    names = [each["outcome"] for each in outcomes]
    assert heard == [[name for name in names[:-1] for _ in range(2)], names]
    assert len(receiver.of("message")) == len(IDS) + 1
