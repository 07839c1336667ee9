"""Histories of intruders and bystanders as lines of text: generated, kept in the corpus, and replayed.

A line is a word and its arguments. `0 00000008...`: intruder 0 sends these octets; it connects with its first line.
`0 gone`: its stream ends. `exchange`: the bystanders exchange a message. `feed`: the partner sends a message to the
receivers of "feed". `settle accepted`: the partner settles its oldest delivery with this outcome. `grant 3`: the
partner's receiver grants this credit. `stop`, `go`: the partner stops reading, or goes on. `advance 2.5`: this many
seconds pass.
"""

from __future__ import annotations

from time import process_time

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.performatives import Close, decode_performative
from amqpmesh.router.config.file import AddressConfig, Overflow
from amqpmesh.router.kernel import FrameReader
from tests.support.peers.bystanders import Bystanders, Intruder
from tests.support.worlds.network import OUTCOMES

ADDRESSES = (
    AddressConfig(pattern="all", distribution=Distribution.MULTICAST, overflow=Overflow.DROP),
    AddressConfig(pattern="again", redeliver=True, attempts=2, dead_letter="own"),
    AddressConfig(pattern="few", max_unsettled=2, max_credit=3, distribution=Distribution.CLOSEST),
)

#: The most CPU seconds for one line, far more than any line takes.
MAX_TIME = 2.0


class Listening:
    """An intruder that checks the frames of the router."""

    def __init__(self, bystanders: Bystanders) -> None:
        self.intruder = Intruder(bystanders.network)
        self.is_gone = False
        #: The octets of the router since the last look.
        self.said = bytearray()
        self._reader = FrameReader(2**32 - 1)
        self._is_open = False
        self._is_closed = False

    @property
    def limit(self) -> int:
        """Octets of the largest frame that the intruder takes, as the router knows it."""
        remote = self.intruder.record.engine.remote
        return 512 if remote is None else remote.max_frame_size

    def hear(self) -> None:
        """Read the output of the router. Raises: AssertionError, ProtocolError: it is illegal."""
        if self.is_gone:
            return
        data = self.intruder.take()
        assert not (self._is_closed and data), "a close is the last thing that is sent"
        self.said += data
        self._reader.feed(data)
        while self._hear_one():
            pass
        if self.intruder.is_finished:
            self.leave()

    def _hear_one(self) -> bool:
        if not self._is_open:
            header = self._reader.next_header()
            if header is None:
                return False
            assert header.startswith(b"AMQP")
            self._is_open = True
        frame = self._reader.next_frame()
        if frame is None:
            return False
        assert len(frame.body) + 8 <= self.limit, "larger than the intruder takes"
        if frame.type == 0 and frame.body:
            assert not self._is_closed
            performative, _ = decode_performative(frame.body)
            self._is_closed = isinstance(performative, Close)
        return True

    def leave(self) -> None:
        """End the stream."""
        if not self.is_gone:
            self.is_gone = True
            self.intruder.leave()


class History:
    """A router with bystanders and intruders, and the lines of their actions."""

    def __init__(self) -> None:
        self.bystanders = Bystanders(*ADDRESSES)
        self.intruders: dict[str, Listening] = {}
        self.lines: list[str] = []

    @property
    def now(self) -> float:
        """The virtual time, seconds."""
        return self.bystanders.network.now

    def do(self, line: str) -> None:
        """Carry out a line. Raises: AssertionError, or any exception of the router: a fault was found."""
        self.lines.append(line)
        began = process_time()
        word, _, rest = line.partition(" ")
        if word.isdigit():
            self._intrude(word, rest)
        else:
            self._others(word, rest)
        for each in self.intruders.values():
            each.hear()
        assert process_time() - began < MAX_TIME, "a line takes a millisecond or so"

    def end(self) -> None:
        """End all connections, and check that nothing is left."""
        bystanders = self.bystanders
        bystanders.partner.stopped = False
        bystanders.network.run()
        bystanders.exchange()
        for each in self.intruders.values():
            each.leave()
        bystanders.exchange()
        bystanders.leave()

    def _intrude(self, who: str, what: str) -> None:
        if who not in self.intruders:
            self.intruders[who] = Listening(self.bystanders)
        listening = self.intruders[who]
        if what == "gone":
            listening.leave()
        elif not listening.is_gone:
            listening.intruder.give(bytes.fromhex(what))

    def _others(self, word: str, rest: str) -> None:
        bystanders = self.bystanders
        partner, network = bystanders.partner, bystanders.network
        if word == "exchange":
            bystanders.exchange()
        elif word == "feed":
            feeder = bystanders.feeder
            if feeder.is_attached and feeder.credit and not partner.stopped:
                bystanders.feed()
        elif word == "settle":
            arrivals = [each for each in partner.take() if not each.delivery.settled]
            if arrivals:
                arrivals[0].dispose(OUTCOMES[rest], settled=True)
                partner.arrivals = arrivals[1:] + partner.arrivals
        elif word == "grant":
            if bystanders.taker.is_attached:
                bystanders.taker.flow(int(rest))
        elif word in ("stop", "go"):
            partner.stopped = word == "stop"
        else:
            assert word == "advance", word
            network.advance(float(rest))
        network.run()
