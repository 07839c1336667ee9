"""Random histories of resuming senders and their receivers at one router, in virtual time.

The model is what each end has done: the messages that a program has sent, what it was told of each, and what receivers
have processed. Links are cut, detached, stolen and resumed, routers and programs crash, time passes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.management.snapshot import snapshot
from tests.support.peers.raw_receiver import RawReceiver
from tests.support.peers.raw_sender import SECOND, RawSender
from tests.support.worlds.hogs import Hog
from tests.support.worlds.network import Network, message
from tests.support.worlds.raw_lines import Line, Lines
from tests.support.worlds.resumption_accounts import check_limits, counts_at_rest

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

Outcome = Accepted | Rejected | Released | Modified

#: Octets of the memory of a router in which there is little room: the least that it can have.
_MEMORY: Final = 2**20

_HEADER: Final = message("").partition(b"\x00Sw")[0]

#: What a step may do, each with a number: which peer, or how long, or which outcome. Frequent ones stand often.
STEPS: Final = (
    *["send", "run", "decide", "decide", "carry frames", "cut or come back"] * 6,
    *["cut in a frame", "steal", "detach", "end"] * 2,
    *["send again", "wait", "crash a program", "crash the router"],
)


#: Steps by which a receiver loses its link.
_LOSSES: Final = ("cut or come back", "cut in a frame", "steal", "detach", "end", "crash a program")


class _How(TypedDict):
    """The terms that a history without faults has, too."""

    lasting: bool
    address: AddressConfig | None
    credit: int
    reliable: bool


class _Sent(NamedTuple):
    """A message that a program has sent."""

    sender: int
    parts: list[bytes]


class _Said(NamedTuple):
    """An outcome that a program has given a message."""

    payload: bytes
    outcome: Outcome


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
        reliable: bool = True,
        room: int | None = None,
        resends: bool = False,
    ) -> None:
        """Args: lasting: receivers ask for resumption, too. address: as the router has it. credit: of each receiver.
        reliable: as of `RawReceiver`. room: octets that another connection of the user leaves of the memory.
        resends: what was `modified` or is in doubt is sent again as another message, at the end at the latest.
        """
        self.limits = limits
        self._how: _How = {"lasting": lasting, "address": address, "credit": credit, "reliable": reliable}
        self._modes = senders_mode, receivers_mode
        self._redelivers = address is not None and address.redeliver
        self._addresses = () if address is None else (address,)
        self._room = room
        self._hog: Hog | None = None
        self.resends = resends
        network = self._router()
        self.lines: list[Line] = []
        for number in range(SENDERS):
            peer = RawSender(f"p{number}", "q", senders_mode, timeout=TIMEOUT, sends_octets=bool(number))
            self.lines.append(Line(peer, network))
        for number in range(RECEIVERS):
            timeout = TIMEOUT if lasting else 0
            receiver = RawReceiver(
                f"c{number}",
                "q",
                receivers_mode,
                credit=credit,
                timeout=timeout,
                decides=False,
                reliable=reliable,
            )
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
        #: All that has happened but faults, in order; numbers are seconds that have passed.
        self._done: list[_Sent | _Said | float] = []
        #: For each message that a program sends again since it cannot know what became of it: the one before.
        self.again: dict[bytes, bytes] = {}
        #: Why the router may say `modified` where no receiver has.
        self.excuses: set[str] = set()
        self._receivers_down_since: dict[Line, float] = {}
        #: What the limits have cost: links that were given up, and messages whose octets were.
        self.costs: Counter[str] = Counter()

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

    @property
    def _gives_up(self) -> bool:
        """The limits may be reached, so that what is kept is given up."""
        return self._room is not None or self.limits != type(self.limits)()

    def _router(self) -> Network:
        if self._room is None:
            return Network(*self._addresses, resumption=self.limits)
        network = Network(*self._addresses, resumption=self.limits, memory=_MEMORY)
        self._hog = Hog(network, 2 * _MEMORY - self._room)
        return network

    def _fill_again(self) -> None:
        """Let another connection hold the memory, if that which held it was closed to free it."""
        if self._hog is not None and self._hog.is_closed:
            self.costs["connections"] += 1
            self._hog.leave()
            self._hog = Hog(self.network, 2 * _MEMORY - (self._room or 0))

    def _count_costs(self) -> None:
        termini = self.network.core.context.termini
        self.costs["links"] += termini.evicted
        self.costs["messages"] += termini.sources.octets.given_up  # type: ignore[attr-defined]

    def _without_faults(self) -> History:
        """Return the same history at another router: the same messages and outcomes, and nothing is ever lost."""
        other = History(*self._modes, self.limits, **self._how)
        outcomes: list[_Said] = []
        for each in self._done:
            if isinstance(each, _Sent):
                other.senders[each.sender].submit(*each.parts)
            elif isinstance(each, _Said):
                outcomes.append(each)
            else:
                other.all.advance(each)
            other.all.run()
            other._say_all(outcomes)
            other.check()
        while open_ones := other._undecided():
            for receiver, taken in open_ones:
                other._say(receiver, taken, Accepted())
            other.all.run()
            other._say_all(outcomes)
        other.all.advance(5.0)
        other.check()
        return other

    def _say_all(self, outcomes: list[_Said]) -> None:
        """Say those outcomes whose messages are here, each once."""
        while found := [
            (receiver, taken, said)
            for receiver, taken in self._undecided()
            for said in outcomes
            if said.payload == _without_count(taken.payload)
        ]:
            receiver, taken, said = found[0]
            outcomes.remove(said)
            self._say(receiver, taken, said.outcome)
            self.all.run()

    # ----------------------------------------------------------------------------------------------------------- steps

    def step(self, name: str, number: int) -> None:
        """Take a step, and check what always holds."""
        self._fill_again()
        # Three of four concern a sender.
        line = self.lines[number % SENDERS if number < 24 else SENDERS + number % RECEIVERS]
        if isinstance(line.peer, RawReceiver):
            self._excuse(name, line.peer)
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
        elif name == "send again":
            self._send_again()
        elif name == "wait":
            self._wait(float(number))
        elif name == "crash a program":
            self._crash_program(line)
        else:
            self._crash_router()
        for each in self.lines:
            if each.peer.is_closed:
                each.cut()
        self._note_what_came()
        self.check()

    def finish(self) -> None:
        """Bring all peers back, have all messages processed, and check that nothing is left."""
        for line in self.lines:
            if not line.is_up:
                line.connect()
        self.all.advance(5.0)  # a stolen link is given up once its old connection has not answered
        self._done.append(5.0)
        self._decide_all()
        while self.resends and self._send_again():
            self.all.run()
            self._decide_all()
        self.check()
        for sender in self.senders:
            for each in sender.messages:
                payload = b"".join(each.parts)
                assert len(each.heard) == 1 or (payload in self.crashed and not each.heard), (payload, each.heard)
                if each.heard == ["doubt"] and payload not in self.forgotten and not self._gives_up:
                    assert self.senders_mode is not SECOND, "the router knows all"
                    assert payload not in self.kept, "the outcome came while the sender was away"
            assert not sender.unsettled
        for receiver in self.receivers:
            assert not receiver.unsettled
        if self._hog is not None:
            self._hog.leave()
        for line in self.lines:
            line.cut_old_ones()
        self.all.advance(5.0)
        self._check_credit()
        self._count_costs()
        self._check_duplicates()
        self._compare(self._without_faults())

    def _compare(self, other: History) -> None:
        """Assert that this router's counts are those of another one, before and after its senders have come anew."""
        worlds = self, other
        ours, theirs = (counts_at_rest(each.network) for each in worlds)
        assert ours == theirs
        for each in worlds:
            each._begin_anew()
        ours, theirs = (
            {**counts_at_rest(each.network), "credit": [sender.credit for sender in each.senders]} for each in worlds
        )
        assert ours == theirs
        for each in worlds:
            each._leave()

    def _begin_anew(self) -> None:
        """Have the senders come back after their time: until then they hold no credit.

        What they hold before that depends on when they were given it: a flow is sent for half a share.
        """
        for line in self.lines[:SENDERS]:
            line.cut()
        self.all.advance(TIMEOUT + 1)
        node = self.network.core.context.nodes.find("", "q")
        assert node is not None
        assert node.pool.granted == 0
        for line in self.lines[:SENDERS]:
            line.connect()
        self.all.advance(5.0)
        self._check_credit()

    def _leave(self) -> None:
        """Lose all peers for good: nothing of them is left once their time is over."""
        for line in self.lines:
            line.cut()
        self.network.advance(TIMEOUT + 1)
        context = self.network.core.context
        assert context.termini.granted == context.termini.suspended_number == context.in_flight == 0
        assert snapshot(self.network.core).is_empty
        assert context.budget.used == context.budget.holders == 0

    def _decide_all(self) -> None:
        while open_ones := self._undecided():
            for receiver, taken in open_ones:
                self._say(receiver, taken, Accepted())
            self.all.run()

    def _send(self, sender: RawSender, frames: int) -> bytes:
        self._sent += 1
        whole = message(f"message {self._sent}")
        size = len(whole) // frames
        parts = [whole[at * size : (at + 1) * size if at + 1 < frames else None] for at in range(frames)]
        sender.submit(*parts)
        self._done.append(_Sent(self.senders.index(sender), parts))
        return whole

    def _send_again(self) -> bool:
        """Have programs send again what they cannot know the end of. Returns: whether there was any."""
        known = set(self.again.values())
        found = [
            (sender, payload)
            for sender in self.senders
            for each in sender.messages
            if each.heard in (["doubt"], ["modified"]) and (payload := b"".join(each.parts)) not in known
        ]
        for sender, payload in found:
            self.again[self._send(sender, 1)] = payload
        return bool(found)

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

    def _say(self, receiver: RawReceiver, taken: Taken, outcome: Outcome) -> None:
        taken.payload = _without_count(taken.payload)
        self.said.setdefault(taken.payload, set()).add(type(outcome).__name__.lower())
        line = next(each for each in self.lines[:SENDERS] if taken.payload in _payloads(each))
        receivers_line = next(each for each in self.lines if each.peer is receiver)
        # What is released is sent again, and is then another delivery.
        is_last = not isinstance(outcome, Released)
        if is_last and line.is_lost and receiver.is_attached and taken.number != -1:
            self._on_the_way[taken.payload] = (line, receivers_line, receiver.connections)
        self._done.append(_Said(taken.payload, outcome))
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
        if not line.has_frame(up=up):
            return
        taken = line.peer.handed if isinstance(line.peer, RawReceiver) else []
        unsaid = [each for each in taken if not each.is_said]
        line.carry(up=up, octets=octets)
        if octets < 1.0:
            for each in unsaid:
                each.is_said = False

    def _crash_program(self, line: Line) -> None:
        line.cut()
        peer = line.peer
        if isinstance(peer, RawSender):
            self.crashed.update(b"".join(each.parts) for each in peer.messages if each.tries)
        assert isinstance(peer, RawSender | RawReceiver)
        line.peer = peer.crash()

    def _excuse(self, name: str, receiver: RawReceiver) -> None:
        """Note that a step may leave the router in doubt about what a receiver has. Args: name: of the step."""
        if name in _LOSSES:
            if not receiver.is_lasting:
                self.excuses.add("the link of a receiver that does not come back has ended")
            elif self._modes[1] is not SECOND:
                self.excuses.add("in mode first a receiver may have settled what its map lacks")
            elif not self._how["reliable"]:
                self.excuses.add("the map of a receiver may lack what it has processed")
        if name == "crash a program":
            self.excuses.add("the program of a receiver has forgotten what it has processed")

    def _wait(self, seconds: float) -> None:
        for line in self.lines[SENDERS:]:
            if line.is_up:
                self._receivers_down_since.pop(line, None)
            else:
                self._receivers_down_since.setdefault(line, self.network.now)
        for line in self.lines[:SENDERS]:
            if line.is_up:
                self._down_since.pop(line, None)
            else:
                self._down_since.setdefault(line, self.network.now)
        self.all.advance(seconds)
        self._done.append(seconds)
        for line, since in self._down_since.items():
            if self.network.now - since >= TIMEOUT:
                self.forgotten.update(_payloads(line))
        if any(self.network.now - since >= TIMEOUT for since in self._receivers_down_since.values()):
            self.excuses.add("a receiver was away for too long")

    def _crash_router(self) -> None:
        self._count_costs()
        network = self._router()
        network.now = self.network.now
        for line in self.lines:
            line.switch_off(network)
        for line in self.lines[:SENDERS]:
            self.forgotten.update(_payloads(line))

    # ------------------------------------------------------------------------------------------------------ invariants

    def check(self) -> None:
        """Assert what holds at any time."""
        processed = Counter(payload for receiver in self.receivers for payload in receiver.processed)
        lost = self.lost_outcomes()
        for sender in self.senders:
            for each in sender.messages:
                payload = b"".join(each.parts)
                said = self.said.get(payload, set())
                # The router sends again what a receiver may have processed only if it was asked to.
                assert processed[payload] <= 1 + (lost[payload] if self._redelivers else 0), "processed twice"
                for word in each.heard:
                    if word in ("accepted", "rejected"):
                        assert word in said, "nobody has said so"
                    if word == "released":
                        assert not processed[payload], "somebody has it"
                    if word == "modified":
                        assert word in said or self.excuses or self._gives_up, "nobody has said so"
        check_limits(self.network, self.limits)

    def lost_outcomes(self) -> Counter[bytes]:
        """Return how often each message was processed without anybody having heard that."""
        return Counter(each.payload for receiver in self.receivers for each in receiver.lost_outcomes)

    def duplicates(self) -> int:
        """Return how often messages were processed beyond once, those included that were sent again as others."""
        processed = Counter(self._first(payload) for receiver in self.receivers for payload in receiver.processed)
        return sum(each - 1 for each in processed.values() if each)

    def processed_unheard(self) -> int:
        """Return the number of messages that were processed, and of which no sender heard that, whichever try."""
        processed = {self._first(payload) for receiver in self.receivers for payload in receiver.processed}
        heard = {
            self._first(b"".join(each.parts))
            for sender in self.senders
            for each in sender.messages
            if "accepted" in each.heard
        }
        return len(processed - heard)

    def _first(self, payload: bytes) -> bytes:
        while payload in self.again:
            payload = self.again[payload]
        return payload

    def _check_duplicates(self) -> None:
        """Assert that nothing was processed again but what was lost on the way, or what nobody could know."""
        lost, processed = self.lost_outcomes(), Counter(each for of in self.receivers for each in of.processed)
        times, allowed, tries = Counter[bytes](), Counter[bytes](), Counter[bytes]()
        for sender in self.senders:
            for each in sender.messages:
                payload = b"".join(each.parts)
                first = self._first(payload)
                is_known = each.heard not in ([], ["doubt"]) and not (payload in self.forgotten or self.costs["links"])
                heard = each.heard.count("accepted")
                times[first] += processed[payload]
                allowed[first] += heard + (lost[payload] if is_known else processed[payload] - heard)
                tries[first] += 1
        assert times == allowed, "what is processed again was lost on the way, or forgotten"
        if not self._redelivers:
            assert all(each <= tries[first] for first, each in times.items())

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
