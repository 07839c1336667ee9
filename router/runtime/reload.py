"""The files of a running router, read again: first all of them, then their content is put in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from amqpmesh.router.config.file import ListenerConfig, RouterConfig, load
from amqpmesh.router.config.policy_trust import read_policy
from amqpmesh.router.runtime.credentials import ConnectorCredentials, Credentials
from amqpmesh.router.runtime.token_keys import TokenFiles

if TYPE_CHECKING:
    from amqpmesh.router.config.policy_file import PolicyText
    from amqpmesh.router.runtime.connectors import Connector

NewConfig: TypeAlias = RouterConfig | Path | Callable[[], RouterConfig] | None
"""A configuration, its file, or a function that reads it; None: none is read."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The content of all files of a router."""

    config: RouterConfig | None
    accepting: dict[ListenerConfig, Credentials]
    connecting: dict[Connector, ConnectorCredentials]
    policy: PolicyText | None
    tokens: TokenFiles | None


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of all files of a router. It changes nothing, and may run in another thread."""

    current: RouterConfig
    listeners: tuple[ListenerConfig, ...]
    connectors: tuple[Connector, ...]

    def read(self, config: NewConfig) -> Reloaded:
        """Read the files. Args: config: the new configuration. Raises: ConfigError: a file is not valid."""
        mesh, policy = self.current.mesh, self.current.policy
        return Reloaded(
            config=load(config) if isinstance(config, Path) else config() if callable(config) else config,
            accepting={each: Credentials.load(each, mesh) for each in self.listeners},
            connecting={each: ConnectorCredentials.load(each.config, mesh) for each in self.connectors},
            policy=None if policy is None else read_policy(policy, mesh),
            tokens=TokenFiles.read(self.current),
        )
