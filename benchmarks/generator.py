"""The load generator, which is written in C: it is compiled when it is first needed, and driven from here.

python -m benchmarks.generator      # compiles it and says where it is
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

SOURCE = ROOT / "benchmarks" / "loadgen.c"
PROGRAM = ROOT / "build" / "loadgen"
OPTIONS = ("-std=c11", "-O2", "-Wall", "-Wextra")


def has_tls(compiler: str) -> bool:
    """Return whether OpenSSL's headers are installed."""
    asked = subprocess.run([compiler, "-E", "-"], input=b"#include <openssl/ssl.h>\n", capture_output=True, check=False)
    return asked.returncode == 0


def program() -> Path:
    """Return the compiled generator; compile it if its source is newer.

    Raises: Failed: there is no C compiler, or it refuses the source.
    """
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > SOURCE.stat().st_mtime:
        return PROGRAM
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise Failed("the load generator is written in C, and no compiler is here: install one, or name it in CC")
    PROGRAM.parent.mkdir(exist_ok=True)
    # Several processes may do this at a time: each writes a file of its own, the last one stays.
    made = PROGRAM.with_name(f"{PROGRAM.name}.{os.getpid()}")
    tls = ("-DWITH_TLS", "-lssl", "-lcrypto") if has_tls(compiler) else ()
    done = subprocess.run(
        [compiler, *OPTIONS, "-o", str(made), str(SOURCE), *tls], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"{compiler} does not compile {SOURCE.name}:\n{done.stderr}")
    made.replace(PROGRAM)
    return PROGRAM


@contextmanager
def generate(role: str, *options: str) -> Iterator[Load]:
    """Run a generator until the block ends. Args: options: as `loadgen` without arguments lists them."""
    load = Load([str(program()), role, *options])
    try:
        yield load
    finally:
        load.end()


if __name__ == "__main__":
    try:
        print(program())
    except Failed as error:
        sys.exit(str(error))
