import subprocess
import sys

import amqpmesh


def test_every_public_name_is_there() -> None:
    assert [name for name in amqpmesh.__all__ if not hasattr(amqpmesh, name)] == []
    assert sorted(amqpmesh.__all__) == sorted(set(amqpmesh.__all__))


def test_importing_it_touches_neither_logging_nor_signals_nor_the_pipeline() -> None:
    check = """
import logging, signal, sys
before = {number: signal.getsignal(number) for number in signal.valid_signals()}
import amqpmesh
assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before, "signals"
assert not logging.getLogger().handlers and not logging.getLogger("amqpmesh").handlers, "logging"
assert not [name for name in sys.modules if name.startswith(("amqpmesh.pipeline", "pyspark"))], "pipeline"
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
