"""TRACE: the requests of clients at `$management` to follow a message, and to tell what has happened to it here.

With an address as `name`, the router begins a trace: it sends a message of its own there, or with `next` follows the
next one that comes. With `trace`, the id of a trace, it tells the events after the one with the number `after`, and
with `end` awaits no message any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.service import BAD_REQUEST, RequestError
from amqpmesh.router.message.content import Message
from amqpmesh.router.telemetry.traces import ID_OCTETS

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.telemetry.traces import Trace

TRACE: Final = "TRACE"

KINDS: Final = ("address", "link")
"""The types of entities that a client has to be permitted to read, without their prefix."""

LONGEST_WAIT: Final = 3600.0
"""Seconds that a message is awaited, or waits for credit, at most."""

WAIT: Final = 30.0
"""The same, if the request does not say."""

PAGE: Final = 100
"""Events in one answer at most; the next request continues by `after`."""

MARK: Final = "x-opt-amqpmesh-trace"
"""The message annotation of messages that a trace has sent: the id of the trace, as a string."""


class TraceStart(NamedTuple):
    """The wish to begin a trace."""

    address: str
    next: bool
    """Follow the next message that comes, and send none."""
    wait: float
    """Seconds until it is given up."""


class TraceQuestion(NamedTuple):
    """The question for the events of a trace."""

    trace: bytes
    after: int
    end: bool = False
    """Await no message any more."""


def start_request(address: str, *, follows_next: bool, wait: float) -> Message:
    """Return the request to begin a trace. Args: wait: seconds."""
    properties: dict[str, Value] = {"operation": TRACE, "type": f"{PREFIX}address", "name": address}
    return Message(None, application_properties={**properties, "next": follows_next, "wait": wait})


def events_request(trace: str, after: int, *, end: bool = False) -> Message:
    """Return the request for the events of a trace. Args: trace: its id, as the answer to the start has it. end: await
    no message any more.
    """
    properties: dict[str, Value] = {"operation": TRACE, "trace": trace, "after": after}
    return Message(None, application_properties={**properties, "end": True} if end else properties)


def question_of(asked: Message) -> TraceStart | TraceQuestion:
    """Return what a request asks for. Raises: RequestError: it is malformed."""
    properties = asked.application_properties
    trace = properties.get("trace")
    if trace is not None:
        after = properties.get("after", 0)
        if not isinstance(after, int) or isinstance(after, bool) or after < 0:
            raise RequestError(BAD_REQUEST, "`after` is no count")
        end = properties.get("end", False)
        if not isinstance(end, bool):
            raise RequestError(BAD_REQUEST, "`end` is no boolean")
        return TraceQuestion(_trace_id(trace), after, end)
    if properties.get("type") not in ("address", f"{PREFIX}address"):
        raise RequestError(BAD_REQUEST, f"`type` must be {PREFIX}address, or `trace` the id of a trace")
    address, follows_next = properties.get("name"), properties.get("next", False)
    wait = properties.get("wait", WAIT)
    if not isinstance(address, str) or not address or not isinstance(follows_next, bool):
        raise RequestError(BAD_REQUEST, "TRACE needs an address as `name`, and can have `next`, a boolean")
    if not isinstance(wait, int | float) or isinstance(wait, bool) or not 0 < wait <= LONGEST_WAIT:
        raise RequestError(BAD_REQUEST, f"`wait` is no number of seconds up to {LONGEST_WAIT:g}")
    return TraceStart(address, follows_next, float(wait))


def _trace_id(text: Value) -> bytes:
    try:
        found = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        found = b""
    if len(found) != ID_OCTETS:
        raise RequestError(BAD_REQUEST, f"`trace` is no id of {2 * ID_OCTETS} hexadecimal digits")
    return found


def events_of(trace: Trace, after: int, tenant: str) -> dict[str, Value]:
    """Return the events of a trace as the body of an answer.

    `events`: a list of maps, `PAGE` at most; `over`: nothing more is expected here, and the list is the last one;
    `lost`: events for which there was no room. Args: tenant: the key of the one that asks; names of others are left
    out.
    """
    page: list[Value] = []
    for event in trace.after(after):
        if len(page) == PAGE:
            return {"events": page, "over": False, "lost": trace.lost}
        page.append(dict(event.shown(tenant)))
    return {"events": page, "over": trace.is_over, "lost": trace.lost}
