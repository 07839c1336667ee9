"""The picture of a trace: what has happened at each router, as a tree along the way of the message.

Routers have clocks of their own. So times are those since the message came to a router, and the time between two
routers is only what is left of the sender's wait: for both directions together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from amqpmesh.router.cli.output.terminal import printable

Event = Mapping[str, Any]

HIDDEN: Final = "(of another tenant)"
"""In place of a name that the client may not see."""


@dataclass
class AskedRouter:
    """The events of a trace at one router, as far as they are known."""

    name: str
    events: list[Event] = field(default_factory=list)
    over: bool = False
    lost: int = 0
    """Events for which the router had no room."""
    silence: str = ""
    """The reason why nothing more is known of it; empty: there is none."""

    @property
    def begins(self) -> bool:
        """True if the message has come there."""
        return any(each["event"] == "came" for each in self.events)

    def next_routers(self) -> Iterator[tuple[Event, str]]:
        """Yield the routers that the message has left for, each with that event."""
        for each in self.events:
            if each["event"] == "left" and each.get("router"):
                yield each, str(each.get("to"))

    def stay(self) -> float | None:
        """Return the seconds from the message's arrival until its sender was told the outcome; None: it was not."""
        came = next((each["at"] for each in self.events if each["event"] == "came"), None)
        told = next((each["at"] for each in self.events if each["event"] == "told"), None)
        return None if came is None or told is None else float(told - came)


def tree(first: str, routers: Mapping[str, AskedRouter]) -> list[str]:
    """Return the lines of a trace. Args: first: the router where it begins."""
    return [printable(line) for line in _router(first, routers, "", {first})]


def _router(name: str, routers: Mapping[str, AskedRouter], indent: str, above: set[str]) -> Iterator[str]:
    yield f"{indent}{name}"
    asked = routers.get(name)
    if asked is None:
        return
    left: dict[Any, Event] = {}
    for event in asked.events:
        yield f"{indent}  {_milliseconds(event['at']):>12}  {_says(event)}{_on_the_way(event, left, routers)}"
        if event["event"] == "left":
            left[event.get("branch")] = event
            to = str(event.get("to"))
            if event.get("router") and to not in above:
                yield from _router(to, routers, f"{indent}    ", above | {to})
    if asked.lost:
        yield f"{indent}  {asked.lost} more events: the router had no room for them"
    if asked.silence:
        yield f"{indent}  {asked.silence}"


def _on_the_way(event: Event, left: Mapping[Any, Event], routers: Mapping[str, AskedRouter]) -> str:
    """Return the time that a message and its outcome have needed between two routers, in words."""
    sent = left.get(event.get("branch"))
    if event["event"] != "outcome" or sent is None or not sent.get("router"):
        return ""
    there = routers.get(str(sent.get("to")))
    stay = None if there is None else there.stay()
    if stay is None:
        return ""
    between = max(0.0, event["at"] - sent["at"] - stay)
    return f" ({_milliseconds(stay)} there, {_milliseconds(between)} on the way there and back)"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _says(event: Event) -> str:
    kind = event["event"]
    sentence = _SENTENCES.get(kind)
    text = sentence(event) if sentence is not None else str(kind)
    if event.get("waited") is not None:
        text += f", after {_milliseconds(event['waited'])} of waiting: {event.get('waited_for')}"
    return text


def _begun(event: Event) -> str:
    return f"awaits the next message to {event['address']}" if event.get("next") else f"sends to {event['address']}"


def _came(event: Event) -> str:
    lane = f", by a lane ({event['lane']})" if event.get("lane") else ""
    settled = ", settled" if event.get("settled") else ""
    return f"came from {event.get('from', HIDDEN)}{lane}: {event['octets']} octets{settled}"


def _routed(event: Event) -> str:
    ways = f", {event['ready']} of {event['ways']} have credit" if "ways" in event else ""
    return f"goes to {event['to']}: {event['rule']}, cost {event['cost']}{ways}"


def _chosen(event: Event) -> str:
    rule = "by the lane" if event["rule"] == "lane" else event["rule"]
    if "ways" not in event:
        return f"leaves: {rule}"
    ready = f", {event['ready']} ready" if "ready" in event else ""
    return f"leaves by {event['branches']} of {event['ways']} links: {rule}{ready}"


def _left(event: Event) -> str:
    to, copy = event.get("to", HIDDEN), " as a copy" if event.get("copy") else ""
    if event.get("router"):
        return f"left for {to}{copy}, by a lane ({event.get('lane')}) of {event.get('far')}"
    return f"left for {to}{copy}, by link {event.get('link', HIDDEN)}"


def _outcome(event: Event) -> str:
    condition = f" ({event['condition']})" if event.get("condition") else ""
    return f"{event['outcome']}{condition}"


def _branch(event: Event) -> str:
    return f"branch {event['branch']}: " if event.get("branch") else ""


_SENTENCES: Final[Mapping[str, Callable[[Event], str]]] = {
    "begun": _begun,
    "came": _came,
    "routed": _routed,
    "chosen": _chosen,
    "left": _left,
    "waits": lambda event: f"{_branch(event)}waits: {event['reason']}",
    "sent": lambda event: f"{_branch(event)}all of it is sent",
    "outcome": lambda event: f"{_branch(event)}{_outcome(event)}",
    "lost": lambda event: f"{_branch(event)}the receiver is gone: {_outcome(event)}",
    "again": lambda event: f"is sent again, after {event['attempts']} attempts",
    "told": lambda event: f"the sender is told: {_outcome(event)}",
    "unsent": lambda event: f"goes no further: {event['reason']}",
    "failed": lambda event: f"failed: {event['reason']}",
    "ended": lambda event: "aborted by its sender" if event.get("aborted") else "ended",
}


@dataclass(frozen=True)
class Verdict:
    """The end of a trace."""

    delivered: bool
    says: str


def verdict(first: AskedRouter) -> Verdict | None:
    """Return the end of a message where its trace began; None: there is none yet."""
    settled = False
    for event in first.events:
        kind = event["event"]
        settled = settled or bool(event.get("settled"))
        if kind == "told":
            outcome = _outcome(event)
            delivered = event["outcome"] == "accepted"
            return Verdict(delivered, "delivered: accepted" if delivered else f"not delivered: {outcome}")
        if kind in ("unsent", "failed"):
            return Verdict(False, f"not delivered: {event['reason']}")
        if kind == "ended":
            left = any(each["event"] == "left" for each in first.events)
            if settled and left:
                return Verdict(True, "sent settled: no receiver tells an outcome")
            return Verdict(False, "not delivered: its sender has given it up")
    return None


def as_object(address: str, trace: str, first: str, routers: Mapping[str, AskedRouter]) -> dict[str, Any]:
    """Return a trace as an object for programs."""
    ended = verdict(routers[first])
    rows: Sequence[AskedRouter] = list(routers.values())
    return {
        "address": address,
        "trace": trace,
        "router": first,
        "delivered": None if ended is None else ended.delivered,
        "routers": [
            {
                "router": each.name,
                "over": each.over,
                "lost": each.lost,
                "silence": each.silence or None,
                "events": each.events,
            }
            for each in rows
        ],
    }
