"""A router of a mesh that is upgraded in place, under load of clients that connect again to the same port."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest

from amqpmesh.router.amqp.frames import protocol_header
from amqpmesh.topology.workers import without_number
from benchmarks.meshes import await_that, mesh, port_of
from tests.interop.test_rolling_restart import Pair

pytestmark = pytest.mark.interop

FAMILIES = ("proton", "rhea", "amqpmesh")
HEADER = protocol_header(0)
END_TIME = 60.0  # seconds for two moves of the clients, on a busy machine


@pytest.fixture(params=[(), ("--workers", "2")], ids=["alone", "workers"])
def routers(authority, request):
    """Start a mesh of two routers: B connects to A, which is upgraded."""

    def settings(router):
        files = f'certificate = "{router}.pem"\nkey = "{router}.key"\ntrust = "mesh-ca.pem"\n'
        return "drain_timeout = 20.0\n[mesh]\n" + files.replace(' = "', f' = "{authority}/')

    with mesh(settings) as made:
        made.add("A").arguments = request.param
        made.add("B", (made["A"].mesh_url, 1))
        made.start()
        await_that(lambda: names(made["B"].reachable()) == {"A"}, "B has no neighbour")
        try:
            yield made
        finally:
            for pid in successors(made["A"]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            made.end()
            log = "\n".join(f"{each.id}: {line}" for each in made.routers.values() for line in each.log)
            print(log)
    assert "Traceback" not in log
    assert not [line for line in log.splitlines() if " ERROR " in line]


def successors(router):
    """Return the process ids of the successors so far."""
    return [int(each) for each in re.findall(r"successor ready pid=(\d+)", "\n".join(router.log))]


def names(ids):
    """Return the names of routers that have these ids, or whose workers have them."""
    return set(map(without_number, ids))


class Knocking:
    """A client that connects all the time, and leaves."""

    def __init__(self, url):
        self.answered = 0
        self.refused = []
        self._port = port_of(url)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._is_over.wait(0.002):
            try:
                with socket.create_connection(("127.0.0.1", self._port), END_TIME) as connected:
                    connected.sendall(HEADER)
                    assert connected.recv(8) == HEADER
                    self.answered += 1
            except (OSError, AssertionError) as error:
                self.refused.append(repr(error))

    def end(self):
        self._is_over.set()
        self._thread.join()


class Across(Pair):
    """A sender and a receiver of one address, each at a router of its own."""

    def __init__(self, client, family, sending, receiving):
        self.family = family

        def urls(url):
            return [url] if family == "rhea" else ["--urls", url]

        common = ["--address", f"{family}-{port_of(sending)}-{port_of(receiving)}"]
        self.receiver = client(f"{family}_roam", receiving, *urls(receiving), *common, "--receive")
        self.sender = client(f"{family}_roam", sending, *urls(sending), *common)


def test_no_connection_is_refused_and_no_message_is_lost_or_modified_and_none_comes_twice(routers, client):
    a, b = routers["A"], routers["B"]
    pairs = [Across(client, family, a.url, a.url) for family in FAMILIES]
    pairs += [Across(client, "amqpmesh", b.url, a.url), Across(client, "proton", a.url, b.url)]
    for pair in pairs:
        pair.flow()
    knocking = Knocking(a.url)
    began = time.monotonic()
    a.process.send_signal(signal.SIGUSR2)
    await_that(lambda: len(successors(a)) == 2, "there is no second successor", END_TIME)
    await_that(lambda: taken_over(a) == 2, "the second successor is not alone", END_TIME)
    print(f"upgraded after {time.monotonic() - began:.1f} s")
    assert a.process.wait(END_TIME) == 0
    await_that(lambda: names(b.reachable()) == {"A"}, "B has another picture", END_TIME)
    for pair in pairs:
        pair.flow()
    knocking.end()
    assert knocking.refused == []
    assert knocking.answered > 100
    (router,) = a.entities()["router"]
    assert names([router["id"]]) == {"A"}
    for pair in pairs:
        pair.conclude()
        for each in (pair.sender, pair.receiver):
            homes = pair.homes(each)
            assert names(homes[-1:]) <= {"A", "B"}
            assert len(homes) > 1 or names(homes) == {"B"}, "those at A have moved"


def taken_over(router):
    """Return how many processes have taken the router over, and are alone."""
    return sum("router taken over" in line for line in router.log)
