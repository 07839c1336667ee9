"""`amqpmesh close CONNECTION`: the end of a client's connection, or of a link."""

import argparse

from amqpmesh.router.cli import arguments, asked_routers, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.differences import why_not
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.management.edit_requests import DELETE
from amqpmesh.router.management.service import NO_CONTENT
from amqpmesh.router.message.content import Message


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Close the connection of a client (amqp:connection:forced), or detach a link of it (amqp:link:detach-forced). "
        "The client may come again at once."
    )
    command.epilog = EPILOG
    command.add_argument(
        "number", metavar="CONNECTION", type=arguments.count, help="the number that `amqpmesh status` shows"
    )
    command.add_argument("--link", action="store_true", help="it is the number of a link")
    asked_routers.add_options(command)
    command.add_argument("--json", action="store_true", help="print the answer as one JSON object")
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=close)


def close(given: argparse.Namespace) -> int:
    """Close a connection or a link. Returns: 0; 5: the router refuses it. Raises: AmqpMeshError: there is no answer."""
    kind = "link" if given.link else "connection"
    request = Message(
        None, application_properties={"operation": DELETE, "type": kind, "identity": f"{kind}/{given.number}"}
    )
    connection = client_peer.connection(given, "close")
    answer = asked_routers.ask(connection, given.timeout, lambda routers: routers.request(given.router, request))
    reason, code = why_not(answer), answer.application_properties.get("statusCode")
    if reason is None and code != NO_CONTENT:
        raise RefusedError(f"the router answers {code}: {answer.application_properties.get('statusDescription')}")
    if given.json:
        print(dump({"closed": reason is None, **({} if reason is None else {"reason": reason})}))
    else:
        print(printable(f"{kind} {given.number} closed" if reason is None else f"not closed: {reason}"))
    return Exit.DONE if reason is None else Exit.NO
