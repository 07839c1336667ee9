"""Rows of the part `patterns`: the clients of each row, their routers, and the pairs at the forwarder beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

SLOW = "credit=10 pause=10"  # about 1,000 messages a second
FAN = "multicast/a"
RATE = 500  # messages a second of the many links that have few

RECORDED = (
    "one pair, credit 500",
    "one pair, credit 10",
    "multicast to 4, unsettled",
    "anonymous sender to 100 addresses",
)
"""The rows that are measured with all deliveries recorded, too."""

SETTINGS = """
[[address]]
pattern = "multicast/#"
distribution = "multicast"
[[address]]
pattern = "closest/#"
distribution = "closest"
[[address]]
pattern = "redeliver/#"
redeliver = true
[[address]]
pattern = "once/#"
duplicates = "message-id"
[[address]]
pattern = "dying/#"
redeliver = true
dead_letter = "graveyard"
"""
"""The addresses of all routers. Names of another router begin alike, so that it can be set up the same way."""

SCATTERED = """
[[address]]
pattern = "#"
worker = 0
"""
"""Each connection stays at the worker that has accepted it."""

USER = "alice"
"""A user whose password is the name."""

CHECKED = """
[[group]]
name = "all"
send = ["#"]
receive = ["#"]
user_id = "match"
"""
"""A policy that has the user-ids of all messages checked."""

_ALLOWED = """
[[tenant]]
name = "team"
default = true
limits = {{ {of_tenant} }}
[[group]]
tenant = "team"
name = "all"
send = ["#"]
receive = ["#"]
limits = {{ {of_user} }}
"""
_RATES = 'messages = "2_000_000/s", octets = "2 GiB/s"'  # more than anybody sends
_LINK_RATES = _RATES.replace(" =", "_per_link =")

LIMITED = _ALLOWED.format(of_tenant=_RATES, of_user="")
"""A policy by which one tenant has a rate that nobody reaches."""

ALL_LIMITED = _ALLOWED.format(
    of_tenant=", ".join([_RATES, _LINK_RATES, _RATES.replace(" =", "_per_address =")]),
    of_user=f"{_RATES}, {_LINK_RATES}",
)
"""A policy by which a tenant, its users, their links and its addresses have rates that nobody reaches."""

TRACED = """
[tracing]
endpoint = "http://127.0.0.1:1"
sample = {sample}
rate = 1_000_000
queue = 1_000_000
"""
"""Spans of a share of the messages, whose senders have sampled all. They wait for a collector that is not there."""

CONTAINER = """
[[connector]]
name = "peer"
url = "amqp://127.0.0.1:{port}"
role = "container"
[[link]]
connector = "peer"
target = "there"
address = "here"
"""


@dataclass(frozen=True)
class Row:
    """A pattern: clients of one process that send, and of another one that receive.

    Their arguments are those of `benchmarks/clients.c`, but that the second word is the router's id, or `listen`.
    """

    name: str
    send: str
    receive: str
    """Empty: the program that embeds the router receives."""
    beside: str = ""
    """Options of the pairs at the forwarder, which exchange as the clients do."""
    copies: int = 1
    """Messages that leave the routers for each one that is sent."""
    received: int = 1
    """Messages that receivers count for each one that is sent."""
    routers: str = "A"
    """Their ids, in a line."""
    hops: int = 1
    """Forwarders that the pairs beside it pass."""
    settings: str = ""
    outcome: str = "accepted"
    program: str = ""
    """`receive` or `reply`, by the program that embeds the router; empty: the router is a process of its own."""
    workers: int = 0
    least: int = 0
    """Messages of a round at least, after as many that are not counted."""
    first: int = 0
    """Messages of a round whose clients are new, where the first messages are what counts."""
    sample: float | None = None
    """The share of deliveries that is recorded."""
    policy: str = ""
    """The policy of the router, where `USER` can log in; empty: it has none."""
    rate: int = 0
    """Messages a second; 0: as many as can be."""
    lossy: bool = False
    """True: another router may drop some of them."""
    is_ours: bool = False
    """True: another router has no such thing."""
    is_telling: bool = False
    """True: it is measured by --quick, too."""


def _one_router() -> Iterator[Row]:
    for credit in (500, 100, 50, 20, 10, 5, 2, 1):
        yield Row(
            f"one pair, credit {credit}", "send A address=pair", f"receive A address=pair credit={credit}",
            f"credit={credit}", is_telling=credit == 10,
        )  # fmt: skip
    four = "connections=4"
    yield Row("four receivers of one address", "send A address=all", f"receive A address=all {four}", four)
    yield Row("four senders to one receiver", f"send A address=all {four}", "receive A address=all", four)
    yield Row(
        "four senders to one receiver, credit 10", f"send A address=all {four}", "receive A address=all credit=10",
        "credit=10",
    )  # fmt: skip
    for settled, kind in (("", "unsettled"), (" settled=1", "pre-settled")):
        sending, receiving = f"send A address={FAN}{settled}", f"receive A address={FAN}{settled}"
        for count in (2, 4, 20, 200):
            beside = f"connections={count}{settled}"
            yield Row(
                f"multicast to {count}, {kind}", sending, f"{receiving} connections={count}", beside, count, count,
                lossy=bool(settled), is_telling=count == 4 and not settled,
            )  # fmt: skip
        yield Row(
            f"multicast to 200, one of them slow, {kind}", sending,
            f"{receiving} connections=199 + {receiving} {SLOW}", beside, 200, 200, lossy=bool(settled),
        )  # fmt: skip
    yield Row(
        "multicast to 4, credit 10", f"send A address={FAN}", f"receive A address={FAN} connections=4 credit=10",
        "connections=4 credit=10", 4, 4,
    )  # fmt: skip
    for count, links in ((1, ""), (100, " links=100"), (10_000, " connections=10 links=1000")):
        yield Row(
            f"anonymous sender to {count:,} address{'es' if count > 1 else ''}", f"send A address=any-% to={count}",
            f"receive A address=any-%{links}", least=10 * count if count > 1_000 else 0,
        )  # fmt: skip
    yield Row(
        "first message to each of 10,000 addresses", "send A address=any-% to=10000",
        "receive A address=any-% connections=10 links=1000", first=10_000,
    )  # fmt: skip
    yield Row(
        "anonymous sender, credit 10", "send A address=any-% to=1", "receive A address=any-% credit=10", "credit=10"
    )
    yield Row(
        "ten anonymous senders to 1 address", "send A address=any-% to=1 connections=10",
        "receive A address=any-% unordered=1",
    )  # fmt: skip


def _replies() -> Iterator[Row]:
    for place, routers, where in (("A", "A", ""), ("B", "AB", ", over two routers")):
        yield Row(
            f"request and reply by an anonymous sender{where}", "request A address=service outstanding=100",
            f"reply {place} address=service", "outstanding=100", 2, routers=routers, hops=len(routers),
        )  # fmt: skip
        yield Row(
            f"request and reply by a sender for each requester{where}",
            "request A address=service outstanding=25 connections=4", f"reply {place} address=service by=sender",
            "outstanding=25 connections=4", 2, routers=routers, hops=len(routers),
        )  # fmt: skip


def _meshes() -> Iterator[Row]:
    """Clients at several routers in a line."""
    yield Row("receiver two hops away", "send A address=far", "receive C address=far", routers="ABC", hops=3)
    yield Row("receiver three hops away", "send A address=far", "receive D address=far", routers="ABCD", hops=4)
    yield Row(
        "receiver at the next router, credit 10", "send A address=far", "receive B address=far credit=10", "credit=10",
        routers="AB", hops=2,
    )  # fmt: skip
    hundred = "address=far-% connections=100"
    yield Row(
        "100 pairs, their receivers at the next router", f"send A {hundred}", f"receive B {hundred}", "connections=100",
        routers="AB", hops=2,
    )  # fmt: skip
    spread = [f"receive {router} address=spread" for router in "ABC"]
    for places, routers in (("BC", "ABC"), ("ABC", "ABC"), ("AB", "AB")):
        yield Row(
            f"receivers at {', '.join(places)}, balanced", "send A address=spread",
            " + ".join(f"receive {router} address=spread" for router in places), f"connections={len(places)}",
            routers=routers, hops=2, is_telling=places == "AB",
        )  # fmt: skip
    for places in ("ABC", "AB"):
        yield Row(
            f"receivers at {', '.join(places)}, closest", "send A address=closest/a",
            " + ".join(f"receive {router} address=closest/a" for router in places), f"connections={len(places)}",
            routers=places,
        )  # fmt: skip
    yield Row(
        "receivers at A, B, C of unequal speed", "send A address=spread",
        f"{spread[0]} {SLOW} + {spread[1]} + {spread[2]} credit=50", "connections=3", routers="ABC", hops=2,
    )  # fmt: skip
    for settled, kind in (("", ""), (" settled=1", ", pre-settled")):
        yield Row(
            f"multicast over three routers{kind}", f"send A address={FAN}{settled}",
            " + ".join(f"receive {router} address={FAN}{settled}" for router in "ABC"), f"connections=3{settled}", 3, 3,
            routers="ABC", hops=2, lossy=bool(settled),
        )  # fmt: skip
    yield Row(
        "anonymous sender to a multicast over two routers", "send A address=multicast/x-% to=1",
        "receive A address=multicast/x-% + receive B address=multicast/x-%", "connections=2", 2, 2, routers="AB",
        hops=2,
    )  # fmt: skip
    yield Row(
        "anonymous sender to the next router, pre-settled", "send A address=any-% to=1 settled=1",
        "receive B address=any-%", "settled=1", routers="AB", hops=2, lossy=True,
    )  # fmt: skip
    yield Row(
        "multicast to 4 at one of two routers", f"send A address={FAN}", f"receive A address={FAN} connections=4",
        "connections=4", 4, 4, routers="AB",
    )  # fmt: skip


def _others() -> Iterator[Row]:
    many = "connections=50 links=10"
    yield Row(
        "500 links of one message a second", f"send A address=few-% {many} rate={RATE}",
        f"receive A address=few-% {many}", f"{many} rate={RATE}", rate=RATE,
    )  # fmt: skip
    pair = "receive A address=pair"
    yield Row("one pair, user-id checked", f"send A address=pair user={USER}", pair, policy=CHECKED, is_ours=True)
    for kept, policy in (("a tenant", LIMITED), ("tenant, user, link and address", ALL_LIMITED)):
        yield Row(f"one pair, rates of {kept}", "send A address=pair", pair, policy=policy, is_ours=True)
    for name, sample in (("1 %", 0.01), ("none in the share", 0.0)):
        yield Row(
            f"one pair, traced, {name}", "send A address=pair traced=1", pair, settings=TRACED.format(sample=sample),
            is_ours=True,
        )  # fmt: skip
    yield Row(
        "one pair, duplicates by message-id",
        "send A address=once/a identified=1",
        "receive A address=once/a",
        is_ours=True,
    )
    yield Row("ttl", "send A address=pair ttl=60000", pair)
    yield Row("ten priorities, mixed", "send A address=pair priorities=1", f"{pair} unordered=1")
    yield Row(
        "redelivery, each message once", "send A address=redeliver/a",
        "receive A address=redeliver/a unordered=1 modified=1", copies=2, is_ours=True,
    )  # fmt: skip
    yield Row(
        "dead letters, each message", "send A address=dying/a",
        "receive A address=dying/a rejected=1 + receive A address=graveyard unordered=1",
        copies=2, received=2, outcome="rejected", is_ours=True,
    )  # fmt: skip
    yield Row(
        "name@router", "send A address=pair@B", "receive B address=pair", routers="AB", hops=2, is_ours=True
    )  # fmt: skip
    yield Row("to a container link", "send A address=here", "receive listen", settings=CONTAINER, is_ours=True)
    yield Row("receiver in the process", "send A address=here", "", program="receive", is_ours=True)
    yield Row("receiver in the process, all at once", "send A address=here", "", program="take", is_ours=True)
    yield Row(
        "request and reply in the process", "request A address=here outstanding=100", "", "outstanding=100", 2,
        program="reply", is_ours=True,
    )  # fmt: skip
    pairs = "address=pair-% connections=50"
    one_process = Row("one process, 50 pairs", f"send A {pairs}", f"receive A {pairs}", "connections=50")
    yield one_process
    yield replace(one_process, name="two workers, 50 pairs", workers=2, is_ours=True)
    yield replace(one_process, name="two workers, half of 50 pairs cross", settings=SCATTERED, workers=2, is_ours=True)
    for row in (*_one_router(), *_replies()):
        if row.name in RECORDED:
            name = f"all deliveries recorded: {row.name}"
            yield replace(row, name=name, sample=1.0, is_ours=True, is_telling=False)


ROWS = (*_one_router(), *_replies(), *_meshes(), *_others())
