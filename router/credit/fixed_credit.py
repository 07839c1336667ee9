"""Fixed credit for links without a pool: each message of such a link has an address of its own."""

from collections.abc import Iterable

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.kernel import CreditSink, Grant, allowed, credit_ahead, granted, release, serial_add


class FixedCredit:
    """A fixed number of deliveries for each sink, independent of the receivers: for links without an address.

    Each message of an anonymous sender has its own address, so no consumer's credit can be the sender's. The class has
    the methods that a pool has for its sinks.

    Args: window: deliveries granted and waiting, per sink.
    """

    def __init__(self, window: int = 64) -> None:
        self.window = window
        self.capacity = window
        """Deliveries that may be granted or wait; of them no more than the window are granted."""
        self._suspended = False
        self.is_withdrawn = False
        """No credit is given any more; unused credit is taken back."""
        self._inputs: dict[CreditSink, None] = {}
        self._low: dict[CreditSink, None] = {}
        self._asked: list[CreditSink] = []  # sinks to be asked to drain
        self._resuming: list[CreditSink] = []  # sinks that are to be told what they may resume

    @property
    def sinks(self) -> Iterable[CreditSink]:
        """Return all sinks."""
        return self._inputs

    def add_sink(self, delivery_count: int, owner: object = None, large: bool = False) -> CreditSink:
        """Add a sink, as `Pool.add_sink` does."""
        sink = CreditSink(delivery_count, owner, large)
        self._inputs[sink] = None
        self._low[sink] = None
        return sink

    def remove_sink(self, sink: CreditSink, now: float) -> None:
        """Remove a sink. `forwarded` is still called for each of its waiting deliveries."""
        self._inputs.pop(sink, None)
        self._low.pop(sink, None)
        if sink.meter is not None:
            release(sink, now)

    def received(self, sink: CreditSink, now: float) -> None:  # noqa: ARG002 - as a pool's
        """Record that the first frame of a delivery came. Runs per delivery."""
        sink.delivery_count = serial_add(sink.delivery_count, 1)
        sink.waiting += 1
        if sink.available:
            sink.available -= 1
        if sink.granted:
            sink.granted -= 1

    def forwarded(self, sink: CreditSink, now: float) -> None:  # noqa: ARG002 - as a pool's
        """Record that the first frame of a delivery has left, or that it will never leave. Runs per delivery.

        Raises: CommandError: no delivery of this sink waits.
        """
        if not sink.waiting:
            raise CommandError("forwarded: no delivery of this sink waits")
        sink.waiting -= 1
        self._note_low(sink)

    def held(self, sink: CreditSink) -> int:
        """Return the number of waiting deliveries that use up the window."""
        return sink.waiting

    def relayed(self, sink: CreditSink, count: int, now: float) -> None:  # noqa: ARG002 - as a pool's
        """Record deliveries that came and left at once, as `Pool.relayed` does."""
        sink.delivery_count = serial_add(sink.delivery_count, count)
        sink.available = max(0, sink.available - count)
        sink.granted = max(0, sink.granted - count)
        self._note_low(sink)

    def credit_slack(self, sink: CreditSink) -> int:
        """Return how many more deliveries of a sink may come and leave at once before it may get credit."""
        if sink.draining:
            return 0
        if sink.meter is not None and sink.granted <= self.window // 2:
            return sink.granted // 2
        return max(0, sink.granted - max(0, self.window // 2 - self.held(sink)) - 1)

    def flow_received(
        self,
        sink: CreditSink,
        delivery_count: int,
        link_credit: int | None,  # noqa: ARG002 - as a pool's
        available: int | None,
        now: float,  # noqa: ARG002 - as a pool's
    ) -> None:
        """Record the peer's flow, which may return credit unasked (§2.6.7)."""
        if spent := credit_ahead(delivery_count, sink.delivery_count):
            sink.delivery_count = delivery_count
            sink.granted = max(0, sink.granted - spent)
            if sink in self._inputs:
                self._low[sink] = None
        if available is not None:
            sink.available = available

    def withdraw(self) -> None:
        """Take back unused credit, and give no more, whatever `set_suspended` says later."""
        self.set_suspended(True)
        self.is_withdrawn = True

    def set_suspended(self, suspended: bool) -> None:
        """Suspend or resume: while no path leads to the receivers, or the router drains, credit is taken back."""
        if suspended != self._suspended and not self.is_withdrawn:
            self._suspended = suspended
            self._low.update(self._inputs)

    def resume(self, sink: CreditSink) -> None:
        """Note that a sink that waited for a rate may be granted credit, as `Pool.resume` does."""
        if sink in self._inputs:
            self._low[sink] = None

    def let_resume(self, sink: CreditSink, count: int) -> None:
        """Let a sink's peer resume deliveries, as `Pool.let_resume` does."""
        sink.announce_ahead(count)
        self._resuming.append(sink)

    def reclaim_unused(self, sink: CreditSink, now: float) -> bool:  # noqa: ARG002 - as a pool's
        """Take credit back that a sink does not use, as `Pool.reclaim_unused` does."""
        if sink.draining or not sink.granted:
            return False
        sink.draining = True
        self._asked.append(sink)
        return True

    def end_drain(self, sink: CreditSink) -> None:
        """Stop waiting for the answer to a drain: no answer counts as consent, as in a pool."""
        if sink in self._inputs and sink.draining:
            sink.granted = 0
            self._low[sink] = None

    def grants(self, now: float) -> list[Grant]:
        """Return the flows to send now, at most one per sink. The router calls this once after each batch of events."""
        flows = [Grant(sink, sink.announce(), True, False) for sink in self._asked]
        self._asked.clear()
        if self._low:
            self._raise(flows, now)
        if self._resuming:
            told = {each.sink for each in flows}
            flows += [Grant(sink, sink.announce(), False, False) for sink in self._resuming if sink not in told]
            self._resuming.clear()
        return flows

    def _raise(self, flows: list[Grant], now: float) -> None:
        """Grant credit to the sinks that may get some, or take it back. Args: flows: gets what to send."""
        if self._suspended:
            for sink in [each for each in self._low if each.granted and not each.draining]:
                if sink.firm:
                    sink.draining = True
                else:
                    sink.granted = 0
                flows.append(Grant(sink, sink.announce(), sink.draining, not sink.firm))
            return
        for sink in self._low:
            room = max(0, min(self.window, self.capacity - self.held(sink)) - sink.granted)
            lacking = 0
            if room and sink.meter is not None:
                wanted = max(0, min(room, sink.meter.limit() - sink.granted))
                room = allowed(sink, wanted, now)
                lacking = wanted - room
            if room or sink.draining:
                sink.granted += room
                sink.draining = False
                flows.append(Grant(sink, sink.announce(), False, False))
            if sink.meter is not None:
                granted(sink, room, lacking, now)
        self._low.clear()

    def _note_low(self, sink: CreditSink) -> None:
        """Note that a sink may get credit if half of the window is free, or the sink has none."""
        if sink in self._inputs and ((sink.granted + self.held(sink)) * 2 <= self.window or not sink.granted):
            self._low[sink] = None
