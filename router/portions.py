"""The window of an anonymous sender, divided among the addresses that it sends to.

Messages that wait for an address hold the sender's window, here or at another router: so the sender waits, as it does
for the credit of a link's address. An address whose receivers take nothing while messages for others leave holds a part
of the window and no more; that of one such address is counted beyond the window, so those others go on as before.
"""

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.windows import FixedWindow, Input

PARTS = 4
"""Of so many parts of a window, an address that takes nothing holds one while messages for others leave."""


class Portion:
    """What waits of one sender for one address, and how much of the sender's window that may hold."""

    __slots__ = ("_mark", "in_vain", "most", "to", "waiting")

    def __init__(self, to: str, most: int, left: int) -> None:
        self.to = to
        self.waiting = 0
        """Messages."""
        self.most = most
        """What waits beyond it holds nothing of the window."""
        self.in_vain = False
        """One has waited as long as it may, since one left."""
        self._mark = left  # how many messages of the sender had left when one for this address did

    @property
    def held(self) -> int:
        """How much of the window they hold."""
        return min(self.waiting, self.most)


class SharedWindow(FixedWindow):
    """The window of one anonymous sender.

    A portion may hold all of the window. Once a part of the window's size has left for other addresses and nothing for
    its own, it may hold that part, and one message once one has waited in vain. Each message that leaves for it before
    as many have for others lets it hold one more.

    Args: window: deliveries granted and waiting. One of less than `PARTS` counts what waits as if it were that large:
        else one address could hold all of it.
    """

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self.capacity = max(window, PARTS)
        self.part = max(1, window // PARTS)
        """Deliveries."""
        self._portions: dict[str, Portion] = {}
        self._waited: dict[Portion, None] = {}  # those that may hold more, by how long others have gone on without them
        self._left = 0  # messages that have left, or went to nobody
        self._excess = 0  # messages that wait and hold nothing
        self._aside = 0  # what is held by portions that may hold a part at most

    def held(self, i: Input) -> int:
        """As `FixedWindow.held`: what an address holds beyond its part is left out, and one such part."""
        return i.waiting - self._excess - min(self.part, self._aside)

    def passed(self, i: Input, to: str | None) -> None:
        """A delivery that has not waited has left, or never will. Args: to: its address; None: it is not known.

        Where others for its address wait at another router, it may come to wait behind them.
        """
        if to not in self._portions:
            self._left += 1
            self._pass_by()
        self.forwarded(i, 0.0)

    def has_portion(self, to: str) -> bool:
        """Whether something waits for an address."""
        return to in self._portions

    def is_full(self, to: str, most: int) -> bool:
        """Whether one more message for an address may not wait, because others go on while it takes nothing.

        Args: most: messages that may wait then, if that is more than a part of the window; more than such a part may
            not once one has waited in vain.
        """
        portion = self._portions.get(to)
        if portion is None or portion.most > self.part:
            return False
        return portion.waiting >= (self.part if portion.in_vain else max(most, self.part))

    def hold(self, i: Input, to: str) -> Portion:
        """A delivery waits for an address. It counts in its input as it did when it came; see `take_back`."""
        portion = self._portions.get(to)
        if portion is None:
            portion = self._portions[to] = Portion(to, self.capacity, self._left)
            self._waited[portion] = None
        self._change(portion, portion.waiting + 1, portion.most)
        self._look(i)
        return portion

    def take_back(self, i: Input) -> None:
        """A delivery that has `passed` waits after all: at another router, or since it came back."""
        i.waiting += 1

    def give_up(self, portion: Portion) -> None:
        """A message has waited for its address as long as it may."""
        if portion.most <= self.part:
            portion.in_vain = True
            self._change(portion, portion.waiting, 1)

    def end(self, i: Input, portion: Portion, *, left: bool) -> None:
        """A delivery waits no more. Args: left: it has left; else it never will."""
        if not i.waiting or not portion.waiting:
            raise CommandError("end: no delivery waits for this address")
        most = portion.most
        if left:
            self._left += 1
            if self._left - portion._mark <= self.part:
                most = min(self.capacity, most + 1)
            portion._mark = self._left
            portion.in_vain = False
        self._change(portion, portion.waiting - 1, most)
        self._waited.pop(portion, None)
        if not portion.waiting:
            del self._portions[portion.to]
        elif most > self.part:
            self._waited[portion] = None
        self._pass_by()
        self.forwarded(i, 0.0)

    def _pass_by(self) -> None:
        """Others have gone on: those that they have left behind may hold their part."""
        while self._waited:
            portion = next(iter(self._waited))
            if self._left - portion._mark < self.part:
                return
            del self._waited[portion]
            self._change(portion, portion.waiting, min(portion.most, self.part))

    def _change(self, portion: Portion, waiting: int, most: int) -> None:
        self._count(portion, -1)
        portion.waiting, portion.most = waiting, most
        self._count(portion, 1)

    def _count(self, portion: Portion, times: int) -> None:
        held = portion.held
        self._excess += times * (portion.waiting - held)
        if portion.most <= self.part:
            self._aside += times * held
