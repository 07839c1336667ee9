"""Clients of `$management` of several routers: all through one connection, or each over its own."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import Final

from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError
from amqpmesh.router.cli.exit_status import RefusedError
from amqpmesh.router.cli.router_state import MAX_ANSWER, look_for_path
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.management.apply_plan import Ask
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.queries import AnswerError, entities_of, query
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError

_URLS: Final = 3
"""Listeners of a router named in advice at most."""


class ManagementClients:
    """Clients of routers, by id. A router changes costs only for clients that are connected to it directly."""

    def __init__(self, first: Connection, stack: AsyncExitStack) -> None:
        self._first = first
        self._stack = stack
        self._requesters: dict[str, Requester] = {}
        self._direct: set[str] = set()

    @staticmethod
    async def connected(
        first: Connection, others: Mapping[str, Connection], stack: AsyncExitStack, wait: Callable[[str], None]
    ) -> "ManagementClients":
        """Connect to all. Args: wait: called with a text for the router that is waited for.

        Raises: CommandError: another router answers at one of the URLs. AmqpMeshError: a router cannot be reached.
        """
        managed = ManagementClients(await stack.enter_async_context(first), stack)
        await managed._add(first, None)
        for router, connection in others.items():
            wait(f"router {router}, at the URL of --at")
            await managed._add(await stack.enter_async_context(connection), router)
        return managed

    async def _add(self, connection: Connection, router: str | None) -> None:
        requester = await self._stack.enter_async_context(connection.requester(ADDRESS, max_message_size=MAX_ANSWER))
        ids = [each["id"] for each in await _read_attributes(requester, "router", "id")]
        if router is not None and ids != [router]:
            raise CommandError(f"--at: the URL of {router} leads to {', '.join(ids) or 'no router'}")
        for each in ids:
            self._requesters.setdefault(each, requester)
            self._direct.add(each)

    def asking(self, router: str) -> Ask:
        """Return a function that sends requests to a router."""

        async def ask(message: Message) -> Message:
            requester = self._requesters.get(router)
            if requester is None:
                await look_for_path(self._first, router)
                requester = self._requesters[router] = await self._stack.enter_async_context(
                    self._first.requester(f"{ADDRESS}@{router}", max_message_size=MAX_ANSWER)
                )
            try:
                return await requester.request(message)
            except OutcomeError as error:
                raise RefusedError(f"{router} cannot be reached: the request was {error}") from None

        return ask

    async def demand_direct(self, routers: Collection[str]) -> None:
        """Check for direct connections to routers. Raises: CommandError: one is missing; it names the router's URLs."""
        missing = sorted(set(routers) - self._direct)
        if not missing:
            return
        places = [f"{router} listens at {', '.join(urls)}" for router in missing if (urls := await self._urls(router))]
        options = " ".join(f"--at {router}=URL" for router in missing)
        reason = "a router changes costs only for clients that are connected to it directly"
        raise CommandError("; ".join([f"{reason}: {options}", *places, "nothing was changed"]))

    async def _urls(self, router: str) -> list[str]:
        """Return a router's URLs for clients, if it answers."""
        try:
            await self.asking(router)(query(f"{PREFIX}router", ["id"]))
            found = await _read_attributes(self._requesters[router], "listener", "url", "role")
        except AmqpMeshError:
            return []
        return [each["url"] for each in found if each["role"] == "normal"][:_URLS]


async def _read_attributes(requester: Requester, kind: str, *names: str) -> list[dict[str, str]]:
    """Return text attributes of all entities of a type; [] if the answer is not understood. Raises: AmqpMeshError: no
    answer.
    """
    answer = await requester.request(query(f"{PREFIX}{kind}", names))
    try:
        told = entities_of(answer)
    except AnswerError:
        return []
    texts = [{name: text for name in names if isinstance(text := each.get(name), str)} for each in told]
    return [each for each in texts if len(each) == len(names)]
