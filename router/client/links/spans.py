"""Spans of OpenTelemetry for messages that a program sends and processes.

Names and attributes are those of the semantic conventions for messaging, version 1.44.0. The trace context goes by the
W3C's draft for AMQP: a sender writes `traceparent` and `tracestate` into the application-properties, and a receiver
reads the message annotations first. Baggage is neither sent nor read.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind

    from amqpmesh.router.amqp.codec.types import Value

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM: Final = "amqp"
"""The value of `messaging.system`: the conventions name no generic one."""

FIELDS: Final = ("traceparent", "tracestate")
"""The names of the trace context in a message."""

LONGEST: Final = 512
"""Characters of a field that is read at most (W3C Trace Context, 3.3.1.5)."""


class Spans:
    """The spans of one connection, by the tracer provider of the process."""

    def __init__(self, client_id: str) -> None:
        """Args: client_id: our container-id. Raises: CommandError: OpenTelemetry is not installed."""
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise CommandError("spans need OpenTelemetry: pip install 'amqpmesh[otel]'") from None
        self._trace = trace
        self._tracer = trace.get_tracer("amqpmesh", schema_url=SCHEMA)
        self._propagator = TraceContextTextMapPropagator()
        self._client_id = client_id

    @contextmanager
    def sending(self, message: Message | Value, address: str | None) -> Iterator[Message]:
        """Span the sending of a message, and yield the message with the trace context.

        A message that has a trace context keeps it. Args: address: of the link; None: the message names its own.
        """
        given = message if isinstance(message, Message) else Message(message)
        target = given.to if address is None else address
        with self._span("send", self._trace.SpanKind.PRODUCER, given, target, None):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            properties = given.application_properties
            if carrier and not any(name in source for source in _sources(given) for name in FIELDS):
                given = replace(given, application_properties={**properties, **carrier})
            yield given

    @contextmanager
    def processing(self, message: Message, address: str | None) -> Iterator[None]:
        """Span the processing of a message, as a child of the span that its trace context names."""
        parent = self._propagator.extract(_carrier(message))
        with self._span("process", self._trace.SpanKind.CONSUMER, message, address, parent):
            yield

    @contextmanager
    def _span(
        self, operation: str, kind: SpanKind, message: Message, address: str | None, parent: Context | None
    ) -> Iterator[None]:
        attributes: dict[str, str | bool] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.client.id": self._client_id,
        }
        name = operation
        if address is not None and without_secret(address) != address:
            attributes["messaging.destination.temporary"] = True  # its name is a secret, and no other message has it
        elif address is not None:
            name = f"{operation} {address}"
            attributes["messaging.destination.name"] = address
        for key, value in (
            ("messaging.message.id", message.message_id),
            ("messaging.message.conversation_id", message.correlation_id),
        ):
            if value is not None and not isinstance(value, bytes):
                attributes[key] = str(value)
        with self._tracer.start_as_current_span(
            name, parent, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                # What other exceptions say may be of the message.
                said = str(error) if isinstance(error, AmqpMeshError) else None
                span.set_status(self._trace.StatusCode.ERROR, said)
                raise


def _carrier(message: Message) -> Mapping[str, str]:
    """Return the trace context of a message, as it is written there; none if it is malformed."""
    for source in _sources(message):
        parent = source.get(FIELDS[0])
        if isinstance(parent, str):
            found = {name: source.get(name) for name in FIELDS}
            return {name: str(text) for name, text in found.items() if isinstance(text, str) and len(text) <= LONGEST}
    return {}


def _sources(message: Message) -> tuple[Mapping[Any, Any], ...]:
    """Return the sections of a message that may have a trace context, the first to be read first."""
    return message.message_annotations, message.application_properties
