import ast
import subprocess
import sys
from pathlib import Path

import amqpmesh


def test_every_public_name_is_there() -> None:
    assert [name for name in amqpmesh.__all__ if not hasattr(amqpmesh, name)] == []
    assert sorted(amqpmesh.__all__) == sorted(set(amqpmesh.__all__))


def test_each_name_is_found_where_type_checkers_look_for_it() -> None:
    """What is imported for them, and what is imported when it is asked for, must agree."""
    tree = ast.parse(Path(amqpmesh.__file__).read_text(encoding="utf-8"))
    declared = {
        name.name: statement.module
        for block in tree.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert declared == amqpmesh._HOMES
    assert {*declared, "__version__"} == set(amqpmesh.__all__)
    assert set(amqpmesh.__all__) <= set(dir(amqpmesh))
    assert not hasattr(amqpmesh, "Broker")


def test_importing_it_touches_neither_logging_nor_signals_nor_the_pipeline() -> None:
    check = """
import logging, signal, sys
before = {number: signal.getsignal(number) for number in signal.valid_signals()}
from amqpmesh import *
assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before, "signals"
assert not logging.getLogger().handlers and not logging.getLogger("amqpmesh").handlers, "logging"
assert not [name for name in sys.modules if name.startswith(("amqpmesh.pipeline", "pyspark"))], "pipeline"
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
