"""`amqpmesh run [CONFIG]`: a router as a daemon, which stops on SIGTERM or SIGINT and changes on SIGHUP.

With `--workers` it runs several processes: `supervisor.py` starts them.
"""

import argparse
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.cli import configuration, registry
from amqpmesh.router.cli.exit_status import EPILOG, Exit
from amqpmesh.router.cli.output.hints import first_steps
from amqpmesh.router.cli.process import system
from amqpmesh.router.cli.process.in_place_upgrade import (
    UPGRADE,
    FormerWorkers,
    Predecessor,
    Upgrade,
    giving_path,
    named,
    predecessor,
    unnamed,
)
from amqpmesh.router.cli.process.supervised_upgrade import ALONE, asked
from amqpmesh.router.config.edits import EditError
from amqpmesh.router.config.file import DEFAULT_URL, ListenerConfig, LogConfig, RouterConfig
from amqpmesh.router.io.environment import IS_ALONE
from amqpmesh.router.kernel import BOUND
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.heap import return_free_memory
from amqpmesh.router.runtime.reload import ConfigSource
from amqpmesh.router.runtime.router import Router, changes_of, ending_of, inherit, memory_of, succession_of
from amqpmesh.router.runtime.shared_config import FOLLOW, SharedConfig
from amqpmesh.router.runtime.shared_drain import LEAVE, SharedDrain
from amqpmesh.router.runtime.source_changes import apply_file, begin, follow

if TYPE_CHECKING:
    from amqpmesh.router.cli.process.supervisor import Worker

log = event_log.EventLog("amqpmesh.run")

ENDING = frozenset({signal.SIGTERM, signal.SIGINT})

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds until a worker that could not follow the others tries again: twice as long each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonHooks:
    """The callbacks of a router that runs as a daemon."""

    source: ConfigSource
    """The file of the configuration, which is read again after SIGHUP."""
    begun: Callable[[Router], object]
    """Called when the router listens."""
    ending: Callable[[], object]
    """Called when the router has got the signal to stop."""
    ended: Callable[[bool], object]
    """Called at the end, with True if the router has drained."""
    end_now: Collection[int] = ENDING
    """The signals that end the router at once, after the signal to stop."""
    before: Predecessor | None = None
    """The process that this one takes over; None: there is none."""
    former: FormerWorkers | None = None
    """The workers that this one and its siblings take over; None: there are none."""
    moved: Callable[[bool], object] | None = None
    """Called with True once a request has had the clients of this worker moved, and with False if it is cancelled: the
    supervisor ends all workers. None: there are none, and the router ends by itself."""
    leaving: Callable[[], object] | None = None
    """Called when this worker has moved its clients before its end: it goes on once it gets the signal `LEAVE`."""
    is_alone: Callable[[], bool] = lambda: False
    """Tells whether the supervisor, which sends that signal, has died."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Run a router until it receives SIGTERM or SIGINT. A second signal stops it at once. SIGHUP reads "
        "the configuration, certificates and users again. Without CONFIG and --listen, the router listens at "
        f"{DEFAULT_URL}."
    )
    command.epilog = EPILOG
    command.add_argument("config", metavar="CONFIG", nargs="?", type=Path, help="a TOML file")
    configuration.add_options(command)
    command.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Run a router. Returns: 0 once drained, 1 if a second signal ended it before.

    Raises: ConfigError; OSError: a listener could not be bound.
    """
    config = named(configuration.effective(given))
    _set_log(config.log)
    before = predecessor()
    system.set_process_name()
    system.raise_file_limit()
    if given.workers is not None:
        from amqpmesh.router.cli.process.supervisor import supervise  # imported here: a single process does not need it

        begun = partial(_log_started, config, workers=given.workers)
        return supervise(config, given.workers, partial(_work, given), begun, before)
    stage = DaemonHooks(
        source=ConfigSource(_file(given), lambda: named(configuration.effective(given)), _set_log, as_in_file=unnamed),
        begun=lambda router: _log_started(config, [(each.url, each.config) for each in router.listeners]),
        ending=lambda: system.notify("STOPPING=1"),
        ended=lambda _: None,
        before=before,
    )
    system.collect_garbage_less_often()
    return trio.run(serve, config, stage)


def _work(given: argparse.Namespace, worker: "Worker") -> int:
    """Run as one of several workers. Returns: the exit status; errors are printed as those of any command."""
    from amqpmesh.router.cli.process.supervisor import DRAINED, END_NOW, LEAVING, MOVED, READY, STAYS

    config = worker.config
    system.collect_garbage_less_often()
    _set_log(config.log, worker=config.id)
    stage = DaemonHooks(
        source=ConfigSource(
            _file(given),
            lambda: worker.at_ports(named(configuration.effective(given))),
            partial(_set_log, worker=config.id),
            worker.shared,
            partial(asked, worker.shared.folder),
            unnamed,
        ),
        begun=lambda _: worker.say(READY),
        ending=lambda: None,
        ended=lambda drained: worker.say(DRAINED) if drained else None,
        end_now={END_NOW},
        moved=lambda is_over: worker.say(MOVED if is_over else STAYS),
        leaving=lambda: worker.say(LEAVING),
        is_alone=worker.is_alone,
        former=worker.former(),
    )
    return registry.run(argparse.Namespace(**{**vars(given), "command": lambda _: trio.run(serve, config, stage)}))


def _file(given: argparse.Namespace) -> Path | None:
    return None if given.config is None else given.config.resolve()


def _set_log(log: LogConfig, **bearing: str) -> None:
    event_log.configure(log.level, log.format, sys.stderr, **bearing)


def _log_started(
    config: RouterConfig, listeners: Sequence[tuple[str, ListenerConfig]], workers: int | None = None
) -> None:
    """Log that the router runs. Args: listeners: each with its actual URL."""
    log.info("started", kernel=BOUND.kernel, reason=BOUND.reason, workers=workers)
    for url, listener in listeners:
        log.info("listening", url=url, name=listener.name)
    if sys.stderr.isatty() and config.log.format == "text" and config.log.level in ("debug", "info"):
        print(*first_steps(listeners), sep="\n", file=sys.stderr)
    system.notify("READY=1")


async def serve(config: RouterConfig, stage: DaemonHooks) -> int:
    """Run a router until a signal ends it. Returns: 0 once drained, 1 if a second signal ended it before."""
    drained = False
    IS_ALONE.set(True)
    taken = {*ENDING, signal.SIGHUP, UPGRADE, *stage.end_now, *(() if stage.source.shared is None else (FOLLOW, LEAVE))}
    with (
        ExitStack() as ended,
        # Handled before anything listens: a process that sees the first line may send a signal at once.
        trio.open_signal_receiver(*taken) as signals,
        trio.CancelScope() as at_once,
    ):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)  # the supervisor has blocked them until here
        router = Router(config)
        router.source = stage.source
        before = stage.before or stage.former
        inherit(router, None if before is None else before.inherited)
        upgrade = Upgrade(router) if stage.source.shared is None else None
        if upgrade is not None:
            router.source = replace(stage.source, upgrade=upgrade.asked)
            ended.callback(upgrade.end)
        async with router:
            if stage.source.shared is not None:
                begin(changes_of(router), stage.source.shared)
                await _begin_as_worker(router, stage)
            stage.begun(router)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(return_free_memory, memory_of(router))
                nursery.start_soon(_end_when_moved, router, stage, nursery.cancel_scope)
                if upgrade is not None:
                    nursery.start_soon(upgrade.serve, stage.before)
                await _until_told_to_end(signals, router, stage, upgrade, nursery)
                nursery.cancel_scope.cancel()
            if upgrade is not None:
                upgrade.drains()
            if upgrade is not None and upgrade.successor is not None:
                system.notify(f"MAINPID={upgrade.successor}")
            else:
                stage.ending()
            async with trio.open_nursery() as nursery:
                may_leave = trio.Event()
                nursery.start_soon(_hear_signals, signals, stage, at_once, may_leave)
                waits = stage.leaving is not None and ending_of(router).takes_time
                await ending_of(router).move_if_configured()
                if waits and stage.leaving is not None:
                    stage.leaving()
                    if not stage.is_alone():
                        await may_leave.wait()
                drained = await router.drain()
                nursery.cancel_scope.cancel()
    log.info("stopped", drained=drained)
    stage.ended(drained)
    return Exit.FAILED if at_once.cancelled_caught else Exit.DONE


async def _begin_as_worker(router: Router, stage: DaemonHooks) -> None:
    """Begin as one of several workers, perhaps of a router that takes another one over."""
    worker, ending, succession = changes_of(router).worker, ending_of(router), succession_of(router)
    succession.give_at(giving_path(worker.folder, worker.number))
    ending.on_succession = lambda is_on: succession.pause() if is_on else succession.resume()
    ending.share(SharedDrain(worker))
    if stage.former is not None:
        await stage.former.join(router)


async def _end_when_moved(router: Router, stage: DaemonHooks, waiting: trio.CancelScope) -> None:
    """Wait no longer for a signal once a request has had all clients moved; a worker waits for the supervisor's."""
    ending = ending_of(router)
    while True:
        await ending.until_wanted_and_moved()
        if stage.moved is None:
            log.info("draining", seconds=router.config.drain)
            waiting.cancel()
            return
        stage.moved(True)
        await ending.until_it_stays()
        stage.moved(False)


async def _until_told_to_end(
    signals: AsyncIterator[int], router: Router, stage: DaemonHooks, upgrade: Upgrade | None, nursery: trio.Nursery
) -> None:
    again, wait = trio.CancelScope(), FIRST_WAIT
    async for number in signals:
        if number == UPGRADE:
            if upgrade is not None:
                upgrade.request()
            continue
        if number not in (signal.SIGHUP, FOLLOW):
            log.info("draining", signal=signal.Signals(number).name, seconds=router.config.drain)
            return
        followed = stage.source.shared if number == FOLLOW else None
        has_changed = await _change(router, stage, followed)
        if followed is None:
            continue
        again.cancel()
        if has_changed:
            wait = FIRST_WAIT
        else:  # rights that were taken away elsewhere must not stay here
            again = trio.CancelScope()
            nursery.start_soon(_follow_again, again, wait)
            wait = min(2 * wait, LONGEST_WAIT)


async def _follow_again(scope: trio.CancelScope, seconds: float) -> None:
    """Have this worker told once more to follow the others, after a time."""
    with scope:
        await trio.sleep(seconds)
        os.kill(os.getpid(), FOLLOW)


async def _change(router: Router, stage: DaemonHooks, followed: SharedConfig | None) -> bool:
    """Put the file in force, or what another worker has put in force.

    Args: followed: has the latter; None: the file is read. Returns: False: it failed, and was logged.
    """
    try:
        if followed is not None:
            ending_of(router).follow()
            if stage.former is not None and (followed.folder / ALONE).exists():
                stage.former.part()
            await follow(changes_of(router), followed)
            return True
        await apply_file(changes_of(router), stage.source)
    except ConfigError as error:
        log.error("reload failed", file=error.file, key=error.key, reason=error.reason)
    except EditError as error:
        log.error("reload failed", reason=str(error))
    except OSError as error:
        log.error("reload failed", url=error.filename, reason=error.strerror or str(error))
    except Exception as error:  # an internal error ends the reload only, as it ends one connection elsewhere
        log.error("internal error", exception=error)
    else:
        log.info("reloaded")
        return True
    return False


async def _hear_signals(
    signals: AsyncIterator[int], stage: DaemonHooks, scope: trio.CancelScope, may_leave: trio.Event
) -> None:
    """Hear the signals during the end. Args: scope: is cancelled to end at once. may_leave: is set by `LEAVE`, or at
    the death of the supervisor, which sends SIGTERM.
    """
    async for number in signals:
        if number in stage.end_now:
            scope.cancel()
            return
        if number == LEAVE or stage.is_alone():
            may_leave.set()
