"""Settings of all tests."""

import os
import signal

from hypothesis import HealthCheck, settings

# Where the package is installed its entry point does this.
pytest_plugins = [
    "amqpmesh.topology.simulation.fixtures",
    "tests.support.spark.session",
    "tests.support.spark.cluster",
    "tests.support.worlds.sockets",
]

# One profile for everybody: no deadline, since a busy machine is no failure; a fixed seed, since a red run must be
# red again.
settings.register_profile("amqpmesh", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("amqpmesh")

# Whoever runs the tests in the background of a shell ignores SIGINT, and every program that a test starts would
# inherit that: those that are to be stopped by it would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that run beside each other are told a width, which is that of no terminal of the programs that they start.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
