"""A supervisor of one router in several processes: it starts workers, passes signals on, and restarts those that die.

The supervisor relays nothing. It reserves the ports, forks the workers, and waits for signals and for messages of
workers. It has no thread and never enters Trio, so a fork copies a consistent state at any time. A worker that is
restarted runs the same code as the first ones, with the configuration in force.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.cli.exit_status import Exit
from amqpmesh.router.cli.process import system
from amqpmesh.router.cli.process.in_place_upgrade import FormerWorkers
from amqpmesh.router.cli.process.supervised_upgrade import SupervisedUpgrade
from amqpmesh.router.cli.process.system import signal_at_parent_death
from amqpmesh.router.config.workers import hand_over_path, worker_config
from amqpmesh.router.io.dialing import LASTING, Backoff
from amqpmesh.router.io.environment import REAL
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.listeners import at_port, reserved
from amqpmesh.router.runtime.shared_config import FOLLOW, SharedConfig
from amqpmesh.router.runtime.shared_drain import LEAVE, read_order
from amqpmesh.topology.workers import worker_of

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from amqpmesh.router.cli.process.in_place_upgrade import Predecessor
    from amqpmesh.router.config.file import ListenerConfig, RouterConfig

log = event_log.EventLog("amqpmesh.run")

SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, FOLLOW, LEAVE})
"""Signals that a daemon handles."""

END_NOW: Final = signal.SIGQUIT
"""The signal that ends a worker at once. A second SIGTERM does not: a service manager may send SIGTERM to each process,
and the supervisor passes on its own.
"""

READY: Final = b"R"
MOVED: Final = b"M"
STAYS: Final = b"S"
LEAVING: Final = b"L"
DRAINED: Final = b"D"
"""Messages of a worker: it listens; a request has had its clients moved, or that was cancelled; its clients are moved,
and it is to end; it has drained.
"""

LEAVE_TIME: Final = 3.0
"""Seconds that workers wait, beyond the time for their clients, for one that has not moved them."""

LATE: Final = 10.0
"""Seconds that a worker has to end beyond `drain` and `drain_timeout`, and to end at once; then it is killed."""

MAX_SOCKET_NAME: Final = 107
"""Octets of a Unix socket's path."""


@dataclass(frozen=True, slots=True)
class Worker:
    """The functions that a worker gets from its supervisor."""

    config: RouterConfig
    at_ports: Callable[[RouterConfig], RouterConfig]
    """Gives a configuration of the router the ports that the system has chosen."""
    shared: SharedConfig
    say: Callable[[bytes], object]
    """Sends the supervisor a message."""
    is_alone: Callable[[], bool]
    """Tells whether the supervisor has died."""
    former: Callable[[], FormerWorkers | None]
    """Returns the workers that are taken over; None: there are none."""


Work = Callable[[Worker], int]
"""A function that runs a worker to its end and returns the exit status; it raises nothing."""

Begun = Callable[[Sequence[tuple[str, "ListenerConfig"]]], object]
"""A function that is called once when all workers listen, with the URL of each listener."""


@dataclass(slots=True)
class Process:
    """A worker's process, or the pause before its restart."""

    number: int
    id: str
    pid: int | None = None
    said: bytes = b""
    began: float = 0.0
    """The time of the start, by the monotonic clock."""
    failures: int = 0
    again_at: float | None = None
    """The time of the restart, by the monotonic clock; None: the process runs, or is never restarted."""
    pipe: int = field(default=-1)
    """The pipe for its messages."""
    is_silent: bool = False
    """True if the other end of the pipe is closed."""
    is_moved: bool = False
    """True while a request has had its clients moved."""
    is_leaving: bool = False
    """True while it waits to end until the others have moved their clients."""

    @property
    def runs(self) -> bool:
        """True if the process exists."""
        return self.pid is not None


class Supervisor:
    """The supervisor of one router's workers."""

    def __init__(
        self,
        config: RouterConfig,
        count: int,
        folder: Path,
        work: Work,
        begun: Begun,
        upgrade: Callable[[Callable[[], object]], SupervisedUpgrade],
    ) -> None:
        """Args: config: of the router, with reserved ports. folder: for the workers' sockets. upgrade: makes the
        upgrade, given a function that has the workers follow.
        """
        self._upgrade = upgrade(lambda: self._pass_on(FOLLOW))
        self._config = config
        self._count = count
        self._folder = folder
        self._work = work
        self._begun = begun
        self._processes = [Process(number, worker_of(config.id, number)) for number in range(1, count + 1)]
        self._backoff = Backoff()
        self._set_death_signal = signal_at_parent_death(signal.SIGTERM)
        self._all_began = False
        self._ending = False
        self._kill_at: float | None = None
        #: The time at which workers wait no longer for each other.
        self._leave_at: float | None = None
        self._drained = True
        self._status = int(Exit.DONE)

    def run(self, signals: int, apart: Sequence[int]) -> int:
        """Run the workers until a signal ends them all.

        Args: signals: a file to read signal numbers from. apart: files that workers must close.
        Returns: the exit status.
        """
        for each in self._processes:
            self._start(each, apart)
        while not self._ending or any(each.runs for each in self._processes):
            for number in self._wait(signals):
                self._handle_signal(number)
            self._reap()
            now = time.monotonic()
            self._upgrade.go_on(now)
            if self._leave_at is not None and now >= self._leave_at:
                self._let_leave()
            if self._kill_at is not None and now >= self._kill_at:
                self._kill()
            for each in self._processes:
                if each.again_at is not None and now >= each.again_at and self._restarts:
                    self._start_again(each, apart)
        self._upgrade.end()
        log.info("stopped", drained=self._drained)
        return self._status

    # ------------------------------------------------------------------------------------------------------- processes

    @property
    def _restarts(self) -> bool:
        """True if workers that die are started again. Beside a successor one would only turn new clients away."""
        return not self._ending and self._upgrade.successor is None

    def _start(self, process: Process, apart: Sequence[int]) -> None:
        read, write = os.pipe()
        above = os.getpid()
        # Signals that arrive before the worker can handle them stay pending.
        signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, END_NOW})
        try:
            pid = os.fork()
        except OSError:
            os.close(read)
            raise
        else:
            if not pid:
                self._run_child(process, above, [read, *apart], write)
        finally:  # only the supervisor continues here
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS, END_NOW})
            os.close(write)
        process.pid, process.pipe, process.said = pid, read, b""
        process.is_silent = process.is_moved = process.is_leaving = False
        process.began, process.again_at = time.monotonic(), None
        log.info("worker started", worker=process.id, pid=pid)

    def _start_again(self, process: Process, apart: Sequence[int]) -> None:
        try:
            self._start(process, apart)
        except OSError as error:  # the system has no resources for another process
            pause = self._schedule_restart(process)
            reason = error.strerror or str(error)
            log.warning("worker restart delayed", worker=process.id, reason=reason, seconds=round(pause, 3))

    def _schedule_restart(self, process: Process) -> float:
        """Schedule a restart, after longer and longer pauses. Returns: seconds until then."""
        process.failures += 1
        pause = self._backoff.pause(process.failures)
        process.again_at = time.monotonic() + pause
        return pause

    def _run_child(self, process: Process, above: int, apart: Sequence[int], pipe: int) -> NoReturn:
        """Run a worker in the child process. Args: above: the supervisor's process id. apart: files to close."""
        status = int(Exit.FAILED)
        try:
            for each in (*apart, *self._upgrade.files, *(each.pipe for each in self._processes if each.runs)):
                os.close(each)
            status = self._run_worker(process.number, above, pipe)
        except Exception as error:
            log.error("internal error", exception=error, worker=process.id)
        finally:
            with suppress(OSError):
                sys.stderr.flush()
            os._exit(status)  # the child must not run the supervisor's clean-up

    def _run_worker(self, number: int, above: int, pipe: int) -> int:
        """Run a worker. Returns: its exit status."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (*SIGNALS, END_NOW):
            # A worker that handles signals no longer has practically ended. Ignoring signals would lose pending ones.
            signal.signal(each, _ignore)
        os.setsid()  # Ctrl-C is for the supervisor
        if self._set_death_signal is not None:
            self._set_death_signal()
        REAL.chance.seed()  # otherwise all workers would draw the same random numbers
        config, count, folder, former = self._config, self._count, self._folder, self._upgrade.former

        def part_of(router: RouterConfig) -> RouterConfig:
            return worker_config(router, number, count, folder)

        shared = SharedConfig(folder, config, part_of, lambda: os.kill(above, FOLLOW))
        worker = Worker(
            part_of(self._latest(shared)),
            lambda again: _at_ports_of(config, again),
            shared,
            partial(_say, pipe),
            lambda: os.getppid() != above,
            lambda: None if former is None else FormerWorkers(former, number, count),
        )
        try:
            return int(Exit.FAILED) if os.getppid() != above else self._work(worker)
        finally:
            if os.getppid() != above:  # the supervisor has died, and cannot do it
                shutil.rmtree(folder, ignore_errors=True)

    def _latest(self, shared: SharedConfig) -> RouterConfig:
        """Return the configuration in force, for a worker that starts."""
        try:
            return shared.read().running
        except (OSError, ConfigError, ValueError) as error:  # a full disk, for example
            log.error("reload failed", file=str(self._folder), reason=str(error))
            return self._config

    def _reap(self) -> None:
        """Handle the ends of processes."""
        for each in self._processes:
            if each.pid is not None:
                pid, status = os.waitpid(each.pid, os.WNOHANG)
                if pid:
                    each.pid = None
                    self._read_message(each)
                    self._ended(each, pid, os.waitstatus_to_exitcode(status))

    def _ended(self, process: Process, pid: int, code: int) -> None:
        os.close(process.pipe)
        how = {"status": code} if code >= 0 else {"signal": _name(-code)}
        if self._ending:
            self._drained = self._drained and DRAINED in process.said
            if code:
                self._status = self._status or int(Exit.FAILED)
            self._judge_moves()
            return
        if not self._all_began:
            # A restart would fail the same way, and the caller waits for all workers.
            log.error("worker failed to start", worker=process.id, pid=pid, **how)
            self._status = max(code, int(Exit.FAILED))
            self._end()
            return
        if time.monotonic() - process.began >= LASTING:
            process.failures = 0
        log.warning(
            "worker exited", worker=process.id, pid=pid, **how, seconds=round(self._schedule_restart(process), 3)
        )
        self._judge_moves()

    def _kill(self) -> None:
        self._kill_at = None
        for each in self._processes:
            if each.pid is not None:
                log.error("worker killed", worker=each.id, pid=each.pid)
                os.kill(each.pid, signal.SIGKILL)

    # ----------------------------------------------------------------------------------------- what comes from outside

    def _wait(self, signals: int) -> bytes:
        """Wait until there is something to do. Returns: the numbers of signals received."""
        times = [each.again_at for each in self._processes if each.again_at is not None and self._restarts]
        times += [each for each in (self._kill_at, self._leave_at, self._upgrade.due) if each is not None]
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        speaking = {each.pipe: each for each in self._processes if each.runs and not each.is_silent}
        for pipe in (*speaking, *self._upgrade.files):
            poll.register(pipe, select.POLLIN)
        numbers = b""
        for descriptor, events in poll.poll(max(0.0, 1000 * (min(times) - time.monotonic())) if times else None):
            if descriptor == signals:
                numbers = os.read(signals, 4096)
            elif descriptor not in speaking:
                self._upgrade.readable(descriptor)
            elif events & select.POLLIN:
                self._read_message(speaking[descriptor])
            else:  # it has ended, or will soon: SIGCHLD follows
                speaking[descriptor].is_silent = True
        return numbers

    def _read_message(self, process: Process) -> None:
        os.set_blocking(process.pipe, False)
        with suppress(BlockingIOError):
            said = os.read(process.pipe, 64)
            process.said += said
            for word in (said[at : at + 1] for at in range(len(said))):
                if word in (MOVED, STAYS):
                    process.is_moved = word == MOVED
                elif word == LEAVING:
                    process.is_leaving = True
        if not self._all_began and not self._ending and all(READY in each.said for each in self._processes):
            self._all_began = True
            self._begun([(each.url, each) for each in self._config.listeners])
            self._upgrade.ready()
        self._judge_moves()

    def _judge_moves(self) -> None:
        """End the router once a request has had the clients of all workers moved; let workers end together."""
        running = [each for each in self._processes if each.runs]
        if self._ending:
            if running and all(each.is_leaving for each in running):
                self._let_leave()
            return
        for each in running:
            if each.is_leaving:  # it has got a signal of its own
                self._signal(each, LEAVE)
        is_needed = self._upgrade.successor is None  # else the clients of workers that have died are there
        if (running or not is_needed) and self._all_began and all(each.is_moved for each in running):
            log.info("draining", seconds=self._config.drain)
            successor = self._upgrade.successor
            system.notify("STOPPING=1" if successor is None else f"MAINPID={successor}")
            self._end()

    def _let_leave(self) -> None:
        self._leave_at = None
        self._pass_on(LEAVE)

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            # One worker reads the file, and has the others follow.
            running = sorted((READY not in each.said, each.number, each.pid) for each in self._processes if each.pid)
            if running:
                os.kill(running[0][2], signal.SIGHUP)
        elif number == FOLLOW:
            self._pass_on(FOLLOW)
        elif number == signal.SIGUSR2:
            self._upgrade.request()
        elif number in SIGNALS and self._ending:
            self._pass_on(END_NOW)
            at = time.monotonic() + LATE
            self._kill_at = at if self._kill_at is None else min(at, self._kill_at)
        elif number in SIGNALS:
            log.info("draining", signal=signal.Signals(number).name, seconds=self._config.drain)
            system.notify("STOPPING=1")
            self._end()

    def _end(self) -> None:
        self._ending = True
        order, seconds = read_order(self._folder), self._config.drain_timeout
        if order is not None and order.moves:
            seconds = max(seconds, order.seconds_left)
        self._leave_at = time.monotonic() + seconds + LEAVE_TIME
        self._kill_at = time.monotonic() + seconds + self._config.drain + LATE
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for each in self._processes:
            self._signal(each, number)

    def _signal(self, process: Process, number: signal.Signals) -> None:
        if process.pid is not None:
            os.kill(process.pid, number)


def supervise(config: RouterConfig, count: int, work: Work, begun: Begun, before: Predecessor | None = None) -> int:
    """Run a router in several processes.

    Returns: 0 if all have ended normally, else 1, or the exit status of the first worker that failed to start.
    Args: config: valid for workers. before: the process that this one takes over. Raises: OSError: a listener cannot be
        bound, or the sockets' folder cannot be made.
    """
    with ExitStack() as stack:
        apart: list[socket.socket] = []
        listeners, places = [], []
        for each in config.listeners:
            inherited = None if before is None else before.inherited.take(each)
            bound = reserved(each) if inherited is None else inherited
            places.append((each, bound))
            for one in bound:
                stack.callback(one.close)
            apart += bound
            listeners.append(replace(each, url=str(at_port(each.endpoint, bound))))
        folder = Path(stack.enter_context(_private_folder()))
        if len(os.fsencode(hand_over_path(folder, count))) > MAX_SOCKET_NAME:  # the longest one
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder))
        signals, wakeup = stack.enter_context(_signals())
        gc.freeze()  # workers share these objects' memory as long as no garbage collection touches them
        upgrade = partial(SupervisedUpgrade, config, folder, places, before)
        supervisor = Supervisor(replace(config, listeners=tuple(listeners)), count, folder, work, begun, upgrade)
        return supervisor.run(signals, [signals, wakeup, *(each.fileno() for each in apart)])


@contextmanager
def _private_folder() -> Iterator[str]:
    """Make a private folder: in the service manager's runtime directory if there is one, else a temporary one."""
    above = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or None
    folder = tempfile.mkdtemp(prefix="amqpmesh-", dir=None if above is None else Path(above).absolute())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say(pipe: int, word: bytes) -> None:
    with suppress(BrokenPipeError):  # the supervisor has died
        os.write(pipe, word)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wake-up file has the signal."""


def _name(number: int) -> str:
    """Return the name of a signal, or its number if it has no name, as real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


@contextmanager
def _signals() -> Iterator[tuple[int, int]]:
    """Catch signals. Yields: a file to read their numbers from, and the file that they are written to."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = {each: signal.signal(each, _ignore) for each in (*SIGNALS, signal.SIGCHLD)}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read, write
    finally:
        signal.set_wakeup_fd(wakeup)
        for each, handler in before.items():
            signal.signal(each, handler)
        os.close(read)
        os.close(write)


def _at_ports_of(running: RouterConfig, again: RouterConfig) -> RouterConfig:
    """Return the new configuration with the running router's ports in place of ports that the system chooses."""
    ports = [each.endpoint.port for each in running.listeners]
    listeners = [
        replace(each, url=str(replace(each.endpoint, port=ports[at])))
        if at < len(ports) and not each.endpoint.port
        else each
        for at, each in enumerate(again.listeners)
    ]
    return replace(again, listeners=tuple(listeners))
