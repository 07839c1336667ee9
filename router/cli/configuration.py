"""The configuration that a command works with: the file, checked as far as it can be without listening."""

from dataclasses import replace
from pathlib import Path

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config import DEFAULT_URL, RouterConfig, load
from amqpmesh.router.io.credentials import Credentials


def read(file: Path | None) -> RouterConfig:
    """The configuration in a file, its certificates loaded for a try; without a file, all defaults.

    Raises: ConfigError: the file, the key and the reason.
    """
    if file is None:
        return RouterConfig()
    config = load(file)
    for position, listener in enumerate(config.listeners):
        try:
            Credentials.load(listener)
        except ConfigError as error:
            raise ConfigError(str(file), f"listener[{position}].tls", error.reason) from None
    return config


def listening(config: RouterConfig, urls: tuple[str, ...] = ()) -> RouterConfig:
    """The same with a listener for each URL; on the default port of loopback if there is none otherwise."""
    if not (urls or config.listeners):
        urls = (DEFAULT_URL,)
    try:
        return config.with_listeners(*urls)
    except ConfigError as error:
        raise ConfigError("command line", "--listen", error.reason) from None


def traced(config: RouterConfig) -> RouterConfig:
    """The same with every frame of every listener in the log, whatever its level was."""
    level = config.log.level if config.log.level == "debug" else "info"
    return replace(
        config,
        log=replace(config.log, level=level),
        listeners=tuple(replace(listener, trace_frames=True) for listener in config.listeners),
    )
