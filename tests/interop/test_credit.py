"""Credit that crosses the router: a producer waits for a consumer, and a drain is answered (§2.6.7)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.interop

TEXT = {"sections": [[0x77, ["string", "hello"]]]}
both = pytest.mark.parametrize("family", ["proton", "rhea"])


@both
def test_a_sender_waits_until_a_receiver_comes(family, router, client):
    sender = client(f"{family}_send", router.url, "--address", "later", messages=[TEXT])
    sender.expect("attached")
    receiver = client(f"{family}_receive", router.url, "--address", "later")
    receiver.finish()
    sender.finish()
    kinds = [event["event"] for event in sender.events]
    assert kinds.index("attached") < kinds.index("sent")
    assert sender.of("outcome")[0]["outcome"] == "accepted"


@both
def test_draining_an_address_without_producers_comes_back_empty(family, router, client):
    receiver = client(f"{family}_receive", router.url, "--address", "empty", "--drain", "10")
    receiver.finish()
    assert receiver.of("message") == []
    assert receiver.of("drained")[0]["credit"] == 0


@both
@pytest.mark.parametrize("sending", ["proton", "rhea"])
def test_a_synchronous_get_returns_the_message_that_a_producer_holds_ready(family, sending, router, client):
    sender = client(f"{sending}_send", router.url, "--address", "ready", messages=[TEXT])
    sender.expect("attached")
    receiver = client(f"{family}_receive", router.url, "--address", "ready", "--drain", "1")
    receiver.finish()
    sender.finish()
    assert len(receiver.of("message")) == 1
    assert sender.of("outcome")[0]["outcome"] == "accepted"


@both
def test_a_drain_takes_what_is_there_and_gives_the_rest_of_its_credit_back(family, router, client):
    sender = client(f"{family}_send", router.url, "--address", "some", messages=[TEXT] * 3)
    sender.expect("attached")
    receiver = client(f"{family}_receive", router.url, "--address", "some", "--drain", "10")
    receiver.finish()
    sender.finish()
    assert len(receiver.of("message")) == 3
    assert receiver.of("drained") == [{"event": "drained", "credit": 0, "count": 3}]


@both
def test_a_sender_never_sends_more_than_the_receiver_gave_credit_for(family, router, client):
    receiver = client("proton_receive", router.url, "--address", "slow", "--credit", "5", "--count", "100")
    sender = client(f"{family}_send", router.url, "--address", "slow", messages=[TEXT] * 100)
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 100
    assert len(receiver.of("message")) == 100


@both
def test_a_sender_that_counts_any_credit_as_credit_outlives_receivers_that_come_and_go(family, router, client):
    # For proton and rhea, credit below the number of sent messages is negative and not 0: they would keep sending.
    sender = client(f"{family}_send", router.url, "--address", "moods", messages=[TEXT] * 2000)
    received = 0
    for credit in (100, 1, 200, 3, 50):
        receiver = client("proton_receive", router.url, "--address", "moods", "--credit", str(credit), "--count", "40")
        receiver.finish()
        received += len(receiver.of("message"))
    last = client("proton_receive", router.url, "--address", "moods", "--credit", "100", "--count", "100000")
    sender.finish()
    outcomes = [event["outcome"] for event in sender.of("outcome")]
    assert len(outcomes) == 2000
    assert set(outcomes) <= {"accepted", "released", "modified"}
    assert received < outcomes.count("accepted")
    last.kill()
