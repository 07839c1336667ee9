"""The files of a running router, read again: first all of them, then their content is put in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from amqpmesh.router.config.file import ListenerConfig, RouterConfig, load
from amqpmesh.router.config.policy_trust import read_policy
from amqpmesh.router.runtime.credentials import ConnectorCredentials, Credentials
from amqpmesh.router.runtime.token_keys import TokenFiles

if TYPE_CHECKING:
    from amqpmesh.router.config.policy_file import PolicyText
    from amqpmesh.router.runtime.connectors import Connector

NewConfig: TypeAlias = RouterConfig | Path | Callable[[], RouterConfig] | None
"""A configuration, its file, or a function that reads it; None: none is read."""


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

    config: RouterConfig | None
    accepting: dict[ListenerConfig, Credentials]
    connecting: dict[Connector, ConnectorCredentials]
    policy: PolicyText | None
    tokens: TokenFiles | None
    users: tuple[UserChange, ...]
    """The changes of users, for the audit log."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of all files of a router. It changes nothing, and may run in another thread."""

    current: RouterConfig
    listeners: Mapping[ListenerConfig, Credentials]
    connectors: tuple[Connector, ...]

    def read(self, config: NewConfig) -> Reloaded:
        """Read the files. Args: config: the new configuration. Raises: ConfigError: a file is not valid."""
        # The new configuration comes first: its errors name the key that leads to a file.
        new = load(config) if isinstance(config, Path) else config() if callable(config) else config
        mesh, policy = self.current.mesh, self.current.policy
        accepting = {each: Credentials.load(each, mesh) for each in self.listeners}
        return Reloaded(
            config=new,
            accepting=accepting,
            connecting={each: ConnectorCredentials.load(each.config, mesh) for each in self.connectors},
            policy=None if policy is None else read_policy(policy, mesh),
            tokens=TokenFiles.read(self.current),
            users=() if self.current.audit is None else tuple(user_changes(self.listeners, accepting)),
        )


def user_changes(
    before: Mapping[ListenerConfig, Credentials], after: Mapping[ListenerConfig, Credentials]
) -> Iterator[UserChange]:
    """Return which users of listeners have come, have gone, are disabled, enabled again, or in other groups."""
    for listener, credentials in after.items():
        old, new = before[listener].users, credentials.users
        if old is None or new is None:
            continue
        names, known = frozenset(new), frozenset(old)
        for event, users in (
            ("user added", names - known),
            ("user removed", known - names),
            ("user disabled", (new.disabled - old.disabled) & known),
            ("user enabled", (old.disabled - new.disabled) & names),
            ("user groups changed", {each for each in names & known if old.groups_of(each) != new.groups_of(each)}),
        ):
            for user in sorted(users)[:NAMED]:
                yield UserChange(event, listener.name, user)
            if len(users) > NAMED:
                yield UserChange(event, listener.name, others=len(users) - NAMED)
