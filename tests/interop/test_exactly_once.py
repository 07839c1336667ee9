"""Exactly-once links of our client, with a router, a sender and a receiver that are processes, and paths that fail.

Each message is in an account: what its sender has said and heard, and what receivers have accepted. The first column
of the table of guarantees for a sender that resumes says what must be in it, for each fault.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import pytest

from benchmarks.meshes import Port, await_that, port_of
from tests.interop.conftest import RouterProcess
from tests.support.processes.faulty_path import Strait

pytestmark = pytest.mark.interop

PATIENCE = 60.0  # seconds for what takes two of them on an idle machine
FLOW = 12  # messages between two faults: more than are on their way at a time

CONFIG = """
[router]
id = "A"
drain = 0.2
[resumption]
timeout = 120.0
[[listener]]
url = "amqp://127.0.0.1:{port}"
"""


class Routers:
    """A router that can be killed, and started anew at the same port."""

    def __init__(self, folder):
        self._port = Port()
        self._config = folder / "router.toml"
        self._config.write_text(CONFIG.format(port=self._port.number))
        self.start()

    def start(self):
        self.running = RouterProcess(self._config, 1)
        self.port = port_of(self.running.url)

    def kill(self):
        self.running.process.kill()
        self.running.process.wait()

    def end(self):
        try:
            self.running.stop()
        finally:
            self._port.close()


class Scene:
    """A router, a sender and a receiver, each link over a path of its own, and the account of all messages."""

    def __init__(self, routers, program):
        self.routers = routers
        self._program = program
        self.sending, self.receiving = Strait(routers.port), Strait(routers.port)
        self.senders, self.receivers = [], []
        self._next = 0
        self.receive()
        self.receivers[0].expect("attached")

    def end(self):
        for each in (self.sending, self.receiving):
            each.end()

    def send(self):
        """Start a sender. Another one was killed, or has ended."""
        url = f"amqp://127.0.0.1:{self.sending.port}"
        new = self._program("amqpmesh_once", "--url", url, "--id", "sender", "--first", str(self._next))
        self._next += 1_000_000
        self.senders.append(new)
        self.flow()

    def receive(self):
        url = f"amqp://127.0.0.1:{self.receiving.port}"
        self.receivers.append(self._program("amqpmesh_once", "--url", url, "--id", "receiver", "--receive"))

    def flow(self, count=FLOW):
        """Wait until the sender has heard of so many more."""
        sender = self.senders[-1]
        sender.catch_up()
        wanted = len(sender.of("outcome")) + count
        deadline = time.monotonic() + PATIENCE
        while len(sender.of("outcome")) < wanted:
            assert time.monotonic() < deadline, "no outcome came for a long time"
            assert sender.process.poll() is None, "the sender has ended"
            time.sleep(0.01)
            sender.catch_up()

    def conclude(self):
        """End the sender, once it has heard of all that it has sent. Returns: how often it has connected again."""
        sender = self.senders[-1]
        sender.kill(signal.SIGTERM)
        (end,) = (each for each in sender.finish() if each["event"] == "ended")
        return end["reconnections"]

    def _came(self):
        """Return how often each message has been accepted, as far as receivers have said."""
        for receiver in self.receivers:
            receiver.catch_up()
        return Counter(each["index"] for receiver in self.receivers for each in receiver.of("message"))

    def _sent(self):
        """Return the messages that senders have said to send."""
        for sender in self.senders:
            sender.catch_up()
        return {each["index"] for sender in self.senders for each in sender.of("sent")}

    def account(self, *, dead=(), allowed=frozenset({"accepted", "released"})):
        """Compare what was said, heard and accepted. Args: dead: senders that were killed. Returns: outcomes heard."""
        outcomes = {sender: sender.of("outcome") for sender in self.senders}
        accepted = {each["index"] for told in outcomes.values() for each in told if each["outcome"] == "accepted"}
        await_that(lambda: accepted <= self._came().keys(), "none is lost", PATIENCE)  # its line may be on its way
        came = self._came()
        await_that(lambda: came.keys() <= self._sent(), "none comes that was not sent", PATIENCE)
        assert max(came.values()) == 1, "none is accepted twice"
        heard = Counter()
        for sender, told in outcomes.items():
            said = Counter(each["index"] for each in sender.of("sent"))
            assert sender in dead or said == Counter(each["index"] for each in told), "each has one outcome"
            for each in told:
                heard[each["outcome"]] += 1
                if each["outcome"] == "released":
                    assert each["index"] not in came, "nobody has it"
        assert set(heard) <= allowed, heard
        return heard


@pytest.fixture
def scene(tmp_path, program):
    routers = Routers(tmp_path)
    scene = Scene(routers, program)
    yield scene
    scene.end()
    for each in (*scene.senders, *scene.receivers):
        each.end()
    routers.end()


def test_each_fault_has_the_consequences_that_are_promised(scene):
    sending, receiving = scene.sending, scene.receiving
    scene.send()
    for path in (sending, receiving, sending, receiving):
        path.cut()
        scene.flow()
    sending.cut()
    receiving.cut()
    scene.flow()
    receiving.cut(lasting=True)
    sending.cut(lasting=True)
    receiving.mend()
    sending.mend()
    scene.flow()
    # Half of each path: the sender hears no outcomes, and the receiver's are not heard. Then both stand still.
    sending.strand(up=False)
    receiving.strand(down=False)
    scene.flow()
    sending.strand()
    receiving.strand()
    scene.flow()
    assert scene.conclude() >= 6
    heard = scene.account()
    assert heard["accepted"] > FLOW

    # Nobody knows what the killed sender had on its way; what comes behind it is not concerned.
    scene.send()
    killed = scene.senders[-1]
    killed.stop()
    scene.send()
    scene.account(dead=[killed, scene.senders[-1]])

    # What the killed receiver had not accepted, as far as the router has heard, is in doubt, and comes to nobody.
    scene.receivers[-1].stop()
    scene.receive()
    scene.flow()
    scene.account(dead=[killed, scene.senders[-1]], allowed={"accepted", "released", "modified"})

    # A router that was killed knows nothing: what was on its way is in doubt, at both ends.
    scene.routers.kill()
    scene.routers.start()
    scene.flow()
    scene.flow()
    scene.conclude()
    heard = scene.account(dead=[killed], allowed={"accepted", "released", "modified", "unknown"})
    assert heard["unknown"] + heard["modified"] <= 3 * 8, "only what was on its way is in doubt"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 3))
def test_long_histories_of_cuts_lose_nothing_and_double_nothing(scene, seed):
    chance = random.Random(seed)
    scene.send()
    for _ in range(60):
        for path in chance.choice([(scene.sending,), (scene.receiving,), (scene.sending, scene.receiving)]):
            fault = chance.random()
            if fault < 0.9:
                path.cut()
            else:
                path.strand(up=chance.random() < 0.7, down=chance.random() < 0.7)
        scene.flow(chance.choice([1, 3, FLOW]))
    scene.conclude()
    scene.account()
