"""The routers that a command asks at their `$management`, all through one connection, and the options for them."""

import argparse
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

import trio

from amqpmesh.router.cli import arguments
from amqpmesh.router.cli.exit_status import RefusedError
from amqpmesh.router.cli.output.listing import Entities
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.cli.router_state import MAX_ANSWER, TIME_OUT, all_pages, look_for_path
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError

T = TypeVar("T")


def add_options(
    command: argparse.ArgumentParser,
    *,
    option: str = "--router",
    router: str = "the id of a router anywhere in the mesh; default: the router at --url",
    waited: str = "each answer",
    time_out: float = TIME_OUT,
) -> None:
    """Declare the option, or with a name without hyphens the argument, for the router, and `--timeout`.

    Args: router: the help of it. waited: for the help of `--timeout`. time_out: its default, in seconds.
    """
    if option.startswith("-"):
        command.add_argument(option, dest="router", metavar="ROUTER", type=arguments.name, help=router)
    else:
        command.add_argument(option, metavar="ROUTER", type=arguments.name, nargs="?", help=router)
    command.add_argument(
        "--timeout",
        metavar="S",
        type=arguments.seconds,
        default=time_out,
        help=f"seconds to wait for {waited}; default: {time_out:g}",
    )


def ask(connection: Connection, timeout: float, work: "Callable[[AskedRouters], Awaitable[T]]") -> T:
    """Connect, have some work ask routers, and return its result.

    Args: timeout: seconds for each answer. Raises: AmqpMeshError: a router cannot be reached, or does not answer.
    """
    return trio.run(_ask, connection, timeout, work)


async def _ask(connection: Connection, timeout: float, work: "Callable[[AskedRouters], Awaitable[T]]") -> T:
    patience = PeerTimeout(timeout)
    found: list[T] = []

    async def connected() -> None:
        patience.wait("an answer")
        async with AsyncExitStack() as stack:
            found.append(await work(AskedRouters(await stack.enter_async_context(connection), stack, patience)))

    await run_interruptible(connected, patience)
    return found[0]


class AskedRouters:
    """The management nodes of routers. A router is named by its id; None: the one that is connected."""

    def __init__(self, connection: Connection, stack: AsyncExitStack, patience: PeerTimeout) -> None:
        self._connection = connection
        self._stack = stack
        self._patience = patience
        self._requesters: dict[str | None, Requester] = {}

    async def request(self, router: str | None, request: Message) -> Message:
        """Return the answer of a router. Raises: AmqpMeshError: there is none."""
        requester = await self._requester(router)
        self._patience.wait("an answer" if router is None else f"an answer of {router}")
        self._patience.progress()
        try:
            return await requester.request(request)
        except OutcomeError as error:
            raise RefusedError(f"{router or 'the router'} cannot be reached: the request was {error}") from None

    async def state(self, router: str | None) -> Entities:
        """Return all entities of a router. Raises: AmqpMeshError: it does not answer."""

        async def page(request: Message) -> Message:
            return await self.request(router, request)

        return await all_pages(page)

    async def _requester(self, router: str | None) -> Requester:
        found = self._requesters.get(router)
        if found is None:
            if router is not None:
                await look_for_path(self._connection, router)
            address = ADDRESS if router is None else f"{ADDRESS}@{router}"
            requester = self._connection.requester(address, max_message_size=MAX_ANSWER)
            found = self._requesters[router] = await self._stack.enter_async_context(requester)
        return found
