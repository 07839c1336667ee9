"""Clients of two families at different routers of a mesh: three processes that trust each other by certificates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent
TEXT = {"sections": [[0x77, ["string", "hello"]]]}
MEBIBYTE = 2**20

pairs = pytest.mark.parametrize(
    ("sending", "receiving"), [("proton", "proton"), ("proton", "rhea"), ("rhea", "proton"), ("rhea", "rhea")]
)
both = pytest.mark.parametrize("family", ["proton", "rhea"])


@pytest.fixture(scope="module")
def line(start_shared_router, authority):
    """Start A, B and C in a line. B connects to neither; both connect to B."""

    def start(router, *connectors):
        config = f"""
[router]
id = "{router}"
drain = 0.2
[mesh]
certificate = "{authority / router}.pem"
key = "{authority / router}.key"
trust = "{authority / "mesh-ca.pem"}"
[[listener]]
url = "amqp://127.0.0.1:0"
[[listener]]
url = "amqps://127.0.0.1:0"
role = "mesh"
[[address]]
pattern = "news/#"
distribution = "multicast"
"""
        return start_shared_router(config + "".join(f'[[connector]]\nurl = "{url}"\n' for url in connectors))

    middle = start("B")
    routers = {"A": start("A", middle.urls[1]), "B": middle, "C": start("C", middle.urls[1])}
    await_each_other(routers["A"].url, "C")
    await_each_other(routers["C"].url, "A")
    return routers


def await_each_other(url, router):
    """Wait until the router at a URL knows another one: before that, it does not find addresses there."""
    command = [sys.executable, "-m", "amqpmesh", "status", router, "--url", url]
    give_up_at = monotonic() + 120
    while subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, check=False).returncode:
        assert monotonic() < give_up_at, "the routers do not find each other"


@pairs
def test_a_message_crosses_the_mesh_and_its_outcome_comes_back(sending, receiving, line, client):
    receiver = client(
        f"{receiving}_receive", line["C"].url, "--address", f"orders/{sending}/{receiving}", "--count", "100"
    )
    receiver.expect("attached")
    sender = client(
        f"{sending}_send", line["A"].url, "--address", f"orders/{sending}/{receiving}", messages=[TEXT] * 100
    )
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 100
    assert len(receiver.of("message")) == 100


@pairs
def test_a_sender_waits_at_one_router_for_a_receiver_at_another(sending, receiving, line, client):
    sender = client(f"{sending}_send", line["C"].url, "--address", f"later/{sending}/{receiving}", messages=[TEXT])
    sender.expect("attached")
    receiver = client(f"{receiving}_receive", line["A"].url, "--address", f"later/{sending}/{receiving}")
    receiver.finish()
    sender.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"


@pairs
def test_ten_mebibytes_cross_the_mesh_as_they_were_sent(sending, receiving, line, client):
    large = {"size": 10 * MEBIBYTE, "seed": "ten"}
    receiver = client(
        f"{receiving}_receive", line["C"].url, "--address", f"large/{sending}/{receiving}", "--count", "2"
    )
    sender = client(
        f"{sending}_send", line["A"].url, "--address", f"large/{sending}/{receiving}", messages=[large, TEXT]
    )
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 2
    assert [event["sha256"] for event in receiver.of("message")] == [event["sha256"] for event in sender.of("sent")]


@pairs
def test_a_request_is_answered_from_the_other_end_of_the_mesh(sending, receiving, line, client):
    responder = client(
        f"{receiving}_respond", line["C"].url, "--address", f"upper/{sending}/{receiving}", "--count", "3"
    )
    responder.expect("attached")
    requester = client(
        f"{sending}_request", line["A"].url, "--address", f"upper/{sending}/{receiving}", messages=["a", "bc", "def"]
    )
    requester.finish()
    responder.finish()
    assert [(event["body"], event["correlation"]) for event in requester.of("response")] == [
        ("A", True), ("BC", True), ("DEF", True),
    ]  # fmt: skip


@both
def test_a_multicast_reaches_receivers_at_every_router(family, line, client):
    receivers = [
        client(f"{family}_receive", router.url, "--address", f"news/{family}", "--count", "5")
        for router in line.values()
    ]
    for receiver in receivers:
        receiver.expect("attached")
    sender = client("proton_send", line["B"].url, "--address", f"news/{family}", messages=[TEXT] * 5)
    sender.finish()
    for receiver in receivers:
        receiver.finish()
        assert 1 <= len(receiver.of("message")) <= 5
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 5


def addressed(to):
    """Return a message for an anonymous sender."""
    return {"sections": [[0x73, ["list", [["null"], ["null"], ["string", to]]]], *TEXT["sections"]]}


@pairs
def test_a_sender_to_a_name_at_a_router_reaches_the_receiver_there_and_no_other(sending, receiving, line, client):
    name = f"named/{sending}/{receiving}"
    other = client("proton_receive", line["B"].url, "--address", name, "--count", "0")
    other.expect("attached")
    receiver = client(f"{receiving}_receive", line["C"].url, "--address", name, "--count", "20")
    receiver.expect("attached")
    sender = client(f"{sending}_send", line["A"].url, "--address", f"{name}@C", messages=[TEXT] * 20)
    sender.finish()
    receiver.finish()
    assert sender.of("attached")[0]["address"] == f"{name}@C"
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 20
    other.stop()
    assert other.of("message") == []


@pairs
@pytest.mark.parametrize("to", ["{}", "{}@C"])
def test_a_receiver_of_a_name_at_a_router_takes_from_it_wherever_it_is_attached(to, sending, receiving, line, client):
    name = f"taken/{sending}/{receiving}/{len(to)}"
    receiver = client(f"{receiving}_receive", line["A"].url, "--address", f"{name}@C", "--count", "20")
    assert receiver.expect("attached")["address"] == f"{name}@C"
    sender = client(f"{sending}_send", line["C"].url, "--address", to.format(name), messages=[TEXT] * 20)
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 20
    assert len(receiver.of("message")) == 20


@pairs
def test_an_anonymous_sender_reaches_a_name_at_a_router_by_to(sending, receiving, line, client):
    name = f"to/{sending}/{receiving}"
    receiver = client(f"{receiving}_receive", line["C"].url, "--address", name, "--count", "5")
    receiver.expect("attached")
    sender = client(f"{sending}_send", line["A"].url, messages=[addressed(f"{name}@C")] * 5)
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 5
    assert [event["sections"] for event in receiver.of("message")] == [
        event["sections"] for event in sender.of("sent")
    ], "its `to` is as it was sent"


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "pre-settled"])
@pytest.mark.parametrize("way", ["by a link to it", "by `to`"])
def test_three_hundred_replies_reach_a_receiver_with_ten_credits_at_the_other_end(way, settled, line, client):
    receiver = client("proton_receive", line["C"].url, "--dynamic", "--credit", "10", "--count", "300")
    reply_to = receiver.expect("attached")["address"]
    target = ("--address", reply_to) if way == "by a link to it" else ()
    mode = ("--settled",) if settled else ()
    sender = client("proton_send", line["A"].url, *target, *mode, messages=[addressed(reply_to)] * 300)
    sender.finish()
    receiver.finish()
    assert len(receiver.of("message")) == 300
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * (0 if settled else 300)


@pairs
def test_a_sender_to_a_whole_router_reaches_names_there_by_to(sending, receiving, line, client):
    name = f"whole/{sending}/{receiving}"
    receiver = client(f"{receiving}_receive", line["C"].url, "--address", name, "--count", "5")
    receiver.expect("attached")
    sender = client(f"{sending}_send", line["A"].url, "--address", "@C", messages=[addressed(name)] * 5)
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 5


@pytest.mark.parametrize("role", ["send", "receive"])
def test_a_name_at_a_router_that_nobody_knows_is_not_found(role, line, client):
    program = client(f"proton_{role}", line["A"].url, "--address", "q@nobody", messages=[TEXT])
    program.finish(status=1)
    [error] = program.of("link-error")
    assert (error["condition"], error["description"]) == ("amqp:not-found", "no container 'nobody' is known here")


@both
def test_a_trace_follows_a_message_to_a_receiver_at_the_other_end(family, line, client):
    address = f"traced/{family}"
    receiver = client(f"{family}_receive", line["C"].url, "--address", address, "--count", "1")
    receiver.expect("attached")
    command = [sys.executable, "-m", "amqpmesh", "trace", address, "--json", "--url", line["A"].url]
    said = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True, check=False)
    receiver.finish()
    assert (said.returncode, said.stderr) == (0, "")
    told = json.loads(said.stdout)
    assert [each["router"] for each in told["routers"]] == ["A", "B", "C"]
    for each in told["routers"]:
        events = [event["event"] for event in each["events"]]
        assert events[-4:] == ["left", "outcome", "told", "ended"]
    (message,) = receiver.of("message")
    sections = dict(message["sections"])
    assert 0x71 not in sections  # no delivery annotation of the mesh reaches a client
    assert told["trace"] in str(sections[0x72])
