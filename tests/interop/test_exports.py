"""Two tenants at two routers, with clients that nobody here wrote: requests cross by an export, and so do answers."""

from __future__ import annotations

import signal
import subprocess
import sys
from time import monotonic

import pytest

from tests.interop.conftest import ROOT

pytestmark = pytest.mark.interop

POLICY = """
[[tenant]]
name = "billing"
match = [{ listener = "billing" }]
exports = [
    { pattern = "services/*", to = "audit", as = "billing/*", may = ["send"], replies = REPLIES },
]
[[tenant]]
name = "audit"
match = [{ listener = "audit" }]
imports = [{ from = "billing", pattern = "billing/#" }]
[[group]]
tenant = "billing"
name = "services"
receive = ["services/#"]
may = ["anonymous"]
[[group]]
tenant = "audit"
name = "auditors"
send = ["#"]
receive = ["#"]
may = ["dynamic", "anonymous"]
"""

ROUTER = """
[router]
id = "{id}"
drain = 0.2
[mesh]
insecure = true
[policy]
file = "{policy}"
[[listener]]
name = "{tenant}"
url = "amqp://127.0.0.1:0"
[[listener]]
name = "mesh"
url = "amqp://127.0.0.1:0"
role = "mesh"
[[listener]]
name = "ops"
url = "amqp://127.0.0.1:0"
"""

OPERATOR = """
[[tenant]]
name = "operator"
match = [{ listener = "ops" }]
[[group]]
tenant = "operator"
name = "operators"
may = ["dynamic", "container"]
manage = ["read"]
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    file = tmp_path_factory.mktemp("policy") / "policy.toml"
    file.write_text(OPERATOR + POLICY.replace("REPLIES", "true"))
    return file


@pytest.fixture(scope="module")
def pair(start_shared_router, policy):
    """Start A, where clients of `audit` connect, and B, where services of `billing` do."""
    b = start_shared_router(ROUTER.format(id="B", policy=policy, tenant="billing"))
    connector = f'[[connector]]\nurl = "{b.urls[1]}"\nrole = "mesh"\n'
    a = start_shared_router(ROUTER.format(id="A", policy=policy, tenant="audit") + connector)
    for router, other in ((a, "B"), (b, "A")):
        command = [sys.executable, "-m", "amqpmesh", "status", other, "--url", router.urls[2]]
        give_up_at = monotonic() + 120
        while subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, check=False).returncode:
            assert monotonic() < give_up_at, "the routers do not find each other"
    return a, b


@pytest.mark.parametrize(("asking", "answering"), [("rhea", "proton"), ("proton", "rhea")])
def test_a_request_and_its_answer_cross_tenants_and_routers(asking, answering, pair, client):
    a, b = pair
    name = f"{asking}-{answering}"
    service = client(f"{answering}_respond", b.url, "--address", f"services/{name}", "--count", "3")
    service.expect("attached")
    requester = client(f"{asking}_request", a.url, "--address", f"billing/{name}", messages=["a", "bc", "def"])
    requester.finish()
    service.finish()
    assert [(event["body"], event["correlation"]) for event in requester.of("response")] == [
        ("A", True),
        ("BC", True),
        ("DEF", True),
    ]
    node = requester.of("attached")[0]["address"]
    assert {event["reply_to"] for event in service.of("request")} == {node}


def test_an_address_that_is_not_exported_is_refused_and_the_same_name_is_another_address(pair, client):
    a, b = pair
    service = client("rhea_receive", b.url, "--address", "services/alone", "--count", "1")
    service.expect("attached")
    refused = client("rhea_receive", a.url, "--address", "billing/alone", "--count", "1")
    refused.finish(status=1)
    own = client("rhea_receive", a.url, "--address", "services/alone", "--count", "1")
    own.expect("attached")
    sender = client(
        "rhea_send", a.url, "--address", "services/alone", messages=[{"sections": [[0x77, ["string", "x"]]]}]
    )
    sender.finish()
    own.finish()
    service.stop()
    assert not service.of("message")


def test_answers_are_not_delivered_once_the_export_permits_none(pair, policy, client):
    a, b = pair
    service = client("rhea_respond", b.url, "--address", "services/late")
    service.expect("attached")
    policy.write_text(OPERATOR + POLICY.replace("REPLIES", "false"))
    for router in pair:
        router.process.send_signal(signal.SIGHUP)
        while " reloaded" not in router.log.next(monotonic() + 20):
            pass
    requester = client("proton_request", a.url, "--address", "billing/late", messages=["a"])
    service.expect("request")
    service.finish(status=1)  # its answer was not accepted
    assert not requester.of("response")
    requester.end()
