"""A router and its clients within a program: no effect on the process, and errors as they were raised."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AsyncExitStack
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from amqpmesh.router import kernel
from amqpmesh.router.amqp.errors import ConnectionClosedError
from amqpmesh.router.amqp.standard.performatives import Transfer
from amqpmesh.router.client.connect import connect
from amqpmesh.router.client.sender import link_of
from amqpmesh.router.io.streams import BATCH_TIME
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import URL, Roads, joined
from tests.support.peers.scripted import frame
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call
from tests.support.tasks.stopwatches import measure

if TYPE_CHECKING:
    from amqpmesh.router.config.urls import Endpoint

PROGRAM = dedent(
    """
    import gc, locale, logging, os, random, resource, signal, socket, sys, threading, warnings


    def everything():
        named = {name: logging.getLogger(name) for name in ("", "trio", "asyncio")}
        return {
            "signals": [signal.getsignal(each) for each in signal.valid_signals()],
            "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
            "wakeup": signal.set_wakeup_fd(-1),
            "logging": {name: (each.level, list(each.handlers), each.disabled) for name, each in named.items()},
            "our loggers": [
                (name, each.level, list(each.handlers), each.propagate)
                for name, each in logging.root.manager.loggerDict.items()
                if name.startswith("amqpmesh") and isinstance(each, logging.Logger)
                and (each.level or each.handlers or not each.propagate)
            ],
            "last resort": (logging.lastResort, logging.raiseExceptions, logging.getLoggerClass()),
            "environment": dict(os.environ),
            "place": (os.getcwd(), os.umask(os.umask(0o22))),
            "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.stdout, sys.stderr),
            "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "locale": locale.setlocale(locale.LC_ALL),
            "time-out": socket.getdefaulttimeout(),
            "warnings": list(warnings.filters),
            "chance": random.getstate(),
            "threads": threading.active_count(),
        }


    import trio  # its effects are not ours

    before = everything()
    during = []

    import amqpmesh


    async def main():
        async with amqpmesh.Router(listeners=["amqp://127.0.0.1:0"]) as router:
            url = router.listeners[0].url
            async with (
                amqpmesh.connect(["amqp://127.0.0.1:1", url], reconnect=True) as connection,
                connection.receiver("q") as receiver,
                router.sender("q") as sender,
            ):
                await sender.send("hello", settled=True)
                assert (await receiver.receive()).message.body == "hello"
                during.append(everything())
        with trio.move_on_after(0.05):  # no receiver is there any more
            async with amqpmesh.connect(url, reconnect=amqpmesh.Backoff(0.001, 0.001)):
                pass


    trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)
    after = everything()
    for name, value in before.items():
        assert after[name] == value, (name, value, after[name])
        if name not in ("signals", "wakeup"):  # Trio changes these while it runs
            assert during[0][name] == value, (name, value, during[0][name])
    print("untouched")
    """
)


def test_nothing_of_the_process_is_touched_and_nothing_is_printed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("untouched\n", "")


# ------------------------------------------------------------------------------------------------------- errors, bare


class OwnError(Exception):
    """An error of the program."""


@pytest.mark.parametrize(
    "error", [OwnError("x"), SystemExit(3), KeyboardInterrupt()], ids=lambda each: type(each).__name__
)
async def test_an_error_of_the_body_comes_out_bare_through_everything(
    error: BaseException, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    router = Router()
    with pytest.raises(type(error)) as raised:
        async with (
            router,
            router.receiver("q") as receiver,
            router.sender("q") as sender,
            router.requester("r"),
            joined(nursery, router, reconnect=True) as connection,
            connection.sender("q"),
            connection.receiver("q", streaming=True),
            connection.requester("r"),
        ):
            await sender.transfer("x")
            async with await receiver.receive():
                raise error
    assert raised.value is error
    assert router.statistics().is_empty


async def test_an_error_of_a_call_comes_out_bare_through_everything(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        with pytest.raises(ConnectionClosedError):
            async with (
                roads.connect() as connection,
                connection.receiver("q") as receiver,
                connection.sender("q"),
                connection.requester("r"),
            ):
                await wait_all_tasks_blocked()
                await roads.cut()
                await receiver.receive()
    assert router.statistics().is_empty


async def test_what_fails_in_the_background_does_not_cancel_the_body(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect() as connection, connection.receiver("q") as receiver, connection.sender("q"):
            await roads.cut()
            with trio.CancelScope() as scope:
                await trio.sleep(100)
            assert not scope.cancelled_caught
            with pytest.raises(ConnectionClosedError):
                await receiver.receive()
    assert router.statistics().is_empty


# ------------------------------------------------------------------------------------------------ many, and any stream


async def test_many_routers_and_clients_live_in_one_process(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    number = 20
    routers = [Router(id=f"router-{each}") for each in range(number)]

    async def use(router: Router) -> None:
        async with (
            router,
            router.receiver("q") as receiver,
            joined(nursery, router) as connection,
            connection.sender("q") as sender,
        ):
            assert connection.peer.container_id == router.id
            for _ in range(5):
                sending = Call(nursery, sender.send, router.id)
                async with await receiver.receive() as message:
                    assert message.body == router.id
                await sending.result()

    async with trio.open_nursery() as everybody:
        for router in routers:
            everybody.start_soon(use, router)
    assert all(router.statistics().is_empty for router in routers)


class OctetByOctet(trio.abc.Stream):
    """A stream with only the methods that `trio.abc.Stream` demands, which moves one octet at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        for at in range(len(data)):
            await self._stream.send_all(data[at : at + 1])

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(1)

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize("kind", ["memory", "lockstep", "octet-by-octet", "half-closeable"])
async def test_any_stream_is_served(kind: str, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router:

        async def open_stream(_: Endpoint) -> trio.abc.Stream:
            ours, theirs = lockstep_stream_pair() if kind == "lockstep" else memory_stream_pair()
            if kind == "octet-by-octet":
                ours, theirs = OctetByOctet(ours), OctetByOctet(theirs)
            nursery.start_soon(router.serve_stream, theirs)
            return ours

        async with (
            connect(URL, open_stream=open_stream) as connection,
            connection.receiver("q") as receiver,
            connection.sender("q") as sender,
        ):
            sending = Call(nursery, sender.send, Message("hello", subject="x"))
            async with await receiver.receive() as message:
                assert (message.body, message.subject) == ("hello", "x")
            await sending.result()
    assert router.statistics().is_empty


# ------------------------------------------------------------------------------------------------------------ fairness


TRANSFER_COST = 20e-6
"""Seconds that a transfer takes its receiver: what is measured must not depend on how busy the machine is."""


class Work(trio.abc.Instrument):
    """A clock that advances with received transfers, and the seconds that each step of the other tasks took by it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[float] = []
        self._now = self._began = 0.0
        self._own = trio.lowlevel.current_task()
        receive = kernel.receive_transfer

        def receive_transfer(*arguments: Any) -> kernel.Delivery:
            self._now += TRANSFER_COST
            return receive(*arguments)

        monkeypatch.setattr(kernel, "receive_transfer", receive_transfer)
        measure(lambda: self._now)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = self._now

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._own:
            self.steps.append(self._now - self._began)


async def test_a_client_gives_the_thread_back_in_the_middle_of_a_batch(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Counterpart(nursery)
    number = 4000
    async with peer.connect() as connection, connection.receiver("q", credit=number, buffer=2**26) as receiver:
        link = peer.links[0]
        body = Message("x").encode()
        batch = b"".join(
            frame(
                Transfer(
                    handle=link.attach.handle,
                    delivery_id=each,
                    delivery_tag=each.to_bytes(4, "big"),
                    message_format=0,
                    settled=True,
                ),
                body,
                channel=link.channel,
            )
            for each in range(number)
        )
        work = Work(monkeypatch)
        trio.lowlevel.add_instrument(work)
        await peer.peer.write(batch)
        await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(work)
        for _ in range(number):
            await receiver.receive()
    # The whole takes long, and no step takes much longer than a batch may.
    assert sum(work.steps) > 10 * BATCH_TIME
    assert max(work.steps) < 2 * BATCH_TIME


async def test_links_within_the_process_give_the_thread_back_too(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 200
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(Router())
        ends = [f"{each}" for each in range(20)]
        receivers = [
            await stack.enter_async_context(router.receiver(each, credit=number, buffer=2**23)) for each in ends
        ]
        senders = [await stack.enter_async_context(router.sender(each)) for each in ends]
        await wait_all_tasks_blocked()
        work = Work(monkeypatch)
        trio.lowlevel.add_instrument(work)
        # All tasks have as much to do at once as possible.
        pending = [link_of(sender).submit(Message(each).encode()) for each in range(number) for sender in senders]
        for _ in range(number):
            for receiver in receivers:
                (await receiver.receive()).accept()
            await trio.lowlevel.checkpoint()
        for each in pending:
            await each.until_decided()
        trio.lowlevel.remove_instrument(work)
    assert sum(work.steps) > 10 * BATCH_TIME
    assert max(work.steps) < 2 * BATCH_TIME
