"""Settings of all tests."""

import gc
import os
import signal

from hypothesis import HealthCheck, settings

# If the package is installed, its entry point does this.
pytest_plugins = [
    "amqpmesh.topology.simulation.fixtures",
    "tests.support.spark.session",
    "tests.support.spark.cluster",
    "tests.support.worlds.sockets",
]

# One profile for all machines. There is no deadline, since a busy machine is no failure. The seed is fixed, since a
# failed run must fail again.
settings.register_profile("amqpmesh", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("amqpmesh")

# In the background of a shell, tests run with SIGINT ignored, and all programs that they start would inherit that: a
# SIGINT would not stop them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Parallel tests get the width of a terminal by these variables. The programs that they start must not.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: nearly all that is made then stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave the 600,000 objects of tests that were collected out of later garbage collections, each half a second."""
    gc.collect()
    gc.freeze()
    gc.enable()
