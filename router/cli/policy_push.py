"""`amqpmesh policy push` and `policy sign`: a policy for a whole mesh."""

import argparse
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from amqpmesh.policies.policy_version import MAX_NUMBER, PolicyVersion, with_number
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ConfigError
from amqpmesh.router.cli import asked_routers, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.folder import add_authority_options, authority_of, write_public
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.terminal import printable, table
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.cli.router_state import MAX_ANSWER, ROUTE, look_for_path
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.requester import Requester
from amqpmesh.router.config.policy_file import PolicyText, octets_of, policy_of
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.policy_upload import TYPE, pieces
from amqpmesh.router.management.queries import AnswerError, body_of, entities_of, query
from amqpmesh.router.management.service import ADDRESS, CONFLICT
from amqpmesh.router.message.outcomes import OutcomeError

REFUSED_TIME: Final = 2.0
"""Seconds to wait for other routers after the first one has refused the policy."""

_WIDE: Final = 10**4  # columns: a reason is never cut

ASK_TIME: Final = 0.25
"""Seconds between two questions whether a router has the policy."""


def declare_push(command: argparse.ArgumentParser) -> None:
    """Declare the arguments of `policy push`."""
    command.add_argument("file", metavar="FILE", type=Path, help="the policy")
    command.add_argument(
        "--next",
        action="store_true",
        help="give it the number after the highest version that a router has; the file is not changed",
    )
    asked_routers.add_options(
        command,
        router="push to this router of the mesh; default: the router at --url",
        waited="all routers to have it, or to refuse it",
    )
    command.add_argument("--json", action="store_true", help="print the answer of each router as one JSON object")
    client_peer.add_options(command, reconnect=None)
    command.epilog = EPILOG
    command.set_defaults(command=push)


@dataclass(slots=True)
class Answer:
    """The answer of a router to a policy."""

    router: str
    accepted: bool | None = None
    """None: it has not answered."""
    reason: str = ""

    @property
    def text(self) -> str:
        """The answer for people."""
        return {True: "yes", False: "no", None: "not yet"}[self.accepted]


def push(given: argparse.Namespace) -> int:
    """Push a policy, and print the answer of each router.

    Returns: 0; 4: a router has not answered in time; 5: a router says no. Raises: ConfigError: the policy is not valid.
        AmqpMeshError: there is no answer.
    """
    data = octets_of(given.file)
    read = policy_of(data, given.file)
    if not (given.next or read.version.number):
        raise CommandError(f"{given.file} has no version: begin it with `version = 1`, or push it with --next")
    connection = client_peer.connection(given, "policy")
    work = _Push(given, read)
    trio.run(work.run, connection)
    version, answers = work.read.version, sorted(work.answers.values(), key=lambda each: each.router)
    if given.json:
        told = [{"router": each.router, "accepted": each.accepted, "reason": each.reason} for each in answers]
        print(dump({"version": version.number, "digest": version.digest.hex(), "routers": told}))
    else:
        print(f"version {version.number}, {version.short_digest}")
        rows = [(each.router, each.text, each.reason) for each in answers]
        print("\n".join(map(printable, table(("ROUTER", "IN FORCE", "REASON"), rows, _WIDE, ()))))
    if any(each.accepted is False for each in answers):
        return Exit.NO
    is_late = any(each.accepted is None and each.router in work.within_reach for each in answers)
    return Exit.TIMED_OUT if is_late else Exit.DONE


class _Push:
    """A policy on its way to all routers."""

    def __init__(self, given: argparse.Namespace, read: PolicyText) -> None:
        self._given = given
        self.read = read
        self.answers: dict[str, Answer] = {}
        #: The routers to which there is a path.
        self.within_reach: set[str] = set()
        self._patience = PeerTimeout(given.timeout)

    async def run(self, connection: Connection) -> None:
        """Push it. Raises: AmqpMeshError: the first router does not answer."""

        async def work() -> None:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(connection)
                await self._work(connection, stack)

        await run_interruptible(work, self._patience)

    async def _work(self, connection: Connection, stack: AsyncExitStack) -> None:
        first = self._given.router
        self._patience.wait("an answer" if first is None else f"an answer of {first}")
        if first is not None:
            await look_for_path(connection, first)
        address = ADDRESS if first is None else f"{ADDRESS}@{first}"
        management = await stack.enter_async_context(connection.requester(address, max_message_size=MAX_ANSWER))
        (own,) = await _entities(management, f"{PREFIX}router")
        routes = {each["router"]: each["distance"] for each in await _entities(management, ROUTE)}
        self.within_reach = {own["id"], *(router for router, distance in routes.items() if distance is not None)}
        asked = {own["id"]: management}
        for router in sorted(self.within_reach - {own["id"]}):
            asked[router] = await stack.enter_async_context(
                connection.requester(f"{ADDRESS}@{router}", max_message_size=MAX_ANSWER)
            )
        self.answers = {router: Answer(router) for router in {own["id"], *routes}}
        for router in self.answers.keys() - self.within_reach:
            self.answers[router].reason = "no path leads there: it takes the policy when it is back"
        if self._given.next:
            await self._number(asked)
        self._patience.rest()
        await self._upload(own["id"], management)
        # A router that refuses a policy may still pass it on, if it cannot write its file.
        refused = self.answers[own["id"]].accepted is False
        with trio.move_on_after(min(REFUSED_TIME, self._given.timeout) if refused else self._given.timeout):
            async with trio.open_nursery() as nursery:
                for router, requester in asked.items():
                    if self.answers[router].accepted is None:
                        nursery.start_soon(self._follow, router, requester)

    async def _number(self, asked: Mapping[str, Requester]) -> None:
        """Give the policy the number after the highest one in the mesh."""
        known = [0]
        for router, requester in asked.items():
            self._patience.wait(f"an answer of {router}")
            known += [int(each["version"]) for each in await _entities(requester, TYPE)]
        self.read = policy_of(_numbered(self.read.data, max(known) + 1, self._given.file), self._given.file)

    async def _upload(self, router: str, management: Requester) -> None:
        for piece in pieces(self.read.data):
            self._patience.wait(f"an answer of {router}")
            answer = await management.request(piece)
            try:
                body_of(answer)
            except AnswerError as error:
                if answer.application_properties.get("statusCode") != CONFLICT:
                    raise RefusedError(f"{router} {error}") from None
                reason = str(answer.application_properties.get("statusDescription"))
                self.answers[router] = Answer(router, False, reason.removeprefix("Conflict: "))
                return
            self._patience.progress()
        self._patience.rest()
        self.answers[router].accepted = True

    async def _follow(self, router: str, management: Requester) -> None:
        """Ask a router until it has the policy, or has refused it."""
        answer = self.answers[router]
        while answer.accepted is None:
            try:
                found = await _entities(management, TYPE)
            except (AmqpMeshError, OutcomeError) as error:
                answer.reason = str(error)
            else:
                self._judge(answer, found)
            if answer.accepted is None:
                await trio.sleep(ASK_TIME)

    def _judge(self, answer: Answer, found: list[dict[str, Any]]) -> None:
        answer.reason = ""
        if not found:
            answer.accepted, answer.reason = False, "it has no policy"
            return
        (policy,) = found
        version = PolicyVersion(int(policy["version"]), bytes.fromhex(policy["digest"]))
        if version.digest == self.read.version.digest:
            answer.accepted = True
        elif version > self.read.version:
            answer.accepted, answer.reason = False, f"it has version {version.number}, {version.short_digest}"
        elif policy["refused_digest"] == self.read.version.digest.hex():
            answer.accepted, answer.reason = False, policy["refused_reason"]
        elif not policy["push"]:
            answer.accepted, answer.reason = False, "it takes no pushed policy: [policy] push = true permits it"


async def _entities(management: Requester, kind: str) -> list[dict[str, Any]]:
    """Return the entities of a type. Raises: RefusedError: the router refuses."""
    found: list[dict[str, Any]] = []
    while True:
        try:
            page = entities_of(await management.request(query(kind, offset=len(found))))
        except AnswerError as error:
            raise RefusedError(f"the router {error}") from None
        except OutcomeError as error:
            raise RefusedError(f"the router cannot be reached: the request was {error}") from None
        found += page
        if not page:
            return found


def declare_sign(command: argparse.ArgumentParser) -> None:
    """Declare the arguments of `policy sign`."""
    command.add_argument("file", metavar="FILE", type=Path, help="the policy; its last line gets the signature")
    command.add_argument("--number", metavar="N", type=_number, help="give it this version; default: the one it has")
    add_authority_options(command)
    command.epilog = EPILOG
    command.set_defaults(command=sign)


def sign(given: argparse.Namespace) -> int:
    """Sign a policy file with the authority's key. Returns: 0.

    Raises: ConfigError: the policy is not valid, or a file of the authority. CommandError: the policy has no version.
    """
    data = octets_of(given.file)
    number = policy_of(data, given.file).version.number if given.number is None else given.number
    if not number:
        raise CommandError(f"{given.file} has no version: begin it with `version = 1`, or use --number")
    from amqpmesh.topology.signed_policies import signed  # here: the other actions need no cryptography

    made = signed(_numbered(data, number, given.file), authority_of(given))
    version = policy_of(made, given.file).version
    write_public(given.file, made)
    print(f"{given.file}: version {version.number}, {version.short_digest}, signed")
    return Exit.DONE


def _numbered(data: bytes, number: int, file: Path) -> bytes:
    """Return the octets of a policy file with another number. Raises: ConfigError: its number is not found."""
    try:
        return with_number(data, number)
    except ValueError as error:
        raise ConfigError(str(file), "version", str(error)) from None


def _number(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_NUMBER}")
    return number
