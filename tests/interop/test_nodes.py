"""Addresses that are more than the name of a link: dynamic nodes, and the `to` of each message (§3.5.3, §3.2.4)."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.interop

MULTICAST = """
[router]
id = "A"
drain = 0.2
[[listener]]
url = "amqp://127.0.0.1:0"
[[address]]
pattern = "news/#"
distribution = "multicast"
"""

pairs = pytest.mark.parametrize(
    ("asking", "answering"), [("proton", "proton"), ("proton", "rhea"), ("rhea", "proton"), ("rhea", "rhea")]
)
both = pytest.mark.parametrize("family", ["proton", "rhea"])


def text(body, to=None):
    sections = [[0x77, ["string", body]]]
    if to is not None:
        sections.insert(0, [0x73, ["list", [["null"], ["null"], ["string", to]]]])
    return {"sections": sections}


@pytest.fixture(scope="module")
def started(start_shared_router):
    return start_shared_router(MULTICAST)


@pytest.fixture
def news(started):
    """Yield a router that has multicast addresses, without clients."""
    yield started
    started.wait_until_left()


@pairs
def test_a_request_is_answered_to_a_dynamic_node(asking, answering, router, client):
    responder = client(f"{answering}_respond", router.url, "--address", "upper", "--count", "3")
    responder.expect("attached")
    requester = client(f"{asking}_request", router.url, "--address", "upper", messages=["a", "bc", "def"])
    requester.finish()
    responder.finish()
    assert [(event["body"], event["correlation"]) for event in requester.of("response")] == [
        ("A", True), ("BC", True), ("DEF", True),
    ]  # fmt: skip
    node = requester.of("attached")[0]["address"]
    assert {event["reply_to"] for event in responder.of("request")} == {node}


@both
def test_two_dynamic_nodes_have_two_addresses(family, router, client):
    # Both stay until the end: the links of a node's senders end with the node.
    receivers = [client(f"{family}_receive", router.url, "--dynamic", "--count", "0") for _ in range(2)]
    addresses = [receiver.expect("attached")["address"] for receiver in receivers]
    assert all(addresses)
    assert addresses[0] != addresses[1]
    for address in addresses:
        sender = client(f"{family}_send", router.url, "--address", address, messages=[text("for you")])
        sender.finish()
        assert sender.of("outcome")[0]["outcome"] == "accepted"
    for receiver in receivers:
        receiver.stop()
        assert len(receiver.of("message")) == 1


def test_a_dynamic_node_is_consumed_by_its_own_connection_only(router, client):
    owner = client("proton_receive", router.url, "--dynamic")
    address = owner.expect("attached")["address"]
    thief = client("proton_receive", router.url, "--address", address)
    thief.finish(status=1)
    assert thief.of("message") == []
    assert thief.of("link-error")[0]["condition"] in ("amqp:unauthorized-access", "amqp:not-allowed")


def test_a_message_to_a_dynamic_node_that_is_gone_is_not_accepted(router, client):
    owner = client("proton_receive", router.url, "--dynamic")
    address = owner.expect("attached")["address"]
    owner.kill()
    sender = client("proton_send", router.url, messages=[text("too late", to=address)])
    sender.finish()
    # Rejected if the router knew by then; modified if the message was on its way to a socket that is no longer read.
    assert sender.of("outcome")[0]["outcome"] in ("rejected", "modified")


@both
def test_an_anonymous_sender_is_routed_by_the_to_of_each_message(family, router, client):
    receivers = {name: client(f"{family}_receive", router.url, "--address", name, "--count", "2") for name in "ab"}
    for receiver in receivers.values():
        receiver.expect("attached")
    sender = client(f"{family}_send", router.url, messages=[text(f"for {name}", to=name) for name in "abab"])
    sender.finish()
    for name, receiver in receivers.items():
        receiver.finish()
        assert [event["sections"][-1] for event in receiver.of("message")] == [[0x77, ["string", f"for {name}"]]] * 2
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 4


def test_a_message_of_an_anonymous_sender_without_a_route_is_released_and_the_next_one_goes_on(router, client):
    receiver = client("proton_receive", router.url, "--address", "somewhere")
    receiver.expect("attached")
    messages = [text("lost", to="nowhere"), text("found", to="somewhere")]
    sender = client("proton_send", router.url, messages=messages)
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["released", "accepted"]


@both
@pytest.mark.parametrize("count", [2, 3])
def test_a_multicast_message_reaches_every_receiver(family, count, news, client):
    receivers = [client(f"{family}_receive", news.url, "--address", "news/today", "--count", "5") for _ in range(count)]
    for receiver in receivers:
        receiver.expect("attached")
    sender = client(f"{family}_send", news.url, "--address", "news/today", messages=[text(str(i)) for i in range(5)])
    sender.finish()
    for receiver in receivers:
        receiver.finish()
        assert [event["sections"][-1][1][1] for event in receiver.of("message")] == list("01234")
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 5


@pytest.mark.parametrize(
    ("outcomes", "merged"),
    [
        (["accepted", "rejected"], "rejected"),
        (["released", "accepted"], "accepted"),
        (["released", "modified"], "modified"),
        (["released", "released", "released"], "released"),
        (["modified", "rejected", "accepted"], "rejected"),
    ],
)
def test_a_multicast_sender_hears_the_strongest_outcome(outcomes, merged, news, client):
    receivers = [
        client(
            "proton_receive",
            news.url,
            "--address",
            "news/vote",
            "--outcomes",
            json.dumps([{"outcome": outcome}]),
        )
        for outcome in outcomes
    ]
    for receiver in receivers:
        receiver.expect("attached")
    sender = client("proton_send", news.url, "--address", "news/vote", messages=[text("?")])
    sender.finish()
    for receiver in receivers:
        receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == [merged]


@both
def test_a_copy_receiver_sees_what_another_one_consumes(family, router, client):
    reader = client(
        f"{family}_receive", router.url, "--address", "q", "--copy", "--count", "3",
        "--outcomes", '[{"outcome": "rejected"}]',
    )  # fmt: skip
    reader.expect("attached")
    consumer = client(f"{family}_receive", router.url, "--address", "q", "--count", "3")
    consumer.expect("attached")
    sender = client(f"{family}_send", router.url, "--address", "q", messages=[text(str(i)) for i in range(3)])
    sender.finish()
    reader.finish()
    consumer.finish()
    assert len(reader.of("message")) == len(consumer.of("message")) == 3
    # The outcome of a copy (distribution-mode copy) does not concern the sender.
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 3


@both
def test_two_connections_of_one_container_both_have_a_link_to_an_address(family, router, client):
    # Proton names links after container and address: both clients give their links the same name.
    named = ["--address", "q", "--container-id", "same"]
    receivers = [client(f"{family}_receive", router.url, *named, "--count", "1", "--credit", "1") for _ in range(2)]
    for receiver in receivers:
        receiver.expect("attached")
    senders = [client(f"{family}_send", router.url, *named, messages=[text("one")]) for _ in range(2)]
    for program in (*senders, *receivers):
        program.finish()
    assert [sender.of("outcome")[0]["outcome"] for sender in senders] == ["accepted", "accepted"]
