"""Where the inputs of a pool stand: who waits for credit, who uses it, and with whom it lies idle."""

from amqpmesh.router.credit.sinks import Input
from amqpmesh.router.small_set import SmallSet, first, shared, with_item, with_item_first, without_item


class Lines:
    """Every input is in `hungry` if it holds no credit, else in `recent` unless it is idle.

    An input is *idle* once it has not used the credit that it holds for `idle_time`, seconds, or has given some back.
    """

    __slots__ = ("active", "hungry", "idle_time", "inputs", "large", "recent", "renewing", "rich")

    def __init__(self, idle_time: float) -> None:
        self.idle_time = idle_time
        self.inputs: SmallSet[Input] = ()
        """All of them."""
        self.hungry: SmallSet[Input] = ()
        """Those that hold none, in the order of their last."""
        self.recent: SmallSet[Input] = ()
        """Those that hold some and are not idle, in the order in which that was found."""
        self.renewing: SmallSet[Input] = ()
        """Of `recent`, those that hold half a share or less."""
        self.rich: SmallSet[Input] = ()
        """Idle ones that hold more than one, and are not asked to give it back."""
        self.active = 0
        """How many are not idle."""
        self.large = 0
        """Of those, how many carry what is large beside others."""

    def enter(self, i: Input) -> None:
        """A new one, without credit."""
        self.inputs = with_item(self.inputs, i)
        self.hungry = with_item(self.hungry, i)
        self._count(i, 1)

    def leave(self, i: Input) -> None:
        """It is gone."""
        self.inputs = without_item(self.inputs, i)
        if not i._idle:
            self._count(i, -1)
        self.hungry = without_item(self.hungry, i)
        self._let_go(i)

    def served(self, inputs: list[Input], share: int, now: float) -> None:
        """They stood in `hungry` and were given one each; those that are not idle get more, up to a share."""
        for i in inputs:
            i._used_at = now
            i._renew_at = 0
            if not i._idle:
                self._place(i, now)
        if share > 1:
            for i in reversed(inputs):  # in front, in their order, since they have the least
                if not i._idle:
                    self.renewing = with_item_first(self.renewing, i)

    def used(self, i: Input, now: float) -> None:
        """It used credit, or says that it would: it is not idle."""
        if i._idle:
            i._idle = False
            self._count(i, 1)
            self.rich = without_item(self.rich, i)
            if i.credit:
                self._place(i, now)
        self.sank(i)

    def sank(self, i: Input) -> None:
        """Its credit sank: if it needs more, it goes where those wait."""
        left = i.credit
        if not left:
            self._let_go(i)
            self.hungry = with_item(self.hungry, i)
        elif left <= i._renew_at and not i._idle and not i.draining:
            self.renewing = with_item(self.renewing, i)

    def age(self, now: float) -> None:
        """Finds out who has become idle; each input is looked at once in `idle_time` at most."""
        before = now - self.idle_time
        while self.recent:
            i = first(self.recent)
            if i._placed_at > before:
                break
            if i._used_at > i._placed_at:
                self.recent = without_item(self.recent, i)
                self._place(i, i._used_at)
            else:
                self.rest(i)

    def rest(self, i: Input) -> None:
        """It is idle, whatever it was."""
        if not i._idle:
            i._idle = True
            self._count(i, -1)
            self.recent = without_item(self.recent, i)
            self.renewing = without_item(self.renewing, i)
        if i.credit > 1 and not i.draining:
            self.rich = shared(with_item(self.rich, i), self.inputs)

    def _count(self, i: Input, one: int) -> None:
        self.active += one
        if i.large:
            self.large += one

    def _place(self, i: Input, now: float) -> None:
        i._placed_at = now
        self.recent = with_item(self.recent, i)

    def _let_go(self, i: Input) -> None:
        self.recent = without_item(self.recent, i)
        self.renewing = without_item(self.renewing, i)
        self.rich = without_item(self.rich, i)
