"""The audit log on its way to the disk: a thread writes, and the event loop never waits for it.

If the disk is slow or full, lines wait in memory up to a limit. Beyond it they are lost and counted: the next line that
finds room has the count, and so has a line of the log. The router relays on.
"""

from __future__ import annotations

import errno
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.audit.trail import SECOND, AuditTrail
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.audit_file import AuditFile, file_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.config.observability import AuditConfig
    from amqpmesh.router.core import Core

AT_ONCE: Final = 2**15
"""Octets that are written in one call."""

RETRY: Final = 1.0
"""Seconds until the thread tries again what has failed."""

LOOK: Final = 1.0
"""Seconds between two looks at what was lost."""

TOLD: Final = 10.0
"""Seconds between two lines of the log about lost lines."""

END_TIME: Final = 5.0
"""Seconds that the disk has for the rest when the router ends."""

PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""Errors at the start that do not show a wrong configuration."""

log = event_log.EventLog("amqpmesh.audit")


class AuditWriter:
    """The writer of one router's audit log, from `begin` until `end`."""

    def __init__(self, config: RouterConfig) -> None:
        assert config.audit is not None, "it is on"
        worker = config.worker
        self._config = config
        self._memory = config.audit.memory
        path = file_of(config.audit, None if worker is None else worker.number)
        self._file = AuditFile(path, config.audit.max_size, config.audit.keep)
        self._waiting: deque[bytes] = deque()
        #: Octets so far: counted by the loop when it accepts them, and by the thread when it has written them.
        self._accepted = 0
        self._written = 0
        self._filled = threading.Event()
        #: The thread opens the file again; or it tries now what has failed; or it ends when all is written.
        self._reopens = False
        self._hurry = threading.Event()
        self._ends = False
        self.failure: str | None = None
        self._trail: AuditTrail | None = None
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=self._write, name=f"audit log of {config.id}", daemon=True)

    def writes(self, config: RouterConfig) -> bool:
        """Tell whether the audit log of a configuration is in the same file."""
        number = None if config.worker is None else config.worker.number
        return config.audit is not None and _found(file_of(config.audit, number)) == _found(self.path)

    @property
    def path(self) -> Path:
        """The file that it writes."""
        return self._file.path

    def change(self, config: AuditConfig) -> None:
        """Follow other limits of the file that it writes."""
        self._memory = config.memory
        self._file.limit(config.max_size, config.keep)

    def open(self) -> None:
        """Open the file, before `begin` writes to it. Raises: ConfigError: it cannot be written."""
        try:
            self._file.open()
        except OSError as error:
            if error.errno not in PASSING:
                raise ConfigError(str(self._file.path), "audit.file", error.strerror or str(error)) from None

    def close(self) -> None:
        """Close the file, instead of `begin`."""
        self._file.close()

    def begin(self, core: Core, wall_clock: Callable[[], float]) -> None:
        """Write events of a router from now on. Args: wall_clock: seconds since 1970."""
        context, worker = core.context, self._config.worker
        named = {"router": context.id} if worker is None else {"router": worker.name, "worker": worker.number}
        self._trail = context.audit = AuditTrail(
            self.offer,
            lambda steps: context.schedule(context.now + SECOND, lambda: context.chores.put_off(steps())),
            wall_clock,
            **named,
        )
        self._thread.start()

    async def run(self) -> None:
        """Log what is lost, again and again, until the `end`."""
        assert self._trail is not None
        lost, told_at = 0, -math.inf
        with self._scope:
            while True:
                await trio.sleep(LOOK)
                now = trio.current_time()
                if (self._trail.lost != lost or self.failure) and now - told_at >= TOLD:
                    log.warning("audit lost", lines=self._trail.lost - lost, reason=self.failure or "no room")
                    lost, told_at, self.failure = self._trail.lost, now, None

    async def end(self) -> None:
        """Write all lines, within `END_TIME`; no others are accepted by then."""
        self._scope.cancel()
        if self._trail is None or not self._thread.is_alive():
            return
        run_to_end(self._trail.repeats())
        self._ends = True
        self._hurry.set()
        self._filled.set()
        await trio.to_thread.run_sync(self._thread.join, END_TIME)
        if self._thread.is_alive() or self._waiting:
            log.warning("audit lost", lines=len(self._waiting), reason=self.failure or "the disk takes too long")

    def offer(self, line: bytes) -> bool:
        """Accept a line. Returns: False: there is no room."""
        if self._accepted - self._written + len(line) > self._memory:
            return False
        self._accepted += len(line)
        self._waiting.append(line)
        self._filled.set()
        return True

    def reopen(self) -> None:
        """Open the file again by its name: another program may have renamed it."""
        self._reopens = True
        self._hurry.set()
        self._filled.set()

    # -------------------------------------------------------------------------------------------------- from the thread

    def _write(self) -> None:
        try:
            self._write_until_end()
        finally:
            self._file.close()

    def _write_until_end(self) -> None:
        while not (self._ends and not self._waiting):
            self._filled.wait()
            self._filled.clear()
            if self._reopens:
                self._reopens = False
                self._file.close()
                self._try(b"")
            while self._waiting:
                if self._try(self._next()):
                    continue
                if self._ends:  # it was the last attempt
                    return
                self._hurry.wait(RETRY)
                self._hurry.clear()

    def _next(self) -> bytes:
        """Return the lines to write next, which stay in the queue until they are written."""
        size, lines = 0, []
        for line in list(self._waiting):
            if size and size + len(line) > AT_ONCE:
                break
            lines.append(line)
            size += len(line)
        return b"".join(lines)

    def _try(self, lines: bytes) -> bool:
        """Write lines. Returns: False: it has failed, and they stay in the queue."""
        try:
            self._file.append(lines)
        except OSError as error:
            self.failure = f"{self._file.path}: {error.strerror or error}"
            return False
        except Exception as error:  # an internal error: the thread lives on
            log.error("internal error", exception=error)
            self.failure = "internal error"
            return False
        left = len(lines)
        while left:
            line = self._waiting.popleft()
            left -= len(line)
            self._written += len(line)
        return True


def _found(file: Path) -> Path:
    """Return the path of a file by its real directory: one file may be named in several ways."""
    return file.parent.resolve() / file.name
