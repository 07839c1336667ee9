"""A story of a resuming sender, a router or two, and a receiver, with one fault at one frame of it."""

from __future__ import annotations

from typing import Final

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.management.snapshot import snapshot
from tests.support.peers.raw_receiver import RawReceiver
from tests.support.peers.raw_sender import RawSender
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Network, message
from tests.support.worlds.raw_lines import Back, Fault, Kind, Line, Lines

#: Seconds that the sender's link is kept.
TIMEOUT: Final = 30

_LARGE = message("x" * 300)
#: Three small messages, and one of three frames among them.
MESSAGES: Final = (
    (message("0"),),
    (message("1"),),
    (_LARGE[:100], _LARGE[100:200], _LARGE[200:]),
    (message("3"),),
)


class Story:
    """A sender sends some messages, which the receiver processes; of what it decides late, it rejects the second."""

    def __init__(
        self, rcv: ReceiverSettleMode, *, routers: int = 1, lasting: bool = False, late: bool = False, **sender: bool
    ) -> None:
        """Args: lasting: the receiver resumes its link, too. late: it decides what it has after the fault, and all that
        it is handed later once all is quiet; else at once. sender: as of `RawSender`.
        """
        self.rcv = rcv
        self.routers = routers
        self.sender = RawSender("p", "q", rcv, timeout=TIMEOUT, **sender)
        self.receiver = RawReceiver("c", "q", rcv, timeout=TIMEOUT if lasting else 0, decides=not late)
        self.networks = first, last = self._start()
        self.sending = Line(self.sender, first)
        self.receiving = Line(self.receiver, last)
        self.lines = Lines(self.sending, self.receiving)
        for parts in MESSAGES:
            self.sender.submit(*parts)
        #: The sender's program has lost its knowledge. `failed`: the line of the fault.
        self.crashed = False
        self.failed: Line | None = None
        #: The number of the frames before the fault, or until all was quiet.
        self.quiet_at = 0
        #: Messages that were decided between the fault and the end of the absence.
        self.decided_meanwhile: set[int] = set()

    def _start(self) -> tuple[Network, Network]:
        """Start the routers. Returns: those of the sender and the receiver."""
        if self.routers == 1:
            network = Network()
            return network, network
        self.world = World("AB", [("A", "B")])
        return self.world["A"], self.world["B"]

    def tell(self, fault: Fault | None = None) -> bool:
        """Tell the story to its end. Returns: False: it was over before the fault."""
        self.lines.connect()
        failed = self.failed = self.run(fault)
        self.quiet_at = self.lines.carried
        if fault is None:
            self._decide_all()
            return True
        if failed is None:
            return False
        if fault.kind is Kind.ROUTER:
            self._restart_router()
        elif fault.kind is Kind.CLIENT:
            self.crashed = self.crashed or failed is self.sending
            failed.peer = failed.peer.crash()  # type: ignore[attr-defined]  # both have it
            if failed is self.sending:
                self.sender = failed.peer  # type: ignore[assignment]  # it is of the same class
            else:
                self.receiver = failed.peer  # type: ignore[assignment]
        self.decided_meanwhile = self._decide()
        if fault.at & 8:
            self.run()  # the outcomes are there before the sender is back
        if fault.back is Back.LATE:
            self._wait()
        if fault.kind is Kind.ROUTER:
            self.lines.connect()
        else:
            if fault.back is Back.ELSEWHERE:
                failed.network = self.networks[self.networks[0] is failed.network]
            failed.connect()
        self.run()
        self._decide_all()
        if fault.back is Back.ELSEWHERE:  # what it had at the first router is that one's until its time is over
            self._wait()
            self._decide_all()
        return True

    def _wait(self) -> None:
        """Let the time pass that a link is kept."""
        self.run()
        self.advance(TIMEOUT + 1)
        self.run()

    def _decide(self) -> set[int]:
        """Have the receiver decide what it has. Returns: the numbers of these messages."""
        decided = set()
        for taken in [each for each in self.receiver.handed if each.is_whole and each.state is None]:
            number = next(at for at, parts in enumerate(MESSAGES) if b"".join(parts) == taken.payload)
            if self.receiver.unsettled.get(taken.tag) is taken:
                self.receiver.decide(taken, Rejected() if number == 1 else Accepted())
                decided.add(number)
        return decided

    def _decide_all(self) -> None:
        while self._decide():
            self.run()

    def run(self, fault: Fault | None = None) -> Line | None:
        """Carry frames until all is quiet, or the fault happens."""
        failed = self.lines.run(fault)
        while failed is None and self.routers > 1:
            carried = self.lines.carried
            self.advance(0.1)  # routers tell each other about receivers
            failed = self.lines.run(fault)
            if carried == self.lines.carried:
                break
        return failed

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.sending.network.advance(seconds)

    def _restart_router(self) -> None:
        """Kill the routers, and start them anew."""
        self.networks = self._start()
        for line, network in zip(self.lines.lines, self.networks, strict=True):
            line.switch_off(network)

    def check(self, fault: Fault | None) -> None:
        """Assert what holds after any fault, and that nothing is left."""
        processed = [self.receiver.processed.count(b"".join(parts)) for parts in MESSAGES]
        heard = self.sender.heard()
        assert max(processed) <= 1, "processed twice"
        for times, words in zip(processed, heard, strict=True):
            assert len(words) == 1 or (self.crashed and not words), "each is told once"
            if words == ["rejected"]:
                assert times == 0
            if words == ["accepted"]:
                assert times == 1
            if words == ["released"]:
                assert times == 0
        self._check_words(fault, heard)
        if self.rcv is ReceiverSettleMode.SECOND:
            assert not self.sender.unsettled
        assert not self.receiver.unsettled
        assert not self.sender.refusals
        assert not self.receiver.refusals
        if self.routers == 1:
            self._check_credit()
        for line in self.lines.lines:
            line.cut()
        self.advance(TIMEOUT + 1)
        for network in set(self.networks):
            context = network.core.context
            assert context.termini.granted == context.termini.suspended_number == context.in_flight == 0
            if self.routers == 1:
                assert snapshot(network.core).is_empty
        if self.routers > 1:
            self.world.check_ledgers()

    def _check_credit(self) -> None:
        """Assert that nothing of what was lost is counted as credit still, or as a message that waits."""
        node = self.sending.network.core.context.nodes.find("", "q")
        assert node is not None
        assert node.pool.waiting == 0
        assert node.pool.granted == self.sender.credit
        assert 0 < self.sender.credit <= self.receiver.credit

    def _check_words(self, fault: Fault | None, heard: list[list[str]]) -> None:
        is_late = not self.receiver.decides
        outcomes = [["rejected" if is_late and number == 1 else "accepted"] for number in range(len(MESSAGES))]
        is_short = fault is not None and fault.kind in (Kind.CUT, Kind.ONE_WAY) and fault.back is Back.AT_ONCE
        resumes = self.failed is self.sending or self.receiver.is_lasting
        if fault is None or (is_short and resumes and self.rcv is ReceiverSettleMode.SECOND):
            assert heard == outcomes
            return
        other = {"doubt", "modified"}
        if fault.kind in (Kind.CUT, Kind.ONE_WAY):
            other = {"doubt"} if self.failed is self.sending else {"modified"}
        for number, words in enumerate(heard):
            assert words == outcomes[number] or set(words) <= other
            if is_short and self.failed is self.sending and number in self.decided_meanwhile:
                assert words == outcomes[number], "the outcome came while the sender was away"
