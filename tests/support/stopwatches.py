"""What tasks take as the time that their work takes, other than the real one."""

from collections.abc import Callable
from dataclasses import replace

from amqpmesh.router.io.surroundings import OF_RUN


def measure(stopwatch: Callable[[], float]) -> None:
    """From now on, to the end of this run. Args: stopwatch: seconds."""
    OF_RUN.set(replace(OF_RUN.get(), stopwatch=stopwatch))
