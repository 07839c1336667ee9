"""Random histories of resuming senders and their receivers at one router, in virtual time.

The model is what each end has done: the messages that a program has sent, what it was told of each, and what receivers
have processed. Links are cut, detached, stolen and resumed, routers and programs crash, time passes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.management.snapshot import snapshot
from tests.support.peers.raw_receiver import RawReceiver
from tests.support.peers.raw_sender import SECOND, RawSender
from tests.support.worlds.network import Network, message
from tests.support.worlds.raw_lines import Line, Lines

if TYPE_CHECKING:
    from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
    from amqpmesh.router.config.address import AddressConfig
    from amqpmesh.router.config.resumption import ResumptionConfig
    from tests.support.peers.raw_receiver import Taken

#: Seconds that a link is kept.
TIMEOUT: Final = 30

SENDERS: Final = 2
RECEIVERS: Final = 2

_OUTCOMES: Final = (Accepted(), Rejected(), Released(), Modified(delivery_failed=True))

_HEADER: Final = message("").partition(b"\x00Sw")[0]

#: What a step may do, each with a number: which peer, or how long, or which outcome. Frequent ones stand often.
STEPS: Final = (
    *["send", "run", "decide", "decide", "carry frames", "cut or come back"] * 6,
    *["cut in a frame", "steal", "detach", "end"] * 2,
    *["wait", "crash a program", "crash the router"],
)


class History:
    """A router, its peers, and what has happened so far."""

    def __init__(
        self,
        senders_mode: ReceiverSettleMode,
        receivers_mode: ReceiverSettleMode,
        limits: ResumptionConfig,
        *,
        lasting: bool,
        address: AddressConfig | None = None,
        credit: int = 4,
    ) -> None:
        """Args: lasting: receivers ask for resumption, too. address: as the router has it. credit: of each receiver."""
        self.limits = limits
        self._addresses = () if address is None else (address,)
        network = Network(*self._addresses, resumption=limits)
        self.lines: list[Line] = []
        for number in range(SENDERS):
            peer = RawSender(f"p{number}", "q", senders_mode, timeout=TIMEOUT, sends_octets=bool(number))
            self.lines.append(Line(peer, network))
        for number in range(RECEIVERS):
            timeout = TIMEOUT if lasting else 0
            receiver = RawReceiver(f"c{number}", "q", receivers_mode, credit=credit, timeout=timeout, decides=False)
            self.lines.append(Line(receiver, network))
        self.all = Lines(*self.lines)
        self.all.connect()
        self.all.run()
        self._sent = 0
        #: What programs have said of a message, and how often each was processed, by its payload.
        self.said: dict[bytes, set[str]] = {}
        self.crashed: set[bytes] = set()
        self.senders_mode = senders_mode
        #: Messages that a router may have forgotten: it has crashed, or the link has lapsed.
        self.forgotten: set[bytes] = set()
        #: Messages whose outcomes came while their sender was away, so that no frame with one can be lost.
        self.kept: set[bytes] = set()
        #: Those whose outcomes are on their way to the router: the sender's line, the receiver's, and its connection.
        self._on_the_way: dict[bytes, tuple[Line, Line, int]] = {}
        self._down_since: dict[Line, float] = {}

    @property
    def network(self) -> Network:
        """The router."""
        return self.lines[0].network

    @property
    def senders(self) -> list[RawSender]:
        """The sending peers."""
        return [each.peer for each in self.lines if isinstance(each.peer, RawSender)]

    @property
    def receivers(self) -> list[RawReceiver]:
        """The receiving peers."""
        return [each.peer for each in self.lines if isinstance(each.peer, RawReceiver)]

    # ----------------------------------------------------------------------------------------------------------- steps

    def step(self, name: str, number: int) -> None:
        """Take a step, and check what always holds."""
        # Three of four concern a sender.
        line = self.lines[number % SENDERS if number < 24 else SENDERS + number % RECEIVERS]
        if name == "send":
            self._send(self.senders[number % SENDERS], 1 if number % 3 else 3)
        elif name == "decide":
            self._decide(number)
        elif name == "run":
            self.all.run()
        elif name == "carry frames":
            for _ in range(1 + number // 8):
                self._carry(line, up=bool(number & 4))
        elif name == "cut or come back":
            (line.cut if line.is_up else line.connect)()
        elif name == "cut in a frame":
            self._carry(line, up=bool(number & 4), octets=0.5)
            line.cut()
        elif name == "steal":
            line.steal()
        elif name == "detach":
            if line.peer.is_lasting:
                line.peer.detach()
        elif name == "end":
            line.peer.end()
        elif name == "wait":
            self._wait(float(number))
        elif name == "crash a program":
            self._crash_program(line)
        else:
            self._crash_router()
        self._note_what_came()
        self.check()

    def finish(self) -> None:
        """Bring all peers back, have all messages processed, and check that nothing is left."""
        for line in self.lines:
            if not line.is_up:
                line.connect()
        self.all.advance(5.0)  # a stolen link is given up once its old connection has not answered
        while open_ones := self._undecided():
            for receiver, taken in open_ones:
                self._say(receiver, taken, Accepted())
            self.all.run()
        self.check()
        for sender in self.senders:
            for each in sender.messages:
                payload = b"".join(each.parts)
                assert len(each.heard) == 1 or (payload in self.crashed and not each.heard), (payload, each.heard)
                if each.heard == ["doubt"] and payload not in self.forgotten and self.limits == type(self.limits)():
                    assert self.senders_mode is not SECOND, "the router knows all"
                    assert payload not in self.kept, "the outcome came while the sender was away"
            assert not sender.unsettled
        for receiver in self.receivers:
            assert not receiver.unsettled
        self.all.advance(5.0)
        self._check_credit()
        for line in self.lines:
            line.cut()
        self.network.advance(TIMEOUT + 1)
        context = self.network.core.context
        assert context.termini.granted == context.termini.suspended_number == context.in_flight == 0
        assert snapshot(self.network.core).is_empty

    def _send(self, sender: RawSender, frames: int) -> None:
        self._sent += 1
        whole = message(f"message {self._sent}")
        size = len(whole) // frames
        sender.submit(*(whole[at * size : (at + 1) * size if at + 1 < frames else None] for at in range(frames)))

    def _undecided(self) -> list[tuple[RawReceiver, Taken]]:
        return [
            (receiver, taken)
            for receiver in self.receivers
            for taken in receiver.unsettled.values()
            if taken.is_whole and taken.state is None
        ]

    def _decide(self, number: int) -> None:
        open_ones = self._undecided()
        if open_ones:
            receiver, taken = open_ones[number % len(open_ones)]
            self._say(receiver, taken, _OUTCOMES[number // 4 % len(_OUTCOMES)])

    def _say(self, receiver: RawReceiver, taken: Taken, outcome: Accepted | Rejected | Released | Modified) -> None:
        taken.payload = _without_count(taken.payload)
        self.said.setdefault(taken.payload, set()).add(type(outcome).__name__.lower())
        line = next(each for each in self.lines[:SENDERS] if taken.payload in _payloads(each))
        receivers_line = next(each for each in self.lines if each.peer is receiver)
        # What is released is sent again, and is then another delivery.
        is_last = not isinstance(outcome, Released)
        if is_last and line.is_lost and receiver.is_attached and taken.number != -1:
            self._on_the_way[taken.payload] = (line, receivers_line, receiver.connections)
        receiver.decide(taken, outcome)

    def _note_what_came(self) -> None:
        """Note which outcomes have come to the router while their senders were away.

        What a receiver says while it is away itself comes once it is back: perhaps after the sender.
        """
        for payload, (line, receivers_line, connection) in tuple(self._on_the_way.items()):
            if not (line.is_lost and receivers_line.is_up and receivers_line.peer.connections == connection):
                del self._on_the_way[payload]
            elif not receivers_line.peer.has_output:
                del self._on_the_way[payload]
                self.kept.add(payload)

    @staticmethod
    def _carry(line: Line, *, up: bool, octets: float = 1.0) -> None:
        if line.has_frame(up=up):
            line.carry(up=up, octets=octets)

    def _crash_program(self, line: Line) -> None:
        line.cut()
        peer = line.peer
        if isinstance(peer, RawSender):
            self.crashed.update(b"".join(each.parts) for each in peer.messages if each.tries)
        assert isinstance(peer, RawSender | RawReceiver)
        line.peer = peer.crash()

    def _wait(self, seconds: float) -> None:
        for line in self.lines[:SENDERS]:
            if line.is_up:
                self._down_since.pop(line, None)
            else:
                self._down_since.setdefault(line, self.network.now)
        self.all.advance(seconds)
        for line, since in self._down_since.items():
            if self.network.now - since >= TIMEOUT:
                self.forgotten.update(_payloads(line))

    def _crash_router(self) -> None:
        network = Network(*self._addresses, resumption=self.limits)
        network.now = self.network.now
        for line in self.lines:
            line.switch_off(network)
        for line in self.lines[:SENDERS]:
            self.forgotten.update(_payloads(line))

    # ------------------------------------------------------------------------------------------------------ invariants

    def check(self) -> None:
        """Assert what holds at any time."""
        processed = Counter(payload for receiver in self.receivers for payload in receiver.processed)
        for sender in self.senders:
            for each in sender.messages:
                payload = b"".join(each.parts)
                said = self.said.get(payload, set())
                assert processed[payload] <= 1, "processed twice"
                for word in each.heard:
                    if word in ("accepted", "rejected"):
                        assert word in said, "nobody has said so"
                    if word == "released":
                        assert not processed[payload], "somebody has it"
        termini = self.network.core.context.termini
        assert termini.granted <= self.limits.links
        kept = sum(each.unsettled for each in termini._suspended.values())  # type: ignore[attr-defined]
        assert kept <= self.limits.unsettled

    def _check_credit(self) -> None:
        node = self.network.core.context.nodes.find("", "q")
        assert node is not None
        assert node.pool.waiting == 0
        assert all(not each.awaiting_settlement for each in node.incoming)
        assert node.pool.granted == sum(each.credit for each in self.senders)


def _without_count(payload: bytes) -> bytes:
    """Return a message as it was sent: a router counts in the header how often it has sent it in vain."""
    return _HEADER + payload[payload.index(b"\x00Sw") :]


def _payloads(line: Line) -> list[bytes]:
    """Return the messages of a sender."""
    assert isinstance(line.peer, RawSender)
    return [b"".join(each.parts) for each in line.peer.messages]
