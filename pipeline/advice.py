"""Advice on findings, by their kind: the next thing to do or to look at. Importing this needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LOSSES: Final[Mapping[str, str]] = {
    "broken": "Look into the logs of both routers for a lost connection or a killed process at that time. Senders that "
    "wait for outcomes know of it; messages that were sent settled are lost.",
    "unanswered": "Find out which client was lost before the outcome was known. A sender with `resume` learns it "
    "later; any other must decide itself whether to send again.",
    "dropped": "Let the sender wait for outcomes instead of sending settled, and see that a receiver is attached.",
    "rejected": "Read the condition, and correct the messages or the receiver.",
    "undelivered": "Attach a receiver. `amqpmesh why ADDRESS` says what stops messages to an address.",
    "expired": "Add receivers or credit, so that messages wait less, or give them a longer ttl.",
    "modified": "Look into the log of the receiver for failures and for lost connections.",
    "released": "Find out whether the receiver wants these messages. One that ends releases what it has not processed.",
    "aborted": "Look at the sender: it gave its own messages up.",
    "loop": "See whether costs or connections of routers changed at that time. If it goes on without changes, it is a "
    "fault of a router: report it with the evidence.",
    "repeated": "Find out why the receiver fails on these messages, and let it reject what it can never process.",
    "storm": "Look at the receivers of the address: they fail, or lose their connections, again and again.",
    "slow": "Make the receiver faster, or attach another one to the address.",
    "no credit": "If the receiver should get messages, see whether it hangs, and let it give more credit.",
    "growing": "See that the receiver settles what it has processed, and limit its credit.",
}
"""For each kind of the findings of `losses`."""

ANOMALIES: Final[Mapping[tuple[str, bool], str]] = {
    ("messages", True): "Find the sender that sends more: `amqpmesh pipeline show traffic/talkers`. If it goes on, "
    "limit its rate, or add receivers.",
    ("messages", False): "See whether the senders of the address are connected: `amqpmesh why ADDRESS`.",
    ("p50", True): "See which part takes longer: `amqpmesh pipeline show latency/shares --address ADDRESS`.",
    ("p50", False): "Nothing has to be done; see whether the messages are still those that are expected.",
    ("p95", True): "See which part takes longer: `amqpmesh pipeline show latency/shares --address ADDRESS`.",
    ("p95", False): "Nothing has to be done; see whether the messages are still those that are expected.",
    ("failures", True): "See which outcomes there are: `amqpmesh pipeline show losses --address ADDRESS`.",
    ("failures", False): "Nothing has to be done.",
    ("octets", True): "See what crosses the link, `amqpmesh pipeline show traffic`, and whether another link failed. "
    "If it goes on, `amqpmesh pipeline plan` proposes other costs.",
    ("octets", False): "See whether the link or a router behind it was lost: `amqpmesh status`.",
    ("waits", True): "Add receivers to the address, or let them give more credit.",
    ("waits", False): "Nothing has to be done.",
}
"""For each measure of `anomalies`, and whether it rose."""

FORECASTS: Final[Mapping[str, str]] = {
    "above limit": "See what crosses the link, `amqpmesh pipeline show traffic`. Raise what it can carry, or have "
    "`amqpmesh pipeline plan` propose costs that keep it below its limit.",
    "near limit": "Nothing has to be done today; look at the forecast again tomorrow.",
}
"""For each kind of the findings of forecasts."""
