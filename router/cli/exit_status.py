"""Exit statuses, the same for every command, and the errors that cause them."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    ConfigError,
    ConnectionClosedError,
    InDoubtError,
    LinkDetachedError,
    SessionEndedError,
)


class Exit(IntEnum):
    """The exit status of a command."""

    DONE = 0
    FAILED = 1
    """The command failed: a message was not accepted, a port is in use, a file was not written."""
    USAGE = 2
    """The arguments or the configuration are wrong."""
    UNREACHABLE = 3
    """The peer cannot be reached, refuses our login, or has ended the connection or the link."""
    TIMED_OUT = 4
    """Nothing happened for as long as `--timeout` allows."""
    NO = 5
    """The answer is no: the policy does not permit it, a check has findings, or a router refuses a policy."""


EPILOG: Final = (
    "Exit status: 0: done. 1: failed, for example a message was not accepted, or a port is in use. 2: the arguments or "
    "the configuration are wrong. 3: the peer cannot be reached, or refused. 4: timed out. 5: the answer is no."
)
"""The last lines of every command's help."""


class TimedOutError(AmqpMeshError):
    """Nothing happened for as long as `--timeout` allows."""


class RefusedError(AmqpMeshError):
    """The peer refuses a request."""


class StoppedError(AmqpMeshError):
    """A signal ended the command before its work was done."""


_STATUSES: Final[Mapping[type[AmqpMeshError], Exit]] = {
    CommandError: Exit.USAGE,
    ConfigError: Exit.USAGE,
    ConnectionClosedError: Exit.UNREACHABLE,
    SessionEndedError: Exit.UNREACHABLE,
    LinkDetachedError: Exit.UNREACHABLE,
    InDoubtError: Exit.UNREACHABLE,
    RefusedError: Exit.UNREACHABLE,
    TimedOutError: Exit.TIMED_OUT,
}


def status_of(error: AmqpMeshError) -> Exit:
    """Return the exit status for an error."""
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), Exit.FAILED)
