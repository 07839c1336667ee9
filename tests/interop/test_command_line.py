"""`amqpmesh send`, `receive` and `status` with peers of other makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent

OUTCOMES = '[{"outcome": "accepted"}, {"outcome": "rejected", "condition": "amqp:not-allowed", "description": "spam"}]'

both = pytest.mark.parametrize("family", ["proton", "rhea"])


@pytest.fixture
def listener(program):
    """Yield `listener("proton", *arguments, messages=[...])`: it starts a container that listens, at `.url`."""

    def start(family, *arguments, messages=None):
        peer = program(f"{family}_listen", *arguments, messages=messages)
        peer.url = peer.expect("listening")["url"]
        return peer

    return start


def amqpmesh(*arguments, stdin=""):
    """Run a command to its end, and return it."""
    command = [sys.executable, "-m", "amqpmesh", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=ROOT, timeout=120)


def texts(*bodies):
    return [{"sections": [[0x77, ["string", body]]]} for body in bodies]


def text_of(event):
    section, (kind, text) = event["sections"][-1]
    assert (section, kind) == (0x77, "string")
    return text


@both
def test_lines_are_sent_to_a_container_that_listens(family, listener):
    peer = listener(family)
    ended = amqpmesh("send", "a", "--url", peer.url, stdin="one\ntwo\n\u00e4\n")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.splitlines()[-1].startswith("sent 3 in ")
    peer.expect("closed")
    assert [text_of(event) for event in peer.of("message")] == ["one", "two", "\u00e4"]


@both
def test_a_thousand_are_sent_with_a_credit_of_ten(family, listener):
    peer = listener(family, "--credit", "10")
    ended = amqpmesh("send", "a", "--url", peer.url, "--count", "1000", "--json")
    assert ended.returncode == 0
    assert json.loads(ended.stderr)["accepted"] == 1000
    peer.expect("closed")
    assert [text_of(event) for event in peer.of("message")] == [str(number) for number in range(1, 1001)]


@both
def test_a_message_that_is_not_accepted_is_reported(family, listener):
    peer = listener(family, "--outcomes", OUTCOMES)
    ended = amqpmesh("send", "a", "--url", peer.url, "--count", "4")
    assert ended.returncode == 1
    first, summary = ended.stderr.splitlines()
    assert first == "first message not accepted: rejected: amqp:not-allowed: spam"
    assert "accepted 2, rejected 2" in summary


@both
@pytest.mark.parametrize("what", ["close", "end", "detach"])
def test_a_peer_that_ends_it_before_the_outcome_leaves_it_in_doubt(family, listener, what):
    peer = listener(family)
    ended = amqpmesh("send", "a", "--url", peer.url, "--body", what)
    assert ended.returncode == 3
    assert "in doubt 1" in ended.stderr
    assert f"amqp:not-allowed: {what} as asked" in ended.stderr.splitlines()[-1]


@both
def test_a_node_that_is_missing_is_refused(family, listener):
    peer = listener(family)
    for command in (("send", "missing", "--body", "hi"), ("receive", "missing")):
        ended = amqpmesh(*command, "--url", peer.url)
        assert (ended.returncode, ended.stdout) == (3, "")
        assert "amqp:not-found" in ended.stderr


@both
def test_messages_of_a_container_that_listens_are_received(family, listener):
    peer = listener(family, messages=texts(*map(str, range(300))))
    ended = amqpmesh("receive", "a", "--url", peer.url, "--count", "300", "--credit", "20")
    assert ended.returncode == 0
    assert ended.stdout.splitlines() == [str(number) for number in range(300)]
    peer.expect("closed")
    assert {event["outcome"] for event in peer.of("outcome")} == {"accepted"}
    assert len(peer.of("outcome")) == 300


@both
def test_no_more_are_taken_than_were_asked_for(family, listener):
    peer = listener(family, messages=texts("one", "two", "three"))
    ended = amqpmesh("receive", "a", "--url", peer.url, "--count", "2", "--outcome", "release")
    assert ended.stdout == "one\ntwo\n"
    peer.expect("closed")
    assert [event["outcome"] for event in peer.of("outcome")] == ["released", "released"]
    assert len(peer.of("sent")) == 2


def test_a_password_lets_us_in_and_a_wrong_one_does_not(listener, tmp_path):
    peer = listener("rhea", "--user", "alice", "--password", "secret")
    password = tmp_path / "password"
    arguments = ("send", "a", "--url", peer.url, "--body", "hi", "--user", "alice", "--password-file", str(password))
    password.write_text("secret\n")
    assert amqpmesh(*arguments).returncode == 0
    password.write_text("wrong\n")
    ended = amqpmesh(*arguments)
    assert ended.returncode == 3
    assert "not let in" in ended.stderr


def test_tls_is_spoken_where_the_authority_is_trusted(listener, credentials):
    peer = listener("rhea", "--certificate", str(credentials.certificate), "--key", str(credentials.key))
    arguments = ("send", "a", "--url", peer.url, "--body", "hi")
    assert amqpmesh(*arguments, "--trust", str(credentials.trust)).returncode == 0
    ended = amqpmesh(*arguments)
    assert ended.returncode == 3
    assert "certificate" in ended.stderr


@both
def test_a_peer_that_fails_instead_of_answering_has_no_status(family, listener):
    """Ask containers that reply to text, in capitals, and fail on a map."""
    peer = listener(family)
    ended = amqpmesh("status", "--url", peer.url)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "the way back for the answer was lost" in ended.stderr
