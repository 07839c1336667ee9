"""Spans of routers: which messages get them, what they say, and collectors that do not take them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.config.observability import TracingConfig
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import RejectedError
from amqpmesh.router.runtime import span_exporter
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.telemetry.span_book import LONGEST, MOST_EVENTS, parent_of
from tests.router.runtime.test_traces import line, receiving
from tests.support.peers.library_client import joined
from tests.support.tasks.until import until

try:
    from opentelemetry import trace
    from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import format_span_id, format_trace_id

    from tests.support.peers.collector import Collector
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("OpenTelemetry is not installed: make .venv/test", allow_module_level=True)

TRACE = "0123456789abcdef0123456789abcdef"
PARENT = f"00-{TRACE}-0123456789abcdef-01"
#: Of a port that nothing listens at.
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        yield found


@pytest.fixture
def client_spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Take the spans of clients in this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def traced(collector: Collector, **settings: Any) -> TracingConfig:
    return TracingConfig(endpoint=collector.url, **settings)


def carrying(parent: str = PARENT, **fields: str) -> Message:
    return Message(b"x", application_properties={"traceparent": parent, **fields})


def numbered(number: int) -> Message:
    return carrying(f"00-{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}-0123456789abcdef-01")


async def one(receiver: Receiver) -> Message:
    """Process one message."""
    delivery = await receiver.receive()
    async with delivery as message:
        return message


def span_of(exporter: InMemorySpanExporter, operation: str) -> ReadableSpan:
    (span,) = (each for each in exporter.get_finished_spans() if each.name.startswith(operation))
    return span


def decided(router: Router, address: str) -> int:
    return sum(each.decided for each in router.statistics().addresses if each.name == address)


@pytest.mark.parametrize("routers", ["AB", "ABC"])
async def test_each_hop_has_a_span_below_that_of_the_client(
    autojump_clock: MockClock, collector: Collector, client_spans: InMemorySpanExporter, routers: str
) -> None:
    async with (
        line(routers, tracing=traced(collector)) as mesh,
        mesh.client(routers[0], id="writer", spans=True) as writer,
        mesh.client(routers[-1], id="reader", spans=True) as reader,
        reader.receiver("orders") as orders,
        writer.sender("orders", name="s") as sender,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(sender.send, Message(b"x", application_properties={"a": 1}))
        message = await one(orders)
    sent, processed = span_of(client_spans, "send"), span_of(client_spans, "process")
    assert sent.context is not None
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    # What the receiver got is what the sender wrote.
    assert set(message.application_properties) == {"a", "traceparent"}
    assert not message.delivery_annotations
    assert not message.message_annotations
    assert [each.router for each in collector.spans] == list(routers)
    for each in collector.spans:
        assert each.trace == format_trace_id(sent.context.trace_id)
        assert each.parent == format_span_id(sent.context.span_id)
        assert (each.span.name, each.span.kind) == ("relay orders", Span.SPAN_KIND_CLIENT)
        assert each.span.end_time_unix_nano >= each.span.start_time_unix_nano
        assert each.schema == "https://opentelemetry.io/schemas/1.44.0"
        assert each.events == []
        assert each.span.status.code == Status.STATUS_CODE_UNSET
        common = {
            "messaging.system": "amqp",
            "messaging.operation.name": "relay",
            "messaging.operation.type": "send",
            "messaging.client.id": each.router,
            "messaging.destination.name": "orders",
            "amqpmesh.outcome": "accepted",
            "amqpmesh.tenant": "",
            "amqpmesh.waited": 0.0,
        }
        assert common.items() <= each.attributes.items()
    first, last = collector.spans[0].attributes, collector.spans[-1].attributes
    assert (first["amqpmesh.from"], first["amqpmesh.incoming_link"]) == ("writer", "s")
    assert (first["amqpmesh.to"], last["amqpmesh.to"]) == (routers[1], "reader")
    assert len({each.span.span_id for each in collector.spans}) == len(routers)
    assert collector.paths == {"/v1/traces"}
    assert {each["service.name"] for each in collector.resources} == {"amqpmesh"}


@pytest.mark.parametrize("anonymous", [False, True])
async def test_the_kernel_relays_all_other_messages(
    autojump_clock: MockClock, collector: Collector, anonymous: bool
) -> None:
    other = carrying(PARENT[:-1] + "0", tracestate="a=b")
    async with (
        trio.open_nursery() as nursery,
        line("AB", tracing=traced(collector)) as mesh,
        mesh.client("A") as writer,
        mesh.client("B") as reader,
        reader.receiver("orders") as orders,
        writer.sender(None if anonymous else "orders") as sender,
    ):

        async def send(message: Message) -> None:
            message = Message(b"x", to="orders", application_properties=message.application_properties)
            await sender.send(message)

        await nursery.start(receiving, orders)
        await mesh.known("orders")
        await trio.sleep(1)  # all routers have their paths
        for _ in range(5):
            await send(Message(b"x"))
        before = [decided(router, "orders") for router in mesh.routers.values()]
        for _ in range(5):
            await send(Message(b"x"))
            await send(other)
        assert [decided(router, "orders") for router in mesh.routers.values()] == before
        await send(carrying())
        after = [decided(router, "orders") for router in mesh.routers.values()]
        # An anonymous sender's address is not one of its router's, if the receivers are elsewhere.
        assert after == [before[0] + (not anonymous), before[1] + 1]
        for _ in range(5):
            await send(Message(b"x"))
        assert [decided(router, "orders") for router in mesh.routers.values()] == after
        nursery.cancel_scope.cancel()
    assert [each.router for each in collector.spans] == ["A", "B"]


async def sent(client: Connection, *messages: Message, address: str = "orders") -> None:
    async with client.sender(address) as sender:
        for each in messages:
            await sender.send(each)


async def test_routers_with_one_share_choose_the_same_traces(autojump_clock: MockClock, collector: Collector) -> None:
    async with (
        trio.open_nursery() as nursery,
        line("AB", tracing=traced(collector, sample=0.25, rate=10_000, queue=10_000)) as mesh,
        mesh.client("A") as writer,
        mesh.client("B") as reader,
        reader.receiver("orders") as orders,
    ):
        await nursery.start(receiving, orders)
        await sent(writer, *(numbered(each) for each in range(1, 101)))
        nursery.cancel_scope.cancel()
    by_router = [{each.trace for each in collector.spans if each.router == name} for name in "AB"]
    assert by_router[0] == by_router[1]
    assert 10 < len(by_router[0]) < 45


HOSTILE = [
    PARENT.replace(TRACE, "0" * 32),
    f"00-{TRACE}-{'0' * 16}-01",
    "ff" + PARENT[2:],
    PARENT + "-more",
    PARENT + "more",
    "01" + PARENT[2:] + "more",
    "01" + PARENT[2:] + "-" + "x" * LONGEST,
    f"00-{TRACE}-0123456789ABCDEF-01",
    "\0" * 55,
    "",
]


async def test_a_malformed_context_makes_no_span_and_harms_no_message(
    autojump_clock: MockClock, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        trio.open_nursery() as nursery,
        Router(tracing=traced(collector)) as router,
        joined(nursery, router) as client,
        client.receiver("orders") as orders,
    ):
        await nursery.start(receiving, orders)
        await sent(client, *map(carrying, HOSTILE), carrying("01" + PARENT[2:] + "-more", tracestate="\u20ac" * 600))
        await sent(client, Message(b"x", message_annotations={"traceparent": PARENT, "tracestate": "a=b,\x00"}))
        await sent(client, carrying(tracestate="a=b"))
        nursery.cancel_scope.cancel()
    later, annotated, plain = collector.spans
    assert {each.trace for each in (later, annotated, plain)} == {TRACE}
    assert [each.span.trace_state for each in (later, annotated, plain)] == ["", "", "a=b"]
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]
    assert router.statistics().router.spans_lost == 0


def test_hostile_contexts_have_no_parent() -> None:
    from amqpmesh.router.amqp.codec.composite import encode_composite
    from amqpmesh.router.amqp.standard.messaging import ApplicationProperties

    for each in HOSTILE:
        assert parent_of(encode_composite(ApplicationProperties(value={"traceparent": each}))) is None


async def test_ten_thousand_contexts_make_no_more_spans_than_the_rate(
    autojump_clock: MockClock, collector: Collector
) -> None:
    async with (
        trio.open_nursery() as nursery,
        Router(tracing=traced(collector, rate=20)) as router,
        joined(nursery, router) as client,
        client.receiver("orders", credit=1000) as orders,
        client.sender("orders") as sender,
    ):
        await nursery.start(receiving, orders)
        waiting = [await sender.transfer(numbered(each)) for each in range(1, 10_001)]
        for each in waiting:
            await each.outcome()
        assert router._core is not None
        book = router._core.context.traces.spans
        assert book is not None
        assert book.contexts.passed_over == 10_000 - 20
        assert not book.open
        # In the next second there are some more.
        await trio.sleep(1.1)
        await sender.send(numbered(7))
        await until(lambda: router.statistics().router.spans == 21)
        assert router.statistics().router.spans_lost == 10_000 - 20
        nursery.cancel_scope.cancel()
    assert len(collector.spans) == 21


async def test_what_fails_is_an_error_and_what_waits_says_for_what(
    autojump_clock: MockClock, collector: Collector
) -> None:
    async with (
        Router(id="A", tracing=traced(collector)) as router,
        trio.open_nursery() as nursery,
        joined(nursery, router) as client,
        client.receiver("orders", credit=0) as orders,
    ):

        async def refused() -> None:
            with pytest.raises(RejectedError):
                await sent(client, Message(b"before"), carrying())

        orders.flow(1)
        async with trio.open_nursery() as sending:
            sending.start_soon(refused)
            (await orders.receive()).accept()
            await trio.sleep(2)  # one more has come than the receiver has given credit for
            orders.flow(1)
            (await orders.receive()).reject("amqp:not-allowed", "no")
        nursery.cancel_scope.cancel()
    (span,) = collector.spans
    assert span.attributes["amqpmesh.outcome"] == "rejected"
    assert span.attributes["error.type"] == "amqp:not-allowed"
    assert span.span.status.code == Status.STATUS_CODE_ERROR
    assert span.events == ["waits"]
    assert span.attributes["amqpmesh.waited"] >= 1.9


async def test_what_is_never_settled_keeps_no_place(autojump_clock: MockClock, collector: Collector) -> None:
    async with (
        trio.open_nursery() as nursery,
        Router(id="A", tracing=traced(collector, queue=1, keep=5.0)) as router,
        joined(nursery, router) as client,
        client.receiver("orders") as orders,
        client.sender("orders") as sender,
    ):
        first = await sender.transfer(numbered(1))
        held = await orders.receive()
        await sender.transfer(numbered(2))
        await trio.sleep(7)
        assert router._core is not None
        context = router._core.context
        assert context.traces.spans is not None
        assert not context.traces.spans.open
        assert not context.traces.relays
        await until(lambda: not context.traces.spans or context.traces.spans.contexts.room == 1)
        nursery.start_soon(receiving, orders)
        await sender.send(numbered(3))
        held.accept()
        assert await first.outcome()
        nursery.cancel_scope.cancel()
    late, whole = collector.spans
    assert late.events == ["unsettled"]
    assert "amqpmesh.outcome" not in late.attributes
    assert whole.attributes["amqpmesh.outcome"] == "accepted"
    assert router.statistics().router.spans_lost == 1


async def test_a_multicast_has_one_span_of_bounded_size(autojump_clock: MockClock, collector: Collector) -> None:
    news = AddressConfig(pattern="news", distribution=Distribution.MULTICAST)
    async with (
        trio.open_nursery() as nursery,
        Router(id="A", tracing=traced(collector), addresses=[news]) as router,
        joined(nursery, router) as client,
    ):
        for _ in range(3 * MOST_EVENTS):
            receiver = client.receiver("news")
            await nursery.start(kept, receiver)
        await sent(client, carrying(), address="news")
        nursery.cancel_scope.cancel()
    (span,) = collector.spans
    assert len(span.events) == MOST_EVENTS


async def kept(receiver: Any, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    async with receiver as opened:
        await receiving(opened, task_status=task_status)


async def test_only_addresses_that_are_named_have_spans_and_no_name_of_a_dynamic_node_is_told(
    autojump_clock: MockClock, collector: Collector
) -> None:
    async with (
        trio.open_nursery() as nursery,
        Router(id="A", tracing=traced(collector, addresses=("orders/#", "$dynamic/#"))) as router,
        joined(nursery, router) as client,
        client.receiver("orders/eu") as some,
        client.receiver("news") as others,
        client.receiver(None) as dynamic,
    ):
        for each in (some, others, dynamic):
            await nursery.start(receiving, each)
        assert dynamic.address is not None
        for address in ("orders/eu", "news", dynamic.address):
            await sent(client, carrying(), address=address)
        nursery.cancel_scope.cancel()
    named, temporary = collector.spans
    assert named.span.name == "relay orders/eu"
    assert temporary.span.name == "relay"
    assert temporary.attributes["messaging.destination.temporary"] is True
    assert dynamic.address not in str(temporary.span)


@pytest.mark.parametrize("kind", ["refuses", "hangs", "gone"])
async def test_a_collector_that_takes_nothing_costs_no_message(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(span_exporter, "END_TIME", 0.2)
    monkeypatch.setattr(span_exporter, "GATHER", 0.0)
    with Collector(status=503, hangs=kind == "hangs") as collector:
        url = NOBODY if kind == "gone" else collector.url
        async with (
            trio.open_nursery() as nursery,
            Router(id="A", tracing=TracingConfig(endpoint=url, queue=50)) as router,
            joined(nursery, router) as client,
            client.receiver("orders", credit=100) as orders,
            client.sender("orders") as sender,
        ):
            await nursery.start(receiving, orders)
            for number in range(1, 201):
                assert await (await sender.transfer(numbered(number))).outcome()
            assert router._core is not None
            book = router._core.context.traces.spans
            assert book is not None
            assert len(book.ended) + len(book.open) <= 50
            assert book.contexts.passed_over >= 150
            await until(lambda: "spans lost" in caplog.text)
            nursery.cancel_scope.cancel()
    assert router.statistics().is_empty


async def test_without_an_endpoint_nothing_is_looked_at(autojump_clock: MockClock) -> None:
    async with Router(id="A") as router:
        assert router._core is not None
        assert router._core.context.traces.spans is None
        assert router._core.context.kernel.contexts is None


def test_a_configuration_that_makes_no_spans_is_refused() -> None:
    for settings, key in (
        ({"endpoint": "collector:4318"}, "endpoint"),
        ({"endpoint": "http://me:secret@collector:4318"}, "endpoint"),
        ({"endpoint": "grpc://collector:4317"}, "endpoint"),
        ({"endpoint": NOBODY, "sample": 1.5}, "sample"),
        ({"endpoint": NOBODY, "rate": 0}, "rate"),
        ({"endpoint": NOBODY, "queue": 0}, "queue"),
        ({"endpoint": NOBODY, "addresses": ("a", "a")}, "addresses"),
        ({"endpoint": NOBODY, "addresses": ("$management",)}, "addresses"),
        ({"sample": 0.5}, "sample"),
        ({"addresses": ("a",)}, "addresses"),
    ):
        with pytest.raises(ConfigError, match=key) as refused:
            TracingConfig(**settings)  # type: ignore[arg-type]
        assert "secret" not in str(refused.value)


async def test_without_opentelemetry_a_router_with_spans_does_not_start(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"amqpmesh\[otel\]"):
        await Router(tracing=TracingConfig(endpoint=NOBODY)).__aenter__()


async def test_spans_come_move_and_go_while_messages_pass(autojump_clock: MockClock, collector: Collector) -> None:
    with Collector() as other:
        async with (
            trio.open_nursery() as nursery,
            Router(id="A") as router,
            router.receiver("orders", credit=10) as orders,
            router.receiver("late", credit=10) as late,
            router.sender("orders") as sender,
            router.sender("late") as to_late,
        ):
            await nursery.start(receiving, orders)

            async def turn(tracing: TracingConfig, *messages: Message) -> None:
                applied = await router.apply(replace(router.config, tracing=tracing))
                assert not applied.waiting
                await trio.sleep(1)
                for each in messages:
                    await sender.send(each)

            await turn(traced(collector), numbered(1), carrying("malformed"))
            await until(lambda: collector.spans)
            await turn(traced(collector, addresses=("late",)), numbered(2))
            open_there = await to_late.transfer(numbered(3))
            await turn(traced(other), numbered(4))
            await turn(TracingConfig(traces=4), numbered(5))
            before = decided(router, "orders")
            for number in range(5):
                await sender.send(numbered(number))
            assert decided(router, "orders") == before, "the kernel relays them all again"
            assert router._core is not None
            assert router._core.context.kernel.contexts is None
            # A span that was open has its end.
            (await late.receive()).accept()
            await open_there.outcome()
            nursery.cancel_scope.cancel()
    assert [each.attributes["messaging.destination.name"] for each in collector.spans] == ["orders"]
    assert [each.attributes["messaging.destination.name"] for each in other.spans] == ["late", "orders"]
    assert router.statistics().router.spans == 3


async def test_a_running_router_without_opentelemetry_refuses_spans_as_a_whole(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Router(id="A") as router:
        monkeypatch.setattr(span_exporter, "find_spec", lambda name: None)
        before = router.config
        with pytest.raises(ConfigError, match=r"amqpmesh\[otel\]"):
            await router.apply(replace(before, drain=1.0, tracing=TracingConfig(endpoint=NOBODY)))
        assert router.config is before
