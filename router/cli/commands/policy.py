"""`amqpmesh policy`: check a policy file, ask what it permits, and give it to a mesh."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from amqpmesh.policies.access import Peer
from amqpmesh.policies.claims import Claims
from amqpmesh.policies.exports import Crossing
from amqpmesh.policies.findings import findings
from amqpmesh.policies.groups import May
from amqpmesh.policies.managing import KINDS, Manage
from amqpmesh.policies.rights import Grant, Rights
from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.policies.user_ids import kind_of
from amqpmesh.router.access.needs import needed
from amqpmesh.router.address_syntax import refusal, split
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.cli.policy_push import declare_push, declare_sign
from amqpmesh.router.config.policy_file import load_policy

_SHOWN: Final = (
    ("user", "NAME", "the user that the login proves"),
    ("hostname", "NAME", "the hostname of its open"),
    ("listener", "NAME", "the name of the listener that it connects to"),
    ("host", "ADDRESS", "the address of its host"),
    ("certificate", "SUBJECT", "the subject of its certificate, such as CN=alice,O=Example"),
)

_OF_TOKEN: Final = (
    ("claim", "NAME=VALUE", "a claim; once for each value"),
    ("group", "NAME", "a group that the token names; once for each"),
    ("scope", "SCOPE", "a scope, such as read:billing/*; once for each"),
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
    tested.add_argument("--token-tenant", metavar="NAME", help="its token: the tenant that the token names")
    for name, shape, told in _OF_TOKEN:
        tested.add_argument(f"--{name}", metavar=shape, action="append", default=[], help=f"its token: {told}")
    tested.add_argument("--address", metavar="ADDRESS", help="the address of --send or --receive, after aliases")
    asked = tested.add_argument_group("what it wants; one or several")
    asked.add_argument("--send", action="store_true", help="send to the address")
    asked.add_argument("--receive", action="store_true", help="receive from the address")
    for right in May:
        asked.add_argument(f"--{right}", action="store_true", help=f"the right `{right}` of `may`")
    asked.add_argument("--user-id", metavar="NAME", help="send messages with this user-id; empty: without one")
    for managed in Manage:
        asked.add_argument(
            f"--manage-{managed}",
            metavar="TYPE",
            nargs="?",
            const="",
            choices=["", *KINDS],
            help=f"{managed} entities of a type at the management node; without TYPE, of all types",
        )
    tested.set_defaults(command=test)

    pushed = actions.add_parser(
        "push",
        help="give a policy to all routers of a mesh",
        description="Push a policy to a router. It checks, stores and applies it, and gives it to its neighbours, and "
        "so on. Print the answer of each router. A router takes part if it has [policy] push = true.",
    )
    declare_push(pushed)
    to_sign = actions.add_parser(
        "sign",
        help="sign a policy with the key of the mesh's authority",
        description="Sign a policy with the key of the mesh's authority. Routers with [policy] signed = true take "
        "no other.",
    )
    declare_sign(to_sign)


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
    fault = _address_fault(given)
    if fault is not None:
        print(f"amqpmesh policy test: --address {fault}", file=sys.stderr)
        return Exit.USAGE
    claims: dict[str, tuple[str, ...]] = {}
    for shown in given.claim:
        name, equals, value = shown.partition("=")
        if not (name and equals and value):
            print(f"amqpmesh policy test: --claim {printable(shown)} is no NAME=VALUE", file=sys.stderr)
            return Exit.USAGE
        claims[name] = (*claims.get(name, ()), value)
    peer = Peer(
        container_id="",
        user=given.user,
        certificate_subject=given.certificate,
        listener=given.listener or "",
        hostname=given.hostname,
        host=given.host or "",
        claims=Claims(claims),
        groups=tuple(given.group),
        token_tenant=given.token_tenant,
        scopes=tuple(given.scope),
    )
    admitted = policy.admit(peer)
    if admitted is None:
        print("refused: no tenant has the peer")
        return Exit.NO
    print(printable(f"tenant: {admitted.peer.tenant or OPERATOR}"))
    print(printable(f"groups: {', '.join(admitted.rights.groups) or 'none'}"))
    denied = False
    for asked, reason in _answers(given, admitted.rights):
        denied = denied or reason is None
        print(printable(f"{asked}: {'no: no line permits it' if reason is None else f'yes, {reason}'}"))
    return Exit.NO if denied else Exit.DONE


def _address_fault(given: argparse.Namespace) -> str | None:
    """Return the reason why a router serves no such link, whatever the policy is; None: there is none."""
    if not given.address:
        return None
    if given.receive and not split(given.address)[0]:
        return "is a whole container, which can be sent to, and not received from"
    return refusal(given.address)


def _answers(given: argparse.Namespace, rights: Rights) -> Iterator[tuple[str, str | None]]:
    """Return what was asked, each with the reason why it is permitted; None: it is not."""
    if given.address:
        name, container = split(given.address)
        for wanted, action, sends in ((given.send, "send to", True), (given.receive, "receive from", False)):
            if wanted:
                yield from _of_address(f"{action} {name}", needed(rights, name, container, sends=sends, is_ours=True))
    for right in May:
        if getattr(given, right):
            yield right, _by(rights.may(right))
    if given.user_id is not None:
        kind_of_id = kind_of(given.user_id.encode(), given.user)
        line = _by(rights.user_id(kind_of_id))
        unsaid = "since no group of the peer has `user_id`" if kind_of_id in rights.user_ids else None
        yield f"user-id {given.user_id or 'absent'}", line or unsaid
    for managed in Manage:
        kind = getattr(given, f"manage_{managed}")
        if kind is not None:
            yield f"manage: {managed}{kind and f' {kind}'}", _by(rights.manage(managed, kind or None))


def _of_address(asked: str, needs: Iterator[tuple[str, Grant | Crossing | None]]) -> Iterator[tuple[str, str | None]]:
    """Return an answer for each right that an address needs."""
    found = list(needs)
    if not found:
        yield asked, "its secret name is the permission"
    for right, grant in found:
        yield right if right == asked else f"{asked}: {right}", _by(grant)


def _by(grant: Grant | Crossing | None) -> str | None:
    return None if grant is None else f"by {grant}"
