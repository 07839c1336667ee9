"""The upgrade of a router in place: its process starts a successor, which takes its listening sockets over.

Two routers of one id are refused by the mesh, and a router that serves clients cannot change its id. So a router `A`
is upgraded in two steps, each of which is a drain to the other process behind the same port. The new program starts as
`A.old`, and the clients of `A` move to it. Once `A` has ended, the new program starts as `A`, and the clients of
`A.old` move there. If a successor does not start, or dies, the one that is there goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.io.dialing import Backoff
from amqpmesh.router.logs import event_log
from amqpmesh.router.management.service import CONFLICT, RequestError
from amqpmesh.router.management.upgrade_requests import UpgradeState
from amqpmesh.router.runtime.inherited import Inherited, give
from amqpmesh.router.runtime.router import ending_of, succession_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.config.file import ListenerConfig, RouterConfig
    from amqpmesh.router.runtime.ending import Ending
    from amqpmesh.router.runtime.router import Router
    from amqpmesh.router.runtime.succession import Succession

log = event_log.EventLog("amqpmesh.run")

PREDECESSOR: Final = "AMQPMESH_PREDECESSOR"
"""The environment variable with the number of the channel to the predecessor."""

STANDS_IN: Final = "AMQPMESH_STANDS_IN"
"""The environment variable that has a successor stand in for the router, and start another one then."""

UPGRADE: Final = signal.SIGUSR2
"""The signal to upgrade."""

UNDER_WAY: Final = "one is under way"

START_TIME: Final = 60.0
"""Seconds for a successor to start."""

JOIN_TIME: Final = 5.0
"""Seconds for a successor to find a path to its predecessor, before it takes over without."""

FETCH_TIME: Final = 2.0
"""Seconds for a worker to give its listening sockets."""

END_TIME: Final = 1.0
"""Seconds for the end of a process that has closed its channel."""

READY: Final = b"R"
"""The message of a successor: it accepts connections."""

DOOR: Final = "door"
"""The name of the socket in the private folder at which the successor joins its predecessor."""


class UpgradeError(Exception):
    """A successor that has not started, or has died."""


class Predecessor:
    """The process that this one takes over."""

    def __init__(self, channel: socket.socket) -> None:
        """Read what it has sent. Raises: OSError, ValueError."""
        self.channel = channel
        self.inherited = Inherited.receive(channel)
        channel.setblocking(False)

    async def take_over(self, router: Router) -> None:
        """Take a router over that runs, and wait for the end of the process that it had before."""
        succession = succession_of(router)
        self.inherited.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._be_ready, succession)
            await heard(self.channel)
            nursery.cancel_scope.cancel()  # it may have been killed before this one was ready
        self.channel.close()
        succession.part()
        if self.inherited.door is not None:  # as above
            shutil.rmtree(Path(self.inherited.door).parent, ignore_errors=True)
        log.info("router taken over")

    async def _be_ready(self, succession: Succession) -> None:
        if self.inherited.door is not None:
            succession.join(self.inherited.door)
            with trio.move_on_after(JOIN_TIME):
                await succession.until_joined()
        with suppress(OSError):  # it has ended already
            self.channel.send(READY)


class FormerWorkers:
    """The workers of the processes that a router's processes take over, as one of its workers sees them."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        """Get the listening sockets of the worker with the same number, if it runs. Args: folder: of their sockets."""
        self._doors = [str(folder / str(each)) for each in range(1, count + 1)]
        self._succession: Succession | None = None
        self.inherited: Inherited | None = None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(FETCH_TIME)
            try:
                channel.connect(str(giving_path(folder, number)))
                self.inherited = Inherited.receive(channel)
            except (OSError, ValueError) as error:  # then it listens beside
                log.warning("no sockets inherited", reason=str(error))

    async def join(self, router: Router) -> None:
        """Connect to these workers, and wait for a path to one of them."""
        self._succession = succession_of(router)
        if self.inherited is not None:
            self.inherited.close()
        for door in self._doors:
            self._succession.join(door)
        with trio.move_on_after(JOIN_TIME):
            await self._succession.until_joined()

    def part(self) -> None:
        """Connect to them no more: they have ended."""
        if self._succession is not None:
            self._succession.part()
            self._succession = None


def giving_path(folder: Path, number: int) -> Path:
    """Return the path of the socket at which a worker gives its listening sockets to a successor."""
    return folder / f"give-{number}"


def why_not(*, is_under_way: bool) -> str | None:
    """Return the reason to refuse an upgrade; None: there is none."""
    if is_under_way or stands_in():
        return UNDER_WAY
    if os.getpid() == 1:
        return "the container ends with its first process: start another container"
    return None


def hand_over_to(
    channel: socket.socket,
    theirs: socket.socket,
    places: Sequence[tuple[ListenerConfig, list[socket.socket]]],
    door: str,
) -> subprocess.Popen[bytes]:
    """Send listening sockets, and start a successor that gets them. Args: theirs: its end. Raises: OSError."""
    give(channel, places, door)
    return _started(theirs.fileno(), stands_in=not stands_in())


def predecessor() -> Predecessor | None:
    """Return the process that this one takes over; None: there is none. Raises: OSError, ValueError."""
    number = os.environ.pop(PREDECESSOR, None)
    if number is None:
        return None
    descriptor = int(number)
    os.set_inheritable(descriptor, False)
    return Predecessor(socket.socket(fileno=descriptor))


def stands_in() -> bool:
    """Return True if this process stands in for a router that is upgraded."""
    return STANDS_IN in os.environ


def named(config: RouterConfig) -> RouterConfig:
    """Return the configuration under the id that this process has, with an audit log of its own."""
    if not stands_in():
        return config
    from amqpmesh.topology.workers import STAND_IN, stand_in_of  # here: a router of no mesh needs nothing of it

    audit = config.audit
    if audit is not None:  # the process beside this one writes the other file
        audit = replace(audit, file=audit.file.with_suffix(f"{STAND_IN}{audit.file.suffix}"))
    return replace(config, id=stand_in_of(config.id), audit=audit)


def unnamed(config: RouterConfig) -> RouterConfig:
    """Return the configuration that `named` was given."""
    if not stands_in():
        return config
    from amqpmesh.topology.workers import STAND_IN, upgraded_name  # as above

    audit = config.audit
    if audit is not None:
        before, _, after = audit.file.name.rpartition(STAND_IN)
        audit = replace(audit, file=audit.file.with_name(before + after))
    return replace(config, id=upgraded_name(config.id), audit=audit)


class Upgrade:
    """The upgrade of a router that runs."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._wanted = trio.Event()
        self._is_under_way = False
        self._failure = ""
        self._channel: socket.socket | None = None
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._succession: Succession | None = None
        #: The process id of the successor that accepts the connections; None: there is none.
        self.successor: int | None = None

    def request(self) -> None:
        """Begin, unless that is refused."""
        try:
            self.asked(only_asks=False)
        except RequestError as refusal:
            log.warning("upgrade refused", reason=str(refusal))

    def asked(self, only_asks: bool) -> UpgradeState:
        """Begin, unless a request only asks for the state. Returns: the state. Raises: RequestError: it is refused."""
        if not only_asks:
            reason = why_not(is_under_way=self._is_under_way)
            if reason is not None:
                raise RequestError(CONFLICT, reason)
            self._is_under_way, self._failure = True, ""
            self._wanted.set()
        return UpgradeState(os.getpid(), self._is_under_way, stands_in(), self._failure)

    async def serve(self, before: Predecessor | None) -> None:
        """Take over from another process, if there is one, and begin whenever that is requested."""
        if before is not None:
            self._is_under_way = True
            await before.take_over(self._router)
            self._is_under_way = False
        backoff, failures = Backoff(), 0
        while True:
            if not stands_in():
                await self._wanted.wait()
            self._is_under_way = True
            try:
                await self._succeed()
            except (UpgradeError, OSError) as error:
                self._failure = str(error)
                log.error("upgrade failed", reason=self._failure)
            self._is_under_way = False
            self._wanted = trio.Event()
            failures += 1
            if stands_in():  # the router has no other process: without one it keeps this name
                await trio.sleep(backoff.pause(failures))

    def drains(self) -> None:
        """Let the successor join no more: the router drains, and a new connection would prolong that."""
        if self._succession is not None:
            self._succession.close_door()

    def end(self) -> None:
        """Clean up at the end of the process. The successor hears by the end of the channel that it is alone; one that
        was not ready yet ends.
        """
        if self._process is not None and self.successor is None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._channel is not None:
            self._channel.close()

    async def _succeed(self) -> None:
        """Have a successor. Raises: UpgradeError, OSError: there is none; then this process goes on alone."""
        succession, ending = succession_of(self._router), ending_of(self._router)
        self._succession = succession
        self._folder = Path(tempfile.mkdtemp(prefix="amqpmesh-", dir=_runtime_folder()))
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)  # the system holds hundreds of packets; with more listeners this fails
        try:
            with theirs:
                succession.hand_over(self._channel, self._folder / DOOR)
                process = self._process = _started(theirs.fileno(), stands_in=not stands_in())
            log.info("upgrade started", pid=process.pid)
            with trio.move_on_after(START_TIME):
                said = await heard(self._channel)
                if said != READY:
                    raise UpgradeError(f"the new process has ended{await _status(process)}")
                self.successor = process.pid
                ending.is_succeeded = True
                succession.pause()
                log.info("successor ready", pid=process.pid)
                ending.want(None, None)
            if self.successor is None:
                raise UpgradeError(f"the new process has not started within {START_TIME:g} s")
            await heard(self._channel)
            raise UpgradeError(f"the new process has ended{await _status(process)}")
        except (UpgradeError, OSError):
            self._go_on(succession, ending)
            self.end()
            raise

    def _go_on(self, succession: Succession, ending: Ending) -> None:
        """Serve without the successor that has died."""
        succession.close_door()
        if self.successor is not None:
            self.successor, ending.is_succeeded = None, False
            succession.resume()
            ending.cancel()


async def heard(channel: socket.socket) -> bytes:
    """Return the next message; b"": the process at the other end has ended."""
    while True:
        await trio.lowlevel.wait_readable(channel)
        try:
            return channel.recv(64)
        except BlockingIOError:
            continue
        except OSError:
            return b""


async def _status(process: subprocess.Popen[bytes]) -> str:
    """Return how a process has ended that has closed its channel, for a reason."""
    with trio.move_on_after(END_TIME):
        while process.poll() is None:
            await trio.sleep(0.01)
    return "" if process.returncode is None else f" with status {process.returncode}"


def _started(channel: int, *, stands_in: bool) -> subprocess.Popen[bytes]:
    """Start this program again, as it is installed now. Args: channel: the successor's end. Raises: OSError."""
    program = sys.argv[0]
    if os.access(program, os.X_OK) and not program.endswith(".py"):
        command = [program, *sys.argv[1:]]  # a script with its own interpreter: a link may lead to another version now
    else:
        command = [sys.executable, *sys.orig_argv[1:]]
    environment = {name: value for name, value in os.environ.items() if name != STANDS_IN}
    environment[PREDECESSOR] = str(channel)
    if stands_in:
        environment[STANDS_IN] = "1"
    return subprocess.Popen(command, pass_fds=[channel], env=environment)  # noqa: S603 - this program


def _runtime_folder() -> Path | None:
    above = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(above).absolute() if above else None
