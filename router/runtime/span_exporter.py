"""Spans of messages on their way to a collector of OpenTelemetry: a thread sends them, and the loop never waits for it.

If the collector is slow, or there is none, spans wait in memory up to `[tracing] queue`; beyond it none are begun. A
batch that the collector does not take in time is lost and counted. The router relays on.

Names and attributes are those of the semantic conventions for messaging, version 1.44.0: a router passes on the
context of another program's message, so its spans are of the operation type `send` and of the kind CLIENT. The name of
the operation is `relay`.
"""

from __future__ import annotations

import math
import secrets
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import trio

from amqpmesh import __version__
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.client.links.spans import SCHEMA, SYSTEM
from amqpmesh.router.logs import event_log
from amqpmesh.router.telemetry.span_book import ONCE, SpanBook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from amqpmesh.router.config.observability import TracingConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.telemetry.span_book import HopSpan
    from amqpmesh.router.telemetry.traces import Field

    SpanSender: TypeAlias = OTLPSpanExporter
    """A sender of spans to one collector."""

BATCH: Final = 256
"""Spans of one request at most."""

GATHER: Final = 1.0
"""Seconds for which spans are gathered for a request."""

LOOK: Final = 1.0
"""Seconds between two looks at what was lost."""

TOLD: Final = 10.0
"""Seconds between two lines of the log about lost spans."""

END_TIME: Final = 2.0
"""Seconds that the collector has for the rest when the router ends."""

PACKAGE: Final = "opentelemetry.exporter.otlp.proto.http"

PREFIX: Final = "amqpmesh"

OPERATION: Final = "relay"
"""The name of the operation, with which the conventions have the name of the span begin."""

DELIVERED: Final = ("accepted", "none")
"""Outcomes that are no error: a message that was settled by its sender has none."""

HIDDEN: Final = ONCE - {"unsettled"}
"""Events that the attributes of a span have; `HIDDEN_ALONE`: if the message leaves by one link."""

HIDDEN_ALONE: Final = HIDDEN | {"left", "outcome"}

NOTHING: Final[Mapping[str, Field]] = {}

log = event_log.EventLog("amqpmesh.io")


class SpanExporter:
    """The exporter of one router's spans, from `begin` until `end`."""

    def __init__(self, core: Core, config: TracingConfig, sender: SpanSender) -> None:
        """Make the spans of a router. Args: sender: to the collector, as `new_sender` returns it."""
        self._book = core.context.traces.spans = SpanBook(config, core.context.schedule, core.context.traces.ended)
        self._book.on_end = self._wake
        self._kernel = core.context.kernel
        self._kernel.contexts = self._book.contexts
        self._router = core.context.id
        #: The one that the thread uses, and the one that it is to use.
        self._sender = self._next_sender = sender
        self._readable = _maker(self._router, _resource(self._router))
        self._filled = threading.Event()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._export, name=f"spans of {self._router}", daemon=True)

    def begin(self) -> None:
        """Export spans from now on."""
        self._thread.start()

    def change(self, config: TracingConfig, sender: SpanSender | None) -> None:
        """Make spans by another configuration from now on; without an endpoint none. What is under way goes on.

        Args: sender: to another collector; None: there is none.
        """
        self._book.change(config)
        self._kernel.contexts = self._book.contexts if self._book.is_on else None
        if sender is not None:
            self._next_sender = sender

    async def run(self) -> None:
        """Log what is lost, again and again. Never ends."""
        lost, told_at = 0, -math.inf
        while True:
            await trio.sleep(LOOK)
            now, so_far = trio.current_time(), self._book.lost
            if so_far != lost and now - told_at >= TOLD:
                failed = "the collector does not take them"
                log.warning("spans lost", spans=so_far - lost, reason=failed if self._book.failed else "too many")
                lost, told_at = so_far, now

    async def end(self) -> None:
        """Export the spans that have ended, within `END_TIME`."""
        if not self._thread.is_alive():
            return
        self._ends.set()
        self._filled.set()
        await trio.to_thread.run_sync(self._thread.join, END_TIME)
        self._sender.shutdown()  # type: ignore[no-untyped-call]  # a request that waits is given up

    def _wake(self) -> None:
        if not self._filled.is_set():
            self._filled.set()

    # -------------------------------------------------------------------------------------------------- from the thread

    def _export(self) -> None:
        book = self._book
        while book.ended or not self._ends.is_set():
            self._filled.wait()
            if len(book.ended) < BATCH:
                self._ends.wait(GATHER)
            self._filled.clear()
            while book.ended:
                self._send([book.ended.popleft() for _ in range(min(BATCH, len(book.ended)))])

    def _send(self, spans: list[HopSpan]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            if self._sender is not self._next_sender:
                self._sender.shutdown()  # type: ignore[no-untyped-call]  # as above
                self._sender = self._next_sender
            result = self._sender.export(list(map(self._readable, spans)))
        except Exception as error:  # an internal error, or one of the exporter: the thread lives on
            log.error("internal error", exception=error)
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._book.exported += len(spans)
        else:
            self._book.failed += len(spans)


def new_sender(before: TracingConfig | None, after: TracingConfig) -> SpanSender | None:
    """Return a sender of spans to a collector; None: there is none, or it is the same as before.

    The import takes long, so a thread is better. Args: before: None: the router starts. Raises: ConfigError:
    OpenTelemetry is not installed.
    """
    if after.collector is None or (before is not None and before.collector == after.collector):
        return None
    if not _is_installed():
        reason = "spans need OpenTelemetry: pip install 'amqpmesh[otel]'"
        raise ConfigError("configuration", "tracing.endpoint", reason)
    import opentelemetry.sdk.trace.export  # noqa: F401 - now, and not in the router's loop
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # here: it is an extra

    return OTLPSpanExporter(after.collector)


def _is_installed() -> bool:
    try:
        return find_spec(PACKAGE) is not None
    except ImportError:  # a package above it is missing
        return False


def _resource(router: str) -> Resource:
    """Return the resource of all spans. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME in the environment add to it."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = Resource({"service.name": PREFIX, "service.version": __version__, "service.instance.id": router})
    return own.merge(OTELResourceDetector().detect())


def _maker(router: str, resource: Resource) -> Callable[[HopSpan], ReadableSpan]:
    """Return a function that makes of a span what the exporter of OpenTelemetry takes. Here is what all share."""
    from opentelemetry.sdk.trace import Event as SpanEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

    sampled, no_state = TraceFlags(TraceFlags.SAMPLED), TraceState()
    unset, failed = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
    scope = InstrumentationScope(f"{PREFIX}.router", __version__, SCHEMA)
    common: dict[str, Field] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": OPERATION,
        "messaging.operation.type": "send",
        "messaging.client.id": router,
    }

    def readable(span: HopSpan) -> ReadableSpan:
        parent = span.parent
        state = TraceState.from_header([parent.state]) if parent.state else no_state
        events = [each.shown("") for each in span.events]
        attributes = common | _attributes(span, events)
        address = attributes.get("messaging.destination.name")
        is_alone = sum(each["event"] == "left" for each in events) <= 1
        hidden = HIDDEN_ALONE if is_alone else HIDDEN
        return ReadableSpan(
            name=OPERATION if address is None else f"{OPERATION} {address}",
            context=SpanContext(parent.trace_id, secrets.randbits(64) or 1, False, sampled, state),
            parent=SpanContext(parent.trace_id, parent.span_id, True, sampled, state),
            resource=resource,
            attributes=attributes,
            events=[
                SpanEvent(each.kind, _named(shown), _nanoseconds(span.started_at + each.at))
                for each, shown in zip(span.events, events, strict=True)
                if each.kind not in hidden
            ],
            kind=SpanKind.CLIENT,
            status=failed if "error.type" in attributes else unset,
            start_time=_nanoseconds(span.started_at),
            end_time=_nanoseconds(span.ended_at),
            instrumentation_scope=scope,
        )

    return readable


def _attributes(span: HopSpan, events: Sequence[Mapping[str, Field]]) -> dict[str, Field]:
    """Return the attributes of a span that are its own. Args: events: its events, in order."""
    found: dict[str, Field] = {f"{PREFIX}.tenant": span.tenant, f"{PREFIX}.waited": round(span.waited, 6)}
    first: dict[Field, Mapping[str, Field]] = {}
    for each in events:
        first.setdefault(each["event"], each)
    came = first.get("came", NOTHING)
    address = came.get("address")
    if isinstance(address, str) and address.startswith("$"):
        found["messaging.destination.temporary"] = True  # its name is a secret, and no other message has it
    elif address is not None:
        found["messaging.destination.name"] = address
    left = first.get("left", NOTHING)
    for name, value in (
        ("from", came.get("from")),
        ("incoming_link", came.get("link")),
        ("octets", came.get("octets")),
        ("to", left.get("to")),
        ("outgoing_link", left.get("link")),
    ):
        if value is not None:
            found[f"{PREFIX}.{name}"] = value
    told = _outcome(first)
    if told is not None:
        found[f"{PREFIX}.outcome"] = told["outcome"]
        if told["outcome"] not in DELIVERED:
            found["error.type"] = told.get("condition", told["outcome"])
    return found


def _outcome(first: Mapping[Field, Mapping[str, Field]]) -> Mapping[str, Field] | None:
    """Return the outcome that the sender got, or the first one; None: there is none, as of a settled message.

    Args: first: the first event of each kind.
    """
    for kind in ("told", "outcome", "lost"):
        if kind in first:
            return first[kind]
    unsent = first.get("unsent")
    return None if unsent is None else {"outcome": str(unsent["reason"]).partition(":")[0]}


def _named(shown: Mapping[str, Field]) -> dict[str, Any]:
    return {f"{PREFIX}.{name}": value for name, value in shown.items() if name not in ("event", "number", "at")}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
