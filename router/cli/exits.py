"""Exit statuses, the same for every command."""

from enum import IntEnum


class Exit(IntEnum):
    """What a command ends with."""

    DONE = 0
    FAILED = 1
    """What was asked for could not be done: a port in use, a file that cannot be written."""
    USAGE = 2
    """The arguments or the configuration are wrong."""
