"""Links that deliveries come in by: what credit they hold, and a window that depends on nothing else (§2.6.7)."""

from typing import NamedTuple

from amqpmesh.router.amqp.errors import CommandError

SERIAL = 0xFFFF_FFFF
_HALF = 0x8000_0000

MANY_SENDERS = 2
"""How many times as much credit as one sender an input may hold that stands for any number of them."""


class Input:
    """A link that deliveries come in by, as its receiver sees it: made by `add_input`, read by anybody."""

    __slots__ = ("_announced", "_answer_by", "_began", "_confirm_by", "_doubtful", "_idle", "_placed_at", "_plenty",
                 "_raised", "_renew_at", "_revoked", "_used_at", "available", "delivery_count", "draining", "drains",
                 "firm", "granted", "large", "lowers", "owner", "times", "waiting")  # fmt: skip

    def __init__(self, delivery_count: int, owner: object = None, large: bool = False) -> None:
        self.owner = owner
        self.large = large
        """It carries what is large, beside another one that carries the rest of the same senders': few deliveries at a
        time are enough for it."""
        self.delivery_count = delivery_count
        """A serial number, 0..2**32-1."""
        self.granted = 0
        """Deliveries that it may still send, by the highest limit it was ever told and has not shown to have given up:
        it may have sent them already."""
        self.available = 0
        """Deliveries that it says it has for us and no credit for; never below 0 (§2.6.7)."""
        self.drains = True
        """It may be asked to use its credit or to give it back. Of others credit comes back by a lower limit alone:
        there are brokers that fail over a drain."""
        self.firm = False
        """No flow lowers its limit: it may be asked to drain. There are clients, all that proton's engine is in, that
        send whatever they have while their credit is not 0, and it is below that when the limit falls below what
        they have sent."""
        self.lowers = False
        """Where credit is wanted back, a lower limit takes as much as is needed: a drain would go on to all who send to
        it, and take everything."""
        self.times = 1
        """How many times the most that one sender is given it may hold: it may stand for many."""
        self.draining = False
        """It was asked to use its credit or to give it back, and has done neither."""
        self.waiting = 0
        """Its deliveries that have come and not left."""
        self._began = delivery_count  # where it has sent nothing yet
        self._announced = delivery_count  # the highest limit that a flow has told it
        self._revoked = 0  # of `granted`, what a flow took back and the peer has not confirmed
        self._raised = False  # its limit was raised after it was lowered, before that was confirmed
        self._doubtful = False  # and lowered again: a flow that shows this limit may be from before the raise
        self._renew_at = 0  # when no more than this is left, more is looked for
        self._plenty = False  # it was given much at a time, and since then never waited long for more
        self._used_at = 0.0  # when it last used credit, or got some after having none
        self._idle = False  # it has not used what it holds for a while
        self._placed_at = 0.0  # when it was found not to be idle
        self._answer_by = 0.0  # asked to drain because others starve: until when its answer is waited for
        self._confirm_by = 0.0  # told a lower limit: the same

    @property
    def credit(self) -> int:
        """The link-credit it holds by the latest limit announced, `granted` less what was taken back."""
        return self.granted - self._revoked

    @property
    def limit(self) -> int:
        """The latest delivery-limit announced: delivery-count + link-credit, a serial number."""
        return (self.delivery_count + self.granted - self._revoked) & SERIAL

    @property
    def quiet(self) -> int:
        """How many more deliveries may come and leave at once before anybody has to know: they change sums alone."""
        if self._idle or self.draining or self._revoked:
            return 0
        return max(0, self.granted - self._renew_at - 1)

    def announce(self) -> int:
        """The link-credit that a flow says now: what it holds, and if it is firm no less than it was told before."""
        if not self.firm:
            return self.credit
        if ahead(self.limit, self._announced):
            self._announced = self.limit
        return ahead(self._announced, self.delivery_count)


class Grant(NamedTuple):
    """Send this flow now, with the delivery-count of the input."""

    input: Input
    credit: int
    """The link-credit to announce; it may be lower than the last."""
    drain: bool
    echo: bool
    """Ask for a flow in return: only that shows that a lower limit has been seen."""


def ahead(delivery_count: int, of: int) -> int:
    """By how much a serial number is ahead of another, 0 if it is behind (RFC 1982)."""
    distance = (delivery_count - of) & SERIAL
    return distance if distance < _HALF else 0


class FixedCredit:
    """A window of deliveries for each input, whatever leaves: for links without an address of their own.

    What an anonymous sender sends goes where each message says, so that no consumer's credit is its own. It has the
    methods that a pool has for its inputs.

    Args: window: deliveries granted and waiting, per input.
    """

    def __init__(self, window: int = 64) -> None:
        self.window = window
        self.capacity = window
        """Deliveries that may be granted or wait; of them no more than the window are granted."""
        self._suspended = False
        self._inputs: dict[Input, None] = {}
        self._renewing: dict[Input, None] = {}

    def add_input(self, delivery_count: int, owner: object = None, large: bool = False) -> Input:
        """As `Pool.add_input`."""
        i = Input(delivery_count, owner, large)
        self._inputs[i] = None
        self._renewing[i] = None
        return i

    def remove_input(self, i: Input, now: float) -> None:  # noqa: ARG002 - as a pool's
        """It is gone; `forwarded` is still told of its waiting deliveries."""
        self._inputs.pop(i, None)
        self._renewing.pop(i, None)

    def received(self, i: Input, now: float) -> None:  # noqa: ARG002 - as a pool's
        """The first frame of a delivery came. Runs per delivery."""
        i.delivery_count = (i.delivery_count + 1) & SERIAL
        i.waiting += 1
        if i.available:
            i.available -= 1
        if i.granted:
            i.granted -= 1

    def forwarded(self, i: Input, now: float) -> None:  # noqa: ARG002 - as a pool's
        """The first frame of a delivery has left, or the delivery will never leave. Runs per delivery.

        Raises: CommandError: none of this input's waits.
        """
        if not i.waiting:
            raise CommandError("forwarded: no delivery of this input waits")
        i.waiting -= 1
        self._look(i)

    def held(self, i: Input) -> int:
        """Deliveries that have come, and that the window waits for."""
        return i.waiting

    def relayed(self, i: Input, count: int, now: float) -> None:  # noqa: ARG002 - as a pool's
        """As `Pool.relayed`."""
        i.delivery_count = (i.delivery_count + count) & SERIAL
        i.available = max(0, i.available - count)
        i.granted = max(0, i.granted - count)
        self._look(i)

    def quiet(self, i: Input) -> int:
        """As `Pool.quiet`."""
        return i.quiet

    def flow_received(
        self,
        i: Input,
        delivery_count: int,
        link_credit: int | None,  # noqa: ARG002 - as a pool's
        available: int | None,
        now: float,  # noqa: ARG002 - as a pool's
    ) -> None:
        """The peer's flow. It may give credit back unasked (§2.6.7)."""
        if spent := ahead(delivery_count, i.delivery_count):
            i.delivery_count = delivery_count
            i.granted = max(0, i.granted - spent)
            self._renewing[i] = None
        if available is not None:
            i.available = available

    def set_suspended(self, suspended: bool) -> None:
        """Whether this router's memory is used up, or it drains: then credit is taken back, as far as it is unused."""
        if suspended != self._suspended:
            self._suspended = suspended
            self._renewing.update(self._inputs)

    def grants(self, now: float) -> list[Grant]:  # noqa: ARG002 - as a pool's
        """The flows to send now, one per input at most; call it once after each batch of events."""
        if not self._renewing:
            return []
        flows = []
        if self._suspended:
            for i in [each for each in self._renewing if each.granted and not each.draining]:
                if i.firm:
                    i.draining = True
                else:
                    i.granted = 0
                flows.append(Grant(i, i.announce(), i.draining, not i.firm))
            return flows
        for i in self._renewing:
            room = max(0, min(self.window, self.capacity - self.held(i)) - i.granted)
            if room or i.draining:
                i.granted += room
                i.draining = False
                flows.append(Grant(i, i.announce(), False, False))
        self._renewing.clear()
        return flows

    def _look(self, i: Input) -> None:
        """Whether it may be due credit: half of the window is free, or it has none."""
        if i in self._inputs and ((i.granted + self.held(i)) * 2 <= self.window or not i.granted):
            self._renewing[i] = None
