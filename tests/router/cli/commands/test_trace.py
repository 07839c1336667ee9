"""`amqpmesh trace`: the picture of a trace, and the command beside a running router."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amqpmesh.router.cli.output.trace_tree import AskedRouter, as_object, tree, verdict
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.management.trace import MARK
from tests.support.processes.router_thread import Command, Serve


def event(kind: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "at": at, **fields}


def over_two_routers() -> dict[str, AskedRouter]:
    a = AskedRouter("A", over=True)
    a.events = [
        event("begun", 0.0, next=False, address="orders"),
        event("waits", 0.1, reason="no receiver anywhere"),
        event("came", 0.5, octets=100, **{"from": "this router"}),
        event("routed", 0.5, to="B", rule="balanced", cost=3, ways=2, ready=1),
        event("chosen", 0.5, rule="lane", ways=1, ready=1, branches=1),
        event("left", 0.5, branch=1, to="B", router=True, lane="anycast", far="B"),
        event("outcome", 0.75, branch=1, outcome="rejected", condition="app:bad"),
        event("told", 0.75, outcome="rejected", condition="app:bad"),
        event("ended", 0.75),
    ]
    b = AskedRouter("B", over=True, lost=2)
    b.events = [
        event("came", 0.0, octets=150, lane="anycast", **{"from": "A"}),
        event("waits", 0.0, reason="receivers give no credit"),
        event(
            "chosen",
            0.1,
            rule="balanced",
            ways=3,
            ready=2,
            branches=1,
            waited=0.1,
            waited_for="receivers give no credit",
        ),
        event("left", 0.1, branch=1, link="r", to="reader"),
        event("outcome", 0.2, branch=1, outcome="rejected", condition="app:bad"),
        event("told", 0.2, outcome="rejected", condition="app:bad"),
    ]
    return {"A": a, "B": b}


def test_the_tree_shows_each_router_below_the_step_that_leads_there() -> None:
    waited = "after 100.0 ms of waiting: receivers give no credit"
    assert tree("A", over_two_routers()) == [
        "A",
        "        0.0 ms  sends to orders",
        "      100.0 ms  waits: no receiver anywhere",
        "      500.0 ms  came from this router: 100 octets",
        "      500.0 ms  goes to B: balanced, cost 3, 1 of 2 have credit",
        "      500.0 ms  leaves by 1 of 1 links: by the lane, 1 ready",
        "      500.0 ms  left for B, by a lane (anycast) of B",
        "    B",
        "            0.0 ms  came from A, by a lane (anycast): 150 octets",
        "            0.0 ms  waits: receivers give no credit",
        f"          100.0 ms  leaves by 1 of 3 links: balanced, 2 ready, {waited}",
        "          100.0 ms  left for reader, by link r",
        "          200.0 ms  branch 1: rejected (app:bad)",
        "          200.0 ms  the sender is told: rejected (app:bad)",
        "      2 more events: the router had no room for them",
        "      750.0 ms  branch 1: rejected (app:bad) (200.0 ms there, 50.0 ms on the way there and back)",
        "      750.0 ms  the sender is told: rejected (app:bad)",
        "      750.0 ms  ended",
    ]


def test_what_is_not_known_is_said() -> None:
    routers = over_two_routers()
    routers["B"] = AskedRouter("B", over=True, silence="the router does not know of traces")
    lines = tree("A", routers)
    assert lines[7:9] == ["    B", "      the router does not know of traces"]
    assert lines[9].endswith("branch 1: rejected (app:bad)")  # no time between them is invented
    routers["B"].events = [event("came", 0.0, octets=1), event("left", 0.0, branch=1, router=False), event("x\n", 1.0)]
    shown = tree("A", routers)
    assert "came from (of another tenant)" in shown[8]
    assert shown[9].endswith("left for (of another tenant), by link (of another tenant)")
    assert shown[10].endswith("x\\u000a")


def test_routers_that_lead_back_are_drawn_once() -> None:
    routers = over_two_routers()
    routers["B"].events.append(event("left", 0.2, branch=2, to="A", router=True, lane="anycast", far="A"))
    assert tree("A", routers).count("A") == 1


@pytest.mark.parametrize(
    ("events", "delivered", "says"),
    [
        ([event("told", 0.0, outcome="accepted")], True, "delivered: accepted"),
        (
            [event("told", 0.0, outcome="rejected", condition="app:bad")],
            False,
            "not delivered: rejected (app:bad)",
        ),
        ([event("unsent", 0.0, reason="expired")], False, "not delivered: expired"),
        (
            [event("came", 0.0, settled=True), event("left", 0.0), event("ended", 0.0)],
            True,
            "sent settled: no receiver tells an outcome",
        ),
        ([event("came", 0.0), event("ended", 0.0)], False, "not delivered: its sender has given it up"),
    ],
)
def test_the_verdict_is_that_of_the_first_router(events: list[dict[str, Any]], delivered: bool, says: str) -> None:
    found = verdict(AskedRouter("A", events=list(events)))
    assert found is not None
    assert (found.delivered, found.says) == (delivered, says)


def test_without_an_end_there_is_no_verdict() -> None:
    routers = {"A": AskedRouter("A", events=[event("came", 0.0)])}
    assert verdict(routers["A"]) is None
    assert as_object("a", "01", "A", routers)["delivered"] is None


def test_a_message_of_a_trace_is_delivered_and_shown(
    serve: Serve, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    monkeypatch.setenv("AMQPMESH_URL", served.url)
    came = served.receive("orders")
    said = command("trace", "orders")
    assert (said.status, said.err) == (0, "")
    head, router, *steps, last = said.out.splitlines()
    assert (head.split()[0], head.split()[2:], router) == ("trace", ["of", "orders"], "A")
    assert came[0].message_annotations == {MARK: head.split()[1]}
    assert last == "delivered: accepted"
    assert [step.split("ms  ")[1].split()[0] for step in steps] == [
        *("sends", "came", "leaves", "left", "branch", "the", "ended"),
    ]
    told = json.loads(command("trace", "orders", "--json").out)
    assert (told["router"], told["delivered"], len(told["routers"])) == ("A", True, 1)
    assert told["routers"][0]["events"][0]["event"] == "begun"
    assert told["routers"][0]["over"] is True


def test_a_message_that_is_not_delivered_fails(serve: Serve, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    monkeypatch.setenv("AMQPMESH_URL", served.url)
    served.receive("bad", Delivery.reject)
    said = command("trace", "bad")
    assert (said.status, said.out.splitlines()[-1]) == (1, "not delivered: rejected")
    said = command("trace", "nobody", "--wait", "0.3")
    assert (said.status, said.out.splitlines()[-1]) == (1, "not delivered: no credit")
    assert "waits: no receiver anywhere" in said.out
    said = command("trace", "nobody", "--next", "--wait", "0.2")
    assert (said.status, said.out.splitlines()[-1]) == (1, "not delivered: no message has come")


def test_a_refusal_is_told(serve: Serve, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQPMESH_URL", serve().url)
    said = command("trace", "$management")
    assert (said.status, said.out) == (3, "")
    assert "only addresses of clients can be traced" in said.err
    assert command("trace", "orders", "--at", "Z").status == 3
