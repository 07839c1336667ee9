"""Password users: `users.toml`, which holds verifiers and no passwords (RFC 5802, 3).

A table for each user has one table for each mechanism:

    ["alice"."SCRAM-SHA-256"]
    salt = "..."          # base64, as are the keys
    iterations = 65536
    stored_key = "..."
    server_key = "..."

A user with `disabled = true` in its own table cannot log in, and keeps its verifiers. `groups = ["readers"]` there
names groups, for the policy.

Names are stored as SASLprep (RFC 4013) prepares them, so that each name has one spelling.

scramp is imported only to check a password: routers without users do not need it.
"""

import base64
import fcntl
import hmac
import os
import secrets
import tempfile
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from amqpmesh.router.config.users_text import OtherTextError, lines, users_in_parts, written_users

PLAIN_VERIFIER = "SCRAM-SHA-256"
_KEY_SIZES = {"SCRAM-SHA-512": 64, "SCRAM-SHA-256": 32, "SCRAM-SHA-1": 20}  # octets
MECHANISMS = tuple(_KEY_SIZES)
_FIELDS = ("salt", "iterations", "stored_key", "server_key")


class NoSuchUserError(CommandError):
    """A user that is not there."""


class ThereAlreadyError(CommandError):
    """A new user that has the name of another one."""


class TooManyUsersError(CommandError):
    """A new user beyond the limit of a file."""


class Users:
    """The verifiers of a file, which `SaslServer` asks. Immutable: a changed file gives a new object."""

    __slots__ = ("_groups", "_verifiers", "disabled", "iterations")

    def __init__(
        self,
        verifiers: Mapping[str, Mapping[str, ScramKeys]],
        disabled: frozenset[str] = frozenset(),
        groups: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Args: verifiers: by user and mechanism. disabled: the users of these that cannot log in. groups: by user, of
        those that are in some.
        """
        self._groups = {} if groups is None else {user: names for user, names in groups.items() if names}
        # The inner mappings are shared with the users before: they never change, and there may be 100,000.
        self._verifiers = dict(verifiers)
        self.disabled = disabled
        counts = {keys.iterations for verifiers in self._verifiers.values() for keys in verifiers.values()}
        #: The iteration counts of the verifiers, each once, for `Authenticator`.
        self.iterations = tuple(sorted(counts)) or (SCRAM_ITERATIONS,)

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """Return the users of several files, each of which is in one of them."""
        if len(parts) == 1:
            return parts[0]
        verifiers, groups = ChainMap(*(each._verifiers for each in parts)), ChainMap(*(each._groups for each in parts))
        return cls(verifiers, frozenset().union(*(each.disabled for each in parts)), groups)

    @classmethod
    def load(cls, *files: Path, before: Self | None = None) -> Self:
        """Read files such as `users.toml`, together.

        Args: before: users whose verifiers are used again where they are the same, so that no others have to be freed.
        Raises: ConfigError: the file, the user and mechanism, and the fault; or a user is in two files.
        """
        import scramp  # noqa: F401 - now, or all connections would wait for the import at the first login

        parts = [cls._in_file(file, before) for file in files]
        if len(parts) > 1:
            found: dict[str, Path] = {}
            for file, part in zip(files, parts, strict=True):
                for user in part.names:
                    if user in found:
                        raise ConfigError(str(file), user, f"is in {found[user]}, too")
                    found[user] = file
        return cls.together(parts)

    @classmethod
    def _in_file(cls, file: Path, before: Self | None) -> Self:
        # Its text may be read three times: a pipe has it once.
        for users in (written_users, users_in_parts) if file.is_file() else ():
            with suppress(OtherTextError, OSError, UnicodeDecodeError):  # a person has written it, or it has faults
                return cls._in_tables(users(file), file, before)
        return cls._in_tables(parsed(file).items(), file, before)

    @classmethod
    def _in_tables(cls, tables: Iterable[tuple[str, object]], file: Path, before: Self | None) -> Self:
        """Return the users in a file. Args: tables: of its users, by their names. before: as of `load`."""
        verifiers, disabled, groups = {}, set(), {}
        for user, table in tables:
            if isinstance(table, dict) and "disabled" in table:
                if not isinstance(table["disabled"], bool):
                    raise ConfigError(str(file), f"{user}.disabled", "must be true or false")
                if table.pop("disabled"):
                    disabled.add(user)
            if isinstance(table, dict) and "groups" in table:
                groups[user] = _read_groups(table.pop("groups"), file, f"{user}.groups")
            keys: Mapping[str, ScramKeys] = dict(_read_user(user, table, file))
            known = None if before is None else before.verifiers(user)
            verifiers[user] = known if known == keys else keys
        return cls(verifiers, frozenset(disabled), groups)

    def __contains__(self, user: str) -> bool:
        """Tell whether there is such a user."""
        return user in self._verifiers

    @property
    def count(self) -> int:
        """The number of users."""
        return len(self._verifiers)

    @property
    def names(self) -> tuple[str, ...]:
        """The users' names, in the order of the files."""
        return tuple(self._verifiers)

    def __iter__(self) -> Iterator[str]:
        """Return the users' names, sorted."""
        return iter(sorted(self._verifiers))

    def verifiers(self, user: str) -> Mapping[str, ScramKeys]:
        """Return the verifiers of a user, by mechanism; empty, if there is no such user."""
        return self._verifiers.get(user, {})

    def groups_of(self, user: str) -> tuple[str, ...]:
        """Return the names of the groups that a user is in; none, if there is no such user."""
        return self._groups.get(user, ())

    def may_log_in(self, user: str) -> bool:
        """Tell whether there is such a user, and it is not disabled."""
        return user in self and user not in self.disabled

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        """Return the verifier of a user for a mechanism; None: there is none, or the user is disabled."""
        return None if user in self.disabled else self.verifiers(user).get(mechanism)

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
        """Return these users and a further one, or one with another password. A disabled user stays disabled.

        Args: iterations: of the verifiers, `MIN_ITERATIONS` to `MAX_ITERATIONS`.
        Raises: CommandError: SASLprep refuses the name or password, or it is empty.
        """
        name, secret = prepared(user, "user name"), prepared(password, "password")
        keys = {mechanism: verifier(mechanism, secret, iterations) for mechanism in MECHANISMS}
        return type(self)({**self._verifiers, name: keys}, self.disabled, self._groups)

    def remove(self, user: str) -> Self:
        """Return these users without one. Raises: CommandError: there is no such user."""
        name = self._known(user)
        left = {other: keys for other, keys in self._verifiers.items() if other != name}
        groups = {other: names for other, names in self._groups.items() if other != name}
        return type(self)(left, self.disabled - {name}, groups)

    def limited_to(self, others: Self) -> Self:
        """Return these users without the right to log in of those who may not among others."""
        lost = {user for user in self._verifiers if not others.may_log_in(user)}
        return type(self)(self._verifiers, self.disabled | lost, self._groups)

    def switch(self, user: str, *, disabled: bool) -> Self:
        """Return these users with one that can log in, or cannot. Raises: CommandError: there is no such user."""
        name = self._known(user)
        changed = self.disabled | {name} if disabled else self.disabled - {name}
        return type(self)(self._verifiers, changed, self._groups)

    def group(self, user: str, groups: Iterable[str]) -> Self:
        """Return these users with one that is in certain groups, in place of those before.

        Raises: CommandError: there is no such user, or a group has no name.
        """
        name, names = self._known(user), tuple(dict.fromkeys(groups))
        if not all(map(_is_name, names)):
            raise CommandError("the name of a group is empty, or is not printable")
        return type(self)(self._verifiers, self.disabled, {**self._groups, name: names})

    def _known(self, user: str) -> str:
        """Return the name of a user as it is stored. Raises: CommandError: there is no such user."""
        name = prepared(user, "user name")
        if name not in self:
            raise NoSuchUserError(f"there is no user {name}")
        return name

    def save(self, file: Path) -> None:
        """Write the file atomically, readable by its owner only; an existing file keeps its owner, if that can be."""
        target = Path(os.path.realpath(file))  # a link stays a link
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # mkstemp: mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                # root adds a user: the service, which has another user, is to read the file as before.
                with suppress(FileNotFoundError, PermissionError):
                    before = target.stat()
                    os.fchown(stream.fileno(), before.st_uid, before.st_gid)
                stream.writelines(lines(self._verifiers, self.disabled, self._groups))
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


def switch_user(file: Path, user: str, *, disabled: bool) -> None:
    """Disable a user of a file, or enable it again. Raises: as `remove_user`."""
    with _folder_lock(file.absolute().parent):
        Users.load(file).switch(user, disabled=disabled).save(file)


def group_user(file: Path, user: str, groups: Iterable[str]) -> None:
    """Set the groups of a user of a file. Args: groups: none: the user is in none. Raises: as `remove_user`."""
    with _folder_lock(file.absolute().parent):
        Users.load(file).group(user, groups).save(file)


def change_user(
    files: Sequence[Path],
    user: str,
    change: Callable[[Users], Users],
    *,
    is_new: bool,
    most: int,
    before: Users | None = None,
) -> Users:
    """Change a user in that of several files that has it; a new one comes into the first.

    Args: change: returns the file's users after the change. most: users of a file, up to which it gets further ones.
        before: as of `Users.load`.
    Returns: the users of all files after it.
    Raises: ConfigError: one of them is not a file of users. CommandError: `change` raises it. NoSuchUserError,
        ThereAlreadyError, TooManyUsersError. OSError: writing failed.
    """
    with ExitStack() as locks:
        for folder in sorted({file.absolute().parent for file in files}):
            locks.enter_context(_folder_lock(folder))
        name = prepared(user, "user name")
        found = {file: Users.load(file, before=before) for file in files}
        there = next((file for file, users in found.items() if name in users), None)
        if is_new and there is not None:
            raise ThereAlreadyError(f"there is a user {name} already")
        if is_new and found[files[0]].count >= most:
            raise TooManyUsersError(f"the file has {most} users already: see runtime_users")
        if not is_new and there is None:
            raise NoSuchUserError(f"there is no user {name}")
        file = there or files[0]
        found[file] = change(found[file])
        found[file].save(file)
        return Users.together(tuple(found.values()))


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


def _read_user(user: str, table: object, file: Path) -> Iterator[tuple[str, ScramKeys]]:
    if not isinstance(table, Mapping) or not table:
        raise ConfigError(str(file), user, f"must be a table with {' and '.join(MECHANISMS)}")
    for mechanism, entry in table.items():
        yield mechanism, _read_keys(mechanism, entry, file, f"{user}.{mechanism}")


def _read_groups(given: object, file: Path, where: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(each, str) and _is_name(each) for each in given):
        raise ConfigError(str(file), where, "must be a list of names")
    return tuple(dict.fromkeys(given))


def _is_name(text: str) -> bool:
    return bool(text) and text.isprintable()


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
