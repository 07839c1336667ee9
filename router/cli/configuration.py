"""The configuration of a command: the file, checked as far as possible without listening."""

import argparse
from dataclasses import replace
from pathlib import Path

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.file import DEFAULT_URL, RouterConfig, load
from amqpmesh.router.config.limits import MAX_WORKERS
from amqpmesh.router.runtime.credentials import ConnectorCredentials, Credentials, membership


def add_options(command: argparse.ArgumentParser) -> None:
    """Declare the options that override the file."""
    command.add_argument("--id", help="the router's id; default: the id in CONFIG, or the host's name")
    command.add_argument(
        "--listen",
        metavar="URL",
        action="append",
        default=[],
        help="listen at this URL, too; port 0 means any free port; may be repeated",
    )
    command.add_argument(
        "--trace-frames", action="store_true", help="log every frame, decoded, without bodies and passwords"
    )
    command.add_argument(
        "--workers",
        metavar="N",
        type=_workers,
        help="run N processes that share the ports: the routers ID.1 to ID.N of one mesh",
    )


def _workers(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_WORKERS):
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {MAX_WORKERS}: {text!r}")
    return int(text)


def effective(given: argparse.Namespace) -> RouterConfig:
    """Return the effective configuration, with a listener on the default port of loopback if there is no other.

    It finds every error that would stop a router from starting, except ports and hosts that it cannot listen at.
    Raises: ConfigError: with the file, the key and the reason.
    """
    config = _read(given.config)
    if given.id is not None:
        config = replace(config, id=given.id)
    config = _listening(config, tuple(given.listen))
    _try_mesh(config, given.config)
    if given.workers is not None:
        _try_workers(config, given.workers, given.config)
    return _with_tracing(config) if given.trace_frames else config


def _read(file: Path | None) -> RouterConfig:
    """Read a file, and try to load its certificates; without a file, return the defaults."""
    if file is None:
        return RouterConfig()
    config = load(file)
    try:
        for position, listener in enumerate(config.listeners):
            Credentials.load(listener, config.mesh, where=f"listener[{position}]")
        for position, connector in enumerate(config.connectors):
            ConnectorCredentials.load(connector, config.mesh, where=f"connector[{position}]")
    except ConfigError as error:
        raise ConfigError(str(file), error.key, error.reason) from None
    return config


def _try_mesh(config: RouterConfig, file: Path | None) -> None:
    """Try the mesh's files. Raises: ConfigError: one is not valid, or the certificate is another router's."""
    try:
        membership(config)
    except ConfigError as error:
        raise ConfigError(str(file), error.key, error.reason) from None


def _try_workers(config: RouterConfig, count: int, file: Path | None) -> None:
    """Try to divide the router. Raises: ConfigError: it cannot run as several workers."""
    from amqpmesh.router.config.workers import worker_config  # here: one process needs none of it

    try:
        for number in range(1, count + 1):
            worker_config(config, number, count, Path("/"))
    except ConfigError as error:
        raise ConfigError("command line" if file is None else str(file), error.key, error.reason) from None


def _listening(config: RouterConfig, urls: tuple[str, ...]) -> RouterConfig:
    if not (urls or config.listeners):
        urls = (DEFAULT_URL,)
    try:
        return config.with_listeners(*urls)
    except ConfigError as error:
        raise ConfigError("command line", "--listen", error.reason) from None


def _with_tracing(config: RouterConfig) -> RouterConfig:
    """Return the configuration with every frame of every connection in the log, at level info or debug."""
    level = config.log.level if config.log.level == "debug" else "info"
    return replace(
        config,
        log=replace(config.log, level=level),
        listeners=tuple(replace(listener, trace_frames=True) for listener in config.listeners),
        connectors=tuple(replace(connector, trace_frames=True) for connector in config.connectors),
    )
