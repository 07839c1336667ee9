"""Messages of many frames, whole or aborted, and the messages after them (§2.6.14)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.interop

MEBIBYTE = 2**20
LARGE = {"size": 10 * MEBIBYTE, "seed": "ten"}
TEXT = {"sections": [[0x77, ["string", "hello"]]]}

pairs = pytest.mark.parametrize(
    ("sending", "receiving"), [("proton", "proton"), ("proton", "rhea"), ("rhea", "proton"), ("rhea", "rhea")]
)


@pairs
def test_ten_mebibytes_arrive_as_they_were_sent(sending, receiving, router, client):
    receiver = client(f"{receiving}_receive", router.url, "--address", "large", "--count", "3")
    sender = client(f"{sending}_send", router.url, "--address", "large", messages=[LARGE, TEXT, LARGE])
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 3
    assert [event["sha256"] for event in receiver.of("message")] == [event["sha256"] for event in sender.of("sent")]
    assert receiver.of("message")[0]["size"] > LARGE["size"]


@pytest.mark.parametrize(("small", "large"), [("sending", "receiving"), ("receiving", "sending")])
def test_frames_are_cut_again_where_the_receiver_wants_them_smaller(small, large, router, client):
    limits = {small: "512", large: "65536"}
    receiver = client("proton_receive", router.url, "--address", "cut", "--max-frame-size", limits["receiving"])
    sender = client(
        "rhea_send", router.url, "--address", "cut", "--max-frame-size", limits["sending"],
        messages=[{"size": 300_000, "seed": "cut"}],
    )  # fmt: skip
    sender.finish()
    receiver.finish()
    assert receiver.of("message")[0]["sha256"] == sender.of("sent")[0]["sha256"]


def test_a_large_message_arrives_while_it_is_still_being_sent(router, client):
    receiver = client("proton_receive", router.url, "--address", "through")
    sender = client("proton_send", router.url, "--address", "through", "--partial", str(MEBIBYTE), messages=[LARGE])
    sender.expect("partial")
    receiver.expect("partial")


def test_a_receiver_hears_aborted_when_the_producer_is_killed_and_goes_on(router, client):
    receiver = client("proton_receive", router.url, "--address", "aborted")
    victim = client("proton_send", router.url, "--address", "aborted", "--partial", str(MEBIBYTE), messages=[LARGE])
    receiver.expect("partial")
    victim.kill()
    receiver.expect("aborted")
    sender = client("proton_send", router.url, "--address", "aborted", messages=[LARGE])
    sender.finish()
    receiver.finish()
    assert receiver.of("message")[0]["sha256"] == sender.of("sent")[0]["sha256"]


def test_a_message_above_the_limit_ends_its_link_only(start_router, client):
    router = start_router("""
        [router]
        id = "A"
        drain = 0.2
        [[listener]]
        url = "amqp://127.0.0.1:0"
        max_message_size = 1_000_000
    """)
    receiver = client("proton_receive", router.url, "--address", "limit", "--count", "1")
    sender = client("proton_send", router.url, "--address", "limit", messages=[LARGE])
    sender.finish(status=1)
    assert sender.of("attached")[0]["max_message_size"] == 1_000_000
    assert sender.of("link-error")[0]["condition"] == "amqp:link:message-size-exceeded"
    good = client("proton_send", router.url, "--address", "limit", messages=[TEXT])
    good.finish()
    receiver.finish()
    assert good.of("outcome")[0]["outcome"] == "accepted"
