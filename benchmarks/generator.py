"""The load generators, which are written in C: each is compiled when it is first needed, and driven from here.

python -m benchmarks.generator      # compiles them and says where they are

`loadgen` has pairs of a sender and a receiver, and measures their latencies. `clients` has any pattern of clients.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import ROOT, Failed, Load

SOURCES = ROOT / "benchmarks"
HEADER = SOURCES / "amqp.h"
BUILT = ROOT / "build"
PROGRAMS = ("loadgen", "clients")
OPTIONS = ("-std=c11", "-O2", "-Wall", "-Wextra")


def has_tls(compiler: str) -> bool:
    """Return whether OpenSSL's headers are installed."""
    asked = subprocess.run([compiler, "-E", "-"], input=b"#include <openssl/ssl.h>\n", capture_output=True, check=False)
    return asked.returncode == 0


def program(name: str = "loadgen") -> Path:
    """Return a compiled generator; compile it if its source is newer.

    Raises: Failed: there is no C compiler, or it refuses the source.
    """
    source, built = SOURCES / f"{name}.c", BUILT / name
    if built.exists() and built.stat().st_mtime > max(source.stat().st_mtime, HEADER.stat().st_mtime):
        return built
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise Failed("the load generator is written in C, and no compiler is here: install one, or name it in CC")
    BUILT.mkdir(exist_ok=True)
    # Several processes may do this at a time: each writes a file of its own, the last one stays.
    made = built.with_name(f"{name}.{os.getpid()}")
    tls = ("-DWITH_TLS", "-lssl", "-lcrypto") if has_tls(compiler) else ()
    done = subprocess.run(
        [compiler, *OPTIONS, "-o", str(made), str(source), *tls], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"{compiler} does not compile {source.name}:\n{done.stderr}")
    made.replace(built)
    return built


@contextmanager
def generate(role: str, *options: str) -> Iterator[Load]:
    """Run a generator until the block ends. Args: options: as `loadgen` without arguments lists them."""
    load = Load([str(program()), role, *options])
    try:
        yield load
    finally:
        load.end()


@contextmanager
def clients(arguments: str) -> Iterator[Load]:
    """Run clients of a pattern until the block ends. Args: arguments: as `clients` without arguments lists them."""
    load = Load([str(program("clients")), *arguments.split()])
    try:
        yield load
    finally:
        load.end()


if __name__ == "__main__":
    try:
        print(*map(program, PROGRAMS), sep="\n")
    except Failed as error:
        sys.exit(str(error))
