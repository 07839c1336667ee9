"""Password users: `users.toml`, which holds verifiers and no passwords (RFC 5802, 3).

A table for each user has one table for each mechanism:

    ["alice"."SCRAM-SHA-256"]
    salt = "..."          # base64, as are the keys
    iterations = 65536
    stored_key = "..."
    server_key = "..."

Names are stored as SASLprep (RFC 4013) prepares them, so that each name has one spelling.

scramp is imported only to check a password: routers without users do not need it.
"""

import base64
import fcntl
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path
from typing import Self

from amqpmesh.router.amqp.errors import CommandError, ConfigError
from amqpmesh.router.amqp.sasl.mechanisms import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_SIZE,
    SCRAM_ITERATIONS,
    ScramKeys,
    decoy_iterations,
)
from amqpmesh.router.config.tables import parsed

PLAIN_VERIFIER = "SCRAM-SHA-256"
_KEY_SIZES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-1": 20}  # octets
MECHANISMS = tuple(_KEY_SIZES)
_FIELDS = ("salt", "iterations", "stored_key", "server_key")


class Users:
    """The verifiers of a file, which `SaslServer` asks. Immutable: a changed file gives a new object."""

    __slots__ = ("_verifiers", "iterations")

    def __init__(self, verifiers: Mapping[str, Mapping[str, ScramKeys]]) -> None:
        """Args: verifiers: by user and mechanism."""
        self._verifiers = {user: dict(keys) for user, keys in verifiers.items()}
        counts = {keys.iterations for verifiers in self._verifiers.values() for keys in verifiers.values()}
        #: The iteration counts of the verifiers, each once, for `Authenticator`.
        self.iterations = tuple(sorted(counts)) or (SCRAM_ITERATIONS,)

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read `users.toml`.

        Raises: ConfigError: the file, the user and mechanism, and the fault.
        """
        import scramp  # noqa: F401 - now, or all connections would wait for the import at the first login

        return cls({user: dict(_read_user(user, table, file)) for user, table in parsed(file).items()})

    def __contains__(self, user: str) -> bool:
        """Tell whether there is such a user."""
        return user in self._verifiers

    def __iter__(self) -> Iterator[str]:
        """Return the users' names, sorted."""
        return iter(sorted(self._verifiers))

    def verifiers(self, user: str) -> Mapping[str, ScramKeys]:
        """Return the verifiers of a user, by mechanism; empty, if there is no such user."""
        return self._verifiers.get(user, {})

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        """Return the verifier of a user for a mechanism; None: there is none."""
        return self.verifiers(user).get(mechanism)

    def verify_plain(self, user: str, password: str) -> bool:
        """Check a user's password, by its SCRAM-SHA-256 verifier.

        The check takes as long for a user that does not exist. SASLprep has prepared both arguments already.
        """
        known = self.scram_keys(user, PLAIN_VERIFIER)
        keys = known or ScramKeys(bytes(SALT_SIZE), decoy_iterations(user, self.iterations), b"", b"")
        # RFC 5802, 3: StoredKey = H(HMAC(SaltedPassword, "Client Key")).
        salted = pbkdf2_hmac("sha256", password.encode(), keys.salt, keys.iterations)
        stored = sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        return hmac.compare_digest(stored, keys.stored_key) and known is not None

    def add(self, user: str, password: str, iterations: int = SCRAM_ITERATIONS) -> Self:
        """Return these users and a further one, or one with another password.

        Args: iterations: of the verifiers, `MIN_ITERATIONS` to `MAX_ITERATIONS`.
        Raises: CommandError: SASLprep refuses the name or password, or it is empty.
        """
        name, secret = prepared(user, "user name"), prepared(password, "password")
        keys = {mechanism: verifier(mechanism, secret, iterations) for mechanism in MECHANISMS}
        return type(self)({**self._verifiers, name: keys})

    def remove(self, user: str) -> Self:
        """Return these users without one. Raises: CommandError: there is no such user."""
        name = prepared(user, "user name")
        if name not in self:
            raise CommandError(f"there is no user {name}")
        return type(self)({other: keys for other, keys in self._verifiers.items() if other != name})

    def save(self, file: Path) -> None:
        """Write the file atomically, readable by its owner only."""
        target = Path(os.path.realpath(file))  # a link stays a link
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # mkstemp: mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write("".join(_lines(self._verifiers)))
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def add_user(file: Path, user: str, password: str, iterations: int = SCRAM_ITERATIONS) -> None:
    """Add a user to a file, which is created if necessary; an existing user gets another password.

    Raises: ConfigError: the file is not a file of users. CommandError: as `Users.add`. OSError: writing failed.
    """
    with _folder_lock(file.absolute().parent):
        users = Users.load(file) if file.exists() else Users({})
        users.add(user, password, iterations).save(file)


def remove_user(file: Path, user: str) -> None:
    """Remove a user from a file.

    Raises: ConfigError: there is no such file, or it is not a file of users. CommandError: as `Users.remove`. OSError:
        writing failed.
    """
    with _folder_lock(file.absolute().parent):
        Users.load(file).remove(user).save(file)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    # Two processes that add users must not overwrite each other. The file itself is replaced, so its folder is locked.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def prepared(text: str, what: str) -> str:
    """Return the text that SASLprep (RFC 4013) makes. Raises: CommandError, which never holds the text."""
    from scramp import ScramException
    from scramp.utils import saslprep

    try:
        result: str = saslprep(text)
    except ScramException as error:
        raise CommandError(f"a {what} that SASLprep refuses: {error.args[0]}") from None
    if not result:
        raise CommandError(f"the {what} is empty")
    return result


def verifier(mechanism: str, password: str, iterations: int) -> ScramKeys:
    """Return the verifier of a password, with a fresh salt."""
    from scramp import ScramMechanism

    salt, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(
        password, iteration_count=iterations, salt=secrets.token_bytes(SALT_SIZE)
    )
    return ScramKeys(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key)


def _lines(verifiers: Mapping[str, Mapping[str, ScramKeys]]) -> Iterator[str]:
    yield "# Written by `amqpmesh user add`: verifiers, no passwords.\n"
    for user, keys in sorted(verifiers.items()):
        for mechanism, entry in keys.items():
            # SASLprep leaves no control characters, so JSON's quoting is TOML's.
            yield f"\n[{json.dumps(user, ensure_ascii=False)}.{json.dumps(mechanism)}]\n"
            yield f"salt = {_base64(entry.salt)}\niterations = {entry.iterations}\n"
            yield f"stored_key = {_base64(entry.stored_key)}\nserver_key = {_base64(entry.server_key)}\n"


def _base64(data: bytes) -> str:
    return f'"{base64.b64encode(data).decode()}"'


def _read_user(user: str, table: object, file: Path) -> Iterator[tuple[str, ScramKeys]]:
    if not isinstance(table, Mapping) or not table:
        raise ConfigError(str(file), user, f"must be a table with {' and '.join(MECHANISMS)}")
    for mechanism, entry in table.items():
        yield mechanism, _read_keys(mechanism, entry, file, f"{user}.{mechanism}")


def _read_keys(mechanism: str, entry: object, file: Path, where: str) -> ScramKeys:
    if mechanism not in _KEY_SIZES:
        raise ConfigError(str(file), where, f"unknown mechanism; known are {', '.join(MECHANISMS)}")
    if not isinstance(entry, Mapping) or set(entry) != set(_FIELDS):
        raise ConfigError(str(file), where, f"must have exactly {', '.join(_FIELDS)}")
    salt, stored_key, server_key = (
        _read_bytes(entry[name], file, f"{where}.{name}") for name in ("salt", "stored_key", "server_key")
    )
    iterations = entry["iterations"]
    # Fewer iterations than RFC 7677 asks for protect nobody; more make each login slow.
    if not isinstance(iterations, int) or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ConfigError(str(file), f"{where}.iterations", f"must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    for name, data in (("stored_key", stored_key), ("server_key", server_key)):
        if len(data) != _KEY_SIZES[mechanism]:
            raise ConfigError(str(file), f"{where}.{name}", f"must be {_KEY_SIZES[mechanism]} octets")
    if not salt:
        raise ConfigError(str(file), f"{where}.salt", "is empty")
    return ScramKeys(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key)


def _read_bytes(text: object, file: Path, where: str) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except ValueError:
        pass  # the error follows below
    raise ConfigError(str(file), where, "must be base64")
