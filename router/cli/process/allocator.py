"""The C library's allocator for daemons: unlike Python's, it returns free memory to the system.

That one gives back what is free by whole MiB, and after a peak something that stays is in most of them.
"""

import os
import sys
from contextlib import suppress
from typing import Final

NAME: Final = "PYTHONMALLOC"
"""The environment's variable that says which allocator: only a process that begins can be told."""

ITSELF: Final = "/proc/self/exe"


def take_from_c_library() -> None:
    """Restart this process with the C library's allocator (execve, same pid), if that helps and is possible.

    What the environment says already goes before: `PYTHONMALLOC=pymalloc` is to stay with Python's. What runs, by the
    same arguments, finds the same: by its name alone (`sys.executable`) it may be another program.
    """
    if os.environ.get(NAME) or sys.flags.ignore_environment or sys.flags.dev_mode or not _trims():
        return
    if sys.argv[0] in ("", "-"):  # what was read from standard input is gone
        return
    with suppress(OSError):  # then it goes on as it is
        os.execve(ITSELF, sys.orig_argv, os.environ | {NAME: "malloc"})  # noqa: S606 - no other program


def _trims() -> bool:
    """Return True if the C library can free memory between used blocks (malloc_trim(3)): the GNU one can."""
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False
