"""Where the inputs of a pool stand: who waits for credit, who uses it, and with whom it lies idle."""

from collections import OrderedDict

from amqpmesh.router.windows import Input


class Lines:
    """Every input is in `hungry` if it holds no credit, else in `recent` unless it is idle.

    An input is *idle* once it has not used the credit that it holds for `idle_time`, seconds, or has given some back.
    """

    def __init__(self, idle_time: float) -> None:
        self.idle_time = idle_time
        self.hungry: OrderedDict[Input, None] = OrderedDict()
        """Those that hold none, in the order of their last."""
        self.recent: OrderedDict[Input, float] = OrderedDict()
        """Those that hold some and are not idle, and when that was found."""
        self.renewing: OrderedDict[Input, None] = OrderedDict()
        """Of `recent`, those that hold half a share or less."""
        self.rich: OrderedDict[Input, None] = OrderedDict()
        """Idle ones that hold more than one, and are not asked to give it back."""
        self.size = 0
        self._idle = 0

    @property
    def active(self) -> int:
        """How many are not idle."""
        return self.size - self._idle

    @property
    def anybody_waits(self) -> bool:
        """Whether somebody waits for credit, or for more."""
        return bool(self.hungry or self.renewing)

    def enter(self, i: Input) -> None:
        """A new one, without credit."""
        self.size += 1
        self.hungry[i] = None

    def leave(self, i: Input) -> None:
        """It is gone."""
        self.size -= 1
        self._idle -= i._idle
        for line in (self.hungry, self.recent, self.renewing, self.rich):
            line.pop(i, None)

    def served(self, inputs: list[Input], share: int, now: float) -> None:
        """They stood in `hungry` and were given one each; those that are not idle get more, up to a share."""
        for i in inputs:
            i._used_at = now
            i._renew_at = 0
            if not i._idle:
                self.recent[i] = now
        if share > 1:
            for i in reversed(inputs):  # in front, in their order, since they have the least
                if not i._idle:
                    self.renewing[i] = None
                    self.renewing.move_to_end(i, last=False)

    def used(self, i: Input, now: float) -> None:
        """It used credit, or says that it would: it is not idle."""
        if i._idle:
            i._idle = False
            self._idle -= 1
            self.rich.pop(i, None)
            if i.credit:
                self.recent[i] = now
        self.sank(i)

    def sank(self, i: Input) -> None:
        """Its credit sank: if it needs more, it goes where those wait."""
        left = i.credit
        if not left:
            for line in (self.recent, self.renewing, self.rich):
                line.pop(i, None)
            self.hungry[i] = None
        elif left <= i._renew_at and not i._idle and not i.draining:
            self.renewing[i] = None

    def age(self, now: float) -> None:
        """Finds out who has become idle; each input is looked at once in `idle_time` at most."""
        before = now - self.idle_time
        while self.recent:
            i, placed = next(iter(self.recent.items()))
            if placed > before:
                break
            if i._used_at > placed:
                del self.recent[i]
                self.recent[i] = i._used_at
            else:
                self.rest(i)

    def rest(self, i: Input) -> None:
        """It is idle, whatever it was."""
        if not i._idle:
            i._idle = True
            self._idle += 1
            self.recent.pop(i, None)
            self.renewing.pop(i, None)
        if i.credit > 1 and not i.draining:
            self.rich[i] = None
