"""`amqpmesh ca`: the certificate authority of a mesh. It works on files and uses no network."""

import argparse
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.cli import arguments
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.folder import (
    NAME,
    AuthorityFolder,
    add_authority_options,
    add_directory,
    authority_in,
    passphrase_of,
    write_certificate,
    write_secret,
)
from amqpmesh.router.cli.output.terminal import table
from amqpmesh.topology.authority import AUTHORITY_DAYS, MAX_DAYS, ROUTER_DAYS, Authority, key_pem
from amqpmesh.topology.certificates import CertificateError, RouterCertificate, mesh_refusal
from amqpmesh.topology.records import MAX_ID, ROUTER_ID, UnreadableError
from amqpmesh.topology.revocations import Revocations
from amqpmesh.topology.trust import CLOCK_TOLERANCE
from amqpmesh.topology.workers import covers

_WIDE: Final = 10**4  # columns: wide enough for all text, since users copy serials from here
_HEADINGS: Final = ("ROUTER", "FROM", "UNTIL", "STATE", "SERIAL")


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = command.add_subparsers(metavar="ACTION", required=True)
    init = actions.add_parser(
        "init",
        help="make the certificate authority of a mesh",
        description=f"Make an authority: {NAME}.pem, which every router of the mesh needs, and {NAME}.key, which "
        "stays with the authority.",
        epilog=EPILOG,
    )
    init.add_argument("--mesh", metavar="NAME", type=_mesh, default="mesh", help="the mesh's name; default: mesh")
    _add_days(init, f"{AUTHORITY_DAYS}")
    add_authority_options(init)
    _add_force(init)
    init.set_defaults(command=make)

    issue = actions.add_parser(
        "issue",
        help="make a key and a certificate for a router",
        description="Make ROUTER.key and ROUTER.pem, the key and the certificate of a router. They are also valid "
        "for its workers ROUTER.1, ROUTER.2, and so on.",
        epilog=EPILOG,
    )
    issue.add_argument("router", metavar="ROUTER", type=_router, help="the router's id")
    _add_days(issue, f"{ROUTER_DAYS}")
    add_authority_options(issue)
    _add_force(issue)
    issue.set_defaults(command=issue_one)

    renew = actions.add_parser(
        "renew",
        help="renew the certificate of an existing key",
        description="Make a new ROUTER.pem for the router's key, valid from now on. The old certificate stays valid "
        f"until its end. With --authority, make a new {NAME}.pem.",
        epilog=EPILOG,
    )
    which = renew.add_mutually_exclusive_group(required=True)
    which.add_argument("router", metavar="ROUTER", nargs="?", type=_router, help="the router's id")
    which.add_argument(
        "--authority", action="store_true", help="renew the authority's certificate; issued certificates stay valid"
    )
    _add_days(renew, f"{ROUTER_DAYS}, with --authority {AUTHORITY_DAYS}")
    add_authority_options(renew)
    renew.set_defaults(command=renew_one)

    revoke = actions.add_parser(
        "revoke",
        help="revoke certificates of a router",
        description=f"Revoke all certificates of a router, in {NAME}.pem. Copy this file to a running router and send "
        "it SIGHUP: it sends the list to all other routers.",
        epilog=EPILOG,
    )
    revoke.add_argument("router", metavar="ROUTER", type=_router, help="the router's id")
    revoke.add_argument(
        "--serial",
        metavar="HEX",
        type=_serial,
        action="append",
        help="revoke only this certificate; may be repeated; `amqpmesh ca show` prints serial numbers",
    )
    add_authority_options(revoke)
    revoke.set_defaults(command=revoke_some)

    show = actions.add_parser(
        "show",
        help="print the authority, and the certificates that it issued",
        description="Print the authority and the certificates that it issued. This needs no key. Times are UTC.",
        epilog=EPILOG,
    )
    add_directory(show)
    show.set_defaults(command=show_all)


def _add_days(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument(
        "--days", type=_days, metavar="N", help=f"days until the certificate expires; default: {default}"
    )


def _add_force(command: argparse.ArgumentParser) -> None:
    command.add_argument("--force", action="store_true", help="replace existing files")


# --------------------------------------------------------------------------------------------------------- the actions


def make(given: argparse.Namespace) -> int:
    """Make an authority. Returns: 0. Raises: CommandError, ThereAlreadyError, OSError."""
    folder = AuthorityFolder(given.directory)
    passphrase = passphrase_of(given)
    with folder.locked():
        if not given.force:
            folder.demand_absent(folder.trust, folder.key, folder.issued)
        authority = Authority.create(given.mesh, time.time(), given.days or AUTHORITY_DAYS)
        folder.issued.unlink(missing_ok=True)  # another authority issued those
        write_secret(folder.key, key_pem(authority.key, passphrase))
        folder.write_authority(authority.certificate, None)
    _print_to_stderr(
        f"authority of {given.mesh}: {folder.trust}, {folder.key}, until {_date(authority.certificate.not_after)}"
    )
    return Exit.DONE


def issue_one(given: argparse.Namespace) -> int:
    """Issue a certificate. Returns: 0. Raises: CommandError, ConfigError, ThereAlreadyError, OSError."""
    folder = AuthorityFolder(given.directory)
    file, key_file = folder.of_router(given.router)
    authority = authority_in(folder, given)
    with folder.locked():
        if not given.force:
            folder.demand_absent(file, key_file)
        issued = folder.certificates()
        _check_apart(given.router, issued)
        key = Ed25519PrivateKey.generate()
        certificate = _issue(authority, given, key.public_key())
        # In this order: every issued certificate can be revoked, and none exists without its key.
        _register(folder, [*issued, certificate], _serials(folder.revocations()))
        write_secret(key_file, key_pem(key))
        write_certificate(file, certificate)
    _print_certificate(certificate, authority, f"{file}, {key_file}")
    return Exit.DONE


def renew_one(given: argparse.Namespace) -> int:
    """Renew certificates. Returns: 0. Raises: CommandError, ConfigError, OSError."""
    folder = AuthorityFolder(given.directory)
    authority = authority_in(folder, given)
    if given.authority:
        return _renew_authority(folder, authority, given)
    file, _ = folder.of_router(given.router)
    with folder.locked():
        issued = folder.certificates()
        revoked = _serials(folder.revocations())
        before = [each for each in issued if each.router == given.router]
        if not before:
            raise CommandError(f"{given.router} has no certificate yet: `amqpmesh ca issue` makes one")
        _check_apart(given.router, issued)
        key = before[-1].key
        if any(each.key == key and each.serial in revoked for each in before):
            raise CommandError(f"{given.router} was revoked: `amqpmesh ca issue --force` makes a new key")
        certificate = _issue(authority, given, key)
        _register(folder, [*issued, certificate], revoked)
        write_certificate(file, certificate)
    _print_certificate(certificate, authority, str(file))
    return Exit.DONE


def revoke_some(given: argparse.Namespace) -> int:
    """Revoke certificates. Returns: 0. Raises: CommandError, ConfigError, OSError."""
    folder = AuthorityFolder(given.directory)
    authority = authority_in(folder, given)
    with folder.locked():
        issued, last = folder.certificates(), folder.revocations()
        revoked = _serials(last)
        ended = {each.serial for each in issued if _has_ended(each)}
        good = {each.serial for each in issued if each.router == given.router} - revoked - ended
        chosen = good if given.serial is None else good & set(given.serial)
        if not chosen or (given.serial is not None and len(chosen) < len(set(given.serial))):
            raise CommandError(f"{given.router} has no such certificate to revoke: see `amqpmesh ca show`")
        # Expired certificates need no revocation.
        try:
            made = authority.revoke((revoked - ended) | chosen, last.number + 1 if last else 1, time.time())
        except CertificateError as error:
            raise CommandError(str(error)) from None
        folder.write_authority(authority.certificate, made)
        _register(folder, issued, made.serials)
    _print_to_stderr(f"revoked {len(chosen)} of {given.router}: list {made.number} is in {folder.trust}")
    return Exit.DONE


def show_all(given: argparse.Namespace) -> int:
    """List certificates. Returns: 0. Raises: ConfigError."""
    folder = AuthorityFolder(given.directory)
    certificate, revocations, issued = folder.certificate(), folder.revocations(), folder.certificates()
    state = "ended" if certificate.not_after < time.time() else f"until {_date(certificate.not_after)}"
    listed = "nothing revoked" if revocations is None else f"list of revocations {revocations.number}"
    print(f"mesh {certificate.mesh}, authority {state}, {listed}")
    revoked = _serials(revocations)
    rows = [
        (each.router, _date(each.not_before), _date(each.not_after), _state(each, revoked), f"{each.serial:x}")
        for each in sorted(issued, key=lambda each: (each.router, each.not_after))
    ]
    if rows:
        print("\n".join(table(_HEADINGS, rows, _WIDE, ())))
    return Exit.DONE


def _renew_authority(folder: AuthorityFolder, authority: Authority, given: argparse.Namespace) -> int:
    with folder.locked():
        try:
            renewed = authority.renewed(time.time(), given.days or AUTHORITY_DAYS)
        except CertificateError as error:
            raise CommandError(str(error)) from None
        folder.write_authority(renewed.certificate, folder.revocations())
    mesh, ends = renewed.certificate.mesh, renewed.certificate.not_after
    _print_to_stderr(f"authority of {mesh}: {folder.trust}, until {_date(ends)}")
    return Exit.DONE


# ------------------------------------------------------------------------------------------------------------- helpers


def _issue(authority: Authority, given: argparse.Namespace, key: Ed25519PublicKey) -> RouterCertificate:
    try:
        return authority.issue(given.router, key, time.time(), given.days or ROUTER_DAYS)
    except CertificateError as error:
        raise CommandError(str(error)) from None


def _check_apart(router: str, issued: list[RouterCertificate]) -> None:
    """Refuse a router and its worker or stand-in (`A`, `A.1`, `A.old`): one certificate is good for both. Raises:
    CommandError.
    """
    for other in {each.router for each in issued if not _has_ended(each)} - {router}:
        for one, worker in ((router, other), (other, router)):
            if covers(one, worker):
                raise CommandError(f"{worker} is a worker of {one}, whose certificate is valid for both")


def _register(folder: AuthorityFolder, certificates: list[RouterCertificate], revoked: frozenset[int]) -> None:
    """Store the issued certificates: valid ones, the last one of each router, and revoked ones; and the list of
    revocations.
    """
    last = {each.router: each.serial for each in certificates}
    folder.write_certificates(
        each
        for each in certificates
        if not _has_ended(each) or each.serial in revoked or last[each.router] == each.serial
    )


def _serials(revocations: Revocations | None) -> frozenset[int]:
    return frozenset() if revocations is None else revocations.serials


def _has_ended(certificate: RouterCertificate) -> bool:
    return certificate.not_after + CLOCK_TOLERANCE < time.time()


def _state(certificate: RouterCertificate, revoked: frozenset[int]) -> str:
    if certificate.serial in revoked:
        return "revoked"
    return "ended" if certificate.not_after < time.time() else "good"


def _print_certificate(certificate: RouterCertificate, authority: Authority, files: str) -> None:
    _print_to_stderr(f"router {certificate.router}: {files}, until {_date(certificate.not_after)}")
    if certificate.not_after == authority.certificate.not_after:
        _print_to_stderr("the authority's own certificate ends then, too: `amqpmesh ca renew --authority`")


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _mesh(text: str) -> str:
    refusal = mesh_refusal(arguments.name(text))
    if refusal is not None:
        raise argparse.ArgumentTypeError(refusal)
    return text


def _router(text: str) -> str:
    try:
        ROUTER_ID.read(text)
    except UnreadableError:
        reason = f"must be printable ASCII without spaces, @ / # and *, and {MAX_ID} characters at most"
        raise argparse.ArgumentTypeError(reason) from None
    if text == NAME or text.startswith(f"{NAME}."):
        raise argparse.ArgumentTypeError(f"must not be {NAME}: the authority's files have this name")
    return text


def _days(text: str) -> float:
    with suppress(ValueError):
        days = float(text)
        if 0 < days <= MAX_DAYS:
            return days
    raise argparse.ArgumentTypeError(f"must be a number of days, more than 0, {MAX_DAYS} at most, not {text!r}")


def _serial(text: str) -> int:
    with suppress(ValueError):
        return int(text, 16)
    raise argparse.ArgumentTypeError(f"must be hexadecimal digits, not {text!r}")
