"""Changed configurations and the messages that pass meanwhile: each of them comes once, and is accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from amqpmesh import Accepted, Router, RouterConfig
from tests.router.runtime.test_applying_in_any_order import configs, refuse


@dataclass
class Account:
    """The messages to one address."""

    address: str
    outcomes: list[object] = field(default_factory=list)
    came: Counter[int] = field(default_factory=Counter)

    async def receive(self, router: Router, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept all messages."""
        async with router.receiver(self.address, credit=10) as receiver:
            task_status.started()
            async for delivery in receiver:
                self.came[delivery.message.body] += 1
                delivery.accept()

    async def send(self, router: Router, over: trio.Event) -> None:
        """Send messages until it is over, each after the outcome of the one before."""
        async with router.sender(self.address) as sender:
            while not over.is_set():
                sent = await sender.transfer(len(self.outcomes))
                self.outcomes.append(await sent.outcome())
                await trio.sleep(0.01)


@settings(max_examples=10)
@given(st.lists(configs(), min_size=2, max_size=5))
def test_each_message_comes_once_and_is_accepted_whatever_is_applied_meanwhile(applied: list[RouterConfig]) -> None:
    async def run() -> None:
        # Any configuration changes the patterns of the first two; none of them has one for the third.
        accounts = [Account(address) for address in ("a", "b", "untouched")]
        async with Router(applied[0], open_stream=refuse) as router, trio.open_nursery() as receiving:
            for each in accounts:
                await receiving.start(each.receive, router)
            over = trio.Event()
            async with trio.open_nursery() as sending:
                for each in accounts:
                    sending.start_soon(each.send, router, over)
                for config in applied[1:]:
                    so_far = [len(each.outcomes) for each in accounts]
                    assert not (await router.apply(config)).waiting
                    with trio.fail_after(3600):
                        while any(len(each.outcomes) < count + 3 for each, count in zip(accounts, so_far, strict=True)):
                            await trio.sleep(0.1)
                over.set()
            receiving.cancel_scope.cancel()
        for each in accounts:
            assert {type(outcome) for outcome in each.outcomes} == {Accepted}
            assert each.came == Counter(range(len(each.outcomes)))

    trio.run(run, clock=MockClock(autojump_threshold=0))
