"""Clients of two families at different routers of a mesh: three processes, which trust each other by certificates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent
TEXT = {"sections": [[0x77, ["string", "hello"]]]}
MEBIBYTE = 2**20

pairs = pytest.mark.parametrize(
    ("sending", "receiving"), [("proton", "proton"), ("proton", "rhea"), ("rhea", "proton"), ("rhea", "rhea")]
)
both = pytest.mark.parametrize("family", ["proton", "rhea"])


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A folder with what `amqpmesh ca` makes for routers A, B and C."""
    folder = tmp_path_factory.mktemp("authority")

    def ca(*arguments):
        command = [sys.executable, "-m", "amqpmesh", "ca", *arguments, "--directory", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=60, capture_output=True)

    ca("init", "--mesh", "trial")
    for router in "ABC":
        ca("issue", router)
    return folder


@pytest.fixture(scope="module")
def line(start_shared_router, authority):
    """A, B and C in a line; B connects to neither, both connect to it."""

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
    return {"A": start("A", middle.urls[1]), "B": middle, "C": start("C", middle.urls[1])}


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
