"""Who may connect with a password: `users.toml`, which holds verifiers and no passwords (RFC 5802, 3).

A table per user, and in it one per mechanism:

    ["alice"."SCRAM-SHA-256"]
    salt = "..."          # base64, as are the keys
    iterations = 65536
    stored_key = "..."
    server_key = "..."

Names are kept as SASLprep (RFC 4013) makes them, so that one name has one spelling.

scramp is imported where a password is looked at: routers without users need not read it.
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
    """The verifiers of a file: what `SaslServer` asks. Unchangeable: a new file is a new object."""

    __slots__ = ("_verifiers", "iterations")

    def __init__(self, verifiers: Mapping[str, Mapping[str, ScramKeys]]) -> None:
        """Args: verifiers: by user and mechanism."""
        self._verifiers = {user: dict(keys) for user, keys in verifiers.items()}
        counts = {keys.iterations for verifiers in self._verifiers.values() for keys in verifiers.values()}
        #: The counts of the verifiers, each once: what `Authenticator` asks for.
        self.iterations = tuple(sorted(counts)) or (SCRAM_ITERATIONS,)

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read `users.toml`.

        Raises: ConfigError: the file, the user and mechanism, and what is wrong with it.
        """
        import scramp  # noqa: F401 - now, rather than while all connections wait for the first user's

        return cls({user: dict(_read_user(user, table, file)) for user, table in parsed(file).items()})

    def __contains__(self, user: str) -> bool:
        """Whether there is such a user."""
        return user in self._verifiers

    def __iter__(self) -> Iterator[str]:
        """The users' names, in order."""
        return iter(sorted(self._verifiers))

    def verifiers(self, user: str) -> Mapping[str, ScramKeys]:
        """The user's verifiers, by mechanism; none, if there is no such user."""
        return self._verifiers.get(user, {})

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        """The user's verifier for a mechanism, None if there is none."""
        return self.verifiers(user).get(mechanism)

    def verify_plain(self, user: str, password: str) -> bool:
        """Whether this is the user's password: what SCRAM-SHA-256 would store for it is compared.

        Takes as long for a user that does not exist. Both arguments are prepared with SASLprep already.
        """
        known = self.scram_keys(user, PLAIN_VERIFIER)
        keys = known or ScramKeys(bytes(SALT_SIZE), decoy_iterations(user, self.iterations), b"", b"")
        # RFC 5802, 3: StoredKey = H(HMAC(SaltedPassword, "Client Key")).
        salted = pbkdf2_hmac("sha256", password.encode(), keys.salt, keys.iterations)
        stored = sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        return hmac.compare_digest(stored, keys.stored_key) and known is not None

    def add(self, user: str, password: str, iterations: int = SCRAM_ITERATIONS) -> Self:
        """The same users and one more, or with another password.

        Args: iterations: of the verifiers, `MIN_ITERATIONS` to `MAX_ITERATIONS`.
        Raises: CommandError: a name or password that SASLprep refuses, or that is empty.
        """
        name, secret = prepared(user, "user name"), prepared(password, "password")
        keys = {mechanism: verifier(mechanism, secret, iterations) for mechanism in MECHANISMS}
        return type(self)({**self._verifiers, name: keys})

    def remove(self, user: str) -> Self:
        """The same users without one. Raises: CommandError: there is no such user."""
        name = prepared(user, "user name")
        if name not in self:
            raise CommandError(f"there is no user {name}")
        return type(self)({other: keys for other, keys in self._verifiers.items() if other != name})

    def save(self, file: Path) -> None:
        """Write the file at once or not at all, for its owner's eyes only."""
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
    """Add a user to a file, which is made if it is not there; one of that name gets another password.

    Raises: ConfigError: the file is there and is none of ours. CommandError: as `Users.add`. OSError: writing failed.
    """
    with _locked(file.absolute().parent):
        users = Users.load(file) if file.exists() else Users({})
        users.add(user, password, iterations).save(file)


def remove_user(file: Path, user: str) -> None:
    """Take a user out of a file.

    Raises: ConfigError: the file is not there, or is none of ours. CommandError: as `Users.remove`. OSError: writing
        failed.
    """
    with _locked(file.absolute().parent):
        Users.load(file).remove(user).save(file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # Two that add at the same time must not lose one; the file itself is replaced, so its folder is locked.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def prepared(text: str, what: str) -> str:
    """The text under SASLprep (RFC 4013). Raises: CommandError, which never holds the text."""
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
    """What a server stores for a password, with a fresh salt."""
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
    # Fewer than RFC 7677 asks for protects nobody; every log-in waits for them.
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
        pass  # said below, as for what is no text at all
    raise ConfigError(str(file), where, "must be base64")
