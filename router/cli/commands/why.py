"""`amqpmesh why ADDRESS`: what stops messages of an address, asked of the routers, without sending one."""

import argparse
from dataclasses import replace
from typing import Any

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli import arguments, asked_routers, client_peer
from amqpmesh.router.cli.asked_routers import AskedRouters
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.obstacles import Question, Step, routers_to_ask, steps
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.management import why
from amqpmesh.router.management.queries import AnswerError, body_of

_MOST_ROUTERS = 8
"""Other routers with receivers that are asked at most: one that takes messages is enough."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Find out what stops messages to an address, or those of a receiver: rights, the configuration of the "
        "address, limits, receivers, paths, credit. The routers are asked; no message is sent. Each step is a line. "
        "If something stops the messages, the last line says what helps, and the exit status is 5."
    )
    command.epilog = EPILOG
    command.add_argument("address", metavar="ADDRESS", type=arguments.name, help="the address, as a client names it")
    command.add_argument("--receive", action="store_true", help="ask for a receiver; default: for a sender")
    asked_routers.add_options(
        command, option="--from", router="the router that the client is connected to; default: the router at --url"
    )
    shown = command.add_argument_group("the client whose rights are asked; default: this command")
    for option, name, told in (
        ("--user", "user", "the user that its login proves"),
        ("--client-hostname", "hostname", "the hostname of its open"),
        ("--client-listener", "listener", "the name of the listener that it connects to"),
        ("--client-host", "host", "the address of its host"),
    ):
        shown.add_argument(option, dest=f"client_{name}", metavar="TEXT", type=arguments.name, help=told)
    shown.add_argument(
        "--client-group", metavar="NAME", action="append", default=[], help="a group of the user; once for each"
    )
    shown.add_argument("--tenant", metavar="NAME", type=arguments.name, help="the tenant of the address, for no client")
    command.add_argument("--json", action="store_true", help="print the steps as one JSON object")
    client_peer.add_options(command, reconnect=None, login="--login")
    command.set_defaults(command=ask)


def ask(given: argparse.Namespace) -> int:
    """Print the steps. Returns: 0; 5: something stops the messages. Raises: AmqpMeshError: there is no answer."""
    connection = client_peer.connection(given, "why")
    question = asked_routers.ask(connection, given.timeout, lambda routers: _question(routers, given))
    found = list(steps(question))
    obstacle = found[-1] if found and found[-1].stops else None
    if given.json:
        told = [{"step": each.name, "says": each.says, "stops": each.stops, "do": each.do or None} for each in found]
        print(dump({"address": given.address, "tenant": question.facts["tenant"], "steps": told}))
    else:
        for each in found:
            print(printable(f"{each.name}: {each.says}"))
        print(_verdict(obstacle, receives=given.receive))
    return Exit.DONE if obstacle is None else Exit.NO


def _verdict(obstacle: Step | None, *, receives: bool) -> str:
    if obstacle is not None:
        return printable(f"stopped by {obstacle.name}. What helps: {obstacle.do}")
    return f"nothing stops {'a receiver' if receives else 'a message'}"


async def _question(routers: AskedRouters, given: argparse.Namespace) -> Question:
    names = ("user", "hostname", "listener", "host")
    peer: dict[str, Any] = {name: text for name in names if (text := getattr(given, f"client_{name}")) is not None}
    if given.client_group:
        peer["groups"] = given.client_group
    asked = why.request(given.address, sends=not given.receive, tenant=given.tenant, peer=peer)
    try:
        facts = body_of(await routers.request(given.router, asked))
    except AnswerError as error:
        raise RefusedError(f"the router {error}") from None
    user = given.client_user
    question = Question(given.address, not given.receive, user, facts, await routers.state(given.router))
    there = {}
    for router in routers_to_ask(question)[:_MOST_ROUTERS]:
        try:
            there[router] = await routers.state(router)
        except AmqpMeshError:
            continue  # what this router knows of it has to do
    return replace(question, there=there)
