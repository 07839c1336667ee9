"""The window of an anonymous sender, divided among what its messages wait for: their addresses, or lanes on the way.

Messages that wait for an address hold the sender's window, here or at another router: so the sender waits, as it does
for the credit of a link's address. While messages for others leave, an address whose receivers take nothing holds
nothing of the window, and one whose receivers are slow a part at most. So those others go on.
"""

from collections.abc import Hashable

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.credit.sinks import FixedCredit, Input

PARTS = 4
"""Of so many parts of a window, an address whose receivers are slow holds one while messages for others leave."""


class Portion:
    """What waits of one sender for one address or lane, and how much of the sender's window that may hold."""

    __slots__ = ("_alive", "_key", "_mark", "in_vain", "most", "waiting")

    def __init__(self, key: Hashable, most: int, left: int) -> None:
        self._key = key
        self.waiting = 0
        """Messages."""
        self.most = most
        """What waits beyond it holds nothing of the window."""
        self.in_vain = False
        """One has waited as long as it may, since one left."""
        self._mark = left  # how many messages of the sender had left when one of these did, or first waited
        self._alive = False  # one has left since they wait, and since then none has waited in vain

    @property
    def excess(self) -> int:
        """How many of them hold nothing of the window."""
        return max(0, self.waiting - self.most)


class SharedWindow(FixedCredit):
    """The window of one anonymous sender.

    A portion may hold all of the window. Once a part of the window's size has left for other addresses and nothing for
    its own, it holds nothing, or that part at most, if something has left for it before. Each message that leaves for
    it before so many have for others lets it hold twice as many.

    Args: window: deliveries granted and waiting. One of less than `PARTS` counts what waits as if it were that large:
        else one address could hold all of it.
    """

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self.capacity = max(window, PARTS)
        self.part = max(1, window // PARTS)
        """Deliveries."""
        self._portions: dict[Hashable, Portion] = {}
        self._waited: dict[Portion, None] = {}  # those that may hold more, by how long others have gone on without them
        self._left = 0  # messages that have left, or went to nobody
        self._excess = 0  # messages that wait and hold nothing

    def held(self, i: Input) -> int:
        """As `FixedCredit.held`: what waits beyond what its address may hold is left out."""
        return i.waiting - self._excess

    def passed(self, i: Input, to: str | None) -> None:
        """A delivery that has not waited has left, or never will. Args: to: its address; None: it is not known.

        Where others for its address wait at another router, it may come to wait behind them.
        """
        if to not in self._portions:
            self._left += 1
            self._pass_by()
        self.forwarded(i, 0.0)

    def has_portion(self, key: Hashable) -> bool:
        """Whether something waits for an address or lane."""
        return key in self._portions

    def is_full(self, key: Hashable, most: int) -> bool:
        """Whether one more message may not wait for an address or lane, because others go on while that takes nothing.

        While it may hold all of the window, that is what bounds them.
        Args: most: messages that may wait then, if that is more than a part of the window; more than such a part may
            not once one has waited in vain.
        """
        portion = self._portions.get(key)
        if portion is None or portion.most == self.capacity or portion.waiting < portion.most:
            return False
        return portion.waiting >= (self.part if portion.in_vain else max(most, self.part))

    def hold(self, i: Input, key: Hashable) -> Portion:
        """A delivery waits for an address or lane. It counts in its input as it did when it came; see `take_back`.

        Args: key: the address, as a text; something else that stands for the lane.
        """
        portion = self._portions.get(key)
        if portion is None:
            portion = self._portions[key] = Portion(key, self.capacity, self._left)
            self._waited[portion] = None
        self._change(portion, portion.waiting + 1, portion.most)
        self._look(i)
        return portion

    def take_back(self, i: Input) -> None:
        """A delivery that has `passed` waits after all: at another router, or since it came back."""
        i.waiting += 1

    def give_up(self, portion: Portion) -> None:
        """A message has waited as long as it may."""
        if portion.most <= self.part:
            portion.in_vain = True
            portion._alive = False
            self._change(portion, portion.waiting, 0)

    def end(self, i: Input, portion: Portion, to: str, *, left: bool) -> None:
        """A delivery waits no more. Args: to: its address. left: it has left; else it never will."""
        if not i.waiting or not portion.waiting:
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
                own._mark += 1  # what leaves by a lane may come to wait for its address: it is none of the others
            portion._alive = True
            portion.in_vain = False
        self._change(portion, portion.waiting - 1, most)
        self._waited.pop(portion, None)
        if not portion.waiting:
            del self._portions[portion._key]
        elif most > self.part:
            self._waited[portion] = None
        self._pass_by()
        self.forwarded(i, 0.0)

    def _pass_by(self) -> None:
        """Others have gone on: those that they have left behind may hold less."""
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
