"""Processes that are not to outlive the one that has started them, however that ends."""

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def ends_with_us(by: signal.Signals) -> Callable[[], None] | None:
    """Return a function for a child to call: the child then gets a signal when this process dies.

    Not for threads: the child ends with the thread that started it.
    Returns: None: this system knows nothing of the kind.
    """
    prctl, us = getattr(ctypes.CDLL(None), "prctl", None), os.getpid()
    if prctl is None:
        return None

    def end_with_it() -> None:
        prctl(_PR_SET_PDEATHSIG, by)
        if os.getppid() != us:  # it was gone before the system was told, which tells nobody any more
            os.kill(os.getpid(), by)

    return end_with_it
