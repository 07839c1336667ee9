"""A mesh of three routers that is restarted one router after the other, under load of clients that connect again."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from benchmarks.meshes import await_that, mesh

pytestmark = pytest.mark.interop

FAMILIES = ("proton", "rhea", "amqpmesh")
DRAIN_TIME = 60.0  # seconds for a router to move its clients and to end, on a busy machine
FLOW = 20  # messages of each sender between two restarts
COMES_BACK = 60.0  # seconds for a client to go on after a move; proton waits for its next empty frame, or the one after


@pytest.fixture
def routers(authority):
    """Start a mesh of three routers; each is a neighbour of the others, and moves its clients after SIGTERM."""

    def settings(router):
        files = f'certificate = "{router}.pem"\nkey = "{router}.key"\ntrust = "mesh-ca.pem"\n'
        return "drain_timeout = 20.0\n[mesh]\n" + files.replace(' = "', f' = "{authority}/')

    with mesh(settings) as made:
        made.triangle()
        made.start()
        made.settled()
        yield made
        status = made.end()
        log = "\n".join(f"{each.id}: {line}" for each in made.routers.values() for line in each.log)
        print(log)
    assert set(status.values()) == {0}
    assert "Traceback" not in log
    assert not [line for line in log.splitlines() if " ERROR " in line]


def index_of(message):
    """Return the number that a message has from its sender."""
    return int(message["body"].rpartition(" ")[2])


class Pair:
    """A sender and a receiver of one address, which go from router to router."""

    def __init__(self, client, family, urls):
        where = urls if family == "rhea" else ["--urls", *urls]
        common = [*where, "--address", f"of-{family}"]
        self.family = family
        self.receiver = client(f"{family}_roam", urls[0], *common, "--receive")
        self.sender = client(f"{family}_roam", urls[1], *(urls[1:] if family == "rhea" else ()), *common)

    def flow(self, count=FLOW):
        """Wait until so many have arrived that were sent after this call."""
        self.sender.catch_up()
        before = max((event["index"] for event in self.sender.of("sent")), default=-1)
        while count:
            event = self.receiver.expect("message", COMES_BACK)
            count -= index_of(event) > before

    @staticmethod
    def homes(client):
        """Return the routers that a client has connected to, in this order."""
        return [event["container"] for event in client.of("opened")]

    def conclude(self):
        """End both, and compare what was sent, told and received."""
        self.sender.kill(signal.SIGTERM)
        self.sender.finish()
        self.receiver.stop()
        sent = [event["index"] for event in self.sender.of("sent")]
        told = {event["index"]: event["outcome"] for event in self.sender.of("outcome")}
        came = Counter(map(index_of, self.receiver.of("message")))
        (end,) = self.sender.of("ended")
        homes = self.homes(self.sender), self.homes(self.receiver)
        print(self.family, Counter(told.values()), f"longest {end['longest']:.3f} s", "at", *homes)
        assert sorted(told) == sent, "each has an outcome"
        assert set(told.values()) <= {"accepted", "released", "unknown"}
        assert max(came.values()) == 1, "none comes twice"
        accepted = {index for index, outcome in told.items() if outcome == "accepted"}
        assert accepted <= set(came), "none is lost"
        assert {index for index in came if told[index] == "released"} == set()
        return end["longest"]


def test_no_message_is_lost_or_modified_and_none_comes_twice(routers, client):
    pairs = [Pair(client, family, [routers[each].url for each in "ABC"]) for family in FAMILIES]
    for pair in pairs:
        pair.flow()
    for each in "BCA":
        router = routers[each]
        began = time.monotonic()
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(DRAIN_TIME) == 0
        print(f"{each} has ended after {time.monotonic() - began:.3f} s")
        assert any("clients moved" in line for line in router.log)
        for pair in pairs:
            pair.flow()
        router.start()
        routers.settled()
        await_that(lambda: routers["A"].reachable() | routers["B"].reachable() >= {"A", "B", "C"}, "it is not back", 60)
    for pair in pairs:
        pair.conclude()
        for each in (pair.sender, pair.receiver):
            assert len(set(pair.homes(each))) > 1, "it has moved"
