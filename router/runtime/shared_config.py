"""The configuration that the workers of one router share: a file in their private folder.

One worker makes a change, while it holds a lock, and writes the file; then all others follow it. A worker that is
started again begins with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from amqpmesh.router.config.differences import in_force
from amqpmesh.router.config.edits import EditError
from amqpmesh.router.config.file import RouterConfig, lines, parse
from amqpmesh.router.config.tables import parsed_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from amqpmesh.router.config.mesh import WorkerConfig

NAME: Final = "config"
"""The name of the file."""

LOCK: Final = "config.lock"
"""The name of the file that is locked during a change."""

FOLLOW: Final = signal.SIGUSR1
"""The signal to a worker that it has to follow; to the supervisor, that it has to tell all workers."""

PATIENCE: Final = 3.0
"""Seconds that a change waits for another one; other requests to this worker wait for it."""

POLL: Final = 0.02
"""Seconds between two attempts to get the lock: another process does not tell when it releases it."""


class SharedCost(NamedTuple):
    """A cost that was changed alone, while the router runs: of all connections of a listener or connector."""

    cost: int
    number: int
    """Tells this change from earlier ones of the same cost: the last change wins."""


class SharedState(NamedTuple):
    """The configurations of a whole router, before it is divided."""

    applied: int
    """The number of times that a file was applied."""
    wanted: RouterConfig
    """The one that was applied last, or that the router was started with."""
    running: RouterConfig
    """The one in force, with the changes of management."""
    costs: Mapping[str, SharedCost] = MappingProxyType({})
    """By the identity of a listener or connector: the cost that was changed since a file was applied."""
    changed: int = 0
    """The number of times that a cost was changed."""
    users: int = 0
    """The number of times that management has changed a file of users."""


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """The shared configuration, as one worker uses it."""

    folder: Path
    started: RouterConfig
    """The configuration that the router was started with."""
    part_of: Callable[[RouterConfig], RouterConfig]
    """Derives the worker's configuration from one of the router."""
    tell: Callable[[], object]
    """Has all workers follow."""

    def read(self) -> SharedState:
        """Read the file; without one nothing has changed since the start. Raises: OSError."""
        return read_state(self.folder, self.started)

    def write(self, state: SharedState) -> None:
        """Write the file, as a whole. Raises: OSError."""
        self.publish(self.prepare(state))

    def prepare(self, state: SharedState) -> Path:
        """Write a file beside it, which `publish` puts in its place: what may fail before workers are changed.

        Raises: OSError: the disk is full; then nothing is left of it.
        """
        texts = {name: "\n".join(lines(getattr(state, name), brief=True)) for name in ("wanted", "running")}
        descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=f".{NAME}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                counts = {"applied": state.applied, "changed": state.changed, "users": state.users}
                json.dump({**counts, "costs": dict(state.costs), **texts}, stream)
        except OSError:
            os.unlink(temporary)
            raise
        return Path(temporary)

    def publish(self, prepared: Path) -> None:
        """Put a prepared file in force. Raises: OSError; then it is gone."""
        try:
            prepared.replace(self.folder / NAME)
        except OSError:
            prepared.unlink()
            raise

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Keep other workers from changes. Raises: EditError: another change takes too long."""
        with (self.folder / LOCK).open("wb") as stream:
            until = trio.current_time() + PATIENCE
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if trio.current_time() >= until:
                        raise EditError("another worker makes a change: try again") from None
                    await trio.sleep(POLL)
            yield


def read_state(folder: Path, started: RouterConfig) -> SharedState:
    """Read the shared configuration. Args: started: the one that the router was started with. Raises: OSError."""
    try:
        told: dict[str, Any] = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return SharedState(0, started, started)
    wanted, running = (parse(parsed_text(told[name].encode(), folder), _HERE) for name in ("wanted", "running"))
    costs = {identity: SharedCost(*cost) for identity, cost in told["costs"].items()}
    return SharedState(told["applied"], wanted, running, costs, told["changed"], told["users"])


_HERE: Final = Path("config")
"""The place of the text: its paths start at the working directory, or are absolute."""


def whole_in_force(running: RouterConfig, wanted: RouterConfig, worker: WorkerConfig) -> RouterConfig:
    """Return the configuration of a whole router that its workers can put in force."""
    return replace(in_force(replace(running, worker=worker), replace(wanted, worker=worker)), worker=None)
