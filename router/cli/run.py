"""`amqpmesh run [CONFIG]`: a router as a daemon, which ends on SIGTERM or SIGINT and reads again on SIGHUP."""

import argparse
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import trio

from amqpmesh.router import logs
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.cli import configuration, service
from amqpmesh.router.cli.exits import EPILOG, Exit
from amqpmesh.router.cli.hints import first_steps
from amqpmesh.router.config import DEFAULT_URL, RouterConfig
from amqpmesh.router.io.node import Router
from amqpmesh.router.kernel import BOUND

log = logs.EventLog("amqpmesh.run")


def declare(command: argparse.ArgumentParser) -> None:
    """Tell what its arguments are."""
    command.description = (
        "Runs a router until SIGTERM or SIGINT; a second signal ends it at once. SIGHUP reads "
        f"certificates and users again. Without CONFIG and --listen it listens at {DEFAULT_URL}."
    )
    command.epilog = EPILOG
    command.add_argument("config", metavar="CONFIG", nargs="?", type=Path, help="a TOML file")
    configuration.add_options(command)
    command.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Returns: 0 once drained, 1 if a second signal ended it before.

    Raises: ConfigError; OSError: a listener could not be bound.
    """
    config = configuration.effective(given)
    logs.configure(config.log.level, config.log.format, sys.stderr)
    service.raise_file_limit()
    return trio.run(serve, config, partial(configuration.effective, given))


async def serve(config: RouterConfig, read_again: Callable[[], RouterConfig]) -> int:
    """Run a router until a signal ends it. Args: read_again: what SIGHUP checks the files with; may raise ConfigError.

    Returns: 0 once drained, 1 if a second signal ended it before.
    """
    drained = False
    with (
        # Taken before anything listens, so that whoever sees the first line may already send one.
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals,
        trio.CancelScope() as at_once,
    ):
        async with Router(config) as router:
            log.info("begun", kernel=BOUND.kernel, reason=BOUND.reason)
            for listener in router.listeners:
                log.info("listening", url=listener.url, name=listener.name)
            if sys.stderr.isatty() and config.log.format == "text" and config.log.level in ("debug", "info"):
                print(*first_steps((each.url, each.config) for each in router.listeners), sep="\n", file=sys.stderr)
            service.notify("READY=1")
            await _until_told_to_end(signals, router, config, read_again)
            service.notify("STOPPING=1")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_second_signal, signals, at_once)
                drained = await router.drain()
                nursery.cancel_scope.cancel()
    log.info("ended", drained=drained)
    return Exit.FAILED if at_once.cancelled_caught else Exit.DONE


async def _until_told_to_end(
    signals: AsyncIterator[int], router: Router, config: RouterConfig, read_again: Callable[[], RouterConfig]
) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            log.info("draining", signal=signal.Signals(number).name, seconds=config.drain)
            return
        try:
            changed = router.reload(read_again())
        except ConfigError as error:
            log.error("not read again", file=error.file, key=error.key, reason=error.reason)
            continue
        log.info("read again")
        for key in changed:
            log.warning("needs a restart", key=key)


async def _second_signal(signals: AsyncIterator[int], at_once: trio.CancelScope) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            at_once.cancel()
            return
