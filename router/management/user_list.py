"""Lists of password users, which read a row when it is looked at.

A file may have a hundred thousand users, and a snapshot is taken several times a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from amqpmesh.router.statistics.configured import UserStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.config.users import Users


class _Part(NamedTuple):
    """The users of some listeners, which have the same files."""

    listener: str | None
    listeners: tuple[str, ...]
    users: Users
    begin: int
    """The place of the first one in the list."""


class UserList(Sequence[UserStatistics]):
    """The users of all listeners: those of the same files once, in the order of the files.

    The users of a part never change: a changed file gives another `Users`. A row that was looked at is kept, so that
    several orders of one list share it.
    """

    def __init__(self, parts: Iterable[tuple[str | None, tuple[str, ...], Users]]) -> None:
        """Args: parts: the attributes `listener` and `listeners` of rows, and their users."""
        self._parts: list[_Part] = []
        self._length = 0
        for listener, listeners, users in parts:
            self._parts.append(_Part(listener, listeners, users, self._length))
            self._length += users.count
        self._names: list[tuple[str, ...]] = []
        self._rows: list[UserStatistics | None] = []

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    @overload
    def __getitem__(self, at: int) -> UserStatistics: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[UserStatistics]: ...
    def __getitem__(self, at: int | slice) -> UserStatistics | Sequence[UserStatistics]:
        """Return a row, or several. Raises: IndexError: there is no such row."""
        if isinstance(at, slice):
            return [self._row(each) for each in range(*at.indices(self._length))]
        if not -self._length <= at < self._length:
            raise IndexError(at)
        return self._row(at % self._length)

    def _row(self, at: int) -> UserStatistics:
        if not self._rows:
            self._rows = [None] * self._length
            self._names = [part.users.names for part in self._parts]
        row = self._rows[at]
        if row is None:
            number = next(n for n in reversed(range(len(self._parts))) if self._parts[n].begin <= at)
            part = self._parts[number]
            name = self._names[number][at - part.begin]
            row = self._rows[at] = user_statistics(part.listener, part.listeners, part.users, name)
        return row


def listed_users(listeners: Iterable[ListenerConfig], users_of: Callable[[ListenerConfig], Users | None]) -> UserList:
    """Return the users in the files of listeners. Args: users_of: returns those of a listener."""
    having = [each for each in listeners if each.users_files]
    found = {each.users_files: users for each in reversed(having) if (users := users_of(each)) is not None}
    return UserList((*named(each, having), found.pop(each.users_files)) for each in having if each.users_files in found)


def named(listener: ListenerConfig, listeners: Iterable[ListenerConfig]) -> tuple[str | None, tuple[str, ...]]:
    """Return the attributes `listener` and `listeners` of the users of a listener. Args: listeners: all with users."""
    having = [each for each in listeners if each.users_files]
    same = tuple(each.name for each in having if each.users_files == listener.users_files)
    return (None if len(same) == len(having) else same[0]), same


def user_statistics(listener: str | None, listeners: tuple[str, ...], users: Users, name: str) -> UserStatistics:
    """Return the row of a user. Args: listener, listeners: the attributes of those names."""
    return UserStatistics(
        name=name,
        listener=listener,
        listeners=listeners,
        groups=users.groups_of(name),
        disabled=name in users.disabled,
    )
