"""The window of an anonymous sender, divided among the addresses and lanes that its messages wait for.

A message that waits for its address, here or at another router, uses up part of the sender's window. So the sender
waits for slow receivers, as it would for the credit of a link with an address. One slow address must not stop the
others, though. While messages for other addresses leave, an address whose receivers take nothing uses up none of the
window, and one whose receivers are slow a part of it at most.
"""

from collections.abc import Hashable, Mapping

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.kernel import CreditSink

PARTS = 4
"""The number of parts of a window. An address with slow receivers holds one while messages for others leave."""


class Portion:
    """One sender's waiting messages for one address or lane, and the part of the window that they may hold."""

    __slots__ = ("_alive", "_key", "_mark", "in_vain", "most", "waiting")

    def __init__(self, key: Hashable, most: int, left: int) -> None:
        self._key = key
        self.waiting = 0
        """Messages."""
        self.most = most
        """Waiting messages beyond this number use up none of the window."""
        self.in_vain = False
        """A message has waited as long as it may, and none has left since."""
        self._mark = left  # the sender's count of left messages when one of these last left, or first waited
        self._alive = False  # one has left since they wait, and none has waited in vain since then

    @property
    def excess(self) -> int:
        """Return how many of the messages use up none of the window."""
        return max(0, self.waiting - self.most)


class SharedWindow(FixedCredit):
    """The window of one anonymous sender, shared by the addresses and lanes of its messages (`Portion`).

    At first, the messages for one address may use up the whole window. The limit of an address falls when messages
    for other addresses overtake it: once as many of them as one part of the window have left, and none of its own. The
    limit is then one part of the window, or nothing if no message for the address has ever left. It doubles with each
    message for the address that leaves before so many others.

    Args: window: deliveries granted and waiting. A window below `PARTS` counts waiting messages as if it were that
        large, or one address could hold all of it.
    """

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self.capacity = max(window, PARTS)
        self.part = max(1, window // PARTS)
        """Deliveries."""
        self._portions: dict[Hashable, Portion] = {}
        self._waited: dict[Portion, None] = {}  # those that may hold more, the longest overtaken first
        self._left = 0  # messages that have left, or had no receiver
        self._excess = 0  # messages that wait and use up nothing

    def held(self, sink: CreditSink) -> int:
        """Return the number of waiting deliveries that use up the window: of each address, no more than it may hold."""
        return sink.waiting - self._excess

    def passed(self, sink: CreditSink, to: str | None) -> None:
        """Record that a delivery which has not waited has left, or never will. Args: to: its address; None: unknown.

        If messages for its address wait at another router, this one may have to wait behind them, so it does not count
        as one that has left.
        """
        if to not in self._portions:
            self._left += 1
            self._pass_by()
        self.forwarded(sink, 0.0)

    def relayed(self, sink: CreditSink, count: int, now: float) -> None:
        """Record deliveries that came and left at once, for addresses without a portion."""
        self._left += count
        self._pass_by()
        super().relayed(sink, count, now)

    def credit_slack(self, sink: CreditSink) -> int:
        """Return the slack of a sink, before which no portion is limited either: that gives the sink more credit."""
        slack = super().credit_slack(sink)
        for portion in self._waited:  # the first of them is limited first
            return min(slack, max(0, self.part - (self._left - portion._mark) - 1))
        return slack

    @property
    def portions(self) -> Mapping[Hashable, Portion]:
        """Return the portions by their addresses and lanes, as they are at any time."""
        return self._portions

    def has_portion(self, key: Hashable) -> bool:
        """Return True if a message waits for an address or lane."""
        return key in self._portions

    def is_full(self, key: Hashable, most: int) -> bool:
        """Return True if no further message may wait for an address or lane, since it takes too few while others leave.

        While an address may use the whole window, it has no limit of its own.
        Args: most: messages that may wait at the limit; one part of the window, if that is more. Once a message has
            waited in vain, the limit is one part.
        """
        portion = self._portions.get(key)
        if portion is None or portion.most == self.capacity or portion.waiting < portion.most:
            return False
        return portion.waiting >= (self.part if portion.in_vain else max(most, self.part))

    def hold(self, sink: CreditSink, key: Hashable) -> Portion:
        """Record that a delivery waits for an address or lane. It still counts in its sink; see `take_back`.

        Args: key: the address, a str; or an object that stands for the lane.
        """
        portion = self._portions.get(key)
        if portion is None:
            portion = self._portions[key] = Portion(key, self.capacity, self._left)
            self._waited[portion] = None
        self._change(portion, portion.waiting + 1, portion.most)
        self._note_low(sink)
        return portion

    def take_back(self, sink: CreditSink) -> None:
        """Record that a delivery that has `passed` waits after all: at another router, or because it came back."""
        sink.waiting += 1

    def give_up(self, portion: Portion) -> None:
        """Record that a message has waited as long as it may."""
        if portion.most <= self.part:
            portion.in_vain = True
            portion._alive = False
            self._change(portion, portion.waiting, 0)

    def end(self, sink: CreditSink, portion: Portion, to: str, *, left: bool) -> None:
        """End the wait of a delivery. Args: to: its address. left: it has left; otherwise it never will."""
        if not sink.waiting or not portion.waiting:
            raise CommandError("end: no delivery of this portion waits")
        most = portion.most
        if left:
            self._left += 1
            others = self._left - portion._mark - 1
            most = max(most, self.part)
            if others < self.part:
                most = min(self.capacity, 2 * most)
            portion._mark = self._left
            own = self._portions.get(to)
            if own is not None and own is not portion:
                own._mark += 1  # a message that leaves by a lane may still wait for its address
            portion._alive = True
            portion.in_vain = False
        self._change(portion, portion.waiting - 1, most)
        self._waited.pop(portion, None)
        if not portion.waiting:
            del self._portions[portion._key]
        elif most > self.part:
            self._waited[portion] = None
        self._pass_by()
        self.forwarded(sink, 0.0)

    def _pass_by(self) -> None:
        """Limit the portions that messages for other addresses have overtaken."""
        while self._waited:
            portion = next(iter(self._waited))
            if self._left - portion._mark < self.part:
                return
            del self._waited[portion]
            self._change(portion, portion.waiting, self.part if portion._alive else 0)

    def _change(self, portion: Portion, waiting: int, most: int) -> None:
        self._excess -= portion.excess
        portion.waiting, portion.most = waiting, most
        self._excess += portion.excess
