"""The options that client commands share: the peer's URL, and the client's identity."""

import argparse
import os
import sys
from pathlib import Path
from secrets import token_hex

from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    ConnectionRedirectError,
    LinkRedirectError,
    SaslError,
)
from amqpmesh.router.cli import arguments, passwords
from amqpmesh.router.cli.arguments import URL_VARIABLE
from amqpmesh.router.client.connect import Connection, connect
from amqpmesh.router.config.file import DEFAULT_URL
from amqpmesh.router.config.urls import CONNECTING_PORTS, Endpoint
from amqpmesh.router.endpoint_setup import WITHHELD


def add_options(command: argparse.ArgumentParser, *, reconnect: str | None, login: str = "--user") -> None:
    """Declare the options.

    Args: reconnect: the help of `--reconnect`, beyond "reconnect after a lost connection"; None: the command cannot
        continue over a new connection. login: the option with the name of the user.
    """
    group = command.add_argument_group("the peer")
    group.add_argument(
        "--url",
        help="amqp://HOST[:PORT], or amqps:// for TLS; ws:// or wss://HOST[:PORT][/PATH] for a WebSocket; "
        f"default: ${URL_VARIABLE}, else {DEFAULT_URL}",
    )
    group.add_argument(
        "--hostname",
        metavar="NAME",
        type=arguments.name,
        help="the virtual host in open and SASL; default: the URL's host; TLS always checks the URL's host",
    )
    group.add_argument(
        "--redirect",
        metavar="HOST",
        dest="redirects",
        action="append",
        default=[],
        type=arguments.host,
        help="follow redirects to this host; may be repeated",
    )
    group.add_argument(
        login,
        dest="user",
        metavar="NAME",
        type=arguments.name,
        help="the user's name; without --password-file, the command asks for the password on the terminal",
    )
    group.add_argument(
        "--password-file", metavar="FILE", type=Path, help="read the password from the first line of this file"
    )
    group.add_argument(
        "--trust", metavar="PEM", type=Path, help="trust the authorities in this file instead of the system's"
    )
    group.add_argument(
        "--certificate",
        metavar="PEM",
        type=Path,
        help=f"the client's certificate; without {login}, SASL EXTERNAL authenticates with it",
    )
    group.add_argument("--key", metavar="PEM", type=Path, help="the key of the certificate")
    group.add_argument("--insecure", action="store_true", help="send the password without TLS, even to a remote peer")
    if reconnect is not None:
        group.add_argument(
            "--reconnect",
            action="store_true",
            help=f"retry until connected, and reconnect after a lost connection; {reconnect}",
        )
    command.set_defaults(reconnect=False, password=None, login=login)


def add_exactly_once(command: argparse.ArgumentParser, *, promise: str) -> None:
    """Declare the options of a link that is resumed. Args: promise: the help of `--exactly-once`, up to its terms."""
    group = command.add_argument_group("the link")
    group.add_argument(
        "--exactly-once",
        action="store_true",
        help=f"{promise}. For this end of the link, while the command runs: its peer has to keep unsettled state, or "
        "the status is 3. Implies --reconnect",
    )
    group.add_argument(
        "--name",
        metavar="NAME",
        dest="link_name",
        type=arguments.name,
        help="the name of the link; default: a new one. With --id: a command that is started again ends at once what "
        "its peer keeps for the one before",
    )
    group.add_argument(
        "--id", metavar="ID", dest="container_id", type=arguments.name, help="our container-id; default: a new one"
    )


def connection(given: argparse.Namespace, command: str) -> Connection:
    """Return a connection to the peer; the caller enters it by `async with`.

    Args: command: part of our container-id, so that others can identify the client, unless an option gives it.
    Raises: CommandError: the options contradict each other, or a file is not valid.
    """
    url = _url(given)
    try:
        endpoint = Endpoint.parse(url, CONNECTING_PORTS)
    except ValueError as error:
        raise CommandError(f"--url {url}: {error}") from None
    files = {name: getattr(given, name) for name in ("trust", "certificate", "key")}
    for name, file in files.items():
        if file is not None and not endpoint.secure:
            raise CommandError(f"--{name} does nothing without TLS: {url} is not amqps:// or wss://")
    try:
        return connect(
            url,
            id=getattr(given, "container_id", None) or f"amqpmesh-{command}-{token_hex(4)}",
            user=given.user,
            password=_password(given),
            insecure=given.insecure,
            hostname=given.hostname,
            reconnect=given.reconnect or getattr(given, "exactly_once", False),
            redirects=given.redirects,
            **files,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(
            f"{error.filename or ', '.join(str(file) for file in files.values() if file)}: {reason}"
        ) from None


def advice(given: argparse.Namespace, error: AmqpMeshError) -> str:
    """Return advice to print after an error about logins or redirects; often empty."""
    if isinstance(error, ConnectionRedirectError | LinkRedirectError) and "is not allowed" in str(error):
        return "; allow it with --redirect"
    if not isinstance(error, SaslError) or "is offered" not in str(error) or WITHHELD in str(error):
        return ""
    if given.user is None:
        return f"; log in with {given.login}, or with --certificate over TLS"
    endpoint = Endpoint.parse(_url(given))
    if endpoint.secure or endpoint.loopback or given.insecure:
        return ""
    return "; without TLS others could read the password, so PLAIN needs --insecure"


def _url(given: argparse.Namespace) -> str:
    return given.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def _password(given: argparse.Namespace) -> str | None:
    if given.user is None:
        if given.password_file is not None:
            raise CommandError(f"--password-file needs {given.login}")
        return None
    if given.password_file is not None:
        return passwords.from_file(given.password_file)
    if not sys.stdin.isatty():
        raise CommandError(f"{given.login} needs --password-file, because there is no terminal to ask")
    if given.password is None:
        given.password = passwords.from_person()  # once, for all connections of a command
    password: str = given.password
    return password
