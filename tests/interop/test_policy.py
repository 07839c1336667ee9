"""A policy, seen by clients that nobody here wrote: they are refused, served, and detached when it changes."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.interop

TEXT = {"sections": [[0x77, ["string", "hello"]]]}
ALICE = ("--mechanism", "SCRAM-SHA-256", "--user", "alice", "--password", "correct horse")
POLICY = """
[[group]]
name = "one"
users = ["alice"]
send = ["mail/${{user}}", "open"]
receive = ["mail/${{user}}"{more}]
"""


@pytest.fixture
def policy(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(POLICY.format(more=', "open"'))
    return file


@pytest.fixture
def router(start_router, users, policy):
    return start_router(f"""
        [router]
        id = "A"
        drain = 0.2
        [policy]
        file = "{policy}"
        [[listener]]
        url = "amqp://127.0.0.1:0"
        sasl = ["SCRAM-SHA-256"]
        users = "{users}"
    """)


def test_a_client_does_what_its_group_may_and_nothing_else(router, client):
    receiver = client("rhea_receive", router.url, "--address", "mail/alice", *ALICE)
    receiver.expect("attached")
    sender = client("rhea_send", router.url, "--address", "mail/alice", *ALICE, messages=[TEXT])
    sender.finish()
    receiver.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"
    refused = client("rhea_send", router.url, "--address", "mail/bob", *ALICE, messages=[TEXT])
    refused.finish(status=1)
    assert not refused.of("outcome")


def test_a_link_ends_when_its_right_is_taken_away(router, client, policy):
    kept = client("rhea_receive", router.url, "--address", "mail/alice", *ALICE)
    kept.expect("attached")
    lost = client("rhea_receive", router.url, "--address", "open", *ALICE)
    lost.expect("attached")
    policy.write_text(POLICY.format(more=""))
    router.process.send_signal(signal.SIGHUP)
    lost.finish(status=1)
    sender = client("rhea_send", router.url, "--address", "mail/alice", *ALICE, messages=[TEXT])
    sender.finish()
    kept.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"


LIMITS = "links = 1, connections = 2, message = 1000, frame = 4096, sessions = 2"


@pytest.mark.parametrize("stack", ["rhea", "proton"])
def test_a_client_beyond_a_limit_is_told_so_and_others_go_on(start_router, users, tmp_path, client, stack):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(more="") + f"limits = {{ {LIMITS} }}\n")
    router = start_router(f"""
        [router]
        id = "A"
        drain = 0.2
        [policy]
        file = "{policy}"
        [[listener]]
        url = "amqp://127.0.0.1:0"
        sasl = ["SCRAM-SHA-256"]
        users = "{users}"
    """)
    kept = client(f"{stack}_receive", router.url, "--address", "mail/alice", *ALICE)
    kept.expect("attached")
    beyond = client(f"{stack}_send", router.url, "--address", "mail/alice", *ALICE, messages=[TEXT])
    beyond.finish(status=1)
    (refused,) = (each for kind in ("sender-error", "link-error") for each in beyond.of(kind))
    assert (refused["condition"], refused["description"]) == ("amqp:resource-limit-exceeded", "too many links")
    policy.write_text(
        policy.read_text().replace("links = 1", "links = 2").replace("connections = 2", "connections = 1")
    )
    router.process.send_signal(signal.SIGHUP)
    closed = client(f"{stack}_send", router.url, "--address", "mail/alice", *ALICE, messages=[TEXT])
    closed.finish(status=1)
    (refused,) = closed.of("connection-error")
    assert (refused["condition"], refused["description"]) == ("amqp:resource-limit-exceeded", "too many connections")
    policy.write_text(policy.read_text().replace("connections = 1", "connections = 2"))
    router.process.send_signal(signal.SIGHUP)
    sender = client(f"{stack}_send", router.url, "--address", "mail/alice", *ALICE, messages=[TEXT])
    sender.finish()
    kept.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"


@pytest.mark.parametrize("stack", ["rhea", "proton"])
def test_a_client_faster_than_its_rate_waits_and_loses_nothing(start_router, users, tmp_path, client, stack):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(more="") + 'limits = { messages = "40/s", burst = 0.1 }\n')
    router = start_router(f"""
        [router]
        id = "A"
        drain = 0.2
        [policy]
        file = "{policy}"
        [[listener]]
        url = "amqp://127.0.0.1:0"
        sasl = ["SCRAM-SHA-256"]
        users = "{users}"
    """)
    receiver = client("rhea_receive", router.url, "--address", "mail/alice", "--count", "20", "--credit", "100", *ALICE)
    receiver.expect("attached")
    sender = client(f"{stack}_send", router.url, "--address", "mail/alice", *ALICE, messages=[TEXT] * 20)
    sender.finish()
    receiver.finish()
    assert [each["outcome"] for each in sender.of("outcome")] == ["accepted"] * 20


def named(user: str) -> dict[str, object]:
    """Return a message with a user-id."""
    properties = [["string", "id"], ["binary", user.encode().hex()]]
    return {"sections": [[0x73, ["list", properties]], *TEXT["sections"]]}


@pytest.mark.parametrize("stack", ["rhea", "proton"])
def test_messages_in_the_name_of_another_user_are_rejected_and_the_others_come(
    start_router, users, tmp_path, client, stack
):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(more="") + 'user_id = "match"\n')
    router = start_router(f"""
        [policy]
        file = "{policy}"
        [[listener]]
        url = "amqp://127.0.0.1:0"
        sasl = ["SCRAM-SHA-256"]
        users = "{users}"
    """)
    receiver = client("rhea_receive", router.url, "--address", "mail/alice", "--count", "3", "--credit", "10", *ALICE)
    receiver.expect("attached")
    messages = [named("alice"), named("bob"), TEXT, named("alice")]
    sender = client(f"{stack}_send", router.url, "--address", "mail/alice", *ALICE, messages=messages)
    sender.finish()
    receiver.finish()
    outcomes = [each["outcome"] for each in sender.of("outcome")]
    assert sorted(outcomes) == ["accepted", "accepted", "accepted", "rejected"]
