"""Peers that fall silent, and peers that die (§2.4.5, §3.4)."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.interop

TEXT = {"sections": [[0x77, ["string", "hello"]]]}
HOLD = '[{"outcome": "hold"}]'
IDLE = """
[router]
id = "A"
drain = 0.2
[[listener]]
url = "amqp://127.0.0.1:0"
idle_time_out = 1.0
"""
both = pytest.mark.parametrize("family", ["proton", "rhea"])
pairs = pytest.mark.parametrize(
    ("sending", "receiving"), [("proton", "proton"), ("rhea", "proton"), ("proton", "rhea")]
)


def test_clients_with_a_short_idle_time_out_stay_while_nothing_flows(start_router, client):
    # The only real wait of these tests: three and a half times the time-outs of both sides.
    families = ("proton", "rhea")
    router = start_router(IDLE)
    receivers = [
        client(f"{family}_receive", router.url, "--address", family, "--heartbeat", "1") for family in families
    ]
    senders = [
        client("proton_send", router.url, "--address", family, "--heartbeat", "1", "--hold", "3.5", messages=[TEXT])
        for family in families
    ]
    for program in senders + receivers:
        program.finish()
    assert [sender.of("outcome")[0]["outcome"] for sender in senders] == ["accepted"] * 2


@pairs
def test_a_sender_hears_that_its_receiver_was_killed(sending, receiving, router, client):
    receiver = client(f"{receiving}_receive", router.url, "--address", "doomed", "--count", "5", "--outcomes", HOLD)
    sender = client(f"{sending}_send", router.url, "--address", "doomed", messages=[TEXT] * 3)
    for _ in range(3):
        receiver.expect("message")
    receiver.kill()
    sender.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["modified"] * 3
    assert all(event["failed"] for event in sender.of("outcome"))


def test_the_next_receiver_gets_what_comes_after_the_death_of_the_first(router, client):
    victim = client("proton_receive", router.url, "--address", "heir", "--count", "5", "--outcomes", HOLD)
    first = client("proton_send", router.url, "--address", "heir", messages=[TEXT])
    victim.expect("message")
    victim.kill()
    first.finish()
    heir = client("proton_receive", router.url, "--address", "heir")
    second = client("proton_send", router.url, "--address", "heir", messages=[TEXT])
    second.finish()
    heir.finish()
    assert second.of("outcome")[0]["outcome"] == "accepted"


def test_a_receiver_goes_on_when_a_producer_was_killed_between_messages(router, client):
    receiver = client("proton_receive", router.url, "--address", "orphans", "--count", "0", "--outcomes", HOLD)
    victim = client("proton_send", router.url, "--address", "orphans", messages=[TEXT])
    receiver.expect("message")
    victim.kill()
    for _ in range(3):
        sender = client("proton_send", router.url, "--address", "orphans", messages=[TEXT])
        receiver.expect("message")
        sender.kill()


@both
def test_a_receiver_that_freezes_is_given_up_after_the_idle_time_out(family, start_router, client):
    router = start_router(IDLE)
    receiver = client(f"{family}_receive", router.url, "--address", "frozen", "--outcomes", HOLD)
    # A proton client announces no time-out by itself; the sender must send empty frames to stay connected.
    sender = client("proton_send", router.url, "--address", "frozen", messages=[TEXT])
    receiver.expect("message")
    receiver.kill(signal.SIGSTOP)
    sender.finish()
    assert sender.of("outcome")[0]["outcome"] == "modified"


def test_on_sigterm_clients_hear_why_they_are_closed(start_router, client):
    router = start_router()
    receiver = client("proton_receive", router.url, "--address", "bye")
    receiver.expect("attached")
    router.process.send_signal(signal.SIGTERM)
    receiver.finish(status=1)
    assert receiver.of("connection-error")[0]["condition"] == "amqp:connection:forced"
    assert router.process.wait(20) == 0
