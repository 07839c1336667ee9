"""The files of a running router, read again: first all of them, then their content is put in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from amqpmesh.router.config.differences import row_pairs
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, LogConfig, RouterConfig, load
from amqpmesh.router.config.policy_trust import read_policy
from amqpmesh.router.runtime.credentials import ConnectorCredentials, Credentials
from amqpmesh.router.runtime.token_keys import TokenFiles

if TYPE_CHECKING:
    from amqpmesh.router.config.policy_file import PolicyText
    from amqpmesh.router.management.upgrade_requests import UpgradeState
    from amqpmesh.router.runtime.connectors import Connector
    from amqpmesh.router.runtime.shared_config import SharedConfig
    from amqpmesh.router.runtime.span_exporter import SpanSender

NewConfig: TypeAlias = RouterConfig | Path | Callable[[], RouterConfig] | None
"""A configuration, its file, or a function that reads it; None: none is read."""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The file that the command line has started a router with, and what else depends on it."""

    file: Path | None
    """None: there is none, only arguments."""
    read: Callable[[], RouterConfig]
    """Reads the configuration. Raises: ConfigError: it is not valid."""
    set_log: Callable[[LogConfig], object]
    """Lets the log of the process follow a change."""
    shared: SharedConfig | None = None
    """The configuration that the workers of the router share; None: there are none."""
    upgrade: Callable[[bool], UpgradeState] | None = None
    """Upgrades the router in place, unless its argument is True, and tells how far that is; None: it cannot be done.
    Raises: RequestError: it is refused."""
    as_in_file: Callable[[RouterConfig], RouterConfig] | None = None
    """Gives the configuration of a process that stands in for a router that router's id and files again; None: it has
    its own.
    """


NAMED: Final = 100
"""Users of a listener that are named for each kind of change; the number of the others is told."""


class UserChange(NamedTuple):
    """A change of a file of users."""

    event: str
    listener: str
    user: str | None = None
    others: int | None = None
    """The number of users that are not named."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The content of all files of a router."""

    accepting: dict[ListenerConfig, Credentials]
    """By the configuration that is to be in force."""
    connecting: dict[ConnectorConfig, ConnectorCredentials]
    on_demand: dict[Connector, ConnectorCredentials]
    policy: PolicyText | None
    tokens: TokenFiles | None
    users: tuple[UserChange, ...]
    """The changes of users."""
    sender: SpanSender | None = None
    """Of spans, to a collector that is new."""
    is_whole: bool = True
    """False: only files of listeners and connectors that change were read."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of all files of a router. It changes nothing, and may run in another thread."""

    current: RouterConfig
    listeners: Mapping[ListenerConfig, Credentials]
    on_demand: tuple[Connector, ...]

    def read(self, wanted: RouterConfig) -> Reloaded:
        """Read the files. Args: wanted: the configuration that is to be in force. Raises: ConfigError: a file is not
        valid.
        """
        mesh, policy = wanted.mesh, wanted.policy
        streams = [each for each in self.listeners if each not in self.current.listeners]
        accepting = Credentials.load_all((*wanted.listeners, *streams), mesh, self.listeners)
        return Reloaded(
            accepting=accepting,
            connecting={each: ConnectorCredentials.load(each, mesh) for each in wanted.connectors},
            on_demand={each: ConnectorCredentials.load(each.config, mesh) for each in self.on_demand},
            policy=None if policy is None else read_policy(policy, mesh),
            tokens=TokenFiles.read(wanted),
            users=tuple(self._user_changes(wanted, accepting)),
            sender=self._new_sender(wanted),
        )

    def read_changed(
        self, wanted: RouterConfig, connecting: Mapping[ConnectorConfig, ConnectorCredentials]
    ) -> Reloaded:
        """Read the files of those listeners and connectors alone that are to change. Args: connecting: the credentials
        of the connectors that run. Raises: as `read`.
        """
        mesh = wanted.mesh
        loaded = Credentials.load_all(
            (each for each in wanted.listeners if each not in self.listeners), mesh, self.listeners
        )
        accepting = {each: self.listeners.get(each) or loaded[each] for each in wanted.listeners}
        return Reloaded(
            accepting=accepting,
            connecting={
                each: connecting.get(each) or ConnectorCredentials.load(each, mesh) for each in wanted.connectors
            },
            on_demand={},
            policy=None,
            tokens=None,
            users=(),
            sender=self._new_sender(wanted),
            is_whole=False,
        )

    def _new_sender(self, wanted: RouterConfig) -> SpanSender | None:
        if wanted.tracing == self.current.tracing:
            return None
        from amqpmesh.router.runtime.span_exporter import new_sender  # here: most routers make no spans

        return new_sender(self.current.tracing, wanted.tracing)

    def _user_changes(self, wanted: RouterConfig, after: Mapping[ListenerConfig, Credentials]) -> Iterator[UserChange]:
        """Return which users of listeners have come, have gone, are disabled, enabled again, in other groups, or have
        another password.
        """
        for running, listener in row_pairs(self.current, wanted, "listeners"):
            if running is not None and listener is not None:
                yield from user_changes(listener.name, self.listeners[running], after[listener])


def configuration(new: NewConfig) -> RouterConfig | None:
    """Return a new configuration. Raises: ConfigError: it is not valid."""
    return load(new) if isinstance(new, Path) else new() if callable(new) else new


def user_changes(listener: str, before: Credentials, after: Credentials) -> Iterator[UserChange]:
    """Return the users of a listener that differ. Args: listener: its name."""
    old, new = before.users, after.users
    if old is None or new is None or old is new:
        return
    # User by user: an operation on whole sets of 100,000 names would hold all threads.
    found: dict[str, list[str]] = {event: [] for event in _USER_EVENTS}
    for user in new.names:
        if user not in old:
            found["user added"].append(user)
            continue
        if (user in new.disabled) != (user in old.disabled):
            found["user disabled" if user in new.disabled else "user enabled"].append(user)
        if old.groups_of(user) != new.groups_of(user):
            found["user groups changed"].append(user)
        if old.verifiers(user) != new.verifiers(user):
            found["user password changed"].append(user)
    found["user removed"] += (user for user in old.names if user not in new)
    for event, users in found.items():
        for user in nsmallest(NAMED, users):
            yield UserChange(event, listener, user)
        if len(users) > NAMED:
            yield UserChange(event, listener, others=len(users) - NAMED)


_USER_EVENTS: Final = (
    "user added",
    "user removed",
    "user disabled",
    "user enabled",
    "user groups changed",
    "user password changed",
)
