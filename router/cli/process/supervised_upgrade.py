"""The upgrade in place of a router with workers: its supervisor starts another supervisor, and hands over to it.

The steps are those of `in_place_upgrade.py`. Each new worker gets the listening sockets of the worker with its number,
and joins all workers of before. The order to move the clients is the one that a drain gives.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqpmesh.router.cli.process.in_place_upgrade import (
    READY,
    START_TIME,
    UNDER_WAY,
    UPGRADE,
    hand_over_to,
    stands_in,
    why_not,
)
from amqpmesh.router.io.dialing import Backoff
from amqpmesh.router.logs import event_log
from amqpmesh.router.management.service import CONFLICT, RequestError
from amqpmesh.router.management.upgrade_requests import UpgradeState
from amqpmesh.router.runtime.ending import MOVE_TIME
from amqpmesh.router.runtime.shared_drain import Order, read_order, write_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqpmesh.router.cli.process.in_place_upgrade import Predecessor
    from amqpmesh.router.config.file import ListenerConfig, RouterConfig

log = event_log.EventLog("amqpmesh.run")

STATE: Final = "upgrade"
"""The name of the file with the state that workers tell."""

ALONE: Final = "alone"
"""The name of the file that tells workers that the processes of before have ended."""


class SupervisedUpgrade:
    """The upgrade of a router, as its supervisor sees it: of the one of before, and of the one that follows."""

    def __init__(
        self,
        config: RouterConfig,
        folder: Path,
        places: Sequence[tuple[ListenerConfig, list[socket.socket]]],
        before: Predecessor | None,
        tell: Callable[[], object],
    ) -> None:
        """Args: places: the listeners as configured, each with its reserved sockets. tell: has the workers follow."""
        self._config = config
        self._folder = folder
        self._places = places
        self._before = before
        self._tell = tell
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff()
        self._failures = 0
        #: The time until which the successor must be ready, or at which the next one is started.
        self.due: float | None = None
        #: The process id of the successor that accepts the connections; None: there is none.
        self.successor: int | None = None

    @property
    def former(self) -> Path | None:
        """The folder of the workers of before; None: there are none, or they have ended."""
        found = None if self._before is None else self._before.inherited.door
        return None if found is None else Path(found)

    @property
    def files(self) -> list[int]:
        """The files to wait for, which workers must close."""
        found = [] if self._channel is None else [self._channel.fileno()]
        return found if self._before is None else [*found, self._before.channel.fileno()]

    def ready(self) -> None:
        """Note that all workers listen."""
        if self._before is not None:
            self._tell_state()
            self._before.inherited.close()
            with suppress(OSError):
                self._before.channel.send(READY)

    def request(self) -> None:
        """Begin, unless that is refused."""
        is_under_way = self._process is not None or self._before is not None
        reason = why_not(is_under_way=is_under_way)
        if reason is not None:
            log.warning("upgrade refused", reason=reason)
            self._tell_state("" if is_under_way else reason)
        else:
            self._begin()

    def go_on(self, now: float) -> None:
        """Act once the time `due` has come."""
        if self.due is None or now < self.due:
            return
        self.due = None
        if self._process is None:
            self._begin()
        else:
            self._fail(f"the new process has not started within {START_TIME:g} s")

    def readable(self, descriptor: int) -> None:
        """Read what another supervisor tells."""
        if self._channel is not None and descriptor == self._channel.fileno():
            if _heard(self._channel) == READY:
                self._succeed()
            else:
                self._fail("the new process has ended")
        elif self._before is not None and not _heard(self._before.channel):
            self._before.channel.close()
            self._before = None
            (self._folder / ALONE).touch()
            self._tell()
            log.info("router taken over")
            self._tell_state()
            if stands_in():
                self._begin()

    def end(self) -> None:
        """End a successor that is not ready."""
        if self._process is not None and self.successor is None:
            self._process.kill()
            self._process.wait()

    def _begin(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        try:
            with theirs:
                self._process = hand_over_to(self._channel, theirs, self._places, str(self._folder))
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        self.due = time.monotonic() + START_TIME
        log.info("upgrade started", pid=self._process.pid)
        self._tell_state()

    def _succeed(self) -> None:
        assert self._process is not None
        self.due, self.successor = None, self._process.pid
        log.info("successor ready", pid=self.successor)
        self._order(moves=True)

    def _fail(self, reason: str) -> None:
        log.error("upgrade failed", reason=reason)
        self.due = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self.successor is not None:
            self.successor = None
            self._order(moves=False)
        self._tell_state(reason)
        if stands_in():  # the router has no other process: without one it keeps this name
            self._failures += 1
            self.due = time.monotonic() + self._backoff.pause(self._failures)

    def _tell_state(self, failure: str = "") -> None:
        is_under_way = self._process is not None or self._before is not None
        _write_state(self._folder, UpgradeState(os.getpid(), is_under_way, stands_in(), failure))

    def _order(self, *, moves: bool) -> None:
        last = read_order(self._folder)
        until = time.monotonic() + (self._config.drain_timeout or MOVE_TIME)
        write_order(self._folder, Order(1 if last is None else last.number + 1, moves, None, until, moves))
        self._tell()


def asked(folder: Path, only_asks: bool) -> UpgradeState:
    """Have the supervisor begin, unless a request to a worker only asks for the state. Returns: the state.

    Raises: RequestError: it is refused.
    """
    state = _read_state(folder)
    if not only_asks:
        if state.under_way or state.stands_in:
            raise RequestError(CONFLICT, UNDER_WAY)
        state = state._replace(under_way=True, failure="")
        _write_state(folder, state)
        os.kill(state.process, UPGRADE)
    return state


def _read_state(folder: Path) -> UpgradeState:
    try:
        return UpgradeState(*json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # there was no upgrade yet
        return UpgradeState(os.getppid(), under_way=False, stands_in=stands_in(), failure="")


def _write_state(folder: Path, state: UpgradeState) -> None:
    with suppress(OSError):  # a full disk: then only the answers are wrong
        temporary = folder / f".{STATE}.{os.getpid()}"
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(folder / STATE)


def _heard(channel: socket.socket) -> bytes:
    """Return the next message; b"": the process at the other end has ended."""
    try:
        return channel.recv(64)
    except OSError:
        return b""
