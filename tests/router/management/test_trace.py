"""The requests of TRACE at `$management`: how they are read, and what an answer has."""

from __future__ import annotations

from typing import Any

import pytest

from amqpmesh.policies.policy import Policy
from amqpmesh.policies.tenants import Tenant
from amqpmesh.router.config.observability import TracingConfig
from amqpmesh.router.management.service import BAD_REQUEST, RequestError
from amqpmesh.router.management.trace import (
    PAGE,
    WAIT,
    TraceQuestion,
    TraceStart,
    events_of,
    events_request,
    question_of,
    start_request,
)
from amqpmesh.router.message.content import Message
from amqpmesh.router.telemetry.traces import LONGEST, Named, Trace, TraceBook

START = {"operation": "TRACE", "type": "org.amqpmesh.address", "name": "a"}
ID = b"0123456789abcdef"


def test_requests_are_read_as_they_were_asked() -> None:
    assert question_of(start_request("a", follows_next=True, wait=3.5)) == TraceStart("a", True, 3.5)
    assert question_of(events_request(ID.hex(), 7)) == TraceQuestion(ID, 7)
    assert question_of(Message(None, application_properties={**START, "type": "address"})) == TraceStart(
        "a", False, WAIT
    )


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "link"},
        {"name": 7},
        {"name": ""},
        {"next": "yes"},
        {"wait": "long"},
        {"wait": 0},
        {"wait": float("nan")},
        {"wait": 1e9},
        {"wait": True},
        {"trace": 7},
        {"trace": "xyz"},
        {"trace": ID.hex()[2:]},
        {"trace": ID.hex(), "after": -1},
        {"trace": ID.hex(), "after": "1"},
    ],
)
def test_a_malformed_request_is_a_bad_request(properties: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        question_of(Message(None, application_properties={**START, **properties}))
    assert refused.value.status == BAD_REQUEST


def test_events_come_page_by_page_and_only_the_last_page_says_that_it_is_over() -> None:
    trace = Trace(ID, "", 1000, 5.0)
    for at in range(PAGE + 1):
        trace.note(5.0 + at, "came", octets=at)
    first = events_of(trace, 0, "")
    second = events_of(trace, PAGE, "")
    assert (len(first["events"]), first["over"]) == (PAGE, False)  # type: ignore[arg-type]
    assert (second["events"], second["over"]) == (
        [{"number": PAGE + 1, "at": float(PAGE), "event": "came", "octets": PAGE}],
        True,
    )


def test_names_of_other_tenants_are_left_out() -> None:
    trace = Trace(ID, "shop", 10, 0.0)
    trace.note(0.0, "came", link=Named("mine", "shop"), peer=Named("theirs", "bank"), octets=1, none=None)
    (event,) = events_of(trace, 0, "shop")["events"]  # type: ignore[misc]
    assert event == {"number": 1, "at": 0.0, "event": "came", "link": "mine", "octets": 1}
    (event,) = events_of(trace, 0, "")["events"]  # type: ignore[misc]
    assert event["peer"] == "theirs"


def test_events_are_bounded_in_number_and_in_length() -> None:
    trace = Trace(ID, "", 10, 0.0)
    for _ in range(12):
        trace.note(0.0, "came", link=Named("x" * 9999, ""), reason="y" * 9999)
    assert (len(trace.events), trace.lost) == (10, 2)
    shown = trace.events[0].shown("")
    assert (len(str(shown["link"])), len(str(shown["reason"]))) == (LONGEST, LONGEST)


def test_tenants_have_equal_parts_of_the_traces_and_the_operator_a_quarter() -> None:
    book = TraceBook(TracingConfig(traces=8))
    policy = Policy([Tenant(name=each) for each in "abc"], [])

    def begin(number: int, tenant: str) -> Trace | None:
        found = book.begin(number.to_bytes(16, "big"), tenant, 0.0, policy)
        if found is not None:
            found.pending = True
        return found

    assert [begin(each, "") is not None for each in range(3)] == [True, True, False]
    for first, tenant in zip((10, 20, 30), "abc", strict=True):
        assert [begin(first + each, tenant) is not None for each in range(2)] == [True, False]
    assert book.refused == 4
    ours = book.find((10).to_bytes(16, "big"))
    assert ours is not None
    ours.pending = False
    assert begin(15, "a") is not None  # one that is over makes room for its own tenant
    assert book.find((10).to_bytes(16, "big")) is None
