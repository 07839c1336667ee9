"""Spans of OpenTelemetry around the messages that a program sends and processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.connect import Connection, connect
from amqpmesh.router.client.links.spans import LONGEST, SCHEMA
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import RejectedError
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import joined

try:
    from opentelemetry import baggage, context, trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("OpenTelemetry is not installed: make .venv/test", allow_module_level=True)

EXPORTER = InMemorySpanExporter()
PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Make a tracer provider that of the process for one test."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    EXPORTER.clear()
    yield EXPORTER
    provider.shutdown()
    EXPORTER._stopped = False


def only(spans: InMemorySpanExporter, operation: str) -> ReadableSpan:
    (span,) = (each for each in spans.get_finished_spans() if each.name.split()[0] == operation)
    return span


def context_of(span: ReadableSpan) -> str:
    assert span.context is not None
    flags = int(span.context.trace_flags)
    return f"00-{format_trace_id(span.context.trace_id)}-{format_span_id(span.context.span_id)}-{flags:02x}"


async def one(receiver: Receiver) -> Message:
    """Process one message."""
    delivery = await receiver.receive()
    async with delivery as message:
        return message


async def test_a_message_carries_the_context_of_its_sending_and_is_processed_below_it(
    nursery: trio.Nursery, autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router, id="me", spans=True) as client,
        client.receiver("orders") as receiver,
        client.sender("orders") as sender,
    ):
        nursery.start_soon(
            sender.send, Message(b"x", message_id="m1", correlation_id=7, application_properties={"a": 1})
        )
        message = await one(receiver)
        await trio.sleep(1)
    sent, processed = only(spans, "send"), only(spans, "process")
    assert message.application_properties == {"a": 1, "traceparent": context_of(sent)}
    assert (sent.name, sent.kind, sent.parent) == ("send orders", SpanKind.PRODUCER, None)
    assert (processed.name, processed.kind) == ("process orders", SpanKind.CONSUMER)
    assert processed.parent is not None
    assert processed.parent.span_id == sent.get_span_context().span_id
    common = {"messaging.system": "amqp", "messaging.client.id": "me", "messaging.destination.name": "orders"}
    ids = {"messaging.message.id": "m1", "messaging.message.conversation_id": "7"}
    for span, operation in ((sent, "send"), (processed, "process")):
        named = {"messaging.operation.name": operation, "messaging.operation.type": operation}
        assert dict(span.attributes or {}) == {**common, **ids, **named}
        assert span.status.status_code is StatusCode.UNSET
        assert span.instrumentation_scope is not None
        assert (span.instrumentation_scope.name, span.instrumentation_scope.schema_url) == ("amqpmesh", SCHEMA)


async def test_a_sender_within_a_span_continues_it_without_its_baggage(
    nursery: trio.Nursery, autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router, spans=True) as client,
        client.receiver("orders") as receiver,
        client.sender("orders") as sender,
    ):
        token = context.attach(baggage.set_baggage("secret", "x"))
        with trace.get_tracer("test").start_as_current_span("work") as work:
            await sender.transfer(Message(b"x"), settled=True)
        context.detach(token)
        message = await one(receiver)
    assert only(spans, "send").parent == work.get_span_context()
    assert set(message.application_properties) == {"traceparent"}


async def test_the_message_annotations_come_before_the_application_properties(
    nursery: trio.Nursery, autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    other = PARENT.replace("0123", "4567")
    cases = [
        (Message(b"x", message_annotations={"traceparent": PARENT, "tracestate": "a=b"}), PARENT, "a=b"),
        (
            Message(
                b"x",
                message_annotations={"traceparent": PARENT},
                application_properties={"traceparent": other, "tracestate": "c=d"},
            ),
            PARENT,
            "",
        ),
        (Message(b"x", application_properties={"traceparent": other}), other, ""),
    ]
    async with (
        Router(id="A") as router,
        joined(nursery, router, spans=True) as client,
        client.receiver("orders") as receiver,
        client.sender("orders") as sender,
    ):
        for message, parent, state in cases:
            spans.clear()
            await sender.transfer_payload(message.encode(), settled=True)
            await one(receiver)
            found = only(spans, "process").parent
            assert found is not None
            assert parent == f"00-{format_trace_id(found.trace_id)}-{format_span_id(found.span_id)}-01"
            assert found.trace_state.to_header() == state


async def test_a_message_that_has_a_context_keeps_it(
    nursery: trio.Nursery, autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router, spans=True) as client,
        client.receiver("orders") as receiver,
        client.sender("orders") as sender,
    ):
        given = Message(b"x", application_properties={"traceparent": PARENT})
        await sender.transfer(given, settled=True)
        assert (await one(receiver)).application_properties == {"traceparent": PARENT}
        assert given.application_properties == {"traceparent": PARENT}


@pytest.mark.parametrize("text", ["", "00-0-0-01", 7, "x" * (LONGEST + 1), PARENT.replace("0123", "zzzz")])
async def test_a_malformed_context_begins_a_trace(
    text: object, nursery: trio.Nursery, autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router, spans=True) as client,
        client.receiver("orders") as receiver,
        client.sender("orders") as sender,
    ):
        payload = Message(b"x", message_annotations={"traceparent": text}).encode()
        await sender.transfer_payload(payload, settled=True)
        await one(receiver)
    assert only(spans, "process").parent is None


async def test_errors_are_told_without_what_the_program_says(
    nursery: trio.Nursery, autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    async def fail(receiver: Receiver) -> None:
        delivery = await receiver.receive()
        with pytest.raises(ZeroDivisionError):
            async with delivery:
                raise ZeroDivisionError("secret")
        (await receiver.receive()).reject("app:bad")

    async with (
        Router(id="A") as router,
        joined(nursery, router, spans=True) as client,
        client.receiver("orders") as receiver,
        client.sender("orders") as sender,
    ):
        nursery.start_soon(fail, receiver)
        await sender.transfer(b"x")
        with pytest.raises(RejectedError):
            await sender.send(b"y")
    processed = only(spans, "process")
    assert (processed.status.status_code, processed.status.description) == (StatusCode.ERROR, None)
    assert (processed.attributes or {})["error.type"] == "ZeroDivisionError"
    assert not processed.events
    (_, refused) = (each for each in spans.get_finished_spans() if each.name == "send orders")
    assert (refused.attributes or {})["error.type"] == "RejectedError"
    assert "app:bad" in str(refused.status.description)


async def test_a_request_and_its_reply_are_one_trace_and_name_no_dynamic_node(
    nursery: trio.Nursery, autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    async def serve(client: Connection, *, task_status: trio.TaskStatus[None]) -> None:
        async with client.receiver("quotes") as requests:
            task_status.started()
            delivery = await requests.receive()
            async with delivery:
                await delivery.reply(b"1.07")

    async with (
        Router(id="A") as router,
        joined(nursery, router, spans=True) as client,
        client.requester("quotes") as requester,
    ):
        await nursery.start(serve, client)
        assert (await requester.request(b"EUR/CHF")).body == b"1.07"
    found = spans.get_finished_spans()
    assert sorted(each.name for each in found) == ["process quotes", "send", "send quotes"]
    assert len({each.context.trace_id for each in found if each.context is not None}) == 1
    (reply,) = (each for each in found if each.name == "send")
    assert (reply.attributes or {})["messaging.destination.temporary"] is True
    assert not any("$dynamic" in str(value) for value in (reply.attributes or {}).values())


async def test_without_asking_there_are_none(
    nursery: trio.Nursery, autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router) as client,
        client.receiver("orders") as receiver,
        client.sender("orders") as sender,
    ):
        await sender.transfer(b"x", settled=True)
        assert not (await one(receiver)).application_properties
    assert not spans.get_finished_spans()


def test_without_the_extra_it_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace.propagation.tracecontext", None)
    with pytest.raises(CommandError, match=r"amqpmesh\[otel\]"):
        connect("amqp://127.0.0.1", spans=True)
