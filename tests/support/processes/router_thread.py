"""A router in a thread, beside a command in the main thread, which has the signals."""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.client.sent import Sent
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router

PATIENCE = 120.0  # seconds; nothing here takes one

T = TypeVar("T")


class Served:
    """A router that serves at `url`. Its methods do their work in the router's thread."""

    def __init__(self, **settings: Any) -> None:
        self._ready: queue.Queue[BaseException | None] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, args=(settings,), daemon=True)
        self._thread.start()
        failure = self._ready.get(timeout=PATIENCE)
        if failure is not None:
            raise failure

    def _serve(self, settings: dict[str, Any]) -> None:
        try:
            trio.run(self._run, settings)
        except BaseException as error:
            self._ready.put(error)
            raise

    async def _run(self, settings: dict[str, Any]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        listeners = settings.pop("listeners", ["amqp://127.0.0.1:0"])
        async with (
            Router(listeners=listeners, **{"id": "A", "drain": 0.2, **settings}) as self.router,
            trio.open_nursery() as self._nursery,
        ):
            self._ready.put(None)
            await self._ended.wait()
            self._nursery.cancel_scope.cancel()

    @property
    def url(self) -> str:
        return self.router.listeners[0].url

    def do(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call it in the router's thread, and wait until it is done."""

        async def bounded() -> T:
            with trio.fail_after(PATIENCE):
                return await work(*arguments)

        return trio.from_thread.run(bounded, trio_token=self._token)

    def begin(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Start it there, and wait until it says that it runs: as `Nursery.start`."""

        async def start() -> Any:
            return await self._nursery.start(work, *arguments)

        return self.do(start)

    def receive(
        self, address: str, decide: Callable[[Delivery], object] = Delivery.accept, credit: int = 100
    ) -> list[Message]:
        """Receive from now on. Returns: what has arrived, also later."""
        came: list[Message] = []

        async def receive(*, task_status: trio.TaskStatus[None]) -> None:
            async with self.router.receiver(address, credit=credit) as receiver:
                task_status.started()
                async for delivery in receiver:
                    came.append(delivery.message)
                    decide(delivery)

        self.begin(receive)
        return came

    def stream(self, address: str, begun: Callable[[], object]) -> list[bytes]:
        """Receive one message while it comes. Args: begun: called at its first part. Returns: its parts, also later."""
        parts: list[bytes] = []

        async def receive(*, task_status: trio.TaskStatus[None]) -> None:
            async with self.router.receiver(address, streaming=True) as receiver:
                task_status.started()
                delivery = await receiver.receive()
                async for part in delivery:
                    parts.append(part)
                    begun()
                delivery.accept()

        self.begin(receive)
        return parts

    def send(self, address: str, *messages: Any, settled: bool = False) -> dict[int, Any]:
        """Send these as soon as there is credit. Returns: the outcomes by the place of their message, as they come."""
        outcomes: dict[int, Any] = {}

        async def wait(place: int, sent: Sent) -> None:
            outcomes[place] = await sent.outcome()

        async def send(*, task_status: trio.TaskStatus[None]) -> None:
            async with self.router.sender(address) as sender, trio.open_nursery() as nursery:
                task_status.started()
                for place, message in enumerate(messages):
                    sent = await sender.transfer(message, settled=settled)
                    if not settled:
                        nursery.start_soon(wait, place, sent)

        self.begin(send)
        return outcomes

    def flood(self, address: str) -> None:
        """Send settled messages from now on, as many as there is credit for."""

        async def send(*, task_status: trio.TaskStatus[None]) -> None:
            async with self.router.sender(address) as sender:
                task_status.started()
                while True:
                    await sender.transfer(b"one more", settled=True)

        self.begin(send)

    def first(self, count: int, outcomes: dict[int, Any]) -> list[Any]:
        """Return the first of the outcomes that `send` returned, once they are there."""

        self.until(lambda: all(place in outcomes for place in range(count)))
        return [outcomes[place] for place in range(count)]

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is true."""

        async def wait() -> None:
            while not is_so():
                await trio.sleep(0.01)

        self.do(wait)

    def stop(self) -> None:
        """End the router, without waiting."""
        self._token.run_sync_soon(self._ended.set)

    def end(self) -> None:
        """End the router."""
        if self._thread.is_alive():
            self.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


Serve = Callable[..., Served]


@dataclass(frozen=True)
class Said:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of its standard error."""
        return self.err.splitlines()


Command = Callable[..., Said]
