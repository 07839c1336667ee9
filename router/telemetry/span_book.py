"""Spans of messages at this router, until a thread has exported them. Nothing here needs OpenTelemetry.

A span has the trace context of its message as its parent, and the steps of the delivery as its events, like a trace of
`amqpmesh trace`. The limits are those of `TracingConfig`.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.patterns import PatternTable
from amqpmesh.router.address_syntax import DYNAMIC
from amqpmesh.router.kernel import ALL_IDS, TraceContexts, read_trace_context
from amqpmesh.router.telemetry.traces import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.config.observability import TracingConfig
    from amqpmesh.router.telemetry.traces import Field, Named

SECOND: Final = 1.0
"""Seconds until spans may be begun again, after too many."""

LONGEST: Final = 512
"""Octets of a field of a trace context that is read at most (W3C Trace Context, 3.3.1.5)."""

MOST_EVENTS: Final = 8
"""Events of a span at most, beside those that come once."""

ONCE: Final = frozenset({"came", "told", "unsent", "unsettled"})
"""Events that come once in the life of a delivery, and that each span has."""

PLAIN: Final = frozenset({"routed", "chosen", "sent"})
"""Events of which a span has the time alone that the delivery has waited before them."""

# W3C Trace Context, 3.2: a later version may have more behind the flags.
_PARENT: Final = re.compile(
    rb"(00|(?!ff)[0-9a-f]{2}(?=.{53}(-|$)))-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.S
)

# The same, 3.3.1: a key, or a key of a tenant at a system, and a value.
_KEY: Final = rb"[a-z][_0-9a-z*/-]{0,255}|[a-z0-9][_0-9a-z*/-]{0,240}@[a-z][_0-9a-z*/-]{0,13}"
_MEMBER: Final = re.compile(rb"(?:%s)=[ -+\--<>-~]{0,255}[!-+\--<>-~]" % _KEY)

MOST_MEMBERS: Final = 32
"""Members of a `tracestate` at most (W3C Trace Context, 3.3.1.1)."""


class TraceParent(NamedTuple):
    """The trace context of a message: the span that the message was sent in."""

    trace_id: int
    span_id: int
    state: str
    """The `tracestate`, as it came; empty: there is none, or a malformed one."""


def parent_of(data: bytes) -> TraceParent | None:
    """Return the trace context of a message; None: it has none, or a malformed one. Args: data: its first frame."""
    found = read_trace_context(data)
    if found is None or len(found[0]) > LONGEST:
        return None
    parts = _PARENT.fullmatch(found[0])
    if parts is None or (parts[1] == b"00" and parts[6]):
        return None
    trace_id, span_id = int(parts[3], 16), int(parts[4], 16)
    if not (trace_id and span_id):
        return None
    return TraceParent(trace_id, span_id, found[1].decode("ascii") if _is_state(found[1]) else "")


def _is_state(octets: bytes) -> bool:
    if len(octets) > LONGEST:
        return False
    members = [each for each in (part.strip(b" \t") for part in octets.split(b",")) if each]
    return len(members) <= MOST_MEMBERS and all(map(_MEMBER.fullmatch, members))


class HopSpan(Trace):
    """The span of one message at this router."""

    __slots__ = ("_book", "came_at", "ended_at", "parent", "started_at", "waited")

    marks: ClassVar[bool] = False

    def __init__(self, book: SpanBook, parent: TraceParent, tenant: str, now: float, wall: float) -> None:
        """Args: tenant: the key of the message's. now: the time when it came. wall: the same, seconds since 1970."""
        super().__init__(b"", tenant, MOST_EVENTS, now)
        self.parent = parent
        self.came_at = now
        self.started_at = self.ended_at = wall
        #: Seconds that it has waited.
        self.waited = 0.0
        self._book = book

    def note(self, now: float, kind: str, **fields: Field | Named | None) -> None:
        """Add an event, unless it is plain. The last one hands the span to the thread that exports it."""
        waited = fields.get("waited")
        if isinstance(waited, float):
            self.waited += waited
        if kind == "ended":
            self.ended_at = self.started_at + max(0.0, now - self._began)
            self._book.end(self)
        elif kind not in PLAIN:
            self._most += kind in ONCE
            super().note(now, kind, **fields)


class SpanBook:
    """The spans of one router."""

    def __init__(
        self,
        config: TracingConfig,
        schedule: Callable[[float, Callable[[], None]], object],
        forget: Callable[[object], object] = lambda _: None,
    ) -> None:
        """Args: schedule: calls a function at a time. forget: lets the steps of a delivery be noted no longer."""
        self._forget = forget
        self._schedule = schedule
        self._is_scheduled = False
        #: The choice of messages. Its room is what is left of the rate, as far as the queue has room.
        self.contexts = TraceContexts(0)
        #: Spans that have not ended, with their deliveries, the oldest first.
        self.open: dict[HopSpan, object] = {}
        #: Spans that have ended, the oldest first: the thread takes them.
        self.ended: deque[HopSpan] = deque()
        #: Called when a span has ended.
        self.on_end: Callable[[], object] = lambda: None
        #: Spans that a collector has taken; `failed`: those that none has taken. The thread counts them.
        self.exported = 0
        self.failed = 0
        self.change(config)

    def change(self, config: TracingConfig) -> None:
        """Choose messages by another configuration from now on; without an endpoint none. Spans that are open stay."""
        #: Some messages get spans.
        self.is_on = config.endpoint is not None
        self._keep = config.keep
        self._rate = config.rate
        self._queue = config.queue
        self._patterns = PatternTable((each, True) for each in config.addresses)
        self.contexts.threshold = int(config.sample * ALL_IDS)
        self.contexts.room = self._room()

    @property
    def lost(self) -> int:
        """The messages in the share without a span at the collector: beyond the rate or the queue, or not exported."""
        return self.contexts.passed_over + self.failed

    def has(self, address: str) -> bool:
        """Tell whether messages to an address get spans; if it is empty: whether some may."""
        if not address or not self.is_on:
            return self.is_on
        is_own = is_reserved(address) and not address.startswith(f"{DYNAMIC}/")
        return not is_own and self._patterns.find(address) is not None

    def begin(self, delivery: object, data: bytes, tenant: str, now: float, came: float, wall: float) -> HopSpan | None:
        """Begin the span of a message that is chosen; None: its trace context is malformed.

        Args: data: its first frame. tenant: its key. came: the time when it came. wall: of `now`, seconds since 1970.
        """
        # Also one with a malformed context has cost a decision.
        self.contexts.room -= 1
        self._refill_later(now)
        parent = parent_of(data)
        if parent is None:
            return None
        span = HopSpan(self, parent, tenant, came, wall - (now - came))
        self.open[span] = delivery
        return span

    def end(self, span: HopSpan) -> None:
        """Have a span exported."""
        self.open.pop(span, None)
        self.ended.append(span)
        self.on_end()

    def _room(self) -> int:
        return max(0, min(self._rate, self._queue - len(self.open) - len(self.ended)))

    def _refill_later(self, now: float) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule(now + SECOND, lambda: self._refill(now + SECOND))

    def _refill(self, now: float) -> None:
        self._is_scheduled = False
        # What is never settled must not keep the places of others.
        while self.open and next(iter(self.open)).came_at + self._keep <= now:
            span = next(iter(self.open))
            self._forget(self.open[span])
            span.note(now, "unsettled")
            span.note(now, "ended")
        self.contexts.room = self._room()
        if self.contexts.room < min(self._rate, self._queue):
            self._refill_later(now)
