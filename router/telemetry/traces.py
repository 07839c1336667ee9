"""Traces: the events of followed deliveries at this router, until a client has asked for them.

A trace has the same id at each router that its delivery comes to. Each router keeps its own events, with times of its
own clock. The most traces and events, and the time that they are kept, are `TracingConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.config.observability import TracingConfig
    from amqpmesh.router.telemetry.span_book import SpanBook

ID_OCTETS: Final = 16
"""Octets of the id of a trace."""

LONGEST: Final = 256
"""Characters of a text in an event at most: peers choose names and conditions."""

Field = str | int | float | bool
"""A value in an event."""


class Named(NamedTuple):
    """A value in an event that the clients of one tenant alone may see."""

    value: str | int
    tenant: str
    """The key of the tenant; the operator sees the names of all."""


class Event:
    """One event of a trace. Times are seconds since the first event of the trace at this router."""

    __slots__ = ("_fields", "at", "kind", "number")

    def __init__(self, number: int, at: float, kind: str, fields: dict[str, Field | Named]) -> None:
        self.number = number
        self.at = at
        self.kind = kind
        self._fields = fields

    def shown(self, tenant: str) -> dict[str, Field]:
        """Return the event as a map. Args: tenant: the key of the one that asks; names of others are left out."""
        shown: dict[str, Field] = {"number": self.number, "at": self.at, "event": self.kind}
        for name, value in self._fields.items():
            if not isinstance(value, Named):
                shown[name] = value
            elif tenant in ("", value.tenant):
                shown[name] = value.value
        return shown


class Trace:
    """The trace of one message at this router."""

    __slots__ = ("_began", "_most", "events", "id", "lost", "open", "pending", "tenant", "touched")

    #: The message is marked for other routers, so that they follow it, too.
    marks: ClassVar[bool] = True

    def __init__(self, trace_id: bytes, tenant: str, most: int, now: float) -> None:
        """Args: tenant: the key of the one that may ask for it, beside the operator. most: events that are kept."""
        self.id = trace_id
        self.tenant = tenant
        self.events: list[Event] = []
        #: Events for which there was no room.
        self.lost = 0
        #: Deliveries that are followed, and have not ended.
        self.open = 0
        #: True while a message is still awaited: it has not come, and may come.
        self.pending = False
        #: The time of the last event or question, seconds.
        self.touched = now
        self._began = now
        self._most = most

    @property
    def is_over(self) -> bool:
        """True if nothing more is expected."""
        return not (self.open or self.pending)

    def note(self, now: float, kind: str, **fields: Field | Named | None) -> None:
        """Add an event. Args: fields: those that are None are left out; long texts are cut."""
        if not self.events:
            self._began = min(self._began, now)
        self.touched = now
        if len(self.events) >= self._most:
            self.lost += 1
            return
        kept = {name: _cut(value) for name, value in fields.items() if value is not None}
        self.events.append(Event(len(self.events) + 1, max(0.0, now - self._began), kind, kept))

    @property
    def has_room(self) -> bool:
        """True if there is room for another event."""
        return len(self.events) < self._most

    def after(self, number: int) -> Iterator[Event]:
        """Yield the events after the one with a number, in order."""
        yield from self.events[number:]


def _cut(value: Field | Named) -> Field | Named:
    text = value[0] if type(value) is Named else value
    if type(text) is not str or len(text) <= LONGEST:
        return value
    return value._replace(value=text[:LONGEST]) if type(value) is Named else text[:LONGEST]


class Followed:
    """A delivery that is followed."""

    __slots__ = ("branches", "hides_branches", "reason", "since", "trace")

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        #: The numbers of its branches, by leg.
        self.branches: dict[object, int] = {}
        #: True if it goes to all receivers of another tenant's address: their number is not the sender's to know.
        self.hides_branches = False
        #: The time since which it waits, seconds, and the reason; -1: it does not wait.
        self.since = -1.0
        self.reason = ""


class Watch:
    """The wish to follow the next message to an address."""

    __slots__ = ("closed", "trace")

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        #: The nodes whose fast routes stay closed until the message has come.
        self.closed: dict[object, None] = {}


class TraceBook:
    """All traces of one router."""

    def __init__(self, config: TracingConfig) -> None:
        self._config = config
        self._traces: dict[bytes, Trace] = {}
        #: The spans of messages; None: none are made.
        self.spans: SpanBook | None = None
        #: The deliveries that are followed. Empty: no step of a delivery has to look further.
        self.relays: dict[object, Followed] = {}
        #: Messages that are awaited: by the name of the router's own link that they come by, and by tenant and address.
        self.links: dict[str, Trace] = {}
        self.addresses: dict[tuple[str, str], Watch] = {}
        #: Traces that were not begun, because there were too many.
        self.refused = 0
        #: Somebody looks for old traces when their time has come.
        self.is_kept = False

    def __len__(self) -> int:
        return len(self._traces)

    def change(self, config: TracingConfig) -> None:
        """Keep other many traces from now on. Those that have begun stay, with the events that they may have."""
        self._config = config

    @property
    def awaits(self) -> bool:
        """True if a message is awaited that has no mark yet."""
        return bool(self.links or self.addresses)

    def find(self, trace_id: bytes) -> Trace | None:
        """Return a trace; None: it is unknown, or forgotten."""
        return self._traces.get(trace_id)

    def begin(self, trace_id: bytes, tenant: str, now: float, policy: Policy | None = None) -> Trace | None:
        """Return the trace of an id, made if it is new; None: there are too many.

        A trace that is over makes room for a new one of its tenant.

        Args: policy: its tenants have equal parts of three quarters of the traces, and the operator has the last
            quarter; None: the operator has all.
        """
        trace = self._traces.get(trace_id)
        if trace is not None:
            return trace
        if not self._has_room(tenant, policy) and not self._make_room(tenant):
            self.refused += 1
            return None
        trace = self._traces[trace_id] = Trace(trace_id, tenant, self._config.events, now)
        return trace

    def _has_room(self, tenant: str, policy: Policy | None) -> bool:
        most = self._config.traces
        if policy is not None:
            part = policy.part(most * 3 // 4)
            most = part if tenant else max(part, most // 4)
        return sum(each.tenant == tenant for each in self._traces.values()) < most

    def _make_room(self, tenant: str) -> bool:
        over = next((each for each in self._traces.values() if each.tenant == tenant and each.is_over), None)
        if over is not None:
            self.forget(over)
        return over is not None

    def follow(self, relay: object, trace: Trace) -> Followed:
        """Follow a delivery until `ended`."""
        trace.open += 1
        trace.pending = False
        followed = self.relays[relay] = Followed(trace)
        return followed

    def ended(self, relay: object) -> Followed | None:
        """Follow a delivery no longer. Returns: None: it was not followed."""
        followed = self.relays.pop(relay, None)
        if followed is not None:
            followed.trace.open -= 1
        return followed

    def forget(self, trace: Trace) -> None:
        """Forget a trace, and follow its deliveries no longer."""
        self._traces.pop(trace.id, None)
        for relay in [relay for relay, followed in self.relays.items() if followed.trace is trace]:
            del self.relays[relay]
        self.links = {name: each for name, each in self.links.items() if each is not trace}

    def forget_watch(self, watch: Watch) -> None:
        """Await the next message to an address no longer."""
        self.addresses = {key: each for key, each in self.addresses.items() if each is not watch}

    def forget_old(self, now: float) -> bool:
        """Forget the traces without an event or question for as long as they are kept. Returns: others are left."""
        for trace in list(self._traces.values()):
            if trace.touched + self._config.keep <= now and not trace.pending:
                self.forget(trace)
        return bool(self._traces)
