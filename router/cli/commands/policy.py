"""`amqpmesh policy`: check a policy file, and ask what it permits."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from amqpmesh.policies.access import Peer, is_reserved
from amqpmesh.policies.findings import findings
from amqpmesh.policies.groups import Manage, May
from amqpmesh.policies.rights import Grant, Rights
from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.router.address_syntax import split
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.config.policy_file import load_policy

_SHOWN: Final = (
    ("user", "NAME", "the user that the login proves"),
    ("hostname", "NAME", "the hostname of its open"),
    ("listener", "NAME", "the name of the listener that it connects to"),
    ("host", "ADDRESS", "the address of its host"),
    ("certificate", "SUBJECT", "the subject of its certificate, such as CN=alice,O=Example"),
)


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = command.add_subparsers(metavar="ACTION", required=True)
    checked = actions.add_parser(
        "check",
        help="check a policy file",
        description="Check a policy file. Print each line that can never permit anything.",
        epilog=EPILOG,
    )
    _add_file(checked)
    checked.set_defaults(command=check)
    tested = actions.add_parser(
        "test",
        help="ask whether a policy permits something",
        description="Tell whether a policy permits a peer to use an address, or to do something else, and by "
        "which line. No router is asked: the answer is for the file as it is.",
        epilog=EPILOG,
    )
    _add_file(tested)
    for name, shape, told in _SHOWN:
        tested.add_argument(f"--{name}", metavar=shape, help=f"the peer: {told}")
    tested.add_argument("--address", metavar="ADDRESS", help="the address of --send or --receive, after aliases")
    asked = tested.add_argument_group("what it wants; one or several")
    asked.add_argument("--send", action="store_true", help="send to the address")
    asked.add_argument("--receive", action="store_true", help="receive from the address")
    for right in May:
        asked.add_argument(f"--{right}", action="store_true", help=f"the right `{right}` of `may`")
    for managed in Manage:
        asked.add_argument(f"--manage-{managed}", action="store_true", help=f"{managed} at the management node")
    tested.set_defaults(command=test)


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("--file", type=Path, default=Path("policy.toml"), help="the policy; default: policy.toml")


def check(given: argparse.Namespace) -> int:
    """Check a policy file. Returns: 0; 5: it has lines without effect. Raises: ConfigError: it is not valid."""
    found = list(findings(load_policy(given.file)))
    for each in found:
        print(printable(each))
    return Exit.NO if found else Exit.DONE


def test(given: argparse.Namespace) -> int:
    """Print what a policy permits, and by which line.

    Returns: 0; 5: it does not permit all that was asked. Raises: ConfigError: the policy is not valid.
    """
    policy = load_policy(given.file)
    if (given.send or given.receive) and not given.address:
        print("amqpmesh policy test: --send and --receive need --address", file=sys.stderr)
        return Exit.USAGE
    peer = Peer(
        container_id="",
        user=given.user,
        certificate_subject=given.certificate,
        listener=given.listener or "",
        hostname=given.hostname,
        host=given.host or "",
    )
    admitted = policy.admit(peer)
    if admitted is None:
        print("refused: no tenant has the peer")
        return Exit.NO
    print(printable(f"tenant: {admitted.peer.tenant or OPERATOR}"))
    print(printable(f"groups: {', '.join(admitted.rights.groups) or 'none'}"))
    denied = False
    for asked, grant in _answers(given, admitted.rights):
        denied = denied or grant is None
        print(printable(f"{asked}: {'no: no line permits it' if grant is None else f'yes, by {grant}'}"))
    return Exit.NO if denied else Exit.DONE


def _answers(given: argparse.Namespace, rights: Rights) -> Iterator[tuple[str, Grant | None]]:
    """Return what was asked, each with the line that permits it."""
    if given.address:
        name, container = split(given.address)
        for wanted, action, granted in (
            (given.send, "send to", rights.send),
            (given.receive, "receive from", rights.receive),
        ):
            if wanted:
                # The router's own addresses are a matter of `manage`.
                grant = rights.manage(Manage.READ) if is_reserved(name) else granted(name)
                yield f"{action} {name}", grant
                if container is not None:
                    yield f"at the container {container}", rights.may(May.CONTAINER)
    for right in May:
        if getattr(given, right):
            yield right, rights.may(right)
    for managed in Manage:
        if getattr(given, f"manage_{managed}"):
            yield f"manage: {managed}", rights.manage(managed)
