"""Stopwatches by which tasks measure their work, other than the real one."""

from collections.abc import Callable
from dataclasses import replace

from amqpmesh.router.io.environment import OF_THIS_RUN


def measure(stopwatch: Callable[[], float]) -> None:
    """Set the stopwatch of this run. Args: stopwatch: seconds."""
    OF_THIS_RUN.set(replace(OF_THIS_RUN.get(), stopwatch=stopwatch))
