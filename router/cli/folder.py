"""The folder of a mesh's certificate authority; each file is replaced in one step.

`mesh-ca.key` is the authority's key. `mesh-ca.pem` is for routers to trust: its certificate, and its revocations.
`mesh-ca.issued.pem` holds the issued certificates: the valid ones, and the last one of each router. A router's own
files are `ID.pem` and `ID.key`. Only their owner can read the key files, at any time.
"""

import argparse
import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ConfigError
from amqpmesh.router.cli import passwords
from amqpmesh.topology.authority import Authority, certificate_pem, is_encrypted, revocations_pem
from amqpmesh.topology.certificates import (
    AuthorityCertificate,
    CertificateError,
    RouterCertificate,
    certificates_in,
    read_authority,
    read_router,
)
from amqpmesh.topology.revocations import Revocations, lists_in, read_revocations

T = TypeVar("T")

NAME: Final = "mesh-ca"
"""The prefix of the authority's own files."""

_SECRET: Final = 0o600
_PUBLIC: Final = 0o644


class ThereAlreadyError(AmqpMeshError):
    """A file exists already, and `--force` was not given."""


class AuthorityFolder:
    """The folder with an authority's files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trust = path / f"{NAME}.pem"
        self.key = path / f"{NAME}.key"
        self.issued = path / f"{NAME}.issued.pem"

    def of_router(self, router: str) -> tuple[Path, Path]:
        """Return the paths of a router's certificate and key."""
        return self._path / f"{router}.pem", self._path / f"{router}.key"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder: two simultaneous commands must not overwrite each other's files. Raises: OSError."""
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def demand_absent(self, *files: Path) -> None:
        """Refuse to overwrite files. Raises: ThereAlreadyError: one of them exists."""
        for file in files:
            if os.path.lexists(file):
                raise ThereAlreadyError(f"{file} exists already; --force replaces it")

    def certificate(self) -> AuthorityCertificate:
        """Read the authority's certificate. Raises: ConfigError: there is none, or it is not valid."""
        return _read_file(self.trust, lambda pem: read_authority(certificates_in(pem)[0]))

    def authority(self, passphrase: bytes | None) -> Authority:
        """Read the authority. Raises: ConfigError: a file is missing or not valid, or the passphrase is wrong."""
        certificate = self.certificate()
        return _read_file(self.key, lambda pem: Authority.load(certificate.der, pem, passphrase))

    def has_passphrase(self) -> bool:
        """Return True if the authority's key is encrypted. Raises: ConfigError: there is no key."""
        return _read_file(self.key, is_encrypted)

    def revocations(self) -> Revocations | None:
        """Read the list of revocations, None before the first one. Raises: ConfigError: it is not the authority's."""
        certificate = self.certificate()
        lists = _read_file(self.trust, lambda pem: [read_revocations(each, (certificate,)) for each in lists_in(pem)])
        return max(lists, key=lambda each: each.number, default=None)

    def certificates(self) -> list[RouterCertificate]:
        """Read the issued certificates, in the order of issue. Raises: ConfigError: the file is not valid."""
        if not self.issued.exists():
            return []
        return _read_file(self.issued, lambda pem: [read_router(each) for each in certificates_in(pem)])

    def write_authority(self, certificate: AuthorityCertificate, revocations: Revocations | None) -> None:
        """Write the file for routers to trust. Raises: OSError."""
        lists = b"" if revocations is None else revocations_pem(revocations)
        _write(self.trust, certificate_pem(certificate) + lists, _PUBLIC)

    def write_certificates(self, certificates: Iterable[RouterCertificate]) -> None:
        """Write the issued certificates. Raises: OSError."""
        _write(self.issued, b"".join(map(certificate_pem, certificates)), _PUBLIC)


def write_public(file: Path, octets: bytes) -> None:
    """Write a file that all users may read. Raises: OSError."""
    _write(file, octets, _PUBLIC)


def replace_file(file: Path, octets: bytes) -> None:
    """Write a file in place of another one, with its permissions; a link stays a link. A new file is for all users to
    read. Raises: OSError.
    """
    target = file.resolve()
    _write(target, octets, stat.S_IMODE(target.stat().st_mode) if target.exists() else _PUBLIC)


def write_certificate(file: Path, certificate: RouterCertificate) -> None:
    """Write a router's certificate. Raises: OSError."""
    _write(file, certificate_pem(certificate), _PUBLIC)


def write_secret(file: Path, octets: bytes) -> None:
    """Write a file that no other user can read at any time, such as a key. Raises: OSError."""
    _write(file, octets, _SECRET)


def _read_file(file: Path, read: Callable[[bytes], T]) -> T:
    try:
        return read(file.read_bytes())
    except OSError as error:
        raise ConfigError(str(file), "file", error.strerror or str(error)) from None
    except CertificateError as error:
        raise ConfigError(str(file), "file", str(error)) from None


def _write(file: Path, octets: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{NAME}.")  # mkstemp: mode 0600
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(octets)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# ------------------------------------------------------------------------------------------------------- arguments


def add_authority_options(command: argparse.ArgumentParser) -> None:
    """Declare the arguments that lead to an authority."""
    add_directory(command)
    command.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="F",
        help="read the passphrase of the authority's key from the first line of this file",
    )


def add_directory(command: argparse.ArgumentParser) -> None:
    """Declare the argument with the folder of an authority."""
    command.add_argument(
        "--directory",
        type=Path,
        default=Path(),
        metavar="D",
        help="the authority's folder; default: the current folder",
    )


def authority_of(given: argparse.Namespace) -> Authority:
    """Return the authority that the arguments lead to. Raises: as `AuthorityFolder.authority`."""
    return authority_in(AuthorityFolder(given.directory), given)


def authority_in(folder: AuthorityFolder, given: argparse.Namespace) -> Authority:
    """Return the authority of a folder; ask for its passphrase. Raises: as `AuthorityFolder.authority`."""
    passphrase = passphrase_of(given)
    if passphrase is None and folder.has_passphrase() and sys.stdin.isatty():
        passphrase = passwords.from_person(f"passphrase of {folder.key}: ").encode()
    return folder.authority(passphrase)


def passphrase_of(given: argparse.Namespace) -> bytes | None:
    """Return the passphrase in the file that was given; None: none was. Raises: CommandError: it is empty."""
    if given.passphrase_file is None:
        return None
    passphrase = passwords.from_file(given.passphrase_file)
    if not passphrase:
        raise CommandError(f"{given.passphrase_file}: the passphrase is empty")
    return passphrase.encode()
